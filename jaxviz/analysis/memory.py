"""A model of the memory that a gradient takes over time, and what XLA says of the same program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from typing import Literal as OneOf

import jax
import numpy as np

from jaxviz.analysis.tables import format_bytes, html_table, nbytes, short_location, text_table, type_text, wrapped
from jaxviz.analysis.walk import bodies, call_name, location_of
from jaxviz.derivation import Derivation, derive
from jaxviz.emit import as_function
from jaxviz.ir import compat
from jaxviz.ir.origin import Location
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.progress import counting
from jaxviz.transforms.inline import inlined

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = OneOf["argument", "constant", "residual", "temporary", "cotangent", "result"]
KINDS: tuple[Kind, ...] = ("argument", "constant", "residual", "temporary", "cotangent", "result")


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one value, and of those that only show it in another shape."""

    nbytes: int
    kind: Kind
    born: int
    last: int
    equation: Equation | None = None
    within: tuple[Equation, ...] = ()
    type: str = ""
    name: str = ""
    location: Location | None = None
    residuals: tuple[int, ...] = ()
    is_free: bool = False
    """Whether nothing holds it: XLA makes a broadcast where it is read."""
    last_forward: int = -1
    """The last step of the forward pass that needs it."""


@dataclass(frozen=True, slots=True)
class Live:
    """A value in memory, and the steps during which it is there.

    >>> timeline = jaxviz.memory(loss, params, x)
    >>> max(timeline.values, key=lambda v: v.nbytes * (v.last - v.born + 1))

    Args:
      what: the path of an argument, or the operation that makes it.
      type: its type; '' for what the body of a loop takes inside.
      nbytes: its size in bytes.
      kind: what it is there for.
      born: the first step at which it is in memory.
      last: the last one; the number of steps if it is still there when all is done.
      equation: what makes it, at step `born`; None for an input.
      location: the user's line; None for an argument.
      residuals: the numbers of the residuals that it holds: several if one shows another in a new shape.
    """

    what: str
    type: str
    nbytes: int
    kind: Kind
    born: int
    last: int
    equation: Equation | None = None
    location: Location | None = None
    residuals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Alive:
    """Values that are in memory at one step: those of one kind and type that one line makes in one way.

    Args:
      what: the path of an argument, or the operation that makes them.
      type: of each.
      nbytes: the bytes of all of them.
      kind: what they are there for.
      location: the user's line; None for an argument.
      count: how many there are.
    """

    what: str
    type: str
    nbytes: int
    kind: Kind
    location: Location | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """The time of one equation.

    Args:
      equation: in the order of evaluation, those of called functions in the place of the call.
      within: the equations that hold the program it stands in, outermost first.
      is_backward: whether it is part of the backward program.
      nbytes: bytes alive while it runs, by kind in the order of `KINDS`.
    """

    equation: Equation
    within: tuple[Equation, ...]
    is_backward: bool
    nbytes: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.nbytes)


