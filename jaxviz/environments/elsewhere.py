"""Runs another Python to gather facts there: an environment is an interpreter, or a folder that has one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxviz.environments.facts import Environment, Facts

FACTS = "facts.json"
"""The file of a folder to which a child process writes the facts."""

_NEEDED = {"jax": "jax", "lazy_loader": "lazy_loader", "google.protobuf": "protobuf"}
"""The modules without which no facts can be gathered, and the packages that have them; jaxviz itself is lent."""

_PROBE = f"""
import importlib.util, json, platform
from importlib import metadata

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""

def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False

missing = [package for module, package in {_NEEDED!r}.items() if not is_there(module)]
print(json.dumps([platform.python_version(), version("jax"), version("jaxlib"), missing]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can gather facts.

    Args:
      path: of the interpreter.
      environment: its versions.
    """

    path: str
    environment: Environment

    @classmethod
    def of(cls, place: str | os.PathLike[str]) -> Interpreter:
        """The Python of an environment.

        Args:
          place: an interpreter, as a path or as a name on the PATH; or the folder of an environment.

        Raises:
          ValueError: there is none, or it lacks a package; the message says what to install.
        """
        path = _python_of(os.fspath(place))
        try:
            done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True)
            python, jax, jaxlib, missing = json.loads(done.stdout.splitlines()[-1])
        except (OSError, ValueError, IndexError) as error:
            raise ValueError(f"{path} is not a Python that runs: {error}") from None
        if missing:
            raise ValueError(
                f"{path} has no {' and no '.join(missing)}; install what is missing with\n"
                f"  {path} -m pip install {' '.join(missing)}\n"
                "jaxviz itself need not be installed there"
            )
        return cls(path, Environment(python, jax, jaxlib))


def _python_of(place: str) -> str:
    path = Path(place).expanduser()
    if path.is_dir():
        for inside in ("bin/python", "Scripts/python.exe", "python.exe"):
            if (path / inside).is_file():
                return str((path / inside).absolute())
        raise ValueError(f"{place} is no environment: it has no bin/python")
    found = shutil.which(place) if path.name == place else str(path.absolute()) if path.is_file() else None
    if found is None:
        raise ValueError(f"there is no Python at {place}; give an interpreter, or the folder of an environment")
    return found


@dataclass(frozen=True)
class Gathered:
    """What a child process returned.

    Args:
      facts: None if it failed.
      error: why it failed.
      printed: the lines that it printed to standard error, such as warnings.
    """

    facts: Facts | None
    error: str
    printed: tuple[str, ...]


@contextmanager
def folders() -> Iterator[tuple[Path, Path]]:
    """A folder for the facts and the arrays of each side, which are removed afterwards."""
    with TemporaryDirectory(prefix="jaxviz-") as root:
        before, after = Path(root) / "before", Path(root) / "after"
        before.mkdir()
        after.mkdir()
        yield before, after


def gather_with(python: Interpreter, target: str, arguments: str, argnums: str, folder: Path) -> Gathered:
    """Gathers the facts of a program with an interpreter, in a process of its own.

    The process imports the jaxviz that runs here, so that both sides are looked at in the same way.

    Args:
      python: the interpreter.
      target, arguments, argnums: as on the command line.
      folder: where it writes the facts and the arrays, and finds the arguments of the other environment.
    """
    lent = folder / "lent"
    lent.mkdir()
    _lend(lent)
    paths = filter(None, (str(lent), os.environ.get("PYTHONPATH")))
    words = [target, f"--args={arguments}", f"--argnums={argnums}", f"--facts={folder}"]
    done = subprocess.run(
        [python.path, "-m", "jaxviz", "upgrade", *words], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, errors="replace", env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    printed = tuple(line.rstrip() for line in done.stderr.splitlines() if line.strip())
    if done.returncode == 0 and (folder / FACTS).exists():
        return Gathered(Facts.load(folder / FACTS), "", printed)
    if done.returncode < 0:
        return Gathered(None, f"Python was ended by {signal.Signals(-done.returncode).name}", printed)
    said = [line for line in printed if line.strip() != TRACEBACK_SHOWS]
    return Gathered(None, "\n".join(said[-_LINES:]) or f"Python ended with status {done.returncode}", printed)


TRACEBACK_SHOWS = "(--traceback shows where)"
"""The last line of an error of the command line; a process that nobody has started by hand has no such option."""
_LINES = 6
"""How many lines of an error are shown: the last ones."""


def _lend(folder: Path) -> None:
    """Puts this jaxviz into a folder, and nothing beside it: the rest of its environment belongs to another JAX."""
    package = Path(__file__).parents[1]
    try:
        (folder / "jaxviz").symlink_to(package, target_is_directory=True)
    except OSError:  # Windows lets only some users do this
        shutil.copytree(package, folder / "jaxviz", ignore=shutil.ignore_patterns("static", "__pycache__"))
