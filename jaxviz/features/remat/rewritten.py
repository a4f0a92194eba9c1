"""Derives a function again as it would be with edited files, to measure what an edit does before its figures are shown.

The edit is in place only while the function is traced: the code of the user's functions is replaced for that time, and of what the module does
when it is imported only the statements that the edit changes are run again. JAX's caches keep such a trace apart (`compat.traced_apart`), and
calls of jaxviz in other threads wait (`jaxviz.ir.alone`). Other threads of the user's that call these functions in that moment run them with the
edit, which changes no value.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import copy
import functools
import gc
import inspect
import linecache
import operator
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.derivation import Derivation
from jaxviz.features.remat.definition import is_jit
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.libraries import class_of
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import (
    Function,
    checkpoint_decorator,
    closed_over,
    first_line,
    is_checkpoint,
    last_name,
    namespaces_of,
    outside_of_functions,
)
from jaxviz.ir import compat
from jaxviz.ir.alone import BusyError, alone
from jaxviz.ir.origin import file_label

Code = types.CodeType
Made = tuple[types.FunctionType, Callable[..., Any]]
Place = tuple[str, int]
"""The qualified name of some code, and the line on which it begins."""

_PATIENCE = 5.0
"""How many seconds at most the names of an edit stay because another thread runs edited code."""
_NEAR = 0.02
"""The share of the peak by which the residuals may differ from those expected,"""
_HIGHER = 0.15
"""and the share by which the peak may be higher. A checkpoint in another place has other residuals, or recomputes everything at once."""
_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_MISSING = object()


class UnmeasuredError(Exception):
    """An edit that cannot be put in place in this process."""


@dataclass(frozen=True, slots=True)
class Measured:
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


def measured_with(search: Search, files: Mapping[str, str], made: Sequence[Made] = ()) -> Measured:
    """The figures of a function with some files as edited.

    Args:
      search: of the function as written.
      files: each changed file with its new text.
      made: functions that exist, and what is put around each.
    """
    try:
        derivation = derived_with(search.derivation, files, made)
    except UnmeasuredError as error:
        return Measured(None, f"The figures with these changes were not measured: {error}.")
    except Exception as error:
        return Measured(None, f"With these changes the function fails: {type(error).__name__}: {error}", raises=True)
    return Measured(search.measured(derivation, is_final=True))


def derived_with(derivation: Derivation, files: Mapping[str, str], made: Sequence[Made] = ()) -> Derivation:
    """The derivation of the same call, with some files as edited.

    Args:
      derivation: of the function as written.
      files: each changed file with its new text.
      made: functions that exist, and what is put around each.

    Raises:
      UnmeasuredError: the edit cannot be put in place here.
      what the edited function raises.
    """
    if derivation.called is None and derivation.step is None:
        raise UnmeasuredError("the function was given as a program")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone())
            edits = [stack.enter_context(_Edit(file, text)) for file, text in files.items()]
            for f, around in made:
                _call_instead(f, around(_copy(f, f.__code__, {})), stack)
        except BusyError:
            raise UnmeasuredError("another thread is using jaxviz") from None
        instead: dict[int, Any] = {}
        for edit in edits:
            instead |= edit.instead
        plain = lambda f: getattr(f, "__wrapped__", None)
        with compat.traced_apart():
            derived = derivation.again(lambda f: instead.get(id(f), instead.get(id(plain(f)), f)))
            _ = derived.linearized  # by rules that may run the user's functions, too
        return derived


class _Edit:
    """An edited file in place of the one that was imported, until it is left.

    Args:
      file: its name.
      text: its new text.
    """

    def __init__(self, file: str, text: str):
        self.file = file
        old_text = "".join(linecache.getlines(file))
        self.old, self.new = ast.parse(old_text), ast.parse(text)
        self.defined = {_place_of(was): (was, now, around) for (was, _), (now, around) in _matched(self.old, self.new)}
        """The definitions that are in both, with the functions around the new one, by the place of the old one's code."""
        self.functions = _functions_of(file)
        if not self.functions:
            raise UnmeasuredError(f"no function of {file_label(file)} was found")
        codes = [f.__code__ for f in self.functions]
        # A notebook compiles a cell with the future statements of the cells before it.
        self.flags = codes[0].co_flags & _FUTURE
        self.pairs = dict(_paired(self._compiled(self.old), self._compiled(self.new)))
        self.namespaces = list({id(f.__globals__): f.__globals__ for f in self.functions}.values())
        """The names of each module that the file was imported as."""
        self.instead: dict[int, Any] = {}
        """What stands for an object of the module, by the object's `id`."""
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> _Edit:
        with contextlib.ExitStack() as failing:
            failing.callback(self._undo.close)
            self._replace()
            failing.pop_all()
        return self

    def __exit__(self, *_: Any) -> None:
        self._undo.close()

    def _replace(self) -> None:
        # Decorators that are added to a function are put around the function that is there.
        added = {now: _added(was, now) for was, now, _ in self.defined.values()}
        statements = list(_changed(self.old, _Without(added).visit(copy.deepcopy(self.new))))
        # Names come before the code that reads them, and go when nothing runs it any more.
        for names in self.namespaces:
            for statement in (s for s in statements if self._is_new(s, names)):
                self._run(statement, names)
        self._undo.callback(_wait_until_unused, {id(code) for code in self.pairs.values()})
        for names in self.namespaces:
            for statement in statements:
                if isinstance(statement, ast.ClassDef):
                    for method in statement.body:
                        self._replace_method(names.get(statement.name), method, names)
                elif not self._is_new(statement, names):
                    self._run(statement, names)
        places = {id(f): _place(f.__code__) for f in self.functions}
        swapped = [self._swap(f) for f in self.functions]
        self._check_nothing_is_left_out({place for place in swapped if place is not None})
        # A function around others makes them anew.
        missing = {place for place, (was, now, around) in self.defined.items() if any(_added(was, now)) and not around}
        for f in self.functions:
            name, line = places[id(f)]
            place = name.rpartition(".")[2], line
            if place in self.defined and self._decorate(f, *self.defined[place]):
                missing.discard(place)
        if missing:
            raise UnmeasuredError(f"{missing.pop()[0]} of {file_label(self.file)} was not found")

    def _compiled(self, tree: ast.AST, kind: str = "exec") -> Any:
        return compile(tree, self.file, kind, self.flags, dont_inherit=True)  # type: ignore[call-overload]

    # --- code -----------------------------------------------------------------------------------------------------

    def _swap(self, f: types.FunctionType) -> Place | None:
        """Gives a function its edited code; its place, if there is some."""
        before = f.__code__
        place, after = _place(before), self.pairs.get(_place(before))
        if after is None:
            return None
        if before.co_freevars == after.co_freevars:
            self._undo.callback(setattr, f, "__code__", before)
            f.__code__ = after
        else:
            _, _, around = self.defined.get((before.co_name, before.co_firstlineno), (None, None, ()))
            _call_instead(f, _copy(f, after, self._imported(around)), self._undo)
        return place

    def _imported(self, around: Iterable[Function]) -> dict[str, Any]:
        """The names that functions import."""
        names: dict[str, Any] = {}
        statements = [n for f in around for n in outside_of_functions(f) if isinstance(n, ast.Import | ast.ImportFrom)]
        exec(self._compiled(ast.Module([*statements], [])), names)
        return names

    def _check_nothing_is_left_out(self, swapped: Collection[Place]) -> None:
        """Raises an error if the edit changes code that no function has, alone or within the function that defines it."""
        for place, is_swapped in _reached(self._compiled(self.old), self._compiled(self.new), swapped, False):
            if not is_swapped:
                raise UnmeasuredError(f"{place[0]} of {file_label(self.file)} was not found")

    def _decorate(self, f: types.FunctionType, was: Function, now: Function, around: Sequence[Function]) -> bool:
        """Gives a function its edited decorators, as far as they are not among the statements of the module; whether it has them."""
        above, within = _added(was, now)
        is_same = list(map(ast.dump, was.decorator_list)) == list(map(ast.dump, now.decorator_list))
        if is_same or not (above or within or around):
            return True
        owner = class_of(f.__code__)
        held = getattr(owner, f.__name__, f)
        if above and (owner is None or inspect.unwrap(held) is not f):
            return False
        made: Any = _copy(f, f.__code__, {}) if within else held if above else f
        names = {**f.__globals__, **self._imported(around), **closed_over(f)}
        for decorator in reversed(above or within or now.decorator_list):
            made = eval(self._compiled(ast.Expression(decorator), "eval"), names)(made)
        if within:
            _call_instead(f, made, self._undo)
            return True
        if above:
            self._undo.callback(setattr, owner, f.__name__, vars(owner)[f.__name__])
            setattr(owner, f.__name__, made)
            return True
        self.instead[id(f)] = made
        for cell in (cell for other in self.functions for cell in other.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                held = cell.cell_contents
                if callable(held) and inspect.unwrap(held) is f:
                    self._undo.callback(setattr, cell, "cell_contents", held)
                    cell.cell_contents = made
        return True

    # --- what the module does when it is imported -----------------------------------------------------------------------

    def _is_new(self, statement: ast.stmt, names: Mapping[str, Any]) -> bool:
        """Whether a statement adds names, and changes none."""
        return isinstance(statement, ast.Import | ast.ImportFrom) or (
            isinstance(statement, ast.Assign)
            and all(isinstance(t, ast.Name) and t.id not in names for t in statement.targets)
        )

    def _run(self, statement: ast.stmt, names: dict[str, Any]) -> None:
        """Runs a statement of a module for its new names, and replaces those objects wherever modules have them.

        Raises:
          UnmeasuredError: it may do more than name something.
        """
        if not _only_names(statement):
            raise UnmeasuredError(f"line {statement.lineno} of {file_label(self.file)} is only run when it is imported")
        for target in getattr(statement, "targets", ()):
            if isinstance(target, ast.Attribute):
                owner = eval(self._compiled(ast.Expression(target.value), "eval"), names)
                before = vars(owner).get(target.attr, _MISSING)
                self._undo.callback(_set_attribute, owner, target.attr, before)
        made: dict[str, Any] = {}
        exec(self._compiled(ast.Module([statement], [])), names, made)
        for name, value in made.items():
            before = names.get(name, _MISSING)
            holders = [names]
            if before is not _MISSING:
                self.instead |= {key: value for key, held in self.instead.items() if held is before}
                self.instead[id(before)] = value
                modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
                holders += [held for held in modules if held is not names and held.get(name, _MISSING) is before]
            for holder in holders:
                self._undo.callback(_set, holder, name, before)
                holder[name] = value

    def _replace_method(self, owner: Any, method: ast.stmt, names: dict[str, Any]) -> None:
        """Replaces a method of a class by one with other decorators."""
        name = getattr(method, "name", "")
        before = vars(owner).get(name) if isinstance(owner, type) else None
        uses_class = any(isinstance(n, ast.Name) and n.id in ("super", "__class__") for n in ast.walk(method))
        if before is None or uses_class or not _only_names(method):
            raise UnmeasuredError(
                f"line {method.lineno} of {file_label(self.file)} is only run when its class is defined"
            )
        # In a class of that name, as private names are spelled by it.
        within: ast.stmt = ast.ClassDef(owner.__name__, [], [], [method], [])
        made: dict[str, Any] = {}
        exec(self._compiled(ast.fix_missing_locations(ast.Module([within], []))), names, made)
        after = vars(made[owner.__name__])[name]
        self._undo.callback(setattr, owner, name, before)
        setattr(owner, name, after)


def _functions_of(file: str) -> list[types.FunctionType]:
    """The functions of a file: those that the collector knows, and those of modules, which it does not know after `gc.freeze`."""
    named = [x for names in namespaces_of(file) for x in [*names.values()]]
    methods = [m for c in named if isinstance(c, type) for m in [*vars(c).values()]]
    found = [x for some in (gc.get_objects(), named, methods) for x in some if type(x) is types.FunctionType]
    return list({id(f): f for f in found if f.__code__.co_filename == file}.values())


def _place(code: Code) -> Place:
    return code.co_qualname, code.co_firstlineno


def _place_of(function: Function) -> Place:
    return function.name, first_line(function)


def _copy(f: types.FunctionType, code: Code, more: Mapping[str, Any]) -> types.FunctionType:
    """A function like another one, with some code that may use more variables than those that it closes over."""
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    missing = set(code.co_freevars) - set(cells)
    if not missing <= set(more):
        raise UnmeasuredError(f"{f.__qualname__} uses other variables")
    cells |= {name: types.CellType(more[name]) for name in missing}
    made = types.FunctionType(
        code, f.__globals__, f.__name__, f.__defaults__, tuple([cells[n] for n in code.co_freevars])
    )
    made.__kwdefaults__, made.__qualname__ = f.__kwdefaults__, f.__qualname__
    vars(made).update(vars(f))
    return made


def _call_instead(f: types.FunctionType, made: Any, undo: contextlib.ExitStack) -> None:
    """Makes a function call something else, wherever it is held: it stays the same object."""
    before = f.__code__
    call = _call(before.co_freevars)
    undo.callback(_set_attribute, f, "__signature__", vars(f).get("__signature__", _MISSING))
    f.__signature__ = inspect.signature(f)  # type: ignore[attr-defined]
    undo.callback(setattr, f, "__code__", before)
    f.__code__ = call.replace(
        co_consts=tuple([made if c == "it" else c for c in call.co_consts]), co_filename=before.co_filename,
        co_name=before.co_name, co_qualname=before.co_qualname, co_firstlineno=before.co_firstlineno,
    )  # fmt: skip


def _call(free: Sequence[str]) -> Code:
    """Code that calls "it", of a function that closes over these variables: Python reads them wherever somebody looks at its frame."""
    names: dict[str, Any] = {}
    exec(
        f"def around({', '.join(free)}):\n"
        "    def call(*args, **kwargs):\n"
        "        function = 'it'\n"
        f"        if False: {'; '.join(free) or 'pass'}\n"
        "        return function(*args, **kwargs)\n"
        "    return call\n",
        names,
    )
    found: Code = names["around"](*free).__code__
    return found


def _inner(code: Code) -> list[Code]:
    return [c for c in code.co_consts if isinstance(c, Code)]


def _alike(old: Code, new: Code) -> list[tuple[Code, Code]]:
    """The functions defined in some code, each with the edited one, as far as it is certain which is which."""
    by_name = lambda codes: {name: [c for c in codes if c.co_name == name] for name in {c.co_name for c in codes}}
    before, after = by_name(_inner(old)), by_name(_inner(new))
    same = [(before[name], after.get(name, [])) for name in before]
    return [pair for a, b in same if len(a) == len(b) for pair in zip(a, b, strict=True)]


def _paired(old: Code, new: Code) -> Iterator[tuple[Place, Code]]:
    """The edited code of each function of a file, by the place of the function; not of those that share one, such as two lambdas on a line."""
    places = [_place(a) for a, _ in _alike(old, new)]
    for a, b in _alike(old, new):
        if places.count(_place(a)) == 1:
            yield _place(a), b
            yield from _paired(a, b)


def _reached(old: Code, new: Code, swapped: Collection[Place], is_inside: bool) -> Iterator[tuple[Place, bool]]:
    """The functions in some code that an edit changes, and whether they are run as edited: if they are swapped, or what defines them is."""
    pairs = _alike(old, new)
    for a, b in pairs:
        is_swapped = is_inside or _place(a) in swapped
        is_function = a.co_flags & inspect.CO_OPTIMIZED  # what a class does when it is defined is among the statements
        if is_function and (_content(a) != _content(b) or len(_inner(a)) != len(_alike(a, b))):
            yield _place(a), is_swapped
        yield from _reached(a, b, swapped, is_swapped)


def _content(code: Code) -> Any:
    """What some code does, apart from its lines and from the functions in it."""
    plain = [c for c in code.co_consts if not isinstance(c, Code)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, repr(plain)


def _changed(old: ast.Module, new: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module that an edit adds or changes, apart from the bodies of functions, and those that name their objects again; of a
    class its methods."""
    touched: set[str] = set()
    there = {_outline(s) for s in old.body}
    classes = {s.name: s for s in old.body if isinstance(s, ast.ClassDef)}
    for s in new.body:
        if _outline(s) in there:
            if not touched.isdisjoint(_names_assigned(s)):
                yield s
            continue
        touched |= _names_assigned(s)
        if isinstance(s, ast.ClassDef) and s.name in classes:
            known = {_outline(m) for m in classes[s.name].body}
            changed = [m for m in s.body if _outline(m) not in known]
            yield ast.copy_location(ast.ClassDef(s.name, [], [], changed, []), s)
        else:
            yield s


def _definitions(tree: ast.AST, around: tuple[Function, ...] = ()) -> Iterator[tuple[Function, tuple[Function, ...]]]:
    """The functions of a tree that have a `def`, each with those around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node, around
            yield from _definitions(node, (*around, node))
        else:
            yield from _definitions(node, around)


def _matched(old: ast.Module, new: ast.Module) -> Iterable[tuple[Any, Any]]:
    """The definitions of a module, each with the edited one; an edit may add some, with other names."""
    before = list(_definitions(old))
    names = {f.name for f, _ in before}
    after = [found for found in _definitions(new) if found[0].name in names]
    return zip(before, after, strict=True) if len(before) == len(after) else ()


def _added(was: Function, now: Function) -> tuple[list[ast.expr], list[ast.expr]]:
    """The decorators that an edit adds above those of a function, or between these and the function; none if it changes these."""
    before, after = list(map(ast.dump, was.decorator_list)), list(map(ast.dump, now.decorator_list))
    n = len(after) - len(before)
    if n > 0 and after[: len(before)] == before:
        return [], now.decorator_list[-n:]
    return (now.decorator_list[:n], []) if n > 0 and after[n:] == before else ([], [])


class _Without(ast.NodeTransformer):
    """Takes decorators from functions.

    Args:
      added: for each function, those above the others, and those below.
    """

    def __init__(self, added: Mapping[Function, tuple[list[ast.expr], list[ast.expr]]]):
        self.added = {(f.lineno, f.col_offset): (len(above), len(within)) for f, (above, within) in added.items()}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        above, within = self.added.get((node.lineno, node.col_offset), (0, 0))
        node.decorator_list = node.decorator_list[above : len(node.decorator_list) - within]
        return node


class _Outline(ast.NodeTransformer):
    """Leaves out what is only run when a function is called."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        decorators = [self.visit(d) for d in node.decorator_list]
        return ast.FunctionDef(node.name, node.args, [ast.Pass()], decorators, node.returns)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        decorators = [self.visit(d) for d in node.decorator_list]
        return ast.AsyncFunctionDef(node.name, node.args, [ast.Pass()], decorators, node.returns)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return ast.Lambda(node.args, ast.Constant(None))


def _outline(statement: ast.stmt) -> str:
    return ast.dump(_Outline().visit(ast.parse(ast.unparse(statement))))


def _only_names(statement: ast.stmt) -> bool:
    """Whether a statement imports something, assigns a checkpoint, a policy or another name, or defines a function without other decorators than
    checkpoints and `jax.jit`."""
    if isinstance(statement, Function):
        return all(checkpoint_decorator(d) or is_jit(d) for d in statement.decorator_list)
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, ast.Import | ast.ImportFrom)
    value = statement.value
    if not isinstance(value, ast.Call):
        return isinstance(value, ast.Name | ast.Attribute | ast.Lambda)
    is_policy = "checkpoint_policies" in ast.unparse(value.func)
    given = [*value.args, *(k.value for k in value.keywords)]
    is_wrapped = last_name(value.func) in ("jit", "partial") and all(
        isinstance(a, ast.Name | ast.Attribute | ast.Constant) for a in given
    )
    return is_policy or is_wrapped or is_checkpoint(value) or checkpoint_decorator(value.func)


def _names_assigned(statement: ast.stmt) -> set[str]:
    if isinstance(statement, Function | ast.ClassDef):
        return {statement.name}
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _set(names: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        names.pop(name, None)
    else:
        names[name] = value


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _wait_until_unused(codes: Collection[int]) -> None:
    """Waits until no other thread runs any of some code, whose names are about to go."""
    me, until = threading.get_ident(), time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(t != me and _runs(f, codes) for t, f in sys._current_frames().items()):
        time.sleep(0.005)


def _runs(frame: types.FrameType | None, codes: Collection[int]) -> bool:
    while frame is not None:
        if id(frame.f_code) in codes:
            return True
        frame = frame.f_back
    return False
