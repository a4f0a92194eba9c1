"""Measuring in a fresh process, with nothing in any cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def in_new_process(module: str, *what: str) -> dict[str, Any]:
    """What `measure` of a module of the benchmarks returns in a process of its own."""
    command = [sys.executable, "-m", module, "--measure", *what]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def run(measure: Callable[..., dict[str, Any]], main: Callable[..., None]) -> None:
    """The command of such a module: it measures one thing, or runs all."""
    if "--measure" in sys.argv:
        print(json.dumps(measure(*sys.argv[sys.argv.index("--measure") + 1 :])))
    else:
        main(quick="--quick" in sys.argv)
