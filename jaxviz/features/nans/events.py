"""Describes the equations at fault: the user's operations and expressions, operands and results in that step."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.naming import IN_DERIVATIVE, ROOM, ROOM_IN_SENTENCE, Naming, is_of_users_rule
from jaxviz.analysis.training_step import is_backward
from jaxviz.features.nans.addressing import SearchAddresses
from jaxviz.features.nans.advice import ALIASES
from jaxviz.features.nans.capture import kinds_of
from jaxviz.features.nans.causes import SINGLE, Case, Operand, cause_of, is_slope, operand
from jaxviz.features.nans.report import Devices, Event, Iteration, Passed
from jaxviz.features.nans.search import Birth, NanSearch, ProgramLevel, Steps, Values, computed_by
from jaxviz.higher_order import is_scan, of
from jaxviz.ir import compat
from jaxviz.ir.expressions import expression_at, shortened_expression
from jaxviz.ir.origin import Location, ancestors, library_line, locate, own_line
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Atom, Equation, Literal, Var
from jaxviz.report.tables import short_location, type_text
from jaxviz.transforms.flags import INFINITE, NAN, decides


def events_of(births: Sequence[Birth], values: Values, hidden: bool, names: SearchNames) -> dict[Birth, Event]:
    """What happened at each event, given the values from `operands_and_results`.

    Args:
      names: the names in the searched programs.
      hidden: whether a non-finite value of the forward pass may affect only the gradient.
    """
    events: dict[Birth, Event] = {}
    for b in reversed(births):
        events[b] = _event(b, values[b.level, b.steps], next(iter(events.values()), None), hidden, names)
    return events


def of_other_expressions(births: Sequence[Birth], known: Sequence[Birth]) -> list[Birth]:
    """The first of each expression that none of the known ones is in: a function and its slope fail together."""
    first = {_expression_of(b): b for b in reversed(births) if b.equations}
    seen = set(map(_expression_of, known))
    return [b for at, b in reversed(first.items()) if at not in seen]


def _expression_of(birth: Birth) -> Any:
    e = birth.equations[-1]
    at = _line_of(birth.level, e)
    return e if at is None else (at, at.column, at.end_line, at.end_column)


def _event(birth: Birth, env: Mapping[Atom, Any], later: Event | None, hidden: bool, names: SearchNames) -> Event:
    read = lambda atoms: [a.val if isinstance(a, Literal) else env[a] for a in atoms]
    bad = lambda xs: any(kinds_of(x)[birth.kind] for x in xs)
    for e in birth.equations:
        ins, outs = read(e.invars), read(e.outvars)
        if bad(outs) and not bad(ins):
            return described(birth, e, ins, outs, later, hidden, names)
    e = birth.equations[-1]
    return described(birth, e, read(e.invars), read(e.outvars), later, hidden, names, is_exact=False)


def described(
    birth: Birth,
    e: Equation,
    ins: Sequence[Any],
    outs: Sequence[Any],
    later: Event | None,
    hidden: bool,
    names: SearchNames,
    is_exact: bool = True,
) -> Event:
    firsts = [first_bad(x, birth.kind) for x in outs]
    bad = next((k for k, first in enumerate(firsts) if first is not None), 0)
    index = firsts[bad] or ()
    operands = tuple(_operand(names, birth.level, a, x, index) for a, x in zip(e.invars, ins, strict=True))
    results = tuple(operand(x, index) for x in outs)
    written = names.written(e)
    operation, of, is_derivative = _own_operation(birth.level, e, written)
    dtype = next((a.dtype for a in e.operation.out_avals if jnp.issubdtype(a.dtype, jnp.inexact)), np.dtype(np.float32))
    zero = _reads_zero_cotangent(birth.level, e, operands)
    meets_zero = zero or (later is not None and later.zero_cotangent)
    hides = meets_zero if is_derivative else hidden
    behind = hides and _goes_into_where(birth.level, e, operation, is_derivative)
    matrix = next((x for x in ins if getattr(x, "ndim", 0) >= 2), None)
    is_certain = not _is_by_jax(birth.level, e) or (written != "" and (of != e.primitive.name or of not in _OWN_SLOPES))
    case = Case(
        e.primitive.name, e.params, operation, of, is_derivative, operands, results, dtype, behind, matrix, written,
        is_certain,
    )  # fmt: skip
    iterations, devices, branches = _steps(birth)
    return Event(
        _text(e), e.primitive.name, _phase(birth.level, e), _line_of(birth.level, e), operation, is_derivative,
        iterations,
        branches, operands, results, index, cause_of(case), is_exact, zero, devices, names.equation(birth.level, e,
        is_derivative), names.addresses.of(birth.level, e.outvars[bad], birth.steps),
    )  # fmt: skip


def _operand(names: SearchNames, level: ProgramLevel, a: Atom, x: Any, index: tuple[int, ...]) -> Operand:
    """Describes an operand, with the expression that computes it or the path of the argument, if known."""
    place = level.makers.get(a)
    if place is None:
        return operand(x, index, names.arguments.get(a, ""))
    e = level.program.equations[place]
    operation, _, is_derivative = _own_operation(level, e, names.written(e))
    came_from = e.origin and e.origin.equation
    is_in_rule = operation == "custom_vjp_call" or (came_from and of(came_from).has_custom_rule)  # or in a solver
    if _is_cotangent(level, e) and not (is_in_rule and is_of_users_rule(e)):  # a value that it computes
        return replace(operand(x, index, names.differentiated(level, e)), is_cotangent=True)
    result = list[Atom](e.outvars).index(a)
    return operand(x, index, names.equation(level, e, is_derivative, result, ROOM_IN_SENTENCE))


def _is_cotangent(level: ProgramLevel, e: Equation) -> bool:
    """Whether an equation computes cotangents, and no value of the forward pass again."""
    is_recomputed = e.origin is not None and e.origin.role in ("recomputation", "residual", "primal")
    return _phase(level, e) == "backward" and not is_recomputed


def _reads_zero_cotangent(level: ProgramLevel, e: Equation, operands: Sequence[Operand]) -> bool:
    """Whether an equation of the backward pass multiplies or divides a cotangent that is 0 at the relevant element."""
    if e.primitive.name not in ("mul", "div") or _phase(level, e) == "forward":
        return False
    for a, o in zip(e.invars, operands, strict=True):
        is_zero = o.value == 0 or (o.value is None and o.n_zero > 0)
        if is_zero and any(_is_cotangent(at, m) for at, m in computed_by(level, a)):
            return True
    return False


def first_bad(x: Any, kind: int) -> tuple[int, ...] | None:
    """The index of the first element that is not finite, or a NaN."""
    if not jnp.issubdtype(compat.aval_of(x).dtype, jnp.inexact):
        return None
    host = np.asarray(x)
    bad = np.isnan(host) if kind == NAN else ~np.isfinite(host)
    return tuple(int(i) for i in np.argwhere(bad)[0]) if bad.any() else None


_OWN_SLOPES = ("pow", "integer_pow", "polygamma")
"""Operations whose slope has the same operation: JAX's own gradient does not say which of the two an equation is."""


