"""The higher-order primitives: a file for each, with its description (`protocol.py`) and its rules for each transform."""

from jaxviz.higher_order import (
    checkpoint,
    closed_call,
    composite,
    cond,
    custom_jvp,
    custom_vjp,
    debug,
    hi_primitive,
    jit,
    pmap,
    scan,
    shard_map,
    while_loop,
)
from jaxviz.higher_order.protocol import (
    Body,
    HigherOrder,
    bodies,
    carried,
    is_call,
    is_choice,
    is_loop,
    is_scan,
    kinds,
    of,
    scan_length,
)

__all__ = [
    "Body",
    "HigherOrder",
    "bodies",
    "carried",
    "is_call",
    "is_choice",
    "is_loop",
    "is_scan",
    "kinds",
    "of",
    "scan_length",
]
