"""Tasks as they are prepared, solved and checked."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

TASKS = Path(__file__).parent
ROOT = TASKS.parents[1]
NOT_HANDED_OUT = ("check.py", "__pycache__")
SKILL = ROOT / "jaxviz" / "skills" / "jaxviz" / "SKILL.md"
"""What `jaxviz skill` prints."""
LIMIT = 180.0
"""Seconds that a checker may take."""
WITH_SKILL = """
jaxviz, a tool that answers questions about JAX programs, is installed: `SKILL.md` says how to use it.
"""


def names() -> list[str]:
    """The tasks, by kind."""
    return sorted((file.parent.name for file in TASKS.glob("*/check.py")), key=lambda name: (checker(name).KIND, name))


def checker(name: str) -> ModuleType:
    """What judges a task: `KIND`, `check`, and the attempts `SOLUTION` and `WRONG`."""
    return importlib.import_module(f"benchmarks.tasks.{name}.check")


def prepare(name: str, folder: Path, *, with_skill: bool = False) -> None:
    """Copies the question and the program into a folder."""
    shutil.copytree(TASKS / name, folder, ignore=shutil.ignore_patterns(*NOT_HANDED_OUT), dirs_exist_ok=True)
    if with_skill:
        shutil.copy(SKILL, folder)
        with (folder / "question.md").open("a", encoding="utf-8") as file:
            file.write(WITH_SKILL)


def check(name: str, folder: Path, limit: float = LIMIT) -> list[str]:
    """What is wrong with what is in a folder; nothing if the task is solved.

    The solver's code runs in a process of its own, with eight CPU devices and a limit of time.
    """
    with tempfile.TemporaryDirectory() as scratch:
        verdict = Path(scratch) / "verdict.json"
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
        env = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "benchmarks.tasks.judge", name, str(folder.resolve()), str(verdict)]
        code, output = _run(command, ROOT, env, limit)
        if verdict.exists():
            wrong: list[str] = json.loads(verdict.read_text(encoding="utf-8"))
            return wrong
    if code is None:
        return [f"it takes more than {limit:.0f} s"]
    last = output.strip().splitlines()[-1:]
    return [": ".join([f"it ends the process with status {code}", *last])]


def _run(
    command: list[str] | str, folder: Path, env: dict[str, str], limit: float, stdin: str = ""
) -> tuple[int | None, str]:
    """The status, or `None` where the time was up, and the output of a command; what it started ends with it."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, shell=isinstance(command, str), cwd=folder, env=env, text=True, errors="replace",
        stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    return process.returncode, output


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Args:
      name: of the task.
      wrong: what is wrong; nothing where it is solved.
      seconds: that the solver took.
      tokens: that it used, where it says so in `usage.json`.
    """

    name: str
    wrong: list[str]
    seconds: float
    tokens: int | None


def solve(name: str, solver: str, *, with_skill: bool = False, limit: float = 1_800.0) -> Outcome:
    """Gives a task in a new folder to a shell command, and checks what it leaves there.

    The command finds the path of the question in `$QUESTION`, its text on stdin, and the name of the task in `$TASK`.
    """
    with tempfile.TemporaryDirectory(prefix="task-") as scratch:
        folder = Path(scratch)
        prepare(name, folder, with_skill=with_skill)
        question = folder / "question.md"
        env = os.environ | {"QUESTION": str(question), "TASK": name}
        start = time.monotonic()
        code, _ = _run(solver, folder, env, limit, question.read_text(encoding="utf-8"))
        seconds = time.monotonic() - start
        wrong = check(name, folder)
        if wrong and code is None:
            wrong = [f"stopped after {limit:.0f} s", *wrong]
        elif wrong and code:
            wrong = [f"the solver ended with status {code}", *wrong]
        return Outcome(name, wrong, seconds, _tokens(folder))


def _tokens(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / "usage.json").read_text(encoding="utf-8"))["tokens"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def summary(outcomes: Iterable[Outcome]) -> str:
    """How many are solved, in what time, with how many tokens."""
    outcomes = list(outcomes)
    tokens = [o.tokens for o in outcomes if o.tokens is not None]
    text = f"solved {sum(not o.wrong for o in outcomes)} of {len(outcomes)}"
    text += f", in {sum(o.seconds for o in outcomes):,.0f} s"
    return text + (f", with {sum(tokens):,} tokens" if tokens else "")
