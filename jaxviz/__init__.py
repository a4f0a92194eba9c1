"""jaxviz: see, step through and debug what JAX's transformations do to your own program."""

import sys
from pathlib import PurePath

from jaxviz.ir.private_names import check_jax as _check_jax

__version__ = "0.1.0"


def _is_doctor() -> bool:
    """Whether this process is `jaxviz doctor` or `python -m jaxviz doctor`, which says what is missing and so needs nothing of it."""
    program, *words = getattr(sys, "argv", None) or [""]
    return words[:1] == ["doctor"] and PurePath(program).stem in ("jaxviz", "-m")


if not _is_doctor():
    _check_jax()
    from jaxviz.public import *


def load_ipython_extension(ipython: object) -> None:
    """Makes the magics known, and turns nothing else on: `%load_ext jaxviz`."""
    from jaxviz.notebook.magics import register

    register(ipython)


def __getattr__(name: str) -> object:
    # The notebook layer brings anywidget and IPython with it, which a script that only derives has no use for.
    if name in ("explore", "Explorer"):
        from jaxviz.notebook import explorer

        return getattr(explorer, name)
    if name == "teach":
        import importlib

        return importlib.import_module("jaxviz.teach")
    if name in ("draw", "to_dot", "Drawing"):
        from jaxviz.views import drawing

        return getattr(drawing, name)
    raise AttributeError(f"module 'jaxviz' has no attribute {name!r}")
