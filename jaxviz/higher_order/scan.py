"""`lax.scan`: a loop with a fixed trip count that scans over values and stacks results.

Source: JAX's `lax/control_flow/loops.py`, whose decisions these rules follow: which part of the carry has a tangent,
which residuals are the same in each iteration and so are computed outside the loop, and which are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import lax

from jaxviz.higher_order.flags import counting, in_a_loop, starts
from jaxviz.higher_order.observing import Observing, PassedIn, Path, Place, add_observed, all_numbers, joining, number
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Checkpoint, Equation, Operation, Program, Var
from jaxviz.transforms.accumulators import accumulator_type
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    Template,
    call_of,
    fixpoint,
    partition,
    reordered,
    reordered_inputs,
    select,
    with_results,
)
from jaxviz.transforms.flags import FlagRule, Watching, flag_program
from jaxviz.transforms.jvp import Jvp, JvpRule, jvp_program
from jaxviz.transforms.linearize import (
    VJP,
    Linearized,
    LinearizeRule,
    Mode,
    linearize_program,
    rule_of,
)
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy
from jaxviz.transforms.primitive import CallPrimitive
from jaxviz.transforms.split_rules import SplitOptions, SplitProgram, SplitRule
from jaxviz.transforms.transpose import TransposeOptions, TransposeRule, transpose_program
from jaxviz.transforms.vmap import Dims, Vmapped, VmapRule, inputs_moved, vmap_program, vmap_rule


@dataclass(frozen=True, slots=True)
class ScanParams:
    """The params of a scan: `(consts, carry, xs) → (carry, ys)`, with xs and ys stacked."""

    operation: Operation

    @property
    def body(self) -> Program:
        body: Program = self.operation.params["jaxpr"]
        return body

    @property
    def n_consts(self) -> int:
        return compat.scan_sizes(self.operation.params)[0]

    @property
    def n_carry(self) -> int:
        return compat.scan_sizes(self.operation.params)[1]

    @property
    def n_ys(self) -> int:
        return len(self.body.outvars) - self.n_carry

    def stacked(self, aval: Any) -> Any:
        return compat.stacked(aval, self.operation.params["length"])

    def like(self, body: Program, n_consts: int, n_carry: int, reverse: bool | None = None) -> Operation:
        """A scan with another body and the same length."""
        p = self.operation.params
        params = compat.scan_params(p, len(body.invars), len(body.outvars), n_consts, n_carry)
        params["jaxpr"] = body
        if reverse is not None:
            params["reverse"] = reverse
        unstacked, xs = body.in_avals[: n_consts + n_carry], body.in_avals[n_consts + n_carry :]
        carry, ys = body.out_avals[:n_carry], body.out_avals[n_carry:]
        return make_operation(
            self.operation.primitive, params, (*unstacked, *map(self.stacked, xs)), (*carry, *map(self.stacked, ys)),
            body.effects, self.operation.context,
        )  # fmt: skip

    def repeated(self, checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
        """Checkpoints of the body, which run once in each iteration."""
        length = int(self.operation.params["length"])
        return tuple(replace(c, lengths=(length, *c.lengths)) for c in checkpoints)

    def outer(self, v: Var, is_stacked: bool) -> Var:
        return Var(self.stacked(v.aval) if is_stacked else v.aval)


class Scan(CallPrimitive):
    kind = "loop"
    is_typed_by_cotangents = True
    accumulates = True

    def first_covered(self, operation: Operation) -> int:
        return self.carry(operation)[1]

    def carry(self, operation: Operation) -> tuple[int, int]:
        return compat.scan_sizes(operation.params)

    def n_fixed(self, operation: Operation) -> int:
        return ScanParams(operation).n_consts

    def with_fixed(self, operation: Operation, programs: Sequence[Program], n: int) -> Operation:
        (body,) = programs
        return ScanParams(operation).like(body, n, ScanParams(operation).n_carry)

    def trip_count(self, operation: Operation) -> int:
        return int(operation.params["length"])

    def copies(self, operation: Operation) -> int:
        length = self.trip_count(operation)
        unroll = max(1, min(operation.params["unroll"], length))
        return int(min(length, unroll + length % unroll))

    def is_stacked(self, operation: Operation, result: int) -> bool:
        return result >= self.carry(operation)[1]

    def turned(self, operation: Operation, iteration: int) -> int:
        return self.trip_count(operation) - 1 - iteration if operation.params["reverse"] else iteration

    def inputs(self, operation: Operation, operands: Sequence[Any], step: int, carry: Sequence[Any]) -> list[Any]:
        consts, _, xs = partition(operands, *self.carry(operation))
        i = self.turned(operation, step)
        return [*consts, *carry, *(row(x, i) for x in xs)]

    def inputs_of_step(
        self, operation: Operation, operands: Sequence[Any], step: int, of_condition: bool = False, since: int = 0
    ) -> list[Any]:
        consts, carry, xs = partition(operands, *self.carry(operation))
        length, reverse, body = self.trip_count(operation), operation.params["reverse"], ScanParams(operation).body
        if step > since:
            run = as_function(replace(body, outvars=body.outvars[: len(carry)], debug_info=None, closed=True))
            before = [x[length - step : length - since] if reverse else x[since:step] for x in xs]
            carry, _ = lax.scan(lambda c, x: (run(*consts, *c, *x), None), list(carry), before, step - since, reverse)
        i = self.turned(operation, step)
        return [*consts, *carry, *(x[i] for x in xs)]

    def steps(self, operation: Operation, operands: Sequence[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        run = jax.jit(as_function(replace(ScanParams(operation).body, debug_info=None, closed=True)))
        consts, carry, xs = partition(operands, *self.carry(operation))
        for step in range(self.trip_count(operation)):
            i = self.turned(operation, step)
            inputs = [*consts, *carry, *(x[i] for x in xs)]
            outs = run(*inputs)
            carry = outs[: len(carry)]
            yield inputs, outs

    def segment(self, operation: Operation) -> Callable[..., Any]:
        """`first step, the one after the last, consts, carry, xs, ys so far → carry, ys`."""
        n_consts, n_carry = self.carry(operation)
        body = ScanParams(operation).body
        run = as_function(body)
        types = body.in_avals[n_consts : n_consts + n_carry]

        def segment(start: Any, stop: Any, consts: list[Any], carry: list[Any], xs: list[Any], ys: list[Any]) -> Any:
            def one(k: Any, state: Any) -> Any:
                carry, ys = state
                i = self.turned(operation, k)
                outs = run(*consts, *carry, *(lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs))
                rows = [lax.dynamic_update_index_in_dim(y, r, i, 0) for y, r in zip(ys, outs[n_carry:], strict=True)]
                return list(map(compat.as_type, outs[:n_carry], types)), rows

            return lax.fori_loop(start, stop, one, (list(map(compat.as_type, carry, types)), ys))

        return segment

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        scan = ScanParams(operation)
        n_consts, n_carry, n_ys = scan.n_consts, scan.n_carry, scan.n_ys
        const_nz, carry_nz, xs_nz = partition(nonzeros, n_consts, n_carry)

        def push(carry_nz: Mask) -> Jvp:
            return jvp_program(scan.body, (*const_nz, *carry_nz, *xs_nz), instantiate=(*carry_nz, *([False] * n_ys)))

        pushed, carry_nz = fixpoint(carry_nz, push, lambda p: p.nonzeros_out[:n_carry])
        nz = (*const_nz, *carry_nz, *xs_nz)
        n_in, n_out = len(nonzeros), len(operation.out_avals)
        tangent_of = {i: n_in + k for k, i in enumerate(i for i, z in enumerate(nz) if z)}
        consts, carry, xs = partition(range(n_in), n_consts, n_carry)
        order = [i for part in (consts, carry, xs) for i in (*part, *(tangent_of[j] for j in part if j in tangent_of))]
        body = reordered(pushed.program, order)
        tangent_out = {i: n_out + k for k, i in enumerate(i for i, z in enumerate(pushed.nonzeros_out) if z)}
        carry_out, ys_out = partition(range(n_out), n_carry)
        out_order = [
            i for part in (carry_out, ys_out) for i in (*part, *(tangent_out[j] for j in part if j in tangent_out))
        ]
        body = with_results(body, [body.outvars[i] for i in out_order])
        pushed_scan = scan.like(body, n_consts + sum(const_nz), n_carry + sum(carry_nz))

        builder = Builder()
        primals = [Var(a) for a in operation.in_avals]
        tangents = {i: Var(a.to_tangent_aval()) for i, a in enumerate(operation.in_avals) if nonzeros[i]}
        by_place: dict[int, Atom] = dict(enumerate(primals))
        for i, place in tangent_of.items():
            by_place[place] = (
                tangents[i] if i in tangents else builder.zero(operation.in_avals[i].to_tangent_aval(), "jvp")
            )
        outs = builder.apply(pushed_scan, [by_place[i] for i in order])
        results = dict(zip(out_order, outs, strict=True))
        program = builder.program([*primals, *tangents.values()], [results[i] for i in range(len(outs))])
        template = Template(program, "primal", keeps_lines=True)
        return JvpRule(template, pushed.nonzeros_out, "jvp of a scan")

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        scan = ScanParams(operation)
        n_consts, n_carry, n_ys = scan.n_consts, scan.n_carry, scan.n_ys
        const_nz, carry_nz, xs_nz = partition(nonzeros, n_consts, n_carry)

        def split(carry_nz: Mask) -> Linearized:
            nz, carried = (*const_nz, *carry_nz, *xs_nz), (*carry_nz, *([False] * n_ys))
            return linearize_program(scan.body, nz, instantiate=carried, in_loop=True, mode=mode)

        parts, carry_nz = fixpoint(carry_nz, split, lambda p: p.nonzeros_out[:n_carry])
        nz = (*const_nz, *carry_nz, *xs_nz)
        primal, fixed = _known_scan(scan, parts.forward, n_consts, n_carry, parts.residuals, n_leaves=len(parts.leaves))
        body, order = _residuals_in_place(parts.linear, fixed)
        linear_scan = scan.like(body, sum(fixed) + sum(const_nz), sum(carry_nz))

        builder = Builder()
        n_out = len(operation.out_avals)
        residuals = [Var(a.aval) for a in primal.outvars[n_out:]]
        tangents = {i: Var(a.to_tangent_aval()) for i, a in enumerate(operation.in_avals) if nonzeros[i]}
        ins: list[Atom] = list(residuals)
        for i, (a, z) in enumerate(zip(operation.in_avals, nz, strict=True)):
            if z:
                ins.append(tangents[i] if i in tangents else builder.zero(a.to_tangent_aval(), "linearize"))
        outs = builder.apply(linear_scan, [ins[i] for i in order])
        linear = builder.program([*residuals, *tangents.values()], outs)
        name = "linearize of a scan"
        saved = primal.outvars[n_out:]
        checkpoints = scan.repeated(parts.checkpoints)
        tree = parts.structured.tree
        return rule_of(primal, n_out, saved, linear, parts.nonzeros_out, name, True, checkpoints, tree)

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        scan = ScanParams(operation)
        n_consts, n_carry, n_ys = scan.n_consts, scan.n_carry, scan.n_ys
        n_in, n_out = len(operation.in_avals), len(operation.out_avals)
        const_uk, carry_uk, xs_uk = partition(unknown, n_consts, n_carry)
        by_policy = available is not None

        def split(carry_uk: Mask) -> SplitProgram:
            carried = (*carry_uk, *([False] * n_ys))
            options = SplitOptions(ensure_unknown=carried)
            if by_policy:
                options = SplitOptions(policy, [True] * n_in, carried, [True] * n_out)
            return split_program(scan.body, (*const_uk, *carry_uk, *xs_uk), options)

        parts, carry_uk = fixpoint(carry_uk, split, lambda p: p.unknown_out[:n_carry])
        uk = (*const_uk, *carry_uk, *xs_uk)
        n_known_carry = n_carry - sum(carry_uk)
        n_known, hoists = n_consts - sum(const_uk), not compat.stacks_all(policy)
        now, fixed = _known_scan(scan, parts.known, n_known, n_known_carry, parts.residuals, hoists)
        known_inputs = iter(now.invars)
        inputs = [Var(a) if u else next(known_inputs) for a, u in zip(operation.in_avals, uk, strict=True)]
        now = reordered_inputs(now, [v for v, u in zip(inputs, unknown, strict=True) if not u])
        body, order = _residuals_in_place(parts.staged, fixed)
        later_in = [i for i in range(n_in) if by_policy or uk[i]]
        n_later_consts = n_consts if by_policy else sum(const_uk)
        staged = scan.like(body, sum(fixed) + n_later_consts, n_carry if by_policy else sum(carry_uk))
        places = [*parts.residuals_after(n_in), *later_in]
        return SplitRule(
            Template(now, "primal", keeps_lines=True),
            Template(call_of(staged), "tangent"),
            tuple(places[i] for i in order),
            parts.unknown_out,
            parts.available_out,
            "partial evaluation of a scan",
            parts.decisions,
            scan.repeated(parts.checkpoints),
        )

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        """The cotangents of the carry are carried in reverse; those of the consts are accumulated in an additional
        carry.

        A part of the carry that starts from a zero tangent is not a linear operand, but is carried with the others.

        Before: `consts, T consts, T carry, T xs, xs → T carry, T ys`.
        After: `consts; CT consts, CT carry; CT ys, xs → CT consts, CT carry; CT xs`, and stacked, the logs.
        """
        scan = ScanParams(operation)
        n_consts, n_carry = scan.n_consts, scan.n_carry
        const_lin, carry_lin, xs_lin = partition(linear, n_consts, n_carry)
        _, ys_cts = partition(nonzero_cts, n_carry)
        inner = (*const_lin, *([True] * n_carry), *xs_lin)
        is_ref = [compat.is_ref(v.aval) for v in select(inner, scan.body.invars)]
        n_refs = sum(is_ref[: sum(const_lin)])
        n_const_lin, n_xs_lin = sum(const_lin) - n_refs, sum(xs_lin) - sum(is_ref) + n_refs
        options = TransposeOptions(
            carried=[i < sum(const_lin) and not r for i, r in enumerate(is_ref)],
            instantiate=[not r for r in is_ref],
            ct_avals=[compat.as_weak_as(a, b) for a, b in zip(scan.body.out_avals, operation.out_avals, strict=True)],
            logs=logs,
        )
        parts = transpose_program(scan.body, inner, [*([True] * n_carry), *ys_cts], options)
        n_fixed, n_stacked, n_ys = n_consts - sum(const_lin), len(xs_lin) - sum(xs_lin), sum(ys_cts)
        fixed, stacked, ct_carry, ct_ys, ct_consts, refs, xs_refs = partition(
            range(len(parts.backward.invars)), n_fixed, n_stacked, n_carry, n_ys, n_const_lin, n_refs
        )
        body = reordered(parts.backward, [*fixed, *refs, *ct_consts, *ct_carry, *ct_ys, *stacked, *xs_refs])
        backward_scan = scan.like(
            body, n_fixed + n_refs, n_const_lin + n_carry, reverse=not operation.params["reverse"]
        )

        builder = Builder()
        others = [Var(a) for a, lin in zip(operation.in_avals, linear, strict=True) if not lin]
        n_starts = n_carry - sum(carry_lin)
        cts = [
            Var(compat.cotangent_type(a)) if nz else None
            for a, nz in zip(operation.out_avals, nonzero_cts, strict=True)
        ]
        accumulators = [Var(accumulator_type(a)) for a in select(linear, operation.in_avals) if compat.is_ref(a)]
        starts = [
            builder.zero(compat.cotangent_type(a), "transpose")
            for a in select(const_lin, operation.in_avals[:n_consts])
            if not compat.is_ref(a)
        ]
        going_round = [
            builder.zero(compat.cotangent_type(a), "transpose") if ct is None else ct
            for ct, a in zip(cts[:n_carry], operation.out_avals, strict=False)
        ]
        nonzero_cts_in = [ct for ct in cts if ct is not None]
        ys = [ct for ct in cts[n_carry:] if ct is not None]
        outs = builder.apply(
            backward_scan,
            [
                *others[:n_fixed], *accumulators[:n_refs], *starts, *going_round, *ys, *others[n_fixed + n_starts :],
                *accumulators[n_refs:],
            ],
        )  # fmt: skip
        is_operand = (*([True] * n_const_lin), *carry_lin, *([True] * n_xs_lin))
        n = len(is_operand)
        backward = builder.program(
            [*others, *nonzero_cts_in, *accumulators], [*select(is_operand, outs[:n]), *outs[n:]]
        )
        template = Template(backward, "cotangent", keeps_lines=True)
        nonzeros_out = tuple(not compat.is_ref(a) for a in select(linear, operation.in_avals))
        return TransposeRule(template, nonzeros_out, "transpose of a scan", parts.logs)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        """The carry is mapped if its initial value or its result is: a fixpoint."""
        scan = ScanParams(operation)
        n_consts, n_carry, n_ys = scan.n_consts, scan.n_carry, scan.n_ys
        consts, carry, xs = partition([d is not None for d in dims], n_consts, n_carry)

        def each(carry: Mask) -> Vmapped:
            inner = [0 if m else None for m in (*consts, *carry, *xs)]
            to = [0 if m else compat.IF_MAPPED for m in carry] + [compat.IF_MAPPED] * n_ys
            return vmap_program(scan.body, inner, axis, to=to)

        body, carry = fixpoint(carry, each, lambda b: [d is not None for d in b.dims_out[:n_carry]])
        mapped = (*consts, *carry, *xs)
        at = [None if not m else 0 if i < n_consts + n_carry else 1 for i, m in enumerate(mapped)]
        builder, operands, ins = inputs_moved(operation, dims, at, axis)
        outs = builder.apply(scan.like(body.program, n_consts, n_carry), ins)
        dims_out = [None if d is None else 0 if i < n_carry else 1 for i, d in enumerate(body.dims_out)]
        return vmap_rule(builder, operands, outs, dims_out, "vmap of a scan")

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        scan = ScanParams(operation)
        n_consts, n_carry = scan.n_consts, scan.n_carry
        n_in = len(operation.in_avals)
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        carry_used, ys_used = partition(used, n_carry)

        def reduce(carry_used: Mask) -> tuple[Program, Mask]:
            keep = [*([False] * n_consts), *carry_used, *([False] * (n_in - n_consts - n_carry))]
            return dce_program(scan.body, (*carry_used, *ys_used), keep_inputs=keep)

        carried = slice(n_consts, n_consts + n_carry)
        (smaller, read), carry_used = fixpoint(carry_used, reduce, lambda state: state[1][carried])
        const_read = read[:n_consts]
        used_out = (*carry_used, *ys_used)
        if all(read) and all(used_out) and smaller.equations == scan.body.equations:
            return read, used_out, operation
        return read, used_out, scan.like(smaller, sum(const_read), sum(carry_used))

    def flags(self, operation: Operation, watching: Watching, keeps: bool) -> FlagRule:
        scan = ScanParams(operation)
        inner = flag_program(scan.body, watching)
        watches = in_a_loop(inner)
        keeps &= bool(watches)
        n_consts, n_carry = scan.n_consts, scan.n_carry
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        consts, carry, xs = partition(operands, n_consts, n_carry)
        beside = starts(builder, watches, carry, keeps)
        body = counting(inner, watches, n_consts, n_carry, keeps)
        outs = builder.apply(scan.like(body, n_consts, n_carry + len(beside)), [*consts, *carry, *beside, *xs])
        carry, _, flags, first_carry, ys = partition(outs, n_carry, 1, len(watches), len(beside) - 1 - len(watches))
        return FlagRule(builder.program(operands, [*carry, *ys, *flags, *first_carry]), tuple((0, w) for w in watches))

    def observe(
        self, e: Equation, path: Path, passed: PassedIn, builder: Builder, observing: Observing
    ) -> dict[Place, Atom]:
        """What is shared comes first, as constants; the iterations are numbered along with the values scanned over, and
        own values are scanned over too."""
        scan, below = ScanParams(e.operation), passed.below(path)
        shared, i = [Var(a.aval) for a in passed.shared], Var(number())
        own = {p: Var(compat.unstacked(a.aval)) for p, a in below.items()}
        inside = Builder(scan.body.constvars, scan.body.consts)
        (inner,) = inside.inline(joining(shared[0].aval.shape[0]), (shared[0], i))
        invars = (*shared, *scan.body.invars, i, *own.values())
        body, places = observing.body(scan.body, path, PassedIn((inner, *shared[1:]), own), invars, inside)
        count = builder.inline(all_numbers(int(e.params["length"])), ())
        observed = scan.like(body, scan.n_consts + len(shared), scan.n_carry)
        return add_observed(builder, e, observed, (*passed.shared, *e.invars, *count, *below.values()), places)


SCAN = Scan(compat.scan_p)

_jit: Callable[[Any], Any] = jax.jit


@_jit
def row(x: Any, i: int) -> Any:
    """One element of what a scan scans over."""
    return lax.dynamic_index_in_dim(x, i, keepdims=False)


@_jit
def with_row(x: Any, element: Any, i: int) -> Any:
    """The stacked results of a scan, with one element written into them."""
    return lax.dynamic_update_index_in_dim(x, element, i, 0)


def _known_scan(
    scan: ScanParams, known: Program, n_consts: int, n_carry: int, residuals: Sequence[Atom], hoists: bool = True,
    n_leaves: int = 0,
) -> tuple[Program, Mask]:  # fmt: skip
    """The scan that runs first, as a program of its operands, preceded by values that are the same in each iteration.

    Args:
      scan: the original scan.
      known: its body: consts, carry, xs → results, and perhaps more.
      residuals: values of `known` to save.
      hoists: whether those that are the same in each iteration are computed once.
      n_leaves: how many of them, the last, are leaves of a rule's tree; these are stacked in any case, as in JAX.

    Returns:
      a program: operands → results, then residuals; and which residuals are the same in each iteration. The others are
      stacked. A residual that is an operand (except the carry) or a constant is not computed.
    """
    if not hoists:
        return call_of(scan.like(known, n_consts, n_carry)), (False,) * len(residuals)
    consts, carry, xs = partition(known.invars, n_consts, n_carry)
    n_results, n_opaque = len(known.outvars) - len(residuals), len(residuals) - n_leaves
    leaves = [r for r in dict.fromkeys(residuals[n_opaque:]) if r not in xs]
    results = [*known.outvars[:n_results], *leaves]
    fixed: dict[Atom, Any] = dict.fromkeys([*known.constvars, *consts])
    computed = [r for r in residuals[:n_opaque] if r not in fixed and r not in xs]
    loop = with_results(known, [*results, *computed])
    refs = [v for v in consts if compat.is_mutable(v.aval)]
    parts = split_program(
        loop,
        [v in refs for v in consts] + [True] * (len(carry) + len(xs)),
        SplitOptions(ensure_unknown=[True] * len(results) + [False] * len(computed), staged_role=None),
    )
    builder = Builder(known.constvars, known.consts)
    outer_carry = [Var(v.aval) for v in carry]
    outer_xs = [scan.outer(v, True) for v in xs]
    invariant = builder.inline(parts.known, [v for v in consts if v not in refs])
    n_hoisted = len(parts.known_results)
    staged_scan = scan.like(parts.staged, len(parts.residuals) + len(refs), n_carry)
    ins = [*invariant[n_hoisted:], *refs, *outer_carry, *outer_xs]
    outs = builder.apply(staged_scan, ins) if staged_scan.out_avals or staged_scan.effects else []
    hoisted, stacked = iter(invariant[:n_hoisted]), iter(outs[len(results) :])
    place: dict[Atom, Atom] = dict(zip(xs, outer_xs, strict=True))
    of_leaf = {**place, **dict(zip(leaves, outs[n_results : len(results)], strict=True))}
    is_fixed = {**fixed}
    for r, later in zip(computed, parts.unknown_out[len(results) :], strict=True):
        value = next(stacked) if later else next(hoisted)
        place[r] = of_leaf.get(r, value) if later else value
        if not later:
            is_fixed[r] = None
    saved = [*(place.get(r, r) for r in residuals[:n_opaque]), *(of_leaf[r] for r in residuals[n_opaque:])]
    program = builder.program([*consts, *outer_carry, *outer_xs], [*outs[:n_results], *saved])
    return program, (*(r in is_fixed for r in residuals[:n_opaque]), *([False] * n_leaves))


def _residuals_in_place(staged: Program, fixed: Mask) -> tuple[Program, list[int]]:
    """The body with the residuals that are the same in each iteration first, the stacked ones last; and that order."""
    n = len(fixed)
    order = [
        *(i for i in range(n) if fixed[i]),
        *range(n, len(staged.invars)),
        *(i for i in range(n) if not fixed[i]),
    ]
    return reordered(staged, order), order
