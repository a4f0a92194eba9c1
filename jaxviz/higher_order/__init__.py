"""The primitives that jaxviz has rules for: a file for each, with its description and its rule for each transform; see
`Primitive`."""

import importlib
import pkgutil

from jaxviz.transforms.primitive import (
    Body,
    Primitive,
    bodies,
    carried,
    is_call,
    is_choice,
    is_loop,
    is_scan,
    of,
    opened,
    scan_length,
)

for _module in pkgutil.iter_modules(__path__):  # a new file needs no entry
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Body",
    "Primitive",
    "bodies",
    "carried",
    "is_call",
    "is_choice",
    "is_loop",
    "is_scan",
    "of",
    "opened",
    "scan_length",
]