@dataclass(frozen=True, slots=True)
class XlaMemory:
    """What XLA says of the compiled gradient, on one device; see `compiled.memory_analysis()`.

    Args:
      arguments, results, temporaries, reused: bytes; `reused` are those of results in the memory of donated arguments.
      backend: such as 'cpu'.
      temporaries_without_checkpoints: of the same function with its checkpoints taken away; None if it has none.
    """

    arguments: int
    results: int
    temporaries: int
    reused: int
    backend: str
    temporaries_without_checkpoints: int | None = None


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """Bytes alive over the equations of the forward and the backward program of a function, as a model has it.

    The model evaluates equation by equation, as one jitted program would: a value is freed after the last equation that reads it, an
    elementwise operation writes into an operand that dies there, a view has no memory of its own, a broadcast is made where it is
    read, and what a checkpoint computes again is put off until it is read. It knows nothing of XLA's fusion, which needs less: see
    `xla`.

    Args:
      function: its name.
      steps: one for each equation.
      values: all that is in memory at some step, and when; the bytes of the steps are the sums of theirs.
      derivation: what it was made from.
      donated: for each argument of the function, whether it is donated.
    """

    function: str
    steps: tuple[Step, ...]
    values: tuple[Live, ...] = field(repr=False)
    derivation: Derivation = field(repr=False)
    donated: tuple[bool, ...] = ()

    @cached_property
    def peak(self) -> int:
        """The place of the step at which most is alive."""
        return int(np.argmax([s.total for s in self.steps])) if self.steps else 0

    @property
    def peak_nbytes(self) -> int:
        return self.steps[self.peak].total if self.steps else 0

    @cached_property
    def alive(self) -> tuple[Alive, ...]:
        """What is alive at the peak, the largest first."""
        return self.alive_at(self.peak)

    def alive_at(self, step: int) -> tuple[Alive, ...]:
        """What is alive at a step, the largest first; values that one line makes in one way are counted together."""
        groups: dict[tuple[Any, ...], list[Live]] = {}
        for v in self.values:
            if v.born <= step <= v.last:
                groups.setdefault((_ANY_INDEX.sub("[…]", v.what), v.type, v.kind, v.location), []).append(v)
        alive = [
            Alive(what if len(g) > 1 else g[0].what, type, sum(v.nbytes for v in g), kind, location, len(g))
            for (what, type, kind, location), g in groups.items()
        ]
        return tuple(sorted(alive, key=lambda a: -a.nbytes))

    @cached_property
    def xla(self) -> XlaMemory:
        """XLA's figures for the same gradient, compiled for the default backend; compiled when first asked for.

        Raises:
          what compiling raises.
        """
        found = xla_memory(self.derivation, self.donated)
        primal = self.derivation.primal
        without = inlined(primal, (compat.remat_p,))
        if without is primal:
            return found
        plain = derive(without, argnums=tuple(i for i, nz in enumerate(self.derivation.nonzeros) if nz))
        return _with(found, xla_memory(plain, self.donated).temporaries)

    def compare(self) -> str:
        """What XLA makes of it, in a sentence or two: where it needs less or more than the model, and what it undid."""
        xla = self.xla
        modelled = self.peak_nbytes - self.steps[self.peak].nbytes[0] if self.steps else 0
        said = (
            f"XLA on {xla.backend} takes {format_bytes(xla.temporaries)} of temporaries beside {format_bytes(xla.arguments)} of "
            f"arguments and {format_bytes(xla.results)} of results; the model has {format_bytes(modelled)} beside the arguments at its peak."
        )
        without = xla.temporaries_without_checkpoints
        if without is None:
            return said
        if xla.temporaries > 0.95 * without:
            return (
                f"{said} Without the checkpoints it takes {format_bytes(without)}: XLA undoes them, and they save next to nothing "
                "here."
            )
        return f"{said} Without the checkpoints it takes {format_bytes(without)}."

    @property
    def summary(self) -> str:
        """`memory of loss: peak 1.2 MiB in the backward pass at mul (model.py:12), of it 0.8 MiB residuals, …`."""
        if not self.steps:
            return f"memory of {self.function}: nothing is computed"
        step = self.steps[self.peak]
        at = location_of(step.equation, step.within)
        where = f" ({short_location(at)})" if at is not None else ""
        parts = [
            f"{format_bytes(n)} {_plural(kind)}"
            for n, kind in sorted(zip(step.nbytes, KINDS, strict=True), key=lambda p: -p[0])
            if n
        ]
        direction = "backward" if step.is_backward else "forward"
        return (
            f"memory of {self.function}: modelled peak {format_bytes(step.total)} in the {direction} pass at "
            f"{step.equation.primitive.name}{where}: {', '.join(parts)}"
        )

    def _rows(self, limit: int = 20) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = [
            (
                a.kind,
                f"{f'{a.count} of ' if a.count > 1 else ''}{a.type}",
                format_bytes(a.nbytes),
                short_location(a.location) if a.location else "",
                a.what,
            )
            for a in self.alive[:limit]
        ]
        more = self.alive[limit:]
        if more:
            rows.append(("", "", format_bytes(sum(a.nbytes for a in more)), "", f"{sum(a.count for a in more):,} more"))
        return rows

    def __str__(self) -> str:
        rows = self._rows()
        table = [text_table(_HEADS, rows, "<<><<")] if rows else []
        return "\n".join(
            [wrapped(self.summary), *([self._curve(), "alive at the peak:", *table] if self.steps else [])]
        )

    __repr__ = __str__

    def _curve(self, width: int = 72) -> str:
        """The timeline in one line of text, forward and backward apart."""
        forward = [s.total for s in self.steps if not s.is_backward]
        backward = [s.total for s in self.steps if s.is_backward]
        n = len(self.steps) or 1
        parts = []
        for name, totals in (("forward", forward), ("backward", backward)):
            columns = max(1, round(width * len(totals) / n)) if totals else 0
            tops = (
                [max(part.tolist()) for part in np.array_split(np.asarray(totals), min(columns, len(totals)))]
                if totals
                else []
            )
            bars = "".join("▁▂▃▄▅▆▇█"[min(7, int(8 * t / (self.peak_nbytes + 1)))] for t in tops)
            parts.append(f"{name} {bars}")
        return "  ".join(parts)

    def _repr_html_(self) -> str:
        return html_table(self.summary, _HEADS, self._rows(), (False, False, True, False, False))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for programs."""
        return {
            "function": self.function,
            "peak": self.peak,
            "peak_nbytes": self.peak_nbytes,
            "kinds": list(KINDS),
            "steps": [
                {"primitive": s.equation.primitive.name, "is_backward": s.is_backward, "nbytes": list(s.nbytes)}
                for s in self.steps
            ],
            "values": [
                {
                    "what": v.what, "type": v.type, "nbytes": v.nbytes, "kind": v.kind, "born": v.born, "last": v.last,
                    "residuals": list(v.residuals),
                }
                for v in self.values
            ],
            "alive": [
                {
                    "what": a.what, "type": a.type, "nbytes": a.nbytes, "kind": a.kind, "count": a.count,
                    "file": a.location.file if a.location else None, "line": a.location.line if a.location else None,
                }
                for a in self.alive
            ],
        }  # fmt: skip

    def plot(self, ax: Axes | None = None) -> Figure:
        """The timeline as a stacked area, its peak marked; a `matplotlib` figure.

        Args:
          ax: axes of a figure of your own to draw in.
        """
        from matplotlib.figure import Figure

        axes = Figure(figsize=(9, 4), layout="constrained").subplots() if ax is None else ax
        figure = cast("Figure", axes.figure)
        totals = np.asarray([s.nbytes for s in self.steps], float).reshape(-1, len(KINDS))
        unit, scale = next(
            (u, s)
            for u, s in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
            if self.peak_nbytes >= s or s == 1
        )
        shown = [i for i in range(len(KINDS)) if totals[:, i].any()]
        axes.stackplot(
            np.arange(len(totals)), totals[:, shown].T / scale, labels=[_plural(KINDS[i]) for i in shown], step="mid",
            colors=[_COLOURS[KINDS[i]] for i in shown],
        )  # fmt: skip
        turn = sum(not s.is_backward for s in self.steps)
        axes.axvline(turn - 0.5, color="0.4", linewidth=0.8, linestyle=":")
        axes.plot(self.peak, self.peak_nbytes / scale, "k.", markersize=6)
        axes.annotate(
            format_bytes(self.peak_nbytes), (self.peak, self.peak_nbytes / scale), xytext=(0, 5), textcoords="offset points",
            ha="center", fontsize=8,
        )  # fmt: skip
        axes.set_xlim(-0.5, max(len(self.steps) - 0.5, 0.5))
        axes.set_ylim(0, 1.12 * max(self.peak_nbytes / scale, 1e-9))
        axes.set_xlabel("equation: forward, then backward")
        axes.set_ylabel(f"{unit} alive (model)")
        axes.set_title(f"memory of {self.function}", loc="left", fontsize=10, parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8, reverse=True)
        return figure


_HEADS = ("kind", "type", "bytes", "line", "what")

_COLOURS = {
    "argument": "#9aa5b1", "constant": "#c9d1d9", "residual": "#d9822b", "temporary": "#6ea8fe", "cotangent": "#2ca58d",
    "result": "#8a63d2",
}  # fmt: skip


def memory(
    f: Any,
    *args: Any,
    argnums: int | Sequence[int] = 0,
    donate_argnums: int | Sequence[int] | None = None,
    **kwargs: Any,
) -> MemoryTimeline:
    """The modelled memory of a function's gradient over time, its peak, and what is alive there.

    >>> print(jaxviz.memory(loss, params, x))
    memory of loss: modelled peak 1.2 MiB in the backward pass at dot_general (model.py:12): ...

    Args:
      f: a function; or a Derivation, Program or ClosedJaxpr, and then no args.
      *args, **kwargs: what to call it with, as for `derive`.
      argnums: the positional arguments to differentiate in.
      donate_argnums: those that the gradient may take the memory of (of a Program: its flat inputs); None for those that a jitted
        function that is called with them says.

    Raises:
      EquationError: the function has no reverse mode.
      what `derive` raises.
    """
    derivation = f if isinstance(f, Derivation) else derive(f, *args, argnums=argnums, **kwargs)
    if donate_argnums is None:
        return Model(derivation, donated_by(derivation.primal)).timeline()
    places = {donate_argnums} if isinstance(donate_argnums, int) else set(donate_argnums)
    n = len(derivation.primal.invars)
    if args and places:
        sizes = [len(jax.tree.leaves(a)) for a in args]
        flat = [i in places or i - len(args) in places for i, size in enumerate(sizes) for _ in range(size)]
        donated = tuple((flat + [False] * n)[:n])
    else:
        donated = tuple(i in places for i in range(n))
    return Model(derivation, donated).timeline()


def donated_by(program: Program) -> tuple[bool, ...]:
    """For each input whether a jitted function that the program calls with it takes its memory."""
    given = {
        a
        for e in program.equations
        if e.primitive is compat.jit_p
        for a, is_donated in zip(e.invars, e.params["donated_invars"], strict=True)
        if is_donated
    }
    return tuple(v in given for v in program.invars)


_VIEWS = frozenset(
    "reshape squeeze expand_dims stop_gradient copy_p optimization_barrier bitcast_convert_type pvary name".split()
)
_FREE = frozenset(("broadcast_in_dim", "iota"))
_WRITTEN_INTO = frozenset(("temporary", "cotangent", "residual", "argument"))
"""What results may be written into where it dies; an argument only does if it is donated."""
_WRITES_INTO = frozenset(("dynamic_update_slice", "scatter", "scatter-add", "scatter_mul", "select_n"))
_INLINED = frozenset(
    (
        compat.jit_p,
        compat.closed_call_p,
        compat.remat_p,
        compat.custom_jvp_call_p,
        compat.custom_vjp_call_p,
        compat.shard_map_p,
    )
)


class Model:
    """Walks the forward and the backward program, noting when each value comes into memory and when it is read for the last time."""

    def __init__(self, derivation: Derivation, donated: tuple[bool, ...]):
        self.derivation = derivation
        self.donated = donated
        self.buffers: list[Buffer] = []
        self.steps: list[tuple[Equation, tuple[Equation, ...], bool]] = []
        self.inside: dict[int, int] = {}
        """Bytes that the bodies of a loop or a branch take for themselves, by step."""
        self.reads: list[list[Buffer]] = []
        """What each step reads."""
        self.of_forward: dict[Atom, Buffer] = {}
        """The memory of each value of the forward program."""
        self.into: list[tuple[int, list[Buffer], Buffer]] = []
        """For steps that may write into an operand: the step, the operands of the result's size, and the result."""
        self.is_backward = False
        self.times = 1
        """On how many devices the program under way runs; sizes are those of all together."""

    def timeline(self) -> MemoryTimeline:
        derivation = self.derivation
        forward, backward = derivation.forward, derivation.backward
        primal = derivation.primal
        env = self.of_forward
        for v, name in zip(forward.invars, primal.arg_names, strict=True):
            env[v] = self.new(v, "argument", name=name)
        for v in forward.constvars:
            env[v] = self.new(v, "constant", name="a constant, closed over")
        self.walk(forward, env, ())
        n = derivation.n_residuals
        n_results = len(forward.outvars) - n
        saved = [self.read(env, a) for a in derivation.linearized.residuals]
        results = [self.read(env, a) for a in forward.outvars[:n_results]]
        turn = len(self.steps)
        for buffer in self.buffers:
            buffer.last_forward = buffer.last
        for buffer in results:
            buffer.last_forward = turn
        self.is_backward = True
        back: dict[Atom, Buffer] = dict(zip(backward.invars[:n], saved, strict=True))
        for v in backward.invars[n:]:
            back[v] = self.new(v, "cotangent", name="the cotangent that comes in")
        for v in backward.constvars:
            back[v] = self.new(v, "constant", name="a constant of a rule")
        for i, (buffer, residual) in enumerate(zip(saved, derivation.residuals, strict=True)):
            buffer.is_free = False
            buffer.residuals += (i,)
            if buffer.kind == "temporary":
                buffer.kind = "residual"
                buffer.name = residual.expression.split("(")[0]
                buffer.location, buffer.type = residual.location, residual.type
            buffer.last = max(buffer.last, turn - 1)
        self.walk(backward, back, ())
        results += [self.read(back, a) for a in backward.outvars]
        end = len(self.steps)
        for buffer in results:
            buffer.is_free = False
            buffer.last = end
            if buffer.kind in ("temporary", "cotangent"):
                buffer.kind = "result"
        for v, is_donated in zip(forward.invars, self.donated, strict=True):
            if not is_donated:
                env[v].last = end
        for buffer in self.buffers:
            if buffer.kind == "constant":
                buffer.last = end
        return self.finished()

    def new(
        self,
        atom: Atom,
        kind: Kind,
        equation: Equation | None = None,
        within: tuple[Equation, ...] = (),
        name: str = "",
    ) -> Buffer:
        born = len(self.steps) - (equation is not None)
        buffer = Buffer(self.times * nbytes(atom.aval), kind, born, born, equation, within, type_text(atom.aval), name)
        if equation is not None:
            buffer.is_free = is_made_where_read(equation)
        self.buffers.append(buffer)
        return buffer

    def read(self, env: dict[Atom, Buffer], atom: Atom) -> Buffer:
        if isinstance(atom, Literal) or atom not in env:
            env[atom] = self.new(atom, "constant", name="a number")
        return env[atom]

    def walk(self, program: Program, env: dict[Atom, Buffer], within: tuple[Equation, ...]) -> None:
        for e in _put_off(program):
            if e.primitive in _INLINED:
                (body,) = bodies(e)
                inner: dict[Atom, Buffer] = {
                    v: self.read(env, e.invars[i]) for v, i in zip(body.program.invars, body.operands, strict=True)
                }
                for v in body.program.constvars:
                    inner[v] = self.new(v, "constant", name="a constant, closed over")
                times, self.times = self.times, self.times * _devices(e)
                self.walk(body.program, inner, (*within, e))
                self.times = times
                for outer, result in zip(e.outvars, body.program.outvars, strict=True):
                    env[outer] = self.read(inner, result)
                continue
            self.steps.append((e, within, self.is_backward))
            now = len(self.steps) - 1
            operands = [self.read(env, a) for a in e.invars if isinstance(a, Var)]
            self.reads.append(operands)
            for buffer in operands:
                buffer.last = now
            if is_view(e):
                env[e.outvars[0]] = operands[0]
                continue
            takes = self.taken(e, operands)
            for v in e.outvars:
                env[v] = self.new(v, self.kind_of(e), e, within)
            if takes is not None and len(e.outvars) == 1:
                self.into.append((now, takes, env[e.outvars[0]]))
            inner_peak = self.peak_inside(e)
            if inner_peak:
                self.inside[now] = inner_peak

    def taken(self, e: Equation, operands: Sequence[Buffer]) -> list[Buffer] | None:
        if not may_write_into_an_operand(e):
            return None
        return [b for b in operands if b.nbytes == self.times * nbytes(e.outvars[0].aval)]

    def kind_of(self, e: Equation) -> Kind:
        if not self.is_backward:
            return "temporary"
        role = e.origin.role if e.origin is not None else "cotangent"
        return "cotangent" if role in ("cotangent", "accumulation", "zero") else "temporary"

    def peak_inside(self, e: Equation) -> int:
        """Bytes that the body of a loop takes for one iteration, or the largest branch of a cond, beside operands and results."""
        peaks = []
        for body in bodies(e):
            model = Model(self.derivation, ())
            given: dict[Atom, Buffer] = {
                v: Buffer(0, "argument", 0, 0) for v in (*body.program.invars, *body.program.constvars)
            }
            model.walk(body.program, given, ())
            peaks.append(max((sum(kinds) for kinds in model.alive_by_step()), default=0))
        return max(peaks, default=0)

    def settle(self) -> None:
        """Lets results be written into operands that die there, each operand once."""
        used: set[int] = set()
        for now, candidates, result in self.into:
            for buffer in candidates:
                is_there = buffer.born < now or buffer.kind == "argument"
                dies = buffer.last == now and is_there and id(buffer) not in used
                if dies and buffer.kind in _WRITTEN_INTO and not buffer.is_free and not result.is_free:
                    used.add(id(buffer))
                    buffer.last = now - 1
                    break

    def alive_by_step(self) -> np.ndarray:
        self.settle()
        n = len(self.steps)
        change = np.zeros((n + 1, len(KINDS)), np.int64)
        for b in self.buffers:
            if b.nbytes and not b.is_free and b.last >= b.born:
                change[min(b.born, n), KINDS.index(b.kind)] += b.nbytes
                if b.last + 1 <= n:
                    change[b.last + 1, KINDS.index(b.kind)] -= b.nbytes
        alive: np.ndarray = np.cumsum(change, axis=0)[:n]
        for step, inside in self.inside.items():
            alive[step, KINDS.index("temporary")] += inside
        return alive

    def finished(self) -> MemoryTimeline:
        alive = self.alive_by_step()
        steps = tuple(
            Step(e, within, is_backward, tuple(row))
            for (e, within, is_backward), row in zip(self.steps, alive.tolist(), strict=True)
        )
        return MemoryTimeline(self.derivation.primal.name, steps, tuple(self.values()), self.derivation, self.donated)

    def values(self) -> Iterator[Live]:
        """What takes memory at some step: a value, or the body of a loop while it runs."""
        for b in self.buffers:
            if not b.nbytes or b.is_free or not b.born <= min(b.last, len(self.steps) - 1):
                continue
            location = b.location
            if location is None and b.equation is not None:
                location = location_of(b.equation, b.within)
            what = b.name or what_makes(b.equation, b.within)
            yield Live(what, b.type, b.nbytes, b.kind, b.born, b.last, b.equation, location, b.residuals)
        for step, taken in self.inside.items():
            e, within, _ = self.steps[step]
            inside = f"inside {what_makes(e, within)}"
            yield Live(inside, "", taken, "temporary", step, step, e, location_of(e, within))


