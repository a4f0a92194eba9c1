"""The source text of an equation's expression: tracebacks have the lines and columns of the expression being
evaluated."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import io
import itertools
import linecache
import os
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from types import CodeType, ModuleType

from jaxviz.ir.origin import Location, is_cell

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SHOWN: ContextVar[bool] = ContextVar("jaxviz_source", default=True)


def shows_source() -> bool:
    """Whether names of values may be taken from the user's source."""
    return _SHOWN.get()


@contextmanager
def source_shown(shown: bool) -> Iterator[None]:
    """Sets whether names of values are taken from the user's source, within the context: a page that is shared without
    source must not contain any in names either."""
    before = _SHOWN.set(shown and _SHOWN.get())
    try:
        yield
    finally:
        _SHOWN.reset(before)


@contextmanager
def source_shown_as(shown: bool) -> Iterator[None]:
    """Applies an earlier setting, within the context: that of when an object was created that is named only now."""
    before = _SHOWN.set(shown)
    try:
        yield
    finally:
        _SHOWN.reset(before)


@dataclass(frozen=True, slots=True)
class Span:
    """An expression or a statement in a file, by lines from 1 and columns in bytes of UTF-8 from 0.

    Args:
      line, column, end_line, end_column: where it starts and ends.
      assigned: what its value is assigned to, such as `x` or `q, k, v`; '' if it is part of a larger expression.
      target: for a statement such as `x += y`, its variable; otherwise ''.
      can_be_called: whether it is an expression around which a call can be written.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    assigned: str = ""
    target: str = ""
    can_be_called: bool = True


def span_at(file: str, line: int, column: int, end_line: int, end_column: int) -> Span | None:
    """The expression that Python recorded at a position; None if the source is not available, or is not what was
    run."""
    return _source(file).spans.get((line, column, end_line, end_column))


def expression_at(location: Location | None) -> str:
    """`jnp.tanh(x @ w + b)`: the expression at a location, on one line; '' if none is found."""
    if location is None or not _SHOWN.get():
        return ""
    return _source(location.file).text(_key(location))


def called_by(expression: str) -> ast.expr | None:
    """`self.norm` for `self.norm(x)`: what an expression calls; None if it is not a call."""
    try:
        call = ast.parse(expression, mode="eval").body
    except SyntaxError:  # there is no source text
        return None
    return call.func if isinstance(call, ast.Call) else None


def expressions_from(location: Location | None) -> list[str]:
    """The expressions that start at a location, the shortest first: `a(b)` and `a(b) * c`."""
    if location is None or not _SHOWN.get():
        return []
    source = _source(location.file)
    return [source.text(key) for key in source.beginning.get((location.line, location.column), ())]


def assigned_at(location: Location | None) -> str:
    """`x`: what the value of the expression at a location is assigned to; '' if it is part of a larger expression."""
    span = span_at(location.file, *_key(location)) if location is not None and _SHOWN.get() else None
    return span.assigned if span is not None else ""


def assigned_whole(location: Location, text: str) -> str:
    """`y` for `f(x)[0]` in `y = f(x)[0]`: what this expression, which starts at a location, is assigned to; or ''."""
    source = _source(location.file)
    keys = source.beginning.get((location.line, location.column), ())
    return next((source.spans[key].assigned for key in keys if source.text(key) == text), "")


def assignment(assigned: str, expression: str) -> str:
    """`h = jnp.tanh(x @ w)`, or the expression alone: if it is not assigned, or an augmented assignment such as `h +=
    x`."""
    is_alone = not assigned or (expression.startswith(assigned) and _AUGMENTED.match(expression, len(assigned)))
    return expression if is_alone else f"{assigned} = {expression}"


_AUGMENTED = re.compile(r"\s*(\*\*|//|<<|>>|[-+*/%@&|^])=")


def unpacked_name(function: Location, path: str) -> str:
    """`h` for `carry[0]` in a function that begins with `h, c = carry`; the path itself if it has no name.

    Args:
      function: where it is defined.
      path: of an argument.
    """
    return _source(function.file).unpacked.get((function.line, path), path) if _SHOWN.get() else path


def returned_by(code: CodeType) -> list[dict[str, str]]:
    """What a function may return, for each place where it does: the expressions of the parts, by `[0]`, `['h']` or
    `.loss`; of what is no tuple, list, dictionary or object, by '', the whole; none if its parts cannot be told."""
    source = _source(code.co_filename)
    found = source.returned.get((code.co_firstlineno, code.co_name), []) if _SHOWN.get() else []
    text = lambda e: source.text((e.lineno, e.col_offset, e.end_lineno or 0, e.end_col_offset or 0)) if e else ""
    # Of two functions that begin in one line, it is not known which it is.
    return [{part: text(e) for part, e in _parts_of(way, code)} for way in found[0]] if len(found) == 1 else []


def _key(location: Location) -> tuple[int, int, int, int]:
    return location.line, location.column, location.end_line, location.end_column


class _Source:
    """What is known about a file."""

    def __init__(self, lines: list[str]):
        self.lines = lines
        self.texts: dict[tuple[int, int, int, int], str] = {}

    @cached_property
    def tree(self) -> ast.Module:
        """It parsed; empty if it is not Python."""
        try:
            return ast.parse("".join(self.lines))
        except (SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def spans(self) -> dict[tuple[int, int, int, int], Span]:
        """Its expressions, by the positions that Python records for evaluating them."""
        return _spans(self.tree, self.lines)

    @cached_property
    def beginning(self) -> dict[tuple[int, int], list[tuple[int, int, int, int]]]:
        """The expressions by their start, the shortest first."""
        beginning: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        for key in sorted(self.spans):
            beginning.setdefault(key[:2], []).append(key)
        return beginning

    @cached_property
    def unpacked(self) -> dict[tuple[int, str], str]:
        return _unpacked(self.tree)

    @cached_property
    def returned(self) -> dict[tuple[int, str], list[list[ast.expr]]]:
        return _returned(self.tree)

    def text(self, key: tuple[int, int, int, int]) -> str:
        """The expression at a position, on one line."""
        if key not in self.texts:
            self.texts[key] = self._text(key)
        return self.texts[key]

    def _text(self, key: tuple[int, int, int, int]) -> str:
        span = self.spans.get(key)
        if span is None:
            return ""
        rows = [line.encode() for line in self.lines[span.line - 1 : span.end_line]]
        rows[-1] = rows[-1][: span.end_column]
        rows[0] = rows[0][span.column :]
        return _on_one_line(b"".join(rows).decode())


_SOURCES: dict[str, _Source] = {}


def tree_of(file: str) -> ast.Module:
    """The syntax tree of a file as it was imported; an empty one if it is not Python, or does not exist."""
    return _source(file).tree


def _source(file: str) -> _Source:
    """What is known of the current version of a file: a cell with that name may have been run again."""
    lines, known = linecache.getlines(file), _SOURCES.get(file)
    if known is None or (known.lines is not lines and known.lines != lines):
        known = _SOURCES[file] = _Source(lines)
    return known


def _on_one_line(text: str) -> str:
    """A multi-line text as it would be written on one line, without comments."""
    if "\n" not in text:
        return text
    line = ""
    end, row = 0, 1
    for token in _tokens(text):
        if token.type in (tokenize.NL, tokenize.COMMENT):
            continue
        (start_row, start), opens = token.start, line.endswith(("(", "[", "{"))
        if start_row != row:
            closes = token.string in (")", "]", "}")
            if closes and line.endswith(","):
                line = line[:-1]
            line += "" if not line or opens or closes or token.string == "." else " "
        elif start > end:
            line += " "
        line += token.string
        row, end = token.end
    return line


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of an expression, which may span several lines inside brackets."""
    tokens = tokenize.generate_tokens(io.StringIO(f"({text})").readline)
    inner = [t for t in tokens if t.type not in (tokenize.NEWLINE, tokenize.ENDMARKER)][1:-1]
    for t in inner:
        shift = lambda at: (at[0], at[1] - 1) if at[0] == 1 else at
        yield t._replace(start=shift(t.start), end=shift(t.end))


