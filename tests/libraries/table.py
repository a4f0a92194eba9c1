"""Prints the table of the corpus's last run; given a page, replaces the table in it.

python tests/libraries/table.py docs/libraries.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from registry import LibraryProgram, load
from tools import tools_for

RESULTS = Path(__file__).parents[2] / "artifacts" / "libraries"
HEADS = (
    "library", "program", "equations", "gradient", "residuals as in JAX", "on own lines", "gradient, s (JAX)",
    "reports, s",
    "explorer, s", "find_nan, s", "planted NaNs found", "memory, GiB (JAX)", "expected failures",
)  # fmt: skip
REPORTS = (
    "check residuals memory cost lint policies compare_policies plan one_subject plan_step no_reverse_mode".split()
)
PLANTED = ("find_nan_line", "find_nan_argument", "find_nan_otherwise")


def rows() -> Iterator[tuple[str, ...]]:
    for program in sorted(load().values(), key=lambda p: (p.library.lower(), p.name)):
        path = RESULTS / f"{program.name}.jsonl"
        if path.exists():
            yield row(program, {r["tool"]: r for r in map(json.loads, path.read_text().splitlines())})


def row(program: LibraryProgram, by_tool: dict[str, dict]) -> tuple[str, ...]:
    """The row of a program; says what failed or was not reached. What is not for its kind of program is empty."""
    used = tools_for(program)
    got = lambda tool, key: by_tool.get(tool, {}).get(key, "failed") if tool in used else ""
    seconds = lambda *tools: f"{sum(by_tool[t]['seconds'] for t in tools if t in by_tool):.1f}"
    peak = max((r["peak"] for r in by_tool.values()), default=0)
    planted = [t for t in PLANTED if t in used]
    found = sum("error" not in by_tool.get(t, {"error": ""}) for t in planted)
    own, equations = got("own_lines", "own"), got("jax_grad", "equations")
    return (
        program.library,
        f"`{program.name}`",
        equations if isinstance(equations, str) else f"{equations:,}",
        {"types": "types are equal"}.get(got("grad", "gradient"), got("grad", "gradient")),
        got("check", "residuals"),
        own if isinstance(own, str) else f"{own:.0%}",
        f"{seconds('grad')} ({seconds('jax_grad')})" if "grad" in used else "",
        seconds(*REPORTS),
        seconds("explore") if "explore" in used else "",
        seconds("find_nan") if "find_nan" in used else "",
        f"{found} of {len(planted)}" if planted else "",
        f"{peak / 2**30:.1f}" + (f" ({by_tool['jax_grad']['peak'] / 2**30:.1f})" if "jax_grad" in by_tool else ""),
        ", ".join(f"`{tool}`" for tool in program.expected_failures),
    )


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(c)} |" for c in cells)


if __name__ == "__main__":
    table = markdown(HEADS, list(rows()))
    print(table)
    for page in map(Path, sys.argv[1:]):
        text, n = re.subn(r"(?m)^\|.*\n(\|.*\n)+", lambda _: table + "\n", page.read_text())
        if n != 1:
            raise SystemExit(f"{page} has {n} tables where one was expected")
        page.write_text(text)
