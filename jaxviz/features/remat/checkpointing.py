"""Puts checkpoints around regions of a function, and says where JAX allows none."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from jaxviz.features.remat.offload import DEVICE, HOST
from jaxviz.features.remat.pasted import chunked
from jaxviz.features.remat.regions import BODIES, Region, Spot, type_of, with_nested
from jaxviz.higher_order import of
from jaxviz.higher_order.checkpoint import apply_remat
from jaxviz.higher_order.hi_primitive import HI_PRIMITIVE
from jaxviz.higher_order.scan import SCAN
from jaxviz.higher_order.shard_map import SHARD_MAP
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import read_jaxpr, with_programs
from jaxviz.ir.errors import NoRuleError
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var
from jaxviz.transforms.driver import with_constants_as_inputs
from jaxviz.transforms.jvp import jvp_rules
from jaxviz.transforms.linearize import linearize_program


@cache
def remat_template() -> Operation:
    """A checkpoint created by JAX, as a template for others: the primitive that it has without `jax_remat3`, as which
    one with the flag is opened, too."""
    with compat.without_remat3():
        traced = read_jaxpr(jax.make_jaxpr(jax.checkpoint(lambda x: x))(1.0))
    return next(e.operation for e in traced.equations if of(e).is_checkpoint)


def check_policies_count() -> None:
    """Raises an error if JAX ignores the policies of the checkpoints that are made now.

    Raises:
      ValueError: it does; the message says why, and what to do.
    """
    if compat.ignores_policies():
        raise ValueError(
            f"with jax_remat3, {compat.JAX} ignores checkpoint policies, so what a checkpoint saves cannot be "
            'chosen. Set jax.config.update("jax_remat3", False), or update JAX.'
        )


def in_checkpoint(body: Program, prevent_cse: bool, policy: Any) -> Operation:
    """The checkpoint of a program."""
    like = remat_template()
    params = {**like.params, "jaxpr": body, "prevent_cse": prevent_cse, "policy": policy}
    return make_operation(like.primitive, params, body.in_avals, body.out_avals, body.effects, like.context)


def checkpointed(
    program: Program,
    regions: Collection[Region],
    names: Mapping[Var, str],
    entering: Entering | None = None,
    offloaded: Collection[str] = (),
    chunk: int = 1,
) -> Program:
    """The program with a checkpoint around each of some regions, which saves the values with these names.

    Args:
      regions: of the program; a region inside another gets a checkpoint inside that one's.
      names: names for values of the program, including values in bodies of scans.
      entering: names for inputs of regions, given inside the region.
      offloaded: names of values that are moved to the host.
      chunk: how many iterations of a scan whose body is one of the regions also form a checkpoint, in a scan of their
        own.
    """
    every = list(dict.fromkeys([*names.values(), *(entering or {}).values()]))
    policy = policy_of([n for n in every if n not in offloaded], [n for n in every if n in offloaded])
    return _Rewriting(regions, names, entering or {}, policy, chunk).program(program)


Entering = Mapping[tuple[Spot, int], str]
"""Names for inputs of spots, by their index in `inputs_of`."""


def inputs_of(spot: Spot) -> Sequence[Atom]:
    """The inputs of a checkpoint around a spot."""
    if spot.is_body:
        body: Program = spot.scan.params["jaxpr"]
        return (*body.constvars, *body.invars)
    return _read_by(spot.equations)


def policy_of(saved: Sequence[str], offloaded: Sequence[str]) -> Any:
    """The policy that saves and offloads values with these names; None if there are none."""
    policies = jax.checkpoint_policies
    if offloaded:
        return policies.save_and_offload_only_these_names(
            names_which_can_be_saved=saved, names_which_can_be_offloaded=offloaded, offload_src=DEVICE, offload_dst=HOST
        )
    return policies.save_only_these_names(*saved) if saved else None


def cut(
    program: Program, start: int, end: int, equations: Sequence[Equation], renamed: Mapping[Atom, Atom]
) -> tuple[list[Atom], list[Var], Program]:
    """Extracts consecutive equations of a program: the values that they read, those of theirs that are read elsewhere,
    and the program.

    Args:
      equations: the equations that replace them.
      renamed: replacements for their results, where these have other variables.
    """
    read = _read_by(equations)
    last = program.last_read
    results = [v for e in program.equations[start:end] for v in e.outvars if last.get(v, -1) >= end]
    invars = tuple([Var(a.aval) for a in read])
    own: dict[Atom, Atom] = dict(zip(read, invars, strict=True))
    reads = lambda e: tuple([own.get(a, a) for a in e.invars])
    own_equations = tuple([Equation(e.operation, reads(e), e.outvars, e.source, e.origin) for e in equations])
    body = Program(
        (), invars, tuple([renamed.get(v, v) for v in results]), own_equations,
        effects=frozenset(x for e in equations for x in e.effects),
        debug_info=compat.unknown_debug_info(len(invars), len(results)), closed=False,
    )  # fmt: skip
    return list(read), results, body


def _read_by(equations: Sequence[Equation]) -> list[Atom]:
    bound = {v for e in equations for v in e.outvars}
    return list(dict.fromkeys(a for e in equations for a in e.invars if isinstance(a, Var) and a not in bound))


def _wiring(body: Program) -> Hashable:
    """A key shared by programs that do the same, operation by operation, with the same operands."""
    number: dict[Atom, int] = {v: i for i, v in enumerate(body.invars)}
    for e in body.equations:
        for v in e.outvars:
            number[v] = len(number)

    def of_atom(a: Atom) -> Hashable:
        return number[a] if isinstance(a, Var) else (np.asarray(a.val).tobytes(), type_of(a.aval), a.held)

    types = tuple((type_of(v.aval), getattr(v.aval, "weak_type", False)) for v in body.invars)
    rows = tuple((id(e.operation), *map(of_atom, e.invars)) for e in body.equations)
    return types, rows, tuple(map(of_atom, body.outvars))


def _named(v: Atom, name: str, out: Var, at: Equation) -> Equation:
    """The equation that names a value."""
    operation = make_operation(compat.name_p, {"name": name}, (v.aval,), (v.aval,), frozenset(), at.operation.context)
    return Equation(operation, (v,), (out,), at.source)


class _Rewriting:
    def __init__(
        self, regions: Collection[Region], names: Mapping[Var, str], entering: Entering, policy: Any, chunk: int
    ):
        self.chunk = chunk
        self.names = names
        self.entering = entering
        self.policy = policy
        self.calls: dict[int, dict[int, list[int]]] = {}
        """By program, for each position the ends of the regions that start there."""
        self.bodies: set[tuple[int, int]] = set()
        for region in regions:
            for s in region.spots:
                if region.is_body:
                    self.bodies.add((id(s.program), s.start))
                else:
                    self.calls.setdefault(id(s.program), {}).setdefault(s.start, []).append(s.end)
        self.done: dict[int, Program] = {}
        self.operations: dict[Hashable, Operation] = {}
        """The checkpoints by what their bodies do: those of equal layers share an operation, for which rules are
        computed once."""

    def program(self, program: Program) -> Program:
        if id(program) not in self.done:
            renamed: dict[Atom, Atom] = {}
            equations = self.equations(program, 0, len(program.equations), renamed, len(program.equations) + 1)
            outvars = tuple([renamed.get(a, a) for a in program.outvars])
            self.done[id(program)] = replace(program, equations=tuple(equations), outvars=outvars)
        return self.done[id(program)]

    def equations(
        self, program: Program, start: int, end: int, renamed: dict[Atom, Atom], largest: int
    ) -> list[Equation]:
        """Rewrites some equations; `largest` is the end of the region that they make up, which is not opened again."""
        rewritten: list[Equation] = []
        ends = self.calls.get(id(program), {})
        i = start
        while i < end:
            inside = [stop for stop in ends.get(i, ()) if stop <= end and not (i == start and stop >= largest)]
            if inside:
                stop = max(inside)
                rewritten.append(self.region(program, i, stop, renamed))
                i = stop
                continue
            rewritten += self.equation(program, i, renamed)
            i += 1
        return rewritten

    def equation(self, program: Program, i: int, renamed: dict[Atom, Atom]) -> list[Equation]:
        e = program.equations[i]
        operation = e.operation
        if of(e) in BODIES:
            around = (id(program), i) in self.bodies
            spot = Spot(program, i, i + 1, True)
            with compat.inside_shard_map(operation) if of(e) is SHARD_MAP else nullcontext():
                operation = with_programs(
                    operation, lambda p: self.body(self.program(p), spot) if around else self.program(p)
                )
        ins = tuple([renamed.get(a, a) for a in e.invars])
        if self.chunk > 1 and (id(program), i) in self.bodies and of(e) is SCAN:
            scan = Equation(operation, ins, e.outvars, e.source, e.origin)
            rewritten = chunked(scan, self.chunk)
        else:
            rewritten = [Equation(operation, ins, e.outvars, e.source, e.origin)]
        for v in e.outvars:
            if v in self.names:
                out = renamed[v] = Var(v.aval)
                rewritten.append(_named(v, self.names[v], out, e))
        return rewritten

    def entered(self, body: Program, spot: Spot, inputs: Mapping[Atom, Atom]) -> Program:
        """A region with names for some of its inputs."""
        first: list[Equation] = []
        renamed: dict[Atom, Atom] = {}
        for k, a in enumerate(inputs_of(spot)):
            if (name := self.entering.get((spot, k))) is not None and isinstance(v := inputs[a], Var):
                renamed[v] = out = Var(v.aval)
                first.append(_named(v, name, out, spot.program.equations[spot.start]))
        if not first:
            return body
        get = lambda atoms: tuple([renamed.get(a, a) for a in atoms])
        equations = [Equation(e.operation, get(e.invars), e.outvars, e.source, e.origin) for e in body.equations]
        return replace(body, equations=(*first, *equations), outvars=get(body.outvars))

    def region(self, program: Program, start: int, end: int, renamed: dict[Atom, Atom]) -> Equation:
        """One equation that replaces those of a call: the call's checkpoint."""
        inner: dict[Atom, Atom] = {}
        operands, results, body = cut(program, start, end, self.equations(program, start, end, inner, end), inner)
        spot = Spot(program, start, end)
        if self.entering:
            body = self.entered(body, spot, dict(zip(operands, body.invars, strict=True)))
        outvars = tuple([Var(v.aval) for v in results])
        alike = _wiring(body)
        if alike not in self.operations:
            self.operations[alike] = in_checkpoint(body, True, self.policy)
        ins = tuple([renamed.get(a, a) for a in operands])
        call = Equation(self.operations[alike], ins, outvars, program.equations[start].source)
        renamed.update(zip(results, outvars, strict=True))
        return call

    def body(self, body: Program, spot: Spot) -> Program:
        """The body of a scan as one checkpoint; a scan keeps XLA from merging recomputed values with those computed
        before."""
        inner = with_constants_as_inputs(body, closed=False)
        inner = self.entered(inner, spot, dict(zip(inputs_of(spot), inner.invars, strict=True)))
        invars = [Var(a) for a in body.in_avals]
        constvars = [Var(v.aval) for v in body.constvars]
        outvars = [Var(a.aval) for a in body.outvars]
        checkpoint = Equation(in_checkpoint(inner, False, self.policy), (*constvars, *invars), tuple(outvars))
        return replace(
            body, constvars=tuple(constvars), invars=tuple(invars), outvars=tuple(outvars), equations=(checkpoint,)
        )


