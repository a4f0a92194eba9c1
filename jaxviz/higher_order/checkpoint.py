"""`jax.checkpoint`, whose primitive is `remat`.

The JVP of a checkpointed function stays inside its equation. Partial evaluation by the policy then moves the known part
out: it runs in the forward pass, and the values that the policy saves are residuals. The rest stays in the equation,
which recomputes the other values and computes the tangents. Transposition splits it again: values without a tangent are
recomputed in the backward pass, and only the linear part is transposed.

Source: JAX's `ad_checkpoint.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jaxviz.higher_order.by_rule import with_rules
from jaxviz.higher_order.flags import unknown
from jaxviz.higher_order.observing import Observing, PassedIn, Path, Place, add_observed
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import with_programs
from jaxviz.ir.origin import locate
from jaxviz.ir.syntax import Atom, Checkpoint, Decision, Equation, Operation, Origin, Program, Var
from jaxviz.transforms.accumulators import accumulator_type
from jaxviz.transforms.dce import DceRule, dce_program, live_equations, nothing_left
from jaxviz.transforms.driver import Builder, Mask, Template, select, with_constants_as_inputs
from jaxviz.transforms.flags import FlagRule, Watching, flag_program
from jaxviz.transforms.jvp import JvpRule, jvp_program
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode, linearize_from_jvp
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy, recomputed
from jaxviz.transforms.primitive import CallPrimitive
from jaxviz.transforms.split_rules import SplitOptions, SplitProgram, SplitRule
from jaxviz.transforms.transpose import TransposeOptions, TransposeRule, transpose_program
from jaxviz.transforms.vmap import Dims, VmapRule, vmap_program


class Remat(CallPrimitive):
    is_checkpoint = True
    accumulates = True

    def first_covered(self, operation: Operation) -> int:
        return 0

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        policy = operation.params["policy"]
        if compat.asks_rules(policy):
            operation = with_programs(operation, lambda body: with_rules(body, policy))
        return linearize_from_jvp(operation, nonzeros, mode)

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        pushed = jvp_program(operation.params["jaxpr"], nonzeros)
        prevent_cse = _per_input(operation.params["prevent_cse"], lambda p: (*p, *([True] * sum(nonzeros))))
        call = apply_remat(operation, pushed.program, prevent_cse)
        return JvpRule(Template(call, "primal"), pushed.nonzeros_out, "jvp of a checkpointed function")

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        if available is not None:
            assert policy is not None
            return _split_inside(operation, unknown, available, policy)
        body: Program = operation.params["jaxpr"]
        refused = compat.refused_in_remat(body.effects)
        if refused:
            raise NotImplementedError(f"Effects not supported in partial-eval of `checkpoint`/`remat`: {refused}")
        parts, now, later, n_residuals, is_read = _divided(body, unknown, operation.params["policy"])
        residuals = now.outvars[len(now.outvars) - n_residuals :]
        log = compat.checkpoint_log()
        if log is not None:
            log(_saved_text(now, residuals, select(is_read, body.invars), select(is_read, unknown)))
        now = _rounded(now, n_residuals, _saved_by_rules(parts.decisions))
        prevent_cse = _per_input(
            operation.params["prevent_cse"], lambda p: (*([True] * n_residuals), *select(is_read, p))
        )
        n_in, n_results = len(unknown), len(parts.known_results)
        return SplitRule(
            Template(now, "primal", keeps_lines=True),
            Template(apply_remat(operation, later, prevent_cse, differentiated=True), "tangent"),
            (*(n_in + n_results + k for k in range(n_residuals)), *(i for i, r in enumerate(is_read) if r)),
            parts.unknown_out,
            parts.unknown_out,
            "partial evaluation of a checkpointed function",
            checkpoints=(
                Checkpoint(
                    body,
                    len(unknown) - sum(unknown),
                    compat.policy_of_user(operation.params["policy"]),
                    parts.decisions,
                    now,
                    later,
                    n_residuals,
                ),
            ),
        )

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        body: Program = operation.params["jaxpr"]
        parts = split_program(body, linear, SplitOptions(transform="transpose"))
        n_residuals = len(parts.residuals)
        cts = tuple(nz for nz, u in zip(nonzero_cts, parts.unknown_out, strict=True) if u)
        back = transpose_program(
            parts.staged, [False] * n_residuals + [True] * sum(linear), cts, TransposeOptions(logs=logs)
        )
        again = recomputed(parts.known, "transpose")

        builder = Builder()
        others = [Var(v.aval) for v, lin in zip(body.invars, linear, strict=True) if not lin]
        saved = builder.inline(again, others)[len(parts.known_results) :]
        cts_in = {i: Var(compat.cotangent_type(v.aval)) for i, v in enumerate(body.outvars) if nonzero_cts[i]}
        linear_cts = [v for i, v in cts_in.items() if parts.unknown_out[i]]
        accumulators = [Var(accumulator_type(v.aval)) for v in select(linear, body.invars) if compat.is_ref(v.aval)]
        cotangents = back.backward.cotangents()
        results, summands = back.backward.outvars, None
        is_remat3 = compat.adds_one_by_one(body.debug_info)
        if is_remat3 and not accumulators:
            each = back.summands()
            added = dict(zip(results, filter(None, each), strict=False))
            cotangents = {v: tuple([x for ct in cts for x in added.get(ct, [ct])]) for v, cts in cotangents.items()}
            results = (*itertools.chain(*each), *results[sum(back.nonzeros_out) :])
            summands = tuple(map(len, each))
        values = [ct for cts in cotangents.values() for ct in cts]
        with_cotangents = replace(back.backward, outvars=(*results, *values))
        outs = builder.inline(with_cotangents, [*saved, *linear_cts, *accumulators])
        outs, cts_inside = outs[: len(results)], outs[len(results) :]
        if summands is not None:  # without the sums
            builder.equations[:] = live_equations(builder.equations, {*outs, *cts_inside})
        inputs = [*others, *cts_in.values(), *accumulators]
        info = compat.derived_debug_info(body.debug_info, [""] * len(inputs), len(outs))
        combined = builder.program(inputs, outs, info)
        pins = compat.pins_cotangents() or not is_remat3
        prevent_cse, n = operation.params["prevent_cse"], len(inputs) - len(others)
        if prevent_cse is True and not pins:
            prevent_cse = (True,) * len(linear)
        of_others = lambda each: select([not lin for lin in linear], each)
        prevent_cse = _per_input(prevent_cse, lambda each: (*of_others(each), *([pins] * n)))
        combined = replace(combined, cotangents=partial(_inlined, cotangents, cts_inside))
        call = apply_remat(operation, combined, prevent_cse)
        template = Template(call, "cotangent")
        return TransposeRule(template, back.nonzeros_out, "transpose of a checkpointed function", back.logs, summands)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        body: Program = operation.params["jaxpr"]
        parts = vmap_program(body, dims, axis, to=[compat.IF_MAPPED] * len(body.outvars))
        call = apply_remat(operation, parts.program, operation.params["prevent_cse"])
        return VmapRule(Template(call, "primal"), parts.dims_out, "vmap of a checkpointed function")

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        body: Program = operation.params["jaxpr"]
        smaller, read = dce_program(body, used, keep_inputs=[False] * len(body.invars))
        if all(used) and all(read) and smaller.equations == body.equations:
            return read, used, operation
        prevent_cse = _per_input(operation.params["prevent_cse"], lambda p: select(read, p))
        params = {**operation.params, "jaxpr": smaller, "prevent_cse": prevent_cse}
        remat = make_operation(
            operation.primitive, params, smaller.in_avals, smaller.out_avals, smaller.effects, operation.context
        )
        return read, used, remat

    def flags(self, operation: Operation, watching: Watching, keeps: bool) -> FlagRule:
        inner = flag_program(operation.params["jaxpr"], watching)
        call = apply_remat(operation, unknown(inner.program), operation.params["prevent_cse"])
        return FlagRule(call, tuple((0, w) for w in inner.watches))

    def observe(
        self, e: Equation, path: Path, passed: PassedIn, builder: Builder, observing: Observing
    ) -> dict[Place, Atom]:
        op = e.operation
        body, more, places = observing.last(op.params["jaxpr"], path, passed)
        prevent_cse = _per_input(op.params["prevent_cse"], lambda each: (*each, *([True] * len(more))))
        params = {**op.params, "jaxpr": body, "prevent_cse": prevent_cse}
        remat = make_operation(op.primitive, params, body.in_avals, body.out_avals, body.effects, op.context)
        return add_observed(builder, e, remat, (*e.invars, *more), places)


CHECKPOINT = Remat(compat.remat_p)


def decided_by(policy: Any, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpointed function as it would be linearized with another policy.

    Raises:
      what the policy raises, about an operation that it does not know.
      PolicyRefused: JAX cannot do what it answers.
    """
    body, n = checkpoint.function, checkpoint.n_inputs
    unknown = (*([False] * n), *([True] * (len(body.invars) - n)))
    parts, now, later, n_residuals, _ = _divided(body, unknown, policy)
    now = _rounded(now, n_residuals, _saved_by_rules(parts.decisions))
    return replace(
        checkpoint, policy=policy, decisions=parts.decisions, forward=now, backward=later, n_residuals=n_residuals
    )


