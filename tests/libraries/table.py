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

RESULTS = Path(__file__).parents[2] / "artifacts" / "libraries"
HEADS = (
    "library", "program", "equations", "gradient", "residuals as in JAX", "on own lines", "gradient, s (JAX)", "reports, s",
    "explorer, s", "find_nan, s", "planted NaNs found", "memory, GiB (JAX)", "expected failures",
)  # fmt: skip
REPORTS = "check residuals memory cost lint policies compare_policies plan".split()
PLANTED = ("find_nan_line", "find_nan_argument")


def rows() -> Iterator[tuple[str, ...]]:
    for program in sorted(load().values(), key=lambda p: (p.library.lower(), p.name)):
        path = RESULTS / f"{program.name}.jsonl"
        if path.exists():
            yield row(program, {r["tool"]: r for r in map(json.loads, path.read_text().splitlines())})


def row(program: LibraryProgram, by_tool: dict[str, dict]) -> tuple[str, ...]:
    """The row of a program; says what failed or was not reached."""
    got = lambda tool, key: by_tool.get(tool, {}).get(key, "failed")
    seconds = lambda *tools: f"{sum(by_tool[t]['seconds'] for t in tools if t in by_tool):.1f}"
    peak = max((r["peak"] for r in by_tool.values()), default=0)
    found = sum("error" not in by_tool[t] for t in PLANTED if t in by_tool)
    return (
        program.library,
        f"`{program.name}`",
        f"{got('jax_grad', 'equations'):,}" if "equations" in by_tool.get("jax_grad", {}) else "failed",
        {"types": "types are equal"}.get(got("grad", "gradient"), got("grad", "gradient")),
        got("check", "residuals"),
        f"{by_tool['own_lines']['own']:.0%}" if "own" in by_tool.get("own_lines", {}) else "failed",
        f"{seconds('grad')} ({seconds('jax_grad')})",
        seconds(*REPORTS),
        seconds("explore"),
        "" if program.is_abstract else seconds("find_nan"),
        "" if program.is_abstract else f"{found} of {len(PLANTED)}",
        f"{peak / 2**30:.1f} ({by_tool['jax_grad']['peak'] / 2**30:.1f})" if "jax_grad" in by_tool else "",
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
