"""What a VJP object holds, as a derivation: of its function, or if only its linear program is known, of that."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import jax

from jaxviz.derivation import Derivation, derive
from jaxviz.functions.vjp_function import VJP
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.syntax import Atom
from jaxviz.transforms.linearize import Linearized


def derivation_of_vjp(f: Any) -> Derivation | None:
    """The derivation of a function that `jaxviz.vjp` was applied to, from its result; None for anything else."""
    if not isinstance(f, VJP):
        return None
    known = f.known
    active = [i for i, nonzero in enumerate(known.nonzeros_in) if nonzero]
    derived = derive(known.program, argnums=active, cond_residuals=known.cond_residuals)
    return replace(derived, n_results=known.n_results)


def paths_in_vjp(f: Any, parts: Linearized) -> list[str] | None:
    """Where a result of `jaxviz.vjp` holds each residual, such as "opaque_residuals[0]"; '' for one of its `args_res`.

    Args:
      f: any function; the paths in another than such a result are None.
      parts: of the derivation of its function.
    """
    if not isinstance(f, VJP):
        return None
    opaque = count()
    paths = ["" if i is not None else f"opaque_residuals[{next(opaque)}]" for i in f.known.from_argument]
    tree, leaves, n_opaque = parts.structured
    at, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, leaves))
    first = {i: f"structured_residuals{jax.tree_util.keystr(path)}" for path, i in reversed(at)}
    return [*paths, *(first[i] for i in range(n_opaque, len(parts.residuals)))]


def derivation_of_linear(f: Any) -> tuple[Derivation, dict[Atom, str]] | None:
    """The derivation of the linear program that a result of `jax.vjp` holds; None for anything else.

    The residuals that are arguments of the function are its first arguments; the others are its constants, whose paths
    in the object are returned too.
    """
    held = compat.held_for_backward(f)
    if held is None:
        return None
    program = read_jaxpr(held.jaxpr)
    n = len(held.from_argument)
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(held.in_tree, range(held.in_tree.num_leaves)))
    names = [f"args{jax.tree_util.keystr(path)}" for path, _ in paths]
    saved = list(zip(program.invars, held.from_argument, strict=False))
    arguments = [v for v, i in saved if i is not None]
    tangents, structured = program.invars[n : n + len(names)], program.invars[n + len(names) :]
    all_names = [names[i] for _, i in saved if i is not None] + names
    linear = replace(
        program,
        constvars=(*(v for v, i in saved if i is None), *structured),
        consts=(*held.opaque.values(), *held.structured.values()),
        invars=(*arguments, *tangents),
        debug_info=compat.derived_debug_info(program.debug_info, all_names, len(program.outvars)),
    )
    derived = derive(linear, argnums=tuple(range(len(arguments), len(arguments) + len(tangents))))
    return derived, dict(zip(linear.constvars, (*held.opaque, *held.structured), strict=True))
