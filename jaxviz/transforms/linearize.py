"""Linearize: `a → b` becomes forward `a → (b, residuals)` and linear `(residuals, T a) ⊸ T b`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxviz.ir import compat
from jaxviz.ir.convert import one_equation, read_jaxpr, write_params
from jaxviz.ir.errors import EquationError
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Origin, Program, Var
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    RuleTable,
    Template,
    check_differentiable,
    located,
    roles_by_use,
)


@dataclass(frozen=True, slots=True)
class LinearizeRule:
    """How one operation is linearized.

    Args:
      primal: operands → results, then residuals that are neither operands nor results.
      linear: residuals, nonzero tangents of operands → nonzero tangents of results.
      residuals: for each residual that `linear` takes, its place in `(*operands, *outputs of primal)`.
      nonzeros_out: which results have a tangent that is not a symbolic zero.
      name: for people.
    """

    primal: Template
    linear: Template
    residuals: tuple[int, ...]
    nonzeros_out: Mask
    name: str


@dataclass(frozen=True, slots=True)
class Linearized:
    """A linearized program.

    Args:
      forward: inputs → results, residuals.
      linear: residuals, nonzero tangents → nonzero tangents of the results.
      residuals: the values of `forward` that `linear` takes, in its order: inputs, constants, held literals or intermediates.
      nonzeros_out: which results have a tangent that is not a symbolic zero.
      tangent_of: from a variable of `linear` to the value of `forward` that it is the tangent of.
    """

    forward: Program
    linear: Program
    residuals: tuple[Atom, ...]
    nonzeros_out: Mask
    tangent_of: Mapping[Var, Atom]


def jax_rule(operation: Operation, nonzeros: Mask) -> LinearizeRule:
    """The rule that `jax.vjp` uses for an operation, as two programs."""
    name = f"jvp rule of {operation.primitive.name}"
    rule = _split_jvp_rule(operation, nonzeros, name) if compat.has_plain_jvp_rule(operation.primitive) else None
    if rule is not None:
        return rule
    primal, n_res, nonzeros_out, forwarded, linear = compat.linearize_jaxpr(one_equation(operation), nonzeros)
    primal, linear = read_jaxpr(primal), read_jaxpr(linear)
    n_out = len(primal.outvars) - n_res
    computed = iter(primal.outvars[n_out:])
    sources = [next(computed) if i is None else primal.invars[i] for i in forwarded]
    return rule_of(primal, n_out, sources, linear, tuple(nonzeros_out), name)


def rule_of(
    primal: Program, n_out: int, residuals: Sequence[Atom], linear: Program, nonzeros_out: Mask, name: str
) -> LinearizeRule:
    """The rule whose residuals are these values of `primal`; one that is an operand or a result is not given twice."""
    places: dict[Atom, int] = {}
    for i, a in enumerate((*primal.invars, *primal.outvars)):
        places.setdefault(a, i)
    return LinearizeRule(
        Template(primal, roles_by_use(primal, n_out, "primal", "residual")),
        Template(linear, ["tangent"] * len(linear.equations)),
        tuple(places[a] for a in residuals),
        nonzeros_out,
        name,
    )


def _split_jvp_rule(operation: Operation, nonzeros: Mask, name: str) -> LinearizeRule | None:
    """Partial evaluation of a JVP rule: what depends on a tangent goes to `linear`, all else to `primal`.

    None if the rule calls a jitted function with tangents and other values mixed: JAX splits such a call in two.

    Source: `linearize_from_jvp` in JAX's `ad.py`, which does the same with tracers.
    """
    params = write_params(operation.params)
    jaxpr, held, given = compat.trace_jvp_rule(
        operation.primitive, params, operation.in_avals, nonzeros, operation.context
    )
    rule = read_jaxpr(jaxpr, {id(x) for x in held})
    n_in, n_out = len(operation.in_avals), len(operation.out_avals)
    tangents_in = rule.invars[n_in:]
    unknown: set[Atom] = set(tangents_in)
    for e in rule.equations:
        if not unknown.isdisjoint(e.invars):
            unknown.update(e.outvars)
    tangents_out = iter(rule.outvars[n_out:])
    out = [next(tangents_out) if nz else None for nz in given]
    nonzeros_out = tuple(t in unknown for t in out)  # a tangent that depends on none is a zero, though written out
    whole = replace(rule, outvars=tuple(t for t in out if t is not None and t in unknown))
    staged, _ = dce_program(whole)
    linear_equations = [e for e in staged.equations if not unknown.isdisjoint(e.invars)]
    if any(e.programs and not unknown.issuperset(e.invars) for e in linear_equations):
        return None
    residuals: dict[Atom, Var] = {}
    for a in (a for e in linear_equations for a in e.invars if a not in unknown):
        if isinstance(a, Var) or a.held:
            residuals.setdefault(a, Var(a.aval))
    linear_equations = [replace(e, invars=tuple(residuals.get(a, a) for a in e.invars)) for e in linear_equations]
    linear = Program((), (*residuals.values(), *tangents_in), staged.outvars, tuple(linear_equations))
    results = rule.outvars[:n_out]
    known = {*rule.invars[:n_in], *results}
    computed = [a for a in residuals if a not in known]
    primal, _ = dce_program(replace(rule, invars=rule.invars[:n_in], outvars=(*results, *computed), equations=tuple(
        e for e in rule.equations if unknown.isdisjoint(e.invars)
    )))  # fmt: skip
    return rule_of(primal, n_out, tuple(residuals), linear, nonzeros_out, name)


def _default_rule(operation: Operation, nonzeros: Mask) -> LinearizeRule:
    check_differentiable(operation)
    return jax_rule(operation, nonzeros)


linearize_rules: RuleTable[LinearizeRule] = RuleTable("linearize", _default_rule)
"""Key: operation, which operands carry a nonzero tangent."""


def linearize_program(program: Program, nonzeros: Sequence[bool], n_results: int | None = None) -> Linearized:
    """Linearizes a program in the inputs that `nonzeros` marks, at any point.

    Args:
      program: the function.
      nonzeros: for each input, whether it carries a tangent. An input of integer or boolean type must not.
      n_results: how many of its results, from the first on, are differentiated; all by default.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    forward, linear = Builder(program.constvars, program.consts), Builder()
    primal: dict[Atom, Atom] = {}
    tangent: dict[Atom, Var] = {}
    residuals: dict[Atom, Var] = {}
    tangents_in: list[Var] = []
    for v, nonzero in zip(program.invars, nonzeros, strict=True):
        if nonzero:
            tangent[v] = Var(v.aval.to_tangent_aval())
            tangents_in.append(tangent[v])

    def residual(atom: Atom, made_by_rule: bool) -> Atom:
        if isinstance(atom, Literal):
            if made_by_rule:  # JAX makes such a constant afresh, as an array, each time the rule runs
                atom = Literal(atom.val, atom.aval, held=True)
            elif not atom.held:
                return atom
        found = residuals.get(atom)
        if found is None:
            found = residuals[atom] = Var(atom.aval)
        return found

    read = primal.get
    for index, equation in enumerate(program.equations):
        nonzero_in = tuple([a in tangent for a in equation.invars])
        ins = [read(a, a) for a in equation.invars]
        if True not in nonzero_in:
            origin = Origin(equation, "linearize", "known: no tangent reaches it", "primal")
            forward.equations.append(
                Equation(equation.operation, tuple(ins), equation.outvars, equation.source, origin)
            )
            continue
        try:
            rule = linearize_rules(equation.operation, nonzero_in)
        except EquationError as error:
            located(error, equation, index)
            raise
        outs = forward.splice(rule.primal, ins, equation, "linearize", rule.name)
        primal.update(zip(equation.outvars, outs, strict=False))
        n_in = len(ins)
        values = ins + outs
        taken = [residual(values[i], i >= n_in) for i in rule.residuals]
        taken += [tangent[a] for a in equation.invars if a in tangent]
        tangents_out = iter(linear.splice(rule.linear, taken, equation, "linearize", rule.name))
        for v, nonzero in zip(equation.outvars, rule.nonzeros_out, strict=True):
            if nonzero:
                tangent[v] = next(tangents_out)  # type: ignore[assignment]

    differentiated = program.outvars[:n_results]
    nonzeros_out = tuple(a in tangent for a in differentiated)
    return _finish(
        program, forward, linear, [read(a, a) for a in program.outvars], residuals, tangents_in,
        primal, tangent, [tangent[a] for a in differentiated if a in tangent], nonzeros_out,
    )  # fmt: skip


