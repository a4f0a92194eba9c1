"""Derives a function again as it would be with edited files, to measure what an edit does before its figures are shown.

The edit is in place only while the function is traced: the code of the user's functions is replaced for that time, and of what the module does
when it is imported only the statements that the edit changes are run again. JAX's caches keep such a trace apart (`compat.traced_apart`), and
calls of jaxviz in other threads wait (`jaxviz.ir.alone`). Other threads of the user's that call these functions in that moment run them with the
edit, which changes no value. A function that edited code makes and that something keeps gets the code as it was; what a call in that code makes
stays, such as a checkpoint. An edit that does not reach all that is run is not measured.
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
import linecache
import operator
import sys
import threading
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from jaxviz.derivation import Derivation
from jaxviz.features.remat.changes import (
    Code,
    Place,
    added,
    all_codes,
    changed,
    changed_functions,
    differs,
    left_out,
    matched,
    names_assigned,
    only_names,
    paired,
    place_of,
    place_of_code,
    without_decorators,
)
from jaxviz.features.remat.forms import Trade
from jaxviz.features.remat.libraries import class_of
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import (
    Function,
    closed_over,
    is_checkpoint,
    namespaces_of,
    outside_of_functions,
    without_checkpoint,
)
from jaxviz.ir import compat
from jaxviz.ir.alone import BusyError, alone
from jaxviz.ir.origin import file_label
from jaxviz.ir.syntax import Program

T = TypeVar("T")
Made = tuple[types.FunctionType, Callable[..., Any]]

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
    with _in_place(files, made) as instead, compat.traced_apart():
        plain = lambda f: getattr(f, "__wrapped__", None)
        derived = derivation.again(lambda f: instead.get(id(f), instead.get(id(plain(f)), f)))
        _ = derived.linearized  # by rules that may run the user's functions, too
    if _is_same(derivation.primal, derived.primal):
        raise UnmeasuredError("they have no effect on the functions in memory")
    return derived


@contextlib.contextmanager
def _in_place(files: Mapping[str, str], made: Sequence[Made]) -> Iterator[dict[int, Any]]:
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
            edits = [stack.enter_context(_Edit(file, text, instead)) for file, text in files.items()]
            for f, around in made:
                _call_instead(f, around(_copy(f, f.__code__, {})), stack)
        except (UnmeasuredError, SyntaxError):  # an edit that is no Python fails
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


class _Edit:
    """An edited file in place of the one that was imported, until it is left.

    Args:
      file: its name.
      text: its new text.
      instead: is given what stands for an object of the module, by the object's `id`.
    """

    def __init__(self, file: str, text: str, instead: dict[int, Any]):
        self.file, self.text = file, text
        self.instead = instead
        old_text = "".join(linecache.getlines(file))
        self.old, self.new = ast.parse(old_text), ast.parse(text)
        self.defined = {place_of(was): (was, now, around) for (was, _), (now, around) in matched(self.old, self.new)}
        """The definitions that are in both, with the functions around the new one, by the place of the old one's code."""
        self.functions = _functions_of(file)
        if not self.functions:
            raise UnmeasuredError(f"no function of {file_label(file)} was found")
        # A notebook compiles a cell with the future statements of the cells before it.
        self.flags = self.functions[0].__code__.co_flags & _FUTURE
        self.compiled: WeakValueDictionary[int, Code] = WeakValueDictionary()
        """All code that there is because of the edit, by its `id`."""
        self.codes = compile(self.old, file, "exec", self.flags, dont_inherit=True), self._compiled(self.new)
        n_at = Counter(map(place_of_code, all_codes(self.codes[0])))
        pairs = [(a, b) for a, b in paired(*self.codes) if n_at[place_of_code(a)] == 1]
        self.pairs = {place_of_code(a): b for a, b in pairs if differs(a, b)}
        """The edited code of the functions that the edit changes, by place."""
        self.own = {place_of_code(c): c for f in self.functions for c in all_codes(f.__code__)}
        self.before = {place_of_code(b): self.own.get(place_of_code(a), a) for a, b in pairs}
        """The code as it was, by the place of the edited code."""
        self.ran: set[Place] = set()
        """The edited functions that were called, or defined anew."""
        self.outdated: set[str] = set()
        """The names of wrappers that were called although the edit replaces them."""
        self.is_kept = False
        """Whether something keeps functions that the edit has added, and that need its names."""
        self.namespaces = list({id(f.__globals__): f.__globals__ for f in self.functions}.values())
        """The names of each module that the file was imported as."""
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
        statements = list(changed(self.old, without_decorators(self.old, self.text)))
        # Names come before the code that reads them, and go when nothing runs it any more.
        for names in self.namespaces:
            for statement in (s for s in statements if self._is_new(s, names)):
                self._run(statement, names)
        self._undo.callback(_wait_until_unused, self.compiled)
        self._undo.callback(self._restore_made)
        for names in self.namespaces:
            for statement in statements:
                if isinstance(statement, ast.ClassDef):
                    for method in statement.body:
                        self._replace_method(names.get(statement.name), method, names)
                elif not self._is_new(statement, names):
                    self._run(statement, names)
        places = [place_of_code(f.__code__) for f in self.functions]
        for f in self.functions:
            self._swap(f)
        for place in left_out(*self.codes, self.pairs.keys() & {*places}):
            raise UnmeasuredError(f"no function in memory is known to be {self._described(place)}")
        # A function around others makes them anew.
        missing = {place for place, (was, now, around) in self.defined.items() if any(added(was, now)) and not around}
        for f, place in zip(self.functions, places, strict=True):
            if place in self.defined and self._decorate(f, *self.defined[place]):
                missing.discard(place)
        if missing:
            raise UnmeasuredError(f"what the decorators of {self._described(missing.pop())} made was not found")

    def _compiled(self, tree: ast.AST, kind: str = "exec") -> Any:
        code = compile(tree, self.file, kind, self.flags, dont_inherit=True)  # type: ignore[call-overload]
        self._knows(code)
        return code

    def _knows(self, code: Code) -> None:
        self.compiled |= {id(c): c for c in all_codes(code)}

    def _described(self, place: Place) -> str:
        name = "the lambda" if place[0] == "<lambda>" else f"`{place[0]}`"
        return f"{name} on line {place[1]} of {file_label(self.file)}"

    def check_it_was_run(self) -> None:
        """Raises an error if the function was traced with a part of the edit."""
        for f, around in changed_functions(self.old, self.text):
            if self.ran.isdisjoint(map(place_of, (f, *around))):
                raise UnmeasuredError(f"{self._described(place_of(f))} is not called while the function is traced")
        if self.outdated:
            raise UnmeasuredError(f"something else holds `{self.outdated.pop()}` of {file_label(self.file)} as it was")

    # --- what edited code leaves --------------------------------------------------------------------------------------

    def _restore_made(self) -> None:
        """Gives functions that edited code has made the code as it was."""
        self.instead.clear()
        for f in self._made():
            before = self.before.get(place_of_code(f.__code__))
            if before is None or not set(before.co_freevars) <= set(f.__code__.co_freevars):
                continue
            if before.co_freevars == f.__code__.co_freevars:
                f.__code__ = before
            else:
                _call_instead(f, _copy(f, before, {}), contextlib.ExitStack())
            was, now, _ = self.defined.get(place_of_code(before), (None, None, ()))
            if was is not None and added(was, now)[1]:
                for wrapper in _wrappers_of(f):
                    _call_instead(wrapper, f, contextlib.ExitStack())
        if self._made():
            gc.collect()
            self.is_kept = bool(self._made())

    def _made(self) -> list[types.FunctionType]:
        made = [f for f in _functions() if id(f.__code__) in self.compiled]
        return [f for f in made if f.__globals__.get(f.__name__) is not f]

    def _set(self, names: dict[str, Any], name: str, value: Any) -> None:
        if value is not _MISSING:
            names[name] = value
        elif not self.is_kept:
            names.pop(name, None)

    # --- code -----------------------------------------------------------------------------------------------------

    def _swap(self, f: types.FunctionType) -> None:
        """Gives a function its edited code, if there is some."""
        place = place_of_code(f.__code__)
        if place in self.pairs:
            _, _, around = self.defined.get(place, (None, None, ()))
            made = _copy(f, self.pairs[place], self._imported(around))
            self._call(f, self._noted(made, place, self.ran))

    def _call(self, f: types.FunctionType, made: Any) -> None:
        """Makes a function call something else until the edit is left."""
        self._knows(_call_instead(f, made, self._undo))

    def _noted(self, f: types.FunctionType, what: T, where: set[T]) -> Callable[..., Any]:
        """A function that adds something to a set when this thread calls it."""
        me = threading.get_ident()

        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == me:
                where.add(what)
            return f(*args, **kwargs)

        return call

    def _outdates(self, before: Any, name: str) -> None:
        """Notes if a checkpoint of a function that the edit replaces is called all the same."""
        plain = getattr(inspect.unwrap(before), "__code__", None)
        if type(before) is types.FunctionType and plain is not before.__code__ and plain in self.own.values():
            self._call(before, self._noted(_copy(before, before.__code__, {}), name, self.outdated))

    def _imported(self, around: Iterable[Function]) -> dict[str, Any]:
        """The names that functions import."""
        names: dict[str, Any] = {}
        statements = [n for f in around for n in outside_of_functions(f) if isinstance(n, ast.Import | ast.ImportFrom)]
        exec(self._compiled(ast.Module([*statements], [])), names)
        return names

    def _decorate(self, f: types.FunctionType, was: Function, now: Function, around: Sequence[Function]) -> bool:
        """Gives a function its edited decorators, as far as they are not among the statements of the module; whether it has them."""
        above, within = added(was, now)
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
            self._call(f, made)
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
        attributes = [t for t in getattr(statement, "targets", ()) if isinstance(t, ast.Attribute)]
        owners = [_value(t.value, names) for t in attributes]
        # An attribute of another object may be a property, whose setter cannot be undone.
        if not only_names(statement) or not all(isinstance(o, type | types.ModuleType) for o in owners):
            raise UnmeasuredError(f"line {statement.lineno} of {file_label(self.file)} is only run when it is imported")
        for target, owner in zip(attributes, owners, strict=True):
            self._undo.callback(_set_attribute, owner, target.attr, vars(owner).get(target.attr, _MISSING))
        made = self._names_before(statement, names)
        exec(self._compiled(ast.Module([statement], [])), names, made)
        self._defines(statement)
        for name, value in made.items():
            before = names.get(name, _MISSING)
            holders = [names]
            if callable(before):  # other objects, such as None, are not the module's own
                self.instead |= {key: value for key, held in self.instead.items() if held is before}
                self.instead[id(before)] = value
                modules = [vars(m) for m in [*sys.modules.values()] if isinstance(m, types.ModuleType)]
                holders += [held for held in modules if held is not names and held.get(name, _MISSING) is before]
                self._outdates(before, name)
            for holder in holders:
                self._undo.callback(self._set, holder, name, before)
                holder[name] = value

    def _names_before(self, statement: ast.stmt, names: Mapping[str, Any]) -> dict[str, Any]:
        """What a name stood for before a statement such as `block = jax.checkpoint(block)`, which has been run."""
        value: Any = getattr(statement, "value", statement)
        name = getattr(without_checkpoint(value), "id", "") if is_checkpoint(value) else ""
        held = names.get(name) if name in names_assigned(statement) else None
        is_new = any(held is made for made in self.instead.values())
        return {name: getattr(held, "__wrapped__", held)} if held is not None and not is_new else {}

    def _defines(self, statement: ast.stmt) -> None:
        self.ran |= {place for place, (_, now, _) in self.defined.items() if now.lineno == statement.lineno}

    def _replace_method(self, owner: Any, method: ast.stmt, names: dict[str, Any]) -> None:
        """Replaces a method of a class by one with other decorators."""
        name = getattr(method, "name", "")
        before = vars(owner).get(name) if isinstance(owner, type) else None
        uses_class = any(isinstance(n, ast.Name) and n.id in ("super", "__class__") for n in ast.walk(method))
        if before is None or uses_class or not only_names(method):
            raise UnmeasuredError(
                f"line {method.lineno} of {file_label(self.file)} is only run when its class is defined"
            )
        # In a class of that name, as private names are spelled by it.
        within: ast.stmt = ast.ClassDef(owner.__name__, [], [], [method], [])
        made: dict[str, Any] = {}
        exec(self._compiled(ast.fix_missing_locations(ast.Module([within], []))), names, made)
        after = vars(made[owner.__name__])[name]
        self._defines(method)
        self._outdates(before, name)
        self._undo.callback(setattr, owner, name, before)
        setattr(owner, name, after)


