"""`jax.jit`: a call of a program, with shardings, layouts and donation for each operand and result.

Source: JAX's `pjit.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from jaxviz.higher_order.observing import Observing, PassedIn, Path, Place, add_observed
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var
from jaxviz.transforms import jvp, linearize
from jaxviz.transforms.dce import DceRule, dce_program, nothing_left
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    Template,
    call_of,
    select,
    with_refs_as_inputs,
    with_results,
)
from jaxviz.transforms.jvp import JvpRule
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.policy import Policy
from jaxviz.transforms.primitive import CallPrimitive
from jaxviz.transforms.split_rules import SplitOptions, SplitRule
from jaxviz.transforms.transpose import TransposeOptions, TransposeRule, transpose_program
from jaxviz.transforms.vmap import Dims, VmapRule, vmap_program


class KeptCall(CallPrimitive):
    """A call that stays one: what derives from its program is called as its program is.

    Args:
      primitive, param: as for `CallPrimitive`.
    """

    is_typed_by_cotangents = True
    accumulates = True
    name: ClassVar[str]
    """What it calls, in the names of its rules."""
    saves_results_once: ClassVar[bool] = True
    """Whether a residual that is also a result passes through the outputs once."""

    def like(
        self, operation: Operation, body: Program, inputs: Sequence[int | None], outputs: Sequence[int | None]
    ) -> Operation:
        """The operation with another body.

        Args:
          operation: the one it is derived from.
          body: its program.
          inputs, outputs: for each operand and result, the position of the one in `operation` that it comes from; None
            for a new one.
        """
        raise NotImplementedError

    def of_derivative(self, operation: Operation) -> Operation:
        """The operation that the linear program is called as."""
        return operation

    def may_bypass(self, operation: Operation, result: int) -> bool:
        """Whether a result that is an input need not pass through the call."""
        return False

    def call(
        self, like: Operation, body: Program, inputs: Sequence[int | None], outputs: Sequence[int | None]
    ) -> Program:
        """The program that calls another body; see `like`."""
        body, refs = with_refs_as_inputs(body)
        return with_constants_first(self.like(like, body, [*([None] * len(refs)), *inputs], outputs), refs)

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        pushed = jvp.jvp_program(operation.params[self.param], nonzeros)
        n_in, n_out = len(operation.in_avals), len(operation.out_avals)
        inputs = [*range(n_in), *(i for i, nz in enumerate(nonzeros) if nz)]
        outputs = [*range(n_out), *(i for i, nz in enumerate(pushed.nonzeros_out) if nz)]
        call = self.call(operation, pushed.program, inputs, outputs)
        return JvpRule(Template(call, "primal"), pushed.nonzeros_out, f"jvp of {self.name}")

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        """Results that are inputs, and residuals that are inputs or results, do not pass through the jit's outputs."""
        body: Program = operation.params[self.param]
        parts = linearize.linearize_program(body, nonzeros, mode=mode)
        n_in, n_out = len(body.invars), len(body.outvars)
        results = parts.forward.outvars[:n_out]
        operands = tuple(Var(a) for a in operation.in_avals)
        constants = tuple(Var(v.aval) for v in body.constvars)
        outside: dict[Atom, Atom] = dict(zip((*body.invars, *body.constvars), (*operands, *constants), strict=True))

        returned = [i for i, a in enumerate(results) if a not in body.invars or not self.may_bypass(operation, i)]
        own = {results[i] for i in returned} if self.saves_results_once else ()
        computed = [a for a in parts.residuals if a not in outside and a not in own and not compat.is_mutable(a.aval)]
        forward, refs = with_refs_as_inputs(with_results(parts.forward, [*(results[i] for i in returned), *computed]))
        outside.update(zip(refs, refs, strict=True))
        inputs = [*([None] * len(refs)), *range(n_in)]
        called = self.like(operation, forward, inputs, [*returned, *([None] * len(computed))])
        outs = tuple(Var(a) for a in called.out_avals)
        result_of = dict(zip(returned, outs, strict=False))
        outer_results = [result_of[i] if i in result_of else outside[a] for i, a in enumerate(results)]
        n = len(returned)
        for a, v in zip([*computed, *(results[i] for i in returned)], [*outs[n:], *outs[:n]], strict=True):
            outside.setdefault(a, v)  # if an operand is also a result, JAX keeps the operand
        name = self.name[0].upper() + self.name[1:]
        linearize.refuse_own_references([a for a in parts.residuals if a not in outside], name)
        residuals = [outside[a] for a in parts.residuals]

        call = Equation(called, (*refs, *operands), outs)
        results_out = (*outer_results, *residuals)
        primal = Program((*constants, *refs), operands, results_out, (call,), (*body.consts, *refs.values()))
        tangents_in = [i for i, nz in enumerate(nonzeros) if nz]
        tangents_out = [i for i, nz in enumerate(parts.nonzeros_out) if nz]
        inputs = [*([None] * len(residuals)), *tangents_in]
        linear = self.call(self.of_derivative(operation), parts.linear, inputs, tangents_out)
        name = f"linearize of {self.name}"
        return linearize.rule_of(
            primal, n_out, residuals, linear, parts.nonzeros_out, name, False, parts.checkpoints, parts.structured.tree
        )

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        """Residuals that are inputs or results do not pass through the outputs a second time."""
        body: Program = operation.params[self.param]
        parts = split_program(body, unknown, SplitOptions(policy, available))
        known_in = [i for i, u in enumerate(unknown) if not u]
        known_out = [i for i, u in enumerate(parts.unknown_out) if not u]
        builder = Builder(body.constvars, body.consts)
        operands = [Var(a) for a in operation.in_avals]
        outside: dict[Atom, Atom] = {body.invars[i]: operands[i] for i in known_in}
        outside.update(zip(body.constvars, body.constvars, strict=True))
        results = dict.fromkeys(parts.known_results)
        computed = [r for r in parts.residuals if r not in outside and r not in results]
        known, refs = with_refs_as_inputs(with_results(parts.known, [*parts.known_results, *computed]))
        inputs = [*([None] * len(refs)), *known_in]
        called = self.like(operation, known, inputs, [*known_out, *([None] * len(computed))])
        ref_operands = [builder.constant(v, x) for v, x in refs.items()]
        outs = builder.apply(called, [*ref_operands, *(operands[i] for i in known_in)])
        n_results = len(parts.known_results)
        for inner, outer in zip([*computed, *parts.known_results], [*outs[n_results:], *outs[:n_results]], strict=True):
            outside.setdefault(inner, outer)
        residuals = [outside[r] for r in parts.residuals]
        now = builder.program([operands[i] for i in known_in], [*outs[:n_results], *residuals])

        staged_in = unknown if available is None else available
        inputs = [*([None] * len(residuals)), *(i for i, there in enumerate(staged_in) if there)]
        outputs = [i for i, there in enumerate(parts.available_out) if there]
        later = Template(self.call(operation, parts.staged, inputs, outputs), "tangent")
        name = f"partial evaluation of {self.name}"
        return parts.rule(operation, Template(now, "primal"), later, staged_in, name)

    def dce(self, operation: Operation, used: Mask) -> DceRule:
        body: Program = operation.params[self.param]
        if not any(used) and not compat.has_effects(operation.effects):
            return nothing_left(operation)
        smaller, read = dce_program(body, used, keep_inputs=(False,) * len(body.invars))
        if all(used) and all(read) and smaller.equations == body.equations:
            return read, used, operation
        inputs = [i for i, r in enumerate(read) if r]
        outputs = [i for i, u in enumerate(used) if u]
        return read, used, self.like(operation, smaller, inputs, outputs)

    def observe(
        self, e: Equation, path: Path, passed: PassedIn, builder: Builder, observing: Observing
    ) -> dict[Place, Atom]:
        body, more, places = observing.last(e.params[self.param], path, passed)
        inputs = [*range(len(e.invars)), *([None] * len(more))]
        called = self.like(e.operation, body, inputs, [*range(len(e.outvars)), *([None] * len(places))])
        return add_observed(builder, e, called, (*e.invars, *more), places)


