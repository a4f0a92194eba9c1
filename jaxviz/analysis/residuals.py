"""What a gradient keeps in memory: each residual with its size, the user's line, and the reason it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload
from typing import Literal as OneOf

import jax

from jaxviz.analysis.reasons import explain
from jaxviz.analysis.tables import format_bytes, html_table, text_table
from jaxviz.analysis.walk import Reader, Site, find_producer, find_readers, location_of
from jaxviz.derivation import Derivation, derive
from jaxviz.ir import compat
from jaxviz.ir.origin import Location
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.syntax import Atom, Equation, Literal, Origin, Var

Kind = OneOf["argument", "constant", "literal", "intermediate", "dummy"]


@dataclass(frozen=True, eq=False)
class Residual:
    """A value that the forward program keeps for the backward program.

    Args:
      aval: its type.
      nbytes: its size in bytes.
      kind: 'argument' of the function, 'constant' closed over, 'literal' in the source, 'intermediate' computed on the way.
      name: its name in the forward program.
      expression: how it is made, such as `cos(x)`; for an argument its path.
      location: the user's line that makes it; for an argument, where the function is defined.
      rule: the derivative rule that asked for it.
      reason: why it is kept, in a sentence.
      consumers: the equations of the backward program that read it.
      producer: the equation of the forward program that makes it, inside whatever jitted function; None for an input.
      var: its variable among the first inputs of the linear and the backward program.
      decision: 'saved'.
    """

    aval: Any
    nbytes: int
    kind: Kind
    name: str
    expression: str
    location: Location
    rule: str
    reason: str
    consumers: tuple[Equation, ...]
    producer: Equation | None
    var: Var
    decision: str = "saved"

    @property
    def origin(self) -> Origin | None:
        """Where the equation that makes it came from."""
        return self.producer.origin if self.producer is not None else None

    @property
    def type(self) -> str:
        return str(self.aval.str_short(short_dtypes=True))

    def __str__(self) -> str:
        return f"{self.name}:{self.type} {format_bytes(self.nbytes)} {self.kind} {self.location}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {
            "name": self.name, "type": self.type, "nbytes": self.nbytes, "kind": self.kind,
            "expression": self.expression, "file": self.location.file, "line": self.location.line,
            "function": self.location.function, "rule": self.rule, "reason": self.reason, "decision": self.decision,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class ResidualSet(Sequence[Residual]):
    """The residuals of a function's gradient, in the order in which the linear program takes them.

    Args:
      function: its name.
      items: the residuals.
    """

    function: str
    items: tuple[Residual, ...]

    @overload
    def __getitem__(self, index: int) -> Residual: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Residual]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Residual]:
        return iter(self.items)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all of them, arguments included."""
        return sum(r.nbytes for r in self.items)

    @property
    def summary(self) -> str:
        """`7 residuals of loss, 1.2 MiB: 3 arguments 0.8 MiB, 4 intermediates 0.4 MiB`."""
        n = len(self.items)
        head = f"{n:,} residual{'s' if n != 1 else ''} of {self.function}, {format_bytes(self.nbytes)}"
        parts = []
        for kind in ("argument", "constant", "literal", "intermediate", "dummy"):
            of_kind = [r for r in self.items if r.kind == kind]
            if of_kind:
                plural = kind if len(of_kind) == 1 else {"dummy": "dummies"}.get(kind, kind + "s")
                parts.append(f"{len(of_kind):,} {plural} {format_bytes(sum(r.nbytes for r in of_kind))}")
        return f"{head}: {', '.join(parts)}" if parts else head

    def __str__(self) -> str:
        heads = ("name", "type", "bytes", "line", "why it is kept")
        rows = [(r.name, r.type, format_bytes(r.nbytes), short_location(r.location), r.reason) for r in self.items]
        return f"{self.summary}\n{text_table(heads, rows, '<<><<')}" if rows else self.summary

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        heads = ("name", "type", "bytes", "kind", "line", "rule", "why it is kept")
        rows = [
            (r.name, r.type, format_bytes(r.nbytes), r.kind, short_location(r.location), r.rule, r.reason)
            for r in self.items
        ]
        return html_table(self.summary, heads, rows, (False, False, True, False, False, False, False))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {"function": self.function, "nbytes": self.nbytes, "residuals": [r.to_dict() for r in self.items]}


