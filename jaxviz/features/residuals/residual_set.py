"""The residuals of a gradient: each with its size, the user's line, and the reason why it is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

from jaxviz.analysis.checkpoints import CheckpointReport, is_offload, report_checkpoints
from jaxviz.analysis.devices import compiled_parts, spans_devices
from jaxviz.analysis.grouping import grouped, rows_of
from jaxviz.analysis.layouts import find_layouts
from jaxviz.analysis.site import Site
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.vjp_objects import derivation_of_linear, paths_in_vjp
from jaxviz.analysis.walk import Reader, Source, SourceTracer, find_readers, location_of
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation
from jaxviz.features.residuals.findings import (
    Finding,
    find_duplicates,
    find_forced,
    find_invariants,
    finding,
    largest_first,
)
from jaxviz.features.residuals.notes import gradient_note, notes_of, why_nothing_is_saved
from jaxviz.features.residuals.residual import (
    Dummy,
    Kind,
    Residual,
    ResidualGroup,
    SavedExpression,
    saved_expressions,
)
from jaxviz.features.residuals.saved_bytes import SavedBytes, saved_bytes
from jaxviz.features.residuals.totals import NO_SCOPE, Total, path_totals, per_device, totals
from jaxviz.higher_order import is_choice, is_loop, is_scan
from jaxviz.higher_order.shard_map import only_passes_a_scalar
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.collector import collector_paused
from jaxviz.ir.errors import EquationError
from jaxviz.ir.origin import Location, ancestors
from jaxviz.ir.primitives import is_view
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.progress import counting
from jaxviz.report.charts import Bars
from jaxviz.report.needs import needs
from jaxviz.report.places import source_line
from jaxviz.report.report import SHOWN, Report, Table
from jaxviz.report.tables import (
    format_bytes,
    in_library,
    line_beside,
    listed,
    more_of,
    nbytes,
    short_location,
)
from jaxviz.transforms.unopened import Unopened

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class ResidualSet(Report, Sequence[Residual], schema="residuals"):
    """The residuals of a function's gradient, in the order in which the linear program takes them.

    >>> found = jaxviz.residuals(loss, params, x)
    >>> len(found), found.nbytes, found.by_line

    Args:
      derivation: the derivation of the gradient.
      items: the residuals.
      checkpoints: the checkpointed functions, with the decisions of their policies.
      mapped: how `vmap` changed the control flow, a sentence each.
      on_gradient: sentences that say which gradient it is, if the function takes one itself, and why there are no
        residuals, or no gradient that reads them; empty otherwise.
      every: the residuals of the gradient.
      parts: the modules and scopes that `items` are all of; empty if they are those of the whole gradient.
    """

    derivation: Derivation
    items: tuple[Residual, ...]
    checkpoints: tuple[CheckpointReport, ...]
    mapped: tuple[str, ...]
    on_gradient: tuple[str, ...]
    every: tuple[Residual, ...]
    parts: tuple[str, ...] = ()

    @property
    def function(self) -> str:
        """The name of the function."""
        return self.derivation.primal.name

    @property
    def gradient(self) -> str:
        """Which gradient: "gradient of `loss` in `params`", or the training step that takes it."""
        return self.derivation.about

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
        """Bytes of all residuals, arguments included."""
        return sum(r.nbytes for r in self.items)

    @cached_property
    def nbytes_without_arguments(self) -> int:
        """Bytes of the residuals that are not arguments of the function, which are in memory anyway."""
        return sum(r.nbytes for r in self.items if r.kind != "argument")

    @cached_property
    def saved(self) -> SavedBytes:
        """What the gradient saves: without arguments and without what the backward pass never reads, on each device."""
        return saved_bytes(self.items)

    @cached_property
    def nbytes_per_device(self) -> int | None:
        """The largest number of bytes on one device: values whose partitioning XLA decides count in full.

        None if all is on one device.
        """
        return per_device(self.items)

    @cached_property
    def groups(self) -> tuple[ResidualGroup, ...]:
        """The residuals grouped by expression: what is saved, then arguments, then what nothing reads; each largest
        first, and groups of equal size in order of appearance.

        They are the rows of the table, and of the explorer's.
        """
        # Those of the first value, since the words for thousands of values take long.
        words = lambda r: (r.label, r.library, r.type, r.kind, r.location, r.why)
        rows = rows_of(self.items, lambda r: r.repeats, lambda same: words(same[0]))
        after = {"argument": 1, "unread": 2}
        return tuple(sorted(map(ResidualGroup, rows), key=lambda g: (after.get(g.kind, 0), -g.nbytes)))

    @cached_property
    def expressions(self) -> tuple[SavedExpression, ...]:
        """What is saved for each of the user's expressions, largest first: the rows of the explorer's overview."""
        return saved_expressions(self.groups)

    def of(self, path: str) -> ResidualSet:
        """Only the residuals of one module or named scope, which may be a layer, with what it contains.

        >>> print(jaxviz.residuals(loss, params, x).of("layer_7"))
        the gradient of `loss` in `params` saves 0.8 GiB in 59 values of `layer_7`; ...

        Args:
          path: one or several consecutive names of a path that `by_module` or `by_scope` has, such as "layer_7/mlp".

        Raises:
          ValueError: no residual has these names in its path.
        """
        names = path.split("/")
        spans = lambda of: (of[i : i + len(names)] for i in range(len(of)))
        items = tuple(r for r in self.items if any(names in spans(p.split("/")) for p in (r.module, r.scope)))
        if not items:
            there = listed([t.name for t in self.by_module()], 8)
            raise ValueError(f"no residual is of the module or scope {path!r}; the modules are {there or 'none'}")
        return replace(self, items=items, checkpoints=(), mapped=(), parts=(*self.parts, path))

    def by_line(self) -> tuple[Total, ...]:
        """The saved bytes of each source line, largest first; here and below without arguments and without what nothing
        reads."""
        return totals(self._saved, lambda r: r.location, lambda r: short_location(r.location))

    def by_function(self) -> tuple[Total, ...]:
        """The bytes of each of the user's functions, by qualified name, largest first."""
        return totals(self._saved, lambda r: (r.location.file, r.location.function), lambda r: r.location.function)

    def by_scope(self) -> tuple[Total, ...]:
        """The bytes of each `jax.named_scope`, by path, largest first; transforms such as `vmap(...)` are left out of a
        path.

        A constant counts where it is first read; values outside of all scopes count as 'no scope'. Repeated layers
        count as one.
        """
        return path_totals(self._saved_groups, lambda r: r.scope or NO_SCOPE)

    def by_module(self) -> tuple[Total, ...]:
        """The bytes of each module of a neural network, largest first; repeated layers count as one.

        The name is the path that flax linen, haiku and penzai leave as named scopes, such as
        'Transformer/blocks_0…11/Dense_1'. flax nnx and equinox leave none: there the name comes from the calls of
        methods, 'Net/Block/up' for `self.up(x)` in the class `Block`; modules that are called as `block(x)` are counted
        together. Values outside of all methods count for their function. The user's own scopes are part of the path.
        """
        return path_totals(self._saved_groups, lambda r: r.module)

    @property
    def _saved(self) -> list[Residual]:
        return [r for r in self.items if r.is_saved]

    @property
    def _saved_groups(self) -> list[tuple[Residual, ...]]:
        return grouped(self._saved, lambda r: r.repeats)

    @cached_property
    def unopened(self) -> tuple[Unopened, ...]:
        """What jaxviz does not look into."""
        return () if self.parts else self.derivation.unopened

    @cached_property
    def duplicates(self) -> tuple[Finding, ...]:
        """Values that are saved twice, in two types or layouts."""
        return self._among(find_duplicates)

    @cached_property
    def invariant(self) -> tuple[Finding, ...]:
        """Values that a scan stacks although they are the same in each iteration."""
        return self._among(find_invariants)

    @cached_property
    def forced(self) -> tuple[Finding, ...]:
        """Values that are saved only because they cross the boundary of a jitted function; finding them derives the
        function once more."""
        return self._among(find_forced)

    def _among(self, find: Callable[[Sequence[Residual]], tuple[Finding, ...]]) -> tuple[Finding, ...]:
        """The findings about the gradient's residuals that are about these alone."""
        own = frozenset(self.items)
        return tuple(f for f in find(self.every) if own.issuperset(f.residuals))

    @cached_property
    def unread(self) -> tuple[Finding, ...]:
        """Values that are saved although the backward program does not read them."""
        return largest_first([finding(r, r.nbytes) for r in self.items if not r.is_read])

    @cached_property
    def with_dummies(self) -> tuple[Finding, ...]:
        """Values that are dummies if a cond takes another branch."""
        return largest_first([finding(r, r.nbytes) for r in self.items if r.dummies])

    @cached_property
    def stacked(self) -> tuple[Finding, ...]:
        """Values that scans stack, one for each iteration."""
        return largest_first([finding(r, r.nbytes) for r in self.items if r.lengths])

    @property
    def summary(self) -> str:
        """the gradient of `loss` in `params` saves 0.4 MiB in 4 values; it reads 0.8 MiB of its arguments, which are in
        memory anyway."""
        subject = f"the {self.gradient}{',' if ', which' in self.gradient else ''}"
        parts = " that are also of ".join(f"`{part}`" for part in self.parts)
        within = f" of {parts}" if parts else ""
        return "; ".join([f"{subject} saves {self.saved}{within}", *self.saved.remarks])

    @cached_property
    def dummy_nbytes(self) -> int:
        """Bytes of dummies if conds take the branches that save least."""
        return sum(r.nbytes for r in self.items if r.dummies)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the residuals as a whole, a sentence each."""
        return notes_of(self)

    def _chart(self) -> Bars:
        # Computed values are summed by line: a library function may save several values of one expression.
        written = lambda g: source_line(g.location) if g.kind in ("intermediate", "dummy") else ""
        rows = [(written(g) or g.label, g.nbytes, g.kind) for g in self.groups if g.residuals[0].is_saved]
        return Bars(rows, f"bytes that the gradient of {self.function} saves, by line")

    def _parts(self) -> Iterator[str | Table]:
        return self._tables(1)

    def _html_parts(self) -> Iterator[str | Table]:
        return self._tables(0)

    def _tables(self, first: int) -> Iterator[str | Table]:
        """The groups of residuals, from the first column on; source lines, if they say more; notes."""
        heads = ("kind", "type", "bytes", "line", "value, and why it is saved")
        said = lambda g: "argument " * (first and g.kind == "argument")  # which the first column says
        rows = [
            (g.kind, g.type, _sizes(g.nbytes, g.nbytes_per_device), short_location(g.location),
             f"{said(g)}{in_library(f'`{g.label}`', g.library)}: {g.why}")[first:]
            for g in self.groups
        ]  # fmt: skip
        size = lambda rest: format_bytes(sum(x.nbytes for x in rest))
        more = more_of(self.groups, lambda g: g.count, "residual", size)
        yield Table(heads[first:], rows, "<<><<"[first:], shown=SHOWN, more=more)
        lines = self.by_line()
        if 1 < len(lines) < len(self._saved):
            sums = [(t.name, _sizes(t.nbytes, t.nbytes_per_device), f"{t.count:,}", t.location.function) for t in lines]
            left = lambda n: f"{len(lines) - n:,} more line{'s' * (len(lines) - n > 1)}"
            lines_more = lambda n: f"and {left(n)}, {size(lines[n:])}"
            yield Table(("line", "bytes", "values", "function"), sums, "<>><", "saved by line", _LINES, lines_more)
        yield from self.notes

    def plot(self, width: float = 10.0) -> Figure:  # type: ignore[override]
        """A matplotlib figure: a treemap of the residuals by module, and the bytes of the lines that save most.

        Args:
          width: in inches.
        """
        with needs("A figure", "matplotlib"):
            from jaxviz.features.residuals.plot import plot_residuals

        return plot_residuals(self, width)

    _data = (
        "function", "gradient", "saved", "nbytes", "nbytes_without_arguments", "nbytes_per_device", "dummy_nbytes",
        "residuals=items", "groups", "by_line", "by_function", "by_scope", "by_module",
        ("findings=", ("unread", "with_dummies", "stacked", "duplicates", "invariant", "forced")), "notes",
        "checkpoints",
    )  # fmt: skip


_LINES = 8


def _propagated(derivation: Derivation) -> list[int | None]:
    """Over how many devices each residual is divided."""
    layouts = find_layouts(derivation)
    if layouts is None or layouts.unknown:
        return [None] * derivation.n_residuals
    results = {v: (e, place) for e in derivation.forward.equations for place, v in enumerate(e.outvars)}
    known = lambda v: layouts.known_parts(*results[v]) if v in results else layouts.values.get(v)
    return [known(a) if isinstance(a, Var) else 1 for a in derivation.linearized.residuals]


def _sizes(total: int, per_device: int | None) -> str:
    """`1.0 MiB`, or `1.0 MiB · 128.0 KiB a device`."""
    return format_bytes(total) if per_device is None else f"{format_bytes(total)} · {format_bytes(per_device)} a device"


@api_boundary
@counting("residuals")
def residuals(f: Any, *args: Any, argnums: Argnums = 0, compile: bool = False, **kwargs: Any) -> ResidualSet:
    """Lists the values that the gradient of a function saves, and why.

    >>> print(jaxviz.residuals(lambda x: jnp.sin(x), 1.0))
    the gradient of `<lambda>` in `x` saves 4 B in 1 value
    type   bytes  line       value, and why it is saved
    ...

    For a training step, which computes a gradient itself and returns more than one number, it is about the gradient
    that the step takes; `derive(step, ...)` in its place is about that of the step.

    Args:
      f: a function; or a Derivation, Program, ClosedJaxpr or what `vjp` returns, of jaxviz or of JAX, without further
        arguments.
      *args, **kwargs: its arguments, as for `derive`.
      argnums: the positional arguments to differentiate with respect to, as for `derive`; None for all arrays, as in
        `jax.ad_checkpoint.print_saved_residuals`.
      compile: if the function runs on several devices, whether to compile its forward program, so that the bytes on one
        device are those of the compiled program and not those of the pass that decides on partitioning.

    Raises:
      the errors of `derive`.
    """
    if not args and not kwargs and (held := derivation_of_linear(f)) is not None:
        linear, paths = held
        found = find_residuals(linear, compile)
        reshapes = lambda e: only_passes_a_scalar(e) or (is_view(e) and len(e.invars) == 1)  # a scalar of a shard_map
        trace = SourceTracer(linear.forward, reshapes)
        held_at = lambda r: next((paths[s.atom] for s in trace(r.atom) if s.atom in paths), "")
        items = tuple(replace(r, path=path, by_path=bool(path)) for r in found for path in (held_at(r),))
        return replace(found, items=items, every=items, on_gradient=(_OF_JAX,))
    found = find_residuals(subject_of(f, args, kwargs, argnums), compile)
    if not args and not kwargs and (in_object := paths_in_vjp(f, found.derivation.linearized)) is not None:
        items = tuple(replace(r, path=path) for r, path in zip(found, in_object, strict=True))
        found = replace(found, items=items, every=items)
    return found


_OF_JAX = (
    "What jax.vjp returned holds only the linear program: a value that is no argument has its path in there, and the "
    "line that reads it. What jaxviz.vjp returns knows the lines that compute them."
)


@deep_stack
@collector_paused()
def find_residuals(derivation: Derivation, compile: bool = False) -> ResidualSet:
    """The residuals of a derivation. See `residuals`."""
    parts = derivation.linearized
    divided: Sequence[int | None] = [None] * len(parts.residuals)
    if spans_devices(derivation):
        divided = compiled_parts(derivation) if compile else _propagated(derivation)
    arguments = dict(zip(derivation.primal.invars, derivation.primal.arg_names, strict=True))
    site = Site.of(derivation, derivation.forward_names)
    linear_readers = find_readers(parts.linear, parts.linear.invars[: len(parts.residuals)], is_linear=True)
    try:
        backward_readers = find_readers(derivation.backward, parts.linear.invars[: len(parts.residuals)])
    except EquationError:  # without reverse mode, as for a while loop, the linear program's residuals still count
        backward_readers = None
    items = []
    for atom, var, n in zip(parts.residuals, parts.linear.invars, divided, strict=False):
        readers = None if backward_readers is None else backward_readers[var]
        items.append(_residual(atom, var, site, arguments, linear_readers[var], readers, n))
    every, mapped = tuple(items), _mapped(derivation.primal)
    on_gradient = gradient_note(derivation) if every else why_nothing_is_saved(derivation)
    return ResidualSet(derivation, every, report_checkpoints(derivation), mapped, on_gradient, every)


def _mapped(program: Program) -> tuple[str, ...]:
    """How `jaxviz.vmap` changed conds and loops in a function that was derived from others."""
    derived = (e for _, e in program.walk() if e.origin is not None)
    origins = (a.origin for e in derived for a in (e, *ancestors(e)))
    pairs: dict[tuple[Equation, str], None] = {
        (o.equation, o.rule): None
        for o in origins
        if o is not None and o.transform == "vmap" and o.equation is not None and ": " in o.rule
        if is_choice(o.equation) or (is_loop(o.equation) and not is_scan(o.equation))
    }
    places = {e: location_of(e) for e, _ in pairs}
    return tuple(
        f"Under vmap the {rule}{f' ({short_location(at)})' if (at := places[e]) is not None else ''}."
        for e, rule in pairs
    )


def _residual(
    atom: Atom, var: Var, site: Site, arguments: dict[Var, str], linear: list[Reader],
    backward: list[Reader] | None, n_parts: int | None,
) -> Residual:  # fmt: skip
    sources = site.sources(atom)
    real: Sequence[Source] = sources
    if len(sources) > 1:
        real = sorted((s for s in sources if not s.is_dummy), key=lambda s: s.equation is None) or sources
    source = real[0]
    producer = source.equation
    kind = _kind(source, atom, site, arguments)
    holders = site.naming.holders(producer, source.within) if producer is not None else ()
    if producer is not None:
        location = location_of(producer, holders) or site.definition
    elif source.passed_by is not None:
        location = site.naming.location(source.passed_by, ()) or site.definition
    else:
        first = linear[0] if linear else None
        used_at = location_of(first.equation, first.within) if first is not None else None
        location = site.definition if kind == "argument" or used_at is None else used_at
    origin = linear[0].equation.origin if linear else None
    rule = "" if origin is None else "checkpoint" if origin.role == "recomputation" else origin.rule
    size = nbytes(atom.aval)
    dummies = tuple(_dummy(s, location, size // max(1, math.prod(source.lengths))) for s in sources if s.is_dummy)
    return Residual(
        atom.aval, size, kind, site.name(atom), location, rule,
        tuple(dict.fromkeys(r.equation for r in backward or ())), producer, var,
        site, atom, real, holders, linear, backward, "offloaded" if is_offload(producer) else "saved", source.lengths,
        site.place(source), dummies, backward is None or bool(backward), n_parts and size // n_parts,
    )  # fmt: skip


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
