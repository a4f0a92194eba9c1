"""`lax.cond` and `lax.switch`: one of several programs is run.

Source: JAX's `lax/control_flow/conditionals.py`, which determines how the residuals of the branches are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any

import jax

from jaxviz.higher_order.flags import unknown, unraised
from jaxviz.higher_order.observing import Observing, PassedIn, Path, Place, add_observed, all_zero
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import read_traced, shared, trace_rule
from jaxviz.ir.syntax import Atom, Equation, Operation, Origin, Program, Var
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    Template,
    call_of,
    partition,
    reordered_inputs,
    select,
    with_results,
    written_out,
)
from jaxviz.transforms.flags import FlagRule, Watching, flag_program
from jaxviz.transforms.jvp import JvpRule, jvp_program
from jaxviz.transforms.linearize import (
    VJP,
    Linearized,
    LinearizeRule,
    Mode,
    linearize_program,
    refuse_own_references,
    rule_of,
)
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy, recomputed
from jaxviz.transforms.primitive import Body, Primitive
from jaxviz.transforms.split_rules import SplitOptions, SplitRule, all_staged
from jaxviz.transforms.transpose import (
    Transposed,
    TransposeOptions,
    TransposeRule,
    transpose_program,
)
from jaxviz.transforms.vmap import Dims, VmapRule, inputs_moved, vmap_program, vmap_rule


class Cond(Primitive):
    kind = "choice"
    is_typed_by_cotangents = True
    accumulates = True

    def first_covered(self, operation: Operation) -> int:
        return 0

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        n = len(operation.in_avals)
        branches = enumerate(operation.params["branches"])
        return tuple(Body(b, range(1, n), f"branches[{i}]", branch=i) for i, b in branches)

    def n_fixed(self, operation: Operation) -> int:
        return len(operation.in_avals) - 1

    def with_fixed(self, operation: Operation, programs: Sequence[Program], n: int) -> Operation:
        return cond_operation(operation, programs)

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        branches: tuple[Program, ...] = operation.params["branches"]
        _, *nz = nonzeros
        nonzeros_out = _any_branch(jvp_program(b, nz).nonzeros_out for b in branches)
        cond = cond_operation(operation, [jvp_program(b, nz, instantiate=nonzeros_out).program for b in branches])
        return JvpRule(Template(call_of(cond), "primal"), nonzeros_out, "jvp of a cond")

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        if mode.recomputes_conds and not compat.writes_in_place(
            operation
        ):  # which another run would read and write again
            return _linearize_cond_again(operation, nonzeros, mode)
        branches: tuple[Program, ...] = operation.params["branches"]
        _, *nz = nonzeros
        nonzeros_out = _any_branch(linearize_program(b, nz, mode=mode).nonzeros_out for b in branches)
        parts = [linearize_program(b, nz, instantiate=nonzeros_out, mode=mode) for b in branches]
        n_out = len(nonzeros_out)
        passed = [_passed_on(i, b) if compat.COND_PASSES_OPERANDS_ON else {} for i, b in enumerate(branches)]
        opaque = [p.residuals[: p.structured.n_opaque] for p in parts]
        saved = [[a for a in own if a not in outer] for own, outer in zip(opaque, passed, strict=True)]
        refuse_own_references([a for group in saved for a in group], "A branch of a cond")
        avals, places = _merged(saved)
        leaf_avals = [a.aval for p in parts for a in p.leaves]  # each branch returns the leaves of all
        forward = [
            _saving(p.forward, n_out, [*m, *p.leaves], [*avals, *leaf_avals], [*at, *of_leaves])
            for p, m, at, of_leaves in zip(parts, saved, places, _places_of_leaves(parts, len(avals)), strict=True)
        ]
        primal = call_of(cond_operation(operation, forward))
        outside: dict[
            Any, Atom
        ] = {}  # residuals of any branch that are operands of the cond, or constants of the branch
        all_places: list[list[int]] = []
        constants: dict[Var, Any] = {}
        for branch, of_branch, outer, at in zip(branches, opaque, passed, places, strict=True):
            own = iter(at)
            for a in of_branch:
                if a in outer and outer[a] not in outside:
                    kind, i = outer[a]
                    outside[outer[a]] = primal.invars[1 + i] if kind == "operand" else branch.constvars[i]
                    if kind != "operand":
                        constants[branch.constvars[i]] = branch.consts[i]
            order = list(outside)
            all_places.append([len(avals) + order.index(outer[a]) if a in outer else next(own) for a in of_branch])
        types = [*avals, *(a.aval for a in outside.values())]
        n_opaque = len(types)
        linear = [
            _taking(p.linear, len(p.residuals), [*types, *leaf_avals], [*at, *of_leaves])
            for p, at, of_leaves in zip(parts, all_places, _places_of_leaves(parts, n_opaque), strict=True)
        ]
        primal = replace(primal, constvars=tuple(constants), consts=tuple(constants.values()))
        _, of_opaque, of_leaves = partition(primal.outvars, n_out, len(avals))
        index, others = primal.invars[0], (*of_opaque, *outside.values())
        pushed, tree = call_of(cond_operation(operation, linear)), None
        if of_leaves:  # their tree has the index too
            tree = compat.structure_of_branches([p.structured.tree for p in parts])
            first, *rest = pushed.invars
            pushed = reordered_inputs(pushed, [*rest[:n_opaque], first, *rest[n_opaque:]])
        residuals = (*others, index, *of_leaves) if of_leaves else (index, *others)
        checkpoints, name = tuple(c for p in parts for c in p.checkpoints), "linearize of a cond"
        return rule_of(primal, n_out, residuals, pushed, nonzeros_out, name, False, checkpoints, tree)

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        branches: tuple[Program, ...] = operation.params["branches"]
        index_uk, *uk = unknown
        n_in, n_out = len(unknown), len(operation.out_avals)
        name = "partial evaluation of a cond"
        if index_uk:
            return all_staged(operation, unknown, name)
        by_policy = available is not None
        options = (
            SplitOptions(policy, [True] * len(uk), ensure_available=[True] * n_out) if by_policy else SplitOptions()
        )
        unknown_out = _any_branch(split_program(b, uk, options).unknown_out for b in branches)
        parts = [split_program(b, uk, replace(options, ensure_unknown=unknown_out)) for b in branches]
        n_results = n_out - sum(unknown_out)
        avals, places = _merged([p.residuals for p in parts])
        now = [_saving(p.known, n_results, p.residuals, avals, at) for p, at in zip(parts, places, strict=True)]
        later = [_taking(p.staged, len(p.residuals), avals, at) for p, at in zip(parts, places, strict=True)]
        later_in = [i for i in range(1, n_in) if by_policy or unknown[i]]
        return SplitRule(
            Template(call_of(cond_operation(operation, now)), "primal"),
            Template(call_of(cond_operation(operation, later)), "tangent"),
            (0, *(n_in + n_results + k for k in range(len(avals))), *later_in),
            unknown_out,
            parts[0].available_out,
            name,
            tuple(d for p in parts for d in p.decisions),
            tuple(c for p in parts for c in p.checkpoints),
        )

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        branches: tuple[Program, ...] = operation.params["branches"]
        _, *lin = linear
        nonzeros_out = _any_branch(
            transpose_program(b, lin, nonzero_cts, TransposeOptions(logs=logs)).nonzeros_out for b in branches
        )
        options = TransposeOptions(instantiate=nonzeros_out, ct_avals=operation.out_avals, logs=logs)
        parts = [transpose_program(b, lin, nonzero_cts, options) for b in branches]
        n_cts = sum(nonzeros_out)
        cond = cond_operation(operation, [_with_zeros_logged(i, parts, n_cts) for i in range(len(parts))])
        call, tree = call_of(cond), None
        if any(p.logs is not None for p in parts):
            logs_out = iter(call.outvars[n_cts:])
            logged = [
                {} if p.logs is None else jax.tree.unflatten(p.logs, islice(logs_out, p.logs.num_leaves)) for p in parts
            ]
            leaves, tree = jax.tree.flatten(compat.logged_by_branches(call.invars[0], logged))
            if logs:
                call = with_results(call, [*call.outvars[:n_cts], *leaves])
        return TransposeRule(Template(call, "cotangent"), nonzeros_out, "transpose of a cond", tree)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        branches: tuple[Program, ...] = operation.params["branches"]
        compat.refuse_effects_when_mapped(operation.effects, "cond")
        platforms = operation.params.get("branches_platforms")
        if dims[0] is not None and platforms is None:
            return _vmap_to_select(operation, dims, axis)
        at = [None if d is None else 0 for d in dims]
        mapped = [vmap_program(b, at[1:], axis, to=[compat.IF_MAPPED] * len(b.outvars)) for b in branches]
        dims_out = [
            None if all(d is None for d in of_branches) else 0
            for of_branches in zip(*(b.dims_out for b in mapped), strict=True)
        ]
        parts = [vmap_program(b, at[1:], axis, to=dims_out) for b in branches]
        builder, operands, ins = inputs_moved(operation, dims, (dims[0], *at[1:]), axis)
        if dims[0] is not None:  # the platform does not depend on the example
            platform = trace_rule(lambda: [compat.platform_index(platforms)], [])
            ins[0] = builder.inline(platform, [])[0]
        outs = builder.apply(cond_operation(operation, [b.program for b in parts]), ins)
        return vmap_rule(builder, operands, outs, dims_out, "vmap of a cond")

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        branches: tuple[Program, ...] = operation.params["branches"]
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        nothing = (False,) * (len(operation.in_avals) - 1)
        read = _any_branch(dce_program(b, used, keep_inputs=nothing)[1] for b in branches)
        smaller = [dce_program(b, used, keep_inputs=read)[0] for b in branches]
        if all(used) and all(read) and all(s.equations == b.equations for s, b in zip(smaller, branches, strict=True)):
            return (True, *read), used, operation
        return (True, *read), used, cond_operation(operation, smaller)

    def flags(self, operation: Operation, watching: Watching, keeps: bool) -> FlagRule:
        """Each branch returns the flags of all branches; those of the others are not set."""
        flagged = [flag_program(b, watching) for b in operation.params["branches"]]
        watches = [(place, w) for place, inner in enumerate(flagged) for w in inner.watches]
        branches = []
        for mine, inner in enumerate(flagged):
            builder = Builder()
            operands = [Var(a) for a in inner.program.in_avals]
            outs = builder.inline(inner.program, operands)
            results, own = partition(outs, len(outs) - len(inner.watches))
            raised = iter(own)
            flags = [
                next(raised) if place == mine else builder.inline(unraised(w.n_flags, w.n_loops), [])[0]
                for place, w in watches
            ]
            branches.append(unknown(builder.program(operands, [*results, *flags])))
        cond = cond_operation(operation, branches)
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        return FlagRule(builder.program(operands, builder.apply(cond, operands)), tuple(watches))

    def observe(
        self, e: Equation, path: Path, passed: PassedIn, builder: Builder, observing: Observing
    ) -> dict[Place, Atom]:
        """A branch returns zeros for the taps of the others."""
        observed = [observing.last(branch, path, passed) for branch in e.params["branches"]]
        n = len(e.outvars)
        avals = {p: a for body, _, places in observed for p, a in zip(places, body.out_avals[n:], strict=True)}
        branches = []
        for body, _, places in observed:
            there = dict(zip(places, body.outvars[n:], strict=True))
            inside = Builder(body.constvars, body.consts)
            inside.equations += body.equations
            zeros = {p: inside.inline(all_zero(a), ())[0] for p, a in avals.items() if p not in there}
            outvars = (*body.outvars[:n], *({**there, **zeros}[p] for p in avals))
            info = compat.derived_debug_info(body.debug_info, [""] * len(body.invars), len(outvars))
            branches.append(
                replace(
                    body,
                    constvars=tuple(inside.constvars),
                    consts=tuple(inside.consts),
                    outvars=outvars,
                    equations=tuple(inside.equations),
                    debug_info=info,
                )
            )
        cond = cond_operation(e.operation, branches)
        return add_observed(builder, e, cond, (*e.invars, *observed[0][1]), tuple(avals))


COND = Cond(compat.cond_p)


def cond_operation(like: Operation, branches: Sequence[Program]) -> Operation:
    """A cond with other branches; its first operand is the index."""
    effects: frozenset[Any] = frozenset()
    for branch in branches:
        effects |= compat.moved_effects(branch.effects, range(1, len(branch.invars) + 1))
    first = branches[0]
    params = {**like.params, "branches": tuple(branches)}
    in_avals = (like.in_avals[0], *first.in_avals)
    return make_operation(like.primitive, params, in_avals, first.out_avals, effects, like.context)


def _any_branch(masks: Iterable[Mask]) -> Mask:
    return tuple(any(column) for column in zip(*masks, strict=True))


def _merged(residuals: Sequence[Sequence[Atom]]) -> tuple[list[Any], list[list[int]]]:
    """One list of types for the residuals of all branches, and the indices of each branch's residuals in it.

    The first residual of a type in one branch shares its place with the first of that type in every other branch, and
    so on.
    """
    places: dict[tuple[Any, int], int] = {}
    by_branch = []
    for atoms in residuals:
        seen: dict[Any, count[int]] = {}
        keys = [(a.aval, next(seen.setdefault(a.aval, count()))) for a in atoms]
        by_branch.append([places.setdefault(key, len(places)) for key in keys])
    return [aval for aval, _ in places], by_branch


def _places_of_leaves(parts: Sequence[Linearized], start: int) -> Iterator[range]:
    """For each branch the places of the leaves of its rules' trees among those of all branches, from `start`."""
    for p in parts:
        yield range(start, start := start + len(p.leaves))