def _is_by_jax(level: ProgramLevel, e: Equation) -> bool:
    """Whether an equation is part of a gradient that JAX took."""
    around = (e, *(outer for outer, _ in level.path))
    return e.origin is None and any(compat.is_differentiated(x.source) for x in around)


def _own_operation(level: ProgramLevel, e: Equation, written: str) -> tuple[str, str, bool]:
    """The user's call that an equation belongs to, its primitive, and whether the equation is part of its derivative.

    Args:
      written: what the user's expression calls, see `SearchNames.written`.
    """
    if e.origin is not None:
        own = next(reversed([e, *ancestors(e)]))
        called = compat.library_call(e.source) or compat.library_call(own.source)
        operation = called or own.primitive.name
        is_derivative = e.origin.role != "primal" and not operation.startswith("custom_")  # a rule of the user's
        return operation, own.primitive.name, is_derivative
    if compat.is_of_custom_rule(e.source):
        return "custom_vjp_call", e.primitive.name, False
    single = ALIASES.get(written, written)
    if single in SINGLE:
        return written, single, is_slope(single, e.primitive.name)
    # In JAX's own gradient, an equation is known to come from differentiation, and sometimes from transposition, but
    # not from which equation: that is one on the same line with a common operand or result, and with a slope like this.
    if _is_by_jax(level, e):
        if written in ("norm", "std") and e.primitive.name == "div":
            return written, "sqrt", True
        line, read = locate(e.source), {a for a in e.invars if isinstance(a, Var)}
        for other in level.program.equations:
            near = read.intersection((*other.invars, *other.outvars))
            # Before transposition it reads nothing else: with other operands, a quotient is not the slope of a root.
            enough = bool(near) if compat.is_transposed(e.source) else near == read and bool(read)
            if other is e or not enough or locate(other.source) != line:
                continue
            for name in (compat.library_call(other.source), other.primitive.name):
                if is_slope(name, e.primitive.name) and not compat.is_transposed(other.source):
                    return name, other.primitive.name, True
    called = compat.library_call(e.source) or e.primitive.name
    return called, e.primitive.name, _phase(level, e) == "backward"