def _divided(body: Program, unknown: Mask, policy: Any) -> tuple[SplitProgram, Program, Program, int, Mask]:
    """How a policy splits the body of a checkpoint; what runs in the forward pass, whose last results are saved, and in
    the backward pass; how many are saved, and which inputs the backward pass reads."""
    parts = split_program(body, unknown, SplitOptions(policy or _save_nothing, [True] * len(unknown)))
    n_residuals = len(parts.residuals)
    later_out = tuple(u for u, there in zip(parts.unknown_out, parts.available_out, strict=True) if there)
    later, read = dce_program(parts.staged, later_out, keep_inputs=[False] * len(parts.staged.invars))
    residuals = select(read[:n_residuals], parts.residuals)
    now, _ = dce_program(replace(parts.known, outvars=(*parts.known_results, *residuals)))
    return parts, now, later, len(residuals), tuple(read[n_residuals:])


def apply_remat(like: Operation, body: Program, prevent_cse: Any, **changes: Any) -> Program:
    """The program that applies a remat of this body; the body's constants, which a remat may not close over, become
    operands.

    Args:
      like: the remat it is derived from.
      body: its program.
      prevent_cse: a bool, or one for each input of the body.
      **changes: other params.
    """
    n = len(body.constvars)
    info = compat.derived_debug_info(body.debug_info, [""] * n + list(body.arg_names), len(body.outvars))
    inner = with_constants_as_inputs(body, debug_info=info, closed=False)
    if isinstance(prevent_cse, tuple):
        prevent_cse = ((True,) * n) + prevent_cse
    params = {**like.params, "jaxpr": inner, "prevent_cse": prevent_cse, **changes}
    remat = make_operation(like.primitive, params, inner.in_avals, inner.out_avals, inner.effects, like.context)
    builder = Builder()
    invars = [Var(a) for a in body.in_avals]
    constants = [builder.constant(v, value) for v, value in zip(body.constvars, body.consts, strict=True)]
    return builder.program(invars, builder.apply(remat, [*constants, *invars]))


