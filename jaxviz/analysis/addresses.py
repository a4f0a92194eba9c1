"""Addresses: what a person writes to mean a value of a program, and finds again after an edit.

`softmax(q @ k.T)` is an expression, `encode(x)` the call of a function, `scores` a variable, a `checkpoint_name` or a
probe, `attention › scores` one of a function, `blocks.*/mlp:out` what modules return, `model.py:41` a line. Python may
run the same expression several times, as in a loop over layers: `#3` is the third, `#*` are all. A loop of JAX's has
one value for all iterations.
"""

from __future__ import annotations

import ast
import math
import operator
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, ClassVar, Literal, get_args

from jaxviz.analysis.addressed import AddressedValue, addressed_values, gradient_left_out, takes_gradient
from jaxviz.analysis.computed import computed, forms, used
from jaxviz.analysis.returned import WrittenValue
from jaxviz.higher_order import is_scan, scan_length
from jaxviz.ir import compat
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.origin import Location, call_stack, definition
from jaxviz.ir.sharing import kept_with
from jaxviz.ir.syntax import Program
from jaxviz.report.tables import short_location

MOST_LISTED = 8
Phase = Literal["forward", "recomputed", "cotangent"]


class AddressError(ValueError):
    """An address that means no value of a program, or several; the message lists what could be meant.

    >>> try:
    ...     jaxviz.capture(loss, "hh")(params, x)
    ... except jaxviz.AddressError as error:
    ...     print(error)
    """


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was known of a value when its address was written down.

    Args:
      was: its line, its expression and its type, for a person.
      texts: that meant the value, and which of how many; `form …` are all that are computed in a form (see `forms`).
      operation: the primitive that computed it.
      computed: what computed it, with the function's arguments by name, and by position; see `computed`.
      readers: the same of what was computed from it next.
      is_used: whether a result of the function was computed from it.
      runs: how often it was computed.
    """

    was: str
    texts: tuple[str, ...]
    operation: str
    computed: tuple[str, str]
    readers: frozenset[str]
    is_used: bool
    runs: int


@dataclass(frozen=True, slots=True, repr=False)
class Address:
    """What means a value; made by `at`.

    >>> jaxviz.at("h", iteration=3).text

    Args:
      text: an expression, a name, a line, with a function or a module before it.
      iteration: of the innermost loop around the value; None for all.
      phase: whether it is the value, its copy that a checkpoint recomputes, or its cotangent.
      written: what else `address_of` knew of the value; None for an address that a person wrote.
    """

    text: str
    iteration: int | None = None
    phase: Phase = "forward"
    written: Evidence | None = None

    _data: ClassVar = ("text", "iteration", "phase")

    def __repr__(self) -> str:
        """As it is written."""
        more = [f"iteration={self.iteration}"] if self.iteration is not None else []
        more += [f"phase={self.phase!r}"] if self.phase != "forward" else []
        return f"at({', '.join([repr(self.text), *more])})"

    def __str__(self) -> str:
        parts = [self.text, *([f"in iteration {self.iteration}"] if self.iteration is not None else [])]
        return ", ".join([*parts, *([self.phase] if self.phase != "forward" else [])])


def at(text: str, *, iteration: int | None = None, phase: Phase = "forward") -> Address:
    """An address: what means a value of a program, and still does after most edits of it.

    >>> run = jaxviz.capture(loss, jaxviz.at("h"), "tanh(x @ params['w'] + params['b'])", "loss › h**2")

    Wherever a function takes an address, its text alone will do.

    Args:
      text: one of the following. Something may stand before it, which tells values apart: a function, as in
        `attention › scores`, or a module, as in `blocks_0/mlp:h`, of which the last parts suffice and `*` stands for
        any.

        - an expression of the source, such as `softmax(q @ k.T)`. Spaces do not matter, a called function may be
          without its module (`jax.nn`), and keyword arguments may be left out;
        - a call of a function of one's own, such as `encode(x)`, `encode(x)[0]` of a tuple or `encode(x).loss` of an
          object, as far as it is known which value the call returns;
        - a variable that is assigned, or the name in `jax.ad_checkpoint.checkpoint_name` or in `jaxviz.probe`;
        - after a module, `out`: what it returns;
        - a line, such as `model.py:41`, or `line:41` of the function's own file: what it computes that others read;
        - then `#2`, the second of several, or `#*`, all of them; `#2/12` only as long as there are twelve, where each
          iteration of a loop counts as one, and `#2:10:4/12` every fourth of these from the second to the tenth.

        In an expression `_` stands for any variable.
      iteration: of the innermost loop around the value; by default all of them.
      phase: 'forward'; 'recomputed' for what a checkpoint computes again; 'cotangent'.
    """
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"an address is a text such as 'softmax(q @ k.T)' or 'model.py:41', not {text!r}")
    if phase not in (phases := get_args(Phase)):
        raise ValueError(f"phase={phase!r}; it must be one of {', '.join(map(repr, phases))}")
    return Address(" ".join(text.split()), None if iteration is None else operator.index(iteration), phase)


def address(given: Any) -> Address:
    """An address of what a caller gave: itself, or its text."""
    return given if isinstance(given, Address) else at(given)


def named_in(given: Address) -> str:
    """The expression or the name in an address, without what stands before it and which of several it means."""
    return _wanted(given.text).value


# --- what an address means --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Meant:
    """What an address means in a program.

    Args:
      values: in the order of the program.
      iteration: of the innermost loop around them, if it means only one.
    """

    values: tuple[AddressedValue, ...]
    iteration: int | None = None


def resolve(program: Program, given: Address) -> Meant:
    """What an address means.

    One that was written down means the value that is computed as it was then, whatever it is called now. If there is
    none, because what it depends on has changed, its texts decide, and those that still hold have to agree.

    Raises:
      AddressError: nothing; or several values, and the address does not ask for all of them.
    """
    meant = _meant(program, given) if given.written is None else _found_again(program, given, given.written)
    for v in meant.values:
        if meant.iteration is not None and not v.loops:
            raise AddressError(f"{v.name} at {v.line} is in no loop, so it has no iteration {meant.iteration}.")
    check_iterations(meant, [] if meant.iteration is None else [meant.iteration])
    return meant


def check_iterations(meant: Meant, iterations: Collection[Any]) -> None:
    """
    Args:
      iterations: numbers; traced ones, as under vmap, are not checked.

    Raises:
      AddressError: the loop around a value does not have one of these iterations.
    """
    for v in meant.values:
        most = math.inf
        if v.loops and is_scan(v.loops[-1]):
            most = scan_length(v.loops[-1])
        for i in map(compat.concrete_value, iterations if v.loops else ()):
            if i is not None and not 0 <= i < most:
                of = "" if most == math.inf else f" to {most - 1}"
                raise AddressError(f"{v.name} at {v.line} has iterations from 0{of}, and no iteration {i}.")


def _found_again(program: Program, given: Address, written: Evidence) -> Meant:
    values = addressed_values(program)
    by_name, by_position = (
        [v for v in values if v.runs == written.runs and way.texts.get(v.place) == text]
        for way, text in zip(computed(program), written.computed, strict=True)
    )
    both = [v for v in by_name if v in by_position]
    if by_name and by_position and not both:
        raise AddressError(_changed(program, given, [*by_name, *by_position]))
    alike = both or by_name or by_position
    for agreement in (_uses_kept, _readers_kept, _texts_kept):
        kept = [agreement(program, written, v) for v in alike]
        alike = [v for v, n in zip(alike, kept, strict=True) if n == max(kept)]
    if len(alike) == 1:
        return Meant((alike[0],), given.iteration)
    found: dict[tuple[Any, ...], Meant] = {}
    for text in written.texts:
        with suppress(AddressError):
            meant = _meant(program, replace(given, text=text))
            if all(v.equation.primitive.name == written.operation for v in meant.values):
                found.setdefault((meant.values, meant.iteration), meant)
    if alike:
        found = {key: meant for key, meant in found.items() if set(meant.values) <= set(alike)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found or alike:
        raise AddressError(_changed(program, given, alike or [v for m in found.values() for v in m.values[:1]]))
    raise AddressError(_nothing(given, program, addressed_values(program)))


def _uses_kept(program: Program, written: Evidence, v: AddressedValue) -> int:
    return int((v.place in used(program)) == written.is_used)


def _readers_kept(program: Program, written: Evidence, v: AddressedValue) -> int:
    """How many of what was computed from a value then still is."""
    return len(written.readers & frozenset().union(*(way.readers.get(v.place, ()) for way in computed(program))))


def _texts_kept(program: Program, written: Evidence, v: AddressedValue) -> int:
    """How many texts of a value then still mean it, perhaps among others."""
    return sum(_wanted(text).means(v) for text in written.texts)


def _changed(program: Program, given: Address, values: Sequence[AddressedValue]) -> str:
    listed = [f"  {described(v)}" for v in dict.fromkeys(values[:MOST_LISTED])]
    was = f" It was {given.written.was}." if given.written is not None else ""
    return "\n".join([f"{program.name} has changed, so that {given.text!r} may mean one of these.{was}", *listed])


class _Index:
    """What texts match in a program, each looked for once: of many layers each is one, with the same expressions.

    Args:
      program: the program.
    """

    def __init__(self, program: Program):
        self.values = addressed_values(program)
        self._found: dict[str, list[AddressedValue]] = {}
        self._named: dict[str, list[AddressedValue]] = {}
        self._program = program

    @cached_property
    def _of_form(self) -> dict[str, list[AddressedValue]]:
        of_form: dict[str, list[AddressedValue]] = {}
        for v in self.values:
            for form in dict.fromkeys(forms(self._program)[v.place]):
                of_form.setdefault(form, []).append(v)
        return of_form

    def matching(self, text: str) -> list[AddressedValue]:
        if text not in self._found:
            wanted = _wanted(text)
            if wanted.value.startswith("form "):
                self._found[text] = self._of_form.get(wanted.value[5:], [])
            elif wanted.container and wanted.value == "out":
                self._found[text] = [v for v in self.values if wanted.means(v)]
            else:
                self._found[text] = [v for v in self._with(wanted.value) if wanted.means(v)]
        return self._found[text]

    def _with(self, value: str) -> list[AddressedValue]:
        if value not in self._named:
            self._named[value] = [v for v in self.values if any(_written_as(value, v))]
        return self._named[value]


_index = kept_with(_Index)


def matching(program: Program, text: str) -> list[AddressedValue]:
    """The values that a text matches, whichever of them it asks for."""
    return _index(program).matching(text)


def _meant(program: Program, given: Address) -> Meant:
    """What the text of an address means."""
    wanted = _wanted(given.text)
    values, found = addressed_values(program), matching(program, given.text)
    if wanted.lines:
        found = _at_line(program, values, *wanted.lines)
    if not found:
        raise AddressError(_nothing(given, program, values))
    if wanted.total is not None:
        return _of_runs(program, given, wanted, found)
    if wanted.ordinal is not None:
        if not 1 <= wanted.ordinal <= len(found):
            how_many = "one value" if len(found) == 1 else f"{len(found)} values"
            raise AddressError(f"{program.name} has {how_many} at {wanted.text!r}, and no #{wanted.ordinal}.")
        found = [found[wanted.ordinal - 1]]
    elif len(found) > 1 and not wanted.takes_all:
        raise AddressError(_several(given, program, found))
    return Meant(tuple(found), given.iteration)


def in_order(values: Iterable[AddressedValue]) -> list[tuple[AddressedValue, int]]:
    """Values each time that they are computed, in that order, with the iterations."""
    runs: list[tuple[AddressedValue, int]] = []
    for _, together in groupby(values, lambda v: v.loops):
        group = list(together)
        runs += [(v, i) for i in range(group[0].runs) for v in group]
    return runs


def _of_runs(program: Program, given: Address, wanted: _Wanted, found: Sequence[AddressedValue]) -> Meant:
    """What an address means that says how often its text is computed: some loops may have become others."""
    runs = in_order(found)
    if len(runs) != wanted.total:
        raise AddressError(f"{program.name} computes {wanted.text!r} {len(runs)} times, not {wanted.total} as before.")
    last = wanted.last or wanted.ordinal or len(runs)
    chosen = runs[(wanted.ordinal or 1) - 1 : last : wanted.step or 1]
    times = Counter(v for v, _ in chosen)
    if all(n == v.runs for v, n in times.items()):
        return Meant(tuple(times), given.iteration)
    if len(chosen) == 1 and len(chosen[0][0].loops) == 1:
        return Meant((chosen[0][0],), chosen[0][1])
    raise AddressError(f"{program.name} computes {wanted.text!r} in other loops than before.")


@dataclass(frozen=True)
class _Wanted:
    """An address, read.

    Args:
      text: without what tells several apart.
      container: the pattern of a function or a module; '' for any.
      value: the expression or name; 'out' for what a module returns.
      lines: the end of the file's path, '' for that of the function, and the number, if it is a line.
      ordinal: from 1; None for the only one.
      last, step: of several, the last, and from one to the next; None for one.
      takes_all: whether it means all that match.
      total: how often what matches has to be computed; None for any number.
    """

    text: str
    container: str
    value: str
    lines: tuple[str, int] | None
    ordinal: int | None
    last: int | None
    step: int | None
    takes_all: bool
    total: int | None

    def means(self, v: AddressedValue) -> bool:
        if self.container and self.value == "out" and any(map(self._contains, v.returned_by)):
            return True
        return any(self.ways(v))

    def ways(self, v: AddressedValue) -> Iterator[WrittenValue]:
        """Where a value has this name or this expression, in this function or module."""
        for w in _written_as(self.value, v):
            if not self.container or self._contains(w.module) or self._contains_function(w.function):
                yield w

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = [
            re.escape(p).replace(r"\.\*", r"[._\[]?[^/]*").replace(r"\*", "[^/]*") for p in self.container.split("/")
        ]
        return re.compile("(?:^|/)" + "/".join(parts) + "$")

    def _contains(self, module: str) -> bool:
        return bool(module) and self._pattern.search(module) is not None

    def _contains_function(self, function: str) -> bool:
        name = function.replace(".<locals>", "").replace(".", "/")
        return "/" not in self.container and self._pattern.search(name) is not None


def _written_as(value: str, v: AddressedValue) -> Iterator[WrittenValue]:
    """Where a value has this name or this expression: where it is computed, and where calls return it."""
    if value and value == v.label:
        yield v
    ways: tuple[WrittenValue, ...] = (v, *v.returned)
    yield from (w for w in ways if any(n and (n == value or _is_written(value, n)) for n in (w.assigned, w.text)))


@lru_cache(maxsize=4096)
def _wanted(text: str) -> _Wanted:
    body, ordinal, last, step, takes_all, total = text, None, None, None, False, None
    if (which := re.fullmatch(r"(.+?)\s*#(?:(\*)|(\d+)(?::(\d+):(\d+))?)(?:/(\d+))?", text)) is not None:
        body, takes_all = which[1], which[2] == "*"
        ordinal, last, step, total = (None if x is None else int(x) for x in which.groups()[2:])
    line = re.fullmatch(r"(.*\.\w+|<[^>]*>|line):(\d+)", body)
    if line is not None:
        lines = "" if line[1] == "line" else line[1], int(line[2])
        return _Wanted(body, "", "", lines, ordinal, last, step, ordinal is None, total)
    container, value = "", body
    if "›" in body:
        container, _, value = (part.strip() for part in body.rpartition("›"))
    elif (inside := re.fullmatch(r"([\w.*/\-]+):(.+)", body)) is not None:
        container, value = inside[1], inside[2].strip()
    return _Wanted(body, container, value, None, ordinal, last, step, takes_all or "*" in container, total)


@lru_cache(maxsize=65536)
def _is_written(short: str, text: str) -> bool:
    """Whether an expression is the one that an address has, perhaps in short."""
    pattern = parsed(short)
    # A variable alone is not what an equation computes.
    return pattern is not None and not isinstance(pattern, ast.Name) and _matches(pattern, parsed(text))


@lru_cache(maxsize=65536)
def parsed(text: str) -> ast.AST | None:
    """The expression; of a statement such as `x += y` that one."""
    try:
        statement = ast.parse(text).body
    except SyntaxError:
        return None
    if len(statement) != 1:
        return None
    return statement[0].value if isinstance(statement[0], ast.Expr) else statement[0]


def _matches(pattern: ast.AST | None, written: ast.AST | None) -> bool:
    """Whether an expression is the one that a person wrote down, perhaps in short."""
    if isinstance(pattern, ast.Name) and pattern.id == "_":
        return isinstance(written, (ast.Name, ast.Attribute, ast.Subscript))
    if pattern is None or written is None or type(pattern) is not type(written):
        return False
    if isinstance(pattern, ast.Call) and isinstance(written, ast.Call):
        keywords = {k.arg: k.value for k in written.keywords}
        return (
            _is_called(pattern.func, written.func)
            and len(pattern.args) == len(written.args)
            and all(map(_matches, pattern.args, written.args))
            and all(k.arg in keywords and _matches(k.value, keywords[k.arg]) for k in pattern.keywords)
        )
    for field in pattern._fields:
        if field in ("ctx", "type_comment", "kind"):
            continue
        one, other = getattr(pattern, field), getattr(written, field)
        if isinstance(one, ast.AST):
            if not _matches(one, other):
                return False
        elif isinstance(one, list):
            if len(one) != len(other) or not all(map(_same, one, other)):
                return False
        elif one != other:
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    return _matches(one, other) if isinstance(one, ast.AST) else one == other


def _is_called(pattern: ast.expr, written: ast.expr) -> bool:
    """`softmax` is `jax.nn.softmax`, and `layer.mlp` is `self.layer.mlp`."""
    short, full = ast.unparse(pattern), ast.unparse(written)
    return full == short or (full.endswith(f".{short}") and re.fullmatch(r"[\w.]+", short) is not None)


def _at_line(program: Program, values: Sequence[AddressedValue], file: str, number: int) -> list[AddressedValue]:
    """The values of a line that something outside of it reads, or that are results."""
    file = file or _own_file(program)
    found = []
    for v in values:
        # What a library computes that the line calls is not computed by it.
        is_own = v.label or expression_at(v.location) == v.text
        lines = [w.location for w in (*((v,) if is_own else ()), *v.returned)]
        for at in filter(None, lines):
            if at.line != number or not _is_in(at, file):
                continue
            readers = [call_stack(e.source) for e in v.program.equations if v.place[1] in e.invars]
            if v.place[1] in v.program.outvars or not all(any(_is_inside(at, r) for r in stack) for stack in readers):
                found.append(v)
                break
    return found


def _is_in(place: Location, file: str) -> bool:
    """Whether a place is in a file, given the end of its path."""
    return not file or f"{os.sep}{place.file}".endswith(f"{os.sep}{file}")


def _own_file(program: Program) -> str:
    own = definition(program.debug_info)
    return own.file if own is not None else ""


def _is_inside(part: Location, whole: Location) -> bool:
    """Whether an expression is part of another one."""
    start, end = (part.line, part.column), (part.end_line, part.end_column)
    around = (whole.line, whole.column), (whole.end_line, whole.end_column)
    return whole.file == part.file and around[0] <= start and end <= around[1] and around != (start, end)


def _several(given: Address, program: Program, found: Sequence[AddressedValue]) -> str:
    ways = [written_for(given, v) for v in found]
    listed = [f"  #{i}  {described(v, w)}" for i, (v, w) in enumerate(zip(found[:MOST_LISTED], ways, strict=False), 1)]
    more = [f"  and {len(found) - MOST_LISTED} more"] if len(found) > MOST_LISTED else []
    containers = list(dict.fromkeys(w.container for w in ways if w.container))
    inside = f" name the function, as in {f'{containers[0]} › {given.text}'!r}," if len(containers) > 1 else ""
    n, text = len(found), given.text
    head = (
        f"{program.name} has {n} values at {text!r}. Write {f'{text} #1'!r} for the first,{inside} or "
        f"{f'{text} #*'!r} for all:"
    )
    left_out = [gradient_left_out(program.name)] if takes_gradient(program) else []
    return "\n".join([head, *listed, *more, *left_out])


def written_for(given: Address, v: AddressedValue) -> WrittenValue:
    """Where the source has what an address names of a value: what computes it, or a call that returns it."""
    wanted = _wanted(given.text)
    ways: Iterable[WrittenValue] = wanted.ways(v)
    if wanted.lines is not None:
        file, line = wanted.lines
        ways = (w for w in (v, *v.returned) if (at := w.location) is not None and at.line == line and _is_in(at, file))
    return next(iter(ways), v)


def described(v: AddressedValue, written: WrittenValue | None = None) -> str:
    """`model.py:41  h = own(x) in loss, f32[8]`: a value as it is written, where it is computed or where it is
    returned."""
    at = written or v
    kind = v.aval.str_short(short_dtypes=True)
    inside = f" in {at.module}" if at.module else f" in {at.container}" if at.container else ""
    name = at.text or v.label or v.equation.primitive.name
    return f"{at.line}  {at.assigned + ' = ' if at.assigned and at.assigned != at.text else ''}{name}{inside}, {kind}"


def _nothing(given: Address, program: Program, values: Sequence[AddressedValue]) -> str:
    wanted = _wanted(given.text)
    if wanted.lines is not None:
        return _nothing_at(program, values, *wanted.lines)
    names: dict[str, tuple[AddressedValue, WrittenValue]] = {}
    if wanted.container and wanted.value == "out":
        names.update((f"{m}:out", (v, v)) for v in values for m in v.returned_by)
    else:
        ways = [(v, w) for v in reversed(values) for w in (*v.returned[::-1], v)]
        names.update((n, way) for way in ways for n in (way[1].text, way[1].assigned, way[0].label) if n)
    close = get_close_matches(given.text if wanted.value == "out" else wanted.value, names, 3, 0.4)
    near = close or list(names)[-3:]
    listed = [f"  {n!r}, {described(*names[n])}" for n in near]
    some = "Near it are:" if close else "Among its values are:"
    hint = [some, *listed] if near else ["None of its values has a name; is its source available?"]
    reason = "" if near else " What a function with a custom rule computes has no address."
    call = parsed(wanted.value)
    if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in {v.container for v in values}:
        reason = f" Of a call that returns several values only these have addresses, as in {f'{wanted.value}[0]'!r}."
    if takes_gradient(program):
        reason = f" {gradient_left_out(program.name)}"
    was = f" It was {given.written.was}." if given.written is not None else ""
    return "\n".join([f"{program.name} has no value at {given.text!r}.{was}{reason} {hint[0]}", *hint[1:]])


def _nothing_at(program: Program, values: Sequence[AddressedValue], file: str, number: int) -> str:
    name, file = f"{file or 'line'}:{number}", file or _own_file(program)
    places = {w.location for v in values for w in (v, *v.returned) if w.location is not None and w.text}
    of_file = {p.line: short_location(p) for p in places if _is_in(p, file)}
    near = [of_file[line] for line in sorted(of_file, key=lambda line: (abs(line - number), line))[:MOST_LISTED]]
    hint = f"Lines that do, near it: {', '.join(near)}." if near else "No line of that file does."
    return (
        f"{name} computes no value of {program.name} that has an address. {hint} Inside a function with a custom rule, "
        "or where the function differentiates, name the function that is called there."
    )
