"""Figures as the output of a cell."""

import jax.numpy as jnp
from IPython.core.formatters import DisplayFormatter

import jaxviz


def test_a_figure_is_a_picture_in_a_notebook_that_has_not_imported_pyplot():
    x = jnp.ones((8, 8))
    for drawn in (jaxviz.residuals(jnp.sin, x).plot(), jaxviz.memory(lambda x: jnp.sum(jnp.sin(x)), x).plot()):
        data, _ = DisplayFormatter().format(drawn)
        assert data["image/png"].startswith(b"\x89PNG") or data["image/png"].startswith("iVBOR")
