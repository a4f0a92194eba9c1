"""Real programs of other libraries, each with every tool, in separate processes: `make test-libraries`.

Not collected with the other tests, since the libraries have their own environment. To run one program, or one tool:

    .venv-libraries/bin/python -m pytest tests/libraries/corpus.py -k "mctx and find_nan"
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from registry import load
from tools import tools_for

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "artifacts" / "libraries"
PROGRAMS = load()
MINUTES = 60
"""The time limit of a program in minutes, with other load on the machine; each tool also has a limit of CPU time."""


@cache
def results(name):
    """The results of the tools for a program, by tool, and the other output of its process."""
    # Nothing comes from the compilation cache, neither from other tests nor from JAX's own gradient before: a user
    # would wait as long.
    given = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE"))}
    environment = {**given, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / f"{name}.jsonl"
    with kept.open("w") as out:
        try:
            said = subprocess.run(
                [sys.executable, HERE / "tools.py", name], stdout=out, stderr=subprocess.PIPE, text=True,
                env=environment, timeout=60 * MINUTES, check=False,
            ).stderr  # fmt: skip
        except subprocess.TimeoutExpired:  # what was done until then counts
            said = f"not done after {MINUTES} minutes"
    lines = [line for line in kept.read_text().splitlines() if line.startswith('{"tool"')]
    kept.write_text("".join(f"{line}\n" for line in lines))
    return {row["tool"]: row for row in map(json.loads, lines)}, said


def case(program, tool):
    reason = program.expected_failures.get(tool)
    marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
    return pytest.param(program.name, tool, marks=marks, id=f"{program.name}-{tool}")


@pytest.mark.parametrize(("name", "tool"), [case(p, tool) for p in PROGRAMS.values() for tool in tools_for(p)])
def test(name, tool):
    by_tool, stderr = results(name)
    if tool not in by_tool:
        pytest.fail(f"its process ended before:\n{stderr[-4000:]}", pytrace=False)
    if "error" in by_tool[tool]:
        pytest.fail(by_tool[tool]["traceback"], pytrace=False)


def test_size_of_the_corpus():
    assert len(PROGRAMS) >= 25
    assert len({p.library for p in PROGRAMS.values()}) >= 20
