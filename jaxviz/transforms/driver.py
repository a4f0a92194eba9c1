"""Shared parts of the transforms: rules as small programs, bounded tables of them, and splicing.

A rule is found once for an `Operation` and what is known about its operands, as a program; applying it copies its
equations into the program under construction with the variables renamed. The driver, not the rule, records where each
copied equation came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from operator import itemgetter
from typing import Any, TypeVar

from jaxviz.ir import compat
from jaxviz.ir.convert import read_traced, shared
from jaxviz.ir.errors import EquationError, ForwardModeError, NoRuleError
from jaxviz.ir.origin import is_inside_own_code, library_line, locate, own_line
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.sharing import SharedTable
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import (
    Atom,
    DropVar,
    Equation,
    Literal,
    Operation,
    Origin,
    Program,
    Relations,
    Role,
    Shared,
    Var,
    unrelated,
)
from jaxviz.transforms.primitive import own_rules

R = TypeVar("R")
T = TypeVar("T")
Mask = tuple[bool, ...]


class Template:
    """A rule's program, prepared for splicing.

    Args:
      program: from the rule's inputs to its outputs.
      roles: what each of its equations computes; one for all of them, or one for each.
      keeps_lines: whether its equations keep their own source lines, and their origins if they have any: those of a
        custom rule, and of a body that is taken out of its enclosing equation.
    """

    __slots__ = ("constants", "outs", "program", "slots", "steps")

    def __init__(self, program: Program, roles: Role | Sequence[Role], keeps_lines: bool = False):
        slots = {id(v): i for i, v in enumerate(program.invars)}
        self.constants: list[tuple[Atom, Any]] = []

        def fix(atom: Atom, value: Any = None) -> None:
            if id(atom) not in slots:
                slots[id(atom)] = len(slots)
                self.constants.append((atom, value))

        for v, x in zip(program.constvars, program.consts, strict=True):
            fix(v, x)
        for equation in program.equations:
            for a in equation.invars:
                if type(a) is Literal:
                    fix(a)
        for a in program.outvars:
            if type(a) is Literal:
                fix(a)
        self.steps: list[tuple[Operation, int, Any, Any, Role, Any, Origin | None]] = []
        """Of each equation: its operation; the slot of its only operand, or what gathers all of them; the type of its
        only result, or None; its role, line and origin. Equations with one operand and one result are copied with less
        work."""
        of_each = [roles] * len(program.equations) if isinstance(roles, str) else roles
        for equation, role in zip(program.equations, of_each, strict=True):
            ins = [slots[id(a)] for a in equation.invars]
            gather = itemgetter(*ins) if len(ins) > 1 else None if ins else _nothing
            for v in equation.outvars:
                slots[id(v)] = len(slots)
            avals = equation.operation.out_avals
            source, origin = _own_line(equation) if keeps_lines else (None, None)
            only = avals[0] if len(avals) == 1 else None
            self.steps.append((equation.operation, ins[0] if ins else 0, gather, only, role, source, origin))
        self.outs = [slots[id(a)] for a in program.outvars]
        self.program = program
        self.slots = slots if program.relations is not unrelated else None


def _nothing(_: Sequence[Atom]) -> tuple[Atom, ...]:
    return ()


def _own_line(equation: Equation) -> tuple[Any, Origin | None]:
    if equation.origin is not None:
        return equation.source, equation.origin
    return (equation.source if is_inside_own_code(equation.source) else None), None


class Builder:
    """A program under construction."""

    def __init__(self, constvars: Sequence[Var] = (), consts: Sequence[Any] = ()):
        self.equations: list[Equation] = []
        self.constvars = list(constvars)
        self.consts = list(consts)
        self._constant: dict[int, Var] = dict(zip(map(id, consts), constvars, strict=True))
        self._related: list[tuple[Template, list[Atom]]] = []
        """Derived programs that were copied in, with the new variables of their slots."""

    def constant(self, var: Var, value: Any) -> Var:
        """The variable of a closed-over array, the same for the same array."""
        constant = self._constant.get(id(value))
        if constant is None:
            constant = self._constant[id(value)] = var.renewed()
            self.constvars.append(constant)
            self.consts.append(value)
        return constant

    def splice(
        self,
        template: Template,
        inputs: Sequence[Atom],
        equation: Equation | None = None,
        transform: str = "",
        rule: str = "",
        role_of_all: Role | None = None,
    ) -> list[Atom]:
        """Copies a rule's equations into the program, applied to `inputs`; returns the variables of its outputs.

        Without an `equation` that they come from, as in a rule that consists of other rules, their origins are filled
        in later. `role_of_all` is the role of all of them, overriding the template's.
        """
        env: list[Atom] = list(inputs)
        for atom, value in template.constants:
            env.append(atom if isinstance(atom, Literal) else self.constant(atom, value))
        source = equation.source if equation is not None else None
        append = self.equations.append
        origins: dict[str, Origin] = {}
        for operation, operand, gather, only, role, line, origin in template.steps:
            outvars = (Var(only),) if only is not None else tuple([Var(aval) for aval in operation.out_avals])
            if origin is None and equation is not None:
                role = role_of_all or role
                origin = origins.get(role)
                if origin is None:
                    origin = origins[role] = Origin(equation, transform, rule, role)
            here = source if line is None else compat.within_scopes(line, source)
            invars = (env[operand],) if gather is None else gather(env)
            append(Equation(operation, invars, outvars, here, origin))
            env += outvars
        if template.slots is not None:
            self._related.append((template, env))
        return [env[i] for i in template.outs]

    def splice_as(self, outvars: Sequence[Var], template: Template, inputs: Sequence[Atom], *origin: Any) -> list[Atom]:
        """The same, and the first outputs are these variables, unless a variable is dropped or an output is not
        computed by the rule."""
        start = len(self.equations)
        outs = self.splice(template, inputs, *origin)
        equations = self.equations[start:]
        computed = {v for e in equations for v in e.outvars}
        named: dict[Atom, Var] = {
            a: v for a, v in zip(outs, outvars, strict=False) if a in computed and not isinstance(v, DropVar)
        }
        for e in equations if named else ():
            e.invars = tuple([named.get(a, a) for a in e.invars])
            e.outvars = tuple([named.get(v, v) for v in e.outvars])  # type: ignore[arg-type]
        return [named.get(a, a) for a in outs]

    def program(
        self, invars: Sequence[Var], outvars: Sequence[Atom], debug_info: Any = None, like: Program | None = None
    ) -> Program:
        """The finished program; `like` provides the branch points and the kind of jaxpr."""
        effects = program_effects(self.equations, invars)
        return Program(
            tuple(self.constvars), tuple(invars), tuple(outvars), tuple(self.equations), tuple(self.consts),
            effects, debug_info, like.branches if like else (), like.is_path if like else False,
            relations=self.relations if self._related else unrelated,
        )  # fmt: skip

    def part(self, of: Program, invars: Sequence[Var], results: Sequence[Atom]) -> Program:
        """The finished program, as a part of another one, whose variables it shares."""
        part = self.program(invars, results, compat.derived_debug_info(of.debug_info, [""] * len(invars), len(results)))
        if of.relations is unrelated:
            return part
        return replace(part, relations=cache(partial(self._inherited, of, part)))

    def _inherited(self, program: Program, part: Program) -> Relations:
        """How the variables of a part relate to others: those that they have in the program, and those copied in."""
        own = {*part.invars, *part.constvars, *(v for e in part.equations for v in e.outvars)}
        related = [r for r in program.relations() if r[0] in own]
        return tuple(dict.fromkeys([*related, *self.relations()]))

    @cached_property
    def _copied(self) -> Relations:
        relations: dict[Any, None] = {}  # nested programs may be reached several times
        for template, env in self._related:
            slots = template.slots or {}
            for v, relation, of in template.program.relations():
                if id(v) in slots:
                    relations[env[slots[id(v)]], relation, of] = None
        return tuple(relations)

    def relations(self) -> Relations:
        """How the variables of derived programs that were copied in relate to those of the programs from which these
        were derived.

        Call it when the program is finished.
        """
        return self._copied

    def apply(self, operation: Operation, inputs: Sequence[Atom]) -> list[Var]:
        """Adds an equation whose origin is filled in where the rule is applied; returns its results."""
        outvars = tuple([Var(aval) for aval in operation.out_avals])
        self.equations.append(Equation(operation, tuple(inputs), outvars))
        return list(outvars)

    def copy(self, equation: Equation, inputs: Iterable[Atom], transform: str, why: str) -> None:
        """Adds an equation that a transform leaves as it is, with other inputs and the same results."""
        origin = Origin(equation, transform, why, "primal")
        self.equations.append(Equation(equation.operation, tuple(inputs), equation.outvars, equation.source, origin))

    def inline(self, program: Program, inputs: Sequence[Atom]) -> list[Atom]:
        """Copies a program in, with its lines and origins; returns the variables of its results."""
        return self.splice(Template(program, "primal", keeps_lines=True), inputs)

    def zero(self, aval: Any, transform: str) -> Atom:
        """A zero tangent or cotangent as an equation, where a loop or a branch needs a value."""
        return self.splice(_zero(aval, transform), ())[0]


def program_effects(equations: Sequence[Equation], invars: Sequence[Var]) -> frozenset[Any]:
    """The effects of a program of these equations; one that concerns an operand is followed to the program's input."""
    with_effects = [e for e in equations if e.effects]
    where: dict[Atom, int] = {v: i for i, v in enumerate(invars)} if with_effects else {}
    effects: set[Any] = set()
    for e in with_effects:
        effects |= compat.moved_effects(e.effects, [where.get(a) for a in e.invars])
    return frozenset(effects)


