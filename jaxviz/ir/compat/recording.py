"""Recording one of JAX's rules as a jaxpr, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import primitives

from jaxviz.ir.compat.jaxprs import is_array
from jaxviz.ir.compat.private import _config, _core, _pe, dtypes
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program, Var


class NotRecorded(Exception):
    """A rule does something that `record_rule` does not support."""


class _RuleTracer(_core.Tracer):
    __slots__ = ("atom",)

    def __init__(self, trace: Any, atom: Atom):
        super().__init__(trace, atom.aval)
        self._line_info = None  # type: ignore[misc]  # a slot of JAX's class
        self.atom = atom

    def full_lower(self) -> Any:
        value = self._trace.value_of(self.atom)
        return self if value is None else _core.full_lower(value)

    def _origin_msg(self) -> str:
        return ""


class _RuleTrace(_core.Trace):
    """Records the operations that one of JAX's rules binds, like `DynamicJaxprTrace`, without their lines and names."""

    __slots__ = ("constants", "equations", "operation_of", "values")

    def __init__(self, operation_of: Callable[..., Operation]):
        super().__init__()
        self.requires_low = False  # type: ignore[misc]  # a slot of JAX's class
        self.operation_of = operation_of
        self.equations: list[Equation] = []
        self.constants: dict[int, tuple[Var, Any]] = {}
        self.values: dict[Var, Any] = {}

    def atom(self, x: Any) -> Atom:
        return x.atom if type(x) is _RuleTracer and x._trace is self else self.new_const(x).atom

    def value_of(self, atom: Atom) -> Any:
        return atom.val if isinstance(atom, Literal) else self.values.get(atom)

    def new_const(self, x: Any, source_info: Any = None, aval: Any = None) -> _RuleTracer:
        if _core.is_literalable(x, False):
            aval = aval if aval is not None else _core.typeof(x)
            return _RuleTracer(self, Literal(x, aval, held=is_array(x)))
        if id(x) not in self.constants:
            var = Var(_core.typeof(x))
            self.constants[id(x)] = (var, x)
            self.values[var] = x
        return _RuleTracer(self, self.constants[id(x)][0])

    pure = lift = new_const

    def stage_value(self, x: Any) -> _RuleTracer:
        return self.as_array(_RuleTracer(self, self.atom(x)))

    def as_array(self, tracer: _RuleTracer) -> _RuleTracer:
        """The scalars in a rule that `_Trace` records."""
        if isinstance(tracer.atom, Literal):
            tracer.atom.held = True
        return tracer

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if primitive in _pe.custom_staging_rules and primitive not in _STAGED_AS_THEY_ARE:
            raise NotRecorded
        atoms = tuple([self.atom(x) for x in tracers])
        in_avals = tuple([a.aval for a in atoms])
        operation = self.operation_of(primitive, params, in_avals, _core.current_jaxpr_eqn_context())
        if primitive in _pe.const_fold_rules:
            values = [self.value_of(a) for a in atoms]
            if any(x is not None for x in values):
                folded = _pe.const_fold_rules[primitive](values, params, operation.out_avals)
                if folded is not None:
                    avals = operation.out_avals
                    outs = [self.as_array(self.new_const(x, None, a)) for x, a in zip(folded, avals, strict=True)]
                    return outs if primitive.multiple_results else outs[0]
        if primitive in _pe.forwarding_rules:
            forwarded, equation = _pe.forwarding_rules[primitive](Equation(operation, atoms, ()))
            if equation is None:
                outs = [self.as_array(_RuleTracer(self, atoms[i])) for i in forwarded]
                return outs if primitive.multiple_results else outs[0]
        outvars = tuple([Var(aval) for aval in operation.out_avals])
        self.equations.append(Equation(operation, atoms, outvars))
        if primitive.multiple_results:
            return [_RuleTracer(self, v) for v in outvars]
        return _RuleTracer(self, outvars[0])


_STAGED_AS_THEY_ARE = frozenset(
    (primitives.broadcast_in_dim_p, primitives.reshape_p, primitives.iota_p, primitives.dynamic_slice_p)
)
"""Operations whose staging rule only matters if shapes are values."""


def record_rule(
    fun: Callable[..., Sequence[Any]], avals: Sequence[Any], operation_of: Callable[..., Operation]
) -> Program | None:
    """The program of one of JAX's rules, if it only binds plain operations; in less than half the time.

    Args:
      fun, avals: as for `trace_to_jaxpr`.
      operation_of: the Operation for (primitive, params, types, context), or `NotRecorded`.

    Returns:
      None for a rule that calls functions or has effects, and for one that fails, so that the slower path reports it.
    """
    if _config.eager_constant_folding.value:
        return None
    trace = _RuleTrace(operation_of)
    invars = tuple([Var(aval) for aval in avals])
    try:
        with _core.set_current_trace(trace):
            outs = fun(*[_RuleTracer(trace, v) for v in invars])
        outvars = tuple([trace.atom(dtypes.canonicalize_value(x)) for x in outs])
    except Exception:
        return None
    finally:
        trace.invalidate()
    constvars, consts = zip(*trace.constants.values(), strict=True) if trace.constants else ((), ())
    return Program(constvars, invars, outvars, tuple(trace.equations), consts)
