"""The reference has every public name, each with an example that runs."""

import builtins
import contextlib
import doctest
import inspect
import io
import json
import re
from importlib import import_module
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from docs.public_names import public_names
from jaxviz import teach
from jaxviz.runs.watch import recorded

ROOT = Path(__file__).parents[1]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))


PUBLIC = {}
for full_name in public_names(ROOT):
    where, _, last = full_name.rpartition(".")
    PUBLIC[full_name] = getattr(import_module(where), last)


def entries():
    """The entries of the reference, and the examples on its pages."""
    found, written = set(), {}
    for path in REFERENCE:
        text, module = path.read_text(encoding="utf-8"), ""
        for line in text.splitlines():
            if directive := re.match(r"\.\. (\w+):: ([\w.]+)|^ {14}(\w+)\(", line):
                kind, name = directive[1] or "function", directive[2] or directive[3]
                if kind in ("currentmodule", "automodule"):
                    module = name
                else:
                    last = name if "." in name else f"{module}.{name}"
                    found.add(last)
            elif line.startswith("   >>> "):
                written[last] = written.get(last, "") + line.strip() + "\n"
    return found, written


def test_the_reference_has_every_public_name():
    found, _ = entries()
    inner = ("jaxviz.features.", "jaxviz.xla.", "jaxviz.teach.autodiff.")  # types of results
    assert PUBLIC.keys() - found == set()
    assert {name for name in found - PUBLIC.keys() if not name.startswith(inner)} == set()


@pytest.mark.parametrize("page", [p for p in REFERENCE if p.stem not in ("index", "teach")], ids=lambda p: p.stem)
def test_a_section_of_the_reference_is_small_and_leads_to_a_how_to_or_a_notebook(page):
    """Sphinx checks the links."""
    for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        assert len(re.findall(r"^\.\. auto", section, re.MULTILINE)) <= 13, title
        if title != "JAX's own":
            assert re.match(r"\nSee also: \[[^\]]+\]\(\.\./(howto/|tutorials/|lint|debugging)", rest), title


def examples_of(name):
    """The examples of a public name: in its docstring, or for JAX's own objects and for data, in the reference."""
    if name == "jaxviz.LINT_RULES":
        text = '>>> print(jaxviz.LINT_RULES["cheap-recompute"])'
    else:
        text = entries()[1].get(name) or inspect.getdoc(PUBLIC[name]) or ""
    return doctest.DocTestParser().get_examples(text)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example(name):
    assert examples_of(name)


# --- the examples run -------------------------------------------------------------------------------------------------


def loss(params, x):
    h = jnp.tanh(x @ params["w"] + params["b"])
    return jnp.mean(h**2)


def faster_loss(params, x):
    return jnp.mean(jnp.tanh(x @ params["w"]))


@jaxviz.custom_vjp
def tanh(x):
    return jnp.tanh(x)


tanh.defvjp(lambda x: (tanh(x),) * 2, lambda y, ct: ((1 - y**2) * ct,))


def train_step(params, *rest):
    return jax.tree.map(lambda p: p * 0.9, params)


def names():
    """The names that the examples use, created for each of them."""
    params = {"w": jnp.ones((3, 3)), "b": jnp.ones(3)}
    x = jnp.ones((2, 3))
    return {
        "jax": jax, "jnp": jnp, "json": json, "jaxviz": jaxviz, "teach": teach,
        "loss": loss, "faster_loss": faster_loss, "tanh": tanh, "log1pexp": tanh, "my_tanh": tanh, "f": jnp.sin,
        "trace": jaxviz.trace,
        "params": params, "x": x, "grads": params, "state": params, "batch": x, "w": params["w"], "batches": [x],
        "train_step": train_step, "update": train_step, "step": jaxviz.jit(train_step, donate_argnums=0),
        "train": jax.jit(train_step), "Path": Path,
        "error": "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "explorer": None, "kept": teach.saved(loss, params, x), "size": teach.predict("How many?", truth=lambda: 12),
    }  # fmt: skip


NOT_RUN = {
    "jaxviz.UnsupportedJaxError": "another JAX would have to be installed",
    "jaxviz.Position": "it names a position of a program that is not there",
    "jaxviz.Recorder": "it compares with the file of another run",
    "jaxviz.Stepper": "it goes into iteration 7 of a scan",
    "jaxviz.Series": "it reads what a training loop has recorded",
    "jaxviz.Watch": "it watches a training loop",
    "jaxviz.watch": "it watches a training loop",
    "jaxviz.Upgrade": "it compares two environments",
    "jaxviz.upgrade": "it compares two environments",
    "jaxviz.collectives": "it needs a mesh of devices",
    "jaxviz.watch_donations": "it ends with the error that it explains",
}


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in NOT_RUN])
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = names()
    if "jaxviz-run" in str([e.source for e in examples_of(name)]):
        with recorded("jaxviz-run"):
            jax.jit(jax.grad(loss))(given["params"], given["x"])
    with contextlib.redirect_stdout(io.StringIO()):
        for example in examples_of(name):
            code = compile(example.source, name, "single")
            if example.exc_msg is None:
                exec(code, given)
            else:
                raised = example.exc_msg.partition(":")[0].rpartition(".")[2]
                with pytest.raises(getattr(jaxviz, raised, None) or getattr(builtins, raised)):
                    exec(code, given)
