"""Partial evaluation: splits a program some of whose inputs are unknown until later into a part that runs now and a part that runs later.

The part that runs now, `known`, reads only the known inputs; the part that runs later, `staged`, reads residuals of it and the rest.
Everything that JAX splits is split here: JVP rules into two halves, loop bodies into what is the same in each iteration and what is not,
checkpointed functions into what is saved and what is recomputed.

There are two modes, as in JAX. Without a policy, known equations are evaluated now, and known values that are read later are residuals.
With a checkpoint policy, known inputs may also be available later, and the policy decides for each known equation whether its results are
saved for later, recomputed, or moved to another memory in between.

Source: `JaxprTrace` and `partial_eval_jaxpr_custom` in JAX's `interpreters/partial_eval.py`; where the unknown inputs are tangents, this is
the unzipping of "You Only Linearize Once" (see `linearize.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation, write_params
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import (
    Atom,
    Checkpoint,
    Decision,
    DropVar,
    Equation,
    Literal,
    Operation,
    Origin,
    Program,
    Relations,
    Role,
    Var,
    unrelated,
)
from jaxviz.transforms.driver import Builder, Mask, RuleTable, Template, located, select
from jaxviz.transforms.primitive import of

Policy = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How an operation with nested programs is split.

    Args:
      known: known operands → known results, then residuals.
      staged: the values listed in `staged_in` → the results that are available later.
      staged_in: for each input of `staged`, its position in `(*operands, *outputs of known)`.
      unknown_out: which results are unknown until later.
      available_out: which results `staged` returns.
      name: a name for messages.
      decisions: what the policy decided for the nested equations.
      checkpoints: nested checkpointed functions, if there is no policy.
    """

    known: Template
    staged: Template
    staged_in: tuple[int, ...]
    unknown_out: Mask
    available_out: Mask
    name: str
    decisions: tuple[Decision, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """A program split in two.

    Args:
      known: known inputs → known results, residuals.
      staged: residuals, available inputs → available results.
      residuals: the last results of `known`, in the order in which `staged` takes them.
      unknown_out: which results are unknown until later.
      available_out: which results `staged` returns.
      decisions: what the policy decided for the equations.
      checkpoints: nested checkpointed functions, if there is no policy.
    """

    known: Program
    staged: Program
    residuals: tuple[Atom, ...]
    unknown_out: Mask
    available_out: Mask
    decisions: tuple[Decision, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def known_results(self) -> tuple[Atom, ...]:
        return self.known.outvars[: len(self.known.outvars) - len(self.residuals)]


def _no_rule(operation: Operation, *_: Any) -> SplitRule:
    raise NotImplementedError(operation.primitive)


split_rules: RuleTable[SplitRule] = RuleTable("split", _no_rule)
"""Key: operation, which operands are unknown, which are available later (None without a policy), the policy or None.

For operations that hold programs; any other goes whole to one part or to both."""


def split_program(
    program: Program,
    unknown: Sequence[bool],
    available: Sequence[bool] | None = None,
    ensure_unknown: Sequence[bool] | None = None,
    ensure_available: Sequence[bool] | None = None,
    policy: Policy | None = None,
    transform: str = "linearize",
    is_rule: bool = False,
    later_role: Role | None = "tangent",
) -> Split:
    """Splits a program by which of its inputs are unknown until later.

    Args:
      program: the program to split.
      unknown: for each input, whether it is unknown until later.
      available: with a policy, for each input whether it is available later; unknown ones are.
      ensure_unknown: for each result, whether it is to be unknown.
      ensure_available: with a policy, for each result whether `staged` has to return it.
      policy: a checkpoint policy.
      transform: the transform that asks, for the origins of new equations.
      is_rule: whether the program is a rule, whose equations get their origins where it is applied.
      later_role: the role of the unknown part of an equation that is split; None for the role of the equation.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    if policy is None or available is None:
        splitter = _Splitter(program, unknown, unknown, transform, is_rule, later_role)
        if compat.makes_refs(program.effects):
            splitter.unknown.update(_refs_made_later(program, splitter.unknown))
    else:
        splitter = _PolicySplitter(policy, program, unknown, available, transform, is_rule, later_role)
    with located(enumerate(program.equations)) as equations:
        for _, equation in equations:
            splitter.split(equation)
    n = len(program.outvars)
    return splitter.finish(ensure_unknown or (False,) * n, ensure_available or (False,) * n)


def _refs_made_later(program: Program, unknown: set[Atom]) -> set[Var]:
    """The references that a program makes and that an equation uses whose other operands are unknown until later.

    They are made later too, even from known values. JAX makes them now: in a loop then only once, with what earlier iterations wrote.
    """
    found: set[Var] = set()
    while True:
        later = {*unknown, *found}
        for e in program.equations:
            if not later.isdisjoint(e.invars):
                later.update(*_parts_made_later(e, later))
        grown = {v for e in program.equations for v in e.outvars if v in later and compat.is_mutable(v.aval)}
        if grown == found:
            return found
        found = grown


def _parts_made_later(e: Equation, later: set[Atom]) -> tuple[Sequence[Atom], Sequence[Atom]]:
    """The results of an equation that are unknown until later, and the references that its staged part uses."""
    references = [a for a in e.invars if compat.is_mutable(a.aval)]
    if e.primitive not in split_rules.own:
        return e.outvars, references
    unknown = tuple([a in later for a in e.invars])
    rule = split_rules(e.operation, unknown, None, None)
    known = rule.known.program  # which may return an operand as it is
    operand: dict[Atom, Atom] = dict(zip(known.invars, select([not u for u in unknown], e.invars), strict=True))
    values = [*e.invars, *(operand.get(a, a) for a in known.outvars)]
    read = {values[i] for i in rule.staged_in}
    return select(rule.unknown_out, e.outvars), [a for a in references if a in read]


class _Splitter:
    """The state of one split: the two programs under construction, and the variables' counterparts in them."""

    def __init__(
        self, program: Program, unknown: Sequence[bool], available: Sequence[bool], transform: str, is_rule: bool,
        later_role: Role | None,
    ):  # fmt: skip
        self.program = program
        self.transform = transform
        self.is_rule = is_rule
        self.later_role = later_role
        self.unknown: set[Atom] = set(select(unknown, program.invars))
        self.available: set[Atom] = set(select(available, program.invars))
        """What the staged part has other than residuals."""
        self.inputs_now = select([not u for u in unknown], program.invars)
        self.inputs_later = select(available, program.invars)
        self.now = Builder(program.constvars, program.consts)
        self.later = Builder()
        self.value_now: dict[Atom, Atom] = {}
        self.value_later: dict[Atom, Atom] = {}
        self.residuals: dict[Atom, Var] = {}
        """The residuals of the known part, with the inputs of the staged part that take them."""
        self.decisions: list[Decision] = []
        self.checkpoints: list[Checkpoint] = []

    def is_available(self, atom: Atom) -> bool:
        return atom in self.available or (isinstance(atom, Literal) and not self.is_held(atom))

    def is_held(self, literal: Literal) -> bool:
        """Whether a constant is an array that the known part makes; inside a body it is part of the compiled code."""
        return self.is_rule and literal.held

    def read_later(self, atom: Atom) -> Atom:
        """The counterpart of a value in the staged part: itself, or a residual."""
        if self.is_available(atom):
            return self.value_later.get(atom, atom)
        return self.keep(self.value_now.get(atom, atom))

    def keep(self, atom: Atom) -> Atom:
        """The input of the staged part for a value of the known part."""
        if isinstance(atom, Literal):
            if not self.is_held(atom):
                return atom
            return self.residuals.setdefault(atom, Var(atom.aval))
        return self.residuals.setdefault(atom, atom)

    def split(self, equation: Equation) -> None:
        is_known = self.unknown.isdisjoint(equation.invars) and self.unknown.isdisjoint(equation.outvars)
        if self.has_rule(equation.operation, is_known):
            self.split_by_rule(equation)
        elif is_known:
            self.add_known(equation)
        else:
            self.add_later(equation, equation.origin)
            self.unknown.update(equation.outvars)
            self.available.update(equation.outvars)

    def has_rule(self, operation: Operation, is_known: bool) -> bool:
        return not is_known and operation.primitive in split_rules.own

    def add_known(self, equation: Equation) -> None:
        self.now.equations.append(_with_inputs(equation, self.read_now(equation)))

    def read_now(self, equation: Equation) -> tuple[Atom, ...]:
        """The operands of a known equation in the known part."""
        value = self.value_now
        return tuple([value.get(a, a) for a in equation.invars]) if value else equation.invars

    def add_later(self, equation: Equation, origin: Origin | None) -> None:
        value, available = self.value_later, self.available
        ins = tuple([value.get(a, a) if a in available else self.read_later(a) for a in equation.invars])
        self.later.equations.append(Equation(equation.operation, ins, equation.outvars, equation.source, origin))

    def rule(self, equation: Equation, unknown: Mask) -> SplitRule:
        return split_rules(equation.operation, unknown, None, None)

    def split_by_rule(self, equation: Equation) -> None:
        unknown = tuple([a in self.unknown for a in equation.invars])
        rule = self.rule(equation, unknown)
        came_from = None if self.is_rule else equation
        own_role: Role = equation.origin.role if equation.origin is not None else "primal"
        ins = [self.value_now.get(a, a) for a, u in zip(equation.invars, unknown, strict=True) if not u]
        start = len(self.now.equations)
        outs = self.now.splice(rule.known, ins, came_from, self.transform, rule.name, own_role)
        outs = _in_place_of(
            outs, dict(zip(outs, select([not u for u in rule.unknown_out], equation.outvars), strict=False)),
            self.now.equations[start:],
        )  # fmt: skip
        n_in = len(equation.invars)
        later = [self.read_later(equation.invars[i]) if i < n_in else self.keep(outs[i - n_in]) for i in rule.staged_in]
        role = self.later_role or own_role
        start = len(self.later.equations)
        made = self.later.splice(rule.staged, later, came_from, self.transform, rule.name, role)
        is_new = select(rule.available_out, rule.unknown_out)
        unknown_results = {
            a: v for a, v, new in zip(made, select(rule.available_out, equation.outvars), is_new, strict=True) if new
        }
        given = iter(_in_place_of(made, unknown_results, self.later.equations[start:]))
        known = iter(outs)
        for v, is_unknown, is_available in zip(equation.outvars, rule.unknown_out, rule.available_out, strict=True):
            if is_unknown:
                self.unknown.add(v)
            else:
                self.value_now[v] = next(known)
            if is_available:
                self.value_later[v] = next(given)
                self.available.add(v)
        self.decisions += [replace(d, within=(equation, *d.within)) for d in rule.decisions]
        self.checkpoints += rule.checkpoints

    def finish(self, ensure_unknown: Sequence[bool], ensure_available: Sequence[bool]) -> Split:
        program = self.program
        unknown_out = tuple(a in self.unknown or e for a, e in zip(program.outvars, ensure_unknown, strict=True))
        available_out = self.available_out(unknown_out, ensure_available)
        results_later = [self.read_later(a) for a in select(available_out, program.outvars)]
        results_now = [self.value_now.get(a, a) for a, u in zip(program.outvars, unknown_out, strict=True) if not u]
        residuals = tuple(self.residuals)
        known = self.finished(self.now, self.inputs_now, [*results_now, *residuals])
        staged = self.finished(self.later, [*self.residuals.values(), *self.inputs_later], results_later)
        if not self.is_rule:
            staged = replace(staged, tangents=program.tangents)
        return Split(
            known, staged, residuals, unknown_out, available_out, tuple(self.decisions), tuple(self.checkpoints)
        )

    def available_out(self, unknown_out: Mask, ensure_available: Sequence[bool]) -> Mask:
        return unknown_out

    def finished(self, builder: Builder, invars: Sequence[Var], results: Sequence[Atom]) -> Program:
        """One of the two parts; a rule has no names."""
        program = self.program
        names = [""] * len(invars)
        info = compat.derived_debug_info(program.debug_info, names, len(results)) if not self.is_rule else None
        made = builder.program(invars, results, info)
        if program.relations is unrelated:
            return made
        return replace(made, relations=cache(partial(_of_part, program, made, builder)))


class _PolicySplitter(_Splitter):
    """A split with a checkpoint policy, which decides about each known equation; what it does not save is still available later."""

    def __init__(self, policy: Policy, program: Program, *others: Any):
        super().__init__(program, *others)
        self.policy = policy
        self.later = Builder(program.constvars, program.consts)
        self.available.update(program.constvars)

    def has_rule(self, operation: Operation, is_known: bool) -> bool:
        return operation.primitive in split_rules.own and of(operation).splits_by_policy

    def rule(self, equation: Equation, unknown: Mask) -> SplitRule:
        available = tuple([self.is_available(a) for a in equation.invars])
        return split_rules(equation.operation, unknown, available, self.policy_about(equation))

    def policy_about(self, equation: Equation) -> Policy:
        """The policy, or the one that JAX follows inside a custom rule."""
        origin = equation.origin
        in_rule = origin is not None and origin.equation is not None and compat.has_user_rule(origin.equation.primitive)
        return compat.policy_in_rules(self.policy) if in_rule else self.policy

    def available_out(self, unknown_out: Mask, ensure_available: Sequence[bool]) -> Mask:
        return tuple(self.is_available(a) or e for a, e in zip(self.program.outvars, ensure_available, strict=True))

    def add_known(self, equation: Equation) -> None:
        here = _with_own_origin(equation, self.read_now(equation))
        self.now.equations.append(here)
        self.ask_policy(equation, here)

    def ask_policy(self, equation: Equation, here: Equation) -> None:
        """Records and applies the policy's decision on an equation, which is `here` in the known part."""
        operation = equation.operation
        verdict = compat.decide(
            self.policy_about(equation), operation.primitive, operation.in_avals, write_params(operation)
        )
        if any(compat.is_real_effect(e) for e in operation.effects):
            verdict = "saved"  # effects are not repeated, whatever the policy says
        if compat.touches_ref(operation) and compat.runs_again(one_equation(operation).eqns[0]):
            verdict = "recomputed"  # except that JAX reads and writes a reference in both passes
        if verdict == "saved":
            self.decisions.append(Decision(here, "saved"))
        elif verdict == "recomputed":
            self.decisions.append(Decision(here, "recomputed"))
            self.add_later(equation, self.recomputation(here))
            self.available.update(equation.outvars)
        else:
            self.decisions.append(Decision(here, "offloaded"))
            self.offload(equation, *verdict)

    def recomputation(self, equation: Equation) -> Origin | None:
        return Origin(equation, self.transform, "recomputed in the backward pass", "recomputation")

    def offload(self, equation: Equation, source: str, destination: str) -> None:
        """Moves the results to another kind of memory, and back where the staged part starts."""
        types = tuple([compat.in_memory(v.aval, destination) for v in equation.outvars])
        parked = tuple([Var(t) for t in types])
        operation = equation.operation
        for builder, kind, ins, outs, rule in (
            (self.now, destination, equation.outvars, parked, f"offloaded to {destination}"),
            (self.later, source, parked, equation.outvars, f"brought back from {destination}"),
        ):
            move = make_operation(
                compat.device_put_p, compat.move_params(kind, len(ins)), tuple([v.aval for v in ins]),
                tuple([v.aval for v in outs]), frozenset(), operation.context,
            )  # fmt: skip
            origin = Origin(equation, self.transform, rule, "residual")
            builder.equations.append(Equation(move, tuple(ins), tuple(outs), equation.source, origin))
        self.residuals.update(zip(parked, parked, strict=True))
        self.available.update(equation.outvars)


def _of_part(program: Program, part: Program, builder: Builder) -> Relations:
    """The relations between variables that a part inherits from its program, and from what was copied into it."""
    own = {*part.invars, *part.constvars, *(v for e in part.equations for v in e.outvars)}
    here = [found for found in program.relations() if found[0] in own]
    return tuple(dict.fromkeys([*here, *builder.relations()]))


def _in_place_of(made: list[Atom], variables: Mapping[Atom, Var], equations: Sequence[Equation]) -> list[Atom]:
    """Gives results the variables that they had, as for an equation that is not split.

    Args:
      made: the results.
      variables: the variables that some of them had.
      equations: the new equations, which are changed.
    """
    here = {v for e in equations for v in e.outvars}
    renamed: dict[Atom, Var] = {a: v for a, v in variables.items() if a in here and not isinstance(v, DropVar)}
    for e in equations if renamed else ():
        e.invars = tuple([renamed.get(a, a) for a in e.invars])
        e.outvars = tuple([renamed.get(v, v) for v in e.outvars])
    return [renamed.get(a, a) for a in made]


def _with_inputs(equation: Equation, ins: tuple[Atom, ...]) -> Equation:
    if ins is equation.invars or all(a is b for a, b in zip(ins, equation.invars, strict=True)):
        return equation
    return Equation(equation.operation, ins, equation.outvars, equation.source, equation.origin)


def _with_own_origin(equation: Equation, ins: tuple[Atom, ...]) -> Equation:
    """A copy whose origin is not shared with other equations of its rule, so that later copies of it can be identified."""
    o = equation.origin
    own = Origin(o.equation, o.transform, o.rule, o.role) if o is not None else None
    return Equation(equation.operation, ins, equation.outvars, equation.source, own)


def recomputed(program: Program, transform: str) -> Program:
    """The program with its equations marked as done once more, in the backward pass."""
    rule = "recomputed in the backward pass"
    equations = tuple(
        replace(
            e, source=compat.in_scope(e.source, compat.RECOMPUTED), origin=Origin(e, transform, rule, "recomputation")
        )
        for e in program.equations
    )
    return replace(program, equations=equations, relations=partial(_copied, program))


def _copied(program: Program) -> Relations:
    """Marks values copied from a program as values of that program."""
    for v in (*program.invars, *(v for e in program.equations for v in e.outvars)):
        yield v, "value", v
    yield from program.relations()