def _saving(
    known: Program, n_results: int, residuals: Sequence[Atom], avals: Sequence[Any], at: Sequence[int]
) -> Program:
    """A branch that returns its own residuals, with dummies for those that only other branches have."""
    builder = Builder(known.constvars, known.consts)
    builder.equations += known.equations
    own = dict(zip(at, residuals, strict=True))
    saved = [own[i] if i in own else builder.splice(_dummy(a), ())[0] for i, a in enumerate(avals)]
    info = compat.derived_debug_info(known.debug_info, [""] * len(known.invars), n_results + len(saved))
    branch = builder.program(known.invars, [*known.outvars[:n_results], *saved], info)
    return replace(branch, relations=known.relations)


@shared
def _dummy(aval: Any) -> Template:
    traced = compat.trace_to_jaxpr(lambda: [compat.empty(aval)], ())
    origin = Origin(None, "linearize", "dummy for a residual that another branch saves", "dummy")
    return written_out(read_traced(traced), origin)


def _taking(staged: Program, n_own: int, avals: Sequence[Any], at: Sequence[int]) -> Program:
    """A branch that takes the residuals of all branches, and reads its own."""
    own = dict(zip(at, staged.invars[:n_own], strict=True))
    taken = [own[i] if i in own else Var(a) for i, a in enumerate(avals)]
    return reordered_inputs(staged, [*taken, *staged.invars[n_own:]])


