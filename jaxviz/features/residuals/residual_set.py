"""What a gradient keeps in memory: each residual with its size, the user's line, and the reason it is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, overload
from typing import Literal as OneOf

import jax

from jaxviz.analysis.checkpoints import CheckpointReport, is_offload, moved_or_rounded, report_checkpoints
from jaxviz.analysis.devices import compiled_parts, parts_of, spans_devices
from jaxviz.analysis.walk import Reader, Site, Source, call_name, find_readers, location_of
from jaxviz.derivation import Derivation, derive
from jaxviz.features.residuals.findings import (
    Finding,
    find_duplicates,
    find_forced,
    find_invariants,
    finding,
    largest_first,
)
from jaxviz.features.residuals.notes import notes_of, why_nothing_is_kept
from jaxviz.features.residuals.reasons import explain
from jaxviz.features.residuals.totals import NO_SCOPE, Total, module_of, per_device, scope_of, totals
from jaxviz.higher_order import is_choice, is_loop, is_scan
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import EquationError
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Literal, Origin, Program, Var
from jaxviz.progress import counting
from jaxviz.report.report import Data, Report, Table, attributes, plain
from jaxviz.report.tables import (
    counted,
    format_bytes,
    line_beside,
    nbytes,
    short_location,
    type_text,
)
from jaxviz.transforms.unopened import Unopened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = OneOf["argument", "constant", "literal", "intermediate", "dummy"]


@dataclass(frozen=True, slots=True)
class Dummy:
    """What one branch of a cond fills in where another branch saves a residual, since both give results of the same types.

    Args:
      branch: such as 'branch 0 of cond'.
      location: of the cond.
      nbytes: what it takes if that branch is taken (in a scan: in each iteration).
    """

    branch: str
    location: Location | None
    nbytes: int


@dataclass(frozen=True, eq=False)
class Residual(Data):
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
      producer: the equation of the forward program that makes it, inside whatever call, loop or branch; None for an input.
      var: its variable among the first inputs of the linear and the backward program.
      decision: 'saved', or 'offloaded' to another memory by a checkpoint policy.
      lengths: the trip counts of the scans that stack it up, outermost first; its type is that of all of them together.
      place: the bodies it is made in, such as 'branch 1 of cond in scan'; '' outside of any.
      dummies: what other branches fill in for it.
      is_read: whether the backward program reads it; a custom rule may save what its backward function does not use.
      nbytes_per_device: what one device holds of it; None where all is on one device, or where XLA decides how to lay it out.
      scope: the scopes of `jax.named_scope` that it is made in, such as 'encoder/attention'; of an input, those of its first reader.
      module: the path of the module it is made in; see `ResidualSet.by_module`.
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
    lengths: tuple[int, ...] = ()
    place: str = ""
    dummies: tuple[Dummy, ...] = ()
    is_read: bool = True
    nbytes_per_device: int | None = None
    scope: str = ""
    module: str = ""

    @property
    def origin(self) -> Origin | None:
        """Where the equation that makes it came from."""
        return self.producer.origin if self.producer is not None else None

    @property
    def type(self) -> str:
        """`f32[3]`, or `1000 × f32[3]` for one such value from each of a thousand iterations."""
        return type_text(self.aval, self.lengths)

    def __str__(self) -> str:
        return f"{self.name}:{self.type} {format_bytes(self.nbytes)} {self.kind} {self.location}: {self.reason}"

    _data = (
        "name", "type", "nbytes", "kind", "expression", "location", "rule", "reason", "decision", "lengths", "place",
        "is_read", "nbytes_per_device", "scope", "module", "dummies",
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class ResidualSet(Report, Sequence[Residual]):
    """The residuals of a function's gradient, in the order in which the linear program takes them.

    Args:
      function: its name.
      items: the residuals.
      checkpoints: the checkpointed functions in it, with what their policies decided.
      mapped: what `vmap` made of its control flow, a sentence each.
      on_devices: whether the function runs on more than one device.
      unopened: what jaxviz does not look into.
      finders: for each of `duplicates`, `invariant` and `forced` what gives it; called when it is first asked for.
      why_none: a sentence, where there are none.
    """

    function: str
    items: tuple[Residual, ...]
    checkpoints: tuple[CheckpointReport, ...] = ()
    mapped: tuple[str, ...] = ()
    on_devices: bool = False
    unopened: tuple[Unopened, ...] = ()
    finders: Mapping[str, Callable[[], tuple[Finding, ...]]] = field(default_factory=dict)
    why_none: tuple[str, ...] = ()

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

    @cached_property
    def nbytes_without_arguments(self) -> int:
        """Bytes of what the gradient keeps beside the function's arguments, which are there anyway."""
        return sum(r.nbytes for r in self.items if r.kind != "argument")

    @cached_property
    def nbytes_per_device(self) -> int | None:
        """Bytes of what one device holds at most: what XLA decides how to lay out counts in full. None where all is on one device."""
        return per_device(self.items)

    def by_line(self) -> tuple[Total, ...]:
        """The bytes of each source line, largest first."""
        return totals(self.items, lambda r: r.location, lambda r: short_location(r.location))

    def by_function(self) -> tuple[Total, ...]:
        """The bytes of each of the user's functions, by qualified name, largest first."""
        return totals(self.items, lambda r: (r.location.file, r.location.function), lambda r: r.location.function)

    def by_scope(self) -> tuple[Total, ...]:
        """The bytes of each `jax.named_scope`, by path, largest first; transforms such as `vmap(...)` are left out of a path.

        An argument or a constant counts where it is first read; what is in no scope, under 'no scope'.
        """
        return totals(self.items, lambda r: r.scope, lambda r: r.scope or NO_SCOPE)

    def by_module(self) -> tuple[Total, ...]:
        """The bytes of each module of a neural network, largest first.

        The name is the path that the library leaves as named scopes: 'Transformer/blocks_0/Dense_1' for flax linen,
        'mlp/linear_0' for haiku, 'eqx.nn.MLP' for the layers of equinox, by their class. flax nnx, and modules of one's own in
        equinox, leave nothing: there it is the qualified name of the innermost method, such as 'Block.__call__', so that all
        modules of one class are counted together. What no method led to counts for its function. A scope of the user's own
        is told apart from a library's in no way, and counts as part of the path.
        """
        return totals(self.items, lambda r: r.module, lambda r: r.module)

    @cached_property
    def duplicates(self) -> tuple[Finding, ...]:
        """Values kept twice, in two types or layouts."""
        return self._found("duplicates")

    @cached_property
    def invariant(self) -> tuple[Finding, ...]:
        """What a scan stacks though it is the same in each iteration."""
        return self._found("invariant")

    @cached_property
    def forced(self) -> tuple[Finding, ...]:
        """What is kept only because it crosses the boundary of a jitted function: the function is derived once more to find it."""
        return self._found("forced")

    def _found(self, name: str) -> tuple[Finding, ...]:
        return self.finders[name]() if name in self.finders else ()

    @cached_property
    def unread(self) -> tuple[Finding, ...]:
        """Values that are kept though the backward program does not read them."""
        return largest_first([finding(r, r.nbytes) for r in self.items if not r.is_read])

    @cached_property
    def with_dummies(self) -> tuple[Finding, ...]:
        """Values that are dummies if a cond takes another branch."""
        return largest_first([finding(r, r.nbytes) for r in self.items if r.dummies])

    @cached_property
    def stacked(self) -> tuple[Finding, ...]:
        """Values that scans stack, one from each iteration."""
        return largest_first([finding(r, r.nbytes) for r in self.items if r.lengths])

    @property
    def summary(self) -> str:
        """`7 residuals of loss, 1.2 MiB: 3 arguments 0.8 MiB, 4 intermediates 0.4 MiB`."""
        n = len(self.items)
        head = f"{counted(n, 'residual')} of {self.function}, {_sizes(self.nbytes, self.nbytes_per_device)}"
        parts = []
        for kind in ("argument", "constant", "literal", "intermediate", "dummy"):
            of_kind = [r for r in self.items if r.kind == kind]
            if of_kind:
                plural = kind if len(of_kind) == 1 else {"dummy": "dummies"}.get(kind, kind + "s")
                parts.append(f"{len(of_kind):,} {plural} {format_bytes(sum(r.nbytes for r in of_kind))}")
        return f"{head}: {', '.join(parts)}" if parts else head

    @cached_property
    def dummy_nbytes(self) -> int:
        """Bytes that hold nothing if conds take the branches that save least."""
        return sum(r.nbytes for r in self.items if r.dummies)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing about them as a whole, a sentence each."""
        return notes_of(self)

    def _parts(self) -> Iterator[str | Table]:
        yield self._table(("name", "type", "bytes", "line", "why it is kept"))
        yield from self._below()

    def _html_parts(self) -> Iterator[str | Table]:
        yield self._table(("name", "type", "bytes", "kind", "line", "rule", "why it is kept"))
        yield from self._below()

    def _table(self, heads: Sequence[str]) -> Table:
        """The residuals, largest first."""
        ordered = sorted(self.items, key=lambda r: -r.nbytes)
        rows = [[_CELLS[head](r) for head in heads] for r in ordered]
        more = lambda n: f"and {len(ordered) - n:,} more, {format_bytes(sum(r.nbytes for r in ordered[n:]))}"
        return Table(heads, rows, "".join(">" if head == "bytes" else "<" for head in heads), shown=40, more=more)

    def _below(self) -> Iterator[str | Table]:
        """The source lines, where they say more than the table of residuals, and the notes."""
        lines = self.by_line()
        if 1 < len(lines) < len(self.items):
            rows = [(t.name, _sizes(t.nbytes, t.nbytes_per_device), f"{t.count:,}", t.location.function) for t in lines]
            left = lambda n: f"{len(lines) - n:,} more line{'s' * (len(lines) - n > 1)}"
            more = lambda n: f"and {left(n)}, {format_bytes(sum(t.nbytes for t in lines[n:]))}"
            yield Table(("line", "bytes", "residuals", "function"), rows, "<>><", "by line", _LINES, more)
        yield from self.notes

    def plot(self, width: float = 10.0) -> Figure:
        """A matplotlib figure: a treemap of the residuals by module, and the bytes of the lines that keep most.

        Args:
          width: in inches.
        """
        from jaxviz.features.residuals.plot import plot_residuals  # matplotlib takes a while to import

        return plot_residuals(self, width)

    def to_dict(self) -> dict[str, Any]:
        sums = {name: plain(getattr(self, name)()) for name in ("by_line", "by_function", "by_scope", "by_module")}
        return {
            **attributes(self, ("function", "nbytes", "nbytes_without_arguments", "nbytes_per_device", "dummy_nbytes")),
            "residuals": plain(self.items),
            **sums,
            "findings": attributes(self, ("unread", "with_dummies", "stacked", "duplicates", "invariant", "forced")),
            **attributes(self, ("notes", "checkpoints")),
        }


_LINES = 8

_CELLS: Mapping[str, Callable[[Residual], str]] = {
    "name": lambda r: r.name,
    "type": lambda r: r.type,
    "bytes": lambda r: _sizes(r.nbytes, r.nbytes_per_device),
    "kind": lambda r: r.kind,
    "line": lambda r: short_location(r.location),
    "rule": lambda r: r.rule,
    "why it is kept": lambda r: r.reason,
}
"""Head of a column → what it says of a residual."""


def _sizes(whole: int, per_device: int | None) -> str:
    """`1.0 MiB`, or `1.0 MiB · 128.0 KiB a device`."""
    return format_bytes(whole) if per_device is None else f"{format_bytes(whole)} · {format_bytes(per_device)} a device"


@api_boundary
@counting("residuals")
def residuals(
    f: Any, *args: Any, argnums: int | Sequence[int] | None = None, compile: bool = False, **kwargs: Any
) -> ResidualSet:
    """What the gradient of a function keeps in memory, and why.

    >>> print(jaxviz.residuals(lambda x: jnp.sin(x), 1.0))
    1 residual of <lambda>, 4 B: 1 intermediate 4 B
    name  type   bytes  line       why it is kept
    ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional arguments to differentiate in; all that are arrays, by default, as
        `jax.ad_checkpoint.print_saved_residuals` counts, but for Python's whole numbers and what `jax.jit` takes as static.
      compile: where the function runs on several devices, whether to compile its forward program, to say what one device holds of the
        values that XLA decides how to lay out.

    Raises:
      what `derive` raises.
    """
    if isinstance(f, Derivation):
        return find_residuals(f, compile)
    if argnums is None:
        argnums = tuple(range(len(f.invars))) if not args and hasattr(f, "invars") else arrays_among(f, args)
    return find_residuals(derive(f, *args, argnums=argnums, **kwargs), compile)


def arrays_among(f: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """The positions of a function's arguments that can be differentiated in as far as they are arrays, or pytrees of them."""
    static, _ = compat.static_places(f)
    return tuple(i for i, a in enumerate(args) if i not in static and not isinstance(a, int) and _all_arrays(a))


