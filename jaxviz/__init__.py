"""jaxviz: see, step through and debug what JAX's transformations do to your own program."""

import lazy_loader as _lazy_loader

__version__ = "0.1.0"

# The public names stand in `__init__.pyi`, and each is imported when it is first used: a script that only takes a gradient has no use
# for anywidget, IPython and matplotlib, nor has `jaxviz doctor` for the engine, which may be what fails.
__getattr__, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def load_ipython_extension(ipython: object) -> None:
    """Makes the magics known, and turns nothing else on: `%load_ext jaxviz`."""
    from jaxviz.notebook.magics import register

    register(ipython)
