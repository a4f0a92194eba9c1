"""`engine`: the small engine with the learner's functions, and the file that stores them."""

from __future__ import annotations

import builtins
import contextlib
import functools
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxviz.teach import answers
from jaxviz.teach.autodiff.places import at_definition, replayed
from jaxviz.teach.exercise import Verdict, raised
from jaxviz.teach.source import defines, names_missing, run_alone, source_of

_SOURCES = [Path(__file__).with_name(name) for name in ("small_engine.py", "small_engine_bodies.py")]
_HEAD = "# Your answers, which the notebooks on building your own autodiff continue with. You may edit them.\n"

ANSWERS = "answers/my_autodiff.py"

SLOTS = (
    "bind", "evaluate", "partial", "jvp", "split", "transposed", "transpose", "batched", "vmap_program",
    "cond_batched", "scan_jvp", "body_transpose", "scan_transpose", "checkpoint_jvp",
)  # fmt: skip
"""The functions that the learner writes, in the order of the notebooks."""


class Engine(types.ModuleType):
    """The engine's functions: each is either the learner's or the notebooks' own.

    Args:
      path: the file that stores the learner's functions.
    """

    def __init__(self, path: str | Path = ANSWERS):
        super().__init__("my")
        self.__file__ = str(_SOURCES[0])
        self.path = Path(path)
        self._own: dict[str, str] = {}  # the source of each of the learner's functions, '' if unknown
        for file in _SOURCES:
            exec(compile(file.read_text(encoding="utf-8"), str(file), "exec", dont_inherit=True), self.__dict__)
        self.__dict__.update(my=self, np=np)
        self._solutions = {name: getattr(self, name) for name in SLOTS}
        self._notes = self._load()

    def _load(self) -> list[str]:
        notes = []
        for name, source in answers.read(self.path).items():
            # It may be older than `batch`, which also knows the rules of operations that are added later.
            source = re.sub(r"\bmy\.batched\b", "my.batch", source)
            try:
                self._run(name, source)
            except Exception as error:
                notes.append(
                    f"Your {name} in {self.path} raises {type(error).__name__}, so the notebook's own is used."
                )
        return notes

    def _run(self, name: str, source: str) -> None:
        # In a module of its own, since its other functions may have the names of functions of the engine.
        setattr(self, name, run_alone(source, f"<your {name}>", self.__dict__)[name])
        self._own[name] = source

    def _fails_later(self, name: str, source: str, check: Callable[[Engine, Any], Verdict]) -> str:
        """What is wrong with an answer in the next notebook, which has only its source; '' if nothing is."""
        later = Engine(self.path)
        try:
            later._run(name, source)
        except Exception as error:
            return raised(error)
        verdict = check(later, getattr(later, name))
        return "" if verdict else next((f"{p.what}: {p.why}" for p in verdict.points if p.why), verdict.headline)

    def install(self, name: str, function: Any, check: Callable[[Engine, Any], Verdict]) -> str:
        """Replaces the engine's function with a correct answer, and stores it if its source alone is correct too, in a
        new engine; returns a note on that.

        Args:
          name: of the engine's function.
          function: the answer.
          check: the verdict on an answer, in an engine.
        """
        written, source = getattr(function, "__name__", ""), source_of(function)
        source = source if defines(source, written) else ""
        source += f"\n\n{name} = {written}\n" if source and written != name else ""
        setattr(self, name, function)
        missing = sorted(names_missing(source, annotated=False) - set(self.__dict__) - set(dir(builtins)))
        fails = self._fails_later(name, source, check) if source and not missing else ""
        self._own[name] = "" if missing or fails else source
        sources = {n: s for n, s in self._own.items() if s}
        if sources:
            answers.write(self.path, _HEAD, sources)
        if missing:
            return (
                f"It reads {', '.join(missing)} from another cell, so only this notebook can use it: put that into "
                "the same cell."
            )
        if fails:
            return (
                f"Only this notebook can use it: of its cell alone, the check says {fails.rstrip('.')}. Put everything "
                "that it needs into the same cell."
            )
        unknown = "" if source else " But only in this notebook, since its source was not found."
        return f"From here on, `my.{name}` is yours.{unknown}"

    def original(self, name: str) -> Any:
        """The notebooks' own function, even if the learner's is in use."""
        return self._solutions[name]

    def as_jax(self, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The function as one of JAX's, whose derivative is this engine's: `jax.grad` of it runs the forward and the
        backward program that the engine records. So reports and the explorer show these, with the lines of the rules.

        >>> jaxviz.explore(my.as_jax(loss), params)

        Args:
          f: a function of one argument, which may be nested, to a number.
        """

        @functools.wraps(f)
        def traced(x: Any) -> Any:
            leaves, tree = jax.tree.flatten(x)
            program = self.trace(lambda *xs: f(tree.unflatten(xs)), *leaves)
            forward, linear, moving = self.linearize_program(program)
            n = len(linear.inputs) - len(leaves)

            def backward(*args: Any) -> Any:
                inputs = [*args[:n], *(None for _ in leaves)]
                return self.instantiate_zeros(self.transpose(linear, inputs, args[n:])[n:], leaves)

            like = [*linear.inputs[:n], *(program.outputs[i] for i in moving)]
            backward_program = self.trace(backward, *like)

            def of_leaves(*xs: Any) -> Any:
                return replayed(self, program, xs)[0]

            of_leaves.__name__ = getattr(f, "__name__", "f")
            call = jax.custom_vjp(of_leaves)

            def call_fwd(*xs: Any) -> Any:
                results = replayed(self, forward, xs)
                return results[n], results[:n]

            def call_bwd(residuals: Any, ct: Any) -> Any:
                return tuple(replayed(self, backward_program, [*residuals, *(ct for _ in moving)]))

            call.defvjp(call_fwd, call_bwd)
            return at_definition(f, lambda: call(*leaves))

        return traced

    @contextlib.contextmanager
    def trying(self, name: str, function: Any) -> Iterator[None]:
        """Temporarily uses an answer that may be wrong."""
        before = getattr(self, name)
        setattr(self, name, function)
        try:
            yield
        finally:
            setattr(self, name, before)

    def __repr__(self) -> str:
        own = [name for name in SLOTS if name in self._own]
        others = [name for name in SLOTS if name not in self._own]
        said = [f"yours: {', '.join(own) or 'none yet'}", f"the notebooks' own: {', '.join(others) or 'none'}"]
        return "\n".join([*said, *self._notes])


def engine(path: str | Path = ANSWERS) -> Engine:
    """The small engine. Correct answers of the learner, from this notebook or an earlier one, replace the notebooks'
    own functions.

    >>> my = teach.autodiff.engine()
    >>> my.grad(lambda x: my.sin(x) * x)(2.0)

    Args:
      path: the file that stores correct answers.
    """
    return Engine(path)
