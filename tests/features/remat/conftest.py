"""Modules with source files of their own, and the law that the code of a plan keeps what it says."""

import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from applied import agree, patch
from test_remat_plan import held_by_jax

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat.offload import read_offload
from jaxviz.features.remat.search import Search

_NUMBERS = itertools.count()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, in which the test runs, and from which modules are imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def module(folder, monkeypatch):
    """Imports source code as a module with its own file, and the source of a library, which it imports as `library`."""

    def write(source, library="", name=""):
        if library:
            other = write("import jax\nimport jax.numpy as jnp\nfrom jax import lax\n" + library)
            jaxviz.own_code(exclude=[other.__file__])
            source = f"import {other.__name__} as library\n{source}"
        path = folder / f"{name or f'model_{next(_NUMBERS)}'}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, made)  # like an import
        spec.loader.exec_module(made)
        return made

    yield write
    jaxviz.own_code()


@pytest.fixture
def holds(module):
    """Applies the code of a plan: jaxviz and JAX then say of the function what it says. Returns the code."""

    def check(plan, own, args, offload=None):
        want = jax.jit(jax.grad(own.loss))(*args(own))
        code = plan.code()
        patch(code)
        edited = module(Path(own.__file__).read_text())
        search = Search(derive(edited.loss, *args(edited)), False, read_offload(offload))
        found, said = search.written, plan.written.trade
        assert replace(found, peak_nbytes=0) == replace(said, peak_nbytes=0)
        assert found.peak_nbytes == pytest.approx(said.peak_nbytes, rel=1e-3)
        if not hasattr(edited.loss, "lower"):  # what `jax.jit` saves is not in its function
            assert held_by_jax(edited.loss, *args(edited)) == said.nbytes + said.offloaded
        agree(jax.jit(jax.grad(edited.loss))(*args(edited)), want)
        return code

    return check