def is_view(e: Equation) -> bool:
    """Whether the result is the operand's memory in another shape."""
    return e.primitive.name in _VIEWS and len(e.outvars) == 1 and sum(isinstance(a, Var) for a in e.invars) == 1


def is_made_where_read(e: Equation) -> bool:
    """Whether nothing holds the result: XLA makes a broadcast where it is read."""
    return e.primitive.name in _FREE


def may_write_into_an_operand(e: Equation) -> bool:
    """Whether the result may take the memory of an operand of its size that dies there."""
    if len(e.outvars) != 1 or e.programs:
        return False
    shape = getattr(e.outvars[0].aval, "shape", None)
    is_elementwise = all(getattr(a.aval, "shape", None) in (shape, ()) for a in e.invars)
    return is_elementwise or e.primitive.name in _WRITES_INTO


def _put_off(program: Program) -> Sequence[Equation]:
    """The equations with those that are computed again each right before the first that needs it.

    The jaxpr has them all before the first cotangent is formed, but nothing ties them to that place, and a scheduler that minds memory
    does not leave them there.
    """
    order = {e: i for i, e in enumerate(program.equations)}
    waiting = {e for e in order if e.origin is not None and e.origin.role == "recomputation" and not e.effects}
    if not waiting:
        return program.equations
    maker: dict[Atom, Equation] = {v: e for e in waiting for v in e.outvars}
    placed: list[Equation] = []
    for e in order:
        if e in waiting:
            continue
        needed: set[Equation] = set()
        pending = [*e.invars]
        while pending:
            made_by = maker.get(pending.pop())
            if made_by is not None and made_by in waiting and made_by not in needed:
                needed.add(made_by)
                pending += made_by.invars
        placed += sorted(needed, key=order.__getitem__)
        placed.append(e)
        waiting -= needed
    return [*placed, *(e for e in order if e in waiting)]


