"""Transcripts at Python's prompt, in `tests/goldens/transcripts`: their lines are run again, and have to show what the
file says.

With `JAXVIZ_GOLDENS=write` in the environment the files are written again, with what is shown now; `git diff` is what
has changed.
"""

import contextlib
import difflib
import io
import os
import re
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parent / "goldens" / "transcripts"
VERSION = ".".join(jax.__version__.split(".")[:2])
PACKAGES = f"{Path(jax.__file__).parents[1]}{os.sep}"
BASE, OTHERS = "0.10", ("0.11", "0.12")
"""The versions of JAX whose transcripts are compared. Where one of the others shows something else, it has a file of
its own, such as
`name.jax-0.12.txt`, which 0.11 shows too unless it also has one. With any other version, a transcript only has to end
in the same errors."""


def of(*rooms):
    """A parameter `transcript`: the files of some folders."""
    paths = [p for room in rooms for p in sorted((FOLDER / room).glob("*.txt")) if ".jax-" not in p.name]
    assert {p.parent.name for p in paths} == set(rooms)
    return pytest.mark.parametrize("transcript", paths, ids=[f"{p.parent.name}-{p.stem}" for p in paths])


def at_the_prompt(code, names):
    exec(compile(code, names["__file__"], "single"), names)


def replay(transcript, folder, run=at_the_prompt):
    """Runs a transcript again and compares it.

    Args:
      transcript: the path of a text in which `>>> ` and `... ` begin lines of code, and all others are what they show.
      folder: an empty folder, for the file that the code seems to come from.
      run: what a line, with those that go on with it, is given to; and the names.
    """
    base = transcript.read_text(encoding="utf-8")
    path = folder / "program.py"
    code = (line[4:] or "\n" for line in base.splitlines(keepends=True) if line.startswith((">>> ", "...")))
    path.write_text("".join(code), encoding="utf-8")
    module = sys.modules["transcript"] = types.ModuleType("transcript")
    module.__file__, shown, place = str(path), [], 0
    try:
        for block in re.findall(r"^>>> .*\n(?:\.\.\.(?: .*)?\n)*", base, re.MULTILINE):
            code = "".join(line[4:] or "\n" for line in block.splitlines(keepends=True))
            output = output_of(run, "\n" * place + code, vars(module))
            shown += [block, output.replace(f"{folder}{os.sep}", "").replace(PACKAGES, "")]
            place += block.count("\n")
    finally:
        del sys.modules["transcript"]
    compare("".join(shown), transcript, base)


def compare(shown, transcript, base):
    own, *newer = (transcript.with_suffix(f".jax-{v}.txt") for v in (VERSION, *(v for v in OTHERS if v > VERSION)))
    newer = newer if VERSION in OTHERS else []
    otherwise = next((path.read_text(encoding="utf-8") for path in newer if path.exists()), base)
    if os.environ.get("JAXVIZ_GOLDENS") == "write":
        if VERSION not in (BASE, *OTHERS):
            pytest.skip("this version of JAX has no transcripts")
        if VERSION == BASE:
            transcript.write_text(shown, encoding="utf-8")
        elif shown != otherwise:
            own.write_text(shown, encoding="utf-8")
        else:
            own.unlink(missing_ok=True)
    elif VERSION in (BASE, *OTHERS):
        expected = own.read_text(encoding="utf-8") if own.exists() else otherwise
        if shown != expected:
            lines = difflib.unified_diff(expected.splitlines(), shown.splitlines(), str(transcript), "now", lineterm="")
            pytest.fail("\n".join(lines), pytrace=False)
    else:
        assert errors_in(shown) == errors_in(base)


def output_of(run, code, names):
    """What some code prints, and the error that it ends with."""
    if code.strip().startswith("#"):
        return ""
    # Fewer digits than those in which machines differ.
    with contextlib.redirect_stdout(io.StringIO()) as out, np.printoptions(precision=4):
        try:
            run(code, names)
        except Exception as error:
            notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("---")]  # JAX's own
            print(f"{type(error).__name__}: {error}", *notes, sep="\n")
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def errors_in(text):
    return re.findall(r"^\w+Error(?=: )", text, re.MULTILINE)