def _functions_of(file: str) -> list[types.FunctionType]:
    """The functions of a file: those that the collector knows, and those of modules, which it does not know after `gc.freeze`."""
    named = [x for names in namespaces_of(file) for x in [*names.values()]]
    methods = [m for c in named if isinstance(c, type) for m in [*vars(c).values()]]
    found = [x for some in (_functions(), named, methods) for x in some if type(x) is types.FunctionType]
    return list({id(f): f for f in found if f.__code__.co_filename == file}.values())


def _functions() -> list[types.FunctionType]:
    """Those that the collector knows. All refer to the built-in names: a list of all objects would hold tuples that other threads are making, which
    then fails."""
    return [x for x in gc.get_referrers(vars(builtins)) if type(x) is types.FunctionType]


def _wrappers_of(f: types.FunctionType) -> list[types.FunctionType]:
    held = [d for d in gc.get_referrers(f) if type(d) is dict and d.get("__wrapped__") is f]
    return [x for x in gc.get_referrers(*held) if type(x) is types.FunctionType] if held else []


def _copy(f: types.FunctionType, code: Code, more: Mapping[str, Any]) -> types.FunctionType:
    """A function like another one, with some code that may use more variables than those that it closes over."""
    cells = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    missing = set(code.co_freevars) - set(cells)
    if not missing <= set(more):
        held = ", ".join(f"`{name}`" for name in sorted(missing - set(more)))
        raise UnmeasuredError(f"`{f.__name__}` in memory does not have {held} of the function around it")
    cells |= {name: types.CellType(more[name]) for name in missing}
    made = types.FunctionType(
        code, f.__globals__, f.__name__, f.__defaults__, tuple([cells[n] for n in code.co_freevars])
    )
    for name in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__", "__type_params__"):
        if hasattr(f, name):
            setattr(made, name, copy.copy(getattr(f, name)))
    vars(made).update(vars(f))
    return made


def _call_instead(f: types.FunctionType, made: Any, undo: contextlib.ExitStack) -> Code:
    """Makes a function call something else, wherever it is held, by the code that is returned: it stays the same object."""
    before = f.__code__
    call = _call(before.co_freevars)
    signature = inspect.signature(f)
    undo.callback(_set_attribute, f, "__signature__", vars(f).get("__signature__", _MISSING))
    f.__signature__ = signature  # type: ignore[attr-defined]
    undo.callback(setattr, f, "__code__", before)
    f.__code__ = call.replace(
        co_consts=tuple([made if c == "it" else c for c in call.co_consts]), co_filename=before.co_filename,
        co_name=before.co_name, co_qualname=before.co_qualname, co_firstlineno=before.co_firstlineno,
    )  # fmt: skip
    return f.__code__


def _call(free: Sequence[str]) -> Code:
    """Code that calls "it", of a function that closes over these variables: Python reads them wherever somebody looks at its frame."""
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
    found: Code = names["around"](*free).__code__
    return found


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name such as `models.Block` stands for, without running a property; None for any other expression."""
    first, *rest = ast.unparse(node).split(".")
    return functools.reduce(lambda owner, name: inspect.getattr_static(owner, name, None), rest, names.get(first))


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