def short_location(location: Location) -> str:
    """`model.py:12`; a notebook cell keeps the name that IPython prints for it."""
    name = location.file
    if "/ipykernel_" in name or name.startswith("<ipython-input-"):
        return f"cell:{location.line}"
    return f"{name.rsplit('/', 1)[-1]}:{location.line}"


def residuals(f: Any, *args: Any, argnums: int | Sequence[int] | None = None, **kwargs: Any) -> ResidualSet:
    """What the gradient of a function keeps in memory, and why.

    >>> print(jaxviz.residuals(lambda x: jnp.sin(x), 1.0))
    1 residual of <lambda>, 4 B: 1 intermediate 4 B
    name  type   bytes  line       why it is kept
    ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional arguments to differentiate in; all that are arrays, by default, as
        `jax.ad_checkpoint.print_saved_residuals` counts.

    Raises:
      what `derive` raises.
    """
    if isinstance(f, Derivation):
        return find_residuals(f)
    if argnums is None:
        inputs = range(len(f.invars)) if not args and hasattr(f, "invars") else range(len(args))
        argnums = tuple(i for i in inputs if not args or _all_arrays(args[i]))
    return find_residuals(derive(f, *args, argnums=argnums, **kwargs))


def _all_arrays(tree: Any) -> bool:
    return all(
        isinstance(x, (int, float, complex, jax.ShapeDtypeStruct)) or hasattr(x, "dtype") for x in jax.tree.leaves(tree)
    )


def find_residuals(derivation: Derivation) -> ResidualSet:
    """The residuals of a derivation. See `residuals`."""
    parts = derivation.linearized
    names = variable_names(parts.forward)
    arguments = dict(zip(derivation.primal.invars, derivation.primal.arg_names, strict=True))
    site = Site.of(derivation, names)
    linear_readers = find_readers(parts.linear, parts.linear.invars[: len(parts.residuals)])
    backward_readers = find_readers(derivation.backward, parts.linear.invars[: len(parts.residuals)])
    made = []
    for atom, var in zip(parts.residuals, parts.linear.invars, strict=False):
        made.append(_residual(atom, var, site, arguments, linear_readers[var], backward_readers[var]))
    return ResidualSet(derivation.primal.name, tuple(made))


def _residual(
    atom: Atom, var: Var, site: Site, arguments: dict[Var, str], linear: list[Reader], backward: list[Reader]
) -> Residual:
    found = find_producer(site.producers, atom)
    producer = found.equation if found is not None else None
    kind = _kind(atom, site, arguments)
    if found is not None:
        expression, location = site.expression(found), location_of(found.equation, found.within) or site.definition
    else:
        path = arguments.get(atom, "") if isinstance(atom, Var) else ""
        expression = path or site.name(atom)
        first = linear[0] if linear else None
        used_at = location_of(first.equation, first.within) if first is not None else None
        location = site.definition if kind == "argument" or used_at is None else used_at
    rule = linear[0].equation.origin.rule if linear and linear[0].equation.origin else ""
    return Residual(
        atom.aval, nbytes(atom.aval), kind, site.name(atom), expression, location, rule,
        explain(kind, expression, location, linear, backward, site),
        tuple(dict.fromkeys(r.equation for r in backward)), producer, var,
    )  # fmt: skip


def _kind(atom: Atom, site: Site, arguments: dict[Var, str]) -> Kind:
    if isinstance(atom, Literal):
        return "constant" if compat.is_array(atom.val) else "literal"
    if atom in arguments:
        return "argument"
    return "constant" if atom in site.constants else "intermediate"


def nbytes(aval: Any) -> int:
    """Size in bytes of a value of a type; random keys count as what they are made of."""
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return 0
    return int(getattr(aval, "size", 0)) * int(dtype.itemsize)
