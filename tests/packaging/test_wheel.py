"""The wheel is built from the checkout, and works in an empty environment where there is no Node."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging
ROOT = Path(__file__).parents[2]

SMOKE = """
import shutil, sys
assert shutil.which("node") is None, "Node is within reach: this proves nothing"
import jax.numpy as jnp
import jaxviz
assert "site-packages" in jaxviz.__file__, jaxviz.__file__
def loss(x):
    return jnp.sum(jnp.sin(x) * 2.0)
derivation = jaxviz.derive(loss, jnp.ones(3))
print(derivation.check())
assert derivation.check()
assert jaxviz.grad(loss)(jnp.zeros(3)).tolist() == [2.0, 2.0, 2.0]
print(derivation.residuals)
path = jaxviz.explore(derivation).save_html(sys.argv[1])
assert path.stat().st_size > 100_000
import importlib.metadata
assert importlib.metadata.version("jaxviz-lab") == jaxviz.__version__
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, stdout=subprocess.DEVNULL
    )
    (made,) = out.glob("*.whl")
    return made


def test_the_wheel_holds_the_bundle_and_nothing_of_the_checkout(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "jaxviz/static/explorer.js" in names
    for script in ("loader", "live"):
        assert f"jaxviz/static/{script}.js" in names
    for part in ("compiled", "diff", "graph", "graphviz", "player", "stepper"):
        assert f"jaxviz/static/parts/{part}.js" in names
    licenses = zipfile.ZipFile(wheel).read("jaxviz/static/LICENSES.txt").decode()
    assert "@codemirror/view" in licenses
    assert "Eclipse Public License" in licenses
    assert "jaxviz/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"jaxviz", "jaxviz_lab"}


def test_the_wheel_works_where_there_is_no_node(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = str(python.parent)
    script = tmp_path / "smoke.py"
    script.write_text(SMOKE)
    done = subprocess.run(
        [str(python), str(script), str(tmp_path / "page.html")], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "residuals as in JAX" in done.stdout