@shared
def _zero(aval: Any, transform: str) -> Template:
    traced = compat.trace_to_jaxpr(lambda: [compat.zeros(aval)], ())
    return written_out(read_traced(traced), Origin(None, transform, "zero written out", "zero"))


def written_out(program: Program, origin: Origin) -> Template:
    """A program for splicing, all of whose equations have this origin, and the line of the equation in it."""
    source = origin.equation.source if origin.equation is not None else None
    equations = tuple(replace(e, source=source, origin=origin) for e in program.equations)
    return Template(replace(program, equations=equations), origin.role, keeps_lines=True)


def scopes_alone(program: Program) -> Program:
    """One of JAX's rules prepared for splicing: its equations have the line of the equation that the rule is for, and
    their own scopes."""
    return replace(program, equations=tuple(replace(e, source=compat.scope_alone(e.source)) for e in program.equations))


def with_line_of_call(program: Program, operation: Operation) -> Program:
    """A rule of the user's prepared for splicing: where it applies the operation itself, it has the line of the
    equation that the rule is for."""
    equations = [replace(e, source=None) if e.operation is operation else e for e in program.equations]
    return replace(program, equations=tuple(equations))


class RuleTable(SharedTable[R]):
    """Rules by operation and by what is known about its operands.

    Key: an `Operation` and usually one or two masks that say which operands have a tangent. Value: the rule. Look-up
      order: the cached rule; then the rule of ours for the primitive, see `Primitive`; then `default`, which asks JAX.
      If none exists, the function's own error is raised, and nothing is cached.

    The rules of an operation that has user data are stored in the operation, so that the user's function can be freed.

    Args:
      transform: what they are the rules of.
      default: finds the rule of an operation for which there is none of ours.
      setting: a setting that JAX looks at when it applies a rule, and that is part of the key.
    """

    def __init__(self, transform: str, default: Callable[..., R], setting: Callable[[], Any] = bool):
        super().__init__(8192)
        self.setting = setting
        self.transform = transform
        self.default = default
        self.own = own_rules(transform)
        self.generation = object()

    def __call__(self, operation: Operation, *masks: Any) -> R:
        if operation.has_user_data:
            return self._of_user_data(operation, masks)
        key = (operation, *masks, self.setting())
        rule = self.get(key)
        return self.keep(key, self._new(operation, masks)) if rule is None else rule

    def _of_user_data(self, operation: Operation, masks: tuple[Any, ...]) -> R:
        key = (self.generation, *masks, self.setting())
        if key not in operation.rules:
            with deep_stack, compat.within(operation.context):  # for the zeros and dummies that it emits
                operation.rules[key] = self._new(operation, masks)
        rule: R = operation.rules[key]
        return rule

    def _new(self, operation: Operation, masks: tuple[Any, ...]) -> R:
        try:
            return self.find(operation)(operation, *masks)
        except (AttributeError, AssertionError) as error:
            if not (compat.touches_mutable(operation) and compat.lacks_state(error)):
                raise
            advice = (
                "It uses a value of a mutable hi type, which jaxviz cannot trace in a rule yet: use jax's own "
                "transforms."
            )
            raise no_rule(operation, f"The {self.transform} rule of", advice) from error

    def find(self, operation: Operation) -> Callable[..., R]:
        """The function that finds the rules of an operation, for a rule that is not cached."""
        return self.own.get(operation.primitive, self.default)

    def found(self, operation: Operation) -> list[R]:
        """The rules that were found so far of an operation that has user data."""
        return [rule for key, rule in operation.rules.items() if isinstance(key, tuple) and key[0] is self.generation]

    def clear(self) -> None:
        """Forgets what was found."""
        super().clear()
        self.generation = object()


