"""Programs as plain data: `Program`, `Equation`, `Operation`, `Var`, `Literal`, `Origin`, `Branch`.

The shape is JAX's jaxpr, with two differences. What equations of the same kind share (the primitive, its params, the
types it works on) stands once, in an `Operation`, so that a rule found for it is found again by identity. And every
equation of a derived program says which equation it came from, in its `Origin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Union
from typing import Literal as OneOf

from jaxviz.ir.sharing import is_data

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Primitive

    from jaxviz.ir.origin import Location

Aval = Any
"""A JAX abstract value, such as `ShapedArray(float32[3])`."""

Role = OneOf["primal", "tangent", "residual", "cotangent", "accumulation", "recomputation", "zero", "dummy"]


class Var:
    """A variable: bound once in its program, known by identity, typed by its `aval`."""

    __slots__ = ("__weakref__", "aval")

    def __init__(self, aval: Aval):
        self.aval = aval

    @property
    def type_with_state(self) -> Any:
        """Its type; that of a mutable hi type with what a value holds where it is bound."""
        return self.aval

    def renewed(self) -> Var:
        """A new variable for the same values."""
        return Var(self.aval)

    def __repr__(self) -> str:
        return f"Var({self.aval.str_short(short_dtypes=True)})"


class DropVar(Var):
    """A result that nothing reads; printed as `_`."""

    __slots__ = ()


class Literal:
    """A constant written in place.

    Args:
      val: the value, a scalar.
      aval: its type.
      held: whether JAX's `linearize` keeps this value in memory as an array. It does so for a scalar that was passed to
        a jitted function (`x * 2.0` calls the jitted `jnp.multiply`), though the jaxpr prints it in place.
    """

    __slots__ = ("aval", "held", "val")

    def __init__(self, val: Any, aval: Aval, held: bool = False):
        self.val = val
        self.aval = aval
        self.held = held

    @property
    def type_with_state(self) -> Any:
        """Its type, as for a variable."""
        return self.aval

    def renewed(self) -> Var:
        """A variable for the value."""
        return Var(self.aval)

    def __repr__(self) -> str:
        return f"Literal({self.val}:{self.aval.str_short(short_dtypes=True)})"


Atom = Union[Var, Literal]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Operation:
    """What an equation does, independent of its variables: a primitive, its params and the types in and out.

    Args:
      primitive: the JAX primitive.
      params: its parameters, with nested jaxprs as Programs.
      in_avals, out_avals: types of the operands and results.
      effects: JAX effects; one that concerns an operand names it by position.
      context: JAX's equation context (mesh, compute type, random number layout).
      rules: the rules found for it, if it has user data; they are freed with it. See `RuleTable`.
      programs: those nested in the params, each with a label such as `jaxpr` or `branches[1]`.
      has_user_data: whether its params may contain a user's functions or arrays: programs, a callback, a custom rule.
        It is then shared only as long as somebody refers to it.
    """

    primitive: Primitive
    params: Mapping[str, Any]
    in_avals: tuple[Aval, ...]
    out_avals: tuple[Aval, ...]
    effects: frozenset[Any]
    context: Any
    rules: dict[Any, Any] = field(default_factory=dict, repr=False)
    programs: tuple[tuple[str, Program], ...] = field(init=False, repr=False)
    has_user_data: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "programs", tuple(_nested_programs(self.params)))
        object.__setattr__(self, "has_user_data", bool(self.programs) or not all(map(is_data, self.params.values())))


@dataclass(eq=False, slots=True)  # not frozen, like Equation
class Origin:
    """Where a derived equation came from. It is immutable.

    Args:
      equation: the equation of the previous program, or None if it does not correspond to a single equation.
      transform: 'jvp', 'linearize' or 'transpose'.
      rule: the rule that created it, such as 'jvp rule of sin'.
      role: what it computes.
    """

    equation: Equation | None
    transform: str
    rule: str
    role: Role


@dataclass(
    eq=False, slots=True
)  # not frozen, which would make creation four times slower, and a derivation creates thousands
class Equation:
    """`outvars = operation invars`, with the user's source line and, in a derived program, its origin.

    >>> first = jaxviz.trace(loss)(params, x).equations[0]
    >>> first.primitive, first.invars, first.outvars, first.location

    It is immutable.
    """

    operation: Operation
    invars: tuple[Atom, ...]
    outvars: tuple[Var, ...]
    source: Any = None
    origin: Origin | None = None

    @property
    def primitive(self) -> Primitive:
        return self.operation.primitive

    @property
    def params(self) -> Mapping[str, Any]:
        return self.operation.params

    @property
    def effects(self) -> frozenset[Any]:
        return self.operation.effects

    @property
    def programs(self) -> tuple[tuple[str, Program], ...]:
        return self.operation.programs

    @property
    def location(self) -> Location | None:
        """The user's line of this equation, or of its nearest origin that has one; None if there is none."""
        from jaxviz.ir.origin import ancestors, locate, own_line

        sources = [e.source for e in (self, *ancestors(self))]
        return next(filter(None, (line(s) for line in (own_line, locate) for s in sources)), None)

    def __repr__(self) -> str:
        types = ", ".join(aval.str_short(short_dtypes=True) for aval in self.operation.out_avals)
        return f"Equation({self.primitive.name} -> {types})"


