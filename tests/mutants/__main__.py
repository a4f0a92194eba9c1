"""Plants faults in a copy of the checkout, one at a time, and runs the tests that cover them: `make mutants`.

The short tests, which `make test` runs, have to find each fault. Only if they miss one are the sweeps run as well, to
tell whether leaving these out is the reason. The tests that found something are run again without a fault, and have to
pass.

    make mutants                      all faults
    make mutants MUTANTS="jvp 12"     those whose file, description or number matches
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
PARTS = (
    "jaxviz",
    "tests",
    "benchmarks",
    "notebooks",
    "binder",
    "docs",
    "widgets",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
)
LATEST = ROOT / ".venv-latest" / "bin" / "python"
BESIDE = ("browser", "packaging")
"""Folders of tests that run only for faults whose tests name the folder."""
WORKERS = 2


def copy_of_the_checkout(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "_build", "*.ipynb", "node_modules")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=ignored)
        else:
            shutil.copy2(source, folder / part)
    (folder / "widgets" / "node_modules").symlink_to((ROOT / "widgets" / "node_modules").resolve())
    return folder


def write(checkout: Path, path: str, text: bytes) -> None:
    """Writes a file, and rebuilds the page's bundle if the file is one of its sources."""
    (checkout / path).write_bytes(text)
    if path.startswith("widgets/"):
        subprocess.run(["npm", "run", "--silent", "build"], cwd=checkout / "widgets", check=True, capture_output=True)


def planted(fault: Fault) -> str:
    """The file's text with the fault in it.

    Raises:
      SystemExit: the text to replace is missing, or not unique.
    """
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    n = text.count(fault.text)
    if n != 1:
        sys.exit(f"{fault.path} has {n} times, and not once, what a fault replaces:\n{fault.text}")
    return text.replace(fault.text, fault.instead)


def run_tests(checkout: Path, tests: Sequence[str], marks: str) -> tuple[int, str]:
    """pytest's exit status, and the first test that failed. Tests that are all skipped are run with the newest JAX, if
    `make test-latest` has installed it."""
    env = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    env.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
    for python in filter(os.path.exists, (sys.executable, LATEST)):
        command = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", marks, *tests]
        done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
        if done.returncode or " passed" in done.stdout:
            break
    failed = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1, 5) or (done.returncode == 1) != (failed is not None):
        sys.exit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.returncode, failed[1] if failed else ""


def looked_for(fault: Fault, checkout: Path) -> tuple[str, str]:
    """Which tests find a fault: `short`, `sweep` or `none`; and the name of the test."""
    sound = (checkout / fault.path).read_bytes()
    ignored = [f"--ignore=tests/{folder}" for folder in BESIDE if f"tests/{folder}" not in fault.tests]
    write(checkout, fault.path, planted(fault).encode())
    try:
        collects = False
        for kind, marks in (("short", "not slow(sweep=True)"), ("sweep", "slow(sweep=True)")):
            status, failed = run_tests(checkout, [*shlex.split(fault.tests), *ignored], marks)
            collects |= status != 5
            if status == 1:
                return kind, failed
    finally:
        write(checkout, fault.path, sound)
    if not collects:
        sys.exit(f"{fault.tests} selects no test, for: {fault.what}")
    return "none", ""


def main(wanted: Sequence[str]) -> int:
    chosen = [
        (i, f)
        for i, f in enumerate(FAULTS, 1)
        if not wanted or any(w == str(i) or (not w.isdigit() and w in f"{f.path}\n{f.what}") for w in wanted)
    ]
    for _, fault in chosen:
        planted(fault)
    missed, found_by = 0, set()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as workers:
        free: SimpleQueue[Path] = SimpleQueue()
        for k in range(WORKERS):
            free.put(copy_of_the_checkout(Path(folder) / str(k)))

        def look(numbered: tuple[int, Fault]) -> tuple[int, Fault, str, str]:
            checkout = free.get()
            try:
                return *numbered, *looked_for(numbered[1], checkout)
            finally:
                free.put(checkout)

        for number, fault, kind, test in workers.map(look, chosen):
            missed += kind != "short"
            found_by |= {test} - {""}
            said = {"short": f"found by {test}", "sweep": f"MISSED, but by the sweep {test}", "none": "MISSED"}[kind]
            print(f"{number:3} {fault.path}: {fault.what}: {said}", flush=True)
        sound = free.get()
        for test in sorted(found_by):
            status, _ = run_tests(sound, [test], "")
            if status:
                missed += 1
                print(f"{test} fails with no fault planted", flush=True)
    print(f"{len(chosen)} faults, {missed} missed or found for another reason")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
