"""Partial evaluation: `(a1, a2) → (b1, b2)`, where only a1 is known, becomes known `a1 → (b1, residuals)` and staged
`(residuals, a2) → b2`.

The known part runs now, the staged part when the rest of the inputs is there. Everything that JAX splits is split here:
JVP rules into two halves, loop bodies into what is the same in each iteration and what is not, checkpointed functions
into what is saved and what is recomputed.

There are two modes, as in JAX. Without a policy, known equations are evaluated now, and known values that are read
later are residuals. With a checkpoint policy, known inputs may also be available later, and the policy decides about
each known equation; see `policy.py`.

Source: `JaxprTrace` and `partial_eval_jaxpr_custom` in JAX's `interpreters/partial_eval.py`; where the unknown inputs
are tangents, this is the unzipping of "You Only Linearize Once" (see `linearize.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxviz.ir import compat
from jaxviz.ir.errors import NoRuleError
from jaxviz.ir.syntax import Atom, Checkpoint, Decision, Equation, Literal, Program, Var
from jaxviz.transforms.driver import Builder, either, fixpoint, located, select
from jaxviz.transforms.policy import divide, in_force
from jaxviz.transforms.primitive import of
from jaxviz.transforms.split_rules import SplitOptions, SplitProgram, split_rules


def split_program(program: Program, unknown: Sequence[bool], options: SplitOptions | None = None) -> SplitProgram:
    """Splits a program by which of its inputs are unknown until later.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    options = options or SplitOptions()
    refs: list[Var] = []
    if options.policy is None and compat.makes_refs(program.effects):
        refs = [v for e in program.equations for v in e.outvars if compat.is_mutable(v.aval)]
    # A reference that the staged part uses too is made there. JAX makes it now: in a loop then only once, with what
    # earlier iterations wrote.
    parts, _ = fixpoint(
        [False] * len(refs),
        lambda is_staged: _Splitter(program, unknown, options, select(is_staged, refs)).split(),
        lambda parts: [v in parts.residuals for v in refs],
    )
    return parts


_MUTATED = (
    "Mutating a reference with unknown/differentiated values is not supported. Under jax.checkpoint, make the "
    "reference outside and pass it in, or make it of a value that is differentiated: jax.new_ref(x * 0.0) instead of "
    "zeros."
)


