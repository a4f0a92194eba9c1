"""The exercises on building your own autodiff: for each function of the engine, what it should do, and wrong answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from jaxviz.teach.autodiff import backward_exercises, body_exercises, forward_exercises
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise, Verdict


@dataclass(eq=False)
class EngineExercise(Exercise):
    """An exercise whose correct answer becomes part of the engine."""

    install: Callable[[Any], str] = field(default=lambda _: "")

    def answer(self, given: Any = ...) -> Verdict:
        verdict = super().answer(given)
        return replace(verdict, note=self.install(given)) if verdict else verdict


def exercise(my: Engine, name: str) -> Exercise:
    """An exercise on one of the engine's functions.

    >>> moving = teach.autodiff.exercise(my, "jvp")

    Args:
      my: the engine.
      name: one of EXERCISES.
    """
    made = EXERCISES[name](my)
    return EngineExercise(
        made.question,
        made.check,
        made.truth,
        made.form,
        made.hints,
        made.wrong,
        install=lambda given: my.install(name, given),
    )


EXERCISES: dict[str, Callable[[Engine], Exercise]] = {
    "bind": forward_exercises.of_bind,
    "evaluate": forward_exercises.of_evaluate,
    "partial": forward_exercises.of_partial,
    "jvp": forward_exercises.of_jvp,
    "split": backward_exercises.of_split,
    "transposed": backward_exercises.of_transposed,
    "transpose": backward_exercises.of_transpose,
    "batched": body_exercises.of_batched,
    "vmap_program": body_exercises.of_vmap_program,
    "scan_jvp": body_exercises.of_scan_jvp,
    "checkpoint_jvp": body_exercises.of_checkpoint_jvp,
}
"""The constructor of each exercise, by the name of its function."""
