"""Debug callbacks and prints, which have no nested program; under a checkpoint each runs in one pass."""

from __future__ import annotations

from jaxviz.ir import compat
from jaxviz.ir.syntax import Operation, Var
from jaxviz.transforms.driver import Builder, Mask, Template, call_of
from jaxviz.transforms.partial_eval import Policy, SplitRule
from jaxviz.transforms.primitive import Primitive


class DebugCallback(Primitive):
    is_opened = False

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        """A debug callback runs where its values are computed: now, later, or in both passes if the policy would recompute it."""
        n_in = len(unknown)
        inputs = [Var(a) for a, u in zip(operation.in_avals, unknown, strict=True) if not u]
        nothing = Template(Builder().program(inputs, ()), ())
        call = Template(call_of(operation), "primal")
        name = "partial evaluation of a debug callback"
        if any(unknown):
            return SplitRule(nothing, call, tuple(range(n_in)), (), (), name)
        assert available is not None
        assert policy is not None
        verdict = compat.decide(policy, operation.primitive, operation.in_avals, dict(operation.params))
        if verdict == "saved" and not all(available):
            return SplitRule(call, Template(Builder().program((), ()), ()), (), (), (), name)
        return SplitRule(call, call, tuple(range(n_in)), (), (), name)


DEBUG_CALLBACK = DebugCallback(compat.debug_callback_p)
DEBUG_PRINT = DebugCallback(compat.debug_print_p)