class _Splitter:
    """The known and the staged part under construction, and the counterparts of the program's values in each."""

    def __init__(self, program: Program, unknown: Sequence[bool], options: SplitOptions, staged_refs: Sequence[Var]):
        self.program, self.options = program, options
        self.known_inputs = select([not u for u in unknown], program.invars)
        self.staged_inputs = select(options.available or unknown, program.invars)
        self.known = Builder(program.constvars, program.consts)
        self.staged = Builder(program.constvars, program.consts) if options.policy is not None else Builder()
        self.unknown: set[Atom] = {*select(unknown, program.invars), *staged_refs}
        self.in_known: dict[Atom, Atom] = {}
        """The counterparts in the known part of values that have another variable there."""
        self.in_staged: dict[Atom, Atom] = {v: v for v in (*self.staged_inputs, *self.staged.constvars)}
        """The counterparts in the staged part of what it has without a residual."""
        self.residuals: dict[Atom, Var] = {}
        """Values of the known part, with the inputs of the staged part that take them."""
        self.decisions: list[Decision] = []
        self.checkpoints: list[Checkpoint] = []

    def split(self) -> SplitProgram:
        by_policy = self.options.policy is not None
        with located(enumerate(self.program.equations)) as equations:
            for _, equation in equations:
                is_known = self.unknown.isdisjoint(equation.invars) and self.unknown.isdisjoint(equation.outvars)
                is_opened = of(equation).splits_by_policy if by_policy else not is_known
                if is_opened and equation.primitive in split_rules.own:
                    self.apply_rule(equation)
                elif is_known:
                    self.evaluate(equation)
                else:
                    if by_policy:
                        self.check_writes(equation)
                    self.stage(equation)
                    self.unknown.update(equation.outvars)
        return self.finish()

    def check_writes(self, equation: Equation) -> None:
        """Raises JAX's error if a checkpoint writes something unknown to a reference that it makes, and reads, now."""
        if any(equation.invars[i] not in self.unknown for i in compat.written_refs(equation.effects)):
            raise NoRuleError(_MUTATED)

    def evaluate(self, equation: Equation) -> None:
        """Adds an equation to the known part; a policy decides whether the staged part has its results, too."""
        invars = tuple([self.in_known.get(a, a) for a in equation.invars])
        evaluated = equation if invars == equation.invars else replace(equation, invars=invars)
        if self.options.policy is None:
            self.known.equations.append(evaluated)
            return
        decision, known, later = divide(self.options.policy, equation, evaluated, self.options.transform)
        self.known.equations += known
        if later is not None:
            self.stage(later)
        self.decisions.append(decision)

    def stage(self, equation: Equation) -> None:
        """Adds an equation to the staged part."""
        invars = tuple([self.read_staged(a) for a in equation.invars])
        staged = Equation(equation.operation, invars, equation.outvars, equation.source, equation.origin)
        self.staged.equations.append(staged)
        self.in_staged.update(zip(equation.outvars, equation.outvars, strict=True))

    def apply_rule(self, equation: Equation) -> None:
        """Copies the two parts of an equation's rule into those of the program."""
        options, operands, outvars = self.options, equation.invars, equation.outvars
        unknown = tuple([a in self.unknown for a in operands])
        available = None if options.policy is None else tuple([self.is_available(a) for a in operands])
        policy = None if options.policy is None else in_force(options.policy, equation)
        rule = split_rules(equation.operation, unknown, available, policy)
        came_from = None if options.is_rule else equation
        role = equation.origin.role if equation.origin is not None else "primal"

        ins = [self.in_known.get(a, a) for a, u in zip(operands, unknown, strict=True) if not u]
        known_out = select([not u for u in rule.unknown_out], outvars)
        outs = self.known.splice_as(known_out, rule.known, ins, came_from, options.transform, rule.name, role)
        self.in_known.update(zip(known_out, outs, strict=False))
        n, role = len(operands), options.staged_role or role
        ins = [self.read_staged(operands[i]) if i < n else self.saved_by(outs[i - n]) for i in rule.staged_in]
        staged_out = select(rule.available_out, outvars)
        outs = self.staged.splice_as(staged_out, rule.staged, ins, came_from, options.transform, rule.name, role)
        self.in_staged.update(zip(staged_out, outs, strict=True))
        self.unknown.update(select(rule.unknown_out, outvars))
        self.decisions += [replace(d, within=(equation, *d.within)) for d in rule.decisions]
        self.checkpoints += rule.checkpoints

    def read_staged(self, atom: Atom) -> Atom:
        """The counterpart of a value in the staged part: one that it has, or a residual."""
        if atom in self.in_staged:
            return self.in_staged[atom]
        return self.residual(self.in_known.get(atom, atom))

    def residual(self, atom: Atom) -> Atom:
        """The input of the staged part for a value of the known part; a constant is written in place."""
        if self.is_constant(atom):
            return atom
        return self.residuals.setdefault(atom, atom if isinstance(atom, Var) else atom.renewed())

    def saved_by(self, atom: Atom) -> Atom:
        """The same for a value that a rule saves, even if the staged part has it, as when it is an operand."""
        if isinstance(atom, Var) and atom not in self.residuals and self.in_staged.get(atom) is atom:
            self.residuals[atom] = atom.renewed()
        return self.residual(atom)

    def is_available(self, atom: Atom) -> bool:
        return atom in self.in_staged or self.is_constant(atom)

    def is_constant(self, atom: Atom) -> bool:
        return isinstance(atom, Literal) and not (self.options.is_rule and atom.held)

    def finish(self) -> SplitProgram:
        options, outvars = self.options, self.program.outvars
        nothing = [False] * len(outvars)
        unknown_out = either([a in self.unknown for a in outvars], options.ensure_unknown or nothing)
        available_out = unknown_out
        if options.policy is not None:
            available_out = either([self.is_available(a) for a in outvars], options.ensure_available or nothing)
        staged_results = [self.read_staged(a) for a in select(available_out, outvars)]
        known_results = [self.in_known.get(a, a) for a, u in zip(outvars, unknown_out, strict=True) if not u]
        known = self.known.part(self.program, self.known_inputs, [*known_results, *self.residuals])
        inputs = [*self.residuals.values(), *self.staged_inputs]
        staged = replace(self.staged.part(self.program, inputs, staged_results), tangents=self.program.tangents)
        residuals, decisions, checkpoints = tuple(self.residuals), tuple(self.decisions), tuple(self.checkpoints)
        return SplitProgram(known, staged, residuals, unknown_out, available_out, decisions, checkpoints)