def _phase(level: ProgramLevel, e: Equation) -> str:
    around = (e, *(outer for outer, _ in level.path))
    return "backward" if any(map(is_backward, around)) else "forward"


def _goes_into_where(level: ProgramLevel, e: Equation, operation: str, is_derivative: bool) -> bool:
    """Whether the result of the user's operation is an operand of a `where`, which may not select it.

    For a derivative, that is any operation with its name on the line, in any program of the run.
    """
    if not is_derivative:
        return _reaches_where(level, e.outvars)
    line = locate(e.source)
    is_own = lambda other: (
        other is not e and locate(other.source) == line and not compat.is_transposed(other.source)
        and operation in (compat.library_call(other.source), other.primitive.name)
    )  # fmt: skip
    own = ((at, other) for at in level.outermost.walk() for other in at.program.equations if is_own(other))
    return any(_reaches_where(at, other.outvars) for at, other in own)


def _reaches_where(level: ProgramLevel, values: Sequence[Atom]) -> bool:
    """Whether a `where` selects between a value and others, here or outside of the program."""
    reached: set[Atom] = set(values)
    for e in level.program.equations:
        if e.primitive.name == "select_n" and reached.intersection(e.invars[1:]):
            return True
        if reached.intersection(e.invars):
            reached.update(e.outvars)
    if level.outer is None:
        return False
    around, _ = level.path[-1]
    results = [v for v, result in zip(around.outvars, level.program.outvars, strict=False) if result in reached]
    return bool(results) and _reaches_where(level.outer, results)


def _line_of(level: ProgramLevel, e: Equation) -> Location | None:
    """The line of an equation; if there is none, that of the equation around it, which passed a library's function."""
    lines = (locate(x.source) for x in (e, *(outer for outer, _ in reversed(level.path))))
    return next((line for line in lines if line is not None), None)


def _text(e: Equation) -> str:
    ins = [str(np.asarray(a.val)[()]) if isinstance(a, Literal) else type_text(a.aval) for a in e.invars]
    outs = [type_text(a) for a in e.operation.out_avals]
    return f"{e.primitive.name} {' '.join(ins)} -> {', '.join(outs)}"


def _steps(birth: Birth) -> tuple[tuple[Iteration, ...], tuple[Devices, ...], tuple[str, ...]]:
    """The enclosing loops, shard_maps and branches."""
    iterations, devices, branches = [], [], []
    steps = iter(enumerate(birth.steps))
    for e, place in birth.level.path:
        where = locate(e.source)
        at = f" at {short_location(where)}" if where is not None else ""
        kind = of(e)
        if kind.kind == "loop":
            name = "scan" if is_scan(e) else "while loop"
            step = kind.turned(e.operation, next(steps)[1])
            iterations.append(Iteration(f"{name}{at}", step, kind.trip_count(e.operation)))
        elif kind.kind == "devices":
            k, device = next(steps)
            axes = tuple((str(name), size) for name, size in compat.devices_of(e.operation).items())
            index = lambda n, axes=axes: tuple(map(int, np.unravel_index(n, tuple(size for _, size in axes))))
            alike = dict.fromkeys(other[k] for other in birth.alike if other[k] != device)
            devices.append(Devices(f"shard_map{at}", axes, index(device), tuple(map(index, alike))))
        elif kind.kind == "choice":
            which = ("False", "True")[place] if len(e.programs) == 2 else str(place)
            branches.append(f"in branch {which} of the cond{at}")
    return tuple(iterations), tuple(devices), tuple(branches)


def chain_of(birth: Birth) -> list[tuple[Passed, ProgramLevel, Atom]]:
    """The lines from a first occurrence to a result, each once in a row, with the last value there and its program."""
    lines: list[tuple[Passed, ProgramLevel, Atom]] = []
    for level, value in birth.chain:
        place = level.makers.get(value)
        if place is None:
            continue
        e = level.program.equations[place]
        p = Passed(_line_of(level, e), (e.primitive.name,), _phase(level, e))
        if lines and (lines[-1][0].location, lines[-1][0].phase) == (p.location, p.phase):
            p = replace(p, operations=tuple(dict.fromkeys((*lines.pop()[0].operations, *p.operations))))
        lines.append((p, level, value))
    return lines


