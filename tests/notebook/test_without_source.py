"""A page saved without source contains no line of the user's files, and none of their paths."""

import base64
import gzip
import importlib.util
import json
import re

import jax.numpy as jnp
import pytest
from short_runs import short

import jaxviz

SECRET = "PROPRIETARY"
PROGRAM = f'''
import jax, jax.numpy as jnp
from jax.extend.core import Primitive

odd = Primitive("odd")
odd.def_abstract_eval(lambda x: x)

@jax.custom_jvp
def clipped(x):  # {SECRET}
    return jnp.clip(x, -1.0, 1.0)

clipped.defjvp(lambda p, t: (clipped(*p), t[0] * 2.0))

def loss(w, x):  # {SECRET}
    """{SECRET}"""
    scale = 2.0 if "{SECRET}" else 1.0
    hidden = clipped(jnp.tanh(x @ w)) * scale  # {SECRET}
    jax.debug.print("hidden {{}}", hidden.sum())
    hidden = jax.checkpoint(lambda h: jnp.sin(h) * jnp.cos(h))(hidden)  # {SECRET}
    return jnp.sum(jax.lax.scan(lambda c, h: (c * h, c), hidden[0], hidden)[1])  # {SECRET}

def other(w, x):  # {SECRET}
    return loss(w, x) + jnp.sum(w)  # {SECRET}

def fails(w, x):  # {SECRET}
    return loss(w, odd.bind(x))  # {SECRET}

def chooses(w, x):  # {SECRET}
    return jnp.sum(jnp.sin(x @ w)) if x.sum() > 0 else w.sum()  # {SECRET}
'''
ARGS = jnp.ones((3, 3)), jnp.ones((2, 3))


@pytest.fixture
def user(tmp_path, request):
    folder = tmp_path / "private folder"
    folder.mkdir()
    path = folder / "model.py"
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def opened(block):
    """Unpacks data, however often it was packed."""
    return opened(gzip.decompress(block)) if block.startswith(b"\x1f\x8b") else block


def texts_of(path):
    """All texts of a page: itself, and everything packed in it."""
    page = path.read_text(encoding="utf-8")
    found = {"page": page}
    for name in ("state", "payload"):
        packed = json.loads(re.search(rf'id="jaxviz-{name}">(.*?)</script>', page, re.DOTALL)[1])
        found[name] = opened(base64.b64decode(packed)).decode(errors="replace")
    before = json.loads(found["state"]).get("before")
    if before:
        found["before"] = opened(base64.b64decode(before)).decode(errors="replace")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", short(["loss", "fails", "chooses", "compared"], ["loss", "fails"]))
def test_neither_lines_nor_paths_are_in_the_page(user, tmp_path, name):
    subject = jaxviz.compare(user.loss, user.other, *ARGS) if name == "compared" else getattr(user, name)
    explorer = jaxviz.explore(subject, *(() if name == "compared" else ARGS))
    explorer._fill()
    explorer._fill_what_if()
    found = texts_of(explorer.save_html(tmp_path / "page.html", source=False, compiled=True))
    assert {"page", "state", "payload"} <= set(found)
    assert ("before" in found) == (name == "compared")
    for part, text in found.items():
        for hidden in (SECRET, "private folder", str(tmp_path), str(tmp_path)[1:]):
            at = text.find(hidden)
            assert at < 0, f"{part} has {hidden}: {text[max(0, at - 200) : at + 200]}"
    assert "model.py" in found["payload"]


def test_lines_are_in_the_page_otherwise(user, tmp_path):
    found = texts_of(jaxviz.explore(user.loss, *ARGS).save_html(tmp_path / "page.html"))
    assert SECRET in found["payload"]
