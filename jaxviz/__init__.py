"""jaxviz: see, step through and debug what JAX's transformations do to your own program."""

import lazy_loader as _lazy_loader

__version__ = "0.1.0"

# The public names are in `__init__.pyi`; each is imported on first use. A script that only takes a gradient does not
# need anywidget, IPython and matplotlib, and `jaxviz doctor` does not need the engine, which may be what fails.
_getattr, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name in __all__ or name.startswith("_"):
        return _getattr(name)
    from difflib import get_close_matches

    close = get_close_matches(name, __all__, 1, 0.7)
    meant = f". Did you mean {close[0]}?" if close else ""
    # With its name alone: with the module, Python would say the same once more.
    raise AttributeError(f"module 'jaxviz' has no attribute {name!r}{meant}", name=name)


def load_ipython_extension(ipython: object) -> None:
    """Registers the magics, and nothing else: `%load_ext jaxviz`."""
    from jaxviz.notebook.magics import register

    register(ipython)