class Jit(KeptCall):
    name = "a jitted function"

    def like(
        self, operation: Operation, body: Program, inputs: Sequence[int | None], outputs: Sequence[int | None]
    ) -> Operation:
        return jit_operation(operation, body, inputs, outputs)

    def may_bypass(self, operation: Operation, result: int) -> bool:
        """It may if it has no sharding or layout constraint."""
        params = operation.params
        return params["out_shardings"][result] is compat.UNSPECIFIED and params["out_layouts"][result] is None

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        options = TransposeOptions(ct_avals=operation.out_avals, logs=logs)
        parts = transpose_program(operation.params["jaxpr"], linear, nonzero_cts, options)
        others = [i for i, lin in enumerate(linear) if not lin]
        cts_in = [i for i, nz in enumerate(nonzero_cts) if nz]
        operands = [i for i, lin in enumerate(linear) if lin]
        cts_out = select(parts.nonzeros_out, operands)
        refs = [i for i in operands if compat.is_ref(operation.in_avals[i])]
        template = Template(_transposed_jit(operation, parts.backward, others, cts_in, cts_out, refs), "cotangent")
        return TransposeRule(template, parts.nonzeros_out, "transpose of a jitted function", parts.logs)

    def batch(self, operation: Operation, dims: Dims, axis: compat.Axis) -> VmapRule:
        p = operation.params
        if any(layout is not None for layout in (*p["in_layouts"], *p["out_layouts"])):
            raise NotImplementedError("Concrete layouts are not supported for vmap(jit).")
        body = vmap_program(p["jaxpr"], dims, axis)

        def shardings(of: Sequence[Any], dims: Dims, avals: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(
                compat.mapped_sharding(s, d, axis, p["ctx_mesh"], a) for s, d, a in zip(of, dims, avals, strict=True)
            )

        params = {
            **p,
            "jaxpr": body.program,
            "in_shardings": shardings(p["in_shardings"], dims, body.program.in_avals),
            "out_shardings": shardings(p["out_shardings"], body.dims_out, body.program.out_avals),
        }
        jit = make_operation(
            operation.primitive, params, body.program.in_avals, body.program.out_avals, body.program.effects,
            operation.context,
        )  # fmt: skip
        name = "vmap of a jitted function"
        return VmapRule(Template(call_of(jit), "primal"), body.dims_out, name)


JIT = Jit(compat.jit_p)

_INPUT_PARAMS = {"in_shardings": compat.UNSPECIFIED, "in_layouts": None, "donated_invars": False}


_OUTPUT_PARAMS = {"out_shardings": compat.UNSPECIFIED, "out_layouts": None}


"""The params of jit with one entry for each operand or result, and the entry for one that we add."""


def jit_operation(
    like: Operation, body: Program, inputs: Sequence[int | None], outputs: Sequence[int | None]
) -> Operation:
    """A jit with another body.

    Args:
      like: the jit it is derived from.
      body: its program.
      inputs, outputs: for each operand and result, the position of the one in `like` whose sharding, layout and
        donation it takes over; None for a new one.
    """
    params = dict(like.params)
    params["jaxpr"] = body
    for name, new in _INPUT_PARAMS.items():
        params[name] = tuple(new if i is None else like.params[name][i] for i in inputs)
    for name, new in _OUTPUT_PARAMS.items():
        params[name] = tuple(new if i is None else like.params[name][i] for i in outputs)
    return make_operation(like.primitive, params, body.in_avals, body.out_avals, body.effects, like.context)


def with_constants_first(operation: Operation, constants: Mapping[Var, Any]) -> Program:
    """The program that applies an operation whose first operands are constants to its inputs."""
    builder = Builder(tuple(constants), tuple(constants.values()))
    invars = [Var(a) for a in operation.in_avals[len(constants) :]]
    return builder.program(invars, builder.apply(operation, [*constants, *invars]))


def _transposed_jit(
    like: Operation,
    body: Program,
    others: Sequence[int],
    cts_in: Sequence[int],
    cts_out: Sequence[int],
    refs_in: Sequence[int],
) -> Program:
    """The program that applies the transposed jit. Cotangents have the shardings and layouts of the results and
    operands that they belong to, accumulators those of their references; logs have none."""
    p = like.params
    body, refs = with_refs_as_inputs(body)
    n_logged = len(body.outvars) - len(cts_out)
    refs_shardings = [compat.UNSPECIFIED] * len(refs)
    params = {
        **p,
        "jaxpr": body,
        "in_shardings": (
            *refs_shardings,
            *(p["in_shardings"][i] for i in others),
            *(p["out_shardings"][i] for i in cts_in),
            *(p["in_shardings"][i] for i in refs_in),
        ),
        "in_layouts": (
            *([None] * len(refs)),
            *(p["in_layouts"][i] for i in others),
            *(p["out_layouts"][i] for i in cts_in),
            *(p["in_layouts"][i] for i in refs_in),
        ),
        "out_shardings": (*(p["in_shardings"][i] for i in cts_out), *([compat.UNSPECIFIED] * n_logged)),
        "out_layouts": (*(p["in_layouts"][i] for i in cts_out), *([None] * n_logged)),
        "donated_invars": (False,) * len(body.invars),
    }
    jit = make_operation(like.primitive, params, body.in_avals, body.out_avals, body.effects, like.context)
    return with_constants_first(jit, refs)