def no_rule(operation: Operation, what: str, advice: str) -> NoRuleError:
    """The error for an operation that a transform cannot take, in JAX's words; `located` adds the user's line."""
    return NoRuleError(f"{what} '{operation.primitive.name}' not implemented. {advice}")


def refuse_reference(operation: Operation, what: str) -> None:
    """Raises the error for an operation on a mutable reference for which only JAX has a rule, which only works on its
    tracers."""
    if compat.touches_ref(operation):
        advice = (
            "jaxviz does not differentiate this operation on a mutable reference: read the reference before, and write "
            "it afterwards, or use jax's own transforms."
        )
        raise no_rule(operation, what, advice)


def check_differentiable(operation: Operation) -> None:
    """Raises the error for an operation that has no derivative rule, or that waits for one of ours."""
    refuse_reference(operation, "Differentiation rule for")
    if not compat.has_linearize_rule(operation.primitive):
        raise no_rule(operation, "Differentiation rule for", "Define one with jax.interpreters.ad.primitive_jvps.")


def refused_forward(equation: Equation) -> ForwardModeError:
    """The error for forward mode through a function with a custom VJP rule, from the `custom_lin` that represents its
    derivative."""
    whose = equation.origin.rule.removeprefix("custom VJP rule of ") if equation.origin is not None else "a function"
    error = ForwardModeError(
        f"can't apply forward-mode autodiff (jvp) to a custom_vjp function. {whose} has only a reverse-mode rule: use "
        "jax.vjp or jax.grad, or define its rule with jax.custom_jvp."
    )
    error.trail.append(describe_equation(equation))
    return error


