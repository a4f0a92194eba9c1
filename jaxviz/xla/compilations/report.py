"""What JAX compiled, and why again: what changed in the cache key, at which call, for how long, and what to do."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from jaxviz.features.probes.probes import Spec
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.origin import Location
from jaxviz.report.charts import Lanes
from jaxviz.report.data import Data
from jaxviz.report.report import Listed, Part, Report, Table
from jaxviz.report.tables import counted, format_seconds, short_location
from jaxviz.runtime import compilations
from jaxviz.runtime.cache import function_name, jitted_of
from jaxviz.runtime.compilations import CacheKey, Compilation, KeyValue, Leaf, Owner
from jaxviz.xla.compat.jitted import jitted_function, mesh_text, tree_differences, unequal_fields
from jaxviz.xla.compilations.advice import advice_on

_NEAREST_OF = 64
"""How many earlier programs a new one is compared with."""

_SHOWN = 20

_FIRST = "call jaxviz.watch_compilations() at the start, or run it again after jax.clear_caches()"


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One change in the cache key.

    Args:
      kind: 'shape', 'dtype', 'shape and dtype', 'weak type', 'place', 'static', 'static function' or 'static object' if
        it is compared by identity, 'static field' of an object, 'tree', 'function', 'wrapper' for another partial
        application, method or wrapper of one function, 'closure', 'options', 'config', 'watch', for what `jaxviz.watch`
        asks of probes; or 'part', for a different part of the function that a transform outside of `jit` compiles.
      path: of the argument, such as `params['w']`; the name of the static argument, the variable, the option.
      before, after: as text; '' if there is nothing to say.
    """

    kind: str
    path: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        match self.kind:
            case "function":
                return "a new function object"
            case "wrapper":
                return "a new object around the function"
            case "part":
                return "a different part of the function"
            case "tree" if not self.before:
                return f"{self.path} is new"
            case "tree" if not self.after:
                return f"{self.path} is gone"
            case "static" | "static function" | "static object" | "static field":
                return f"{self.kind} {self.path}: {self.before} → {self.after}"
            case "closure":
                return f"it closes over {self.path}: {self.before} → {self.after}"
        return f"{self.path}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class Recompilation(Data):
    """One compilation of a function.

    Args:
      number: its number among the compilations of the function, from 1.
      site: the user's line that called it.
      since: the number of the earlier compilation that it differs least from; None for the first.
      changes: what differs from that one; empty if the same program had been compiled but was no longer cached.
      trace, lower, compile: seconds; None for a phase that was skipped because its result was cached.
      ahead: whether it was requested by `f.lower(...).compile()`.
      began: when, in seconds since the epoch.
    """

    number: int
    site: Location | None
    since: int | None
    changes: tuple[KeyChange, ...]
    trace: float | None
    lower: float | None
    compile: float | None
    ahead: bool = False
    began: float = 0.0

    @property
    def text(self) -> str:
        """`x: f32[3] → f32[4]`."""
        if self.since is None:
            return "the first"
        if not self.changes:
            return f"nothing: program {self.since} was no longer cached (cleared or evicted)"
        return "; ".join(map(str, self.changes))


