"""Derives a function again as it would be with edited files, to measure what an edit does before its figures are shown.

The edit is in place only while the function is traced. Functions, and what checkpoints made of them, stay the objects
that they are and call edited copies of themselves for that time, wherever they are held. Of what a module does when it
is imported, only assignments of checkpoints, policies and other names are run again; the names that an edit adds are
variables of the copies, and not of the module. JAX's caches keep such a trace apart (`compat.traced_apart`), and calls
of jaxviz in other threads wait (`jaxviz.ir.alone`). Other threads of the user's that call these functions in that
moment run them with the edit, which changes no value. An edit that does not reach all that is run is not measured.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import copy
import functools
import gc
import inspect
import itertools
import linecache
import operator
import sys
import threading
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxviz.derivation import Derivation
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import (
    Function,
    checkpoint_decorator,
    closed_over,
    codes_in,
    is_checkpoint,
    last_name,
    names_bound,
    namespaces_of,
    value_of,
    without_checkpoint,
)
from jaxviz.features.remat.tuning import NEAR
from jaxviz.ir import compat
from jaxviz.ir.alone import BusyError, alone
from jaxviz.ir.expressions import SCOPES, first_line, outside_of_functions
from jaxviz.ir.origin import file_label
from jaxviz.ir.syntax import Program

Code = types.CodeType
Wrapping = tuple[types.FunctionType, Callable[..., Any]]
Place = tuple[str, int]
"""The name of some code, and the line on which it begins."""

_FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_MISSING = object()


class UnmeasuredError(Exception):
    """An edit that cannot be put in place in this process."""


class DecoratorError(Exception):
    """A decorator that an edit adds to a function of a module raises, as it would when the module is imported."""


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
        # Arguments are in memory anyway: that a checkpoint reads them, rather than what it is given, tells nothing.
        saved = abs(self.trade.saved_nbytes - expected.saved_nbytes)
        is_low = self.trade.peak_nbytes <= (1 + NEAR) * expected.peak_nbytes
        return saved <= NEAR * max(expected.peak_nbytes, 1) and is_low


def measured_with(search: Search, files: Mapping[str, str], wrappings: Sequence[Wrapping] = ()) -> Measured:
    """The figures of a function with some files as edited.

    Args:
      wrappings: functions that exist, and what is put around each.
    """
    try:
        derivation = derived_with(search.derivation, files, wrappings)
    except UnmeasuredError as error:
        return Measured(None, f"The figures with these changes were not measured: {error}.")
    except Exception as error:
        raised = error.__cause__ if isinstance(error, DecoratorError) else error
        return Measured(None, f"With these changes the function fails: {type(raised).__name__}: {raised}", raises=True)
    return Measured(search.measured(derivation, is_final=True))


def derived_with(derivation: Derivation, files: Mapping[str, str], wrappings: Sequence[Wrapping] = ()) -> Derivation:
    """The derivation of the same call, with some files as edited.

    Args:
      wrappings: functions that exist, and what is put around each.

    Raises:
      UnmeasuredError: the edit cannot be put in place here.
      what the edited function raises.
    """
    if derivation.called is None and derivation.step is None:
        raise UnmeasuredError("the function was given as a program")
    has_unopened = any(u.is_checkpoint for u in derivation.unopened)
    opening = contextlib.nullcontext() if has_unopened else compat.opening_checkpoints()
    with _in_place(files, wrappings) as instead, compat.traced_apart(), opening:
        plain = lambda f: getattr(f, "__wrapped__", None)
        derived = derivation.again(lambda f: instead.get(id(f), instead.get(id(plain(f)), f)))
        _ = derived.linearized  # by rules that may run the user's functions, too
    if _is_same(derivation.primal, derived.primal):
        raise UnmeasuredError("they have no effect on the functions in memory")
    return derived


@contextlib.contextmanager
def _in_place(files: Mapping[str, str], wrappings: Sequence[Wrapping]) -> Iterator[dict[int, Any]]:
    """Edits in place; gives what stands for the objects of the modules, by their `id`.

    Raises:
      UnmeasuredError: they cannot be.
    """
    instead: dict[int, Any] = {}
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone())
            # The user did nothing that a library should warn of. Filters belong to the process.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            edits = [_Edit(file, text, instead, stack) for file, text in files.items()]
            for f, around in wrappings:
                _call_instead(f, around(_copy(f, f.__code__, {})), stack)
        except (UnmeasuredError, DecoratorError, SyntaxError):  # an edit that is no Python fails
            raise
        except BusyError:
            raise UnmeasuredError("another thread is using jaxviz") from None
        except Exception as error:
            raise UnmeasuredError(f"they cannot be put in place here ({type(error).__name__}: {error})") from error
        yield instead
        for edit in edits:
            edit.check_it_was_run()


def _is_same(was: Program, now: Program) -> bool:
    """Whether two programs have the same equations, with the same settings of checkpoints and loops."""
    is_setting = lambda key, x: key == "policy" or isinstance(x, int | str)
    settings = lambda e: {key: x for key, x in e.params.items() if is_setting(key, x)}
    of = lambda program: [(depth, e.primitive, settings(e)) for depth, e in program.walk()]
    return of(was) == of(now)


@dataclass(frozen=True, slots=True)
class _Change:
    """A function that an edit changes.

    Args:
      was, now: its definition.
      place: where it was.
      before, after: its code; None where several functions are at one place.
      outer: the functions and classes around it, before and after.
    """

    was: Any
    now: Any
    place: Place
    before: Code | None
    after: Code | None
    outer: tuple[tuple[Any, Any], ...]

    @property
    def is_own(self) -> bool:
        """Whether more changes than the functions that are defined in it."""
        return _own(self.was) != _own(self.now)


class _Edit:
    """An edited file in place of the one that was imported.

    Args:
      instead: is given what stands for an object of the module, by the object's `id`.
      undo: takes the edit back.
    """

    def __init__(self, file: str, text: str, instead: dict[int, Any], undo: contextlib.ExitStack):
        self.file, self.instead, self.undo = file, instead, undo
        functions = _functions_of(file)
        if not functions:
            raise UnmeasuredError(f"no function of {file_label(file)} was found")
        # A notebook compiles a cell with the future statements of the cells before it.
        self.flags = functions[0].__code__.co_flags & _FUTURE
        self.old, self.new = ast.parse("".join(linecache.getlines(file))), ast.parse(text)
        known = set(map(_outline, self.old.body))
        statements = [s for s in self.new.body if _outline(s) not in known]
        namespaces = {id(f.__globals__): f.__globals__ for f in functions}
        self.added = {key: self._added(statements, names) for key, names in namespaces.items()}
        """The names that the edit adds to each module that the file was imported as."""
        self.changes = list(self._changes())
        self.ran: set[Place] = set()
        """The edited functions that were called."""
        self.copies: list[types.FunctionType] = []
        undo.callback(self._restore_made)
        for names in namespaces.values():
            for statement in statements:
                if not _is_new(statement, names):
                    self._assign(statement, names, functions)
        by_place = {c.place: c for c in self.changes if c.before is not None and c.after is not None}
        for f in functions:
            if (change := by_place.get(_place_of_code(f.__code__))) is not None:
                self._change(f, change)

    def check_it_was_run(self) -> None:
        """Raises an error if the function was traced with a part of the edit."""
        for change in self.changes:
            name, line = change.place
            if change.is_own and self.ran.isdisjoint((change.place, *(_place_of(was) for was, _ in change.outer))):
                what = "the lambda" if name == "<lambda>" else f"`{name}`"
                raise UnmeasuredError(
                    f"{what} on line {line} of {file_label(self.file)} is not called as edited while the function is "
                    "traced"
                )

    # --- what changes -------------------------------------------------------------------------------------------------

    def _changes(self) -> Iterator[_Change]:
        """The functions that the edit changes, as far as it is certain which is which."""
        before, after = self._codes(self.old, []), self._codes(self.new, sorted(set().union(*self.added.values())))
        only = lambda codes: codes[0] if len(codes) == 1 else None
        for was, now, outer in _matched(self.old, self.new):
            if not isinstance(was, ast.ClassDef) and ast.dump(was) != ast.dump(now):
                place = _place_of(was)
                yield _Change(was, now, place, only(before[place]), only(after[_place_of(now)]), outer)

    def _codes(self, tree: ast.Module, added: Sequence[str]) -> dict[Place, list[Code]]:
        """The code of a module's functions, for which some names are variables of a function around them."""
        scopes = list(_scopes_in(tree))
        global_names = sorted({s.name for s in scopes if not isinstance(s, ast.Lambda)} - set(added))
        around = ast.parse(f"def names({', '.join(added)}):\n    pass")
        definition: Any = around.body[0]
        definition.body += [ast.Global(global_names)] if global_names else []
        definition.body += [ast.Expr(s) if isinstance(s, ast.Lambda) else s for s in scopes]
        codes = defaultdict(list)
        for code in codes_in(self._compiled(around)):
            codes[_place_of_code(code)].append(code)
        return codes

    def _compiled(self, tree: ast.AST, kind: str = "exec") -> Any:
        located = ast.fix_missing_locations(tree)
        return compile(located, self.file, kind, self.flags, dont_inherit=True)  # type: ignore[call-overload]

    def _added(self, statements: Iterable[ast.stmt], names: Mapping[str, Any]) -> dict[str, Any]:
        new = [s for s in statements if _is_new(s, names)]
        scope = dict(names)
        exec(self._compiled(ast.Module(new, [])), scope)
        return {name: scope[name] for s in new for name in names_bound(s)}

    # --- functions ----------------------------------------------------------------------------------------------------

    def _change(self, f: types.FunctionType, change: _Change) -> None:
        """Makes a function call its edited copy."""
        inside = (n for _, now in change.outer if isinstance(now, Function) for n in outside_of_functions(now))
        imports = (n for n in inside if isinstance(n, ast.Import | ast.ImportFrom))
        more = {**self.added[id(f.__globals__)]}
        exec(self._compiled(ast.Module([*imports], [])), more)
        assert change.after is not None
        self.copies.append(_copy(f, change.after, more))
        edited = self._noted(self.copies[-1], [change.place])
        gone, new = _differing(*(getattr(d, "decorator_list", []) for d in (change.was, change.now)))
        names = {**f.__globals__, **more, **closed_over(f)}
        is_of_module = not any(isinstance(now, Function) for _, now in change.outer)

        def decorated(g: Callable[..., Any]) -> Callable[..., Any]:
            around = [eval(self._compiled(ast.Expression(decorator), "eval"), names) for decorator in reversed(new)]
            try:
                return functools.reduce(lambda g, decorator: decorator(g), around, g)
            except Exception as error:
                if is_of_module:
                    raise DecoratorError from error
                raise

        if not gone:
            _call_instead(f, decorated(edited), self.undo)
            return
        if not all(map(checkpoint_decorator, gone)):
            raise self._on_import(change.place[1])
        wrappers, current = _wrappers_of(f), f.__globals__.get(f.__name__)
        is_held = not wrappers and getattr(current, "__wrapped__", None) is f  # by an object that is no function
        if wrappers or is_held:  # otherwise it is out of use
            _call_instead(f, edited, self.undo)
        for wrapper in wrappers:
            _call_instead(wrapper, decorated(f), self.undo)
        if is_held:
            self._rename(f.__name__, current, decorated(f), f.__globals__)

    def _noted(self, f: Callable[..., Any], places: Iterable[Place]) -> Callable[..., Any]:
        """A function that notes when this thread calls it."""
        me, places = threading.get_ident(), tuple(places)

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == me:
                self.ran.update(places)
            return f(*args, **kwargs)

        return call

    def _restore_made(self) -> None:
        """Gives functions that edited code has made, and that something keeps, the code as it was."""
        before = {id(change.after): change.before for change in self.changes}
        for f in _functions():
            was = before.get(id(f.__code__)) if f not in self.copies else None
            if was is not None and set(was.co_freevars) <= set(f.__code__.co_freevars):
                _call_instead(f, _copy(f, was, {}), contextlib.ExitStack())

    # --- what the module does when it is imported ---------------------------------------------------------------------

    def _on_import(self, line: int) -> UnmeasuredError:
        return UnmeasuredError(f"line {line} of {file_label(self.file)} is only run when it is imported")

    def _assign(self, statement: ast.stmt, names: dict[str, Any], functions: list[types.FunctionType]) -> None:
        """Assigns what a statement of the module does, and takes the functions that it replaces from the list.

        Raises:
          UnmeasuredError: it may do more than name something.
        """
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1 or not _only_wraps(statement.value):
            raise self._on_import(statement.lineno)
        (target,) = statement.targets
        was = [
            s.value for s in self.old.body if isinstance(s, ast.Assign) and ast.dump(s.targets[0]) == ast.dump(target)
        ]
        current = names.get(target.id) if isinstance(target, ast.Name) else None
        scope = {**names, **self.added[id(names)]}
        if any(map(is_checkpoint, was)) and last_name(without_checkpoint(statement.value)) == last_name(target):
            scope[last_name(target)] = getattr(current, "__wrapped__", current)  # before it was assigned
        value = eval(self._compiled(ast.Expression(statement.value), "eval"), scope)
        replaced: list[Any] = []
        """The functions that the statement has made."""
        if len(was) == 1 and isinstance(was[0], ast.Lambda):
            replaced = [f for f in functions if _place_of_code(f.__code__) == ("<lambda>", was[0].lineno)]
        elif len(was) == 1 and is_checkpoint(was[0]):
            replaced = [current]
        if len(replaced) == 1 and type(replaced[0]) is types.FunctionType:
            inside = [s for s in ast.walk(was[0]) if isinstance(s, ast.Lambda)]
            _call_instead(replaced[0], self._noted(value, map(_place_of, inside)), self.undo)
            functions[:] = [f for f in functions if f is not replaced[0]]
        elif isinstance(target, ast.Name) and len(was) < 2:
            self._rename(target.id, current, value, names)
        else:
            owner = value_of(self.file, target.value, scope) if isinstance(target, ast.Attribute) else None
            # An attribute of another object may be a property, whose setter cannot be undone.
            if not isinstance(target, ast.Attribute) or not isinstance(owner, type | types.ModuleType):
                raise self._on_import(statement.lineno)
            self.undo.callback(_set_attribute, owner, target.attr, vars(owner).get(target.attr, _MISSING))
            setattr(owner, target.attr, value)

    def _rename(self, name: str, current: Any, value: Any, names: dict[str, Any]) -> None:
        """Gives a name another value in each module that has it for the same object."""
        modules = [names]
        if callable(current):  # other objects, such as None, are not the module's own
            self.instead[id(current)] = value
            others = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
            modules += [m for m in others if m is not names and m.get(name, _MISSING) is current]
        for module in modules:
            self.undo.callback(operator.setitem, module, name, current)
            module[name] = value


