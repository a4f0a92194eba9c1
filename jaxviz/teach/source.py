"""The source of answers: of a learner's cell, and of a known answer with everything that it needs."""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def run(source: str, file: str, names: dict[str, Any]) -> None:
    """Runs the source of an answer, as if it were a cell of a notebook with these names.

    Annotations stay text, as in a cell below one that imports `annotations` from `__future__`: a name that only they
    have need not be there.

    Args:
      source: the source.
      file: how its file is called, which must differ from that of other sources.
      names: what it may read, and gets what it defines; those of a module, in which dataclasses look names up.
    """
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec", annotations.compiler_flag, dont_inherit=True), names)


def run_alone(source: str, file: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the source of an answer in a new module, which has only these names; returns all that it has then."""
    module = sys.modules[file] = ModuleType(file)
    vars(module).update(names, __name__=file)
    run(source, file, vars(module))
    return vars(module)


def source_of(answer: Any) -> str:
    """The source of an answer and of everything else that its cell defines, or changes of what it defines; '' if there
    is none, as for a policy."""
    function = inspect.unwrap(answer)
    code = getattr(function, "__code__", None)
    if code is None or str(function.__module__).startswith("jax."):
        return ""
    file = code.co_filename
    if not _is_cell(file):
        return textwrap.dedent("".join(inspect.getblock(linecache.getlines(file)[code.co_firstlineno - 1 :])))
    return _source_of_cell(file)


def _is_cell(file: str) -> bool:
    """Whether a file is a cell of a notebook, rather than a module."""
    return "ipykernel" in file or not Path(file).exists()


def _source_of_cell(file: str) -> str:
    lines = linecache.getlines(file)
    try:
        statements = ast.parse("".join(lines)).body
    except SyntaxError:  # a magic
        return "".join(lines)
    defined = {n for s in statements for n in _defines(s)}
    parts = [s for s in statements if not isinstance(s, ast.Expr) or _called_on(s) in defined or _registers(s)]
    parts = [s for s in parts if not _answered(s) and not _is_from_future(s)]
    return "\n".join("".join(lines[_first_line(s) - 1 : s.end_lineno]) for s in parts)


def program_of(
    answer: Any, cell: str = "", names: Mapping[str, Any] | None = None, given: Mapping[str, Any] | None = None
) -> str:
    """A program that assigns an answer to `answer`; '' if its source was not found.

    Args:
      answer: a function, such as one of the notebook under a checkpoint.
      cell: the file of the cell that gives the answer; by default, that of the function's own cell is used alone.
      names: what is defined there. What other cells define comes with the answer, as far as it has a source.
      given: what is there before any answer, and so does not come with it.
    """
    program = _program_of_cells(answer, cell)
    return "\n\n".join([*_from_other_cells(program, names or {}, given or {}), program]) if program else ""


def _program_of_cells(answer: Any, cell: str) -> str:
    code: CodeType | None = getattr(inspect.unwrap(answer), "__code__", None)
    own = "" if code is None else code.co_filename
    if cell not in ("", own) and _is_cell(cell) and (given := _expression(cell, code)):
        parts = (source_of(answer) if own and _is_cell(own) else "", _source_of_cell(cell), f"answer = {given}\n")
        return "\n\n".join(filter(None, parts))
    if str(getattr(answer, "__module__", "")).startswith("jax."):  # a policy
        from jaxviz.analysis.checkpoints import policy_name  # which runs JAX

        return f"answer = jax.checkpoint_policies.{policy_name(answer)}"
    source = "" if code is None else _expression(own, code) or str(getattr(answer, "__name__", ""))
    return f"{source_of(answer)}\n\nanswer = {source}\n" if source not in ("", "<lambda>") else ""


def _from_other_cells(program: str, names: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The definitions of what a program reads and does not define, in an order in which they can be run."""
    new = {n: value for n, value in names.items() if n not in given or value is not given[n]}
    seen: set[str] = set()
    parts: list[str] = []

    def visit(source: str) -> None:
        for name in sorted(names_missing(source) & new.keys() - seen):
            seen.add(name)
            if definition := _definition(name, new[name]):
                visit(definition)
                parts.append(definition)

    with contextlib.suppress(SyntaxError):  # a magic
        visit(program)
    return parts


def _definition(name: str, value: Any) -> str:
    """The source of what a cell of the notebook defines; '' if it is not found, or is no function, class, module or
    puzzle, nor as plain as a number."""
    if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
        return f"import {value.__name__} as {name}"
    if isinstance(value, _PLAIN):
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):  # it has an array in it, or nan
            return f"{name} = {value!r}" if ast.literal_eval(repr(value)) == value else ""
    if puzzle := getattr(getattr(value, "puzzle", None), "name", ""):
        return f"from jaxviz import teach\n\n{name} = teach.puzzles.show({puzzle!r})"
    if not callable(value):
        return ""
    code = getattr(inspect.unwrap(value), "__code__", None)
    files = [] if code is None else [code.co_filename]
    for file in [*files, *reversed([*linecache.cache])]:  # the newest cell first
        if _is_cell(file) and (source := _defined_in(linecache.getlines(file), name)):
            return source
    return ""


