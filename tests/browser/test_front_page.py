"""The front page of the site, with what its code shows, on a phone: all of it is seen, and pressed with a thumb."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from short_runs import short

pytest.importorskip("sphinx", reason="the site's tools are not installed: pip install -e '.[docs]'")

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).parents[2]

# The site's own settings, without the pages that the front page does not lead to, and with its code alone being run.
SETTINGS = """
__file__ = {conf!r}
exec(compile(open(__file__, encoding="utf-8").read(), __file__, "exec"))
html_static_path = [str(HERE / "_static"), str(_scripts)]
exclude_patterns += ["reference/[a-z]*", "tutorials/[0-9]*", "gallery/[a-hj-z]*"]
nb_execution_mode = "force"
nb_execution_excludepatterns = ["[!i]*.md", "howto/*", "gallery/*", "tutorials/*"]
"""

# What is beyond the edge of the page, or of what it is in; and what is pressed and is smaller than a thumb. A link in a
# sentence is as high as its line, and so is a line of code.
MEASURED = """() => {
    const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && e.getBoundingClientRect().width > 1;
    const said = (e) => `${e.localName}.${e.getAttribute("class")} ${e.textContent.trim().slice(0, 30)}`;
    const all = [...document.querySelectorAll("body *")].filter(seen);
    const { clientWidth, scrollWidth } = document.documentElement;
    const isBeyond = (e) => {
        const { left, right } = e.getBoundingClientRect();
        return right <= 0 || left >= clientWidth ? false : left < -1 || right > clientWidth + 1;
    };
    const isCut = (e) => e.matches("pre, .jv-views, .output") && e.scrollWidth > e.clientWidth + 1;
    const alone = (e) => !e.matches("p a, .left-details a")
        || e.closest("p")?.textContent.trim() === e.textContent.trim();
    const small = ({ width, height }) => width < 40 || height < 40;
    const pressed = all.filter((e) => e.matches("a, button, summary, input, select, label, [role=button]"));
    return {
        wide: scrollWidth > clientWidth,
        beyond: all.filter((e) => isBeyond(e) || isCut(e)).map(said),
        pressed: pressed.length,
        small: pressed
            .filter((e) => alone(e) && !e.matches(".headerlink, .jv-src") && small(e.getBoundingClientRect()))
            .map(said),
    };
}"""
FINE = {"wide": False, "beyond": [], "small": []}


@pytest.fixture(scope="module")
def front_page(tmp_path_factory):
    """The address of the page; its explorers are next to it."""
    out, conf = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("settings")
    text = SETTINGS.format(conf=str(ROOT / "docs" / "conf.py"))
    (conf / "conf.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fresh-env", "--quiet", "-b", "html", "-c", conf, ROOT / "docs", out],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert len(re.findall("<iframe", (out / "index.html").read_text(encoding="utf-8"))) == 2
    return (out / "index.html").as_uri()


@pytest.fixture
def phone(browser, theme, front_page):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, color_scheme=theme, reduced_motion="reduce", has_touch=True,
        is_mobile=True,
    )  # fmt: skip
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(front_page)
    yield page
    context.close()
    assert errors == []


def measured(frame):
    found = frame.evaluate(MEASURED)
    return found.pop("pressed"), found


def test_all_of_the_front_page_is_seen_and_pressed_on_a_phone(phone):
    pressed, found = measured(phone)
    assert found == FINE
    assert pressed > 30
    phone.locator("summary").first.tap()  # the code of the first cell
    assert measured(phone)[1] == FINE
    frames = phone.locator("iframe")
    for i in range(2):
        frames.nth(i).scroll_into_view_if_needed()
        frame = frames.nth(i).element_handle().content_frame()
        frame.wait_for_selector(("[data-testid=motion-play]", "[data-testid=code-right] .cm-line")[i])
        pressed, found = measured(frame)
        assert found == FINE
        assert pressed > 15


@pytest.mark.parametrize("side", short(["nav", "toc"], []))
def test_the_drawers_of_the_front_page_open_at_a_touch(phone, side):
    phone.locator(f".mobile-header .{side}-overlay-icon").tap()
    drawer = phone.locator({"nav": ".sidebar-drawer", "toc": ".toc-drawer"}[side])
    phone.wait_for_function(
        "(e) => { const { left, right } = e.getBoundingClientRect(); return left >= 0 && right <= innerWidth; }",
        arg=drawer.element_handle(),
    )
    assert measured(phone)[1] == FINE
    assert drawer.locator("a").last.is_visible()