_CLOSING = {"(": ")", "[": "]", "{": "}"}


@lru_cache(maxsize=4096)
def shortened_expression(text: str, room: int) -> str:
    """An expression in about this many characters, cut after a whole token, with open brackets closed; a long name
    after one of its words.

    >>> shortened_expression("jax.nn.softmax(scores * scale + mask, axis=-1)", 30)
    'jax.nn.softmax(scores *…)'
    """
    if len(text) <= room:
        return text
    try:
        ends = [(t.end[1], t.string) for t in _tokens(text)]
    except (tokenize.TokenError, SyntaxError):
        return text[: room - 1] + "…"
    open_brackets: list[str] = []
    shown, closing = text[: ends[0][0]], ""
    for end, token in ends:
        if token in _CLOSING:
            open_brackets.append(_CLOSING[token])
        elif open_brackets and token == open_brackets[-1]:
            open_brackets.pop()
        if end + 1 + len(open_brackets) > room:
            if len(shown) < room // 2 and token.isidentifier():
                shown = text[: max(len(shown), text.rfind("_", 0, room - 1 - len(open_brackets)) + 1)]
                closing = "".join(reversed(open_brackets))
            break
        if token != ",":
            shown, closing = text[:end], "".join(reversed(open_brackets))
    return f"{shown}…{closing}"


