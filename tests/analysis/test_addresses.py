"""What an address means: expressions, names, modules, lines, and what is said where it means nothing."""

import ast
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz
from benchmarks.addresses import EDITS, MODELS, measure
from jaxviz.analysis.addressed import addressed_values
from jaxviz.analysis.addresses import AddressError, at, resolve
from jaxviz.analysis.written import address_of

eqx = pytest.importorskip("equinox", reason="its modules are among those that addresses name")
nn = pytest.importorskip("flax.linen", reason="its modules are among those that addresses name")

X = jnp.ones((3, 4))
SQUARE = jnp.ones((4, 4))


def attention(q, k, v):
    scores = jax.nn.softmax(q @ k.T / 2.0, axis=-1)
    return scores @ v


FIRST = attention.__code__.co_firstlineno


def loss(x):
    h, c = jnp.sin(x), jnp.cos(x)
    h = attention(h, c, x) + attention(x, h, c)
    return jnp.sum(jnp.where(h > 0, h, 0.1 * h))


def texts(program, text):
    return [v.text for v in resolve(program, at(text)).values]


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("jnp.sin(x)", ["jnp.sin(x)"]),
        ("sin( x )", ["jnp.sin(x)"]),
        ("c", ["jnp.cos(x)"]),
        ("attention › softmax(q @ k.T / 2.0) #1", ["jax.nn.softmax(q @ k.T / 2.0, axis=-1)"]),
        ("jax.nn.softmax(q @ k.T / 2.0, axis=-1) #2", ["jax.nn.softmax(q @ k.T / 2.0, axis=-1)"]),
        ("softmax(_ @ _.T / 2.0) #*", ["jax.nn.softmax(q @ k.T / 2.0, axis=-1)"] * 2),
        ("attention:scores #*/2", ["jax.nn.softmax(q @ k.T / 2.0, axis=-1)"] * 2),
        (f"test_addresses.py:{FIRST + 2} #*", ["scores @ v"] * 2),
        (f"test_addresses.py:{FIRST + 10}", ["attention(h, c, x) + attention(x, h, c)"]),
        ("h > 0", ["h > 0"]),
    ],
)
def test_forms_of_addresses(text, means):
    assert texts(jaxviz.trace(loss)(X), text) == means


@pytest.mark.parametrize(
    "text",
    [
        "softmax(q @ k.T)",
        "softmax(q @ k.T / 3.0)",
        "scores",
        "attention:scores #*/3",
        "loss › scores",
        "x",
        "scores #3",
    ],
)
def test_what_means_nothing_or_several(text):
    with pytest.raises(AddressError):
        resolve(jaxviz.trace(loss)(X), at(text))


def test_an_address_is_printed_so_that_it_can_be_pasted():
    def one(x):
        return x["a"] * 2

    def two(x):
        return jnp.sin(x["a"] * 2), x["a"]

    def both(x):
        y = two({"a": x})
        return one({"a": x}) + y[0] * y[1]

    program = jaxviz.trace(both)(X)
    with pytest.raises(AddressError) as e:
        resolve(program, at("x['a'] * 2"))
    written = re.findall(r'"(?:x|\w+ › x)\[.*?"', str(e.value).partition("Write")[2])
    assert [len(resolve(program, at(ast.literal_eval(text))).values) for text in written] == [1, 1, 2]
    with pytest.raises(AddressError, match=re.escape("as in \"two({'a': x})[0]\"")):
        resolve(program, at("two({'a': x})"))


def test_what_is_said_of_several_values():
    with pytest.raises(AddressError, match=r"'h #1' for the first, or 'h #\*' for all:\n  #1  .*h = jnp.sin\(x\)"):
        resolve(jaxviz.trace(loss)(X), at("h"))
    with pytest.raises(AddressError, match=r"for the first, name the function, as in 'apart › a', or"):
        resolve(jaxviz.trace(apart)(X), at("a"))


def apart(x):
    def inside(x):
        a = jnp.sin(x)
        return a * x

    a = jnp.cos(x)
    return jnp.sum(a + inside(x))


def layer(h, w):
    h = jax.nn.softmax(h @ w)
    return h, None


def in_a_batched_loop(ws, x):
    return jnp.sum(jax.vmap(lambda h: lax.scan(layer, h, ws)[0])(x) ** 2)


def test_an_expression_is_one_value_in_a_loop_that_vmap_has_batched():
    (meant,) = resolve(jaxviz.trace(in_a_batched_loop)(SQUARE[None], X), at("softmax(h @ w)")).values
    assert meant.aval.shape == X.shape
    assert meant.assigned == "h"


def test_of_several_values_of_a_training_step_it_is_said_what_to_give_instead():
    step = lambda ws, x: ws - jax.grad(in_a_batched_loop)(ws, x)
    with pytest.raises(AddressError, match="give the function that it differentiates"):
        resolve(jaxviz.trace(step)(SQUARE[None], X), at("softmax(h @ w)"))


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.relu(nn.Dense(8)(x))
        return nn.Dense(4)(h)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        for i in range(2):
            x = x + MLP(name=f"blocks_{i}")(x)
        return nn.LayerNorm()(x)


class Block(eqx.Module):
    mlp: eqx.nn.MLP
    norm: eqx.nn.LayerNorm

    def __call__(self, x):
        return x + self.mlp(self.norm(x))