# --- source -----------------------------------------------------------------------------------------------------------


class _Outline(ast.NodeTransformer):
    """Leaves out what is only run when a function is called, and the decorators of functions."""

    def visit_FunctionDef(self, node: Function) -> ast.AST:
        return type(node)(node.name, node.args, [ast.Pass()], [], node.returns)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return ast.Lambda(node.args, ast.Constant(None))


def _outline(node: ast.AST) -> str:
    return ast.dump(_Outline().visit(ast.parse(ast.unparse(node))))


def _own(function: Any) -> list[str]:
    """What a function does, apart from the functions in it."""
    if isinstance(function, ast.Lambda):
        return [_outline(function.body)]
    return [*map(ast.dump, function.decorator_list), *map(_outline, function.body)]


def _scopes_in(node: ast.AST) -> Iterator[Any]:
    """The functions and classes in a node, but not those in them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            yield child
        else:
            yield from _scopes_in(child)


def _matched(
    old: ast.AST, new: ast.AST, outer: tuple[tuple[Any, Any], ...] = ()
) -> Iterator[tuple[Any, Any, tuple[tuple[Any, Any], ...]]]:
    """The functions and classes in a node, each with the edited one and those around both, as far as it is certain
    which is which."""
    name_of = lambda scope: getattr(scope, "name", "")
    before, after = list(_scopes_in(old)), list(_scopes_in(new))
    for name in dict.fromkeys(map(name_of, before)):
        pair = [[s for s in scopes if name_of(s) == name] for scopes in (before, after)]
        for was, now in zip(*pair, strict=True) if len(pair[0]) == len(pair[1]) else ():
            yield was, now, outer
            yield from _matched(was, now, (*outer, (was, now)))


def _differing(old: Sequence[ast.expr], new: Sequence[ast.expr]) -> tuple[Sequence[ast.expr], Sequence[ast.expr]]:
    """The decorators that an edit takes away, and those that it adds in their place."""
    is_same = lambda pair: ast.dump(pair[0]) == ast.dump(pair[1])
    above = len(list(itertools.takewhile(is_same, zip(old, new, strict=False))))
    old, new = old[above:], new[above:]
    below = len(list(itertools.takewhile(is_same, zip(old[::-1], new[::-1], strict=False))))
    return old[: len(old) - below], new[: len(new) - below]


def _is_new(statement: ast.stmt, names: Mapping[str, Any]) -> bool:
    """Whether a statement adds names, and does nothing else."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    is_assigned = isinstance(statement, ast.Assign) and _only_wraps(statement.value)
    bound = names_bound(statement)
    return (is_assigned or isinstance(statement, ast.FunctionDef)) and bool(bound) and bound.isdisjoint(names)


