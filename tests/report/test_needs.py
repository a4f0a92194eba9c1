"""Reports without matplotlib, pillow, graphviz and JupyterLab, or with broken ones: text and pages work, and a figure
says what it needs."""

import subprocess
import sys

import pytest

PROGRAM = """
import pathlib, sys
for name in ("graphviz", "jupyterlab_server", "PIL"):
    sys.modules[name] = None
for name in ("jupyter_core", "jupyterlab", "matplotlib"):
    (folder := pathlib.Path(sys.argv[1], name)).mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('compiled for another version')")
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp, jaxviz
f, x = lambda x: jnp.sum(jnp.tanh(x) ** 2), jnp.ones(4)
for made in (jaxviz.residuals(f, x), jaxviz.memory(f, x), jaxviz.lint(f, x), jaxviz.plan_remat(f, x)):
    assert str(made) and made._repr_html_()
explorer = jaxviz.explore(f, x)
bundle, _ = explorer._repr_mimebundle_()
assert "There is no picture" not in str(jaxviz.step(f, x))
assert "digraph" in jaxviz.draw(f, x).source
assert "dot" in str(jaxviz.doctor())
for needs, call in (
    ("A figure needs matplotlib", lambda: jaxviz.residuals(f, x).plot()),
    ("A figure needs matplotlib", lambda: jaxviz.memory(f, x).plot()),
    ("A figure needs matplotlib and pillow", explorer.plot_overview),
    ("An animation needs matplotlib and pillow", lambda: explorer.save_animation("x.gif")),
    ("The dot language needs graphviz", lambda: jaxviz.to_dot(f, x)),
):
    try:
        call()
    except ImportError as error:
        assert str(error).startswith(needs + ", which cannot be imported"), error
        assert "pip install" in str(error)
    else:
        raise AssertionError(needs)
"""


@pytest.mark.slow
def test_only_figures_need_them_and_say_so(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