def _all_arrays(tree: Any) -> bool:
    return all(
        isinstance(x, (int, float, complex, jax.ShapeDtypeStruct)) or hasattr(x, "dtype") for x in jax.tree.leaves(tree)
    )


@deep_stack
def find_residuals(derivation: Derivation, compile: bool = False) -> ResidualSet:
    """The residuals of a derivation. See `residuals`."""
    parts = derivation.linearized
    on_devices = spans_devices(derivation)
    divided: Sequence[int | None] = [None] * len(parts.residuals)
    if on_devices:
        divided = compiled_parts(derivation) if compile else parts_of(derivation, parts.residuals)
    names = variable_names(parts.forward)
    arguments = dict(zip(derivation.primal.invars, derivation.primal.arg_names, strict=True))
    site = Site.of(derivation, names)
    linear_readers = find_readers(parts.linear, parts.linear.invars[: len(parts.residuals)])
    try:
        backward_readers = find_readers(derivation.backward, parts.linear.invars[: len(parts.residuals)])
    except EquationError:  # no reverse mode, as for a while loop: what the linear program reads is kept all the same
        backward_readers = None
    made = []
    for atom, var, n in zip(parts.residuals, parts.linear.invars, divided, strict=False):
        readers = None if backward_readers is None else backward_readers[var]
        residual = _residual(atom, var, site, arguments, linear_readers[var], readers)
        made.append(residual if n is None else replace(residual, nbytes_per_device=residual.nbytes // n))
    finders = {
        "duplicates": partial(find_duplicates, made, parts.residuals, site),
        "invariant": partial(find_invariants, made, parts.residuals, parts.forward),
        "forced": partial(find_forced, made, parts.residuals, site),
    }
    checkpoints, mapped = report_checkpoints(derivation), _mapped(derivation.primal)
    why_none = () if made else why_nothing_is_kept(derivation)
    unopened = derivation.unopened
    return ResidualSet(
        derivation.primal.name, tuple(made), checkpoints, mapped, on_devices, unopened, finders, why_none
    )


def _mapped(program: Program) -> tuple[str, ...]:
    """What `jaxviz.vmap` made of a cond or a loop in a function that was derived from others."""
    origins = (a.origin for _, e in program.walk() for a in (e, *ancestors(e)))
    found: dict[tuple[Equation, str], None] = {
        (o.equation, o.rule): None
        for o in origins
        if o is not None and o.transform == "vmap" and o.equation is not None and ": " in o.rule
        if is_choice(o.equation) or (is_loop(o.equation) and not is_scan(o.equation))
    }
    places = {e: location_of(e) for e, _ in found}
    return tuple(
        f"Under vmap the {rule}{f' ({short_location(at)})' if (at := places[e]) is not None else ''}."
        for e, rule in found
    )


def _residual(
    atom: Atom, var: Var, site: Site, arguments: dict[Var, str], linear: list[Reader],
    backward: list[Reader] | None,
) -> Residual:  # fmt: skip
    sources = site.sources(atom)
    real = sorted((s for s in sources if not s.is_dummy), key=lambda s: s.equation is None) or list(sources)
    source = real[0]
    producer = source.equation
    kind = _kind(source, atom, site, arguments)
    # In a cond one place may hold what one branch saves, or what another does.
    expression = " or ".join(dict.fromkeys(_expression(s, site) for s in real))
    if producer is not None:
        location = location_of(producer, source.within) or site.definition
    elif source.passed_by is not None:
        location = location_of(source.passed_by) or site.definition
    else:
        path = arguments.get(atom, "") if isinstance(atom, Var) else ""
        expression = path or site.name(source.atom if isinstance(source.atom, Literal) else atom)
        first = linear[0] if linear else None
        used_at = location_of(first.equation, first.within) if first is not None else None
        location = site.definition if kind == "argument" or used_at is None else used_at
    place = (producer, source.within) if producer is not None else (source.passed_by, ())
    if place[0] is None and linear:
        place = (linear[0].equation, linear[0].within)
    scope, module = (scope_of(*place), module_of(*place)) if place[0] is not None else ("", "")
    asked = linear[0].equation.origin if linear else None
    rule = "" if asked is None else "checkpoint" if asked.role == "recomputation" else asked.rule
    size = nbytes(atom.aval)
    dummies = tuple(_dummy(s, location, size // math.prod(source.lengths)) for s in sources if s.is_dummy)
    return Residual(
        atom.aval, size, kind, site.name(atom), expression, location, rule,
        explain(kind, expression, location, linear, backward, site, source.lengths, [d.branch for d in dummies]),
        tuple(dict.fromkeys(r.equation for r in backward or ())), producer, var,
        "offloaded" if is_offload(producer) else "saved", source.lengths, site.place(source), dummies,
        backward is None or bool(backward), None, scope, module or location.function,
    )  # fmt: skip


def _expression(source: Source, site: Site) -> str:
    made_by = moved_or_rounded(source.equation)
    expression = site.expression(replace(source, equation=made_by) if made_by is not None else source)
    if source.equation is None and source.passed_by is not None:
        expression += f", copied by {call_name(source.passed_by)}"
    return f"{expression}, carried" if source.is_carry else expression


def _dummy(source: Source, location: Location, size: int) -> Dummy:
    cond, number = source.branches[-1]
    where = location_of(cond, source.within[: source.within.index(cond)])
    at = f" at {line_beside(where, location)}" if where is not None else ""
    return Dummy(f"branch {number} of the cond{at}", where, size)


def _kind(source: Source, atom: Atom, site: Site, arguments: dict[Var, str]) -> Kind:
    if source.is_dummy:
        return "dummy"
    if source.equation is not None:
        return "intermediate"
    if isinstance(source.atom, Literal):
        return "constant" if compat.is_array(source.atom.val) else "literal"
    if source.passed_by is not None:
        return "intermediate"
    if atom in arguments:
        return "argument"
    return "constant" if atom in site.constants else "intermediate"
