"""What edits of a program's source consist of: how one is entered into the table, and what it asks of a source."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Change = Callable[[ast.Module, "Model"], None]
Function = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True)
class Model:
    """A model in a file.

    Args:
      name: in the table.
      file: where it is written.
      made: an expression that has the function and its arguments.
      entry: the name of the function.
    """

    name: str
    file: str
    made: str
    entry: str


@dataclass(frozen=True)
class Edit:
    """An edit of a source.

    Args:
      name: what a person does.
      run: from a source to the edited one; None if it does not apply.
      arguments: from the arguments before to those after it.
      is_undone: whether it is the edit back, from the edited source to the original.
      adds_look_alikes: whether it adds or deletes values with the text of others.
      first: an edit made together with it, which changes numbers and no structure.
    """

    name: str
    run: Callable[[str, Model], str | None]
    arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda args: args
    is_undone: bool = False
    adds_look_alikes: bool = False
    first: Callable[[str, Model], str | None] = lambda source, model: source


EDITS: dict[str, Edit] = {}


def edit(name: str, undone: str = "", **facts: Any) -> Callable[[Change], Change]:
    """Adds an edit of the syntax tree to the table; and with `undone`, the edit back under that name."""

    def enter(change: Change) -> Change:
        def run(source: str, model: Model) -> str | None:
            tree = ast.parse(source)
            before = ast.dump(tree)
            change(tree, model)
            return None if ast.dump(tree) == before else ast.unparse(ast.fix_missing_locations(tree))

        EDITS[name] = Edit(name, run, **facts)
        if undone:
            EDITS[undone] = Edit(undone, run, is_undone=True, **facts)
        return change

    return enter


def text_edit(name: str) -> Callable[[Callable[[str], str]], Callable[[str], str]]:
    def enter(change: Callable[[str], str]) -> Callable[[str], str]:
        EDITS[name] = Edit(name, lambda source, model: change(source))
        return change

    return enter


def sliced(source: str, wanted: str) -> str:
    """The statements of a module that an expression needs."""
    lines, tree = source.splitlines(), ast.parse(source)
    needed, left = names_in(ast.parse(wanted)), list(tree.body)
    kept: list[ast.stmt] = []
    while more := [s for s in left if needed & defined_by(s)]:
        kept += more
        left = [s for s in left if s not in more]
        needed |= set().union(*map(names_in, more))
    first = lambda s: min([s.lineno, *(d.lineno for d in getattr(s, "decorator_list", ()))])
    parts = ["\n".join(lines[first(s) - 1 : s.end_lineno]) for s in sorted(kept, key=lambda s: s.lineno)]
    return "\n\n".join(["from __future__ import annotations", *parts, ""])


def names_in(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def defined_by(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(a.asname or a.name).split(".")[0] for a in names} - {"annotations"}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def parameters_of(function: ast.AST) -> list[ast.arg]:
    return [n for n in ast.walk(function) if isinstance(n, ast.arg)]


def stored_in(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def functions_in(tree: ast.AST) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]


def methods_in(tree: ast.AST) -> set[ast.stmt]:
    return {f for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}


def outermost_in(tree: ast.Module) -> list[ast.FunctionDef]:
    of_classes = [s for c in tree.body if isinstance(c, ast.ClassDef) for s in c.body]
    return [s for s in [*tree.body, *of_classes] if isinstance(s, ast.FunctionDef)]


def names_at_top(tree: ast.Module) -> set[str]:
    return set().union(*map(defined_by, tree.body)) | set(dir(builtins))


def blocks_in(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statements of each function, also those in its loops and branches."""
    for f in functions_in(tree):
        for n in ast.walk(f):
            for field in ("body", "orelse"):
                block = getattr(n, field, None)
                if isinstance(block, list) and not isinstance(n, ast.ClassDef):
                    yield block


def is_docstring(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)


def each_statement(tree: ast.AST, change: Callable[[ast.stmt, str], Sequence[ast.stmt] | None]) -> None:
    """Replaces statements by others, each once; `change` is passed a new name too."""
    seen: set[int] = set()
    n = 0
    for block in list(blocks_in(tree)):
        if id(block) in seen:
            continue
        seen.add(id(block))
        made: list[ast.stmt] = []
        for s in block:
            n += 1
            new = change(s, f"new_{n}")
            made += [s] if new is None else new
        block[:] = made


def statements_of(text: str) -> list[ast.stmt]:
    return ast.parse(text).body


def expression_of(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


STATEFUL = ("nn", "hk", "nnx", "self", "eqx", "super", "model", "layers", "embed", "DECODER")
COMPREHENSIONS = (ast.GeneratorExp, ast.ListComp, ast.DictComp, ast.SetComp)


def is_pure(e: ast.AST) -> bool:
    """Whether an expression may be evaluated twice: a library may create parameters."""
    for n in ast.walk(e):
        if isinstance(n, ast.Call) and re.split(r"\W", ast.unparse(n.func))[0] in STATEFUL:
            return False
        if isinstance(
            n,
            (
                ast.Lambda,
                ast.GeneratorExp,
                ast.ListComp,
                ast.DictComp,
                ast.SetComp,
                ast.Yield,
                ast.NamedExpr,
                ast.Await,
            ),
        ):
            return False
    return any(isinstance(n, (ast.BinOp, ast.Call)) for n in ast.walk(e))


def locals_of(tree: ast.AST) -> set[str]:
    return {a.arg for a in parameters_of(tree)} | stored_in(tree)


def put_before_functions(tree: ast.Module, text: str) -> None:
    """Adds definitions after the imports."""
    at = max(i for i, s in enumerate(tree.body) if isinstance(s, (ast.Import, ast.ImportFrom))) + 1
    tree.body[at:at] = statements_of(text)


def replace_nodes(tree: ast.AST, change: Callable[[ast.AST], ast.AST | None]) -> None:
    """Replaces nodes, innermost first."""

    class Replace(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            super().generic_visit(node)
            new = change(node)
            return node if new is None else new

    Replace().visit(tree)


def decorate(tree: ast.Module, model: Model, helper: str, name: str) -> None:
    """Adds a decorator to all functions that are no methods and have none."""
    methods = methods_in(tree)
    found = [f for f in functions_in(tree) if f not in methods and not f.decorator_list and f.name not in model.made]
    found = [f for f in found if not any(isinstance(n, (ast.Yield, ast.Return)) and n in f.body[:1] for n in f.body)]
    for f in found:
        f.decorator_list.append(ast.Name(name, ast.Load()))
    if found:
        put_before_functions(tree, helper)
