"""The exercises on building your own autodiff: for each function of the engine, what it should do, and wrong
answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jaxviz.teach.autodiff import backward_exercises, body_exercises, forward_exercises, vmap_exercises
from jaxviz.teach.autodiff.workbook import Engine
from jaxviz.teach.exercise import Exercise


def exercise(my: Engine, name: str) -> Exercise:
    """An exercise on one of the engine's functions, which a right answer replaces.

    >>> moving = teach.autodiff.exercise(my, "jvp")

    Args:
      my: the engine.
      name: one of EXERCISES.
    """
    check = lambda engine, answer: EXERCISES[name](engine).check(answer)
    made = replace(EXERCISES[name](my), store=partial(my.install, name, check=check))
    made.names = {**vars(my), **made.names}  # an answer may be one of the engine's own functions
    return made


EXERCISES: dict[str, Callable[[Engine], Exercise]] = {
    "bind": forward_exercises.of_bind,
    "evaluate": forward_exercises.of_evaluate,
    "partial": forward_exercises.of_partial,
    "jvp": forward_exercises.of_jvp,
    "split": backward_exercises.of_split,
    "transposed": backward_exercises.of_transposed,
    "transpose": backward_exercises.of_transpose,
    "batched": vmap_exercises.of_batched,
    "vmap_program": vmap_exercises.of_vmap_program,
    "cond_batched": vmap_exercises.of_cond_batched,
    "scan_jvp": body_exercises.of_scan_jvp,
    "body_transpose": body_exercises.of_body_transpose,
    "scan_transpose": body_exercises.of_scan_transpose,
    "checkpoint_jvp": body_exercises.of_checkpoint_jvp,
}
"""The constructor of each exercise, by the name of its function."""