Verdict = OneOf["saved", "recomputed", "offloaded", "by its rule"]


@dataclass(frozen=True, eq=False, slots=True)
class Decision:
    """What a checkpoint policy decided for one equation of the checkpointed function.

    Args:
      equation: of the function's JVP, whose origin is the equation that the user wrote. It has its own origin object:
        copies of it that have no link keep the origin, and are identified by it.
      verdict: what happens to its results between the forward and the backward pass: 'by its rule' if they are saved
        without asking the policy, because it belongs to a rule for checkpoints.
      within: the equations of the function that enclose its program, outermost first.
    """

    equation: Equation
    verdict: Verdict
    within: tuple[Equation, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """One checkpointed function, as it was linearized.

    Args:
      function: its JVP.
      n_inputs: how many of that program's inputs are the function's own; the others are tangents.
      policy: the checkpoint policy; None for the default, which saves nothing.
      decisions: what the policy decided, equation by equation.
      forward: what runs in the forward pass; its last `n_residuals` results are kept.
      backward: the rest of the function, which runs in the backward pass on the residuals and the function's inputs.
      n_residuals: how many values are kept besides the inputs.
      lengths: the trip counts of the scans that it runs in, outermost first.
    """

    function: Program
    n_inputs: int
    policy: Any
    decisions: tuple[Decision, ...]
    forward: Program
    backward: Program
    n_residuals: int
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A point where Python looked at a value, so that the program is one path through the function.

    Args:
      location: the user's line.
      kind: what Python asked for: 'bool', 'int', 'float', 'index' or 'value'.
      value: the answer.
    """

    location: Location | None
    kind: str
    value: Any


@dataclass(frozen=True, slots=True)
class Shared:
    """The values that a tangent belongs to: one value, or several that differ by constants, such as `x` and `x + 1`.

    Args:
      values: in the forward program, first the one that the others were computed from.
      variables: the corresponding variables of the program before the transform.
      results: those of the variables that are results of that program.
    """

    values: tuple[Atom, ...]
    variables: tuple[Atom, ...]
    results: frozenset[Atom]


Relation = OneOf["value", "tangent", "cotangent", "part"]
"""How a variable relates to one of the previous program: the same value, its whole tangent or cotangent, or a term of
the sum that is its cotangent."""

Relations = Iterable[tuple[Atom, Relation, Atom]]


def unrelated() -> Relations:
    """The relations of a program that is not derived from another."""
    return ()


@dataclass(frozen=True, eq=False)
class Program:
    """A typed program: `lambda constvars; invars. let equations in outvars`.

    >>> program = jaxviz.trace(loss)(params, x)
    >>> print(program)  # as JAX prints a jaxpr
    >>> program.in_avals, program.equations, program.jaxpr  # a ClosedJaxpr of JAX

    Args:
      constvars, consts: the variables of captured constants, and their arrays.
      invars, outvars: inputs and results.
      equations: in order of evaluation.
      effects: JAX effects; one that concerns an input names it by position.
      debug_info: JAX's record of the function's name, source and argument names.
      branches: where Python read a value; such a program was recorded on concrete values, and is a single path.
      closed: whether it is emitted as a ClosedJaxpr (always, except in params that hold an open jaxpr).
      tangents: returns, for a program that takes tangents, a mapping from each tangent variable to the variable that it
        is the tangent of. Computed when it is read.
      cotangents: returns, for a transposed program, a mapping from a value of the forward program to the variables
        whose sum is its cotangent.
      relations: returns, for a derived program, how its variables relate to those of the previous program. A variable
        that both share is the same value, and not listed. Computed when it is read.
    """

    constvars: tuple[Var, ...]
    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    equations: tuple[Equation, ...]
    consts: tuple[Any, ...] = ()
    effects: frozenset[Any] = frozenset()
    debug_info: Any = None
    branches: tuple[Branch, ...] = ()
    is_path: bool = False
    closed: bool = True
    is_high: bool = field(default=False, repr=False)
    tangents: Callable[[], Mapping[Var, Shared]] = field(default=dict, repr=False)
    cotangents: Callable[[], Mapping[Atom, tuple[Atom, ...]]] = field(default=dict, repr=False)
    relations: Callable[[], Relations] = field(default=unrelated, repr=False)

    @cached_property
    def jaxpr(self) -> ClosedJaxpr:
        """The program as a JAX `ClosedJaxpr`."""
        from jaxviz.ir.convert import kept_jaxpr

        return kept_jaxpr(self)

    @cached_property
    def last_read(self) -> dict[Atom, int]:
        """The index of the last equation that reads each value; the number of equations for a result."""
        by_equations = {a: i for i, e in enumerate(self.equations) for a in e.invars}
        return by_equations | dict.fromkeys(self.outvars, len(self.equations))

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        return tuple(v.aval for v in self.invars)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        return tuple(v.aval for v in self.outvars)

    @property
    def arg_names(self) -> tuple[str, ...]:
        """A path such as `params['w']` for each input; '' if it has none."""
        names = self.debug_info.arg_names if self.debug_info is not None else None
        return tuple(names) if names and len(names) == len(self.invars) else ("",) * len(self.invars)

    @property
    def name(self) -> str:
        """The name of the function that was traced."""
        return str(self.debug_info.func_name) if self.debug_info is not None else "program"

    def walk(self) -> Iterator[tuple[int, Equation]]:
        """Yields every equation with its depth, nested ones after the equation that holds them."""
        under_way = [iter(self.equations)]
        while under_way:
            for equation in under_way[-1]:
                yield len(under_way) - 1, equation
                if equation.operation.programs:
                    under_way.append(chain.from_iterable(p.equations for _, p in equation.operation.programs))
                    break
            else:
                under_way.pop()

    def __str__(self) -> str:
        from jaxviz.ir.pretty import format_program

        return format_program(self)

    def __repr__(self) -> str:
        return f"Program({self.name}, {len(self.equations)} equations)"


def _nested_programs(params: Mapping[str, Any]) -> Iterator[tuple[str, Program]]:
    for name, value in params.items():
        if isinstance(value, Program):
            yield name, value
        elif isinstance(value, tuple):
            labels = getattr(value, "_fields", None)
            for i, item in enumerate(value):
                if isinstance(item, Program):
                    yield labels[i] if labels else f"{name}[{i}]", item
