"""`explore`: shows a function, or two versions of one, in the explorer."""

from __future__ import annotations

from typing import Any

from jaxviz.analysis.training_step import subject_of
from jaxviz.arguments import Argnums
from jaxviz.features.comparison.report import Comparison
from jaxviz.features.explorer.widget import Explorer
from jaxviz.ir.boundary import api_boundary


@api_boundary
def explore(f: Any, *args: Any, argnums: Argnums = 0, **kwargs: Any) -> Explorer:
    """Shows what JAX's transformations do with a function, as a widget.

    >>> jaxviz.explore(loss, params, x)

    For a training step, which computes a gradient itself and returns more than one number, it is about the gradient
    that the step takes; `derive(step, ...)` in its place is about that of the step.

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args; or the result of `compare`, to show both
        side by side.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional argument or arguments to differentiate with respect to, as for `derive`.

    Raises:
      what `derive` raises; a stage that cannot be derived is shown with its error instead.
    """
    if isinstance(f, Comparison) and not args:
        return Explorer(f.after, f, compared=True)
    return Explorer(subject_of(f, args, kwargs, argnums))
