"""The effect of donation in one call of a jitted function: which result reuses which argument's memory, the bytes saved, and why not more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.analysis.devices import types_to_lower
from jaxviz.analysis.donation import match_donations
from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.derivation import derive, flat_arguments, placed_at
from jaxviz.features.compilations.compiled import (
    aliases_of,
    as_compiled,
    compiled_inputs,
    input_shardings,
    result_paths,
)
from jaxviz.higher_order import of
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.syntax import Atom, Literal, Program
from jaxviz.ir.trace import noting_arguments
from jaxviz.report.pictures import bars
from jaxviz.report.report import Listed, Report, Table, attributes
from jaxviz.report.tables import format_bytes, listed, more_rows, nbytes, repeated
from jaxviz.runtime.cache import function_name, jitted_of
from jaxviz.runtime.compilations import unwatched
from jaxviz.runtime.stoppable import compiled_by_jax


@dataclass(frozen=True, slots=True)
class Donated:
    """The effect of one donated argument.

    Args:
      path: such as `params['w']`.
      type: such as `f32[8,4]`.
      nbytes: of the whole.
      result: the path of the result that reuses its memory, such as `result['w']`; '' if none does.
      reason: why none does; '' if one does.
      is_copied: whether XLA copies it before that result is written, because it is read later; the copy then
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
        """Whether its bytes are saved."""
        return bool(self.result) and not self.is_copied

    @property
    def text(self) -> str:
        """`result['w'] reuses its memory`."""
        if not self.result:
            return self.reason
        copied = "; but XLA copies it first, because it is read after that result is written: no memory is saved"
        return f"{self.result} reuses its memory{copied if self.is_copied else ''}"


@dataclass(frozen=True, eq=False, repr=False)
class DonationReport(Report):
    """The effect of donation in a call.

    >>> found = jaxviz.donation(step, params, grads)
    >>> found.spared, found.unused, found.advice

    Args:
      function: the name of the function.
      donated: see `Donated`.
      others: arguments that are not donated but whose memory a result could reuse: path, bytes, path of the result.
      notes: further remarks on the arguments.
      is_told: whether XLA reports which results reuse the memory of arguments; otherwise the report has what JAX asked XLA for.
    """

    function: str
    donated: tuple[Donated, ...]
    others: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]
    is_told: bool

    @property
    def spared(self) -> int:
        """Bytes that the call saves, since results reuse the memory of arguments."""
        return sum(d.nbytes for d in self.donated if d.is_spared)

    @property
    def unused(self) -> int:
        """Bytes of arguments that are donated without effect."""
        return sum(d.nbytes for d in self.donated) - self.spared

    @property
    def summary(self) -> str:
        """`donation of step: 2 of 3 donated arguments save 60 B; 12 B donated without effect`."""
        n, used = len(self.donated), sum(d.is_spared for d in self.donated)
        if not n:
            return f"donation of {self.function}: it donates no argument"
        nothing = f"; {format_bytes(self.unused)} donated without effect" if self.unused else ""
        asked = "" if self.is_told else "; this is what JAX asked XLA for, and XLA does not report what it did"
        return f"donation of {self.function}: {used} of {n} donated arguments save {format_bytes(self.spared)}{nothing}{asked}"

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice, a sentence or two each."""
        return (*self.notes, *([self._could()] if self.others else []))

    def _could(self) -> str:
        size = format_bytes(sum(n for _, n, _ in self.others))
        groups = grouped(self.others, lambda other: (pattern(other[0]), pattern(other[2])))
        groups.sort(key=lambda g: -sum(n for _, n, _ in g))
        columns = ([alike([*column]) for column in ([p for p, *_ in g], [r for *_, r in g])] for g in groups)
        sizes = (format_bytes(sum(n for _, n, _ in g)) for g in groups)
        shown = listed((f"{path} (to {result}, {n})" for (path, result), n in zip(columns, sizes, strict=True)), 4)
        return f"Donating {shown} could save {size}, if the caller does not read {'it' if len(self.others) == 1 else 'them'} afterwards."

    def _picture(self) -> str:
        kind = lambda d: "spared" if d.is_spared else "copied" if d.is_copied else "for nothing"
        found = [(d.path, d.nbytes, kind(d)) for d in self.donated]
        found += [(path, n, "could be donated") for path, n, _ in self.others]
        groups = grouped(found, lambda row: (pattern(row[0]), row[2]))
        rows = [(alike([path for path, *_ in g]), sum(n for _, n, _ in g), g[0][2]) for g in groups]
        return bars(rows, f"bytes of the arguments of {self.function}, by the effect of donation")

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

    def to_dict(self) -> dict[str, Any]:
        others = [{"path": p, "nbytes": n, "result": r} for p, n, r in self.others]
        return {**attributes(self, ("function", "spared", "unused", "is_told", "donated", "notes")), "others": others}


@api_boundary
def donation(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> DonationReport:
    """Says which donated arguments of a jitted call a result reuses, and why the others have no effect. It compiles the call without running it.

    >>> print(jaxviz.donation(step, params, grads))
    donation of step: 1 of 2 donated arguments saves 60 B; 12 B donated without effect
    ...

    XLA reports which results reuse the memory of arguments (`input_output_alias` in the compiled program), and whether it copies an argument
    first, which takes as much memory as it saves.

    Args:
      f: a function of `jax.jit` or `jaxviz.jit`, or of a library that wraps it, such as Equinox's `filter_jit`.
      *args, **kwargs: its arguments.

    Raises:
      TypeError: f is not jitted.
      the errors of JAX when it traces and compiles f.
    """
    with unwatched(), noting_arguments(f, args, kwargs), without_leaks(f, args, kwargs):
        call = _call_of(f, args, kwargs)
    program, given, names, results, compiled = call.program, call.given, call.names, call.results, call.compiled
    kept = [s is not None for s in input_shardings(compiled, program)]
    numbers = _copied(compiled)
    copied = {i for n, i in enumerate(compiled_inputs(program, kept)) if n in numbers}
    donated = []
    for d in as_compiled(program, given, compiled, kept, results.__getitem__):
        aval = program.invars[d.argument].aval
        result = "" if d.result is None else results[d.result]
        donated.append(
            Donated(
                names[d.argument], aval.str_short(short_dtypes=True), nbytes(aval), result, d.reason,
                bool(result) and d.argument in copied,
            )
        )  # fmt: skip
    taken = {d.result for d in donated}
    could = [
        (names[d.argument], nbytes(program.invars[d.argument].aval), results[d.result])
        for d in match_donations(program, [True] * len(given))
        if d.result is not None and not given[d.argument] and results[d.result] not in taken
    ]
    notes = _notes(call.leaves, given, names)
    return DonationReport(call.name, tuple(donated), tuple(could), notes, aliases_of(compiled) is not None)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a jitted function, compiled.

    Args:
      name: of the function.
      program: what is jitted.
      given: for each of its inputs whether it is donated.
      names, leaves: of its inputs, and their values.
      results: the names of its results.
      compiled: the compiled program.
    """

    name: str
    program: Program
    given: Sequence[bool]
    names: Sequence[str]
    leaves: Sequence[Any]
    results: Sequence[str]
    compiled: Any


