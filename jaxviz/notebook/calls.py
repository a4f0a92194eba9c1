"""From the text of a call after a magic to a function and its arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any


class CallError(Exception):
    """A text that is not a call; the message says what was expected."""


@dataclass(frozen=True)
class EvaluatedCall:
    """A function and its arguments.

    Args:
      text: as typed.
      fun: the function.
      args, kwargs: its arguments.
    """

    text: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call_of_nothing(text: str) -> EvaluatedCall:
    """Stands for a call where this process loads no function: a file was given, or another process loads it."""
    return EvaluatedCall(text, lambda: None, (), {})


@dataclass(frozen=True)
class CellPosition:
    """The position of a magic's text, so that frames that run it are frames of the user's cell.

    Args:
      file: the cell's file name in tracebacks.
      line: the line of the cell where the text starts.
      name: the name of the frame of an expression, such as '%residuals'.
    """

    file: str = "<magic>"
    line: int = 1
    name: str = "<magic>"

    def evaluate(self, node: ast.expr, namespace: dict[str, Any]) -> Any:
        """The value of an expression."""
        code = compile(ast.Expression(node), self.file, "eval")
        return eval(code.replace(co_name=self.name, co_qualname=self.name), namespace)

    def call(self, node: ast.expr, function: Callable[[], Any]) -> Any:
        """Calls a function from the line of an expression, which operations without a line of the user's then have."""
        called = ast.copy_location(ast.Call(ast.copy_location(ast.Name("call", ast.Load()), node), [], []), node)
        return self.evaluate(called, {"call": function})


def parse_calls(text: str, n: int = 1, place: CellPosition = CellPosition()) -> tuple[ast.Module, list[ast.Call]]:
    """The leading statements, and the given number of calls, separated by commas.

    Args:
      text: Python code.
      n: the number of calls.
      place: the position of the text.

    Raises:
      CallError: the text is not Python, or does not end in that many calls.
    """
    example = ", ".join(f"{name}(x)" for name in "fgh"[:n])
    expected = f"expected {'a call' if n == 1 else f'{n} calls'}, such as {example}"
    try:
        tree = ast.parse(text.strip())
        ast.increment_lineno(tree, place.line - 1 + text[: len(text) - len(text.lstrip())].count("\n"))
    except SyntaxError as error:
        shown = (error.text or text).strip()
        raise CallError(f"not valid Python: {error.msg}: {shown}") from None
    if not tree.body:
        raise CallError(f"{expected}; got nothing")
    last = tree.body[-1]
    value = last.value if isinstance(last, ast.Expr) else last
    nodes = value.elts if n > 1 and isinstance(value, ast.Tuple) else [value]
    calls = [c for c in nodes if isinstance(c, ast.Call)]
    if len(calls) != len(nodes) or len(calls) != n:
        raise CallError(f"{expected}; got: {ast.unparse(last)}")
    return ast.Module(tree.body[:-1], type_ignores=[]), calls


def evaluate_call(call: ast.Call, namespace: dict[str, Any], place: CellPosition = CellPosition()) -> EvaluatedCall:
    """Evaluates the function and the arguments, but does not call it.

    Raises:
      the errors of evaluating them.
    """

    value = partial(place.evaluate, namespace=namespace)
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
    return EvaluatedCall(ast.unparse(call), value(call.func), tuple(args), kwargs)


_PIECE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)


def pieces(text: str) -> list[tuple[str, int]]:
    """The characters of a text, with a quoted string as one item, each with the number of open brackets around it."""
    depth, characters = 0, []
    for piece in _PIECE.findall(text):
        depth -= piece in ")]}"
        characters.append((piece, depth))
        depth += piece in "([{"
    return characters


def split(text: str) -> list[str]:
    """The parts between commas that are not in quotes or brackets."""
    parts = [""]
    for piece, depth in pieces(text):
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [unquoted(part.strip()) for part in parts if part.strip()]


def unquoted(text: str) -> str:
    """A text without surrounding quotes."""
    if text[:1] not in ("'", '"') or len(text) < 2:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, str) else text
