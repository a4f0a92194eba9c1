"""Converts a JAX jaxpr to a `Program`, and a `Program` to a jaxpr."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from jax.extend import core as jex_core

from jaxviz.ir import compat
from jaxviz.ir.sharing import SharedTable, exact, exact_params
from jaxviz.ir.syntax import Atom, Branch, DropVar, Equation, Literal, Operation, Program, Var

P = ParamSpec("P")
R = TypeVar("R")

_programs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
"""The Program of a jaxpr by the jaxpr's id: it was converted from it, or to it. It keeps the jaxpr alive, so that the
id stays valid."""

_operations: SharedTable[Operation] = SharedTable(32768)
"""(primitive, params, types, effects, context) -> the one Operation for it."""

_applied: SharedTable[Operation] = SharedTable(32768)
"""The Operation for (primitive, params, types of the operands, context), among those that JAX's rules bind and those
they are applied to.
"""


def operation(
    primitive: Any,
    params: Mapping[str, Any],
    in_avals: tuple[Any, ...],
    out_avals: tuple[Any, ...],
    effects: frozenset[Any],
    context: Any,
) -> Operation:
    """The Operation for these, the same object each time; a new one if a param is not hashable."""
    # Types of references are equal even if only one of them is of a kind that JAX neither differentiates nor reads
    # again.
    kinds = tuple(map(compat.kind_of_ref, in_avals)) if effects else ()
    key = (primitive, exact_params(params), in_avals, out_avals, effects, context, kinds)
    try:
        operation = _operations.get(key)
    except TypeError:
        return Operation(primitive, params, in_avals, out_avals, effects, context)
    if operation is None:
        operation = Operation(primitive, params, in_avals, out_avals, effects, context)
        _operations.keep(key, operation, weakly=operation.has_user_data)
    return operation


def applied(primitive: Any, params: Mapping[str, Any], in_avals: tuple[Any, ...], context: Any) -> Operation:
    """The Operation that applies a primitive without effects to values of these types.

    Raises:
      NotRecorded: it has effects.
    """
    key: Any = (primitive, exact_params(params), in_avals, context)
    try:
        recorded = _applied.get(key)
    except TypeError:  # a param is not hashable
        recorded = key = None
    if recorded is None:
        out_avals = compat.plain_result_types(primitive, params, in_avals, context)
        opened, shown = compat.opened(primitive, params, context)
        recorded = operation(opened, read_params(shown), in_avals, out_avals, frozenset(), context)
        if key is not None and not recorded.programs:
            _applied.keep(key, recorded, weakly=recorded.has_user_data)
    return recorded


def shared(make: Callable[P, R]) -> Callable[P, R]:
    """Makes a function that traces do so once for the same arguments and the same configuration of JAX, including
    context and mesh.

    Its arguments are types, numbers and names, and contain no user data.
    """
    table: SharedTable[R] = SharedTable(2048)

    @wraps(make)
    def cached(*args: P.args, **kwargs: P.kwargs) -> R:
        key = (compat.trace_key(), *map(exact, args))
        result = table.get(key)
        return table.keep(key, make(*args, **kwargs)) if result is None else result

    return cached


def trace_rule(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], of: Operation | None = None) -> Program:
    """The program of one of JAX's rules, as returned by `compat.jvp_rule` and similar functions.

    Args:
      fun, avals: the rule.
      of: the operation that it is for.
    """
    if of is not None and not of.programs and not of.effects:
        with contextlib.suppress(TypeError):  # a param is not hashable
            key = (of.primitive, exact_params(of.params), of.in_avals, of.context)
            _applied.keep(key, of, weakly=of.has_user_data)
    program = compat.record_rule(fun, avals, applied)
    if program is not None:
        return program
    return read_traced(compat.trace_to_jaxpr(fun, avals))


def trace_rule_on_values(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], values: Sequence[Any]) -> Program:
    """The program of a rule whose Python looks at values, traced at the values of its operands."""
    return read_traced(compat.trace_to_jaxpr(fun, avals, values=values))


def read_traced(traced: compat.TracedJaxpr, branches: tuple[Branch, ...] = (), is_path: bool = False) -> Program:
    """The Program of a result of `compat.trace_to_jaxpr`."""
    bodies = [read_traced(body) for body in traced.bodies]  # these are found again where the jaxpr contains them
    program = read_jaxpr(traced.jaxpr, {id(x) for x in traced.held}, branches, is_path, traced.made_from)
    del bodies
    return program


def read_jaxpr(
    jaxpr: Any,
    held: Collection[int] = (),
    branches: tuple[Branch, ...] = (),
    is_path: bool = False,
    made_from: Mapping[int, Equation] = MappingProxyType({}),
) -> Program:
    """The Program of a jaxpr, and of every jaxpr nested in its params.

    Args:
      jaxpr: a `ClosedJaxpr`, or an open `Jaxpr` as in some params.
      held: ids of the jaxpr's literals that JAX's linearize keeps as arrays; see `Literal.held`.
      branches, is_path: how it was recorded; see `Program`.
      made_from: for the position of an equation, the equation of a derived program from which it was evaluated, whose
        origin it gets.
    """
    known = _programs.get(id(jaxpr))
    if known is not None:
        return known
    closed = isinstance(jaxpr, jex_core.ClosedJaxpr)
    inner = jaxpr.jaxpr if closed else jaxpr
    program = _JaxprReader(held).read(inner, tuple(jaxpr.consts) if closed else (), closed, branches, is_path)
    for i, equation in made_from.items():
        program.equations[i].origin = equation.origin
    program.__dict__["jaxpr"] = jaxpr  # converting back yields the very object that JAX's caches know
    _programs[id(jaxpr)] = program
    return program


class _JaxprReader:
    def __init__(self, held: Collection[int]):
        self.held = held
        self.env: dict[Any, Var] = {}
        self.literals: dict[int, Literal] = {}

    def read(
        self, jaxpr: Any, consts: tuple[Any, ...], closed: bool, branches: tuple[Branch, ...], is_path: bool
    ) -> Program:
        constvars = tuple(self.bind(v) for v in jaxpr.constvars)
        invars = tuple(self.bind(v) for v in jaxpr.invars)
        equations = tuple(self.equation(e) for e in jaxpr.eqns)
        outvars = tuple(self.atom(a) for a in jaxpr.outvars)
        effects = compat.positional_effects(jaxpr.effects, jaxpr.invars)
        return Program(
            constvars, invars, outvars, equations, consts, effects, jaxpr.debug_info,
            branches, is_path, closed, compat.is_high(jaxpr),
        )  # fmt: skip

    def bind(self, var: Any) -> Var:
        variable = DropVar(var.aval) if isinstance(var, jex_core_DropVar) else _bound_var(var)
        self.env[var] = variable
        return variable

    def atom(self, atom: Any) -> Atom:
        if not isinstance(atom, jex_core.Literal):
            return self.env[atom]
        literal = self.literals.get(id(atom))
        if literal is None:
            is_array = id(atom) in self.held or compat.is_array(atom.val)
            literal = self.literals[id(atom)] = Literal(atom.val, atom.aval, is_array)
        return literal

    def equation(self, eqn: Any) -> Equation:
        invars = tuple([self.atom(a) for a in eqn.invars])
        outvars = tuple([self.bind(v) for v in eqn.outvars])
        primitive, params = compat.opened(eqn.primitive, eqn.params, eqn.ctx)
        op = operation(
            primitive,
            read_params(params),
            tuple([a.aval for a in invars]),
            tuple([v.aval for v in outvars]),
            compat.positional_effects(eqn.effects, eqn.invars),
            eqn.ctx,
        )
        return Equation(op, invars, outvars, eqn.source_info)


jex_core_DropVar = compat.DropVar


class _StatefulVar(Var):
    """A variable of a mutable type, with the state that JAX records where it is bound."""

    __slots__ = ("final_state", "initial_state")

    def __init__(self, aval: Any, initial_state: Any, final_state: Any):
        super().__init__(aval)
        self.initial_state = initial_state
        self.final_state = final_state

    @property
    def type_with_state(self) -> Any:
        return compat.type_in_state(self.aval, self.initial_state)

    def renewed(self) -> Var:
        return _StatefulVar(self.aval, self.initial_state, self.final_state)


def _bound_var(var: Any) -> Var:
    initial, final = compat.states_of(var)
    return Var(var.aval) if initial is None and final is None else _StatefulVar(var.aval, initial, final)


def read_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Params with every jaxpr in them converted to a Program."""
    return {
        name: _map_param(value, (jex_core.ClosedJaxpr, jex_core.Jaxpr), read_jaxpr) for name, value in params.items()
    }


