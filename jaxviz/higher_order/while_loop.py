"""`lax.while_loop`: a loop whose trip count is known only after running it; under `jax.vmap` with a predicate for each
example.

Source: JAX's `lax/control_flow/loops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxviz.higher_order.flags import counting, in_a_loop, note, starts, unknown
from jaxviz.higher_order.observing import (
    Observing,
    PassedIn,
    Path,
    Place,
    all_zero,
    first_number,
    joining,
    next_number,
    number,
)
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import trace_rule, with_programs
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import ReverseModeError
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    Template,
    call_of,
    either,
    fixpoint,
    partition,
    reordered,
    reordered_inputs,
    select,
    with_results,
)
from jaxviz.transforms.flags import Flagged, FlagRule, Watching, flag_program
from jaxviz.transforms.jvp import Jvp, JvpRule, jvp_program
from jaxviz.transforms.linearize import (
    linearize_from_jvp,
)
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy
from jaxviz.transforms.primitive import Body, Primitive
from jaxviz.transforms.split_rules import SplitOptions, SplitProgram, SplitRule, all_staged
from jaxviz.transforms.transpose import TransposeRule
from jaxviz.transforms.vmap import Dim, Dims, Vmapped, VmapRule, inputs_moved, vmap_program, vmap_rule


@dataclass(frozen=True, slots=True)
class WhileParams:
    """The params of a while loop: `(consts of the condition, consts of the body, carry) → carry`."""

    operation: Operation

    @property
    def condition(self) -> Program:
        program: Program = self.operation.params["cond_jaxpr"]
        return program

    @property
    def body(self) -> Program:
        program: Program = self.operation.params["body_jaxpr"]
        return program

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of consts of the condition, and of the body."""
        return self.operation.params["cond_nconsts"], self.operation.params["body_nconsts"]

    def like(self, condition: Program, n_condition: int, body: Program, n_body: int) -> Operation:
        """A while loop with another condition and body."""
        params = {
            **self.operation.params,
            "cond_jaxpr": condition, "cond_nconsts": n_condition, "body_jaxpr": body, "body_nconsts": n_body,
        }  # fmt: skip
        n_carry = len(body.invars) - n_body
        condition_at = [*range(n_condition), *range(n_condition + n_body, n_condition + n_body + n_carry)]
        body_at = range(n_condition, n_condition + n_body + n_carry)
        effects = compat.moved_effects(condition.effects, condition_at) | compat.moved_effects(body.effects, body_at)
        in_avals = (*condition.in_avals[:n_condition], *body.in_avals)
        return make_operation(
            self.operation.primitive, params, in_avals, body.out_avals, effects, self.operation.context
        )