@dataclass(frozen=True, eq=False, repr=False)
class FunctionCompilations(Report, schema="explain_recompile.function"):
    """The compilations of one function.

    >>> found = jaxviz.explain_recompile(step)
    >>> found.count, found.seconds, found.cause

    Args:
      name: the name of the function.
      definition: where it is defined.
      compiled: the compilations in order; see `Recompilation`.
      n_functions: how many function objects this definition created.
      only_traced: how often it was only traced: by `jax.make_jaxpr`, `jax.eval_shape`, `f.trace`, or in an error.
      is_part: whether these are parts of a jitted function that a transform outside of `jit`, such as `jax.grad`,
        compiled one by one.
      is_watched: whether compilations were watched before this report was requested.
      call: for the given arguments, the number of the compilation that they use, or None if there is none, and how they
        differ from the nearest one. None if no arguments were given.
    """

    name: str
    definition: Location | None
    compiled: tuple[Recompilation, ...]
    n_functions: int
    only_traced: int = 0
    is_part: bool = False
    call: tuple[int | None, tuple[KeyChange, ...]] | None = None
    is_watched: bool = True

    @property
    def count(self) -> int:
        """How often it was compiled."""
        return len(self.compiled)

    @property
    def seconds(self) -> float:
        """The total seconds of tracing, lowering and compiling."""
        return sum(x for r in self.compiled for x in (r.trace, r.lower, r.compile) if x is not None)

    @property
    def summary(self) -> str:
        """`step (train.py:12): compiled 3 times in 0.21 s`."""
        n, at = self.count, f" ({short_location(self.definition)})" if self.definition else ""
        traced = f"; traced {_times(self.only_traced)}{' without' if n else ''}" if self.only_traced else ""
        parts = ", in parts, by a transform outside of jit" if self.is_part else ""
        never = "never compiled" if self.only_traced else "not compiled while compilations were watched"
        if not self.is_watched:
            never = f"not known, since compilations are watched only from now on; {_FIRST}"
        compiled = f"compiled {_times(n)} in {format_seconds(self.seconds)}" if n else never
        return f"{self.name}{at}: {compiled}{parts}{traced}"

    @property
    def answer(self) -> str:
        """`A call with these arguments would be compiled: x: f32[3] → f32[4].`; '' if no arguments were given."""
        if self.call is None:
            return ""
        number, changes = self.call
        if number is not None:
            return f"A call with these arguments has been compiled: {number}."
        why = f": {'; '.join(map(str, changes))}" if changes else ", the first"
        return f"A call with these arguments would be compiled{why}."

    @property
    def cause(self) -> str:
        """What changed most often."""
        kinds = Counter(kind for r in self.compiled for kind in dict.fromkeys(c.kind for c in r.changes))
        if self.count < 2:
            return ""
        return ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common(3)) or "no longer cached"

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do, a sentence or two for each kind of change."""
        return tuple(advice_on(self))

    def _chart(self) -> Lanes:
        rows = [(f"{r.number} {r.text}", r.began, _phases(r)) for r in self.compiled[-_SHOWN:]]
        return Lanes(rows, f"when {self.name} was compiled, and why")

    def _parts(self) -> Iterator[Part]:
        yield self.answer
        shown = self.compiled[-_SHOWN:]
        if len(shown) < self.count:
            yield f"The last {len(shown)} of {self.count}:"
        yield Table(_HEADS, [_row(r) for r in shown], ">>><>>><")
        yield Listed(self.advice)

    _data = (
        "name", "definition", "count", "seconds", "n_functions", "only_traced", "is_part", "compiled", "advice",
        "answer",
    )  # fmt: skip


_HEADS = ("#", "was", "", "called at", "trace", "lower", "compile", "what changed")


def _phases(r: Recompilation) -> list[tuple[str, float]]:
    named = (("trace", r.trace), ("lower", r.lower), ("compile", r.compile))
    return [(phase, seconds) for phase, seconds in named if seconds is not None]


def _row(r: Recompilation) -> tuple[str, ...]:
    times = ["cached" if s is None else format_seconds(s) for s in (r.trace, r.lower, r.compile)]
    site = "" if r.site is None else short_location(r.site)
    return (str(r.number), "" if r.since is None else str(r.since), "ahead" if r.ahead else "", site, *times, r.text)


@dataclass(frozen=True, eq=False, repr=False)
class CompilationReport(Report, schema="explain_recompile"):
    """What JAX compiled while it was watched, by function, the longest time first.

    >>> with jaxviz.watch_compilations() as seen:
    ...     step(params, x)
    >>> seen.count, seen.functions

    The report that `watch_compilations` returns keeps growing; used as a context manager, it ends with the block.

    Args:
      records: the compilations.
      since: when the watch began, in seconds since the epoch.
    """

    records: Sequence[Compilation]
    since: float

    def __enter__(self) -> CompilationReport:
        return self

    def __exit__(self, *_: object) -> None:
        compilations.stop(self.records)

    @property
    def functions(self) -> tuple[FunctionCompilations, ...]:
        """The user's functions."""
        own = [c for c in self.records if c.owner == "program"]
        groups: dict[Any, list[Compilation]] = {}
        for c in own:
            groups.setdefault(_group(c), []).append(c)
        return tuple(sorted(map(_function, groups.values()), key=lambda f: -f.seconds))

    @property
    def library(self) -> tuple[Compilation, ...]:
        """JAX's own functions and single operations that the user's code called outside of `jit`."""
        return self._compiled_of("jax")

    @property
    def jaxviz(self) -> tuple[Compilation, ...]:
        """What jaxviz compiled for its own reports, such as `find_nan`."""
        return self._compiled_of("jaxviz")

    def _compiled_of(self, owner: Owner) -> tuple[Compilation, ...]:
        return tuple(c for c in self.records if c.owner == owner and c.is_compiled)

    @property
    def count(self) -> int:
        """How many programs XLA compiled, JAX's and jaxviz's own among them."""
        return sum(c.is_compiled for c in self.records)

    def __getitem__(self, index: int) -> FunctionCompilations:
        return self.functions[index]

    def __iter__(self) -> Iterator[FunctionCompilations]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    @property
    def summary(self) -> str:
        """`7 programs compiled in 0.41 s since 12:31:07: 3 of 1 function, 4 of jax's own outside of jit`."""
        if not self.records:
            return f"nothing compiled since {self._when}, when the watch began"
        n, own = self.count, sum(f.count for f in self.functions)
        seconds = sum(c.total for c in self.records)
        k = sum(f.count > 0 for f in self.functions)
        of = f": {own:,} of {counted(k, 'function')}, {len(self.library):,} of jax's own outside of jit" if n else ""
        of += f", {len(self.jaxviz):,} of jaxviz's own" if self.jaxviz else ""
        return f"{counted(n, 'program')} compiled in {format_seconds(seconds)} since {self._when}{of}"

    @property
    def _when(self) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self.since))

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for f in self.functions:
            at = "" if f.definition is None else short_location(f.definition)
            name = f"{f.name}, in parts" if f.is_part else f.name
            rows.append((name, at, str(f.count), format_seconds(f.seconds), f.cause))
        for name, others in (("jax's own, outside of jit", self.library), ("jaxviz's own", self.jaxviz)):
            seconds = format_seconds(sum(c.total for c in others))
            rows += [(name, "", str(len(others)), seconds, _text_of(others))] * bool(others)
        return rows

    def _chart(self) -> Lanes:
        rows = [(c.name, c.began, list(c.seconds.items())) for c in self.records if c.is_compiled]
        return Lanes(rows, "when each function was compiled")

    def _parts(self) -> Iterator[Part]:
        yield Table(("function", "defined at", "compiled", "in", "what changed"), self._rows(), "<<>><")
        yield Listed(f"{f.name}: {line}" for f in self.functions for line in f.advice)
        yield from (f"Some compilations were not seen: {problem}" for problem in compilations.failures()[-1:])

    _RECORD = ("name", "seconds=total")
    _data = ("count", "since", "functions", ("library", _RECORD), ("jaxviz", _RECORD))


