"""`jaxviz.jit`: `jax.jit` with a compile cache that knows the transforms, and a report of what was compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxviz.displays import display
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.trace import note_arguments, noting_arguments
from jaxviz.runtime.cache import compiled_of
from jaxviz.runtime.donated import check_not_donated

if TYPE_CHECKING:
    from jaxviz.xla.compilations.compiled import CompileReport


class Jitted:
    """A compiled function, as returned by `jit`, with the methods of `jax.jit`'s functions (`lower`, `trace`, …)."""

    def __init__(self, fun: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, fun)
        self._fun = fun  # the cache only has a weak reference
        self._options = options
        self._compiled = compiled_of(fun, options)

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._compiled(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError) as error:
            check_not_donated(self._fun, args, kwargs, error)
            note_arguments(error, self, args, kwargs)
            raise

    @api_boundary
    def report(self, *args: Any, **kwargs: Any) -> CompileReport:
        """Compiles the function for these arguments, without running it, and reports how it was compiled: see
        `CompileReport`."""
        with noting_arguments(self, args, kwargs), without_leaks(self._fun, args, kwargs):
            traced = self._compiled.jitted.trace(*args, **kwargs)
        report: CompileReport = display("report of a jitted function")(self._fun, traced, args, kwargs, self._options)
        return report

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_compiled"].jitted, name)

    def __repr__(self) -> str:
        return f"jaxviz.jit({getattr(self, '__name__', self._fun)})"


@api_boundary
def jit(fun: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Compiles a function, as `jax.jit`, with the same options.

    Functions that jaxviz's transforms derive from the same function in the same way share their compiled programs, so
    `jaxviz.jit(jaxviz.grad(f))(x)` compiles once, wherever it is written; see `cache_info`.

    >>> step = jaxviz.jit(update, donate_argnums=0)
    >>> print(step.report(params, batch))
    update on cpu:0, the default device
    ...

    Args:
      fun: takes and returns arrays, or pytrees of them. Without it, `jit` returns a decorator with these options.
      **options: the options of `jax.jit`: static_argnums, static_argnames, donate_argnums, donate_argnames,
        in_shardings, out_shardings, keep_unused, device, backend, inline, compiler_options.

    Returns:
      a function that computes the same; its `report(*args)` says which devices it runs on, which results reuse donated
      arguments, and how values are partitioned.

    Raises:
      TypeError, ValueError: as `jax.jit`.
      RuntimeError: an argument was already donated; the message gives its path, and where it was donated.
    """
    if fun is None:
        return functools.partial(jit, **options)
    compat.check_callable(fun)
    return Jitted(fun, options)
