"""Pages and settings for contributors: what they state is true, and the hooks reject what they should."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from short_runs import short

import jaxviz
from benchmarks.remat_programs import CASES

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / ".pre-commit-config.yaml"
HOOKS = {hook["id"]: hook for repo in yaml.safe_load(CONFIG.read_text())["repos"] for hook in repo["hooks"]}


def test_the_citation_and_the_changes_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == jaxviz.__version__
    assert citation["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    assert re.findall(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.M)[0].rstrip(",") == jaxviz.__version__
    assert (ROOT / "jaxviz" / "py.typed").exists()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 700


@pytest.mark.slow(sweep=True)
def test_the_readme_shows_the_plan_that_is_found():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"    (plan for the gradient .*?) …; (a checkpoint .*?)\n\n", text, re.S)
    case = CASES["transformer, scanned"]()
    found = " ".join(jaxviz.plan_remat(case.plain, *case.args).summary.split())
    for part in shown.groups():
        assert " ".join(part.split()) in found


def test_what_contributing_names_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:jaxviz|widgets|tests|docs|notebooks|binder|benchmarks)(?:/[\w./-]*)?)`", text))
    named |= set(re.findall(r"\]\(((?!http)[^)#]+)\)", text))
    named |= {f"jaxviz/{p}" for p in re.findall(r"`((?:ir|rules|analysis)/\w+\.py)`", text)}
    assert len(named) > 20
    built = {"docs/_build/compiled", "docs/_build/html", "docs/_build/outputs", "jaxviz/static", "widgets/node_modules"}
    assert [name for name in sorted(named - built) if not (ROOT / name).exists()] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for called in re.findall(r"`make ([\w -]+)`|^ {4}make ([\w-]+)", text, re.M):
        assert set("".join(called).split()) <= set(targets), called


def test_every_hook_runs_a_tool_of_the_checkout():
    assert set(HOOKS) == {"ruff-format", "ruff-check", "mypy", "import-layers", "biome", "tsc"}
    assert all(hook["language"] == "system" for hook in HOOKS.values())
    for hook in HOOKS.values():
        if "files" in hook:
            re.compile(hook["files"])


MISTAKES = {
    "ruff-format": ("jaxviz/ir/added.py", "x  =  1\n", "1 file reformatted"),
    "ruff-check": ("jaxviz/ir/added.py", "import os\n", "F401"),
    "mypy": ("jaxviz/added.py", "def f(x): return x\n", "no-untyped-def"),
    "import-layers": ("jaxviz/ir/added.py", "import jaxviz.cli\n", "Layers BROKEN"),
    "biome": ("widgets/src/added.ts", "export const x = 'one';\n", "Formatter would have printed"),
    "tsc": ("widgets/src/added.ts", 'export const x: number = "one";\n', "TS2322"),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository with the sources and settings, in which to make mistakes."""
    pytest.importorskip("pre_commit")
    root = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", ".pre-commit-config.yaml"):
        shutil.copy(ROOT / name, root / name)
    ignored = shutil.ignore_patterns("static", "__pycache__", "node_modules")
    for name in ("jaxviz", "widgets", "tests/fixtures"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    (root / "widgets" / "node_modules").symlink_to((ROOT / "widgets" / "node_modules").resolve())
    if (ROOT / ".mypy_cache").exists():  # filled by `make lint`
        shutil.copytree(ROOT / ".mypy_cache", root / ".mypy_cache")
    (root / ".gitignore").write_text("__pycache__/\n.mypy_cache/\nnode_modules\n")
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("hook", short(list(MISTAKES), ["ruff-check"]))
def test_a_hook_passes_what_is_here_and_stops_a_mistake(checkout, hook, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PRE_COMMIT_HOME", str(checkout.parent / "pre-commit"))
    monkeypatch.delenv("PYTHONPATH", raising=False)  # lint-imports has to read the copy
    path, mistake, said = MISTAKES[hook]

    def run():
        subprocess.run(["git", "add", "--all"], cwd=checkout, check=True)
        words = [sys.executable, "-m", "pre_commit", "run", hook, "--all-files", "--color=never"]
        return subprocess.run(words, cwd=checkout, capture_output=True, text=True)

    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    (checkout / path).write_text(mistake)
    try:
        done = run()
        assert done.returncode == 1
        assert said in done.stdout
    finally:
        (checkout / path).unlink()
