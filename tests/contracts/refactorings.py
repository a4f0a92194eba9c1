"""Refactorings without effect on a gradient: each program before and after, of which no contract may break."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from regressions import (
    HALF,
    SPLIT,
    STACKED,
    W,
    X,
    block,
    column_then_row,
    donating,
    half,
    named_block,
    no_remat,
    only,
    reached,
    remat_around_it,
    remat_of_the_body,
    saves_hidden,
    scanned,
    stopped,
    update,
)

LAYERS = [W, W, W]


def layers(w, x):
    for p in w:
        h = jnp.tanh(x @ p["up"])
        x = x + jnp.sin(h @ p["down"])
    return jnp.sum(x)


def other_variables(weights, inputs):
    for layer in weights:
        hidden = jnp.tanh(inputs @ layer["up"])
        inputs = inputs + jnp.sin(hidden @ layer["down"])
    return jnp.sum(inputs)


def layer_of(x, p):
    h = jnp.tanh(x @ p["up"])
    return x + jnp.sin(h @ p["down"])


def extracted(w, x):
    for p in w:
        x = layer_of(x, p)
    return jnp.sum(x)


def extracted_in_two(w, x):
    hidden = lambda x, p: jnp.tanh(x @ p["up"])
    out = lambda h, p: jnp.sin(h @ p["down"])
    for p in w:
        x = x + out(hidden(x, p), p)
    return jnp.sum(x)


def on_one_line(w, x):
    for p in w:
        x = x + jnp.sin(jnp.tanh(x @ p["up"]) @ p["down"])
    return jnp.sum(x)


def on_more_lines(w, x):
    for p in w:
        product = x @ p["up"]
        h = jnp.tanh(product)
        out = h @ p["down"]
        added = jnp.sin(out)
        x = x + added
    total = jnp.sum(x)
    return total


def by_index(w, x):
    for i in range(len(w)):
        h = jnp.tanh(x @ w[i]["up"])
        x = x + jnp.sin(h @ w[i]["down"])
    return jnp.sum(x)


def recursive(w, x):
    return recursive(w[1:], layer_of(x, w[0])) if w else jnp.sum(x)


def with_words(w: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """The sum of what three layers make of x."""
    assert x.ndim == 2, "a batch of rows"
    for p in w:
        h = jnp.tanh(x @ p["up"])  # (batch, hidden)
        x = x + jnp.sin(h @ p["down"])
    return jnp.sum(x)


def sum_the_other_way(w, x):
    for p in w:
        h = jnp.tanh(x @ p["up"])
        x = jnp.sin(h @ p["down"]) + x
    return x.sum()


def by_functions_of_jnp(w, x):
    for p in w:
        h = jnp.tanh(jnp.matmul(x, p["up"]))
        x = jnp.add(x, jnp.sin(jnp.dot(h, p["down"])))
    return jnp.sum(x)


def by_einsum(w, x):
    for p in w:
        h = jnp.tanh(jnp.einsum("bi,ij->bj", x, p["up"]))
        x = x + jnp.sin(jnp.einsum("bj,ji->bi", h, p["down"]))
    return jnp.sum(x)


@jax.jit
def jitted(w, x):
    return layers(w, x)


def with_jitted_layers(w, x):
    for p in w:
        x = jax.jit(layer_of)(x, p)
    return jnp.sum(x)


def with_scopes(w, x):
    for i, p in enumerate(w):
        with jax.named_scope(f"layer_{i}"):
            x = layer_of(x, p)
    return jnp.sum(x)


class Layer(NamedTuple):
    up: jax.Array
    down: jax.Array

    def __call__(self, x):
        return x + jnp.sin(jnp.tanh(x @ self.up) @ self.down)


def with_objects(w, x):
    for p in w:
        x = Layer(**p)(x)
    return jnp.sum(x)


def with_what_nobody_reads(w, x):
    for p in w:
        h = jnp.tanh(x @ p["up"])
        _ = jnp.cos(h)
        x = x + jnp.sin(h @ p["down"])
    return jnp.sum(x)


def reduced(w, x):
    from functools import reduce

    return jnp.sum(reduce(layer_of, w, x))


# --- independent parts ------------------------------------------------------------------------------------------------


def two_branches(w, x):
    a = jnp.tanh(x @ w["up"])
    b = jnp.sin(x @ w["down"].T)
    return jnp.sum(a * b)


def two_branches_reordered(w, x):
    b = jnp.sin(x @ w["down"].T)
    a = jnp.tanh(x @ w["up"])
    return jnp.sum(a * b)


# --- checkpoints, scans, steps ----------------------------------------------------------------------------------------


@jax.checkpoint
def decorated(x, w):
    gate = x @ w["up"]
    return jax.nn.silu(gate) @ w["down"]


def with_a_decorator(w, x):
    return jnp.sum(x + decorated(x, w))


def remat_of_a_closure(w, x):
    @jax.checkpoint
    def inner(y):
        return block(y, w)

    return jnp.sum(x + inner(x))


def mlp(inputs, weights):
    activation = checkpoint_name(jnp.tanh(inputs @ weights["up"]), "hidden")
    return jnp.sin(activation) @ weights["down"]


def saves_hidden_of_mlp(w, x):
    policy = only("hidden")
    apply = jax.checkpoint(mlp, policy=policy)
    return jnp.sum(apply(x, w))


def saves_hidden_and_lists_it_in_a_partial(w, x):
    remat = partial(jax.checkpoint, policy=only("hidden"))
    return jnp.sum(remat(named_block)(x, w))


def scanned_by_a_function(w, x):
    def body(carry, layer):
        hidden = jnp.tanh(carry @ layer["up"])
        return carry + hidden @ layer["down"], None

    out, _ = lax.scan(body, x, w)
    return jnp.sum(out)


def scanned_over_numbers(w, x):
    return jnp.sum(lax.scan(lambda x, w: (x + jnp.tanh(x @ w["up"]) @ w["down"], 0.0), x, w, length=8)[0])


def remat_of_a_named_body(w, x):
    @jax.checkpoint
    def body(carry, layer):
        return carry + block(carry, layer), None

    return jnp.sum(lax.scan(body, x, w)[0])


def train_step(params, batch):
    gradients = jax.grad(no_remat)(params, batch)
    new = {name: params[name] - 0.1 * gradients[name] for name in params}
    return new, jnp.sum(batch)


donating_by_name = jax.jit(train_step, donate_argnames="params")


def half_by_steps(w, x):
    gate = x @ w["up"]
    gate = jnp.tanh(gate)
    return (gate @ w["down"]).sum()


def split_by_names(w, x):
    from jax.sharding import PartitionSpec

    rows, columns = "data", "model"
    h = jnp.matmul(x, w["up"], out_sharding=PartitionSpec(rows, columns))
    return jnp.sum(jnp.matmul(jnp.tanh(h), w["down"], out_sharding=PartitionSpec(rows, None)))


def stopped_before(params, x):
    up = lax.stop_gradient(params["up"])
    return jnp.sum(jnp.tanh(x @ up) @ params["down"])


@dataclass(frozen=True)
class Model:
    scale: float

    def loss(self, w, x):
        return jnp.sum(self.hidden(w, x) @ w["down"])

    def hidden(self, w, x):
        return jnp.tanh(x @ w["up"])


REFACTORINGS = {
    "variables and arguments are renamed": (layers, other_variables, (LAYERS, X)),
    "a function is extracted": (layers, extracted, (LAYERS, X)),
    "a function is inlined": (extracted, layers, (LAYERS, X)),
    "two functions are extracted": (layers, extracted_in_two, (LAYERS, X)),
    "statements become one": (layers, on_one_line, (LAYERS, X)),
    "a statement becomes several": (on_one_line, on_more_lines, (LAYERS, X)),
    "several statements become one": (on_more_lines, on_one_line, (LAYERS, X)),
    "a loop over numbers": (layers, by_index, (LAYERS, X)),
    "recursion": (layers, recursive, (LAYERS, X)),
    "a reduction": (layers, reduced, (LAYERS, X)),
    "annotations, comments and assertions": (layers, with_words, (LAYERS, X)),
    "operands change places": (layers, sum_the_other_way, (LAYERS, X)),
    "functions in place of operators": (layers, by_functions_of_jnp, (LAYERS, X)),
    "einsum in place of products": (layers, by_einsum, (LAYERS, X)),
    "jit around it": (layers, jitted, (LAYERS, X)),
    "jit around layers": (layers, with_jitted_layers, (LAYERS, X)),
    "named scopes": (layers, with_scopes, (LAYERS, X)),
    "objects": (layers, with_objects, (LAYERS, X)),
    "something that nobody reads": (layers, with_what_nobody_reads, (LAYERS, X)),
    "statements are reordered": (two_branches, two_branches_reordered, (W, X)),
    "a checkpoint becomes a decorator": (remat_around_it, with_a_decorator, (W, X)),
    "a checkpoint of a closure": (remat_around_it, remat_of_a_closure, (W, X)),
    "a checkpointed function is renamed": (saves_hidden, saves_hidden_of_mlp, (W, X)),
    "a policy in a partial": (saves_hidden, saves_hidden_and_lists_it_in_a_partial, (W, X)),
    "the body of a scan gets a name": (scanned, scanned_by_a_function, (STACKED, X)),
    "a scan with results that nobody reads": (scanned, scanned_over_numbers, (STACKED, X)),
    "a checkpointed body gets a name": (remat_of_the_body, remat_of_a_named_body, (STACKED, X)),
    "a donated argument is renamed": (donating, donating_by_name, (W, X)),
    "a step is written without jax.tree": (update, train_step, (W, X)),
    "a variable is assigned twice": (half, half_by_steps, HALF),
    "axes in variables": (column_then_row, split_by_names, SPLIT),
    "an argument with a stopped gradient is renamed": (stopped, stopped_before, (W, X)),
    "methods": (reached, Model(1.0).loss, (W, X)),
}
