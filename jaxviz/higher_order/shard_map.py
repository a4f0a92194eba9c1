"""`jax.shard_map`, which runs its body on each device of a mesh. `jax.pmap` is one inside a `jit`.

The body is derived as the program of one device. Residuals of its forward part leave the forward `shard_map` and enter
the linear one: operands and results laid out by the user's specs, other values with the devices' parts concatenated
along the first dimension, which scalars are given for that.

Source: JAX's `shard_map.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from jaxviz.higher_order.flags import of_all_devices, unknown
from jaxviz.higher_order.observing import Observing, PassedIn, Path, Place, add_observed
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.convert import shared, trace_rule
from jaxviz.ir.errors import NoRuleError
from jaxviz.ir.syntax import Atom, Equation, Operation, Origin, Program, Var
from jaxviz.transforms.accumulators import accumulator_type
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    Template,
    partition,
    select,
    with_constants_as_inputs,
    with_results,
)
from jaxviz.transforms.flags import FlagRule, Watching, flag_program
from jaxviz.transforms.jvp import JvpRule, jvp_program
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode, linearize_program, rule_of
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy
from jaxviz.transforms.primitive import CallPrimitive
from jaxviz.transforms.split_rules import SplitOptions, SplitRule
from jaxviz.transforms.transpose import TransposeOptions, TransposeRule, transpose_program
from jaxviz.transforms.vmap import Dims, VmapRule, vmap_program

Spec = Any


"""A `PartitionSpec`: for each dimension of a value the mesh axes over which it is sharded."""


_LAID_SIDE_BY_SIDE = "a scalar of each device, given a dimension to lay them side by side along"


_TAKEN_OUT = "the device's own scalar"


def only_passes_a_scalar(equation: Equation) -> bool:
    """Whether an equation only serves to pass a scalar residual from one `shard_map` to another."""
    origin = equation.origin
    if origin is None:
        return False
    if origin.rule in (_LAID_SIDE_BY_SIDE, _TAKEN_OUT):
        return True
    # Its transpose is a shard_map again.
    return (
        origin.equation is not None
        and origin.equation.operation is equation.operation
        and only_passes_a_scalar(origin.equation)
    )


class ShardMap(CallPrimitive):
    kind = "devices"
    can_be_stepped = False  # it is a single step
    accumulates = True

    def n_devices(self, operation: Operation) -> int:
        p = operation.params
        return math.prod(p["mesh"].shape[axis] for axis in p["newly_manual_axes"])

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        p = operation.params
        with compat.inside_shard_map(operation):
            pushed = jvp_program(p["jaxpr"], nonzeros)
        call = _call_of(
            operation,
            pushed.program,
            [*operation.in_avals, *(a.to_tangent_aval() for a in select(nonzeros, operation.in_avals))],
            [*p["in_specs"], *_tangent(select(nonzeros, p["in_specs"]))],
            [*p["out_specs"], *_tangent(select(pushed.nonzeros_out, p["out_specs"]))],
        )
        return JvpRule(Template(call, "primal"), pushed.nonzeros_out, "jvp of shard_map")

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        p = operation.params
        body: Program = p["jaxpr"]
        n_out = len(body.outvars)
        with compat.inside_shard_map(operation) as names:
            parts = linearize_program(body, nonzeros, mode=mode)
            results, n_leaves = parts.forward.outvars[:n_out], len(parts.leaves)
            passed = _keep(operation, names, parts.forward, results, parts.residuals, parts.linear, n_leaves)
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        outs = apply_shard_map(
            builder, operation, passed.forward, operands, p["in_specs"], [*p["out_specs"], *passed.own_specs]
        )
        residuals = passed.values(operands, outs)
        primal = builder.program(operands, outs)
        linear = _call_of(
            operation,
            passed.linear,
            [*(a.aval for a in residuals), *(a.to_tangent_aval() for a in select(nonzeros, operation.in_avals))],
            [*passed.specs(p["in_specs"], p["out_specs"]), *_tangent(select(nonzeros, p["in_specs"]))],
            _tangent(select(parts.nonzeros_out, p["out_specs"])),
        )
        name, tree = "linearize of shard_map", parts.structured.tree
        return rule_of(primal, n_out, residuals, linear, parts.nonzeros_out, name, False, parts.checkpoints, tree)

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        p = operation.params
        known = [not u for u in unknown]
        with compat.inside_shard_map(operation) as names:
            parts = split_program(p["jaxpr"], unknown, SplitOptions(policy, available))
            passed = _keep(operation, names, parts.known, parts.known_results, parts.residuals, parts.staged)
        known_in = select(known, p["in_specs"])
        known_out = select([not u for u in parts.unknown_out], p["out_specs"])
        builder = Builder()
        operands = [Var(a) for a in select(known, operation.in_avals)]
        outs = apply_shard_map(builder, operation, passed.forward, operands, known_in, [*known_out, *passed.own_specs])
        residuals = passed.values(operands, outs)
        now = builder.program(operands, [*outs[: len(known_out)], *residuals])
        staged_in = unknown if available is None else available
        later = _call_of(
            operation,
            passed.linear,
            [*(a.aval for a in residuals), *select(staged_in, operation.in_avals)],
            [*passed.specs(known_in, known_out), *select(staged_in, p["in_specs"])],
            select(parts.available_out, p["out_specs"]),
        )
        name = "partial evaluation of shard_map"
        return parts.rule(operation, Template(now, "primal"), Template(later, "tangent"), staged_in, name)

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        """Without varying types, each device gets its share of a cotangent of a replicated result, and the cotangents
        of replicated operands are summed."""
        p = operation.params
        others = [i for i, lin in enumerate(linear) if not lin]
        linear_specs = select(linear, p["in_specs"])
        with compat.inside_shard_map(operation) as names:
            parts = transpose_program(p["jaxpr"], linear, nonzero_cts, TransposeOptions(logs=logs))
            ct_specs_out = _cotangent(select(parts.nonzeros_out, linear_specs))
            n_cts = len(ct_specs_out)
            body = parts.backward
            if not p["check_vma"]:
                body = _summed(body, ct_specs_out, p)
            if len(body.outvars) > n_cts:
                body = _logged_side_by_side(body, n_cts)
            log_specs = [compat.residual_spec(a.aval, names, p) for a in body.outvars[n_cts:]]
        builder = Builder()
        operands = [Var(operation.in_avals[i]) for i in others]
        cts = [Var(compat.cotangent_type(a)) for a in select(nonzero_cts, operation.out_avals)]
        ct_specs = _cotangent(select(nonzero_cts, p["out_specs"]))
        refs = [i for i, a in enumerate(operation.in_avals) if linear[i] and compat.is_ref(a)]
        if not p["check_vma"] and any(compat.axes_summed(s, p) for s in _cotangent([p["in_specs"][i] for i in refs])):
            raise NoRuleError(
                "Differentiating a shard_map with check_vma=False into a gradient Ref for an argument whose in_specs "
                "don't mention all manual mesh axes."
            )
        accumulators = [Var(accumulator_type(operation.in_avals[i])) for i in refs]
        shares = [ct if p["check_vma"] else _share(builder, ct, s, p) for ct, s in zip(cts, ct_specs, strict=True)]
        outs = apply_shard_map(
            builder,
            operation,
            body,
            [*operands, *shares, *accumulators],
            [*(p["in_specs"][i] for i in others), *ct_specs, *(p["in_specs"][i] for i in refs)],
            [*ct_specs_out, *log_specs],
        )
        program = builder.program([*operands, *cts, *accumulators], outs)
        return TransposeRule(Template(program, "cotangent"), parts.nonzeros_out, "transpose of shard_map", parts.logs)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        p = operation.params
        in_specs = compat.mapped_specs(p["in_specs"], dims, axis, "in_specs")
        with compat.inside_shard_map(operation):
            body = vmap_program(p["jaxpr"], dims, compat.axis_per_device(axis, p["mesh"]))
        call = _call_of(
            operation,
            body.program,
            [compat.mapped_type(a, d, axis) for a, d in zip(operation.in_avals, dims, strict=True)],
            in_specs,
            compat.mapped_specs(p["out_specs"], body.dims_out, axis, "out_specs"),
        )
        return VmapRule(Template(call, "primal"), body.dims_out, "vmap of shard_map")

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        p = operation.params
        body: Program = p["jaxpr"]
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        smaller, read = dce_program(body, used, keep_inputs=(False,) * len(body.invars))
        if all(used) and all(read) and smaller.equations == body.equations:
            return read, used, operation
        call = _call_of(
            operation,
            smaller,
            select(read, operation.in_avals),
            select(read, p["in_specs"]),
            select(used, p["out_specs"]),
        )
        return read, used, call.equations[0].operation

    def flags(self, operation: Operation, watching: Watching, keeps: bool) -> FlagRule:
        """The flags of all devices, concatenated, which each device then has."""
        p = operation.params
        body: Program = p["jaxpr"]
        sizes = compat.devices_of(operation)
        with compat.inside_shard_map(operation):
            inner = flag_program(body, watching, inputs=True)
            within = Builder(inner.program.constvars, inner.program.consts)
            invars = [Var(a) for a in inner.program.in_avals]
            results, flags = partition(within.inline(inner.program, invars), len(body.outvars))
            flags = [within.inline(of_all_devices(f.aval, tuple(sizes.items())), [f])[0] for f in flags]
            flagged = unknown(within.program(invars, [*results, *flags], None, like=inner.program))
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        specs = [*p["out_specs"], *(compat.replicated_spec(f.aval) for f in flags)]
        outs = apply_shard_map(builder, operation, flagged, operands, p["in_specs"], specs)
        n = math.prod(sizes.values())
        watches = (replace(w, devices=(n, *w.devices)) for w in inner.watches)
        return FlagRule(builder.program(operands, outs), tuple((0, w) for w in watches))

    def observe(
        self, e: Equation, path: Path, passed: PassedIn, builder: Builder, observing: Observing
    ) -> dict[Place, Atom]:
        """What varies along axes of devices, a tap or an own value, has a first axis for them outside."""
        p, below, n = e.params, passed.below(path), len(e.outvars)
        passed_in = [Var(a.aval) for a in passed.shared]
        inside = Builder(p["jaxpr"].constvars, p["jaxpr"].consts)
        with compat.inside_shard_map(e.operation) as names:
            spec_of = lambda aval: compat.residual_spec(compat.stacked(aval, 1), names, p)
            varies = lambda aval: spec_of(aval) != compat.replicated_spec(aval)
            own_specs = [spec_of(place[1].aval) if varies(place[1].aval) else P() for place in below]
            blocks = [Var(compat.type_per_device(a.aval, s, p)) for a, s in zip(below.values(), own_specs, strict=True)]
            own = {
                place: inside.inline(_without_first(v.aval), (v,))[0] if varies(place[1].aval) else v
                for place, v in zip(below, blocks, strict=True)
            }
            invars = (*p["jaxpr"].invars, *passed_in, *blocks)
            body, places = observing.body(p["jaxpr"], path, PassedIn(tuple(passed_in), own), invars, inside)
            after = Builder(body.constvars, body.consts)
            after.equations += body.equations
            inner = body.outvars[n:]
            taps = [after.inline(_with_first(a.aval), (a,))[0] if varies(a.aval) else a for a in inner]
            tap_specs = [spec_of(a.aval) if varies(a.aval) else P() for a in inner]
            body = with_results(replace(body, equations=tuple(after.equations)), (*body.outvars[:n], *taps))
        specs = (*p["in_specs"], *(compat.replicated_spec(a.aval) for a in passed_in), *own_specs)
        operands = (*e.invars, *passed.shared, *below.values())
        apply_shard_map(builder, e.operation, body, operands, specs, (*p["out_specs"], *tap_specs))
        made = builder.equations.pop()
        return add_observed(builder, e, made.operation, made.invars, places)


@shared
def _with_first(aval: Any) -> Program:
    return trace_rule(lambda x: [jax.lax.expand_dims(x, (0,))], [aval])


@shared
def _without_first(aval: Any) -> Program:
    return trace_rule(lambda x: [jax.lax.squeeze(x, (0,))], [aval])


SHARD_MAP = ShardMap(compat.shard_map_p)


@contextmanager
def inside(e: Equation) -> Iterator[tuple[Any, ...]]:
    """JAX's state while it traces a program of an equation: of a `shard_map` its axes, which it yields."""
    if e.primitive is SHARD_MAP.primitive:
        with compat.inside_shard_map(e.operation) as names:
            yield tuple(names)
    else:
        yield ()