def _only_wraps(node: ast.expr) -> bool:
    """Whether an expression is a name, a function or a call, and calls nothing but what makes checkpoints, policies,
    partial and jitted functions, which calls nothing itself."""
    calls = (n for n in (node, *outside_of_functions(node)) if isinstance(n, ast.Call))
    return isinstance(node, ast.Name | ast.Attribute | ast.Lambda | ast.Call) and all(
        checkpoint_decorator(c)
        or (checkpoint_decorator(c.func) and not is_checkpoint(c.func))
        or last_name(c.func) in ("jit", "partial")
        or "checkpoint_policies" in ast.unparse(c.func)
        for c in calls
    )


# --- code -------------------------------------------------------------------------------------------------------------


def _place_of_code(code: Code) -> Place:
    return code.co_name, code.co_firstlineno


def _place_of(scope: Any) -> Place:
    return ("<lambda>", scope.lineno) if isinstance(scope, ast.Lambda) else (scope.name, first_line(scope))


def _functions_of(file: str) -> list[types.FunctionType]:
    """The functions of a file: those that the collector knows, and those of modules, which it does not know after
    `gc.freeze`."""
    named = [x for names in namespaces_of(file) for x in [*names.values()]]
    methods = [m for c in named if isinstance(c, type) for m in [*vars(c).values()]]
    functions = [x for some in (_functions(), named, methods) for x in some if type(x) is types.FunctionType]
    return list({id(f): f for f in functions if f.__code__.co_filename == file}.values())


