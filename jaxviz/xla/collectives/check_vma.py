"""Whether `check_vma` in `jax.shard_map`, by which types say where values differ, frees the transpose of a `psum`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jaxviz.ir import compat, primitives
from jaxviz.ir.syntax import Atom, Equation, Program

Differing = Mapping[Atom, frozenset[Any]]


def frees_transpose(holder: Equation, summing: Equation) -> bool:
    """Whether `check_vma=True` removes the sum that is the transpose of a `psum` in a `shard_map` without it.

    It does if the operand differs between the devices along all of its axes, and the result is combined only with
    values that are the same on them: otherwise the cotangent of the result is summed where they are combined. False
    also if JAX would refuse the function, since a result that may differ is said to be the same, or if that is unknown.
    """
    p = holder.operation.params
    body: Program = p["jaxpr"]
    axes = compat.axis_names(summing.operation.params)
    if p["check_vma"] or summing.primitive.name != "psum" or summing.operation.params.get("axis_index_groups"):
        return False
    if summing not in body.equations or not axes <= set(compat.devices_of(holder.operation)):
        return False
    surely, maybe = _differing(body, p["in_specs"], surely=True), _differing(body, p["in_specs"], surely=False)
    results = list(zip(body.outvars, map(_axes_of, p["out_specs"]), strict=True))
    if any(maybe.get(a, frozenset()) - split for a, split in results):
        return False
    after: set[Atom] = set(summing.outvars)
    for e in body.equations:
        if not after.isdisjoint(e.invars):
            if _exchanges_inside(e) or axes & _along(e) or any(axes & maybe.get(a, frozenset()) for a in e.invars):
                return False
            after.update(e.outvars)
    return all(axes <= surely.get(a, frozenset()) for a in summing.invars) and not any(
        a in after and axes & split for a, split in results
    )


def _differing(body: Program, in_specs: Iterable[Any], surely: bool) -> Differing:
    """The axes along which the values of a body differ between devices: surely, or perhaps."""
    differing: dict[Atom, frozenset[Any]] = {v: _axes_of(s) for v, s in zip(body.invars, in_specs, strict=True)}
    every = frozenset[Any]().union(*differing.values(), *(_along(e) for _, e in body.walk()))
    for e in body.equations:
        axes = frozenset[Any]().union(*(differing.get(a, ()) for a in e.invars))
        if _exchanges_inside(e):
            axes = frozenset() if surely else every
        elif primitives.exchanges(e.primitive) and _along(e):
            same = surely or primitives.plain(e.primitive.name).kind == "all-reduce"
            axes = axes - _along(e) if same else axes | _along(e)
        else:
            axes |= _along(e)
        differing.update(dict.fromkeys(e.outvars, axes))
    return differing


def _along(e: Equation) -> frozenset[Any]:
    return frozenset(compat.axis_names(e.operation.params))


def _exchanges_inside(e: Equation) -> bool:
    """Whether devices exchange values, or read their place among the devices, in the programs of an equation."""
    return any(_along(inner) for _, program in e.programs for _, inner in program.walk())


def _axes_of(spec: Any) -> frozenset[Any]:
    parts = (part if isinstance(part, tuple) else (part,) for part in spec.partitions)
    return frozenset(axis for part in parts for axis in part if axis is not None)
