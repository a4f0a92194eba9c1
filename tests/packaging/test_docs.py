"""The site builds without warnings from code that runs; no link is broken, and nothing is loaded from elsewhere."""

import base64
import html
import importlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="the site's tools are not installed: pip install -e '.[docs]'")
from docutils.core import publish_doctree
from jupyter_cache import get_cache
from myst_nb.core.config import NbParserConfig
from myst_parser.config.main import MdParserConfig
from short_runs import short
from sphinx.ext.napoleon import Config, GoogleDocstring

from docs import docstrings
from docs.lite.build import NOTEBOOKS, page_of
from docs.public_names import public_names

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src"), ("video", "src")}
IN_THE_BROWSER = {f"../{page_of(name)}" for name in NOTEBOOKS}
TUTORIALS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.py"))
SHEET = re.compile(r' data-(?:sheet|content)="([^"]*)"')


class Page(HTMLParser):
    """The links and external resources of a page, and the anchors in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.fetched, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        for key in ("href", "src"):
            if found.get(key):
                self.links.append(found[key])
                if (tag, key) in FETCHED and found.get("rel") != "canonical":
                    self.fetched.append(found[key])


def build(out, **variables):
    words = "--fresh-env --fail-on-warning --keep-going --jobs 3 --quiet -b html".split()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(ROOT / "docs"), str(out)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu", **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return out


def pages_of(out):
    return {path: Page(path.read_text(encoding="utf-8")) for path in out.rglob("*.html")}


def documented():
    """Each public name and member that is written here, with its docstring."""
    for name in public_names(ROOT):
        where, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(where), last)
        members = vars(found).items() if isinstance(found, type) else ()
        for path, obj in [(name, found), *((f"{name}.{m}", obj) for m, obj in members if not m.startswith("_"))]:
            obj = getattr(obj, "__func__", obj)
            if not callable(obj) and not isinstance(obj, property):
                continue
            kind = "property" if isinstance(obj, property) else "class" if isinstance(obj, type) else "function"
            if kind == "property" or (obj.__module__ or "").startswith("jaxviz"):
                yield path, kind, obj


def test_docstrings_are_read_without_warnings():
    config, warnings = Config(napoleon_custom_sections=docstrings.SECTIONS), {}
    app = SimpleNamespace(config=config)
    for name, kind, obj in documented():
        lines = (inspect.getdoc(obj) or "").splitlines()
        docstrings.before_napoleon(app, kind, name, obj, None, lines)
        lines[:] = GoogleDocstring(lines, config, None, kind, name, obj).lines()
        docstrings.after_napoleon(app, kind, name, obj, None, lines)
        said = io.StringIO()
        publish_doctree("\n".join(lines), settings_overrides={"report_level": 2, "warning_stream": said})
        warnings |= {name: said.getvalue()} if said.getvalue() else {}
    assert warnings == {}


@pytest.fixture(scope="module")
def unrun(tmp_path_factory):
    """The site without the code's output; a name that the reference lacks, or a warning, makes the build fail."""
    return build(tmp_path_factory.mktemp("unrun"), JAXVIZ_DOCS_RUN="0")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as built by `make docs`, using the outputs it has kept."""
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(site):
    return pages_of(site)


def dead_links(out, pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("#!"):
                continue
            if link in IN_THE_BROWSER:  # what they lead to is built after the pages: tests/browser/test_lite.py
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
            ):
                dead.append((path.name, link))
    return dead


@pytest.mark.slow(sweep=True)
def test_every_link_within_the_site_leads_somewhere(unrun):
    pages = pages_of(unrun)
    assert dead_links(unrun, pages) == []
    assert {link for page in pages.values() for link in page.links} >= IN_THE_BROWSER
    assert sum(len(p.links) for p in pages.values()) > 500
    assert {link for page in pages.values() for link in page.fetched if urlsplit(link).netloc} == set()


@pytest.mark.slow(sweep=True)
def test_every_tutorial_has_a_page(unrun):
    assert sorted(path.stem for path in (unrun / "tutorials").glob("[0-9]*.html")) == TUTORIALS


def test_outputs_are_kept_for_each_state_of_what_they_depend_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    outputs = importlib.import_module("outputs")
    package, page = tmp_path / "jaxviz" / "part", tmp_path / "docs" / "index.md"
    for path, text in ((package / "a.py", "x = 1"), (package / "b.py", ""), (page, "text")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    first = outputs.state(tmp_path)
    page.write_text("other text")  # myst-nb itself detects changes of the page's text
    assert outputs.state(tmp_path) == first
    kept = outputs.folder(tmp_path, tmp_path / "build")
    assert outputs.folder(tmp_path, tmp_path / "build") == kept
    (package / "a.py").write_text("x = 2")
    changed = outputs.state(tmp_path)
    (package / "b.py").rename(package / "c.py")
    assert len({first, changed, outputs.state(tmp_path)}) == 3
    assert outputs.folder(tmp_path, tmp_path / "build") != kept
    assert not kept.exists()


PAGE = """---
file_format: mystnb
kernelspec:
  name: python3
  display_name: Python 3
---
# A page

