"""Binder's configuration: files that parse and agree, and a server of a clean environment that opens a notebook."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml
from jupyter_lab import free_port, wait_for
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
POST_BUILD = ROOT / "binder" / "postBuild"
FIRST = "notebooks/00_first_look"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_post_build_can_be_run():
    assert os.access(POST_BUILD, os.X_OK)
    assert POST_BUILD.read_text().startswith("#!/usr/bin/env bash\n")
    mode = subprocess.run(["git", "ls-files", "-s", "binder/postBuild"], cwd=ROOT, capture_output=True, text=True)
    assert not mode.stdout or mode.stdout.startswith("100755"), mode.stdout
    subprocess.run(["bash", "-n", str(POST_BUILD)], check=True)
    for line in POST_BUILD.read_text().splitlines():
        assert "sudo" not in line  # it does not run as root


def test_the_environment_fits_the_package():
    environment = yaml.safe_load((ROOT / "binder" / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    versions = dict((*spec.split("="), "")[:2] for spec in environment["dependencies"])
    assert set(versions) == {"python", "nodejs", "graphviz", "pip"}
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{versions['python']}.0")
    node = json.loads((ROOT / "widgets" / "package.json").read_text())["engines"]["node"]
    assert SpecifierSet(node).contains(versions["nodejs"])


def test_what_post_build_names_is_there():
    text = POST_BUILD.read_text()
    assert (ROOT / f"{FIRST}.py").exists()
    assert f"/lab/tree/{FIRST}.ipynb" in text
    assert "jupytext" in " ".join(PROJECT["optional-dependencies"]["lab"])
    assert re.search(r"pip install .*'\.\[lab\]'", text)


def test_the_lock_has_what_the_package_needs():
    text = (ROOT / "binder" / "lock.txt").read_text()
    locked = {name: Version(number) for name, number in re.findall(r"(?m)^([\w.-]+)==(\S+)$", text)}
    assert len(locked) == sum(not line.startswith("#") for line in text.splitlines())  # versions, not files or URLs
    locked = {canonicalize_name(name): number for name, number in locked.items()}
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["lab"]):
        needed = Requirement(text)
        assert needed.specifier.contains(locked[canonicalize_name(needed.name)]), f"{text}: run `make lock`"


@pytest.mark.slow
def test_binders_own_tool_takes_it():
    pytest.importorskip("repo2docker", reason="pip install jupyter-repo2docker")
    done = subprocess.run(
        [sys.executable, "-m", "repo2docker", "--no-build", "--debug", str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert "env update" in said
    assert "binder/environment.yml" in said
    assert "RUN ./binder/postBuild" in said


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """A copy of the repository and a clean environment, in which postBuild has run."""
    root = tmp_path_factory.mktemp("binder")
    home = root / "home"
    shutil.copytree(
        ROOT, home, symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git", ".venv*", ".stamps", "node_modules", "artifacts", "_build", "*.ipynb", "__pycache__", ".*_cache",
            "build", "dist"
        ),
    )  # fmt: skip
    version = yaml.safe_load((ROOT / "binder" / "environment.yml").read_text())["dependencies"][0].partition("=")[2]
    pythons = [
        shutil.which(f"python{version}"),
        *Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python{version}"),
    ]
    # A shim of pyenv is found but does not run if that version is not selected.
    python = next(
        (p for p in filter(None, pythons) if subprocess.run([p, "-c", ""], capture_output=True).returncode == 0), None
    )
    if python is None:
        pytest.skip(f"Binder's versions are for Python {version}, which is not here")
    subprocess.run([str(python), "-m", "venv", str(root / "env")], check=True)
    # XLA ends a process with flags that it does not know, as those of these tests may be to Binder's version.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "XLA_FLAGS")}
    env |= {"PATH": f"{root / 'env' / 'bin'}:{env['PATH']}", "PIP_NO_CACHE_DIR": "0", "JAX_PLATFORMS": "cpu"}
    env |= {"JUPYTER_CONFIG_DIR": str(root / "config"), "JUPYTER_RUNTIME_DIR": str(root / "runtime")}
    done = subprocess.run(["binder/postBuild"], cwd=home, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "everything it needs is installed" in done.stdout
    assert "notebooks are saved with their widgets" in done.stdout
    return home, env


@pytest.mark.slow(sweep=True)
def test_every_notebook_is_there_and_the_first_one_runs(image):
    home, env = image
    made = {path.stem for path in (home / "notebooks").glob("*.ipynb")}
    assert made == {path.stem for path in (ROOT / "notebooks").glob("*.py")}
    done = subprocess.run(
        ["jupyter", "execute", "--inplace", f"{Path(FIRST).name}.ipynb"], cwd=home / "notebooks", env=env,
        capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    notebook = json.loads((home / f"{FIRST}.ipynb").read_text())
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
    assert not [out for out in outputs if out["output_type"] == "error"]
    assert any("application/vnd.jupyter.widget-view+json" in out.get("data", {}) for out in outputs)


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("command", ["lab", "notebook"])
def test_a_link_that_names_nothing_opens_on_the_first_notebook(image, command):
    home, env = image
    prefix = home.parent / "env"
    # The notebook server belongs to the image, not to the package: here it is the tests' own, with the image's
    # settings.
    python = prefix / "bin" / "python" if command == "lab" else sys.executable
    module = "jupyterlab" if command == "lab" else "notebook"
    env = {**env, "JUPYTER_CONFIG_PATH": str(prefix / "etc" / "jupyter")}
    port, log = free_port(), home.parent / f"{command}.log"
    flags = (
        f"--no-browser --allow-root --ServerApp.ip=127.0.0.1 --ServerApp.port={port} --IdentityProvider.token= "
        f"--ServerApp.password="
    )
    with log.open("w") as out:
        server = subprocess.Popen(
            [str(python), "-m", module, *flags.split()], cwd=home, env=env, stdout=out, stderr=out
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/", server, log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
            assert answer.url.endswith(f"/lab/tree/{FIRST}.ipynb")
    finally:
        server.terminate()
        server.wait(20)