def with_values(
    chain: Sequence[tuple[Passed, ProgramLevel, Atom]], steps: Sequence[Steps], values: Sequence[Any],
    addresses: SearchAddresses,
) -> tuple[Passed, ...]:  # fmt: skip
    """The lines with their values, in the first steps in which these are not finite, and addresses; None if unknown."""
    lines = []
    for (p, level, v), at, x in zip(chain, steps, values, strict=True):
        o = None if x is None else operand(x, first_bad(x, INFINITE))
        # A value that is finite here came from another step than the one in which it passed.
        is_seen = o is not None and not o.is_finite
        lines.append(replace(p, value=o, address=addresses.of(level, v, at)) if is_seen else p)
    return tuple(lines)


def harmless_in(search: NanSearch, bad: Sequence[int]) -> tuple[Passed, ...]:
    """Non-finite values that do not affect the value of any result."""
    seen: set[Any] = set()
    search.births_of_results(bad, INFINITE, seen)
    lines: dict[Any, Passed] = {}
    for level, value in search.raised_values():
        for birth in search.apart(search.births(level, value, INFINITE, seen)):
            if birth.equations:
                e = birth.equations[-1]
                decided = _decided(search, birth)
                p = Passed(_line_of(birth.level, e), (e.primitive.name,), _phase(birth.level, e), decided)
                key = (p.location, p.operations, p.phase)
                if key not in lines or birth.chain[-1][0].is_condition:
                    lines[key] = p
    return tuple(lines.values())


def _decided(search: NanSearch, birth: Birth) -> str:
    """What the last value of a chain decides, if everything that reads it compares it."""
    level, value = birth.chain[-1]
    readers = [e for e in level.program.equations if value in e.invars]
    if not readers or value in level.program.outvars or not all(decides(e.operation) for e in readers):
        return ""
    e = readers[0]
    name, line = e.primitive.name, _line_of(level, e)
    what = f"`{name}` reads it" + (f" at {short_location(line)}" if line is not None else "")
    is_nan = search.first(level, value, NAN) is not None
    if is_nan and plain(e.primitive.name).kind == "comparison" and name != "ne":
        what += " and gives False, as any comparison with NaN does"
    if not level.is_condition:
        return what
    steps = search.first(level, value, NAN if is_nan else INFINITE) or birth.steps
    loop = locate(level.path[-1][0].source)
    at = f" at {short_location(loop)}" if loop is not None else ""
    return f"{what}; it decides whether the while loop{at} goes on, first before iteration {steps[-1]:,}"


# --- names ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchNames:
    """The names in the searched programs, by the names of the derivation and the paths of its inputs.

    Args:
      addresses: those of the values.
      inner: whether gradients that the function takes are inner ones, whose pass the report does not say.
    """

    naming: Naming
    arguments: Mapping[Atom, str]
    addresses: SearchAddresses
    inner: bool

    def equation(self, level: ProgramLevel, e: Equation, is_derivative: bool, place: int = 0, room: int = ROOM) -> str:
        """`jnp.log(x)`, or `mul in the derivative of jnp.sqrt(x)`; '' if no expression is found.

        Args:
          is_derivative: whether it belongs to the derivative of the user's operation.
          place: the index of the result.
          room: the maximum length of the expression.
        """
        name = self.naming.name(e, [outer for outer, _ in level.path], place, room, self.inner)
        _, of_derivative, called = name.partition(IN_DERIVATIVE)
        if not is_derivative and of_derivative:  # the transpose of a user's rule
            return called
        if not name or not is_derivative or of_derivative:
            return name
        # In JAX's own gradient, or a hand-written derivative of a jitted function, there is no rule to name.
        return f"{e.primitive.name}{IN_DERIVATIVE}{_expression(e, room) or name}"

    def differentiated(self, level: ProgramLevel, e: Equation) -> str:
        """The expression whose derivative an equation of the backward pass belongs to; '' if none is found."""
        within = [outer for outer, _ in level.path]
        return _expression(e, ROOM_IN_SENTENCE) or self.naming.name(e, within, room=ROOM_IN_SENTENCE, inner=self.inner)

    def written(self, e: Equation) -> str:
        """What the user's expression calls, such as 'log2', or 'div' and 'pow' for operators; '' for anything else."""
        try:
            match ast.parse(_expression(e), mode="eval").body:
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                    return name
                case ast.BinOp(op=ast.Div()):
                    return "div"
                case ast.BinOp(op=ast.Pow()):
                    return "pow"
        except SyntaxError:  # no source
            pass
        return ""


def _expression(e: Equation, room: int | None = None) -> str:
    """The expression in the function; '' if JAX's own is searched itself, and only the call of jaxviz has a line."""
    text = expression_at(own_line(e.source) or library_line(e.source))
    return text if room is None else shortened_expression(text, room)