def _passed_on(number: int, branch: Program) -> dict[Atom, tuple[Any, int]]:
    """The inputs and constants of a branch, with their values outside."""
    operands: dict[Atom, tuple[Any, int]] = {v: ("operand", i) for i, v in enumerate(branch.invars)}
    return operands | {v: (number, i) for i, v in enumerate(branch.constvars)}


def _linearize_cond_again(operation: Operation, nonzeros: Mask, mode: Mode) -> LinearizeRule:
    """The branch taken is run again in the backward pass, from the operands: a cond of remats, and so no dummies.

    JAX does it the other way round: a cond whose branches save different residuals, with `jax.checkpoint` around it or
    not, is split into two that pass the residuals of all branches, each with dummies for the others'.
    """
    branches: tuple[Program, ...] = operation.params["branches"]
    _, *nz = nonzeros
    nonzeros_out = _any_branch(linearize_program(b, nz, in_loop=True, mode=mode).nonzeros_out for b in branches)
    linear = []
    for branch in branches:
        parts = linearize_program(branch, nz, None, nonzeros_out, in_loop=True, mode=mode)
        builder = Builder(parts.forward.constvars, parts.forward.consts)
        operands = parts.forward.invars
        n_residuals = len(parts.residuals)
        again, _ = dce_program(with_results(parts.forward, parts.residuals), keep_inputs=[True] * len(operands))
        saved = builder.inline(recomputed(again, "linearize"), operands)
        tangents = parts.linear.invars[n_residuals:]
        outs = builder.inline(parts.linear, [*saved, *tangents])
        linear.append(builder.program([*operands, *tangents], outs))
    n_operands = len(nz)
    keep = [False] * n_operands + [True] * sum(nz)
    read = _any_branch(dce_program(b, keep_inputs=keep)[1] for b in linear)
    cond = cond_operation(operation, [dce_program(b, keep_inputs=read)[0] for b in linear])
    primal = call_of(operation)
    residuals = (primal.invars[0], *select(read[:n_operands], primal.invars[1:]))
    name = "linearize of a cond whose branch is run again"
    return rule_of(primal, len(nonzeros_out), residuals, call_of(cond), nonzeros_out, name)