def axes_of_devices(path: Path, aval: Any) -> list[tuple[Any, ...]]:
    """For each of the equations around a value the axes of devices along which the value varies, for which a tap has a
    first axis."""
    found: list[tuple[Any, ...]] = []
    with ExitStack() as stack:
        for e in path:
            names = stack.enter_context(inside(e))
            spec: Spec = compat.residual_spec(compat.stacked(aval, 1), names, e.params) if names else ()
            first = spec[0] if len(spec) else ()
            found.append(first if isinstance(first, tuple) else (first,))
    return found


def apply_shard_map(
    builder: Builder, like: Operation, body: Program, operands: Sequence[Atom], in_specs: Sequence[Spec],
    out_specs: Sequence[Spec],
) -> list[Var]:  # fmt: skip
    """Adds a `shard_map` with another body; the body's constants become operands, since it may not close over them.

    Args:
      builder: the program that it is added to.
      like: the operation it is derived from.
      body: the program of one device.
      operands, in_specs: its operands, and how each is laid out.
      out_specs: how the results are laid out.
    """
    constants = [builder.constant(v, x) for v, x in zip(body.constvars, body.consts, strict=True)]
    n = len(constants)
    info = compat.derived_debug_info(body.debug_info, [""] * (n + len(body.invars)), len(body.outvars))
    inner = with_constants_as_inputs(body, debug_info=info, closed=like.params["jaxpr"].closed)
    params = {
        **like.params,
        "jaxpr": inner,
        "in_specs": (*(compat.replicated_spec(v.aval) for v in body.constvars), *in_specs),
        "out_specs": tuple(out_specs),
    }
    atoms = [*constants, *operands]
    with like.context.manager:
        out_avals = tuple(compat.type_of_all(a, s, params) for a, s in zip(inner.out_avals, out_specs, strict=True))
    effects = compat.effects_outside(inner.effects, like.params["mesh"])
    mapped = make_operation(like.primitive, params, tuple(a.aval for a in atoms), out_avals, effects, like.context)
    return builder.apply(mapped, atoms)