_WRITTEN = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.Attribute, ast.Name)


def _spans(tree: ast.Module, lines: Sequence[str]) -> dict[tuple[int, int, int, int], Span]:
    assigned = dict(_assignments(tree))
    nodes = list(ast.walk(tree))
    iterated = {id(n.iter) for n in nodes if isinstance(n, (ast.For, ast.comprehension))}
    quoted = {id(n) for text in nodes if isinstance(text, ast.JoinedStr) for n in ast.walk(text)}
    spans: dict[tuple[int, int, int, int], Span] = {}
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            at = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
            alone = _stands_alone(node, lines)
            spans[at] = Span(*at, node.target.id, node.target.id if alone else "", alone)
        if not isinstance(node, _WRITTEN):
            continue
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        read = isinstance(getattr(node, "ctx", None), (ast.Load, type(None))) and not isinstance(node, ast.Name)
        free = read and id(node) not in iterated and id(node) not in quoted
        span = Span(*start, *end, assigned.get(id(node), ""), "", free)
        spans.setdefault((*start, *end), span)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # If a method is called on another line than its object, Python records the method's name as the start.
            line, column = node.func.end_lineno or 0, (node.func.end_col_offset or 0) - len(node.func.attr.encode())
            spans.setdefault((line, column, *end), span)
    return spans


def _assignments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Expressions that are assigned as a whole, by identity, with their targets."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target, *_], value=value):
                if (
                    isinstance(target, ast.Tuple)
                    and isinstance(value, ast.Tuple)
                    and len(target.elts) == len(value.elts)
                ):
                    yield from ((id(v), _plain(t)) for t, v in zip(target.elts, value.elts, strict=True))
                else:
                    yield id(value), _plain(target)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield id(value), _plain(target)


def _unpacked(tree: ast.Module) -> dict[tuple[int, str], str]:
    """The names that the functions of a file give to parts of their arguments, by the function's first line and the
    part's path."""
    names: dict[tuple[int, str], str] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            parameters = {a.arg for a in (*function.args.posonlyargs, *function.args.args)}
            for statement in function.body:
                match statement:
                    case ast.Assign(targets=[ast.Tuple() as target], value=ast.Name(id=name)) if name in parameters:
                        for path, part in _parts(target, name):
                            names.setdefault((first_line(function), path), part)
    return names


