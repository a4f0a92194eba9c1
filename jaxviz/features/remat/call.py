"""How a function is called: from its arguments to flat arrays, and back to a function that is called the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import jax

from jaxviz.arguments import flat_arguments
from jaxviz.derivation import Derivation
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary


@dataclass(frozen=True)
class Call:
    """How a function is called: its flat arguments, which of them are arrays, and the tree structures."""

    in_tree: Any
    out_tree: Any
    leaves: tuple[Any, ...]
    is_input: tuple[bool, ...]
    avals: tuple[Any, ...]
    name: str
    function: Any

    @staticmethod
    def planned(derivation: Derivation) -> Call:
        """The call that a plan for a gradient is applied to: that of the training step which takes it, if one does.

        It has the name of the function that is differentiated; of a program nothing else is known.
        """
        step, primal = derivation.step, derivation.primal
        called, out_tree = (derivation.called, derivation.out_tree) if step is None else (step.called, step.out_tree)
        if called is None:
            return Call(None, None, (), (), (), primal.name, None)
        leaves, in_tree, _, is_input = flat_arguments(called.args, called.kwargs, called.chosen)
        avals = (primal if step is None else step.traced).in_avals
        return Call(in_tree, out_tree, tuple(leaves), tuple(is_input), avals, primal.name, called.function)

    @property
    def static_argnums(self) -> tuple[int, ...]:
        """Positional arguments that are entirely static."""
        args, _ = jax.tree.unflatten(self.in_tree, self.is_input)
        leaves = [jax.tree.leaves(a) for a in args]
        return tuple(i for i, is_input in enumerate(leaves) if is_input and not any(is_input))

    @property
    def static_kwargs(self) -> dict[str, Any]:
        """Keyword arguments that are static, or contain something static."""
        _, is_input = jax.tree.unflatten(self.in_tree, self.is_input)
        _, values = jax.tree.unflatten(self.in_tree, self.leaves)
        return {key: values[key] for key in values if not all(jax.tree.leaves(is_input[key]))}

    @property
    def is_mixed(self) -> bool:
        """Whether an argument contains arrays and also what is no array, as a model of Equinox does, so that
        `jax.checkpoint` refuses it."""
        args, kwargs = jax.tree.unflatten(self.in_tree, self.is_input)
        return any(len(set(jax.tree.leaves(x))) > 1 for x in (*args, *kwargs.values()))

    @property
    def arrays(self) -> list[Any]:
        return [x for x, is_array in zip(self.leaves, self.is_input, strict=True) if is_array]

    def of_arrays(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """A function with this signature, as one of flat arrays."""

        def of_arrays(*inputs: Any) -> Any:
            rest = iter(inputs)
            leaves = [next(rest) if is_array else x for x, is_array in zip(self.leaves, self.is_input, strict=True)]
            args, kwargs = jax.tree.unflatten(self.in_tree, leaves)
            return f(*args, **kwargs)

        return of_arrays

    def of(self, of_arrays: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
        """Converts a function of flat arrays to one that is called like `f`, with its name and its source location."""

        @api_boundary
        def planned(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            if tree != self.in_tree:
                raise TypeError(
                    f"the plan for {self.name} expects arguments with the structure {self.in_tree}; got {tree}"
                )
            inputs = []
            for x, fixed, is_array in zip(leaves, self.leaves, self.is_input, strict=True):
                if is_array:
                    inputs.append(x)
                elif not _same(x, fixed):
                    raise ValueError(
                        f"the plan for {self.name} is for an argument {fixed!r}, not {x!r}; make one for this"
                    )
            for x, aval in zip(inputs, self.avals, strict=True):
                got = jax.typeof(x if isinstance(x, jax.Ref) else jax.numpy.asarray(x))
                if (got.shape, got.dtype, compat.is_ref(got)) != (aval.shape, aval.dtype, compat.is_ref(aval)):
                    raise TypeError(
                        f"the plan for {self.name} is for an argument {aval.str_short()}, not {got.str_short()}; make "
                        "one for these types"
                    )
            return of_arrays(*inputs)

        return update_wrapper(planned, f, updated=())


def _same(x: Any, fixed: Any) -> bool:
    """Whether an argument that is part of the function is unchanged, including its type: 1, 1.0 and True differ."""
    return x is fixed or (type(x) is type(fixed) and bool(x == fixed))