_DERIVING = "Raised while deriving"


class located:
    """Iterates over equations, and adds to an error at which of them it occurred.

    >>> with located(enumerate(program.equations)) as equations:
    ...     for index, equation in equations:
    ...         ...
    """

    __slots__ = ("current", "equations")

    def __init__(self, equations: Iterable[tuple[int, Equation]]):
        self.equations = equations
        self.current: tuple[int, Equation] | None = None

    def __enter__(self) -> Iterator[tuple[int, Equation]]:
        return self._remembering()

    def _remembering(self) -> Iterator[tuple[int, Equation]]:
        for current in self.equations:
            self.current = current
            yield current

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and self.current is not None:
            _locate_error(error, *self.current)


def _locate_error(error: Exception, index: int, equation: Equation) -> None:
    """Adds to an error where it occurred: the equation, and what encloses it until there is a line of the user's, and
    not of a library.

    Other errors than the engine's, such as one raised in a user's rule, get the same as a note.
    """
    place = describe_equation(equation, index)
    has_line = locate(equation.source) is not None
    is_users = has_line and (own_line(equation.source) is not None or library_line(equation.source) is None)
    if isinstance(error, EquationError):
        error.equation = error.equation or equation
        if not error.is_placed:
            error.trail.append(place)
            error.is_placed = is_users
    elif has_line and not any(note.startswith(_DERIVING) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_DERIVING} {place}.")


def values_of_tangents(
    tangent: Mapping[Atom, Atom], primal: Mapping[Atom, Atom], results: Sequence[Atom]
) -> dict[Var, Shared]:
    """Maps each tangent to the values that it is the tangent of; see `Program.tangents`.

    Args:
      tangent: maps the variables of the program before the transform to their tangents.
      primal: maps those variables that have changed to their new ones.
      results: results of the program before the transform.
    """
    returned = frozenset(results)
    sharing: dict[Var, list[Atom]] = {}
    for v, t in tangent.items():
        if isinstance(t, Var):
            sharing.setdefault(t, []).append(v)
    return {
        t: Shared(tuple([primal.get(v, v) for v in vs]), tuple(vs), returned.intersection(vs))
        for t, vs in sharing.items()
    }


