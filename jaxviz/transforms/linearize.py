"""Linearize: `a → b` becomes forward `a → (b, residuals)` and linear `(residuals, T a) ⊸ T b`.

The JVP rule of each equation is split in two by partial evaluation: what depends on a tangent goes to the linear
program, everything else to the forward program, and forward values that the linear program reads are residuals.
Transposing the linear program gives reverse mode.

Source: Frostig, Johnson, Maclaurin, Paszke and Radul, "Decomposing reverse-mode automatic differentiation" (2021,
arXiv:2105.09469); Radul, Paszke, Frostig, Johnson and Maclaurin, "You Only Linearize Once: Tangents Transpose to
Gradients" (POPL 2023, arXiv:2204.10923); `LinearizeTrace` in JAX's `ad.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from typing import Literal as OneOf

import jax

from jaxviz.ir import compat
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.convert import read_jaxpr, trace_rule, write_params
from jaxviz.ir.errors import NoRuleError
from jaxviz.ir.syntax import Atom, Checkpoint, Equation, Literal, Operation, Program, Var
from jaxviz.transforms.dce import dce_program, roles_by_use, values_at
from jaxviz.transforms.driver import (
    Builder,
    Mask,
    RuleTable,
    Template,
    call_of,
    check_differentiable,
    located,
    relations_of_values,
    reordered_inputs,
    scopes_alone,
    select,
    values_of_tangents,
    with_constants_as_inputs,
    with_line_of_call,
    with_results,
)
from jaxviz.transforms.jvp import jvp_rules
from jaxviz.transforms.partial_eval import split_program
from jaxviz.transforms.primitive import of
from jaxviz.transforms.split_rules import SplitOptions

CondResiduals = OneOf["jax", "recompute"]
"""What a cond saves for the backward pass: what JAX saves, with dummies where its branches differ, or only its
operands."""


class Mode(NamedTuple):
    """The purpose of a linearization.

    Args:
      is_vjp: for `vjp`, so that the linear program is only transposed; otherwise for `linearize`, so that it is run on
        tangents. A primitive may have a different rule for each.
      recomputes_conds: whether a cond saves only its operands, and its linear part runs the branch again.
    """

    is_vjp: bool = True
    recomputes_conds: bool = False


VJP = Mode()


def mode_of(cond_residuals: CondResiduals, is_vjp: bool = True) -> Mode:
    """The mode that a user asks for.

    Raises:
      ValueError: `cond_residuals` is neither of the two.
    """
    if cond_residuals not in ("jax", "recompute"):
        raise ValueError(f"cond_residuals must be 'jax' or 'recompute'; got {cond_residuals!r}")
    return Mode(is_vjp, cond_residuals == "recompute")


@dataclass(frozen=True, slots=True)
class LinearizeRule:
    """How one operation is linearized.

    Args:
      primal: operands → results, then residuals that are neither operands nor results.
      linear: residuals, nonzero tangents of operands → nonzero tangents of results.
      residuals: for each residual that `linear` takes, its position in `(*operands, *outputs of primal)`.
      nonzeros_out: which results have a tangent that is not a symbolic zero.
      name: a name for messages.
      checkpoints: the checkpointed functions inside.
      structured: the structure of the tree whose leaves are the last residuals; None if it saves none.
    """

    primal: Template
    linear: Template
    residuals: tuple[int, ...]
    nonzeros_out: Mask
    name: str
    checkpoints: tuple[Checkpoint, ...] = ()
    structured: Any = None


class Structured(NamedTuple):
    """The residuals that rules of primitives save as trees, which JAX keeps whole.

    Args:
      tree: the structure of the list of these trees, one for each equation whose rule has one, in order. The tree of a
        call or a loop is such a list, of its body.
      leaves: for each leaf its number among the residuals.
      n_opaque: how many of the residuals, the first, are read as no leaf.
    """

    tree: Any
    leaves: tuple[int, ...]
    n_opaque: int


@dataclass(frozen=True, slots=True)
class Linearized:
    """A linearized program.

    Args:
      forward: inputs → results, residuals.
      linear: residuals, nonzero tangents → nonzero tangents of the results.
      residuals: the values of `forward` that `linear` takes, in its order: inputs, constants, held literals or
        intermediates. The last are the leaves of the trees that rules save, one for each leaf, read or not.
      nonzeros_out: which results have a tangent that is not a symbolic zero.
      tangent_of: from a variable of `linear` to the value of `forward` that it is the tangent of.
      structured: those trees.
      checkpoints: the checkpointed functions inside.
      calls: the operations with programs, each with the operands that have a tangent.
    """

    forward: Program
    linear: Program
    residuals: tuple[Atom, ...]
    nonzeros_out: Mask
    tangent_of: Mapping[Var, Atom]
    structured: Structured
    checkpoints: tuple[Checkpoint, ...] = ()
    calls: tuple[tuple[Operation, Mask], ...] = ()

    @property
    def leaves(self) -> tuple[Atom, ...]:
        """The leaves of the trees that rules save."""
        return tuple(self.residuals[i] for i in self.structured.leaves)


def jax_rule(
    operation: Operation, nonzeros: Mask, is_vjp: bool = True, values: Sequence[Any] | None = None, of_user: str = ""
) -> LinearizeRule:
    """The rule that `jax.vjp`, or `jax.linearize`, uses for an operation, as two programs.

    Args:
      operation, nonzeros: of an equation.
      is_vjp: for which of the two.
      values: those of the operands, for a rule whose Python looks at them.
      of_user: the name of a rule whose equations have lines of their own.
    """
    name = of_user or f"jvp rule of {operation.primitive.name}"
    if all(nonzeros) and compat.is_linear_in_all(operation.primitive) and _is_own_tangent(operation):
        call = call_of(operation)
        tangent = Template(call, "tangent")
        return LinearizeRule(Template(call, "primal"), tangent, (), (True,) * len(operation.out_avals), name)
    if compat.has_plain_jvp_rule(operation.primitive):
        params = write_params(operation)
        rule, avals, nonzeros_out = compat.jvp_rule(
            operation.primitive, params, operation.in_avals, nonzeros, operation.context
        )
        return split_jvp(trace_rule(rule, avals, operation), nonzeros_out, len(operation.in_avals), name)
    primal, linear, nonzeros_out, structured = compat.linearize_rule(
        operation.primitive, write_params(operation), operation.in_avals, nonzeros, operation.context, is_vjp, values
    )
    primal, linear = read_jaxpr(primal), read_jaxpr(linear)
    if not of_user:
        primal, linear = scopes_alone(primal), scopes_alone(linear)
    else:
        primal = with_line_of_call(primal, operation)
    n_out, n_res = len(operation.out_avals), len(linear.constvars)
    keep = [False] * n_res + [True] * len(linear.invars)
    linear, read = dce_program(with_constants_as_inputs(linear), keep_inputs=keep)
    returned = primal.outvars[n_out:]
    residuals = select(read[: len(returned)], returned)
    had = {*primal.invars, *primal.outvars[:n_out]}
    outvars = (*primal.outvars[:n_out], *(a for a in dict.fromkeys(residuals) if a not in had))
    primal, _ = dce_program(replace(primal, outvars=outvars), keep_inputs=[True] * len(primal.invars))
    return rule_of(primal, n_out, residuals, linear, tuple(nonzeros_out), name, keeps_lines=True, structured=structured)


def own_derivative(operation: Operation, n_residuals: int, name: str) -> LinearizeRule:
    """The rule of an operation that is the derivative of another: it is linear in all operands after its residuals.

    A program that has one is the linear program of a gradient, such as `jax.vjp` returns.
    """
    call = call_of(operation)
    nonzeros_out = (True,) * len(operation.out_avals)
    residuals = tuple(range(n_residuals))
    return LinearizeRule(Template(call, "primal"), Template(call, "tangent"), residuals, nonzeros_out, name)


def unknown_results() -> ValueError:
    """JAX's error for an operation whose results cannot be computed without its tangents."""
    return ValueError(
        "Linearization failed to produce known values for all output primals. This is typically caused by attempting "
        "to "
        "differentiate a function uses an operation that does not support reverse-mode autodiff."
    )