def _finish(
    program: Program, forward: Builder, linear: Builder, results: list[Atom], residuals: dict[Atom, Var],
    tangents_in: list[Var], primal: dict[Atom, Atom], tangent: dict[Atom, Var], tangents_out: list[Var],
    nonzeros_out: Mask,
) -> Linearized:  # fmt: skip
    """Drops the residuals that no tangent needs, as JAX does, and then what was computed for them alone."""
    names = [""] * (len(residuals) + len(tangents_in))
    info = compat.derived_debug_info(program.debug_info, names, len(tangents_out))
    whole = linear.program([*residuals.values(), *tangents_in], tangents_out, info, like=program)
    keep = [False] * len(residuals) + [True] * len(tangents_in)
    linear_program, kept = dce_program(whole, keep_inputs=keep)
    saved = tuple(a for a, k in zip(residuals, kept, strict=False) if k)
    info = compat.derived_debug_info(program.debug_info, program.arg_names, len(results) + len(saved))
    forward_program = forward.program(program.invars, [*results, *saved], info, like=program)
    forward_program, _ = dce_program(forward_program)
    # A value that is passed on unchanged shares its tangent with the first that had it, which is the one to name.
    tangent_of = {t: primal.get(v, v) for v, t in reversed(tangent.items())}
    return Linearized(forward_program, linear_program, saved, nonzeros_out, tangent_of)