_ANY_INDEX = re.compile(r"\[\d+\]")


def _devices(equation: Equation) -> int:
    if equation.primitive is not compat.shard_map_p:
        return 1
    mesh = equation.params["mesh"]
    return math.prod(mesh.shape[a] for a in equation.params["newly_manual_axes"])


def _plural(kind: str) -> str:
    return "temporaries" if kind == "temporary" else f"{kind}s"


def what_makes(equation: Equation | None, within: Sequence[Equation]) -> str:
    if equation is None:
        return ""
    inside = " in ".join(dict.fromkeys(call_name(e) for e in reversed(within)))
    return f"{equation.primitive.name}{f' in {inside}' if inside else ''}"


def _with(found: XlaMemory, without: int) -> XlaMemory:
    return XlaMemory(found.arguments, found.results, found.temporaries, found.reused, found.backend, without)


def xla_memory(derivation: Derivation, donated: Sequence[bool]) -> XlaMemory:
    forward, backward = as_function(derivation.forward), as_function(derivation.backward)
    n, cts = derivation.n_residuals, derivation.backward.invars[derivation.n_residuals :]

    def gradient(*inputs: Any) -> list[Any]:
        outs = forward(*inputs)
        n_results = len(outs) - n
        ones = [jax.numpy.ones(v.aval.shape, v.aval.dtype) for v in cts]
        return [*outs[:n_results], *backward(*outs[n_results:], *ones)]

    inputs = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type, sharding=s)
        for v, s in zip(derivation.primal.invars, derivation.placed, strict=True)
    ]
    jitted: Callable[..., Any] = jax.jit(gradient, donate_argnums=tuple(i for i, d in enumerate(donated) if d))
    with counting("compiling"):
        found = jitted.lower(*inputs).compile().memory_analysis()  # type: ignore[attr-defined]
    return XlaMemory(
        int(found.argument_size_in_bytes), int(found.output_size_in_bytes), int(found.temp_size_in_bytes),
        int(found.alias_size_in_bytes), jax.default_backend(),
    )  # fmt: skip
