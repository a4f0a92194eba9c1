"""What the checkers share: loading a solver's program, and measuring it with JAX alone.

Nothing here imports jaxviz, since the checkers are to judge with and without it.
"""

import ast
import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

Array = Any
TASKS = Path(__file__).parent


@dataclass(frozen=True)
class Edit:
    """A text of a file that is replaced; with no text to replace, the file is written.

    Args:
      file: the name of the file in the solver's folder.
      old: what stands there exactly once, or nothing.
      new: what takes its place.
    """

    file: str
    old: str
    new: str

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if not self.old:
            path.write_text(self.new, encoding="utf-8")
            return
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Attempt:
    """What somebody may hand in.

    Args:
      why: why it is right, or what it gets wrong.
      edits: of the files as handed out.
    """

    why: str
    edits: tuple[Edit, ...]

    def apply(self, folder: Path) -> None:
        for edit in self.edits:
            edit.apply(folder)


class WrongError(Exception):
    """What is wrong, where nothing else can be checked after it."""


# --- the solver's program ---------------------------------------------------------------------------------------------


def load(folder: Path, task: str, **public: str) -> list[ModuleType]:
    """The modules of the solver's folder, whose public functions have to have the parameters that were handed out.

    Args:
      folder: of the solver.
      task: the name of the task.
      public: the functions of each module, such as `model="loss init"`.
    """
    sys.path.insert(0, str(folder.resolve()))
    modules = []
    for name, functions in public.items():
        module = importlib.import_module(name)
        if Path(module.__file__ or "").resolve() != (folder / f"{name}.py").resolve():
            raise WrongError(f"{name}.py is not in the folder")
        expected = _parameters(TASKS / task / f"{name}.py")
        for function in functions.split():
            f = getattr(module, function, None)
            if not callable(f):
                raise WrongError(f"{name}.py has no function `{function}` any more")
            if list(inspect.signature(f).parameters) != expected[function]:
                raise WrongError(f"`{function}` takes other arguments than ({', '.join(expected[function])})")
        modules.append(module)
    return modules


def _parameters(file: Path) -> dict[str, list[str]]:
    """The names of the parameters of each function of a file."""
    functions = [f for f in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(f, ast.FunctionDef)]
    return {f.name: [a.arg for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs)] for f in functions}


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(folder: Path) -> str:
    """What the solver wrote."""
    path = folder / "answer.txt"
    if not path.exists() or not path.read_text(encoding="utf-8").strip():
        raise WrongError("there is no answer.txt")
    return path.read_text(encoding="utf-8").strip()


def line_of(task: str, file: str, text: str) -> int:
    """The only line of a task's program with this text."""
    lines = (TASKS / task / file).read_text(encoding="utf-8").splitlines()
    (line,) = [number for number, line in enumerate(lines, 1) if text in line]
    return line


def names_line(text: str, task: str, file: str, at: str) -> list[str]:
    """What is wrong with an answer that has to name one line, as in `model.py:12` or `line 12 of model.py`."""
    places = {(m[0], int(m[1])) for m in re.findall(r"(\w+\.py)\b\W*(?:line\W*)?(\d+)", text, re.IGNORECASE)}
    places |= {(m[1], int(m[0])) for m in re.findall(r"line\W*(\d+)\W+(?:of|in)\W+(\w+\.py)\b", text, re.IGNORECASE)}
    if len(places) != 1:
        return [f"answer.txt has to name one line, such as {file}:1, and names {len(places)}"]
    ((name, line),) = places
    return [] if (name, line) == (file, line_of(task, file, at)) else [f"it is not {name}:{line}"]


# --- numbers ----------------------------------------------------------------------------------------------------------


def differs(what: str, actual: Any, expected: Any, rtol: float = 1e-3, atol: float = 1e-5) -> list[str]:
    """What differs by more than a part of the largest number of each array."""
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        return [f"{what}: another structure than expected"]
    wrong = []
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        name = f"{what}{jax.tree_util.keystr(path)}"
        if x.shape != y.shape:
            wrong.append(f"{name}: its shape is {x.shape}, not {y.shape}")
        elif not np.isfinite(x).all():
            wrong.append(f"{name}: not finite")
        elif np.max(np.abs(x - y), initial=0) > rtol * np.max(np.abs(y), initial=0) + atol:
            wrong.append(f"{name}: differs from what is expected by up to {np.max(np.abs(x - y)):.2g}")
    return wrong


# --- programs ---------------------------------------------------------------------------------------------------------


def temporaries(f: Callable[..., Any], *args: Any) -> int:
    """The bytes that XLA allocates besides arguments and results."""
    return int(jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes)


def above(what: str, actual: float, bound: float) -> list[str]:
    return [f"{what}: {actual:,}, and at most {bound:,} are asked for"] if actual > bound else []


def saved_bytes(f: Callable[..., Any], *args: Any) -> int:
    """The bytes that JAX's gradient saves, without the arguments themselves."""
    own = {(x.shape, x.dtype) for x in jax.tree.leaves(args)}
    saved = jax.eval_shape(lambda *args: jax.tree.leaves(jax.vjp(f, *args)[1]), *args)
    return sum(x.size * x.dtype.itemsize for x in saved if (x.shape, x.dtype) not in own)


def equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Each equation of a program and of those within it, and how often it runs."""
    for e in jaxpr.eqns:
        yield e, times
        n = times * (e.params["length"] if e.primitive.name == "scan" else 1)
        for program in jax.tree.leaves(list(e.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(program, "jaxpr", program)
            if hasattr(inner, "eqns"):
                yield from equations(inner, n)


def runs(name: str, f: Callable[..., Any], *args: Any) -> int:
    """How often the operations of this name run in a function, as JAX traces it."""
    return sum(n for e, n in equations(jax.make_jaxpr(f)(*args).jaxpr) if e.primitive.name == name)


def collectives(text: str) -> Counter[str]:
    """How many of each kind a compiled program has."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return Counter(re.findall(rf" ({kinds})(?:-start)?\(", text))


@contextmanager
def compilations() -> Iterator[Counter[str]]:
    """Counts, within the block, how often each function is lowered for XLA, whether or not a cache has it compiled."""
    counts: Counter[str] = Counter()

    def count(event: str, duration: float, **about: Any) -> None:
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            counts[str(about.get("fun_name", "?"))] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