def _call_of(
    like: Operation, body: Program, in_avals: Sequence[Any], in_specs: Sequence[Spec], out_specs: Sequence[Spec]
) -> Program:
    """The program that applies a `shard_map` of another body to its inputs."""
    builder = Builder()
    invars = [Var(a) for a in in_avals]
    return builder.program(invars, apply_shard_map(builder, like, body, invars, in_specs, out_specs))


def _tangent(specs: Sequence[Spec]) -> list[Spec]:
    return [s.to_tangent_spec() for s in specs]


def _cotangent(specs: Sequence[Spec]) -> list[Spec]:
    return [s.to_ct_spec() for s in specs]


@dataclass(frozen=True, slots=True)
class _PassedResiduals:
    """How the residuals of a body get from one `shard_map` to the other.

    Args:
      forward: the body that saves them: the requested results, then those residuals that are neither an operand nor a
        result.
      linear: the body that takes all of them, in order, followed by its other inputs.
      places: for each residual its index among the operands, after those, among the results, and after those, among
        `forward`'s own.
      own_specs: the specs of these.
    """

    forward: Program
    linear: Program
    places: tuple[int, ...]
    own_specs: tuple[Spec, ...]

    def specs(self, in_specs: Sequence[Spec], out_specs: Sequence[Spec]) -> list[Spec]:
        """How each residual is laid out."""
        every = (*in_specs, *out_specs, *self.own_specs)
        return [every[i] for i in self.places]

    def values(self, operands: Sequence[Atom], outs: Sequence[Atom]) -> list[Atom]:
        """The residuals outside, given the operands and all results of the forward `shard_map`."""
        every = (*operands, *outs)
        return [every[i] for i in self.places]