def test_modules_of_libraries():
    net = Net()
    params = net.init(jax.random.key(0), X)
    program = jaxviz.trace(lambda p, x: net.apply(p, x).sum())(params, X)
    assert texts(program, "blocks.*:out") == ["nn.Dense(4)(h)"] * 2
    assert texts(program, "blocks_1:out") == texts(program, "blocks_1/Dense_1:out") == ["nn.Dense(4)(h)"]
    assert texts(program, "blocks_0 › h") == ["nn.relu(nn.Dense(8)(x))"]
    with pytest.raises(AddressError, match=r"Net/blocks_1:out"):
        texts(program, "blocks_2:out")

    key = jax.random.key(0)
    block = Block(eqx.nn.MLP(4, 4, 8, 1, key=key), eqx.nn.LayerNorm(4))
    program = jaxviz.trace(lambda x: jax.vmap(block)(x).sum())(X)
    assert texts(program, "Block/mlp:out") == ["self.mlp(self.norm(x))"]
    assert texts(program, "norm:out") == ["self.norm(x)"]


def in_a_scan(x):
    return lax.scan(lambda h, _: (jnp.tanh(h) * 0.5, None), x, None, length=4)[0]


def in_python(x):
    h = x
    for _ in range(4):
        h = jnp.tanh(h) * 0.5
    return h


def test_a_loop_in_python_that_becomes_a_scan_and_back():
    scanned, unrolled = jaxviz.trace(in_a_scan)(X), jaxviz.trace(in_python)(X)
    (value,) = resolve(scanned, at("jnp.tanh(h)")).values
    assert len(resolve(unrolled, address_of(scanned, value)).values) == 4
    third = resolve(unrolled, at("jnp.tanh(h) #3")).values[0]
    meant = resolve(scanned, address_of(unrolled, third))
    assert (meant.values[0].text, meant.iteration) == ("jnp.tanh(h)", 2)


def before(x, w):
    y = x @ w
    return jnp.tanh(y) + jnp.tanh(x)


def renamed(x, weights):
    out = x @ weights
    return jnp.tanh(out) + jnp.tanh(x)


def one_more(x, w):
    z = x @ w
    y = jnp.sin(z) @ w
    return jnp.tanh(y) + jnp.tanh(z)


def other_number(x, w):
    y = jnp.sin(x) @ w
    return jnp.tanh(y) + jnp.tanh(x @ w * 2.0)


def test_an_address_that_was_written_down_survives_an_edit_or_says_that_it_does_not():
    old = jaxviz.trace(before)(X, SQUARE)
    written = address_of(old, resolve(old, at("y")).values[0])
    assert [v.text for v in resolve(jaxviz.trace(renamed)(X, SQUARE), written).values] == ["x @ weights"]
    assert [v.assigned for v in resolve(jaxviz.trace(one_more)(X, SQUARE), written).values] == ["z"]
    with pytest.raises(AddressError, match=r"It was test_addresses.py:\d+  y = x @ w in before, f32\[3,4\]"):
        resolve(jaxviz.trace(lambda x, w: jnp.tanh(x))(X, SQUARE), written)


def exchanged(w, x):
    y = x @ w
    return jnp.tanh(y) + jnp.tanh(x)


def test_arguments_that_may_have_been_exchanged_or_renamed_are_ambiguous():
    old = jaxviz.trace(before)(SQUARE, SQUARE)
    written = address_of(old, resolve(old, at("jnp.tanh(x)")).values[0])
    both = lambda w, x: jnp.tanh(w) + jnp.tanh(x)
    with pytest.raises(AddressError, match=r"may mean one of these(.|\n)*tanh\(x\)(.|\n)*tanh\(w\)"):
        resolve(jaxviz.trace(both)(SQUARE, SQUARE), written)
    assert resolve(jaxviz.trace(exchanged)(SQUARE, SQUARE), written).values[0].text == "jnp.tanh(x)"


def two_rows(h, _):
    h = jnp.tanh(h)
    h = jnp.tanh(h)
    return h, None


def test_every_second_value_of_a_loop_in_python_is_one_of_a_scan():
    def in_python(x):
        for _ in range(3):
            x, _ = two_rows(x, None)
        return x

    scanned = jaxviz.trace(lambda x: lax.scan(two_rows, x, None, length=3)[0])(X)
    unrolled = jaxviz.trace(in_python)(X)
    first, second = resolve(scanned, at("jnp.tanh(h) #*")).values
    tanhs = resolve(unrolled, at("jnp.tanh(h) #*")).values
    assert resolve(unrolled, address_of(scanned, second)).values == tanhs[1::2]
    assert resolve(unrolled, at("jnp.tanh(h) #1:5:2/6")).values == tanhs[::2]
    meant = resolve(scanned, address_of(unrolled, tanhs[4]))
    assert (meant.values, meant.iteration) == ((first,), 2)


SHORT = (
    "rename all locals", "wrap functions in jax.jit", "exchange the names of two locals", "scan over a loop in Python",
    "insert a look-alike before each expression", "delete a look-alike before each expression",
    "compute the same for a log", "change constants, and call functions for other arguments before",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("models", "edits"),
    [
        (MODELS[:1], SHORT),
        pytest.param(MODELS, tuple(EDITS), marks=pytest.mark.slow(sweep=True), id="all"),
    ],
)
def test_addresses_mean_the_same_after_edits_and_nothing_else(models, edits):
    counts = measure(models, edits)
    assert counts.silent == []
    assert counts.share_same >= 0.95


def test_values_of_custom_rules_and_inner_gradients_have_no_address():
    def f(x):
        return jax.nn.relu(x) + jax.grad(lambda y: jnp.sum(y**3))(x)

    found = [v.text for v in addressed_values(jaxviz.trace(f)(X))]
    assert found == ["jax.nn.relu(x)", "jax.nn.relu(x) + jax.grad(lambda y: jnp.sum(y**3))(x)"]
