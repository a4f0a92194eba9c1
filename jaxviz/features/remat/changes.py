"""What an edit changes of a module: its statements, which of them may be run again, and the code of its functions."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from jaxviz.features.remat.definition import is_jit
from jaxviz.features.remat.source import (
    Function,
    checkpoint_decorator,
    first_line,
    is_checkpoint,
    last_name,
    outside_of_functions,
)

Code = types.CodeType
Place = tuple[str, int]
"""The name of some code, and the line on which it begins."""


def changed(old: ast.Module, new: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module that an edit adds or changes, apart from the bodies of functions, and those that name their objects again; of a
    class its methods."""
    touched: set[str] = set()
    there = {_outline(s) for s in old.body}
    classes = {s.name: s for s in old.body if isinstance(s, ast.ClassDef)}
    for s in new.body:
        if _outline(s) in there:
            if not touched.isdisjoint(names_assigned(s)):
                yield s
            continue
        touched |= names_assigned(s)
        if isinstance(s, ast.ClassDef) and s.name in classes:
            known = {_outline(m) for m in classes[s.name].body}
            changed = [m for m in s.body if _outline(m) not in known]
            yield ast.copy_location(ast.ClassDef(s.name, [], [], changed, []), s)
        else:
            yield s


def definitions(tree: ast.AST, around: tuple[Function, ...] = ()) -> Iterator[tuple[Function, tuple[Function, ...]]]:
    """The functions of a tree that have a `def`, each with those around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node, around
            yield from definitions(node, (*around, node))
        else:
            yield from definitions(node, around)


def matched(old: ast.Module, new: ast.Module) -> Iterable[tuple[Any, Any]]:
    """The definitions of a module, each with the edited one; an edit may add some, with other names."""
    before = list(definitions(old))
    names = {f.name for f, _ in before}
    after = [found for found in definitions(new) if found[0].name in names]
    return zip(before, after, strict=True) if len(before) == len(after) else ()


def added(was: Function, now: Function) -> tuple[list[ast.expr], list[ast.expr]]:
    """The decorators that an edit adds above those of a function, or between these and the function; none if it changes these."""
    before, after = list(map(ast.dump, was.decorator_list)), list(map(ast.dump, now.decorator_list))
    n = len(after) - len(before)
    if n > 0 and after[: len(before)] == before:
        return [], now.decorator_list[-n:]
    return (now.decorator_list[:n], []) if n > 0 and after[n:] == before else ([], [])


def without_decorators(old: ast.Module, text: str, added_only: bool = True) -> ast.Module:
    """An edited module without the decorators that the edit adds above or below others; with all decorators as they were if it is not these only."""
    tree = ast.parse(text)
    for (was, _), (now, _) in matched(old, tree):
        above, within = added(was, now)
        kept = now.decorator_list[len(above) : len(now.decorator_list) - len(within)]
        now.decorator_list = kept if added_only else was.decorator_list
    return tree


def changed_functions(old: ast.Module, text: str) -> Iterator[tuple[Function, tuple[Function, ...]]]:
    """The functions, each with those around it, of which an edit changes more than decorators and what is in the functions in it."""
    own = lambda f: [*map(_outline, f.body)]
    for (was, around), (now, _) in matched(old, without_decorators(old, text, added_only=False)):
        if ast.dump(was) != ast.dump(now) and own(was) != own(now):
            yield was, around


class _Outline(ast.NodeTransformer):
    """Leaves out what is only run when a function is called."""

    def visit_FunctionDef(self, node: Function) -> ast.AST:
        decorators = [self.visit(d) for d in node.decorator_list]
        return type(node)(node.name, node.args, [ast.Pass()], decorators, node.returns)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return ast.Lambda(node.args, ast.Constant(None))


def _outline(statement: ast.stmt) -> str:
    return ast.dump(_Outline().visit(ast.parse(ast.unparse(statement))))


def only_names(statement: ast.stmt) -> bool:
    """Whether a statement imports something, assigns a checkpoint, a policy or another name, or defines a function without other decorators than
    checkpoints and `jax.jit`."""
    if isinstance(statement, Function):
        is_known = all(checkpoint_decorator(d) or is_jit(d) for d in statement.decorator_list)
        return is_known and all(map(_only_wraps, [*statement.decorator_list, statement.args]))
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, ast.Import | ast.ImportFrom)
    # Nothing takes back what a list or a dict has been given.
    kind = ast.Attribute if len(statement.targets) == 1 else ast.Name
    is_named = all(isinstance(t, ast.Name | kind) for t in statement.targets)
    is_name = isinstance(statement.value, ast.Name | ast.Attribute | ast.Lambda | ast.Call)
    return is_named and is_name and _only_wraps(statement.value)


def _only_wraps(node: ast.AST) -> bool:
    """Whether nothing is called but what makes checkpoints, policies, partial and jitted functions, which calls nothing itself."""
    calls = (n for n in (node, *outside_of_functions(node)) if isinstance(n, ast.Call))
    return all(
        checkpoint_decorator(c)
        or (checkpoint_decorator(c.func) and not is_checkpoint(c.func))
        or last_name(c.func) in ("jit", "partial")
        or "checkpoint_policies" in ast.unparse(c.func)
        for c in calls
    )


def names_assigned(statement: ast.stmt) -> set[str]:
    """The names that a statement defines or assigns."""
    if isinstance(statement, Function | ast.ClassDef):
        return {statement.name}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


# --- code -------------------------------------------------------------------------------------------------------------


def place_of_code(code: Code) -> Place:
    return code.co_name, code.co_firstlineno


def place_of(function: Function) -> Place:
    return function.name, first_line(function)


def _inner(code: Code) -> list[Code]:
    return [c for c in code.co_consts if isinstance(c, Code)]


def all_codes(code: Code) -> Iterator[Code]:
    """Some code, and that of the functions in it."""
    yield code
    for inner in _inner(code):
        yield from all_codes(inner)


def _alike(old: Code, new: Code) -> list[tuple[Code, Code]]:
    """The functions defined in some code, each with the edited one, as far as it is certain which is which."""
    by_name = lambda codes: {name: [c for c in codes if c.co_name == name] for name in {c.co_name for c in codes}}
    before, after = by_name(_inner(old)), by_name(_inner(new))
    same = [(before[name], after.get(name, [])) for name in before]
    return [pair for a, b in same if len(a) == len(b) for pair in zip(a, b, strict=True)]


def paired(old: Code, new: Code) -> Iterator[tuple[Code, Code]]:
    """The code of each function of a file, with the edited one."""
    for a, b in _alike(old, new):
        yield a, b
        yield from paired(a, b)


def differs(old: Code, new: Code) -> bool:
    """Whether an edit changes some code, or a function in it."""
    return _is_other(old, new) or any(differs(a, b) for a, b in _alike(old, new))


def _is_other(old: Code, new: Code) -> bool:
    return _content(old) != _content(new) or len(_inner(old)) != len(_alike(old, new))


def left_out(old: Code, new: Code, swapped: Collection[Place]) -> Iterator[Place]:
    """The functions in some code that an edit changes and that are not run as edited: neither they nor what defines them is swapped."""
    for a, b in _alike(old, new):
        if place_of_code(a) in swapped:
            continue
        # What a class does when it is defined is among the statements.
        if a.co_flags & inspect.CO_OPTIMIZED and _is_other(a, b):
            yield place_of_code(a)
        yield from left_out(a, b, swapped)


def _content(code: Code) -> Any:
    """What some code does, apart from its lines and from the functions in it."""
    plain = [c for c in code.co_consts if not isinstance(c, Code)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, repr(plain)
