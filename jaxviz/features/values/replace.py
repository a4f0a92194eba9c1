"""`replace`: a function with other values, or other cotangents, in some places."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.addressed import AddressedValue
from jaxviz.analysis.addresses import Address, AddressError, Meant, address, check_iterations
from jaxviz.features.values.tapped import (
    At,
    Finder,
    as_array,
    checked,
    constants,
    is_differentiable,
    iterations_type,
    numbers,
    traced_inside,
)
from jaxviz.higher_order.observing import NO_STEP, Observer, PassedIn, Place, observed_program
from jaxviz.higher_order.shard_map import axes_of_devices
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.runtime.evaluate import evaluate
from jaxviz.transforms.driver import Builder

Replacement = Any
"""A function of the value, and perhaps of where it is, `At`; or an array."""


class Replaced:
    """A function with other values in some places; made by `replace`."""

    def __init__(
        self, fun: Callable[..., Any], values: Mapping[Address, Replacement], cotangents: Mapping[Address, Replacement],
        iterations: Collection[int] | None,
    ):  # fmt: skip
        functools.update_wrapper(self, fun)
        self._fun, self._finder = fun, Finder(fun, [*values, *cotangents])
        self._values, self._of_cotangents, self._iterations = values, cotangents, iterations

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._finder.addresses:
            return self._fun(*args, **kwargs)
        found = self._finder(args, kwargs)
        arrays: list[Any] = []
        variables: list[Var] = []
        inserted: dict[Place, list[tuple[Program, list[int]]]] = {}
        for given, of_cotangent in ((self._values, False), (self._of_cotangents, True)):
            for a, replacement in given.items():
                for v in found.meant[a].values:
                    program, closed_over = self._traced(a, found.meant[a], v, replacement, of_cotangent)
                    places = list(range(len(arrays), len(arrays) + len(closed_over)))
                    arrays += closed_over
                    variables += constants(closed_over)
                    inserted.setdefault(v.place, []).append((program, places))

        def observe(builder: Builder, place: Place, e: Equation, passed: PassedIn) -> tuple[Atom, None]:
            value: Atom = place[1]
            for program, places in inserted[place]:
                taken = [passed.shared[1 + i] for i in places]
                (value,) = builder.inline(program, [*taken, value, passed.iterations])
            return value, None

        program, _ = observed_program(found.program, Observer(inserted.__contains__, observe), variables)
        outs = evaluate(program, [*found.inputs(args, kwargs), NO_STEP, *arrays])
        return found.result(outs)

    def _traced(
        self, a: Address, meant: Meant, v: AddressedValue, replacement: Replacement, of_cotangent: bool
    ) -> tuple[Program, list[Any]]:
        """From a value and the vector of iterations to what replaces it."""
        if of_cotangent and not is_differentiable(v.aval):
            raise TypeError(f"{v.name} at {v.line} is {v.aval.str_short(short_dtypes=True)}, and has no cotangent.")
        chosen = self._iterations if meant.iteration is None else [meant.iteration]
        if chosen is not None and not v.loops:
            raise AddressError(f"{v.name} at {v.line} is in no loop, so it has no iterations.")
        check_iterations(meant, self._iterations or ())
        part = "replacement of the cotangent" if of_cotangent else "replacement"
        what = f"The {part} of {v.name} (at {v.line})"
        takes_place, axes = callable(replacement) and _takes_two(replacement), axes_of_devices(v.path, v.aval)

        def new(x: Any, vector: Any) -> Any:
            where = At(a.text, v, numbers(vector), axes)
            if not callable(replacement):
                y = where.pick(as_array(replacement, what), is_of_one=meant.iteration is not None)
            else:
                y = as_array(replacement(x, where) if takes_place else replacement(x), what)
            if chosen is not None and y.shape == x.shape:
                is_now = functools.reduce(jnp.logical_or, [where.iteration == i for i in chosen], np.bool_(False))
                y = jnp.where(is_now, y, x)
            return y

        vector = iterations_type(v)
        program, closed_over = traced_inside(v, new, v.aval, vector)
        checked(v, program, what)
        if not of_cotangent:
            return program, closed_over
        run = as_function(program)

        def forward(x: Any, taken: Any, vector: Any) -> Any:
            return x, (taken, vector)

        def backward(kept: Any, cotangent: Any) -> Any:
            taken, vector = kept
            (changed,) = run(*taken, cotangent, vector)
            return changed, tuple(None for _ in taken), None

        same = jax.custom_vjp(lambda x, taken, vector: x)
        same.defvjp(forward, backward)
        hooked = lambda *operands: same(operands[-2], operands[:-2], operands[-1])
        taken = [u.aval for u in constants(closed_over)]
        hook, none = traced_inside(v, hooked, *taken, v.aval, vector)
        assert not none
        return hook, closed_over

    def __repr__(self) -> str:
        return f"replace({self._finder})"


def _takes_two(replacement: Callable[..., Any]) -> bool:
    """Whether it needs a second argument; `jnp.zeros_like` could take one, which is something else."""
    try:
        parameters = inspect.signature(replacement).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters) == 2


@api_boundary
def replace(
    fun: Callable[..., Any],
    values: Mapping[Any, Replacement] | None = None,
    *,
    cotangents: Mapping[Any, Replacement] | None = None,
    iterations: Collection[int] | None = None,
) -> Replaced:
    """A function with other values, or other cotangents, in some places of its inside; pure, as `capture`.

    >>> ablated = jaxviz.replace(loss, {"h": jnp.zeros_like})
    >>> patched = jaxviz.replace(loss, {"h": jaxviz.capture(loss, "h")(params, x + 1)[1]["h"]})
    >>> clipped = jaxviz.replace(loss, cotangents={"h": lambda ct: jnp.clip(ct, -1, 1)})
    >>> jax.grad(clipped)(params, x)

    A gradient of the function with other values is that of what it then computes: nothing flows to a value that was
    replaced by another. Other cotangents leave the function as it is, and change its gradient.

    Args:
      fun: takes and returns arrays, or pytrees of them, such as models, which may hold functions and numbers too.
      values: by address (see `at`) a function from the value, or from the value and `At`, to what takes its place; or
        an array, as `capture` returned it for that address. It has the same shape and dtype.
      cotangents: the same for cotangents.
      iterations: of the innermost loop around each place, those in which it is replaced; by default all. Numbers, or
        traced ones, as under `jax.vmap`.

    Returns:
      a function with the arguments and the result of `fun`.

    Raises:
      AddressError: when it is called, an address means no value, or several.
      TypeError: when it is called, a replacement has another type than the value.
    """
    compat.check_callable(fun)
    changed = [{address(a): new for a, new in (given or {}).items()} for given in (values, cotangents)]
    for a in (*changed[0], *changed[1]):
        if a.phase != "forward":
            raise AddressError(
                f"replace takes addresses of the forward pass, not {a}; for cotangents, cotangents={{…}}."
            )
    return Replaced(fun, changed[0], changed[1], iterations)
