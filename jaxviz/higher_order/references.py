"""Mutable references: `new_ref`, `empty_ref`, `get`, `swap`, `addupdate`, `freeze`, `free_ref`.

The tangent of a reference is a reference, and what is done to the one is done to the other. It is made even from a
zero, since what is written later may have a tangent. Backward it becomes an accumulator, a reference that holds the
cotangent of what is in it; see `transforms/accumulators.py`:

    y = r[i]             r̄[i] += ȳ
    y = swap(r[i], x)    x̄ = swap(r̄[i], ȳ)
    r[i] += x            x̄ = r̄[i]

Source: JAX's `state/primitives.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxviz.ir import compat
from jaxviz.ir.convert import trace_rule
from jaxviz.ir.errors import NoRuleError
from jaxviz.ir.syntax import Atom, Operation, Role, Var
from jaxviz.transforms.accumulators import accumulator_type
from jaxviz.transforms.driver import Builder, Mask, Template, select
from jaxviz.transforms.jvp import JvpRule
from jaxviz.transforms.linearize import VJP, LinearizeRule, Mode
from jaxviz.transforms.primitive import Primitive
from jaxviz.transforms.transpose import TransposeRule

_NEITHER = "no_grad_no_remat"
"""The kind of a reference that has no tangent, and is not read again in a checkpoint."""


class OnReference(Primitive):
    """An operation on a reference, its first operand, or one that makes one.

    Args:
      primitive: JAX's primitive.
      n_values: how many of its first operands may have a tangent; the others are indices.
      transposed: what the rule of the transpose does, on the accumulator, the cotangents and the indices.
    """

    accumulates = True
    n_values = 1

    def jvp(self, operation: Operation, nonzeros: Mask) -> JvpRule:
        builder = Builder()
        operands = [Var(a) for a in operation.in_avals]
        tangents = self._tangents(operation, nonzeros)
        outs = builder.apply(operation, operands)
        pushed, nonzeros_out = self._push(builder, operation, nonzeros, tangents, operands[self.n_values :])
        inputs = [t for t in tangents if t is not None]
        program = builder.program([*operands, *inputs], [*outs, *pushed])
        roles: list[Role] = ["tangent"] * len(program.equations)
        roles[0] = "primal"
        return JvpRule(Template(program, roles), nonzeros_out, f"jvp rule of {self.primitive.name}")

    def linearize(self, operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
        forward, linear = Builder(), Builder()
        operands = [Var(a) for a in operation.in_avals]
        tangents = self._tangents(operation, nonzeros)
        inputs = [t for t in tangents if t is not None]
        outs: list[Atom] = [*forward.apply(operation, operands)]
        saved = list(range(self.n_values, len(operands)))
        indices = [Var(operands[i].aval) for i in saved]
        residuals = indices.copy()
        if self.n_values == 2 and nonzeros[0] and not nonzeros[1]:
            # JAX makes the zero that is written then in the forward pass, and saves it.
            tangents[1] = written = Var(operation.in_avals[1].to_tangent_aval())
            residuals.append(written)
            saved.append(len(operands) + len(outs))
            outs.append(forward.zero(written.aval, "linearize"))
        pushed, nonzeros_out = self._push(linear, operation, nonzeros, tangents, indices)
        primal = forward.program(operands, outs)
        roles: list[Role] = ["residual"] * len(primal.equations)
        roles[0] = "primal"
        rest = Template(linear.program([*residuals, *inputs], pushed), "tangent")
        name = f"linearize rule of {self.primitive.name}"
        return LinearizeRule(Template(primal, roles), rest, tuple(saved), nonzeros_out, name)

    def _tangents(self, operation: Operation, nonzeros: Mask) -> list[Var | None]:
        """The tangents of its first operands; None for zero."""
        values = zip(operation.in_avals[: self.n_values], nonzeros, strict=False)
        return [Var(a.to_tangent_aval()) if nz else None for a, nz in values]

    def _push(
        self,
        builder: Builder,
        operation: Operation,
        nonzeros: Mask,
        tangents: Sequence[Var | None],
        indices: Sequence[Var],
    ) -> tuple[Sequence[Atom], Mask]:
        """Adds the same operation on the tangents."""
        if not self._has_tangent(operation, nonzeros):
            return (), (False,) * len(operation.out_avals)
        ins: list[Atom] = [
            builder.zero(a.to_tangent_aval(), "linearize") if t is None else t
            for t, a in zip(tangents, operation.in_avals, strict=False)
        ]
        outs = _apply(builder, operation.primitive, self._tangent_params(operation), [*ins, *indices])
        return outs, (True,) * len(outs)

    def _has_tangent(self, operation: Operation, nonzeros: Mask) -> bool:
        return nonzeros[0]

    def _tangent_params(self, operation: Operation) -> Mapping[str, Any]:
        return operation.params

    def transpose(self, operation: Operation, linear: Mask, nonzero_cts: Mask, logs: bool) -> TransposeRule:
        """Takes the indices, the value that is written if that is known, the cotangent, and the accumulator."""
        builder = Builder()
        known = [Var(a) for a, lin in zip(operation.in_avals, linear, strict=True) if not lin]
        cts = [Var(compat.cotangent_type(a)) for a in select(nonzero_cts, operation.out_avals)]
        indices = known[len(known) - (len(operation.in_avals) - self.n_values) :]
        accumulator = Var(accumulator_type(operation.in_avals[0]))
        pulled = self._pull(builder, operation, accumulator, cts, indices) if linear[0] else ()
        is_written = self.n_values == 2 and linear[1]
        program = builder.program([*known, *cts, accumulator], pulled if is_written else ())
        nonzeros_out = tuple([False, True][: sum(linear)]) if self.n_values == 2 else (False,)
        return TransposeRule(Template(program, "cotangent"), nonzeros_out, f"transpose rule of {self.primitive.name}")

    def _pull(
        self, builder: Builder, operation: Operation, accumulator: Var, cts: Sequence[Var], indices: Sequence[Var]
    ) -> Sequence[Atom]:
        """Adds what is done to the accumulator; returns the cotangent of what is written."""
        raise NotImplementedError


class NewReference(OnReference):
    makes_reference = True

    def _has_tangent(self, operation: Operation, nonzeros: Mask) -> bool:
        (aval,) = operation.out_avals
        tangent = compat.inner_type(aval).to_tangent_aval()
        return compat.kind_of_ref(aval) != _NEITHER and not compat.is_float0(tangent)


class EmptyReference(NewReference):
    n_values = 0

    def _tangent_params(self, operation: Operation) -> Mapping[str, Any]:
        return {**operation.params, "ty": operation.params["ty"].to_tangent_aval()}


class Get(OnReference):
    def reads_all(self, operation: Operation) -> bool:
        return not jax.tree.unflatten(operation.params["tree"], operation.in_avals[1:])

    def _pull(
        self, builder: Builder, operation: Operation, accumulator: Var, cts: Sequence[Var], indices: Sequence[Var]
    ) -> Sequence[Atom]:
        if cts:
            _apply(builder, compat.addupdate_p, operation.params, [accumulator, *cts, *indices])
        return ()


class _Writing(OnReference):
    n_values = 2

    def _has_tangent(self, operation: Operation, nonzeros: Mask) -> bool:
        if not nonzeros[0] and compat.kind_of_ref(operation.in_avals[0]) != _NEITHER:
            raise NoRuleError(
                "performing a set/swap operation with a differentiated value on a non-differentiated array reference "
                f"of type {operation.in_avals[0].str_short()}. Move the array reference to be an argument of the "
                "differentiated function?"
            )
        return nonzeros[0]


class Swap(_Writing):
    def _pull(
        self, builder: Builder, operation: Operation, accumulator: Var, cts: Sequence[Var], indices: Sequence[Var]
    ) -> Sequence[Atom]:
        left: Sequence[Atom] = cts or [builder.zero(compat.cotangent_type(operation.out_avals[0]), "transpose")]
        return _apply(builder, compat.swap_p, operation.params, [accumulator, *left, *indices])


class AddUpdate(_Writing):
    def _pull(
        self, builder: Builder, operation: Operation, accumulator: Var, cts: Sequence[Var], indices: Sequence[Var]
    ) -> Sequence[Atom]:
        return _apply(builder, compat.get_p, operation.params, [accumulator, *indices])


class Freeze(OnReference):
    def reads_all(self, operation: Operation) -> bool:
        return True


class FreeReference(OnReference):
    def _pull(self, *_: Any) -> Sequence[Atom]:
        return ()


def _apply(builder: Builder, primitive: Any, params: Mapping[str, Any], ins: Sequence[Atom]) -> list[Atom]:
    def bind(*xs: Any) -> list[Any]:
        outs = primitive.bind(*xs, **params)
        return list(outs) if primitive.multiple_results else [outs]

    return builder.inline(trace_rule(bind, [a.aval for a in ins]), ins)


NEW_REF, EMPTY_REF = NewReference(compat.new_ref_p), EmptyReference(compat.empty_ref_p)
GET, SWAP, ADDUPDATE = Get(compat.get_p), Swap(compat.swap_p), AddUpdate(compat.addupdate_p)
FREEZE, FREE_REF = Freeze(compat.freeze_p), FreeReference(compat.free_ref_p)