def _per_input(prevent_cse: Any, change: Any) -> Any:
    """prevent_cse is one bool, or one per input, which is then reordered like the inputs."""
    return tuple(change(prevent_cse)) if isinstance(prevent_cse, tuple) else prevent_cse


def _save_nothing(*_: Any, **__: Any) -> bool:
    return False


def _saved_text(now: Program, residuals: Sequence[Atom], read: Sequence[Var], unknown: Sequence[bool]) -> str:
    """What is saved, as a text like in JAX's log."""
    inputs = [f"  {v.aval.str_short()}\n" for v, u in zip(read, unknown, strict=True) if not u]
    made_by: dict[Atom, Equation] = {v: e for e in now.equations for v in e.outvars}
    saved = []
    for a in residuals:
        e = made_by.get(a)
        where = f"output of {e.primitive.name} from {locate(e.source)}" if e is not None else "a constant"
        saved.append(f"  {a.aval.str_short()} from {where}\n")
    return "".join(
        [
            "remat-decorated function ",
            "saving inputs with shapes:\n" if inputs else "",
            *inputs,
            "and " if inputs and saved else "",
            "saving these intermediates:\n" if saved else "",
            *saved,
        ]
    )


def _saved_by_rules(decisions: Sequence[Decision]) -> Callable[[Equation], bool]:
    """Whether an equation of the known part computes only residuals that the rules of operations save."""
    rules, policies = ([d for d in decisions if d.verdict == verdict] for verdict in ("by its rule", "saved"))
    origins = {id(d.equation.origin) for d in rules}
    around = {d.within[0] for d in rules}.difference(d.within[0] for d in policies if d.within)
    return lambda e: id(e.origin) in origins or (e.origin is not None and e.origin.equation in around)