def _returned(tree: ast.Module) -> dict[tuple[int, str], list[list[ast.expr]]]:
    """The expressions that functions of a file return, by the function's first line and its name."""
    found: dict[tuple[int, str], list[list[ast.expr]]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            values = [n.value for n in outside_of_functions(function) if isinstance(n, ast.Return) and n.value]
            ways = [way for e in values for way in _ways(e)]
            found.setdefault((first_line(function), function.name), []).append(ways)
        elif isinstance(function, ast.Lambda):
            found.setdefault((function.lineno, "<lambda>"), []).append([*_ways(function.body)])
    return found


def _ways(e: ast.expr) -> Iterator[ast.expr]:
    """What an expression may be: `a` and `b` of `a if first else b`."""
    if isinstance(e, ast.IfExp):
        yield from (*_ways(e.body), *_ways(e.orelse))
    else:
        yield e


def _parts_of(e: ast.expr, code: CodeType) -> list[tuple[str, ast.expr | None]]:
    """The parts of what a function returns, see `returned_by`; None for a field that is not given."""
    match e:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if not any(isinstance(p, ast.Starred) for p in parts):
            return [(f"[{i}]", part) for i, part in enumerate(parts)]
        case ast.Dict(keys=keys, values=values) if all(isinstance(k, ast.Constant) for k in keys):
            return [(f"[{ast.literal_eval(k)!r}]", v) for k, v in zip(keys, values, strict=True) if k]
        case ast.Call(func=called, args=args, keywords=keywords) if (names := _fields_of(called, code)) is not None:
            by_name = {k.arg or "**": k.value for k in keywords}
            given = {**dict(zip(names, args, strict=False)), **by_name}
            is_plain = not any(isinstance(a, ast.Starred) for a in args) and given.keys() <= {*names}
            return [(f".{n}", given.get(n)) for n in names] if is_plain and len(args) <= len(names) else []
    return [("", e)]


def _fields_of(called: ast.expr, code: CodeType) -> Sequence[str] | None:
    """The fields of a class that a function calls, in the order of its arguments; none if they cannot be told; None if
    it is not known to be a class."""
    root, *path = ast.unparse(called).split(".")
    if root not in code.co_names or root in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return None
    file = os.path.abspath(code.co_filename)
    modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, ModuleType)]
    own = next((names for names in modules if names.get("__file__") == file), {})
    names = vars(sys.modules["__main__"]) if is_cell(code.co_filename) else own
    found = reduce(lambda x, name: getattr(x, name, None), path, names.get(root, vars(builtins).get(root)))
    if not isinstance(found, type):
        return None
    if issubclass(found, tuple):
        return [*vars(found).get("_fields", ())]
    params = vars(found).get("__dataclass_params__")
    if params is not None and params.init and not hasattr(found, "__post_init__"):
        fields = dataclasses.fields(found)  # type: ignore[arg-type]
        return [f.name for f in sorted(fields, key=lambda f: bool(f.kw_only)) if f.init]
    return None if hasattr(found, "dtype") else ()  # `jnp.float32(x)` is an array


def first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line on which a function begins, including its decorators."""
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a module or in a function, but not in the functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, SCOPES):
            yield from outside_of_functions(child)


def _parts(target: ast.expr, path: str) -> Iterator[tuple[str, str]]:
    """The paths of a tuple's targets with their names: `carry[0]` and `h`; none after a starred one."""
    if isinstance(target, ast.Name):
        yield path, target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for i, part in enumerate(itertools.takewhile(lambda t: not isinstance(t, ast.Starred), target.elts)):
            yield from _parts(part, f"{path}[{i}]")


def _plain(target: ast.expr) -> str:
    """An assignment target as written, without the brackets of a tuple."""
    text = ast.unparse(target)
    return text.removeprefix("(").removesuffix(")") if isinstance(target, ast.Tuple) else text


def _stands_alone(node: ast.stmt, lines: Sequence[str]) -> bool:
    """Whether a statement is alone on its lines, so that another can follow it."""
    before = lines[node.lineno - 1].encode()[: node.col_offset]
    after = lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset :].decode().strip()
    return not before.strip() and (not after or after.startswith("#"))
