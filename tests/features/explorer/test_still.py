"""The outputs of an explorer's cell for places without widgets: which, in which order, correct and plain."""

import html
import io
import re
import sys
from collections import Counter
from html.parser import HTMLParser
from itertools import combinations
from types import SimpleNamespace

import bleach
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorer_programs import layers, layers_args
from matplotlib.text import Text
from PIL import Image

import jaxviz
from jaxviz.analysis.naming import written_at
from jaxviz.features.explorer import picture, still
from jaxviz.features.explorer import sent as sending
from jaxviz.features.explorer import widget as module
from jaxviz.report.kinds import STACKED
from jaxviz.report.tables import format_bytes


@pytest.fixture
def explorer():
    return jaxviz.explore(layers, *layers_args)


@pytest.fixture
def shown(monkeypatch):
    """The displayed outputs, as in a notebook."""
    found = []
    monkeypatch.setattr(module, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(module, "display", lambda data, **how: found.append((data, how)))
    return found


def test_the_widget_comes_first_then_a_picture_and_a_table(explorer, shown):
    explorer._ipython_display_()
    (widget, _), (drawn, how), (table, _) = shown
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert how["metadata"]["image/png"]["alt"].startswith("Gradient of layers in params. saves ")
    with Image.open(io.BytesIO(drawn["image/png"])) as made:
        assert made.width == 2 * how["metadata"]["image/png"]["width"]
        assert made.convert("RGBA").getpixel((0, 0))[3] == 0  # the background is transparent, for light and dark pages
    assert set(table) == {"text/html", "text/plain"}


def test_in_colab_the_widget_names_the_manager_that_shows_it(shown, monkeypatch):
    colab = SimpleNamespace(
        enable_custom_widget_manager=lambda: None, _widgets=SimpleNamespace(_installed_url="https://colab/manager.js")
    )
    monkeypatch.setitem(sys.modules, "google.colab.output", colab)
    jaxviz.explore(layers, *layers_args)._ipython_display_()
    (widget, how), *stills = shown
    assert "application/vnd.jupyter.widget-view+json" in widget
    of_colab = how["metadata"]["application/vnd.jupyter.widget-view+json"]["colab"]
    assert of_colab == {"custom_widget_manager": {"url": "https://colab/manager.js"}}
    assert [next(iter(data)) for data, _ in stills] == ["image/png", "text/html"]


def test_a_terminal_has_the_text_alone(explorer, shown, monkeypatch):
    monkeypatch.setattr(module, "get_ipython", lambda: SimpleNamespace())
    explorer._ipython_display_()
    assert len(shown) == 1


def test_the_outputs_of_a_large_program_have_all_of_it(explorer, shown, monkeypatch):
    monkeypatch.setattr(sending, "_AT_ONCE", 3)
    explorer._ipython_display_()
    assert [next(iter(data)) for data, _ in shown[1:]] == ["image/png", "text/html"]
    assert explorer.rest


def test_a_large_program_is_displayed_before_it_is_derived(shown, monkeypatch):
    monkeypatch.setattr(module, "_SOON", 3)
    explorer = jaxviz.explore(layers, *layers_args)
    payloads = []
    monkeypatch.setattr(module, "display", lambda data, **how: payloads.append((data, explorer.payload)))
    explorer._ipython_display_()
    (widget, before), *stills = payloads
    assert before == b""
    assert "application/vnd.jupyter.widget-view+json" in widget
    n = sum(1 for _ in explorer.derivation.primal.walk())
    assert widget["text/plain"] == f"Explorer of the gradient of `layers` in `params`, {n} equations"
    assert [next(iter(data)) for data, _ in stills] == ["image/png", "text/html"]
    assert explorer.view.is_whole


def test_deriving_a_large_program_can_be_stopped_and_started_again(explorer, shown, monkeypatch):
    monkeypatch.setattr(module, "_SOON", 3)

    def stops(maker):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "first_payload", stops)
        explorer._ipython_display_()
    assert len(shown) == 1
    outline = explorer.payload
    explorer.complete()
    assert len(explorer.payload) > len(outline)


def test_work_that_is_stopped_leaves_the_widget_alone(explorer, shown, monkeypatch):
    monkeypatch.setattr(sending, "_AT_ONCE", 3)

    def stops(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Explorer, "_fill_rest", stops)
    explorer._ipython_display_()
    assert len(shown) == 1


