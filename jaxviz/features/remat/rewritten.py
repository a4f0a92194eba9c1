"""Derives a function again as it would be with edited files, to measure what an edit does before its figures are shown.

The edit is in place only while the function is traced: the code of the user's functions is replaced for that time, and what the module does
when it is imported is done again only for the statements that the edit changes. JAX's caches keep such a trace apart (`compat.traced_apart`), and
calls of jaxviz in other threads wait (`jaxviz.ir.alone`).
"""

from __future__ import annotations

import ast
import contextlib
import gc
import linecache
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxviz.analysis.grouping import grouped
from jaxviz.derivation import Derivation
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import Function, first_line, is_checkpoint
from jaxviz.ir import compat
from jaxviz.ir.alone import BusyError, alone
from jaxviz.ir.origin import file_label

Code = types.CodeType
_PATIENCE = 5.0
"""How many seconds at most an edit stays in place because another thread runs it."""
_NEAR = 0.02
"""The share of the peak by which the residuals may differ from those expected,"""
_HIGHER = 0.15
"""and the share by which the peak may be higher. A checkpoint in another place has other residuals, or recomputes everything at once."""


class UnmeasuredError(Exception):
    """An edit that cannot be put in place in this process."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """What an edit of the source comes to.

    Args:
      trade: the figures of the function with it; None if they could not be measured.
      failed: why not, a sentence.
      raises: whether the edited function does.
    """

    trade: Trade | None
    failed: str = ""
    raises: bool = False

    def is_near(self, expected: Trade) -> bool:
        """Whether the figures are as expected, as far as they could be measured."""
        if self.trade is None:
            return not self.raises
        residuals = abs(self.trade.nbytes - expected.nbytes)
        # The model does not see through a jitted function in a checkpoint, which may hold a value longer.
        is_low = self.trade.peak_nbytes <= (1 + _HIGHER) * expected.peak_nbytes
        return residuals <= _NEAR * max(expected.peak_nbytes, 1) and is_low


def obtained(search: Search, files: Mapping[str, str]) -> Obtained:
    """The figures of a function with some files as edited.

    Args:
      search: of the function as written.
      files: each changed file with its new text.
    """
    try:
        return Obtained(search.measured(derived_with(search.derivation, files), is_final=True))
    except UnmeasuredError as error:
        return Obtained(None, f"The figures with these changes were not measured: {error}.")
    except Exception as error:
        return Obtained(None, f"With these changes the function fails: {type(error).__name__}: {error}", raises=True)


def derived_with(derivation: Derivation, files: Mapping[str, str]) -> Derivation:
    """The derivation of the same call, with some files as edited.

    Args:
      derivation: of the function as written.
      files: each changed file with its new text.

    Raises:
      UnmeasuredError: the edit cannot be put in place here.
      what the edited function raises.
    """
    if derivation.called is None and derivation.step is None:
        raise UnmeasuredError("the function was given as a program")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone())
        except BusyError:
            raise UnmeasuredError("another thread is using jaxviz") from None
        stack.enter_context(compat.traced_apart())
        replaced: dict[int, Any] = {}
        for file, text in files.items():
            replaced |= stack.enter_context(_in_place(file, text))
        plain = lambda f: getattr(f, "__wrapped__", None)
        return derivation.again(lambda f: replaced.get(id(f), replaced.get(id(plain(f)), f)))


@contextlib.contextmanager
def _in_place(file: str, text: str) -> Iterator[dict[int, Any]]:
    """Puts an edited file in place of the one that was imported, and yields the module's new objects by the `id` of those that they replace.

    Args:
      file: its name.
      text: its new text.
    """
    old_text = "".join(linecache.getlines(file))
    old_tree, new_tree = ast.parse(old_text), ast.parse(text)
    pairs = _paired(compile(old_text, file, "exec", dont_inherit=True), compile(text, file, "exec", dont_inherit=True))
    here = _functions_of(file)
    if not here:
        raise UnmeasuredError(f"no function of {file_label(file)} was found")
    namespaces = list(
        {id(f.__globals__): f.__globals__ for f in here}.values()
    )  # a file may have been imported more than once
    lines = {id(f): f.__code__.co_firstlineno for f in here}
    undo: list[Callable[[], Any]] = []
    replaced: dict[int, Any] = {}
    try:
        for f in here:
            before, after = f.__code__, pairs.get(f.__code__)
            if after is None:
                continue
            if before.co_freevars != after.co_freevars:
                raise UnmeasuredError(f"{f.__qualname__} uses other variables")
            undo.append(lambda f=f, before=before: setattr(f, "__code__", before))  # type: ignore[misc]
            f.__code__ = after
        for names in namespaces:
            for statement in _changed(old_tree, new_tree):
                _run(statement, file, names, undo, replaced)
        for (line, name), decorators in _decorated_inside(old_tree, new_tree):
            for f in here:
                if (f.__code__.co_name, lines[id(f)]) == (name, line):
                    _decorate(f, decorators, file, here, undo, replaced)
        yield replaced
    finally:
        _wait_for_others({id(code) for code in pairs.values()})
        for step in reversed(undo):
            step()


def _functions_of(file: str) -> list[types.FunctionType]:
    """The functions of a file: those that the collector knows, and those of modules, which it does not know after `gc.freeze`."""
    modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
    named = [x for names in modules if names.get("__file__") == file for x in names.values()]
    methods = [m for c in named if isinstance(c, type) for m in vars(c).values()]
    found = [x for some in (gc.get_objects(), named, methods) for x in some if type(x) is types.FunctionType]
    return list({id(f): f for f in found if f.__code__.co_filename == file}.values())


def _wait_for_others(edited: Collection[int]) -> None:
    """Waits until no other thread runs edited code, whose names are about to go."""
    me, until = threading.get_ident(), time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(t != me and _runs(f, edited) for t, f in sys._current_frames().items()):
        time.sleep(0.005)


def _runs(frame: types.FrameType | None, codes: Collection[int]) -> bool:
    while frame is not None:
        if id(frame.f_code) in codes:
            return True
        frame = frame.f_back
    return False


def _paired(old: Code, new: Code) -> dict[Code, Code]:
    """The code of each function of a file in the edited one, as far as it is certain which is which."""
    found: dict[Code, Code] = {old: new}
    inside = lambda code: [c for c in code.co_consts if isinstance(c, Code)]
    now = {g[0].co_name: g for g in grouped(inside(new), lambda c: c.co_name)}
    for group in grouped(inside(old), lambda c: c.co_name):
        same = now.get(group[0].co_name, ())
        if len(same) == len(group):
            for a, b in zip(group, same, strict=True):
                found |= _paired(a, b)
    return found


def _changed(old: ast.Module, new: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module that an edit adds or changes, apart from the bodies of functions; of a class its methods."""
    there = {_outline(s) for s in old.body}
    classes = {s.name: s for s in old.body if isinstance(s, ast.ClassDef)}
    for s in new.body:
        if _outline(s) in there:
            continue
        before = classes.get(s.name) if isinstance(s, ast.ClassDef) else None
        if isinstance(s, ast.ClassDef) and before is not None:
            methods = {_outline(m) for m in before.body}
            changed = [_without_known(m, before.body) for m in s.body if _outline(m) not in methods]
            yield ast.ClassDef(s.name, [], [], changed, [])
        else:
            yield s


