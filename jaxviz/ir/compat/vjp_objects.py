"""What `jax.vjp` returns: its linear program, and the values that it holds for that."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr


class HeldForBackward(NamedTuple):
    """The parts of a VJP object of JAX's.

    Args:
      jaxpr: residuals, tangents of the arguments, structured residuals → tangents of the results.
      from_argument: for each residual the number of the argument that it is, among all leaves; None if it is none.
      opaque, structured: the values of the residuals that are no arguments, in their order, by their paths in the
        object, such as "structured_residuals[0]['scale']".
      in_tree: the structure of the arguments.
      name: of the function, with the place of its definition.
    """

    jaxpr: Any
    from_argument: tuple[int | None, ...]
    opaque: dict[str, Any]
    structured: dict[str, Any]
    in_tree: Any
    name: str


def held_for_backward(f_vjp: Any) -> HeldForBackward | None:
    """What such an object holds; None for anything else."""
    try:
        spec, jaxpr, in_tree = f_vjp.fun.args[0], f_vjp.jaxpr, f_vjp.in_tree
        places = [(r.idx, r.primal) for r in spec]
        opaque = f_vjp.opaque_residuals
    except (AttributeError, IndexError, TypeError):
        return None
    return HeldForBackward(
        _without_nodes(jaxpr),
        tuple(i if is_argument else None for i, is_argument in places),
        {f"opaque_residuals[{i}]": opaque[i] for i, is_argument in places if not is_argument},
        _by_path("structured_residuals", getattr(f_vjp, "structured_residuals", ())),  # since 0.11.1
        in_tree,
        jaxpr.debug_info.func_src_info,
    )


def _by_path(name: str, tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {f"{name}{jax.tree_util.keystr(path)}": x for path, x in leaves}


def _without_nodes(jaxpr: Any) -> Any:
    """The linear program as a closed jaxpr of which all variables are inputs; what JAX marks to be transposed is the
    operation itself."""
    jaxpr = _unmarked(getattr(jaxpr, "jaxpr", jaxpr))
    variables = [*jaxpr.constvars, *jaxpr.invars]
    info = jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    return ClosedJaxpr(jaxpr.replace(constvars=[], invars=variables, debug_info=info), [])


def _unmarked(x: Any) -> Any:
    """A parameter with the operations themselves in its jaxprs."""
    if type(x) in (tuple, list):
        return type(x)(map(_unmarked, x))
    if not hasattr(x, "eqns"):
        return x
    inner = getattr(x, "jaxpr", x)
    eqns = [
        e.replace(
            primitive=getattr(e.primitive, "prim", e.primitive), params={k: _unmarked(v) for k, v in e.params.items()}
        )
        for e in inner.eqns
    ]
    opened = inner.replace(eqns=eqns)
    return opened if type(inner) is type(x) else x.replace(jaxpr=opened)
