"""The effect of donation in a jitted call: which results reuse which arguments' memory, and how much less it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from jaxviz.analysis.devices import types_to_lower
from jaxviz.analysis.donation import match_donations
from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.arguments import flat_arguments, placed_at
from jaxviz.derivation import derive
from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.syntax import Atom, Literal, Program
from jaxviz.ir.trace import noting_arguments
from jaxviz.report.charts import Bars
from jaxviz.report.report import Listed, Report, Table
from jaxviz.report.tables import counted, format_bytes, listed, more_rows, nbytes, repeated, together
from jaxviz.runtime.cache import function_name, jitted_of
from jaxviz.runtime.compilations import unwatched
from jaxviz.runtime.stoppable import compiled_by_jax
from jaxviz.transforms.driver import select
from jaxviz.xla.compat.jitted import buffers_of, jitted_anew, jitted_function, wraps_a_jit
from jaxviz.xla.compilations.compiled import (
    aliases_of,
    as_compiled,
    compiled_inputs,
    donated_inputs,
    input_shardings,
    result_paths,
)


@dataclass(frozen=True, slots=True)
class Donated:
    """The effect of one donated argument.

    Args:
      path: such as `params['w']`.
      type: such as `f32[8,4]`.
      nbytes: of the whole.
      result: the path of the result that reuses its memory, such as `result['w']`; '' if none does.
      reason: why none does; '' if one does.
      is_copied: whether XLA copies it before that result is written, because it is read later; until then the copy
        takes as much memory.
    """

    path: str
    type: str
    nbytes: int
    result: str
    reason: str = ""
    is_copied: bool = False

    @property
    def is_spared(self) -> bool:
        """Whether a result reuses its memory, and XLA does not copy it first."""
        return bool(self.result) and not self.is_copied

    @property
    def text(self) -> str:
        """`result['w'] reuses its memory`."""
        if not self.result:
            return self.reason
        copied = "; but XLA copies it first, because it is read after that result is written"
        return f"{self.result} reuses its memory{copied if self.is_copied else ''}"


@dataclass(frozen=True, eq=False, repr=False)
class DonationReport(Report, schema="donation"):
    """The effect of donation in a call.

    >>> found = jaxviz.donation(step, params, grads)
    >>> found.spared, found.unused, found.advice

    Args:
      function: the name of the function.
      donated: see `Donated`.
      others: arguments that are not donated but whose memory a result could reuse: path, bytes, path of the result.
      notes: further remarks on the arguments.
      is_told: whether XLA reports which results reuse arguments' memory; otherwise the report has JAX's request.
      memory: bytes that the call takes on one device, with donation and without: the sum of XLA's figures for
        arguments, results and temporaries. None if the backend does not report them.
      n_devices: the number of devices that it runs on.
      twice: for each array that is donated and passed a second time, so that the call fails, its arguments.
    """

    function: str
    donated: tuple[Donated, ...]
    others: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]
    is_told: bool
    memory: tuple[int, int] | None
    n_devices: int
    twice: tuple[tuple[str, ...], ...]

    @property
    def spared(self) -> int | None:
        """How many bytes less the call takes on one device; None if the backend does not report them."""
        return None if self.memory is None else self.memory[1] - self.memory[0]

    @property
    def unused(self) -> int:
        """Bytes of donated arguments whose memory no result reuses."""
        return sum(d.nbytes for d in self.donated if not d.result)

    @property
    def summary(self) -> str:
        """`donation of step: results reuse 2 of 3 donated arguments, so the call takes 60 B less (180 B → 120 B)`."""
        if self.twice:
            return f"donation of {self.function}: the call fails, because a donated array is passed twice: {self._same}"
        n, used = len(self.donated), sum(bool(d.result) for d in self.donated)
        if not n:
            return f"donation of {self.function}: it donates no argument"
        nothing = f"; {format_bytes(self.unused)} donated without effect" if self.unused else ""
        unreported = "" if self.is_told else "; this is what JAX asked XLA for, and XLA does not report what it did"
        return (
            f"donation of {self.function}: results reuse {used} of "
            f"{counted(n, 'donated argument')}{self._less}{nothing}{unreported}"
        )

    @property
    def _less(self) -> str:
        if self.memory is None or not any(d.result for d in self.donated):
            return ""
        before, after = format_bytes(self.memory[1]), format_bytes(self.memory[0])
        here = " on each device" if self.n_devices > 1 else ""
        if self.memory[0] == self.memory[1]:
            return f", which makes no difference: the call takes {before}{here} without it, too"
        if self.memory[0] > self.memory[1]:
            return f", which does not help: the call takes {after}{here}, and {before} without it"
        return f", so the call takes {format_bytes(self.memory[1] - self.memory[0])} less{here} ({before} → {after})"

    @cached_property
    def _same(self) -> str:
        """Which arguments are the same array, those of repeated layers together."""
        groups = grouped(self.twice, lambda paths: tuple(map(pattern, paths)))
        return "; ".join(together(alike([*column]) for column in zip(*g, strict=True)) for g in groups)

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice, a sentence or two each."""
        copy = "Copy all but one of them, as with jnp.copy, or do not donate them."
        return (*([copy] if self.twice else []), *self.notes, *([self._could()] if self.others else []))

    def _could(self) -> str:
        size = format_bytes(sum(n for _, n, _ in self.others))
        groups = grouped(self.others, lambda other: (pattern(other[0]), pattern(other[2])))
        groups.sort(key=lambda g: -sum(n for _, n, _ in g))
        columns = ([alike([*column]) for column in ([p for p, *_ in g], [r for *_, r in g])] for g in groups)
        sizes = (format_bytes(sum(n for _, n, _ in g)) for g in groups)
        shown = listed((f"{path} (to {result}, {n})" for (path, result), n in zip(columns, sizes, strict=True)), 4)
        return (
            f"Donating {shown} could free {size}, if the caller does not read "
            f"{'it' if len(self.others) == 1 else 'them'} afterwards."
        )

    def _chart(self) -> Bars:
        kind = lambda d: "spared" if d.is_spared else "copied" if d.is_copied else "for nothing"
        rows_of = [(d.path, d.nbytes, kind(d)) for d in self.donated]
        rows_of += [(path, n, "could be donated") for path, n, _ in self.others]
        groups = grouped(rows_of, lambda row: (pattern(row[0]), row[2]))
        rows = [(alike([path for path, *_ in g]), sum(n for _, n, _ in g), g[0][2]) for g in groups]
        return Bars(rows, f"bytes of the arguments of {self.function}, by the effect of donation")

    def _parts(self) -> Iterator[Table | Listed]:
        groups = grouped(self.donated, lambda d: (pattern(d.path), d.type, pattern(d.text)))
        groups.sort(key=lambda g: -sum(d.nbytes for d in g))
        rows = [
            (
                alike([d.path for d in g]), repeated(len(g), g[0].type),
                format_bytes(sum(d.nbytes for d in g)), alike([d.text for d in g]),
            )
            for g in groups
        ]  # fmt: skip
        rest = lambda n: format_bytes(sum(d.nbytes for g in groups[n:] for d in g))
        more = lambda n: more_rows(len(groups) - n, sum(map(len, groups[n:])), "argument", rest(n))
        yield Table(("donated", "type", "bytes", ""), rows, "<<><", more=more)
        yield Listed(self.advice)

    _data = (
        "function", "spared", "unused", "is_told", "memory", "n_devices", "twice", "donated", "notes", "others=_others",
    )  # fmt: skip

    @property
    def _others(self) -> list[dict[str, str | int]]:
        return [{"path": path, "nbytes": nbytes, "result": result} for path, nbytes, result in self.others]