def _with_zeros_logged(branch: int, parts: Sequence[Transposed], n_cts: int) -> Program:
    """A transposed branch that returns the cotangents, and then the logs of all branches, with zeros for those of the
    others."""
    backward = parts[branch].backward
    logged = [p.backward.outvars[n_cts:] for p in parts]
    if not any(logged):
        return backward
    builder = Builder(backward.constvars, backward.consts)
    outs = builder.inline(backward, backward.invars)
    results = outs[:n_cts]
    for i, of_branch in enumerate(logged):
        results += outs[n_cts:] if i == branch else [builder.zero(a.aval, "transpose") for a in of_branch]
    return with_results(builder.program(backward.invars, outs, backward.debug_info, like=backward), results)


def _vmap_to_select(operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
    """Each branch is computed for every example, on operands without derivatives where another branch is taken."""
    branches: tuple[Program, ...] = operation.params["branches"]
    n = len(branches)
    builder, operands, ins = inputs_moved(operation, dims, [0] * len(dims), axis)
    avals = [a.aval for a in ins]
    outs: list[list[Atom]] = []
    for i, branch in enumerate(branches):
        mine = builder.inline(trace_rule(partial(_guarded, i), avals), ins)
        part = vmap_program(branch, [0] * len(mine), axis, to=[0] * len(branch.outvars))
        outs.append(builder.inline(part.program, mine))
    index = ins[0]
    results = []
    for of_branches in zip(*outs, strict=True):
        choice = trace_rule(_selected, [index.aval, *(x.aval for x in of_branches)])
        results += builder.inline(choice, [index, *of_branches])
    text = (
        f"cond becomes select: {'both branches are' if n == 2 else f'all {n} branches are'} computed for every example"
    )
    return vmap_rule(builder, operands, results, [0] * len(results), "vmap of a cond, by select", text)


def _guarded(branch: int, index: Any, *operands: Any) -> list[Any]:
    return compat.guarded(index, branch, operands)


def _selected(index: Any, *results: Any) -> list[Any]:
    return [compat.select_results(index, *results)]
