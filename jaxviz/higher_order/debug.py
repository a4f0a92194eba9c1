"""Debug callbacks and prints, which have no nested program; under a checkpoint each runs in one pass."""

from __future__ import annotations

from jaxviz.ir import compat
from jaxviz.ir.syntax import Operation
from jaxviz.transforms.driver import Builder, Mask, Template, call_of
from jaxviz.transforms.policy import Policy
from jaxviz.transforms.primitive import Primitive
from jaxviz.transforms.split_rules import SplitRule, all_staged


class DebugCallback(Primitive):
    is_opened = False

    def split(self, operation: Operation, unknown: Mask, available: Mask | None, policy: Policy | None) -> SplitRule:
        """A debug callback runs where its values are computed: now, later, or in both passes if the policy would
        recompute it."""
        name = "partial evaluation of a debug callback"
        if any(unknown):
            return all_staged(operation, unknown, name)
        call = Template(call_of(operation), "primal")
        assert available is not None
        assert policy is not None
        verdict = compat.decide(policy, operation.primitive, operation.in_avals, dict(operation.params))
        if verdict == "saved" and not all(available):
            return SplitRule(call, Template(Builder().program((), ()), ()), (), (), (), name)
        return SplitRule(call, call, tuple(range(len(unknown))), (), (), name)


DEBUG_CALLBACK = DebugCallback(compat.debug_callback_p)
DEBUG_PRINT = DebugCallback(compat.debug_print_p)