def _keep(
    operation: Operation,
    names: Any,
    forward: Program,
    results: Sequence[Atom],
    residuals: Sequence[Atom],
    linear: Program,
    n_leaves: int = 0,
) -> _PassedResiduals:
    """Makes it possible for a body's residuals to leave it.

    Args:
      operation, names: the `shard_map` whose body is split, and the result of `inside_shard_map`, within which this is
        called.
      forward, results: the part that computes them, and its other results.
      residuals: values of that part.
      linear: the part that takes them, as its first inputs.
      n_leaves: how many of them, the last, are leaves of a rule's tree, which JAX does not take from the operands.
    """
    n_before, n_opaque = len(forward.invars) + len(results), len(residuals) - n_leaves
    of_results: dict[Atom, int] = {}
    for i, a in enumerate(results, len(forward.invars)):
        of_results[a] = i  # if several results are the same value, JAX takes the last
    of_operands: dict[Atom, int] = {v: i for i, v in enumerate(forward.invars)}
    producers: dict[Atom, Equation] = {v: e for e in forward.equations for v in e.outvars}
    own: dict[Atom, Atom] = {}
    numbers: dict[Atom, int] = {}
    before, after, places = list(linear.invars), [], []
    equations = list(forward.equations)
    for i, a in enumerate(residuals):
        outer = {**of_results, **of_operands} if i < n_opaque else of_results
        if a in outer:
            places.append(outer[a])
            continue
        is_scalar, made_by = getattr(a.aval, "shape", ()) == (), producers.get(a)
        if a not in own:
            numbers[a] = n_before + len(own)
            own[a] = _append(equations, _expand, a, made_by, _LAID_SIDE_BY_SIDE) if is_scalar else a
        if is_scalar:
            before[i] = Var(own[a].aval)
            after.append(_reshape(_squeeze, before[i], linear.invars[i], made_by, _TAKEN_OUT))
        places.append(numbers[a])
    return _PassedResiduals(
        with_results(replace(forward, equations=tuple(equations)), [*results, *own.values()]),
        replace(linear, invars=tuple(before), equations=(*after, *linear.equations)),
        tuple(places),
        tuple(compat.residual_spec(a.aval, names, operation.params) for a in own.values()),
    )


