"""Pages on how the house is built: each room has a short one, and what they name is there."""

import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from test_house import BUDGETS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jaxviz"
ROOMS = [PACKAGE / room / "README.md" for room in BUDGETS if room != "."]
PAGE = [ROOT / "widgets" / "README.md", ROOT / "widgets" / "src" / "graph" / "README.md"]
DESIGN = ROOT / "docs" / "design.md"


@cache
def words():
    """The words in the code of both languages, and in the settings, without comments and docstrings."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "widgets" / "src").rglob("*.ts"), ROOT / "pyproject.toml"]
    found = set()
    for file in files:
        text = re.sub(r'""".*?"""|/\*.*?\*/', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        found |= set(re.findall(r"\w+", re.sub(r"(#|// ).*", "", text)))
    return found


def code_in(page):
    """What is between backticks, outside of code blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return dict.fromkeys(re.findall(r"`([^`\n]+)`", text))


def is_there(name, page):
    """Whether a path, a module or a name exists; what is neither, such as an expression, is not looked up."""
    if re.fullmatch(r"[\w./*-]+", name) and ("/" in name or re.search(r"\.(py|ts|md|css|json|toml|pyi)$", name)):
        name = name.removesuffix("/*")
        return any((folder / name).exists() for folder in (page.parent, ROOT))
    if not re.fullmatch(r"(\w+\.)*\w+", name):
        return True
    if name.startswith(("jax.", "jaxviz.")):
        try:
            return pkgutil.resolve_name(name) is not None
        except (ImportError, AttributeError):
            return False
    return set(name.split(".")) <= words()


@pytest.mark.parametrize("page", [*ROOMS, *PAGE, DESIGN], ids=lambda p: p.parent.relative_to(ROOT).as_posix())
def test_a_page_is_short_and_what_it_names_is_there(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= (250 if page == DESIGN else 40)
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []
    assert [name for name in code_in(page) if not is_there(name, page)] == []


def test_the_house_has_no_other_rooms():
    assert sorted(PACKAGE.rglob("README.md")) == sorted(ROOMS)