def refused_in_checkpoint(equations: Sequence[Equation]) -> str:
    """Why no checkpoint can be put around some equations, as a sentence without its end; '' if one can.

    JAX rejects some effects, differentiates what is inside forward, and repeats what is done to a reference that is not
    made inside.
    """
    bound = {v for e in equations for v in e.outvars}
    for i, e in enumerate(equations):
        if compat.refused_in_remat(e.effects):
            return f"{describe_equation(e, i)} has an effect that JAX does not allow in a checkpoint"
        if any(compat.is_ref(a.aval) and a not in bound for a in e.invars):
            return f"{describe_equation(e, i)} takes a mutable reference, which JAX would read and write in both passes"
        for inner in with_nested([e]):
            if of(inner) is HI_PRIMITIVE and (why := _no_forward_mode(inner.operation)):
                return f"{describe_equation(inner)} has no forward mode, which JAX needs in a checkpoint ({why})"
            if compat.leaves_out_tangents(inner.primitive):
                return (
                    f"{describe_equation(inner)} has a rule that returns None for a tangent, which JAX refuses in a "
                    "checkpoint"
                )
    return ""


def makes_references(equations: Sequence[Equation]) -> bool:
    """Whether some equations that can be in a checkpoint use references, which are then made by them: to read one
    again, JAX also writes it again, so that values cannot be chosen one by one."""
    return any(compat.touches_ref(e.operation) for e in with_nested(equations))


def check_checkpoint(body: Program, active: Sequence[bool]) -> None:
    """Raises an error if JAX cannot differentiate a checkpoint of a program that makes references.

    Args:
      active: which of its inputs have a tangent.

    Raises:
      ValueError: differentiated values are written to a reference that is made from one that is not differentiated.
    """
    try:
        linearize_program(apply_remat(remat_template(), body, True, policy=None), active)
    except NoRuleError as error:
        raise ValueError(
            "it writes differentiated values to a mutable reference that is made from one that is not differentiated, "
            "which JAX refuses in a checkpoint"
        ) from error


def _no_forward_mode(operation: Operation) -> str:
    """What JAX says if a hi-primitive has no JVP; '' if it has one."""
    try:
        jvp_rules(operation, tuple(not compat.is_float0(a.to_tangent_aval()) for a in operation.in_avals))
    except NotImplementedError as error:
        return str(error).splitlines()[0]
    return ""
