"""The file that stores a learner's answers: the source of each, below a line `# --- …`. Learners may edit it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from jaxviz.report.files import write_file

_ENTRY = re.compile(r"^# --- ([^\n]+)\n(.*?)(?=^# --- |\Z)", re.MULTILINE | re.DOTALL)


def read(path: str | Path) -> dict[str, str]:
    """The stored sources, by the lines above them; empty if there is no file."""
    file = Path(path)
    return dict(_ENTRY.findall(file.read_text(encoding="utf-8"))) if file.exists() else {}


def write(path: str | Path, head: str, sources: Mapping[str, str]) -> None:
    """Stores the sources, below a first line that says what the file is."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # A line of an answer that begins as those do would end it.
    entries = {line: re.sub(r"(?m)^# --- ", "#  --- ", source.rstrip()) for line, source in sources.items()}
    write_file(path, head + "".join(f"\n# --- {line}\n{source}\n" for line, source in entries.items()))
