"""jaxviz: see, step through and debug what JAX's transformations do to your own program."""

import lazy_loader as _lazy_loader

__version__ = "0.1.0"

# The public names are in `__init__.pyi`; each is imported on first use. A script that only takes a gradient does not need anywidget,
# IPython and matplotlib, and `jaxviz doctor` does not need the engine, which may be what fails.
__getattr__, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def load_ipython_extension(ipython: object) -> None:
    """Registers the magics, and nothing else: `%load_ext jaxviz`."""
    from jaxviz.notebook.magics import register

    register(ipython)
