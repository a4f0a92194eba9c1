"""From the text of a call, as a user types it after a magic, to a function and its arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class CallError(Exception):
    """A text that is not a call; the message says what was expected."""


@dataclass(frozen=True)
class Call:
    """A function and what it is to be called with.

    Args:
      text: as typed.
      fun: the function.
      args, kwargs: its arguments.
    """

    text: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parse_calls(text: str, n: int = 1) -> tuple[str, list[ast.Call]]:
    """The statements before a number of calls with commas between them, as code to run, and the calls.

    Raises:
      CallError: the text is not Python, or does not end in as many calls.
    """
    example = ", ".join(f"{name}(x)" for name in "fgh"[:n])
    expected = f"expected {'a call' if n == 1 else f'{n} calls'}, such as {example}"
    try:
        tree = ast.parse(text.strip())
    except SyntaxError as error:
        shown = (error.text or text).strip()
        raise CallError(f"not valid Python: {error.msg}: {shown}") from None
    if not tree.body:
        raise CallError(f"{expected}; got nothing")
    last = tree.body[-1]
    value = last.value if isinstance(last, ast.Expr) else last
    found = value.elts if n > 1 and isinstance(value, ast.Tuple) else [value]
    calls = [c for c in found if isinstance(c, ast.Call)]
    if len(calls) != len(found) or len(calls) != n:
        raise CallError(f"{expected}; got: {ast.unparse(last)}")
    before = ast.unparse(ast.Module(tree.body[:-1], type_ignores=[]))
    return before, calls


def evaluate_call(call: ast.Call, namespace: dict[str, Any]) -> Call:
    """Evaluates the function and the arguments, but does not call it.

    Raises:
      what evaluating them raises.
    """

    def value(node: ast.expr) -> Any:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<magic>", "eval")
        return eval(code, namespace)

    args: list[Any] = []
    for node in call.args:
        if isinstance(node, ast.Starred):
            args.extend(value(node.value))
        else:
            args.append(value(node))
    kwargs: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            kwargs.update(value(keyword.value))
        else:
            kwargs[keyword.arg] = value(keyword.value)
    return Call(ast.unparse(call), value(call.func), tuple(args), kwargs)


_PIECE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)


def pieces(text: str) -> list[tuple[str, int]]:
    """The characters of a text, a quoted string as one, each with how many brackets are open around it."""
    depth, found = 0, []
    for piece in _PIECE.findall(text):
        depth -= piece in ")]}"
        found.append((piece, depth))
        depth += piece in "([{"
    return found


def split(text: str) -> list[str]:
    """The parts between commas that are in no quotes and no brackets."""
    parts = [""]
    for piece, depth in pieces(text):
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [unquoted(part.strip()) for part in parts if part.strip()]


def unquoted(text: str) -> str:
    """A text without the quotes around it."""
    if text[:1] not in ("'", '"') or len(text) < 2:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, str) else text