```{{code-cell}}
{code}
```
"""


@pytest.fixture
def run_pages(tmp_path, monkeypatch):
    """Runs pages, given as their code, as the site does, one after the other."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JAXVIZ_DOCS_PAGES", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "kernel_startup.py", startup)
    running = importlib.import_module("running")

    def run(pages):
        cells = tmp_path / "cells"
        shutil.rmtree(cells, ignore_errors=True)
        for name, code in pages.items():
            (tmp_path / f"{name}.md").write_text(PAGE.format(code=code))
        (tmp_path / "text.md").write_text("# Without code")
        config = NbParserConfig(execution_mode="cache", execution_cache_path=str(cells), execution_timeout=600)
        env = SimpleNamespace(
            doc2path=lambda name: tmp_path / f"{name}.md", myst_config=MdParserConfig(), mystnb_config=config
        )
        running.run_pages(SimpleNamespace(parallel=1, env=env), ["text", *pages])

    return run


@pytest.mark.slow(sweep=True)
def test_the_pages_with_the_most_code_are_run_first(tmp_path, run_pages):
    order = tmp_path / "order"
    code = f"with open({str(order)!r}, 'a') as file: file.write("
    run_pages({"short": f"{code}'3')", "long": f"{code}'1')  # as long as this", "other": f"{code}'2')  # shorter"})
    assert order.read_text() == "123"


@pytest.mark.parametrize(
    "wrong",
    short(["1 / 0", "import os; os._exit(1)"], ["import os; os._exit(1)"]),
    ids=["an error", "a kernel that dies"],
)
def test_a_page_that_fails_keeps_no_other_from_running(tmp_path, run_pages, wrong):
    run_pages({"wrong": f"{wrong}  # the longest one", "right": "1 + 1"})
    kept = get_cache(str(tmp_path / "cells")).list_cache_records()
    assert [Path(record.uri).stem for record in kept] == ["right"]


@pytest.mark.slow(sweep=True)
def test_what_a_page_compiles_is_found_again_by_the_next_build(tmp_path, run_pages):
    code = "import jax, jaxviz\njaxviz.compiled_memory(lambda x: jax.numpy.sum(jax.numpy.sin(x) ** 2), 1.0)"
    run_pages({"page": code})
    compiled = {path.name for path in (tmp_path / "compiled").glob("*-cache")}
    run_pages({"page": code})
    assert {path.name for path in (tmp_path / "compiled").glob("*-cache")} == compiled != set()


# --- the code's output ------------------------------------------------------------------------------------------------


@pytest.mark.slow(sweep=True)
def test_links_to_what_the_code_shows_lead_somewhere(site, pages):
    assert dead_links(site, pages) == []


@pytest.mark.slow(sweep=True)
def test_nothing_is_fetched_from_elsewhere(pages):
    assert {link for page in pages.values() for link in page.fetched if urlsplit(link).netloc} == set()


@pytest.mark.slow(sweep=True)
def test_explorers_are_there_and_hold_their_programs(site, pages):
    for name, n in {"index.html": 2, "howto/memory.html": 1, "howto/tracing.html": 1, "howto/jaxpr.html": 1}.items():
        assert sum("explorer-" in link for link in pages[site / name].fetched) == n, name
    for path, page in pages.items():
        for link in page.fetched:
            if "explorer-" in link:
                text = (path.parent / link).read_text(encoding="utf-8")
                assert "Content-Security-Policy" in text
                assert len(text) > 100_000


@pytest.mark.slow(sweep=True)
def test_the_gallery_shows_the_memory_of_each_program(site):
    programs = [path.stem for path in (ROOT / "docs" / "gallery").glob("*.md") if path.stem != "index"]
    listed = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    items = dict(re.findall(r'<li><p><a [^>]*href="(\w+)\.html">(.*?)</a>', listed, re.DOTALL))
    assert sorted(items) == sorted(programs)
    assert [name for name, item in items.items() if "<svg" not in item or "peak" not in item] == []
    for name in programs:
        page = (site / "gallery" / f"{name}.html").read_text(encoding="utf-8")
        assert page.count("<summary>Answer</summary>") == 3, name


@pytest.mark.slow(sweep=True)
def test_what_the_how_tos_print_was_computed(pages, site):
    for name in ("memory", "upgrade", "policy", "nan", "recompile", "tracing", "donation", "jaxpr"):
        text = (site / "howto" / f"{name}.html").read_text(encoding="utf-8")
        assert text.count('class="cell_output') >= 2, name
    assert "iteration 5 of 6" in " ".join((site / "howto" / "nan.html").read_text(encoding="utf-8").split())


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_has_its_outputs_and_gives_no_answer_away(site, name):
    page = (site / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
    source = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    assert page.count('class="cell_output') >= 2
    assert "widget-view" not in page
    explorers = re.findall(r"^(\w+) = jaxviz\.explore\(", source, re.MULTILINE)
    assert page.count('<figure class="explorer">') >= len(
        [n for n in explorers if re.search(rf"^{n}$", source, re.MULTILINE)]
    )
    assert page.count('<form class="jvx"') == source.count('tags=["exercise"]')
    seen = html.unescape(re.sub("<[^>]*>", "", SHEET.sub("", page)))
    assert ".solution(" not in seen
    assert "What the text says, asserted" not in seen
    held = [json.loads(base64.b64decode(text)) for text in re.findall(r'data-sheet="([^"]*)"', page)]
    assert all(sheet["answer"]["headline"] for sheet in held)
    assert [hint for sheet in held for hint in sheet["hints"] if hint.replace("`", "") in seen] == []
    assert [
        sheet["answer"]["note"] for sheet in held if (note := sheet["answer"]["note"]) and note.replace("`", "") in seen
    ] == []