@pytest.mark.slow
def test_another_version_takes_the_place_of_the_outputs(explorer, shown):
    explorer._ipython_display_()
    explorer.update(lambda x: jnp.sum(jnp.cos(x)), jnp.ones(4))
    first, second = shown[1:3], shown[3:]
    assert [how["display_id"] for _, how in first] == [how["display_id"] for _, how in second]
    assert [how["update"] for _, how in second] == [True, True]
    assert "jnp.cos(x)" in second[1][0]["text/html"]
    # Without a gradient there is no picture, and the previous one is removed.
    explorer.update(lambda x: jax.lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, x), 1.0)
    assert shown[5][0] == {"text/plain": ""}
    assert "<pre>Explorer of" in shown[6][0]["text/html"]


class _Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_the_table_is_plain_html_and_says_what_the_reports_say(explorer):
    made = still.table_html(explorer.view)
    read = _Tags(made)
    assert read.tags <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "code"}
    assert read.attributes <= {"class", "align"}
    # The largest total per location, over all layers.
    sizes, words = Counter(), {}
    for group in jaxviz.residuals(layers, *layers_args, argnums=0).groups:
        if group.kind != "argument":
            at = (str(group.location), group.location.column)
            sizes[at] += group.nbytes
            words[at] = written_at(group.location)
    ((at, nbytes),) = sizes.most_common(1)
    first = re.search("<tbody><tr>(.*?)</tr>", made)[1]
    assert f"<code>{html.escape(words[at])}</code>" in first
    assert format_bytes(nbytes).replace(" ", "\u00a0") in first
    assert at[0].rsplit("/", 1)[-1] in first
    assert "needed again in line" in first


GITHUB = set(
    "a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd li ol p pre q s samp span "
    "strike strong sub summary sup table tbody td tfoot th thead tr tt ul var".split()
)
"""The elements that GitHub allows in users' HTML; it removes the attributes `class` and `style`."""


def test_the_same_as_text_fits_a_page_and_has_every_value(explorer):
    lines = still.table_text(explorer.view).splitlines()
    assert max(map(len, lines)) <= 76
    text = " ".join(" ".join(lines).split())
    view = explorer.view
    for i, nbytes in enumerate(view.columns["kept_nbytes"].tolist()):
        label, reason = (view.strings[view.columns[name][i]].replace("`", "") for name in ("kept_label", "kept_reason"))
        assert f"{format_bytes(nbytes)} {label} " in text
        assert f": {reason}" in text


@pytest.mark.parametrize("f", [layers, lambda x: jax.lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, x)])
def test_a_strict_sanitizer_removes_only_the_class(f):
    made = still.table_html(jaxviz.explore(f, *(layers_args if f is layers else [1.0])).view)
    cleaned = bleach.clean(made, tags=GITHUB, attributes=["align"], strip=True)
    assert html.unescape(cleaned) == html.unescape(made.replace(' class="jaxviz-still"', ""))


def test_code_in_the_table_is_escaped(explorer):
    kept = explorer.view.columns["kept_label"][0]
    strings = list(explorer.view.strings)
    strings[kept] = "<script>alert(1)</script>"
    made = still.table_html(module.replace(explorer.view, strings=tuple(strings)))
    assert "<code>&lt;script&gt;alert(1)&lt;/script&gt;</code>" in made


def test_what_is_left_out_of_the_table_is_said():
    def many(x):
        for f in (jnp.sin, jnp.tanh, jnp.exp, jnp.cos):
            x = f(x)
        a = jnp.sin(x) * jnp.cos(x)
        b = jnp.exp(a) * jnp.tanh(a)
        c = jnp.sin(b) * jnp.cos(b)
        d = jnp.exp(c) * jnp.tanh(c)
        return jnp.sum(jnp.sin(d) * jnp.exp(d))

    view = jaxviz.explore(many, jnp.ones(8)).view
    n = len(view.columns["kept_nbytes"])
    assert n > 10
    made = still.table_html(view)
    assert made.count("<tr>") == 11
    left = format_bytes(int(view.columns["kept_nbytes"][10:].sum()))
    assert re.search(rf"and {n - 10} other expressions?, {left}", made)


def test_a_picture_that_fails_is_said_below_the_table(explorer, monkeypatch):
    def fails(view):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(picture, "overview_png", fails)
    ((data, _),) = still.still_outputs(explorer.view)
    assert "There is no picture: RuntimeError: no fonts" in data["text/html"]


def test_the_picture_has_the_headline_the_expressions_and_the_peak(explorer):
    view = explorer.view
    figure = picture.overview_figure(view)
    texts = [text.get_text() for text in figure.findobj(Text)]
    for said in still.headline(view):
        assert said.replace("`", "") in texts
    peak = jaxviz.memory(layers, *layers_args).peak_nbytes
    assert f"peak {format_bytes(peak)}" in texts
    for label in view.columns["kept_label"][:5]:
        assert view.strings[label] in texts
    assert any(text.startswith("block × 3") for text in texts)


@pytest.fixture(scope="module")
def overview():
    return picture.Overview(jaxviz.explore(layers, *layers_args).view)