@api_boundary
def donation(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> DonationReport:
    """Says which donated arguments of a jitted call a result reuses, how much less it takes, and why the others have no
    effect. It compiles the call, with donation and without, and does not run it.

    >>> print(jaxviz.donation(step, params, grads))
    donation of step: results reuse 1 of 2 donated arguments, so the call takes 60 B less (192 B → 132 B); ...

    XLA reports which results reuse the memory of arguments (`input_output_alias` in the compiled program), and whether
    it copies an argument first. The difference is that of the bytes that the two compiled programs take.

    Args:
      f: a function of `jax.jit` or `jaxviz.jit`, or of a library that wraps it, such as Equinox's `filter_jit`.
      *args, **kwargs: its arguments.

    Raises:
      TypeError: f is not jitted.
      the errors of JAX when it traces and compiles f.
    """
    with unwatched(), noting_arguments(f, args, kwargs), without_leaks(f, args, kwargs):
        call = _call_of(f, args, kwargs)
    program, is_donated, names, results, compiled = call.program, call.donated, call.names, call.results, call.compiled
    shardings = input_shardings(compiled, program)
    taken_inputs = [s is not None for s in shardings]
    places, numbers = compiled_inputs(program, taken_inputs), _copied(compiled)
    copied = {i for n, i in enumerate(places) if n in numbers}
    donated = []
    for d in as_compiled(program, is_donated, compiled, taken_inputs, results.__getitem__):
        aval = program.invars[d.argument].aval
        result = "" if d.result is None else results[d.result]
        text, is_copied = aval.str_short(short_dtypes=True), bool(result) and d.argument in copied
        donated.append(Donated(names[d.argument], text, nbytes(aval), result, d.reason, is_copied))
    taken = {d.result for d in donated}
    could = [
        (names[d.argument], nbytes(program.invars[d.argument].aval), results[d.result])
        for d in match_donations(program, [True] * len(is_donated))
        if d.result is not None and not is_donated[d.argument] and results[d.result] not in taken
    ]
    at_risk = {places[n] for n in donated_inputs(compiled) if n < len(places)}
    n_devices = max((len(s.device_set) for s in shardings if s is not None), default=1)
    with_it = _bytes_taken(compiled)
    without = with_it if not taken - {""} else _bytes_taken(call.without_donation())
    return DonationReport(
        call.name, tuple(donated), tuple(could), _on_host(call.leaves, is_donated, names),
        aliases_of(compiled) is not None, None if with_it is None or without is None else (with_it, without), n_devices,
        tuple(_passed_twice(call, at_risk, shardings)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _JittedCall:
    """A call of a jitted function, compiled: for each input whether it is donated, its name and its value; the names of
    the results; and what compiles the same without donation."""

    name: str
    program: Program
    donated: Sequence[bool]
    names: Sequence[str]
    leaves: Sequence[Any]
    results: Sequence[str]
    compiled: Any
    without_donation: Callable[[], Any]


def _call_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _JittedCall:
    underneath = jitted_of(f)
    if (jitted := jitted_function(underneath)) is not None:
        fun, info = jitted
        traced = underneath.trace(*args, **kwargs)
        flags = [x.donated for x in jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))]
        leaves = jax.tree.leaves(_dynamic(fun, info, args, kwargs))
        names = compat.argument_paths(fun, info, args, kwargs)
        anew = lambda: compiled_by_jax(jitted_anew(fun, info).trace(*args, **kwargs).lower())
        return _JittedCall(
            function_name(fun), read_jaxpr(traced.jaxpr), flags, names, leaves, result_paths(traced),
            compiled_by_jax(traced.lower()), anew,
        )  # fmt: skip
    if wraps_a_jit(f) and (wrapped := _wrapped_call(f, args, kwargs)) is not None:
        return wrapped
    raise TypeError(f"{function_name(f)} is not jitted: pass jax.jit({function_name(f)}, donate_argnums=...)")


def _wrapped_call(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _JittedCall | None:
    """The one call of a jitted function that a wrapper makes, as a library's own `jit` does; None if it does more."""
    derivation = derive(f, *args, argnums=(), **kwargs)
    outer = derivation.primal
    if len(outer.equations) != 1 or of(outer.equations[0]) is not JIT:
        return None
    (e,) = outer.equations
    body, params = e.params["jaxpr"], e.params
    leaves, _, _, is_input = flat_arguments(args, kwargs, ())
    inputs = select(is_input, leaves)
    values: dict[Atom, tuple[str, Any]] = {
        v: ("a value that it closes over", x) for v, x in zip(outer.constvars, outer.consts, strict=True)
    }
    values |= {v: (name, x) for v, name, x in zip(outer.invars, outer.arg_names, inputs, strict=True)}
    operands = [values.get(a, ("a number", a.val if isinstance(a, Literal) else None)) for a in e.invars]
    paths = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(derivation.out_tree, outer.outvars))
    returned = {v: f"result{jax.tree_util.keystr(path)}" for path, v in paths}
    types = types_to_lower(body, [placed_at(x) for _, x in operands])

    def compiled(donated: Sequence[int]) -> Any:
        jitted = jax.jit(
            as_function(body), keep_unused=params["keep_unused"], in_shardings=params["in_shardings"],
            out_shardings=list(params["out_shardings"]), donate_argnums=donated,
        )  # fmt: skip
        return compiled_by_jax(jitted.lower(*types))

    return _JittedCall(
        outer.name, body, params["donated_invars"], [name for name, _ in operands], [x for _, x in operands],
        [returned.get(v, "a result that is not returned") for v in e.outvars],
        compiled([i for i, d in enumerate(params["donated_invars"]) if d]), lambda: compiled(()),
    )  # fmt: skip


def _dynamic(fun: Any, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _, positional, named = compat.static_arguments(fun, info, args, kwargs)
    return tuple(positional.values()), named


def _copied(compiled: Any) -> frozenset[int]:
    """The inputs of a compiled program that it copies."""
    try:
        entry = str(compiled.as_text()).partition("\nENTRY ")[2].partition("\n}")[0]
    except Exception:  # the backend provides no text
        return frozenset()
    parameters = re.findall(r"^\s*(?:ROOT )?%?(\S+) = .* parameter\((\d+)\)", entry, re.MULTILINE)
    number = {name: int(n) for name, n in parameters}
    copies = re.findall(r" copy\((?:\S+ )?%?([^\s)]+)\)", entry)
    return frozenset(number[name] for name in copies if name in number)


def _bytes_taken(compiled: Any) -> int | None:
    """The bytes of a compiled program's arguments, results and temporaries on one device; None if unknown."""
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.argument_size_in_bytes + results + memory.temp_size_in_bytes)


def _on_host(leaves: Sequence[Any], is_donated: Sequence[bool], names: Sequence[str]) -> tuple[str, ...]:
    on_device = (jax.Array, jax.ShapeDtypeStruct)
    on_host = [n for x, d, n in zip(leaves, is_donated, names, strict=True) if d and not isinstance(x, on_device)]
    stays = "not on a device; JAX donates the copy that it puts on a device, and your array stays valid."
    return (f"{', '.join(on_host[:4])}: {stays}",) if on_host else ()


def _passed_twice(call: _JittedCall, at_risk: Set[int], shardings: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """The names of the inputs that share memory which the call may overwrite, for each such memory."""
    sharing: dict[Any, list[int]] = {}
    for i, (x, s) in enumerate(zip(call.leaves, shardings, strict=True)):
        # What the program does not take is not passed, and what is laid out otherwise is copied.
        if s is not None and isinstance(x, jax.Array) and x.sharding.is_equivalent_to(s, x.ndim):
            for buffer in buffers_of(x):
                sharing.setdefault(buffer, []).append(i)
    for same in dict.fromkeys(tuple(places) for places in sharing.values()):
        if len(same) > 1 and at_risk & set(same):
            yield tuple(call.names[i] for i in same)
