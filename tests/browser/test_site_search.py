"""The search of the site: a question finds its how-to first, and the name of a function its reference."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site's tools are not installed: pip install -e '.[docs]'")

pytestmark = [pytest.mark.browser, pytest.mark.slow(sweep=True)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The whole site, with its code not run."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fresh-env", "--quiet", "--jobs", "2", "-b", "html", ROOT / "docs", out],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "JAXVIZ_DOCS_RUN": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return out


@pytest.mark.parametrize(
    ("words", "page"),
    {
        "gradient is NaN": "howto/nan",
        "gradient zero": "howto/zero_gradient",
        "out of memory": "howto/memory",
        "RESOURCE_EXHAUSTED": "howto/oom",
        "two runs differ": "howto/divergence",
        "policy does nothing": "howto/policy",
        "remat3": "howto/remat3",
        "recompile": "howto/recompile",
        "donated buffer": "howto/donation",
        "all-reduce": "howto/communication",
        "plan_remat": "reference/checkpoints",
    }.items(),
)
def test_a_question_finds_its_how_to_first(browser, site, words, page):
    tab = browser.new_page()
    tab.goto(f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    first = tab.locator("#search-results li a").first
    first.wait_for()
    assert (first.get_attribute("href") or "").partition(".html")[0] == page
    tab.close()
