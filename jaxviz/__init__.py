"""jaxviz: see, step through and debug what JAX's transformations do to your own program."""

from jaxviz.analysis.residuals import (
    Residual as Residual,
    ResidualSet as ResidualSet,
    residuals as residuals,
)
from jaxviz.api import (
    grad as grad,
    hessian as hessian,
    jacfwd as jacfwd,
    jacrev as jacrev,
    jvp as jvp,
    linear_transpose as linear_transpose,
    linearize as linearize,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from jaxviz.derivation import (
    Check as Check,
    Derivation as Derivation,
    clear_caches as clear_caches,
    derive as derive,
)
from jaxviz.ir.errors import (
    JaxvizError as JaxvizError,
    NoRuleError as NoRuleError,
    ProgramTypeError as ProgramTypeError,
)
from jaxviz.ir.syntax import Equation as Equation, Program as Program
from jaxviz.trace import trace as trace

__version__ = "0.1.0"


def load_ipython_extension(ipython: object) -> None:
    """Makes the magics known: `%load_ext jaxviz`."""
    from jaxviz.notebook.magics import register

    register(ipython)


def __getattr__(name: str) -> object:
    # The notebook layer brings anywidget and IPython with it, which a script that only derives has no use for.
    if name in ("explore", "Explorer"):
        from jaxviz.notebook import explorer

        return getattr(explorer, name)
    raise AttributeError(f"module 'jaxviz' has no attribute {name!r}")