def _call_of(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    underneath = jitted_of(f)
    if (jitted := compat.jitted_function(underneath)) is not None:
        fun, info = jitted
        traced = underneath.trace(*args, **kwargs)
        given = [x.donated for x in jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))]
        leaves = jax.tree.leaves(_dynamic(fun, info, args, kwargs))
        names = compat.argument_paths(fun, info, args, kwargs)
        compiled = compiled_by_jax(traced.lower())
        return _Call(function_name(fun), read_jaxpr(traced.jaxpr), given, names, leaves, result_paths(traced), compiled)
    if compat.wraps_a_jit(f) and (wrapped := _wrapped_call(f, args, kwargs)) is not None:
        return wrapped
    raise TypeError(f"{function_name(f)} is not jitted: pass jax.jit({function_name(f)}, donate_argnums=...)")


def _wrapped_call(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """The one call of a jitted function that a wrapper of one makes, as a library's own `jit` does; None if it does something else."""
    derivation = derive(f, *args, argnums=(), **kwargs)
    outer = derivation.primal
    if len(outer.equations) != 1 or of(outer.equations[0]) is not JIT:
        return None
    (e,) = outer.equations
    body, params = e.params["jaxpr"], e.params
    leaves, _, _, is_input = flat_arguments(args, kwargs, ())
    inputs = [x for x, given in zip(leaves, is_input, strict=True) if given]
    values: dict[Atom, tuple[str, Any]] = {
        v: ("a value that it closes over", x) for v, x in zip(outer.constvars, outer.consts, strict=True)
    }
    values |= {v: (name, x) for v, name, x in zip(outer.invars, outer.arg_names, inputs, strict=True)}
    given = [values.get(a, ("a number", a.val if isinstance(a, Literal) else None)) for a in e.invars]
    paths = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(derivation.out_tree, outer.outvars))
    returned = {v: f"result{jax.tree_util.keystr(path)}" for path, v in paths}
    jitted = jax.jit(
        as_function(body), keep_unused=params["keep_unused"], in_shardings=params["in_shardings"],
        out_shardings=list(params["out_shardings"]), donate_argnums=[i for i, d in enumerate(params["donated_invars"]) if d],
    )  # fmt: skip
    placed = [placed_at(x) for _, x in given]
    return _Call(
        outer.name, body, params["donated_invars"], [name for name, _ in given], [x for _, x in given],
        [returned.get(v, "a result that is not returned") for v in e.outvars],
        compiled_by_jax(jitted.lower(*types_to_lower(body, placed))),
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
    number = {
        name: int(n) for name, n in re.findall(r"^\s*(?:ROOT )?%?(\S+) = .* parameter\((\d+)\)", entry, re.MULTILINE)
    }
    copies = re.findall(r" copy\((?:\S+ )?%?([^\s)]+)\)", entry)
    return frozenset(number[name] for name in copies if name in number)


def _notes(leaves: Sequence[Any], given: Sequence[bool], names: Sequence[str]) -> tuple[str, ...]:
    notes = []
    on_host = [
        n
        for x, d, n in zip(leaves, given, names, strict=True)
        if d and not isinstance(x, (jax.Array, jax.ShapeDtypeStruct))
    ]
    if on_host:
        notes.append(
            f"{', '.join(on_host[:4])}: not on a device; JAX donates the copy that it puts on a device, and your array stays valid."
        )
    times = Counter(map(id, leaves))
    for x, is_donated, name in zip(leaves, given, names, strict=True):
        if is_donated and times[id(x)] > 1 and isinstance(x, jax.Array):
            others = [n for y, n in zip(leaves, names, strict=True) if y is x and n != name]
            notes.append(
                f"{name} is donated and is the same array as {', '.join(others)}: the call will fail. Copy one of them."
            )
            break
    return tuple(notes)
