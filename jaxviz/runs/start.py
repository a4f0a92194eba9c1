"""Starts to watch: a folder for this process, and the watch as soon as JAX is imported."""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

OUT, BUDGET = "jaxviz-run", 30.0


def run_script(words: Sequence[str], out: str, budget: float, is_module: bool, source: bool = False) -> None:
    """Runs a script or module as Python would, watched.

    Its output, results and exit status are its own. JAX is not imported before it does so itself.

    Args:
      words: its name, and its arguments.
      out: the folder of the run.
      budget: the seconds that the analysis may take.
      is_module: whether it is named as a module, as after `python -m`.
      source: whether the page has lines of the user's files.
    """
    module = types.ModuleType("__main__")
    try:
        if is_module:
            spec = _spec_of(words[0])
            path, code = spec.origin or "", spec.loader.get_code(spec.name)  # type: ignore[union-attr]
            module.__spec__, module.__package__ = spec, spec.parent
        else:
            path = os.path.abspath(words[0])
            code = compile(_content(path), path, "exec", dont_inherit=True)
            sys.path[0] = str(Path(path).resolve().parent)
        when_jax_is_imported(words[0] if is_module else Path(path).name, out, budget, source)
        module.__file__ = path
        module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        sys.argv = [path if is_module else words[0], *words[1:]]
        sys.modules["__main__"] = module
        exec(code, vars(module))
    except (Exception, KeyboardInterrupt):
        _show_from(vars(module))
        raise


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        print(f"jaxviz run: can't open {path}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from None


def _show_from(namespace: dict[str, Any]) -> None:
    """Lets Python show an uncaught error as if the script had been started by it: without the frames outside of it."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> None:
        for each in chain(raised):
            each.__traceback__ = _from(namespace, each.__traceback__) or each.__traceback__
        if (trace := _from(namespace, trace)) is None:
            raised.__traceback__ = None  # it is no Python, so that no line of it has run
        shown(kind, raised, trace)

    sys.excepthook = hook


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that are shown with it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _from(namespace: dict[str, Any], trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the first frame of a module on; None if it has none."""
    inner = trace
    while inner is not None and inner.tb_frame.f_globals is not namespace:
        inner = inner.tb_next
    return inner


def _spec_of(name: str) -> importlib.machinery.ModuleSpec:
    sys.path[0] = os.getcwd()
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.loader is None:
        raise SystemExit(f"jaxviz run: no module named {name}")
    return spec


def when_jax_is_imported(script: str, out: str, budget: float, source: bool = False) -> None:
    """Starts the watch of this process after the import of JAX, or now if that is over.

    An error does not end the program: it is said on standard error.
    """

    def start() -> None:
        try:
            from jaxviz.runs.watch import RunWatch

            watch = RunWatch(folder_of_process(Path(out)), script, budget, source)
            watch.start()
            atexit.register(_finish, watch)
        except Exception as error:
            _complain(error)

    if "jax" in sys.modules:
        start()
    else:
        sys.meta_path.insert(0, _AfterJax(start))


class _AfterJax(importlib.abc.MetaPathFinder):
    """Calls a function when `jax` has been imported."""

    def __init__(self, then: Callable[[], None]):
        self.then = then

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                load(module)
                self.then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _finish(watch: Any) -> None:
    try:
        page = watch.finish(getattr(sys, "last_exc", getattr(sys, "last_value", None)))
        if page is not None:
            print(f"jaxviz: wrote {os.path.relpath(page)}", file=sys.stderr)
    except Exception as error:
        _complain(error)


def _complain(error: Exception) -> None:
    last = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"jaxviz: the run is not recorded: {type(error).__name__}: {error} ({last.filename}:{last.lineno})",
        file=sys.stderr,
    )


def folder_of_process(out: Path) -> Path:
    """A new folder for this process in that of the run, which is emptied if another run is over."""
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if not any(_is_alive(inside) for inside in out.iterdir()):
        for inside in out.iterdir():
            if (inside / "process.json").is_file():
                shutil.rmtree(inside, ignore_errors=True)
    number = 0
    while True:
        folder = out / str(number)
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _is_alive(folder: Path) -> bool:
    """Whether the process of a folder runs, or is about to write its first file."""
    try:
        process = json.loads((folder / "process.json").read_text())["process"]
    except FileNotFoundError:
        return folder.is_dir() and time.time() - folder.stat().st_mtime < 10
    except (OSError, ValueError, KeyError):
        return False
    if process["seconds"] is not None:
        return False
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True
