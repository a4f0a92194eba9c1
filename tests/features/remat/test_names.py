"""Saved values have names, lines and functions that readers of the source recognise."""

import importlib.util
import sys

import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat.choices import Choice
from jaxviz.features.remat.forms import Form
from jaxviz.features.remat.names import _called, saved_by
from jaxviz.features.remat.search import Search
from jaxviz.ir import compat

W = jnp.linspace(-0.5, 0.5, 256).reshape(16, 16)
X = jnp.ones((32, 16))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Imports source code as a module with a given name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, source):
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made

    return write


MODEL = """
import jax
import jax.numpy as jnp

def attention(w, x):
    probs = jax.nn.softmax(x @ w @ x.T)
    return probs @ x

def layer(w, x):
    x = x + attention(w, x)
    return x + jnp.sin(jnp.exp(x @ w))

def loss(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.sum(x**2)
"""


LOOP = """
import jax
import jax.numpy as jnp
from parts import act
def loss(ws, x):
    def body(x, w):
        return x + act(x @ w) @ w, None
    return jnp.sum(jax.lax.scan(body, x, ws)[0] ** 2)
"""


def names_in(f, *args):
    return {e.params["name"] for _, e in jaxviz.trace(f)(*args).walk() if e.primitive is compat.name_p}


@pytest.mark.slow
def test_names_are_words_of_the_users_source_with_apply_too(module):
    own = module("words", MODEL)
    args = [W * 0.1] * 8, X
    plan = jaxviz.plan_remat(own.loss, *args, work="20%")
    names = names_in(plan.apply(own.loss), *args)
    assert names == {s.name for s in plan.saved}
    assert names & {"attention_probs", "attention_product", "layer_product", "layer_x"}
    assert all(name.startswith(("attention_", "layer_")) for name in names)


@pytest.mark.slow(sweep=True)
def test_names_are_other_ones_than_those_that_are_there(module):
    named = MODEL.replace("x @ w))", 'checkpoint_name(x @ w, "layer_product")))')
    own = module("named", f"from jax.ad_checkpoint import checkpoint_name\n{named}")
    plan = jaxviz.plan_remat(own.loss, [W * 0.1] * 8, X, work="20%")
    assert plan.saved
    assert "layer_product" not in {s.name for s in plan.saved}


def test_a_value_in_the_body_of_a_scan_has_the_users_line(module):
    """Also in a function jitted by a library that has been called elsewhere before."""
    parts = module(
        "parts", "import jax, jax.numpy as jnp\n@jax.jit\ndef act(x):\n    return jnp.sin(x) * jnp.tanh(x) * 2.0\n"
    )
    jaxviz.own_code(exclude=[parts.__file__])
    try:
        first = module("first", "from parts import act\ndef f(x):\n    return act(x)\n")
        first.f(jnp.ones((32, 16)))
        own = module("loop", LOOP)
        search = Search(derive(own.loss, jnp.stack([W] * 4), X), False)
        (region,) = (r for r in search.regions if r.is_body)
        (part,) = search.parts(region)
        values = [v for v, e in part.graph.makers.items() if e.primitive.name in ("mul", "dot_general")]
        saved = saved_by(search, Form((region,), ((part, Choice(tuple(values), 0, 0)),)))
        assert {str(s.location) for s in saved} == {f"{own.__file__}:7"}
        product = "jnp.sin(x) * jnp.tanh(x) in act(x @ w)"
        assert {s.label for s in saved} == {"x @ w", product, "act(x @ w)", "act(x @ w) @ w"}
    finally:
        jaxviz.own_code()


