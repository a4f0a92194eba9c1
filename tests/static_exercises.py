"""Exercises as on a page without a kernel, with answers and Python's response to each: `tests/fixtures/exercises.json`.

Run as a script, this writes the file, which the tests of both languages read.
"""

import json
from pathlib import Path

import jax.numpy as jnp

from jaxviz import teach
from jaxviz.teach.exercise import said
from jaxviz.teach.sessions import ValueNumber

FIXTURE = Path(__file__).parent / "fixtures" / "exercises.json"


def product(x):
    return jnp.sin(x) * jnp.exp(x)


CHOICES = ["its operand", "its result", "both"]
HINTS = ("What is the slope of `exp`?", lambda: "It is computed already.")

EXERCISES = {
    "choice": teach.predict(
        "What does `exp` keep?", CHOICES, truth=lambda: "its result", hints=HINTS,
        because={"its operand": "It would be computed again.", "its result": "The slope <is> the result.", "both": ""},
    ),
    "choice with one reason": teach.predict("Which?", [1, 2], truth=lambda: 2, because="It is."),
    "size": teach.predict("How many?", truth=lambda: 12288, tolerance=0.1, because="Three arrays.", hints=HINTS),
    "negative": teach.predict("Which exponent?", truth=lambda: -2.5),
    "word": teach.predict("Which operation?", truth=lambda: "Scan", because="It loops.", hints=HINTS),
    "marks": teach.saved(product, 2.0),
    "code": teach.rule("Write `tanh`.", teach.computes(jnp.tanh, (0.5,)), hints=HINTS, example="lambda x: jnp.tanh(x)"),
    "lines of code": teach.rule("Write `sin`.", teach.computes(jnp.sin, (0.5,)), hints=HINTS,
                                example="def sin(x):\n    return jnp.sin(x)"),
}  # fmt: skip

ANSWERS = {
    "choice": [0, 1, 2],
    "choice with one reason": [0, 1],
    "size": ["12,288", "12 KiB", "12 kib", "12000", "1e4", "9000", "1 MiB", "5000", "-3", "0", "many", "12 x", ".5"],
    "negative": ["-2.5", "- 2.5", "2.5", "-3", "0"],
    "word": ["scan", " SCAN ", "while"],
    "marks": [[], [0], [0, 1], [1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3], [5]],
    "code": [],
    "lines of code": [],
}
"""As given by the form: the index of a choice, the text of a line, the indices of ticked boxes."""


def given(name, answer):
    """An answer in Python's form."""
    if isinstance(answer, list):
        return [ValueNumber(i) for i in answer]
    return EXERCISES[name].form.groups[0][1][answer][0] if isinstance(answer, int) else answer


def fixture():
    return {
        name: {
            "html": teach.static_form(exercise),
            "answers": [[a, said(exercise.answer(given(name, a)))] for a in ANSWERS[name]],
        }
        for name, exercise in EXERCISES.items()
    }


if __name__ == "__main__":
    FIXTURE.write_text(json.dumps(fixture(), indent=1) + "\n", encoding="utf-8")