def _rounded(known: Program, n_residuals: int, is_by_rule: Callable[[Equation], bool]) -> Program:
    """Rounds each residual that the forward pass also reads to its own type, unless a rule saves it.

    Otherwise XLA may continue with more digits than were saved, and the backward pass would see another value.
    """
    read = {a for e in known.equations for a in e.invars}
    read.difference_update(v for e in known.equations if is_by_rule(e) for v in e.outvars)
    residuals = known.outvars[len(known.outvars) - n_residuals :]
    unrounded: dict[Any, Var] = {}
    for v in residuals:
        if isinstance(v, Var) and v in read and v not in unrounded and compat.rounding_params(v.aval) is not None:
            compat.refuse_rounding(v.aval)
            unrounded[v] = Var(v.aval)
    if not unrounded:
        return known
    equations: list[Equation] = []
    invars = tuple(unrounded.get(v, v) for v in known.invars)
    for v in known.invars:
        if v in unrounded:
            equations.append(_rounding(unrounded[v], v, None))
    for e in known.equations:
        params = compat.rounding_params(e.outvars[0].aval) if e.outvars else None
        if e.primitive is compat.reduce_precision_p and params == dict(e.params):
            equations.append(e)
            continue
        here = [v for v in e.outvars if v in unrounded]
        outvars = tuple(unrounded.get(v, v) for v in e.outvars)
        equations.append(replace(e, outvars=outvars, origin=_again(e)) if here else e)
        equations += [_rounding(unrounded[v], v, e) for v in here]
    return replace(known, invars=invars, equations=tuple(equations))


def _again(e: Equation) -> Origin | None:
    """An origin with the same content that also leads back to the equation itself."""
    return Origin(e, e.origin.transform, e.origin.rule, e.origin.role) if e.origin is not None else None


def _rounding(x: Var, rounded: Var, made_by: Equation | None) -> Equation:
    params = compat.rounding_params(x.aval)
    assert params is not None
    context = made_by.operation.context if made_by is not None else compat.current_context()
    rounding = make_operation(compat.reduce_precision_p, params, (x.aval,), (x.aval,), frozenset(), context)
    source = made_by.source if made_by is not None else None
    origin = Origin(
        made_by, "linearize", "rounded when it is saved, so that both passes read the same value", "residual"
    )
    return Equation(rounding, (x,), (rounded,), source, origin)


def _split_inside(operation: Operation, unknown: Mask, available: Mask, policy: Policy) -> SplitRule:
    """A nested checkpointed function: the policy of the outer one decides, and both parts stay checkpointed."""
    parts = split_program(operation.params["jaxpr"], unknown, SplitOptions(policy, available))
    prevent_cse = operation.params["prevent_cse"]
    now = apply_remat(operation, parts.known, _per_input(prevent_cse, lambda p: select([not u for u in unknown], p)))
    later = apply_remat(
        operation,
        parts.staged,
        _per_input(prevent_cse, lambda p: (*([True] * len(parts.residuals)), *select(available, p))),
        differentiated=True,
    )
    known, staged = Template(now, "primal"), Template(later, "tangent")
    return parts.rule(operation, known, staged, available, "partial evaluation of a checkpointed function")


def _inlined(cotangents: Mapping[Atom, Sequence[Atom]], parts: Sequence[Atom]) -> Mapping[Atom, tuple[Atom, ...]]:
    """The inlined cotangents; `parts` has the new variables of their summands."""
    summands = iter(parts)
    return {value: tuple([next(summands) for _ in cts]) for value, cts in cotangents.items()}
