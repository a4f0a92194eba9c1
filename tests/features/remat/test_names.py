"""Saved values have names, lines and functions that readers of the source recognise."""

import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.derivation import derive
from jaxviz.features.remat.choices import Choice
from jaxviz.features.remat.forms import Form
from jaxviz.features.remat.names import _called, saved_by
from jaxviz.features.remat.search import Search
from jaxviz.ir import compat

pytestmark = pytest.mark.slow

W = jnp.linspace(-0.5, 0.5, 256).reshape(16, 16)
X = jnp.ones((32, 16))
ATTENTION = """
import jax
import jax.numpy as jnp

def attention(w, x):
    probs = jax.nn.softmax(x @ w @ x.T)
    return probs @ x

def layer(w, x):
    x = x + attention(w, x)
    return x + jnp.sin(jnp.exp(x @ w))
"""
LOSS = """
def loss(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.sum(x**2)
"""
MODEL = ATTENTION + LOSS


def test_names_are_words_of_the_users_source_with_apply_too(module):
    own = module(MODEL)
    args = [W * 0.1] * 8, X
    plan = jaxviz.plan_remat(own.loss, *args, work="20%")
    program = jaxviz.trace(plan.apply(own.loss))(*args)
    names = {e.params["name"] for _, e in program.walk() if e.primitive is compat.name_p}
    assert names == {s.name for s in plan.saved}
    assert names & {"attention_probs", "attention_product", "layer_product", "layer_x"}
    assert all(name.startswith(("attention_", "layer_")) for name in names)


@pytest.mark.slow(sweep=True)
def test_names_are_other_ones_than_those_that_are_there(module):
    named = MODEL.replace("x @ w))", 'checkpoint_name(x @ w, "layer_product")))')
    own = module(f"from jax.ad_checkpoint import checkpoint_name\n{named}")
    plan = jaxviz.plan_remat(own.loss, [W * 0.1] * 8, X, work="20%")
    assert plan.saved
    assert "layer_product" not in {s.name for s in plan.saved}


ACT = "\n@jax.jit\ndef act(x):\n    return jnp.sin(x) * jnp.tanh(x) * 2.0\n"
SCANNED = """import jax
import jax.numpy as jnp
from library import act
def loss(ws, x):
    def body(x, w):
        return x + act(x @ w) @ w, None
    return jnp.sum(jax.lax.scan(body, x, ws)[0] ** 2)
"""


def test_a_value_in_the_body_of_a_scan_has_the_users_line(module):
    """Also in a function jitted by a library that has been called elsewhere before."""
    first = module("act = library.act\ndef f(x):\n    return act(x)\n", ACT)
    first.f(jnp.ones((32, 16)))
    own = module(SCANNED.replace("from library", f"from {first.library.__name__}"))
    search = Search(derive(own.loss, jnp.stack([W] * 4), X), False)
    (region,) = (r for r in search.regions if r.is_body)
    (part,) = search.parts(region)
    values = [v for v, e in part.graph.makers.items() if e.primitive.name in ("mul", "dot_general")]
    saved = saved_by(search, Form((region,), ((part, Choice(tuple(values), 0, 0)),)))
    assert {str(s.location) for s in saved} == {f"{own.__file__}:6"}
    product = "jnp.sin(x) * jnp.tanh(x) in act(x @ w)"
    assert {s.label for s in saved} == {"x @ w", product, "act(x @ w)", "act(x @ w) @ w"}


def test_a_value_in_the_body_of_a_librarys_scan_has_the_users_line(module):
    """In a loop, JAX records no line outside its body."""
    body = "    body = lambda x, w: (x + jnp.sin(x @ w) * jnp.tanh(x), None)\n"
    own = module(
        "import jax.numpy as jnp\nrun = library.run\ndef loss(ws, x):\n    return jnp.sum(run(ws, x))\n",
        f"\ndef run(ws, x):\n{body}    return lax.scan(body, x, ws)[0]\n",
    )
    plan = jaxviz.plan_remat(own.loss, jnp.stack([W] * 8), X, work="1%")
    assert plan.saved
    assert {str(s.location) for s in plan.saved} == {f"{own.__file__}:5"}
    assert all(s.label.endswith(" in run(ws, x)") for s in plan.saved)


WRAPPED = "\ndef wrapped(f, *args):\n    return f(*args)\n"


@pytest.mark.parametrize(
    ("source", "library"),
    [
        (MODEL.replace("x = layer(w, x)", "x = library.wrapped(layer, w, x)"), WRAPPED),
        ("import jax.numpy as jnp\n" + LOSS.replace("layer(", "library.call("),
         f"{ATTENTION}{WRAPPED}\ndef call(w, x):\n    return wrapped(layer, w, x)\n"),
    ],
    ids=["the user's function", "a library's function"],
)  # fmt: skip
def test_a_wrapper_of_a_library_is_not_what_is_meant(module, source, library):
    own = module(source, library)
    names = {r.name for r in Search(derive(own.loss, [W] * 3, X), False).regions}
    assert "layer" in names
    assert names.isdisjoint(("wrapped", "call"))


def test_trials_of_other_groups_or_other_spots_are_other_trials(module):
    search = Search(derive(module(MODEL).loss, [W] * 4, X), False)
    region = next(r for r in search.regions if r.name == "layer")
    (part,) = search.parts(region)
    value, *_ = part.choices[-1].saved
    saving, nothing = Choice((value,), 0, 0), Choice((), 0, 0)
    form = Form((region,), ((part, saving),))
    alone = search.trial(form)
    others = [v for v in part.graph.makers if v is not value and v.aval.shape == value.aval.shape][:3]
    together = search.trial(form, dict.fromkeys(part.everywhere(value), (value, *others)))
    assert together.trade.nbytes != alone.trade.nbytes
    first, last = part.at(part.spots[:1]), part.at(part.spots[1:])
    saved_in = lambda p, q: search.trial(Form((region,), ((p, saving), (q, nothing)))).trade.nbytes
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