_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, type(None))


def _defined_in(lines: list[str], name: str) -> str:
    """The statements of a cell that define a name, and the rules of that; '' if there are none."""
    with contextlib.suppress(SyntaxError):  # a magic
        parts = [s for s in ast.parse("".join(lines)).body if not _answered(s)]
        parts = [s for s in parts if name in names_defined(ast.unparse(s)) | {*extends(s)}]
        return "\n\n".join("".join(lines[_first_line(s) - 1 : s.end_lineno]) for s in parts)
    return ""


def _expression(file: str, code: CodeType | None) -> str:
    """What a cell answers with: `my_relu` of `mask.answer(my_relu)`; '' for a module, and if that is not clear."""
    cell = "".join(linecache.getlines(file)) if _is_cell(file) else ""
    with contextlib.suppress(SyntaxError):  # a magic
        given = _answered(ast.parse(cell))
        given = [g for g in given if code is not None and _has(g, code)] if len(given) > 1 else given
        return ast.unparse(given[0]) if len(given) == 1 else ""
    return ""


def _has(answer: ast.expr, code: CodeType) -> bool:
    """Whether an answer is the function with that code, or has it as a part."""
    names = {n.id for n in ast.walk(answer) if isinstance(n, ast.Name)}
    lines = {n.lineno for n in ast.walk(answer) if isinstance(n, ast.Lambda)}
    return code.co_firstlineno in lines if code.co_name == "<lambda>" else code.co_name in names


def _answered(tree: ast.AST) -> list[ast.expr]:
    """What exercises are answered with: the arguments of `….answer(…)`."""
    calls = [e for e in ast.walk(tree) if isinstance(e, ast.Call) and len(e.args) == 1]
    return [e.args[0] for e in calls if isinstance(e.func, ast.Attribute) and e.func.attr == "answer"]


def code_of(answer: Any, beside: Callable[..., Any]) -> str:
    """The source of something in a module: its definition, its rules, and everything that these read, as written in a
    cell.

    Args:
      answer: a function or another value of the module.
      beside: a function of the module that the cell has already, unless it is the answer.
    """
    module = sys.modules[beside.__module__]
    name = name_of(answer, beside)
    return _definitions(module, {name}, {beside.__name__} - {name})


def name_of(answer: Any, beside: Callable[..., Any]) -> str:
    """The name of a value in the module of a function."""
    return next(n for n, value in vars(sys.modules[beside.__module__]).items() if value is answer)