def _functions() -> list[types.FunctionType]:
    """Those that the collector knows.

    All refer to the built-in names: a list of all objects would hold tuples that other threads are making, which then
    fails.
    """
    return [x for x in gc.get_referrers(vars(builtins)) if type(x) is types.FunctionType]


def _wrappers_of(f: types.FunctionType) -> list[types.FunctionType]:
    attributes = [d for d in gc.get_referrers(f) if type(d) is dict and d.get("__wrapped__") is f]
    return [x for x in gc.get_referrers(*attributes) if type(x) is types.FunctionType] if attributes else []


def _copy(f: types.FunctionType, code: Code, more: Mapping[str, Any]) -> types.FunctionType:
    """A function like another one, with some code that may use more variables than those that it closes over."""
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    missing = set(code.co_freevars) - set(cells)
    if not missing <= set(more):
        unknown = ", ".join(f"`{name}`" for name in sorted(missing - set(more)))
        raise UnmeasuredError(f"`{f.__name__}` in memory does not have {unknown} of the function around it")
    cells |= {name: types.CellType(more[name]) for name in missing}
    function = types.FunctionType(
        code, f.__globals__, f.__name__, f.__defaults__, tuple([cells[n] for n in code.co_freevars])
    )
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__", "__type_params__"):
        if hasattr(f, name):
            setattr(function, name, copy.copy(getattr(f, name)))
    vars(function).update(vars(f))
    return function