class While(Primitive):
    kind = "loop"

    def bodies(self, operation: Operation) -> tuple[Body, ...]:
        (n_condition, n_body), n = WhileParams(operation).sizes, len(operation.in_avals)
        carry = range(n_condition + n_body, n)
        return (
            Body(operation.params["cond_jaxpr"], [*range(n_condition), *carry], "cond_jaxpr", has_results=False),
            Body(operation.params["body_jaxpr"], range(n_condition, n), "body_jaxpr"),
        )

    def carry(self, operation: Operation) -> tuple[int, int]:
        return WhileParams(operation).sizes[1], len(operation.out_avals)

    def n_fixed(self, operation: Operation) -> int:
        return WhileParams(operation).sizes[1]

    def with_fixed(self, operation: Operation, programs: Sequence[Program], n: int) -> Operation:
        (body,) = programs
        loop = WhileParams(operation)
        return loop.like(loop.condition, loop.sizes[0], body, n)

    def trip_count(self, operation: Operation) -> None:
        return None

    def is_mapped(self, operation: Operation) -> bool:
        """Whether each example has its own predicate, so that finished ones keep their carry."""
        return bool(WhileParams(operation).condition.outvars[0].aval.shape)

    def carry_after(self, operation: Operation) -> Callable[..., Any]:
        """The carry of such a loop after a step: `operands, carry, results of the body → carry`."""
        loop = WhileParams(operation)
        n, condition = loop.sizes[0], as_function(loop.condition)

        def after(operands: list[Any], carry: list[Any], outs: list[Any]) -> list[Any]:
            return kept_carry(condition(*operands[:n], *carry)[0], carry, outs)

        return after

    def goes_on(self, operation: Operation) -> Callable[..., Any]:
        """The condition: `operands, carry → predicate`."""
        loop = WhileParams(operation)
        run = as_function(loop.condition)
        return lambda operands, carry: run(*operands[: loop.sizes[0]], *carry)[0]

    def inputs(self, operation: Operation, operands: Sequence[Any], step: int, carry: Sequence[Any]) -> list[Any]:
        _, consts, _ = partition(operands, *WhileParams(operation).sizes)
        return [*consts, *carry]

    def inputs_of_step(
        self, operation: Operation, operands: Sequence[Any], step: int, of_condition: bool = False, since: int = 0
    ) -> list[Any]:
        for_condition, consts, carry = partition(operands, *WhileParams(operation).sizes)
        if step > since:
            run = as_function(WhileParams(operation).body)
            carry = lax.fori_loop(since, step, lambda _, c: run(*consts, *c), list(carry))
        return [*(for_condition if of_condition else consts), *carry]

    def steps(self, operation: Operation, operands: Sequence[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        loop = WhileParams(operation)
        goes_on, run = (
            jax.jit(as_function(loop.condition)),
            jax.jit(as_function(replace(loop.body, debug_info=None, closed=True))),
        )
        for_condition, consts, carry = partition(operands, *loop.sizes)
        while goes_on(*for_condition, *carry)[0]:
            inputs = [*consts, *carry]
            carry = run(*inputs)
            yield inputs, carry

    def segment(self, operation: Operation) -> Callable[..., Any]:
        """`at most this many steps, consts, carry → carry, number of steps run`."""
        loop = WhileParams(operation)
        n, n_body = loop.sizes
        condition, body, types = as_function(loop.condition), as_function(loop.body), loop.body.in_avals[n_body:]

        def segment(limit: Any, consts: list[Any], carry: list[Any]) -> Any:
            def goes_on(state: Any) -> Any:
                k, carry = state
                return (k < limit) & jnp.any(condition(*consts[:n], *carry)[0])

            def one(state: Any) -> Any:
                k, carry = state
                after = body(*consts[n:], *carry)
                if self.is_mapped(operation):
                    after = kept_carry(condition(*consts[:n], *carry)[0], carry, after)
                return k + 1, list(map(compat.as_type, after, types))

            done, out = lax.while_loop(goes_on, one, (0, list(map(compat.as_type, carry, types))))
            return out, done

        return segment

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        loop = WhileParams(operation)
        n_condition, n_body = loop.sizes
        _, body_nz, carry_nz = partition(nonzeros, n_condition, n_body)

        def push(carry_nz: Mask) -> Jvp:
            return jvp_program(loop.body, (*body_nz, *carry_nz), instantiate=carry_nz)

        pushed, carry_nz = fixpoint(carry_nz, push, lambda p: p.nonzeros_out)
        n_carry = len(carry_nz)
        consts, carry, const_dots, carry_dots = partition(
            range(len(pushed.program.invars)), n_body, n_carry, sum(body_nz)
        )
        body = reordered(pushed.program, [*consts, *const_dots, *carry, *carry_dots])
        unread = [Var(v.aval) for v in body.invars[len(body.invars) - len(carry_dots) :]]
        condition = reordered_inputs(loop.condition, [*loop.condition.invars, *unread])
        pushed_loop = loop.like(condition, n_condition, body, n_body + sum(body_nz))

        builder = Builder()
        primals = [Var(a) for a in operation.in_avals]
        tangents = {i: Var(a.to_tangent_aval()) for i, a in enumerate(operation.in_avals) if nonzeros[i]}
        of_condition, of_body, of_carry = partition(range(len(primals)), n_condition, n_body)
        going_round = [
            tangents[i] if i in tangents else builder.zero(operation.in_avals[i].to_tangent_aval(), "jvp")
            for i, nz in zip(of_carry, carry_nz, strict=True)
            if nz
        ]
        ins = [
            *(primals[i] for i in of_condition),
            *(primals[i] for i in of_body),
            *(tangents[i] for i in of_body if i in tangents),
            *(primals[i] for i in of_carry),
            *going_round,
        ]
        outs = builder.apply(pushed_loop, ins)
        program = builder.program([*primals, *tangents.values()], outs)
        template = Template(program, "primal", keeps_lines=True)
        return JvpRule(template, carry_nz, "jvp of a while loop")

    linearize = staticmethod(linearize_from_jvp)

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        """The known part of the carry is computed now; the whole loop runs again later, since nothing inside it can be
        saved."""
        loop = WhileParams(operation)
        n_condition, n_body = loop.sizes
        condition_uk, body_uk, carry_uk = partition(unknown, n_condition, n_body)
        by_policy = available is not None

        def split(program: Program, unknown: Sequence[bool], ensure: Sequence[bool]) -> SplitProgram:
            options = SplitOptions(ensure_unknown=ensure)
            if by_policy:
                all_in, all_out = [True] * len(program.invars), [True] * len(ensure)
                options = SplitOptions(_recompute_all, all_in, ensure, all_out)
            return split_program(program, unknown, options)

        parts, carry_uk = fixpoint(carry_uk, lambda uk: split(loop.body, (*body_uk, *uk), uk), lambda p: p.unknown_out)
        condition = split(loop.condition, (*condition_uk, *carry_uk), [False])
        name = "partial evaluation of a while loop"
        if condition.unknown_out[0] or (not by_policy and all(unknown)):
            return all_staged(operation, unknown, name)
        known_body = with_results(parts.known, parts.known_results)
        known_condition = with_results(condition.known, condition.known_results)
        known_loop = loop.like(known_condition, n_condition - sum(condition_uk), known_body, n_body - sum(body_uk))
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        uk = (*condition_uk, *body_uk, *carry_uk)
        outs = builder.apply(known_loop, [v for v, u in zip(operands, uk, strict=True) if not u])
        now = builder.program([v for v, u in zip(operands, unknown, strict=True) if not u], outs)
        available_out = (True,) * len(carry_uk) if by_policy else carry_uk
        call = call_of(operation)
        later = Template(with_results(call, select(available_out, call.outvars)), "tangent")
        return SplitRule(Template(now, "primal"), later, tuple(range(len(unknown))), carry_uk, available_out, name)

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        raise ReverseModeError(
            "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with dynamic start/stop "
            "values. "
            "Try using lax.scan, or using fori_loop with static start/stop."
        )

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        """The carry is mapped if its initial value or its result is; all of it, if the predicate differs between
        examples."""
        loop = WhileParams(operation)
        test, body, sizes = loop.condition, loop.body, loop.sizes
        compat.refuse_effects_when_mapped(operation.effects, "while")
        cond_dims, body_dims, init_dims = partition(dims, *sizes)

        def at_front(dims: Sequence[Dim]) -> list[Dim]:
            return [None if d is None else 0 for d in dims]

        def each(mapped: Mask) -> Vmapped:
            inner = [*at_front(body_dims), *(0 if m else None for m in mapped)]
            return vmap_program(body, inner, axis, to=[compat.IF_MAPPED] * len(mapped))

        _, mapped = fixpoint([d is not None for d in init_dims], each, lambda b: [d is not None for d in b.dims_out])
        carry: list[Dim] = [0 if m else None for m in mapped]
        tested = vmap_program(test, [*at_front(cond_dims), *carry], axis, to=[compat.IF_MAPPED])
        text = ""
        to: list[Dim]
        if tested.dims_out[0] is not None:
            compat.refuse_effects_when_mapped(operation.effects, "while with a mapped predicate")
            carry, to = [0] * len(carry), [0]
            text = "while runs until every example is done: those that are done earlier keep their values"
        else:
            rank = len(test.out_avals[0].shape)
            carry, to = [None if c is None else rank for c in carry], [None]
        again = vmap_program(body, [*body_dims, *carry], axis, to=carry)
        tested = vmap_program(test, [*cond_dims, *carry], axis, to=to)
        builder, operands, ins = inputs_moved(operation, dims, [*cond_dims, *body_dims, *carry], axis)
        mapped_loop = loop.like(tested.program, sizes[0], again.program, sizes[1])
        outs = builder.apply(mapped_loop, ins)
        return vmap_rule(builder, operands, outs, carry, "vmap of a while loop", text)

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        loop, n_in = WhileParams(operation), len(operation.in_avals)
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        if not compat.SHRINKS_WHILE:
            return (True,) * n_in, (True,) * len(used), operation
        n_condition, n_body = loop.sizes

        def reduce(used: Mask) -> tuple[Program, Mask, Program, Mask]:
            condition = dce_program(loop.condition, (True,), keep_inputs=[*([False] * n_condition), *used])
            return *condition, *dce_program(loop.body, used, keep_inputs=[*([False] * n_body), *used])

        state, used = fixpoint(used, reduce, lambda s: either(s[1][n_condition:], s[3][n_body:]))
        condition, for_condition, body, for_body = state
        if condition is loop.condition and body is loop.body:
            return (True,) * n_in, (True,) * len(used), operation
        smaller = loop.like(condition, sum(for_condition[:n_condition]), body, sum(for_body[:n_body]))
        return (*for_condition[:n_condition], *for_body), used, smaller

    def flags(self, operation: Operation, watching: Watching, keeps: bool) -> FlagRule:
        """Values of the condition lead to no result, and are only watched if decisions are: by computing the condition
        once more in each step, and once after the last."""
        loop = WhileParams(operation)
        n_condition, n_consts = loop.sizes
        n_carry = len(operation.out_avals)
        inner = flag_program(loop.body, watching)
        condition_flags = _flags_alone(flag_program(loop.condition, watching)) if watching == "decisions" else None
        both = inner if condition_flags is None else _side_by_side(condition_flags, n_condition, inner, n_consts)
        n_all = n_consts if condition_flags is None else n_condition + n_consts
        watches = in_a_loop(both)
        keeps &= bool(watches)
        body = counting(both, watches, n_all, n_carry, keeps)
        unread = [Var(a) for a in body.in_avals[n_all + n_carry :]]
        condition = unknown(replace(loop.condition, invars=(*loop.condition.invars, *unread)))
        flagged_loop = loop.like(condition, n_condition, body, n_all)
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        for_condition, consts, carry = partition(operands, n_condition, n_consts)
        before = operands if condition_flags is None else [*for_condition, *for_condition, *consts, *carry]
        outs = builder.apply(flagged_loop, [*before, *starts(builder, watches, carry, keeps)])
        carry, (step,), flags, first_carry = partition(outs, n_carry, 1, len(watches))
        if condition_flags is not None:
            now = builder.inline(condition_flags.program, [*for_condition, *carry])
            first = len(watches) - len(now)
            flags = [*flags[:first], *note(builder, flags[first:], now, watches[first:], step)]
        labels = [label for label, _ in operation.programs]
        places = [labels.index("body_jaxpr")] * len(inner.watches) + [labels.index("cond_jaxpr")] * len(watches)
        return FlagRule(
            builder.program(operands, [*carry, *flags, *first_carry]), tuple(zip(places, watches, strict=False))
        )

    def observe(
        self, e: Equation, path: Path, passed: PassedIn, builder: Builder, observing: Observing
    ) -> dict[Place, Atom]:
        """What is shared comes first among the constants of the body; the taps of the last iteration, and after them
        the iterations, counted, are at the end of the carry."""
        parts = WhileParams(e.operation)
        n_condition, n_body = parts.sizes
        shared, i = [Var(a.aval) for a in passed.shared], Var(number())
        inside = Builder(parts.body.constvars, parts.body.consts)
        (inner,) = inside.inline(joining(shared[0].aval.shape[0]), (shared[0], i))
        passed_on = PassedIn((inner, *shared[1:]), {})
        body, places = observing.body(parts.body, path, passed_on, (*shared, *parts.body.invars), inside)
        taps = [Var(a) for a in body.out_avals[len(e.outvars) :]]
        after = Builder(body.constvars, body.consts)
        after.equations += body.equations
        (following,) = after.inline(next_number(), (i,))
        invars, outvars = (*body.invars, *taps, i), (*body.outvars, following)
        info = compat.derived_debug_info(body.debug_info, [""] * len(invars), len(outvars))
        body = replace(body, equations=tuple(after.equations), invars=invars, outvars=outvars, debug_info=info)
        unread = (*parts.condition.invars, *(Var(v.aval) for v in taps), Var(number()))
        info = compat.derived_debug_info(parts.condition.debug_info, [""] * len(unread), 1)
        condition = replace(parts.condition, invars=unread, debug_info=info)
        first = [builder.inline(all_zero(v.aval), ())[0] for v in taps]
        first += builder.inline(first_number(), ())
        operands = (*e.invars[:n_condition], *passed.shared, *e.invars[n_condition:], *first)
        observed = parts.like(condition, n_condition, body, n_body + len(shared))
        outs = tuple(Var(v.aval) for v in taps)
        made = (*e.outvars, *outs, Var(number()))
        builder.equations.append(Equation(observed, operands, made, e.source, e.origin))
        return dict(zip(places, outs, strict=True))


WHILE = While(compat.while_p)


def _recompute_all(*_: Any, **__: Any) -> bool:
    return False


def _flags_alone(flagged: Flagged) -> Flagged:
    """The flags without the results, and without effects, which must not happen again."""
    program = flagged.program
    silent = tuple(e for e in program.equations if not compat.has_effects(e.effects))
    results = program.outvars[len(program.outvars) - len(flagged.watches) :]
    smaller, _ = dce_program(
        replace(program, equations=silent, outvars=results), keep_inputs=[True] * len(program.invars)
    )
    return Flagged(smaller, flagged.watches)


def _side_by_side(condition: Flagged, n_condition: int, inner: Flagged, n_consts: int) -> Flagged:
    """A loop's body with the flags of its condition: `consts of the condition, consts, carry → carry, flags, flags of
    the condition`."""
    builder = Builder()
    operands = [Var(a) for a in (*condition.program.in_avals[:n_condition], *inner.program.in_avals)]
    for_condition, consts, carry = partition(operands, n_condition, n_consts)
    flags = builder.inline(condition.program, [*for_condition, *carry])
    outs = builder.inline(inner.program, [*consts, *carry])
    return Flagged(builder.program(operands, [*outs, *flags]), (*inner.watches, *condition.watches))


def with_one_predicate(program: Program) -> Program:
    """The program with each batched-predicate loop rewritten to continue while any example does, keeping the carry of
    the finished ones.

    JAX lowers it in the same way; nested programs are rewritten too.
    """
    equations = tuple([_with_one_predicate(e) for e in program.equations])
    if all(a is b for a, b in zip(equations, program.equations, strict=True)):
        return program
    return replace(program, equations=equations)


def _with_one_predicate(equation: Equation) -> Equation:
    op = with_programs(equation.operation, with_one_predicate)
    if op is not equation.operation:
        equation = replace(equation, operation=op)
    if op.primitive is not compat.while_p or not WhileParams(op).condition.outvars[0].aval.shape:
        return equation
    loop = WhileParams(op)
    n_condition, n_consts = loop.sizes
    condition = loop.condition
    any_goes_on = Builder(condition.constvars, condition.consts)
    goes_on = any_goes_on.inline(condition, condition.invars)
    predicate = any_goes_on.inline(trace_rule(_any, [goes_on[0].aval]), goes_on)
    body = _keeping(loop, equation)
    new = loop.like(
        unknown(any_goes_on.program(condition.invars, predicate)),
        n_condition,
        unknown(body),
        n_condition + n_consts,
    )
    for_condition, rest = partition(equation.invars, n_condition)
    return replace(equation, operation=new, invars=(*for_condition, *for_condition, *rest))


def _keeping(loop: WhileParams, equation: Equation) -> Program:
    """`consts of the condition, consts, carry → carry`, which returns the previous carry where the condition is
    false."""
    n_condition, n_consts = loop.sizes
    builder = Builder()
    operands = [Var(a) for a in (*loop.condition.in_avals[:n_condition], *loop.body.in_avals)]
    for_condition, consts, carry = partition(operands, n_condition, n_consts)
    (goes_on,) = builder.inline(loop.condition, [*for_condition, *carry])
    after = builder.inline(loop.body, [*consts, *carry])
    first = len(builder.equations)
    types = [goes_on.aval, *(a.aval for a in (*carry, *after))]
    carry_out = builder.inline(
        trace_rule(lambda p, *xs: kept_carry(p, *partition(xs, len(carry))), types), [goes_on, *carry, *after]
    )
    for k in range(first, len(builder.equations)):
        builder.equations[k] = replace(builder.equations[k], source=equation.source)
    return builder.program(operands, carry_out, None, like=loop.body)


def _any(goes_on: Any) -> list[Any]:
    return [lax.reduce_or(goes_on, tuple(range(goes_on.ndim)))]


def kept_carry(goes_on: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """The carry after a step: unchanged for examples that have finished."""
    which = lambda x: lax.broadcast_in_dim(goes_on, x.shape, tuple(range(goes_on.ndim)))
    return [lax.select_n(which(y), x, y) for x, y in zip(before, after, strict=True)]