def _expand(x: Any) -> list[Any]:
    return [jax.lax.expand_dims(x, (0,))]


def _squeeze(x: Any) -> list[Any]:
    return [jax.lax.squeeze(x, (0,))]


def _append(equations: list[Equation], how: Any, x: Atom, made_by: Equation | None, rule: str) -> Var:
    out = Var(trace_rule(how, [x.aval]).outvars[0].aval)
    equations.append(_reshape(how, x, out, made_by, rule))
    return out


def _reshape(how: Any, x: Atom, out: Var, made_by: Equation | None, rule: str) -> Equation:
    (e,) = trace_rule(how, [x.aval]).equations
    source = made_by.source if made_by is not None else None
    return Equation(e.operation, (x,), (out,), source, Origin(made_by, "linearize", rule, "residual"))


def _logged_side_by_side(body: Program, n_cts: int) -> Program:
    """The body, with a dimension added to scalar results after the cotangents, along which those of the devices are
    concatenated."""
    builder = Builder(body.constvars, body.consts)
    outs = builder.inline(body, body.invars)
    for i, a in enumerate(outs[n_cts:], n_cts):
        if getattr(a.aval, "shape", None) == ():
            (outs[i],) = builder.inline(trace_rule(_expand, [a.aval]), [a])
    return builder.program(body.invars, outs, body.debug_info, like=body)


def _share(builder: Builder, ct: Var, spec: Spec, params: Any) -> Atom:
    n = math.prod(params["mesh"].shape[a] for a in compat.axes_summed(spec, params))
    if n == 1 or compat.is_float0(ct.aval):
        return ct
    return builder.inline(trace_rule(lambda x: [x / n], [ct.aval]), [ct])[0]


def _summed(body: Program, specs: Sequence[Spec], params: Any) -> Program:
    builder = Builder(body.constvars, body.consts)
    outs = builder.inline(body, body.invars)
    for i, spec in enumerate(specs):
        axes = compat.axes_summed(spec, params)
        if axes:
            program = trace_rule(lambda x, axes=axes: [jax.lax.psum(x, axes)], [outs[i].aval])
            rule = (
                f"summed over the axis {', '.join(map(str, axes))}, along which the operand is the same on each device"
            )
            (e,) = program.equations
            out = Var(e.operation.out_avals[0])
            builder.equations.append(
                Equation(e.operation, (outs[i],), (out,), None, Origin(None, "transpose", rule, "accumulation"))
            )
            outs[i] = out
    return builder.program(body.invars, outs, body.debug_info, like=body)