def _call_instead(f: types.FunctionType, callee: Any, undo: contextlib.ExitStack) -> Code:
    """Makes a function call something else, wherever it is held, by the code that is returned: it stays the same
    object."""
    before = f.__code__
    call = _call(before.co_freevars)
    signature = inspect.signature(f)
    undo.callback(_set_attribute, f, "__signature__", vars(f).get("__signature__", _MISSING))
    f.__signature__ = signature  # type: ignore[attr-defined]
    undo.callback(setattr, f, "__code__", before)
    f.__code__ = call.replace(
        co_consts=tuple([callee if c == "it" else c for c in call.co_consts]), co_filename=before.co_filename,
        co_name=before.co_name, co_qualname=before.co_qualname, co_firstlineno=before.co_firstlineno,
    )  # fmt: skip
    return f.__code__


def _call(free: Sequence[str]) -> Code:
    """Code that calls "it", of a function that closes over these variables: Python reads them wherever somebody looks
    at its frame."""
    names: dict[str, Any] = {}
    it = "_" * (1 + max(map(len, free), default=0))  # no variable is called that
    exec(
        f"def around({', '.join(free)}):\n"
        f"    def call(*{it}args, **{it}kwargs):\n"
        f"        {it} = 'it'\n"
        f"        if False: {'; '.join(free) or 'pass'}\n"
        f"        return {it}(*{it}args, **{it}kwargs)\n"
        "    return call\n",
        names,
    )
    code: Code = names["around"](*free).__code__
    return code


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    if value is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, value)
