"""The metadata of a compiled program: JAX's names for its instructions, and their source lines.

Without the function, these replace its equations. A name such as
`jit(loss)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/sin` tells which transforms and which
programs an operation comes from.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

from jaxviz.analysis.grouping import pattern
from jaxviz.analysis.naming import ROOM
from jaxviz.ir.expressions import expressions_from, shortened_expression
from jaxviz.ir.origin import Location, innermost_line
from jaxviz.xla.compiled_memory.module import Instruction, Module
from jaxviz.xla.compiled_memory.places import Makers, Stage

_HOLDERS = re.compile(
    r".*\)|while|scan|body|cond|checkpoint|remat\d*|closed_call|core_call|shard_map|pjit|custom_[jv][vj]p_call\w*"
    r"|branch_\d+_fun"
)
"""The last part of the name of an operation with nested programs."""
_OF_LOOPS = re.compile(r".*/while/body/(?!closed_call)(?:[^/]*\)/)?dynamic_(?:update_)?slice")
"""The operations with which a scan takes an iteration's slice, or collects it."""
_OPERATORS = {
    ast.MatMult: "dot_general", ast.Mult: "mul", ast.Add: "add", ast.Sub: "sub",
}  # fmt: skip
"""Python's operators with their operations, unless a derivative in the forward pass has the same operation."""


@dataclass(frozen=True, slots=True)
class OpName:
    """The name of an operation in a compiled program, as a `Maker`.

    Args:
      path: such as `jit(loss)/jvp()/dot_general`.
      location: the user's line; None if JAX recorded none.
    """

    path: str
    location: Location | None

    results, operands = (), ()

    @property
    def stage(self) -> Stage:
        if "transpose(" in self.path:
            return "backward"
        return "forward" if "jvp(" in self.path else "outside"

    @property
    def operation(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def holds_programs(self) -> bool:
        return bool(_HOLDERS.fullmatch(self.operation) or _OF_LOOPS.fullmatch(self.path))

    @property
    def is_recomputed(self) -> bool:
        return self.stage == "backward" and "rematted_computation" in self.path

    @property
    def is_cotangent(self) -> bool:
        return self.stage == "backward" and not self.is_recomputed


class OpNames(Makers):
    """The names of the operations of a compiled program, by their numbers."""

    def __init__(self, module: Module):
        self.module = module
        self.makers: list[OpName] = []
        self._numbers: dict[tuple[str, Location | None], int] = {}
        self._of_instruction: dict[int, tuple[int, ...]] = {}
        self._labels: dict[int, tuple[str, Location | None, Hashable]] = {}

    def numbers(self, instruction: Instruction) -> tuple[int, ...]:
        if instruction.id not in self._of_instruction:
            location = own_line_of(self.module, instruction)
            numbers = (self._number(path, location) for path in paths_of(instruction))
            self._of_instruction[instruction.id] = tuple(dict.fromkeys(numbers))
        return self._of_instruction[instruction.id]

    def _number(self, path: str, location: Location | None) -> int:
        key = path, location
        if key not in self._numbers:
            self._numbers[key] = len(self.makers)
            self.makers.append(OpName(path, location))
        return self._numbers[key]

    def label(self, number: int) -> tuple[str, Location | None, Hashable]:
        if number not in self._labels:
            self._labels[number] = self._label(number)
        return self._labels[number]

    def _label(self, number: int) -> tuple[str, Location | None, Hashable]:
        name = self.makers[number]
        # XLA keeps one end position for all expressions that start at the same place; which of them it is follows only
        # from the operation.
        written = expressions_from(name.location)
        computed = [text for text in written if name.operation in computed_last(text)]
        expression = shortened_expression(written[-1], ROOM) if written else ""
        what = f"{name.operation} in {expression}" if expression else name.operation
        if name.is_cotangent:
            what = f"{name.operation} in the derivative of {expression}" if expression else f"{name.operation} backward"
        elif len(computed) == 1:
            what = shortened_expression(computed[0], ROOM)
        return what, name.location, (pattern(what), name.location, name.stage, name.is_recomputed)


@lru_cache(maxsize=4096)
def computed_last(expression: str) -> tuple[str, ...]:
    """The operations that compute the value of an expression, as far as its text tells: tanh for `jnp.tanh(x)`."""
    try:
        body = ast.parse(expression, mode="eval").body if expression else None
    except SyntaxError:
        return ()
    match body:
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            return (_OPERATORS[type(op)],)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return (name, "dot_general") if name in ("einsum", "dot", "matmul") else (name,)
    return ()


def paths_of(instruction: Instruction) -> list[str]:
    """The names of an instruction; for one that XLA combined from several, theirs.

    The names of parameters are those of arguments.
    """
    if not instruction.path or instruction.opcode in ("parameter", "constant"):
        return []
    return [name for path in instruction.path.split(";") if "/" in path for name in apart(path)]


def apart(path: str) -> list[str]:
    """`jit(f)/jvp()/psum` and `jit(f)/transpose(jvp())/psum` for `jit(f)/(jvp()/psum:transpose(jvp())/psum)`:
    collectives that XLA combined."""
    together = re.fullmatch(r"(.*?/|)\((.+:.+)\)", path)
    if together is None:
        return [path]
    return [name for part in _parts(together[2]) for name in apart(together[1] + part)]


def _parts(text: str) -> list[str]:
    """Splits at colons that are not in parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def own_line_of(module: Module, instruction: Instruction) -> Location | None:
    """The innermost line of the user's own code that led to an instruction, or else the innermost of a library's."""
    return innermost_line(module.lines(instruction))
