"""The wheel is built from the checkout, and works in an empty environment without Node."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.slow
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
    for script in ("loader", "live", "exercise"):
        assert f"jaxviz/static/{script}.js" in names
    for part in ("compiled", "diff", "graph", "graphviz", "motion", "player", "stepper"):
        assert f"jaxviz/static/parts/{part}.js" in names
    licenses = zipfile.ZipFile(wheel).read("jaxviz/static/LICENSES.txt").decode()
    assert "@codemirror/view" in licenses
    assert "Eclipse Public License" in licenses
    assert "jaxviz/py.typed" in names
    assert not [name for name in names if name.endswith("README.md")]  # these are for those who read the code
    assert {name.split("/")[0].split("-")[0] for name in names} == {"jaxviz", "jaxviz_lab"}


def test_the_page_of_the_index_has_no_link_that_leads_nowhere(wheel):
    (metadata,) = (n for n in zipfile.ZipFile(wheel).namelist() if n.endswith("/METADATA"))
    head, _, page = zipfile.ZipFile(wheel).read(metadata).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert page.startswith("# jaxviz")
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_with_the_address_of_the_repository_links_and_pictures_lead_there():
    spec = importlib.util.spec_from_file_location("index_page", ROOT / "docs" / "index_page.py")
    index_page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(index_page)
    address = "https://example.org/owner/jaxviz"
    page = index_page.page_of((ROOT / "README.md").read_text(), address)
    assert re.search(rf"!\[[^\]]+\]\({address}/raw/main/docs/explorer\.png\)", page)
    paths = re.findall(rf"\]\({address}/(?:raw|blob)/main/([^)]*)\)", page)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert all(url.startswith(address) for url in index_page.addresses(address).values())
    assert index_page.addresses("") == {}
    assert "Binder" not in index_page.ways_to_try("")
    for where, source in {
        "https://github.com/owner/jaxviz": "gh/owner/jaxviz",
        address: "git/https%3A%2F%2Fexample.org%2Fowner%2Fjaxviz",
    }.items():
        link = f"https://mybinder.org/v2/{source}/main?urlpath=lab%2Ftree%2Fnotebooks%2F00_first_look.ipynb"
        assert f"]({link})" in index_page.ways_to_try(where)


def works(python, folder, **variables):
    """Runs a script without access to the checkout and to Node."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"PATH": str(folder / "bin"), **variables}
    script = folder / "smoke.py"
    script.write_text(SMOKE)
    done = subprocess.run(
        [str(python), str(script), str(folder / "page.html")], env=env, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "residuals as in JAX" in done.stdout


@pytest.mark.slow(sweep=True)
def test_the_wheel_works_where_there_is_no_node(wheel, tmp_path):
    """With the packages installed here, since pip takes a minute to create an environment; whether its requirements
    suffice is tested below."""
    installed = tmp_path / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(command, check=True)
    works(sys.executable, tmp_path, PYTHONPATH=str(installed))


@pytest.mark.slow(sweep=True)
def test_the_wheel_works_in_an_empty_environment(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    python = tmp_path / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    works(python, tmp_path)


def test_what_is_imported_is_required_by_name():
    """In the tests' environment everything is installed anyway, and what another requirement brings may go with its
    next version. A plugin is imported by pytest, which therefore is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (plugin,) = project["entry-points"]["pytest11"].values()
    imported = set()
    for path in (ROOT / "jaxviz").rglob("*.py"):
        if path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") == plugin:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module)
    known = packages_distributions()
    # jupytext is asked for by `needs` where it is used.
    required = [*project["dependencies"], *project["optional-dependencies"]["lab"]]
    needed = {canonicalize_name(Requirement(each).name) for each in required}
    for name in {name.partition(".")[0] for name in imported} - sys.stdlib_module_names - {"jaxviz"}:
        assert {canonicalize_name(n) for n in known[name]} & needed, f"{name} is imported, and not required"