def relations_of_values(
    primal: Mapping[Atom, Atom],
    tangent: Mapping[Atom, Atom],
    builder: Builder,
    residuals: Mapping[Atom, Var] | None = None,
) -> Relations:
    """How the variables of a program that has been pushed forward relate to those before; see `Program.relations`.

    Args:
      primal, tangent: the new variables of the earlier ones, and their tangents.
      builder: of the program.
      residuals: the values of the residuals among its inputs.
    """
    for v, a in primal.items():
        if a is not v:
            yield a, "value", v
    for a, residual in (residuals or {}).items():
        if a is not residual:
            yield residual, "value", a
    for v, t in tangent.items():
        yield t, "tangent", v
    yield from builder.relations()


def call_of(operation: Operation) -> Program:
    """The program that applies an operation to its inputs."""
    builder = Builder()
    invars = [Var(a) for a in operation.in_avals]
    return builder.program(invars, builder.apply(operation, invars))


def reordered(program: Program, order: Sequence[int]) -> Program:
    """The program with its inputs in another order."""
    info = compat.derived_debug_info(program.debug_info, [""] * len(order), len(program.outvars))
    places = [0] * len(order)
    for new, old in enumerate(order):
        places[old] = new
    effects = compat.moved_effects(program.effects, places)
    return replace(program, invars=tuple([program.invars[i] for i in order]), effects=effects, debug_info=info)


def with_constants_as_inputs(program: Program, **changes: Any) -> Program:
    """The program with its constants as additional first inputs.

    Args:
      program: the program.
      **changes: other fields to change.
    """
    invars = (*program.constvars, *program.invars)
    effects = program_effects(program.equations, invars)
    return replace(program, constvars=(), consts=(), invars=invars, effects=effects, **changes)


def with_refs_as_inputs(program: Program) -> tuple[Program, dict[Var, Any]]:
    """The program with the references that it closes over, as a custom rule may, and values of mutable hi types, as
    additional first inputs; and these, with their values.

    Inside another program JAX would not compile a reference as a constant, or would lose what is written to it.
    """
    constants = dict(zip(program.constvars, program.consts, strict=True))
    refs = {v: x for v, x in constants.items() if compat.is_mutable(v.aval)}
    if not refs:
        return program, refs
    others = {v: x for v, x in constants.items() if v not in refs}
    invars = (*refs, *program.invars)
    info = compat.derived_debug_info(program.debug_info, [""] * len(invars), len(program.outvars))
    taking = replace(
        program,
        constvars=tuple(others),
        consts=tuple(others.values()),
        invars=invars,
        effects=program_effects(program.equations, invars),
        debug_info=info,
    )
    return taking, refs


def with_results(program: Program, outvars: Sequence[Atom]) -> Program:
    """The program with other results."""
    info = compat.derived_debug_info(program.debug_info, program.arg_names, len(outvars))
    return replace(program, outvars=tuple(outvars), debug_info=info)


def reordered_inputs(program: Program, invars: Sequence[Var]) -> Program:
    """The program with its inputs replaced by these, which include all that it reads."""
    info = compat.derived_debug_info(program.debug_info, [""] * len(invars), len(program.outvars))
    effects = program_effects(program.equations, invars)
    return replace(program, invars=tuple(invars), effects=effects, debug_info=info)


def partition(items: Sequence[Any], *sizes: int) -> list[Any]:
    """Splits a sequence into parts with these lengths, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(items[start : start + size])
        start += size
    return [*parts, items[start:]]


def either(x: Sequence[bool], y: Sequence[bool]) -> Mask:
    return tuple([a or b for a, b in zip(x, y, strict=True)])


def fixpoint(start: Sequence[bool], step: Callable[[Mask], T], added: Callable[[T], Sequence[bool]]) -> tuple[T, Mask]:
    """Repeats a step, with a mask to which each adds, until one adds nothing; returns its result, and the mask.

    Args:
      start: the mask to start with.
      step: takes the mask, and returns a result.
      added: what that result adds to the mask.
    """
    mask = tuple(start)
    while True:
        result = step(mask)
        grown = either(mask, added(result))
        if grown == mask:
            return result, mask
        mask = grown


def select(mask: Sequence[bool], items: Sequence[Any]) -> tuple[Any, ...]:
    """The items where the mask is true."""
    return tuple([x for x, keep in zip(items, mask, strict=True) if keep])