def test_a_value_in_the_body_of_a_librarys_scan_has_the_users_line(module):
    """In a loop, JAX records no line outside its body."""
    library = module(
        "library",
        "import jax, jax.numpy as jnp\ndef run(ws, x):\n    body = lambda x, w: (x + jnp.sin(x @ w) * jnp.tanh(x), None)\n"
        "    return jax.lax.scan(body, x, ws)[0]\n",
    )
    jaxviz.own_code(exclude=[library.__file__])
    try:
        own = module(
            "user",
            "import jax.numpy as jnp\nfrom library import run\ndef loss(ws, x):\n    return jnp.sum(run(ws, x))\n",
        )
        plan = jaxviz.plan_remat(own.loss, jnp.stack([W] * 8), X, work="1%")
        assert plan.saved
        assert {str(s.location) for s in plan.saved} == {f"{own.__file__}:4"}
        assert all(s.label.endswith(" in run(ws, x)") for s in plan.saved)
    finally:
        jaxviz.own_code()


def test_a_wrapper_of_a_library_is_not_what_is_meant(module):
    wrapper = module("wrapper", "def wrapped(f, *args):\n    return f(*args)\n")
    source = MODEL.replace("x = layer(w, x)", "x = wrapped(layer, w, x)")
    own = module("user", f"from wrapper import wrapped\n{source}")
    jaxviz.own_code(exclude=[wrapper.__file__])
    try:
        found = Search(derive(own.loss, [W] * 3, X), False).regions
        assert "layer" in {r.name for r in found}
        assert "wrapped" not in {r.name for r in found}
    finally:
        jaxviz.own_code()


def test_of_a_librarys_functions_the_one_that_is_wrapped_is_meant(module):
    library = module(
        "library",
        f"{MODEL}\ndef wrapped(f, *args):\n    return f(*args)\ndef call(w, x):\n    return wrapped(layer, w, x)\n",
    )
    own = module(
        "calls",
        "import jax.numpy as jnp\nfrom library import call\ndef loss(ws, x):\n    for w in ws:\n        x = call(w, x)\n    return jnp.sum(x)\n",
    )
    jaxviz.own_code(exclude=[library.__file__])
    try:
        found = Search(derive(own.loss, [W] * 3, X), False).regions
        assert "layer" in {r.name for r in found}
        assert not {"wrapped", "call"} & {r.name for r in found}
    finally:
        jaxviz.own_code()


def test_trials_of_other_groups_or_other_spots_are_other_trials(module):
    own = module("groups", MODEL)
    search = Search(derive(own.loss, [W] * 4, X), False)
    region = next(r for r in search.regions if r.name == "layer")
    (part,) = search.parts(region)
    choice = part.choices[-1]
    value, *_ = choice.saved
    form = Form((region,), ((part, Choice((value,), 0, 0)),))
    alone = search.trial(form)
    others = [v for v in part.graph.makers if v is not value and v.aval.shape == value.aval.shape][:3]
    grouped = search.trial(form, dict.fromkeys(part.everywhere(value), (value, *others)))
    assert grouped is not alone
    assert grouped.trade.nbytes != alone.trade.nbytes
    nothing = Choice((), 0, 0)
    first, last = part.at(part.spots[:1]), part.at(part.spots[1:])
    saved_in = lambda p, q: search.trial(Form((region,), ((p, Choice((value,), 0, 0)), (q, nothing)))).trade.nbytes
    assert saved_in(first, last) < saved_in(last, first)


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("nn.Dense(8)(x)", "Dense"),
        ("jax.vmap(self.norm)(x)", "norm"),
        ("jax.vmap(jax.vmap(self.norm, in_axes=1))(x)", "norm"),
        ("partial(jax.jit, static_argnums=0)(f)(x)", ""),
        ("jax.checkpoint(nn.Dense(8))(x)", "Dense"),
        ("jax.vmap(lambda x: x + 1)(x)", ""),
        ("jax.vmap()(x)", ""),
        ("self._norm(x)", ""),
        ("x @ w", ""),
    ],
)
def test_a_value_is_called_by_what_is_called_for_it_within_what_maps_it(expression, name):
    assert _called(expression) == name