def _is_own_tangent(operation: Operation) -> bool:
    """Whether its operands and results have the same types as their tangents, as floating-point values do."""
    return all(a == a.to_tangent_aval() for a in (*operation.in_avals, *operation.out_avals))


def split_jvp(
    pushed: Program, nonzeros_out: Sequence[bool], n_in: int, name: str, keeps_lines: bool = False
) -> LinearizeRule:
    """Splits a JVP rule into a linearization rule: what depends on a tangent goes to `linear`, everything else to
    `primal`.

    Args:
      pushed: operands, nonzero tangents → results, nonzero tangents of results.
      nonzeros_out: which results have a tangent there.
      n_in: number of operands.
      name: a name for messages.
      keeps_lines: whether its equations keep their own source lines; see `Template`.

    Raises:
      ValueError: JAX's, if a result depends on a tangent.

    Source: `linearize_from_jvp` in JAX's `ad.py`.
    """
    n_out, n_tangents = len(nonzeros_out), len(pushed.invars) - n_in
    parts = split_program(pushed, [False] * n_in + [True] * n_tangents, SplitOptions(is_rule=True))
    if any(parts.unknown_out[:n_out]):
        raise unknown_results()
    # A tangent that depends on none of the input tangents is zero, even if it is written out.
    unknown_tangents = iter(parts.unknown_out[n_out:])
    nonzero = tuple([is_written and next(unknown_tangents) for is_written in nonzeros_out])
    n_residuals = len(parts.residuals)
    linear, is_read = dce_program(parts.staged, keep_inputs=[False] * n_residuals + [True] * n_tangents)
    residuals = select(is_read[:n_residuals], parts.residuals)
    results = parts.known.outvars[:n_out]
    had = {*parts.known.invars, *results}
    others = len(parts.known.outvars) - n_out - n_residuals
    computed = [k and a not in had for k, a in zip(is_read, parts.residuals, strict=False)]
    primal, _ = dce_program(parts.known, [True] * n_out + [False] * others + computed)
    return rule_of(primal, n_out, residuals, linear, nonzero, name, keeps_lines, parts.checkpoints)


