"""The names that the reference must have."""

import ast
from pathlib import Path

_GIVEN_AWAY = {
    "jaxviz": "jaxviz/__init__.pyi",
    "jaxviz.teach": "jaxviz/teach/__init__.py",
    "jaxviz.teach.puzzles": "jaxviz/teach/puzzles/__init__.py",
}


def public_names(root: Path) -> list[str]:
    """The names that a stub or a package exports, as in `from … import name as name`;
    modules have pages or sections of their own."""
    found = []
    for module, path in _GIVEN_AWAY.items():
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module not in (None, module)):
            found += [f"{module}.{alias.name}" for alias in node.names if alias.asname == alias.name]
    return found
