"""The site is built with no warning, from code that is run, and nothing on its pages leads nowhere or fetches anything."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import jaxviz

pytest.importorskip("sphinx", reason="the site's tools are not installed: pip install -e '.[docs]'")
pytestmark = [pytest.mark.packaging, pytest.mark.sweep]
ROOT = Path(__file__).parents[2]
FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src"), ("video", "src")}


class Page(HTMLParser):
    """What a page leads to and fetches, and the places in it that something may lead to."""

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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    words = "--fresh-env --fail-on-warning --keep-going --jobs 2 --quiet -b html".split()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(ROOT / "docs"), str(out)],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "JAXVIZ_DOCS_PAGES": str(out), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_every_link_within_the_site_leads_somewhere(site, pages):
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("#!"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
            ):
                dead.append((path.name, link))
    assert not dead
    assert sum(len(p.links) for p in pages.values()) > 500


def test_nothing_is_fetched_from_elsewhere(pages):
    assert {link for page in pages.values() for link in page.fetched if urlsplit(link).netloc} == set()


def test_explorers_are_there_and_hold_their_programs(site, pages):
    for name in ("index.html", "howto/memory.html", "howto/tracing.html", "howto/jaxpr.html"):
        assert sum("explorer-" in link for link in pages[site / name].fetched) == 1, name
    for path, page in pages.items():
        for link in page.fetched:
            if "explorer-" in link:
                text = (path.parent / link).read_text(encoding="utf-8")
                assert "Content-Security-Policy" in text
                assert len(text) > 100_000


def test_what_the_how_tos_print_was_computed(pages, site):
    for name in ("memory", "upgrade", "policy", "nan", "recompile", "tracing", "donation", "jaxpr"):
        text = (site / "howto" / f"{name}.html").read_text(encoding="utf-8")
        assert text.count('class="cell_output') >= 2, name
    assert "iteration 5 of 6" in " ".join((site / "howto" / "nan.html").read_text(encoding="utf-8").split())


def test_every_public_name_is_in_the_reference(site):
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    told = set(re.findall(r'id="jaxviz\.(\w+)"', text))
    names = {name for name in dir(jaxviz) if getattr(getattr(jaxviz, name), "__module__", "").startswith("jaxviz.")}
    assert names - told == set()


def test_every_tutorial_has_a_page(site):
    made = {path.stem for path in (site / "tutorials").glob("[0-9]*.html")}
    assert made == {path.stem for path in (ROOT / "notebooks").glob("*.py")}
