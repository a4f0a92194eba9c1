"""Questions, and answers in code, need no JAX: a notebook that uses only them runs in a browser."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxviz import teach

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WITHOUT_JAX = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jax", "jaxlib", "numpy", "scipy", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_without_jax(code):
    return subprocess.run([sys.executable, "-c", WITHOUT_JAX + code], capture_output=True, text=True)


def test_a_question_and_an_answer_in_code_are_checked_without_jax():
    done = run_without_jax("""
from jaxviz import teach
size = teach.predict("How large?", truth=lambda: 2048, tolerance=0.1)
double = teach.rule("Double.", teach.Check("doubles", lambda f: "" if f(2) == 4 else f"It returns {f(2)}."))
print(size.answer("2 KiB").is_right, double.answer(lambda x: x * x).is_right, double.answer(lambda x: x).points[0].why)
print("application/vnd.jupyter.widget-view+json" in size._repr_mimebundle_(), "jvx" in teach.static_form(size))
try:
    teach.computes
except ModuleNotFoundError as error:
    print(error)
""")
    assert done.stdout.splitlines() == [
        "True True It returns 2.",
        "True True",
        "No module named 'jax'",
    ], done.stderr


def test_what_runs_jax_is_imported_on_first_use():
    assert {"computes", "saved", "autodiff", "puzzles", "rule"} <= set(dir(teach))
    assert all(getattr(teach, name) is not None for name in dir(teach))
    assert teach.saved.__module__ == "jaxviz.teach.saved_values"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = teach.nothing


@pytest.mark.slow
def test_the_notebook_on_a_tape_runs_without_jax():
    text = (NOTEBOOKS / "24_a_tape.py").read_text(encoding="utf-8")
    done = run_without_jax(f"exec(compile({text!r}, '24_a_tape.py', 'exec'))")
    assert done.returncode == 0, done.stderr
    assert "JAX is not installed here." in done.stdout