def test_labels_of_the_picture_do_not_collide(overview):
    figure = picture.drawn(overview)
    figure.draw_without_rendering()
    shown = [t for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
    shown = [t for t in shown if t.axes is None or t.axes.axison or t in t.axes.texts]
    places = [(t.get_text(), t.get_window_extent()) for t in shown]
    clips = {t.get_text(): t.get_clip_path() for t in shown}
    for (text, a), (other, b) in combinations(places, 2):
        in_bars = clips[text] is not None and clips[other] is not None  # each is clipped to its bar
        assert in_bars or not a.overlaps(b), (text, other)


def test_the_steps_are_where_their_scopes_are(overview):
    """The three charts have one axis, whose unit is the work."""
    memory, runs = overview.memory, overview.runs
    assert memory.edges[-1] == pytest.approx(runs.total)
    backward = next(row for row in runs.rows if row[0].startswith("backward"))
    assert memory.edges[overview.turn] == pytest.approx(backward[2])
    figure = picture.drawn(overview)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    peak = figure.axes[2].lines[1].get_xdata()[0]
    assert memory.edges[memory.highest] <= peak <= memory.edges[memory.highest + 1]


def test_scopes_too_narrow_to_see_are_left_out(overview):
    widths = [b.end - b.start for b in picture.boxes(overview.view, "flops")]
    narrowest = 2 / (picture.RIGHT - picture.LEFT)
    assert min(widths) < narrowest <= min(b.end - b.start for b in overview.boxes)


def test_what_is_saved_but_for_a_moment_has_a_band(overview):
    bands = picture.drawn(overview).axes[1].collections
    assert len(bands) == len(overview.saved)
    for band in bands:
        wide, tall = np.ptp(band.get_paths()[0].vertices, axis=0)
        assert wide >= picture._SEEN * overview.total / picture._COLUMNS * 0.99
        assert tall >= 0.05


@pytest.mark.slow
def test_the_picture_is_a_figure_too_and_what_has_none_says_why(explorer, tmp_path):
    explorer.plot_overview().savefig(tmp_path / "overview.pdf")
    assert (tmp_path / "overview.pdf").read_bytes().startswith(b"%PDF")
    loop = jaxviz.explore(lambda x: jax.lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, x), 1.0)
    with pytest.raises(ValueError, match="has no overview: ReverseModeError"):
        loop.plot_overview()


def test_names_with_dollars_and_other_scripts_are_drawn_as_they_are(recwarn):
    def costs(x):
        return jnp.sum(jnp.sin(x))  # 漢字 $x$ \frac

    costs.__name__ = "漢字 $\\frac"
    view = jaxviz.explore(costs, jnp.ones(3)).view
    assert picture.overview_png(view).startswith(b"\x89PNG")
    assert not recwarn.list


def test_a_gradient_that_saves_nothing_has_a_picture_that_says_so(recwarn):
    """A warning, with a path of this machine, would be shown below the explorer."""
    view = jaxviz.explore(jax.checkpoint(lambda x: jnp.sum(jnp.sin(x) ** 2)), jnp.ones(3)).view
    figure = picture.overview_figure(view)
    assert "nothing" in [text.get_text() for text in figure.texts]
    assert picture.overview_png(view).startswith(b"\x89PNG")
    assert not recwarn.list


def test_the_memory_on_the_axis_is_that_of_the_report(explorer):
    timeline = jaxviz.memory(layers, *layers_args)
    by_kind = picture.memory_by_kind(explorer.view)
    np.testing.assert_array_equal(by_kind.sum(0), [step.total for step in timeline.steps])
    kept = picture.kept_alive(explorer.view, range(len(explorer.view.columns["kept_nbytes"])))
    assert (kept <= by_kind[STACKED.index("residual")]).all()
    assert kept.max() > 0
    assert picture.n_forward(explorer.view) == sum(not step.is_backward for step in timeline.steps)


def test_the_boxes_of_a_level_are_beside_each_other_and_in_those_around(explorer):
    view = explorer.view
    for measure in ("flops", "equations"):
        found = {box.scope: box for box in picture.boxes(view, measure)}
        parents = view.columns["scope_parent"].tolist()
        tops = [box for box in found.values() if parents[box.scope] < 0]
        assert tops[-1].end == pytest.approx(1)
        for box in found.values():
            around = found.get(parents[box.scope])
            if around is not None:
                assert around.start - 1e-9 <= box.start <= box.end <= around.end + 1e-9
                assert box.depth == around.depth + 1
        share = view.columns[f"scope_{measure}"][tops[0].scope] / sum(
            view.columns[f"scope_{measure}"][b.scope] for b in tops
        )
        assert tops[0].end - tops[0].start == pytest.approx(share)
