"""Jupyter in the browser, for the notebooks that need no JAX: `make docs` builds it into docs/_build/html/lite.

It is JupyterLite with Pyodide, which is Python compiled for browsers. All that it loads is in its folder, so it works
without a network: Python itself from npm, and everything in Python from PyPI. JAX is not among it, since jaxlib has no
wheel for Pyodide, and neither is NumPy, whose wheel is on no package index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import jupytext
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = HERE.parent / "_build" / "lite"
"""What was fetched, kept for the next build."""

NOTEBOOKS = ("24_a_tape",)
"""The notebooks that run in the browser. 25 to 28 need NumPy: add them when it has a wheel for Pyodide on PyPI,
together with that wheel in requirements.txt."""

LISTS = ("package-lock.json", "requirements.txt", "tools.txt")
CORE = ("pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide.mjs", "python_stdlib.zip")
KERNEL = "@jupyterlite/pyodide-kernel-extension"
LOADED_AT_START = ("comm", "ipykernel", "ipython", "jedi", "micropip", "piplite", "pyodide-kernel")
"""What the kernel would otherwise install itself, one after the other. The rest is loaded when a cell imports it."""

KERNELSPEC = {"name": "python", "display_name": "Python (Pyodide)", "language": "python"}
SETTINGS = {
    "@jupyterlab/apputils-extension:themes": {"adaptive-theme": True},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},  # a browser then finds text in all cells
}


def page_of(notebook: str) -> str:
    """The address of a notebook, from the folder of the site."""
    return f"lite/notebooks/index.html?path={notebook}.ipynb"


def build(out: Path, kept: Path = KEPT) -> None:
    """Builds the site.

    Args:
      out: its folder, which is written anew.
      kept: the folder for what is fetched.
    """
    fetch(kept)
    folder = kept / "site"
    shutil.rmtree(folder, ignore_errors=True)
    pyodide = folder / "static" / "pyodide"
    pyodide.mkdir(parents=True)
    for name in CORE:
        shutil.copy(kept / "node_modules" / "pyodide" / name, pyodide)
    _run([sys.executable, *"-m pip wheel --quiet --no-deps --wheel-dir".split(), str(pyodide), str(ROOT)])
    extension = kept / "tools" / "share" / "jupyter" / "labextensions" / KERNEL
    for wheel in (*(kept / "wheels").glob("*.whl"), *(extension / "static" / "pypi").glob("*.whl")):
        shutil.copy(wheel, pyodide)
    of_npm = json.loads((kept / "node_modules" / "pyodide" / "pyodide-lock.json").read_text(encoding="utf-8"))
    packages = packages_of(sorted(pyodide.glob("*.whl")), of_npm["info"]["python"])
    _write(pyodide / "pyodide-lock.json", {"info": of_npm["info"], "packages": packages})

    settings = {
        f"{KERNEL}:kernel": {"disablePyPIFallback": True, "loadPyodideOptions": {"packages": [*LOADED_AT_START]}}
    }
    config = {"appName": "jaxviz", "appUrl": "./tree", "litePluginSettings": settings}
    _write(folder / "jupyter-lite.json", {"jupyter-lite-schema-version": 0, "jupyter-config-data": config})
    _write(folder / "overrides.json", SETTINGS)
    for name in NOTEBOOKS:
        _write(folder / "files" / f"{name}.ipynb", notebook(name))

    shutil.rmtree(out, ignore_errors=True)
    labextensions = kept / "tools" / "share" / "jupyter" / "labextensions"
    command = [
        sys.executable, "-m", "jupyterlite_core", "build", f"--lite-dir={folder}", f"--output-dir={out}",
        "--apps=notebooks", "--apps=tree", "--no-sourcemaps", "--no-unused-shared-packages",
        "--ignore-sys-prefix",
        *(f"--LiteBuildConfig.federated_extensions={labextensions / name}" for name in
          ("@jupyter-widgets/jupyterlab-manager", KERNEL)),
    ]  # fmt: skip
    _run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(kept / "tools"), "PYTHONWARNINGS": "ignore"})


def fetch(kept: Path) -> None:
    """Python for the browser, wheels for it, and the tools, if one of their lists has changed."""
    lists = {name: (HERE / name).read_text(encoding="utf-8") for name in LISTS}
    done = kept / "fetched.json"
    if done.exists() and json.loads(done.read_text(encoding="utf-8")) == lists:
        return
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, kept)
    pip = [sys.executable, "-m", "pip"]
    _run(["npm", *"ci --ignore-scripts --no-audit --no-fund --loglevel=error".split()], cwd=kept)
    words = "download --quiet --no-deps --only-binary=:all: --platform=any --python-version=3.14 --dest"
    _run([*pip, *words.split(), str(kept / "wheels"), "-r", str(HERE / "requirements.txt")])
    _run([*pip, *"install --quiet --target".split(), str(kept / "tools"), "-r", str(HERE / "tools.txt")])
    of_kernel = (kept / "tools" / "jupyterlite_pyodide_kernel" / "constants.py").read_text(encoding="utf-8")
    expected = re.search(r'^PYODIDE_VERSION = "(.+)"$', of_kernel, re.MULTILINE)[1]
    found = json.loads((kept / "node_modules" / "pyodide" / "package.json").read_text(encoding="utf-8"))["version"]
    if found != expected:
        raise SystemExit(f"The kernel in tools.txt expects Pyodide {expected}, and package.json has {found}.")
    _write(done, lists)


def packages_of(wheels: list[Path], python: str) -> dict[str, dict[str, Any]]:
    """The packages of Pyodide's lock file; of two versions, the later."""
    environment = {
        "python_version": ".".join(python.split(".")[:2]), "python_full_version": python, "extra": "",
        "sys_platform": "emscripten", "platform_system": "Emscripten", "os_name": "posix",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    }  # fmt: skip
    packages, needed = {}, {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
            (path,) = (name for name in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            about = Parser().parsestr(archive.read(path).decode("utf-8"))
        name = canonicalize_name(about["Name"])
        requirements = map(Requirement, about.get_all("Requires-Dist", ()))
        needed[name] = [
            canonicalize_name(r.name) for r in requirements if r.marker is None or r.marker.evaluate(environment)
        ]
        packages[name] = {
            "name": name,
            "version": about["Version"],
            "file_name": wheel.name,
            "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "install_dir": "site",
            "package_type": "package",
            "imports": sorted({m[1] for f in files if (m := re.fullmatch(r"(\w+)(?:/__init__)?\.py", f))}),
            "unvendored_tests": False,
        }
    for name, package in packages.items():
        package["depends"] = [n for n in needed[name] if n in packages]
    return packages


def notebook(name: str) -> dict[str, Any]:
    """A notebook as JupyterLite opens it; what it links to and is not offered is named only."""
    text = (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    text = re.sub(r"\[([^\]]+)\]\((\w+)\.ipynb\)", lambda m: m[0] if m[2] in NOTEBOOKS else m[1], text)
    made = jupytext.reads(text, fmt="py:percent")
    made.metadata["kernelspec"] = KERNELSPEC
    return json.loads(jupytext.writes(made, fmt="ipynb"))


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _run(command: list[str], **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