def _text_of(records: Sequence[Compilation]) -> str:
    """The most frequent names, and the user's lines."""
    names = ", ".join(f"{name} ({n})" for name, n in Counter(c.name for c in records).most_common(4))
    sites = [f"{s} ({n})" for s, n in Counter(short_location(c.site) for c in records if c.site).most_common(2)]
    return f"{names}{'; most at ' + ', '.join(sites) if sites else ''}"


def _times(n: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(n, f"{n:,} times")


@overload
def explain_recompile() -> CompilationReport: ...
@overload
def explain_recompile(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> FunctionCompilations: ...
@api_boundary
def explain_recompile(
    f: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
) -> FunctionCompilations | CompilationReport:
    """Explains why a jitted function was compiled again: for each time the call, what changed, and the seconds.

    Call `watch_compilations()` at the start: nothing is watched before. Without that, the report says so, and
    compilations are watched from then on. Each compilation is compared with the most similar earlier one.

    >>> jaxviz.watch_compilations()
    >>> print(jaxviz.explain_recompile(step))
    step (train.py:12): compiled twice in 61 ms
    #  was  called at    trace    lower   compile  what changed
    -  ---  -----------  -------  ------  -------  -----------------------------
    1       train.py:30  1.2 ms   4 ms    28 ms    the first
    2    1  train.py:30  0.9 ms   4 ms    23 ms    params['w']: f32[3] → f32[4]

    Args:
      f: a function of `jax.jit` or of `jaxviz.jit`, or the function that was jitted. All functions of one definition
        count as one. Without it, all functions.
      *args, **kwargs: of a possible call, which is not made: the report says whether it would be compiled, and why.

    Raises:
      TypeError: f is not a function; or arguments are given but f is not jitted.
    """
    if f is not None:
        compat.check_callable(f)
    records = tuple(compilations.LOG)
    if f is None:
        if not records and not compilations.is_watching():
            watch_compilations()
        return CompilationReport(records, compilations.began() or time.time())
    fun = jitted_of(f)
    jitted = jitted_function(fun)
    fun = fun if jitted is None else jitted[0]
    at, name, this = compilations.definition_of(fun), function_name(fun), compilations.identity(fun)
    own = [
        c for c in records if c.kind != "part" and (c.function == this or (at and (c.definition, c.name) == (at, name)))
    ]
    is_watched = bool(own) or compilations.is_watching()
    if not is_watched:
        watch_compilations()
    report = _function(own) if own else FunctionCompilations(name, at, (), 0, is_watched=is_watched)
    if not args and not kwargs:
        return report
    if jitted is not None:
        key = compilations.key_of(fun, jitted[1], args, kwargs)
    elif own and hasattr(fun, "__wrapped__"):
        key = compilations.key_of_wrapped(fun, args, kwargs)
        this = compilations.identity(compilations.root_function(fun))
    else:
        raise TypeError(f"{name} is not jitted, so its calls are not compiled; pass jax.jit({name})")
    return replace(report, call=_possible_call(name, this, key, [c for c in own if c.is_compiled]))


def _possible_call(
    name: str, this: int, key: CacheKey, compiled: Sequence[Compilation]
) -> tuple[int | None, tuple[KeyChange, ...]]:
    call = Compilation(0, name, "call", None, this, None, key, "program", is_primitive=False)
    since, changes = nearest(call, compiled)
    return (None if since is None or changes else compiled.index(since) + 1), changes


def watch_compilations(on: bool = True) -> CompilationReport:
    """Watches what JAX compiles from now on, for `explain_recompile` and for the report that it returns.

    >>> with jaxviz.watch_compilations() as seen:  # or, without `with`, until watch_compilations(False)
    ...     train(params)
    >>> print(seen)
    >>> assert seen.count <= 1

    A call that finds its program in the cache has no extra cost; a call that compiles takes about 1 % longer.

    Args:
      on: False ends every watch. `explain_recompile` still knows what was recorded.

    Returns:
      a report of what is compiled from now on.
    """
    if not on:
        compilations.stop_all()
    return CompilationReport(compilations.start() if on else (), time.time())


# --- differences ------------------------------------------------------------------------------------------------------


def _group(c: Compilation) -> Any:
    return c.kind == "part", c.name, c.definition or c.function


def _function(records: Sequence[Compilation]) -> FunctionCompilations:
    """The compilations of one group. They may differ from a program that was compiled before the first of them."""
    first = records[0]
    earlier = [c for c in compilations.LOG if c.number < first.number and _group(c) == _group(first) and c.is_compiled]
    compiled: list[Recompilation] = []
    before = list(earlier)
    for c in (c for c in records if c.is_compiled):
        since, changes = nearest(c, before)
        place = before.index(since) + 1 if since is not None else None
        trace, lower, compiling = (c.seconds.get(phase) for phase in ("trace", "lower", "compile"))
        before.append(c)
        is_ahead = c.kind == "ahead"
        compiled.append(Recompilation(len(before), c.site, place, changes, trace, lower, compiling, is_ahead, c.began))
    return FunctionCompilations(
        first.name, first.definition, tuple(compiled), len({c.function for c in records}),
        len(records) - len(compiled), first.kind == "part"
    )  # fmt: skip


def nearest(c: Compilation, earlier: Sequence[Compilation]) -> tuple[Compilation | None, tuple[KeyChange, ...]]:
    """The earlier program that differs least from a new one; like in JAX, one of the same function if there is one."""
    if not earlier:
        return None, ()
    of_it = [e for e in earlier if e.function == c.function] or earlier
    candidates = [(e, changes_between(e, c)) for e in of_it[-_NEAREST_OF:]]
    return min(reversed(candidates), key=lambda pair: sum(2 if c.kind == "shape and dtype" else 1 for c in pair[1]))


def changes_between(old: Compilation, new: Compilation) -> tuple[KeyChange, ...]:
    """The differences between the keys of two programs of one definition."""
    if old.key is None or new.key is None:
        return ()
    if new.kind == "part":  # programs with the same name and types may still differ: the jaxpr is part of the key
        return tuple(_key_changes(old.key, new.key)) or (KeyChange("part", new.name),)
    changes = []
    if old.function != new.function:
        kind = "wrapper" if old.root == new.root != 0 else "function"
        changes = [KeyChange(kind, new.name), *_changed_tokens("closure", old.key.closure, new.key.closure)]
    return (*changes, *_key_changes(old.key, new.key))


def _watch_change(before: Any, after: Any) -> KeyChange | None:
    """Says that other probes are watched, which is part of the key of jax's caches."""
    specs = [*(before or ()), *(after or ())] if isinstance(before, tuple) and isinstance(after, tuple) else []
    if not specs or not all(isinstance(s, Spec) for s in specs):
        return None
    named = lambda specs: ", ".join(dict.fromkeys(name for s in specs for name in s.names)) or "nothing"
    return KeyChange("watch", "jaxviz.watch", named(before), named(after))


def _key_changes(old: CacheKey, new: CacheKey) -> Iterator[KeyChange]:
    for name in old.config.keys() | new.config.keys():
        before, after = old.config.get(name), new.config.get(name)
        if before is not after and before != after:
            text = mesh_text if name in compat.MESH_IN_USE else str
            yield _watch_change(before, after) or KeyChange("config", name, text(before), text(after))
    for name in old.options:
        if old.options[name] != new.options.get(name):
            yield KeyChange("options", name, old.options[name], new.options.get(name, ""))
    yield from _changed_tokens("static", old.static, new.static)
    if old.tree != new.tree:
        yield from _tree_changes(old, new)
    ways = "given by position", "given by keyword"
    yield from (KeyChange("tree", name, *ways) for name in new.by_keyword if name in old.by_position)
    yield from (KeyChange("tree", name, *ways[::-1]) for name in new.by_position if name in old.by_keyword)
    for path, leaf in new.leaves.items():
        if path in old.leaves and old.leaves[path] != leaf:
            yield from _leaf_changes(path, old.leaves[path], leaf)


def _changed_tokens(kind: str, old: dict[str, KeyValue], new: dict[str, KeyValue]) -> Iterator[KeyChange]:
    nothing = KeyValue("not given", None)
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name, nothing), new.get(name, nothing)
        if before.token != after.token:
            another = f"another {after.text.removeprefix('a ')}" if before.text == after.text else after.text
            yield KeyChange(_compared(kind, before, after), name, before.text, another)


def _compared(kind: str, before: KeyValue, after: KeyValue) -> str:
    """The kind of a change of a static value, which also says how JAX compares it."""
    if kind != "static" or not (before.by_identity or after.by_identity):
        return kind
    return "static function" if before.is_function or after.is_function else "static object"


def _tree_changes(old: CacheKey, new: CacheKey) -> Iterator[KeyChange]:
    gone = [p for p in old.leaves if p not in new.leaves]
    come = [p for p in new.leaves if p not in old.leaves]
    if gone or come:
        yield from (KeyChange("tree", p, after=new.leaves[p].type) for p in come)
        yield from (KeyChange("tree", p, before=old.leaves[p].type) for p in gone)
        return
    objects = unequal_fields(old.tree, new.tree)
    for path, before, after in tree_differences(old.tree, new.tree):
        if _FIELDS in before and _FIELDS in after:
            yield from _changed_fields(path, *next(objects, (None, (), ()))) or [
                KeyChange("static field", f"of {path}", _node(before), _node(after))
            ]
        else:
            yield KeyChange("tree", path or "the arguments", _node(before), _node(after))


_FIELDS = " with pytree metadata "


def _changed_fields(path: str, kind: Any, before: Any, after: Any) -> list[KeyChange]:
    """The static fields of an object that changed; empty if its class does not say which they are.

    Equinox and JAX mark them `static` in the metadata of a dataclass's fields, Flax as no `pytree_node`; what the class
    stores ends with their values.
    """
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    names = [f.name for f in fields if f.metadata.get("static") or f.metadata.get("pytree_node") is False]
    if not names or not all(isinstance(x, tuple) and len(x) >= len(names) for x in (before, after)):
        return []
    values = zip(names, before[-len(names) :], after[-len(names) :], strict=True)
    return [KeyChange("static field", f"{path}.{name}", repr(x), repr(y)) for name, x, y in values if x != y]


def _node(text: str) -> str:
    """`a list` of `<class 'list'>`, and `a Net with (2,)` of an object with static fields."""
    match = re.fullmatch(r"<class '(?:.*\.)?(\w+)'>(?: with pytree metadata (.*))?", text, re.DOTALL)
    return text if match is None else f"a {match[1]}{f' with {match[2]}' * bool(match[2])}"


def _leaf_changes(path: str, old: Leaf, new: Leaf) -> Iterator[KeyChange]:
    differs = {"shape": old.shape != new.shape, "dtype": old.dtype != new.dtype}
    what = " and ".join(name for name, is_other in differs.items() if is_other)
    if what or old.type != new.type:
        yield KeyChange(what or "place", path, old.type, new.type)
    if old.is_weak != new.is_weak:
        before, after = (f"{x.type}, {'weakly typed' if x.is_weak else 'not weakly'}" for x in (old, new))
        yield KeyChange("weak type", path, before, after)
    if old.place != new.place:
        nowhere = "not committed to a device"
        yield KeyChange("place", path, old.place or nowhere, f"committed to {new.place}" if new.place else nowhere)