def _without_known(method: ast.stmt, before: list[ast.stmt]) -> ast.stmt:
    """A method without the decorators that it has already, if all that an edit adds comes before these."""
    same = [m for m in before if isinstance(m, Function) and m.name == getattr(method, "name", "")]
    if len(same) == 1 and isinstance(method, Function):
        known, now = (list(map(ast.dump, m.decorator_list)) for m in (same[0], method))
        n = len(now) - len(known)
        if n > 0 and now[n:] == known:
            return ast.copy_location(ast.Assign([ast.Name(method.name, ast.Store())], _applied(method, n)), method)
    return method


def _applied(method: ast.FunctionDef | ast.AsyncFunctionDef, n: int) -> ast.expr:
    """The first decorators of a method, called on its name."""
    made: ast.expr = ast.Name(method.name, ast.Load())
    for decorator in reversed(method.decorator_list[:n]):
        made = ast.Call(decorator, [made], [])
    return made


def _decorated_inside(old: ast.Module, new: ast.Module) -> Iterator[tuple[tuple[int, str], list[ast.expr]]]:
    """The functions in functions whose decorators an edit changes, by the line on which they begin and their name; and their decorators."""

    def inside(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        outer = [n for n in ast.walk(tree) if isinstance(n, Function)]
        return [n for f in outer for s in f.body for n in ast.walk(s) if isinstance(n, Function)]

    before, after = inside(old), inside(new)
    if [f.name for f in before] == [f.name for f in after]:
        for was, now in zip(before, after, strict=True):
            if list(map(ast.dump, was.decorator_list)) != list(map(ast.dump, now.decorator_list)):
                yield (first_line(was), was.name), now.decorator_list


def _decorate(
    f: types.FunctionType, decorators: list[ast.expr], file: str, others: list[types.FunctionType],
    undo: list[Callable[[], Any]], replaced: dict[int, Any],
) -> None:  # fmt: skip
    """Puts a function with decorators in place of one that has been defined inside another function, wherever functions close over it."""
    made: Any = f
    for decorator in reversed(decorators):
        made = eval(compile(ast.Expression(decorator), file, "eval", dont_inherit=True), f.__globals__)(made)
    replaced[id(f)] = made
    for other in others:
        for cell in other.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if held is f:
                undo.append(partial(setattr, cell, "cell_contents", f))
                cell.cell_contents = made


class _Outline(ast.NodeTransformer):
    """Leaves out what is only run when a function is called."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        decorators = [self.visit(d) for d in node.decorator_list]
        return ast.FunctionDef(node.name, node.args, [ast.Pass()], decorators, node.returns)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return ast.Lambda(node.args, ast.Constant(None))


def _outline(statement: ast.stmt) -> str:
    copied = ast.parse(ast.unparse(statement))
    return ast.dump(_Outline().visit(copied))


def _run(
    statement: ast.stmt, file: str, names: dict[str, Any], undo: list[Callable[[], Any]], replaced: dict[int, Any]
) -> None:
    """Runs a statement of a module for its new names, and replaces those objects wherever modules have them.

    Raises:
      UnmeasuredError: it may do more than name something.
    """
    if isinstance(statement, ast.ClassDef):
        for method in statement.body:
            _replace_method(names.get(statement.name), method, file, names, undo)
        return
    if not _only_names(statement):
        raise UnmeasuredError(f"line {statement.lineno} of {file_label(file)} is only run when it is imported")
    made: dict[str, Any] = {}
    for target in getattr(statement, "targets", ()):
        if isinstance(target, ast.Attribute):
            owner = eval(compile(ast.Expression(target.value), file, "eval", dont_inherit=True), names)
            undo.append(partial(setattr, owner, target.attr, vars(owner)[target.attr]))
    exec(compile(ast.Module([statement], []), file, "exec", dont_inherit=True), names, made)
    for name, value in made.items():
        before = names.get(name, _MISSING)
        holders = [names]
        if before is not _MISSING:
            replaced[id(before)] = value
            modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
            holders = [n for n in modules if n.get(name) is before] + ([] if names in modules else [names])
        for holder in holders:
            undo.append(lambda holder=holder, name=name, before=before: _set(holder, name, before))  # type: ignore[misc]
            holder[name] = value


_MISSING = object()


def _set(names: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        names.pop(name, None)
    else:
        names[name] = value


def _only_names(statement: ast.stmt) -> bool:
    """Whether a statement imports or defines something, or assigns a checkpoint, a policy, or another name."""
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, ast.Import | ast.ImportFrom | Function)
    value = statement.value
    is_policy = isinstance(value, ast.Call) and "checkpoint_policies" in ast.unparse(value.func)
    return is_policy or is_checkpoint(value) or isinstance(value, ast.Name | ast.Attribute | ast.Lambda)


def _replace_method(
    owner: Any, method: ast.stmt, file: str, names: dict[str, Any], undo: list[Callable[[], Any]]
) -> None:
    """Replaces a method of a class by one with other decorators."""
    name = method.targets[0].id if isinstance(method, ast.Assign) else getattr(method, "name", "")  # type: ignore[attr-defined]
    before = vars(owner).get(name) if isinstance(owner, type) else None
    uses_class = any(isinstance(n, ast.Name) and n.id in ("super", "__class__") for n in ast.walk(method))
    if before is None or uses_class or not isinstance(method, Function | ast.Assign):
        raise UnmeasuredError(f"line {method.lineno} of {file_label(file)} is only run when its class is defined")
    made = {name: before}
    statement = ast.fix_missing_locations(ast.Module([method], []))
    exec(compile(statement, file, "exec", dont_inherit=True), names, made)
    undo.append(partial(setattr, owner, name, before))
    setattr(owner, name, made[name])