def linearize_from_jvp(operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
    """The rule of an operation that JAX linearizes by splitting its JVP, found from ours."""
    rule = jvp_rules(operation, nonzeros)
    return split_jvp(rule.pushed.program, rule.nonzeros_out, len(nonzeros), rule.name, keeps_lines=True)


def refuse_own_references(residuals: Sequence[Atom], what: str) -> None:
    """Raises an error if one of these values, which an equation would have to return, is a mutable reference.

    Args:
      what: the equation, such as "A jitted function".
    """
    if any(compat.is_mutable(a.aval) for a in residuals):
        raise NoRuleError(
            f"{what} makes a mutable reference that is read again in the backward pass, as in a checkpoint, and "
            "cannot return it: make it "
            "outside, or read it before the checkpoint."
        )


def rule_of(
    primal: Program,
    n_out: int,
    residuals: Sequence[Atom],
    linear: Program,
    nonzeros_out: Mask,
    name: str,
    keeps_lines: bool = False,
    checkpoints: tuple[Checkpoint, ...] = (),
    structured: Any = None,
) -> LinearizeRule:
    """The rule whose residuals are these values of `primal`, without repeating operands or results."""
    places: dict[Atom, int] = {}
    for i, a in enumerate((*primal.invars, *primal.outvars)):
        places.setdefault(a, i)
    return LinearizeRule(
        Template(primal, roles_by_use(primal, n_out, "primal", "residual"), keeps_lines),
        Template(linear, "tangent", keeps_lines),
        tuple(places[a] for a in residuals),
        nonzeros_out,
        name,
        checkpoints,
        structured,
    )


def _default_rule(operation: Operation, nonzeros: Mask, mode: Mode = VJP) -> LinearizeRule:
    check_differentiable(operation)
    return jax_rule(operation, nonzeros, mode.is_vjp)


linearize_rules: RuleTable[LinearizeRule] = RuleTable("linearize", _default_rule)
"""Key: operation, which operands have a nonzero tangent, and the mode, unless it is JAX's for `vjp`."""


def _modes_matter(operation: Operation) -> bool:
    """Whether its rule may depend on the mode; others are found again in every mode."""
    return operation.primitive in linearize_rules.own or not compat.has_plain_jvp_rule(operation.primitive)


def _rule(
    operation: Operation, nonzeros: Mask, mode: Mode, values: Callable[[], Sequence[Any]] | None
) -> LinearizeRule:
    """The rule of an operation; if JAX's rule branches on values, and these are available, the rule for these
    values."""
    try:
        if mode == VJP or not _modes_matter(operation):
            return linearize_rules(operation, nonzeros)
        return linearize_rules(operation, nonzeros, mode)
    except compat.ConcretizationTypeErrors:
        if values is None or (operation.primitive in linearize_rules.own and not of(operation).looks_at_values):
            raise
        if of(operation).looks_at_values:
            return linearize_rules.find(operation)(operation, nonzeros, mode, values())
        return jax_rule(operation, nonzeros, mode.is_vjp, values())


@collector_paused()
def linearize_program(
    program: Program,
    nonzeros: Sequence[bool],
    n_results: int | None = None,
    instantiate: Sequence[bool] | None = None,
    in_loop: bool = False,
    mode: Mode = VJP,
    at: Sequence[Any] | None = None,
) -> Linearized:
    """Linearizes a program in the inputs that `nonzeros` marks, at any point.

    Args:
      program: the function.
      nonzeros: for each input, whether it has a tangent. An input of integer or boolean type must not.
      n_results: how many of its first results are differentiated; all by default.
      instantiate: for each of those, whether a zero tangent is instantiated. As in JAX it is then computed in
        `forward`, and is a residual.
      in_loop: whether it is the body of a loop. A constant of a rule is the same in each iteration, so it is moved out
        of the loop and written in place; anywhere else JAX makes an array of it, which is a residual.
      mode: the purpose.
      at: concrete values of its inputs, for JAX's rules whose Python looks at values.

    Raises:
      EquationError: names the primitive, the equation and the user's line.
    """
    parts = _Parts(program, nonzeros, in_loop)
    tangent = parts.tangent
    with located(enumerate(program.equations)) as equations:
        for _, equation in equations:
            nonzero_in = tuple([a in tangent for a in equation.invars])
            ins = [parts.primal.get(a, a) for a in equation.invars]
            if equation.operation.programs:
                parts.calls[equation.operation, nonzero_in] = None
            if True not in nonzero_in and not of(equation).makes_reference:
                parts.forward.copy(equation, ins, "linearize", "known: no tangent reaches it")
                continue
            values = partial(values_at, parts.forward, program.invars, at, ins) if at is not None else None
            parts.apply(_rule(equation.operation, nonzero_in, mode, values), equation, ins)

    differentiated = program.outvars[:n_results]
    written = instantiate or (False,) * len(differentiated)
    nonzeros_out = tuple(a in tangent or w for a, w in zip(differentiated, written, strict=True))
    tangents_out = [tangent[a] if a in tangent else parts.zero(a) for a in select(nonzeros_out, differentiated)]
    return parts.finish(tangents_out, nonzeros_out)


class _Parts:
    """The forward and the linear program under construction, and the variables' counterparts in them."""

    def __init__(self, program: Program, nonzeros: Sequence[bool], in_loop: bool):
        self.program = program
        self.in_loop = in_loop
        self.forward, self.linear = Builder(program.constvars, program.consts), Builder()
        self.primal: dict[Atom, Atom] = {}
        self.tangent: dict[Atom, Var] = {v: Var(v.aval.to_tangent_aval()) for v in select(nonzeros, program.invars)}
        self.tangents_in = [*self.tangent.values()]
        self.residuals: dict[Atom, Var] = {}
        """The residuals of the forward program, with the inputs of the linear program that take them."""
        self.leaves: list[tuple[Atom, Var]] = []
        """The same for the leaves of the trees that rules save."""
        self.trees: list[Any] = []
        self.checkpoints: list[Checkpoint] = []
        self.calls: dict[tuple[Operation, Mask], None] = {}

    def apply(self, rule: LinearizeRule, equation: Equation, ins: list[Atom]) -> None:
        """Copies the rule of an equation into both programs."""
        tangent, n_in = self.tangent, len(ins)
        outs = self.forward.splice(rule.primal, ins, equation, "linearize", rule.name)
        self.primal.update(zip(equation.outvars, outs, strict=False))
        values = ins + outs
        n_opaque = len(rule.residuals) - (rule.structured.num_leaves if rule.structured is not None else 0)
        taken = [self.residual(values[i], i >= n_in) for i in rule.residuals[:n_opaque]]
        taken += [self.leaf(values[i]) for i in rule.residuals[n_opaque:]]
        if rule.structured is not None:
            self.trees.append(rule.structured)
        taken += [tangent[a] for a in equation.invars if a in tangent]
        tangents_out = iter(self.linear.splice(rule.linear, taken, equation, "linearize", rule.name))
        for v, nonzero in zip(equation.outvars, rule.nonzeros_out, strict=True):
            if nonzero:
                tangent[v] = next(tangents_out)  # type: ignore[assignment]
        self.checkpoints += rule.checkpoints

    def residual(self, atom: Atom, made_by_rule: bool) -> Atom:
        """The counterpart of a forward value in the linear program: a residual, or a constant that is included in
        it."""
        if isinstance(atom, Literal):
            if self.in_loop:
                return atom
            if made_by_rule:  # JAX creates such a constant anew, as an array, each time the rule runs
                atom = Literal(atom.val, atom.aval, held=True)
            elif not atom.held:
                return atom
        residual = self.residuals.get(atom)
        if residual is None:
            residual = self.residuals[atom] = atom.renewed()
        return residual

    def leaf(self, atom: Atom) -> Var:
        """The input of the linear program for a leaf of a tree, which is saved even if it is saved already."""
        atom = Literal(atom.val, atom.aval, held=True) if isinstance(atom, Literal) else atom
        self.leaves.append((atom, taken := Var(atom.aval)))
        return taken

    def zero(self, atom: Atom) -> Atom:
        """The tangent of a result that has none, written out."""
        return self.residual(self.forward.zero(atom.aval.to_tangent_aval(), "linearize"), True)

    def finish(self, tangents_out: list[Atom], nonzeros_out: Mask) -> Linearized:
        """Drops the residuals that no tangent needs, as JAX does, and then what was computed for them alone."""
        program, primal, tangent, residuals = self.program, self.primal, self.tangent, self.residuals
        leaves, kept = [a for a, _ in self.leaves], [*(v for _, v in self.leaves), *self.tangents_in]
        names = [""] * (len(residuals) + len(kept))
        info = compat.derived_debug_info(program.debug_info, names, len(tangents_out))
        untrimmed = self.linear.program([*residuals.values(), *kept], tangents_out, info, like=program)
        linear, is_read = dce_program(untrimmed, keep_inputs=[False] * len(residuals) + [True] * len(kept))
        opaque = select(is_read[: len(residuals)], [*residuals])
        saved, n_opaque = (*opaque, *leaves), len(opaque)
        tree = jax.tree.structure([jax.tree.unflatten(tree, range(tree.num_leaves)) for tree in self.trees])
        structured = Structured(tree, tuple(range(n_opaque, len(saved))), n_opaque)
        results = [primal.get(a, a) for a in program.outvars]
        info = compat.derived_debug_info(program.debug_info, program.arg_names, len(results) + len(saved))
        forward, _ = dce_program(self.forward.program(program.invars, [*results, *saved], info, like=program))
        forward = replace(forward, relations=partial(relations_of_values, primal, {}, self.forward))
        linear = replace(
            linear,
            tangents=partial(values_of_tangents, tangent, primal, program.outvars),
            relations=partial(relations_of_values, {}, tangent, self.linear, residuals),
        )
        # A value that is passed on unchanged shares the tangent of the original, which is the one to name.
        tangent_of = {t: primal.get(v, v) for v, t in reversed(tangent.items())}
        checkpoints, calls = tuple(self.checkpoints), tuple(self.calls)
        return Linearized(forward, linear, saved, nonzeros_out, tangent_of, structured, checkpoints, calls)


def with_each_once(parts: Linearized) -> Linearized:
    """The same with each residual once, although rules may save it in several trees, or in several places of one."""
    places: dict[Atom, int] = {}
    for a in parts.residuals:
        places.setdefault(a, len(places))
    if len(places) == len(parts.residuals):
        return parts
    inputs = parts.linear.invars
    first: dict[Atom, Var] = {}
    for v, a in zip(inputs, parts.residuals, strict=False):
        first.setdefault(a, v)
    merged: dict[Atom, Atom] = {v: first[a] for v, a in zip(inputs, parts.residuals, strict=False)}
    once = lambda atoms: tuple([merged.get(a, a) for a in atoms])
    equations = tuple(
        e if merged.keys().isdisjoint(e.invars) else replace(e, invars=once(e.invars)) for e in parts.linear.equations
    )
    linear = replace(parts.linear, equations=equations, outvars=once(parts.linear.outvars))
    linear = reordered_inputs(linear, [*first.values(), *inputs[len(parts.residuals) :]])
    n_before = len(parts.forward.outvars) - len(parts.residuals)
    forward = with_results(parts.forward, [*parts.forward.outvars[:n_before], *places])
    leaves = tuple(places[parts.residuals[i]] for i in parts.structured.leaves)
    structured = parts.structured._replace(leaves=leaves)
    return replace(parts, forward=forward, linear=linear, residuals=tuple(places), structured=structured)
