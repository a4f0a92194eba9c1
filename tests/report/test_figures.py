"""Figures as the output of a cell."""

import io

import jax
import jax.numpy as jnp
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib import image as plt_image
from matplotlib import style
from short_runs import short

import jaxviz


def test_a_figure_is_a_picture_in_a_notebook_that_has_not_imported_pyplot():
    x = jnp.ones((8, 8))
    for drawn in (jaxviz.residuals(jnp.sin, x).plot(), jaxviz.memory(lambda x: jnp.sum(jnp.sin(x)), x).plot()):
        data, _ = DisplayFormatter().format(drawn)
        assert data["image/png"].startswith(b"\x89PNG") or data["image/png"].startswith("iVBOR")


def pixels(png):
    return plt_image.imread(io.BytesIO(png), format="png")


def ink(image, colour):
    """The number of pixels with this colour that are opaque."""
    return int(((abs(image[..., :3] - colour) < 0.02).all(-1) & (image[..., 3] > 0.9)).sum())


def saved(figure):
    figure.savefig(out := io.BytesIO(), format="png")
    return pixels(out.getvalue())


def loss(x):
    return jnp.sum(jnp.sin(x))


DRAWN = {
    "residuals": lambda x: jaxviz.residuals(jnp.sin, x).plot(),
    "memory": lambda x: jaxviz.memory(loss, x).plot(),
    "plan": lambda x: jaxviz.plan_remat(lambda x: loss(jnp.sin(x)), x, budget=0.9).plot(),
    "policies": lambda x: jaxviz.compare_policies(loss, x).plot(),
    "profile": lambda x: jaxviz.profile(jax.jit(loss), x, repeat=1).plot(),
    "cost": lambda x: jaxviz.cost(loss, x).plot(),
    "find_nan": lambda x: jaxviz.find_nan(lambda x: jnp.sum(jnp.log(x - 1)), x).plot(),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(DRAWN), 3))
def test_a_page_may_be_dark_or_light(name):
    figure = DRAWN[name](jnp.ones((8, 8)))
    saved(figure)
    figure.set_layout_engine("none")  # the constrained layout may shift by a pixel each time
    before = saved(figure)
    shown = pixels(figure._repr_png_())
    assert shown[..., 3].min() == 0  # no background
    assert ink(shown, 0.0) == 0
    assert ink(shown, [c / 255 for c in (0x7B, 0x81, 0x89)]) > 20
    # In a file it has the colours of matplotlib's style, before and after.
    assert ink(before, 0.0) > 20
    assert before[..., 3].min() == 1
    assert (saved(figure) == before).all()


def test_another_style_of_matplotlib_stays():
    with style.context("dark_background"):
        figure = DRAWN["memory"](jnp.ones((8, 8)))
        shown = pixels(figure._repr_png_())
    assert shown[..., 3].min() == 1
    assert ink(shown, 0.0) > ink(shown, 1.0) > 20


def test_a_report_without_a_chart_has_no_figure():
    with pytest.raises(ValueError, match="there is nothing to plot: "):
        jaxviz.doctor().plot()