def code_of_argument(of: str, keyword: str, index: int, beside: Callable[..., Any]) -> str:
    """The source of one of the values of a keyword, with everything that it reads, as written in a cell.

    Args:
      of: the first argument of the call, a string.
      keyword: the keyword, whose value is a tuple.
      index: the place in that tuple.
      beside: a function of the module that the cell has already.
    """
    module = sys.modules[beside.__module__]
    calls = (c for c in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(c, ast.Call) and c.args)
    call = next(c for c in calls if isinstance(c.args[0], ast.Constant) and c.args[0].value == of and c.keywords)
    value = next(k.value for k in call.keywords if k.arg == keyword)
    assert isinstance(value, ast.Tuple)
    expression = value.elts[index]
    read = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name)} & vars(module).keys()
    text = f"answer = {ast.unparse(expression)}"
    if isinstance(expression, ast.Lambda):
        text = f"def answer({ast.unparse(expression.args)}):\n    return {ast.unparse(expression.body)}"
    text = re.sub(r"\b_(?=[A-Za-z])", "", text)
    text = re.sub(r"'([^'\"]*)'", r'"\1"', text)  # as the module writes them
    return "\n\n".join(filter(None, (_definitions(module, read, {beside.__name__}), text)))


def _definitions(module: Any, names: set[str], without: set[str]) -> str:
    """What a module says of some names and of all that these read, but for some that the cell has already."""
    source = inspect.getsource(module)
    body = [s for s in ast.parse(source).body if not isinstance(s, (ast.Import, ast.ImportFrom))]  # a cell has those
    lines = source.splitlines()
    parts = [s for s, gives in defining(body, names) if gives - without]
    text = "\n\n".join("\n".join(lines[_first_line(s) - 1 : s.end_lineno]) for s in parts)
    return re.sub(r"\b_(?=[A-Za-z])", "", text)  # a module's private names are not private in a cell


def defining(statements: Iterable[ast.stmt], names: set[str]) -> list[tuple[ast.stmt, set[str]]]:
    """The statements that define some names, with their rules, and all that these read; each with what it defines."""
    gives = {s: names_defined(ast.unparse(s)) | {*extends(s)} for s in statements}
    needed, size = set(names), 0
    while len(needed) > size:
        size = len(needed)
        needed |= {n for s, given in gives.items() if given & needed for n in names_missing(ast.unparse(s))}
    return [(s, given) for s, given in gives.items() if given & needed]


def names_missing(source: str, annotated: bool = True) -> set[str]:
    """The global names that a source reads but does not define.

    Args:
      source: the source.
      annotated: whether those in annotations count, which `run` does not need.
    """
    top = symtable.symtable(source if annotated else f"{_FUTURE}\n{source}", "<answer>", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    read = {s.get_name() for table in tables for s in table.get_symbols() if s.is_global() and s.is_referenced()}
    return read - names_defined(source)


def names_defined(source: str) -> set[str]:
    """The global names that a source defines or imports."""
    top = symtable.symtable(source, "<source>", "exec")
    return {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}


def defines(source: str, name: str) -> bool:
    """Whether a source defines a function of that name, outside of others."""
    try:
        return name in [s.name for s in ast.parse(source).body if isinstance(s, ast.FunctionDef)]
    except SyntaxError:
        return False


def _called_on(statement: ast.Expr) -> str:
    """The name on which a call as a statement is made: `RULES` of `RULES.update(…)`; '' for another statement."""
    part = statement.value
    while isinstance(part, (ast.Call, ast.Attribute, ast.Subscript)):
        part = part.func if isinstance(part, ast.Call) else part.value
    return part.id if isinstance(statement.value, ast.Call) and isinstance(part, ast.Name) else ""


_FUTURE = "from __future__ import annotations"


def _is_from_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _registers(statement: ast.Expr) -> bool:
    """Whether a statement makes a class known, `jax.tree_util.register_pytree_node(…)`, or gives it an attribute."""
    call = statement.value
    return isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2].startswith(("register", "setattr"))


def _first_line(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _defines(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef) and not list(extends(statement)):
        yield statement.name
    if isinstance(statement, ast.ClassDef):
        yield statement.name
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (t.id for t in targets if isinstance(t, ast.Name))


def extends(statement: ast.stmt) -> Iterator[str]:
    """The function for which a statement defines a rule: `f.defvjp(…)`, or a function under `@f.defjvp`."""
    calls: list[ast.expr] = []
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        calls = [statement.value.func]
    if isinstance(statement, ast.FunctionDef):
        calls = statement.decorator_list
    for call in calls:
        if isinstance(call, ast.Attribute) and call.attr.startswith("def") and isinstance(call.value, ast.Name):
            yield call.value.id
