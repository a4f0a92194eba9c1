"""Every notebook runs from top to bottom, and its outputs say what its text says."""

from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

EXPECTED = {
    "00_first_look": [
        "residuals of loss",
        "is saved because tanh's derivative multiplies the tangent by it",
        "residuals as in JAX",
        "lambda",
        "forward:",
        "linear:",
        "backward:",
        "one path, recorded on concrete values",
        "bool was True",
    ],
}


def text_of(cell):
    parts = []
    for output in cell.get("outputs", ()):
        assert output["output_type"] != "error", output
        parts.append(output.get("text", ""))
        parts.append(str(output.get("data", {}).get("text/plain", "")))
    return "".join(parts)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.py")), ids=lambda p: p.stem)
def test_a_notebook_runs_and_shows_what_it_says(path, tmp_path):
    notebook = jupytext.read(path)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "\n".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
    shown = " ".join(shown.split())  # a sentence in a table runs over several lines
    for text in EXPECTED[path.stem]:
        assert text in shown
    assert "residuals differ" not in shown


def test_the_first_notebook_is_a_script_too(tmp_path):
    """`make demo` runs it so: the magics are comments then, and the explorer is written to a file."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "00_first_look.py")], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "residuals of loss" in done.stdout
    page = (tmp_path / "first_look.html").read_text()
    assert "jaxviz" in page