def write_params(of: Operation) -> Mapping[str, Any]:
    """Its params with every Program in them replaced by its jaxpr."""
    return compat.closed(map_programs(of.params, lambda program: program.jaxpr)) if of.programs else of.params


def map_programs(params: Mapping[str, Any], change: Callable[[Program], Any]) -> dict[str, Any]:
    """Params with a function applied to every Program in them."""
    return {name: _map_param(value, Program, change) for name, value in params.items()}


def with_programs(op: Operation, change: Callable[[Program], Program]) -> Operation:
    """An operation with each of its programs changed to one of the same types; the same object if none is changed."""
    changed = {program: change(program) for _, program in op.programs}
    if all(new is old for old, new in changed.items()):
        return op
    params = map_programs(op.params, changed.__getitem__)
    return operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context)


def _map_param(value: Any, kind: Any, change: Any) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)) and any(isinstance(item, kind) for item in value):
        items = [change(item) if isinstance(item, kind) else item for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def write_program(program: Program) -> Any:
    """The jaxpr of a Program, newly created: closed, or open if it was read from an open one."""
    env: dict[Var, Any] = {}
    literals: dict[int, Any] = {}

    def bind(var: Var) -> Any:
        variable = compat.DropVar(var.aval) if isinstance(var, DropVar) else jex_core.Var(compat.own_type(var.aval))
        if isinstance(var, _StatefulVar):
            variable.initial_qdd, variable.final_qdd = var.initial_state, var.final_state
        env[var] = variable
        return variable

    def atom(a: Atom) -> Any:
        if isinstance(a, Var):
            return env[a]
        literal = literals.get(id(a))
        if literal is None:
            literal = literals[id(a)] = jex_core.Literal(a.val, a.aval)
        return literal

    constvars = [bind(v) for v in program.constvars]
    invars = [bind(v) for v in program.invars]
    eqns = []
    is_high = program.is_high
    params: dict[int, dict[str, Any]] = {}  # one dict per Operation: equations that share it also share the dict
    for e in program.equations:
        op = e.operation
        ins = [atom(a) for a in e.invars]
        outs = [bind(v) for v in e.outvars]
        if id(op) not in params:
            params[id(op)] = dict(write_params(op))
            is_high = is_high or compat.is_high_equation(op.primitive, op.in_avals, params[id(op)])
        effects = compat.resolved_effects(op.effects, ins)
        eqns.append(compat.new_eqn(ins, outs, op.primitive, params[id(op)], effects, e.source, op.context))
    effects = compat.resolved_effects(program.effects, invars)
    outvars = [atom(a) for a in program.outvars]
    jaxpr = compat.new_jaxpr(constvars, invars, outvars, eqns, effects, program.debug_info, is_high)
    return jex_core.ClosedJaxpr(jaxpr, program.consts) if program.closed else jaxpr


def kept_jaxpr(program: Program) -> Any:
    """A cached jaxpr of a Program. Read again, it gives this very program, with the origins of its equations."""
    # Stored before it is registered: two threads may convert it at once, and an interrupt here must not leave an id
    # that another jaxpr could get.
    jaxpr = program.__dict__.setdefault("jaxpr", write_program(program))
    _programs[id(jaxpr)] = program
    return jaxpr


def one_equation(op: Operation) -> Any:
    """The ClosedJaxpr that applies an operation to its inputs, for JAX to transform."""
    invars = tuple(Var(a) for a in op.in_avals)
    outvars = tuple(Var(a) for a in op.out_avals)
    return write_program(Program((), invars, outvars, (Equation(op, invars, outvars),), effects=op.effects))
