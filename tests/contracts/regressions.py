"""Regressions of gradients: each program before and after, the fact that breaks, and what its cause has to name.

The first eight are of kinds that broke public training code.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from explicit_programs import ABSTRACT
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
bf16 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
only = jax.checkpoint_policies.save_only_these_names
W, X = {"up": f32(16, 64), "down": f32(64, 16)}, f32(32, 16)
HALF = {"up": bf16(16, 64), "down": bf16(64, 16)}, bf16(32, 16)


def placed(shape, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(ABSTRACT, P(*spec)))


@dataclass(frozen=True)
class Regression:
    """Two versions of a program.

    Args:
      name: what happens.
      before, after: the program.
      args: of both.
      fact: the first one that has to break.
      cause: words of the first failure.
    """

    name: str
    before: Any
    after: Any
    args: tuple[Any, ...]
    fact: str
    cause: str


# --- checkpoints, policies and names ----------------------------------------------------------------------------------


def block(x, w):
    gate = x @ w["up"]
    return jax.nn.silu(gate) @ w["down"]


def remat_around_it(w, x):
    return jnp.sum(x + jax.checkpoint(block)(x, w))


def remat_below_a_value(w, x):
    hidden = jax.nn.silu(x @ w["up"])
    return jnp.sum(x + jax.checkpoint(lambda h, w: h @ w["down"])(hidden, w))


def named_block(x, w):
    hidden = checkpoint_name(jnp.tanh(x @ w["up"]), "hidden")
    return jnp.sin(hidden) @ w["down"]


def saves_hidden(w, x):
    return jnp.sum(jax.checkpoint(named_block, policy=only("hidden"))(x, w))


def saves_hiden(w, x):
    return jnp.sum(jax.checkpoint(named_block, policy=only("hiden"))(x, w))


def saves_no_names(w, x):
    return jnp.sum(jax.checkpoint(named_block)(x, w))


def block_without_a_name(x, w):
    hidden = jnp.tanh(x @ w["up"])
    return jnp.sin(hidden) @ w["down"]


def saves_what_has_no_name(w, x):
    return jnp.sum(jax.checkpoint(block_without_a_name, policy=only("hidden"))(x, w))


def no_remat(w, x):
    return jnp.sum(x + block(x, w))


def saves_everything(w, x):
    return jnp.sum(x + jax.checkpoint(block, policy=jax.checkpoint_policies.everything_saveable)(x, w))


def saves_products(w, x):
    return jnp.sum(x + jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)(x, w))


def remat_twice(w, x):
    inner = lambda x, w: jax.checkpoint(block)(jax.checkpoint(block)(x, w), w)
    return jnp.sum(jax.checkpoint(inner)(x, w))


def remat_once(w, x):
    return jnp.sum(jax.checkpoint(block)(jax.checkpoint(block)(x, w), w))


# --- loops ------------------------------------------------------------------------------------------------------------

STACKED = {"up": f32(8, 16, 64), "down": f32(8, 64, 16)}


def scanned(w, x):
    return jnp.sum(lax.scan(lambda x, w: (x + jnp.tanh(x @ w["up"]) @ w["down"], None), x, w)[0])


def unrolled(w, x):
    for i in range(8):
        x = x + jnp.tanh(x @ w["up"][i]) @ w["down"][i]
    return jnp.sum(x)


def remat_of_the_body(w, x):
    return jnp.sum(lax.scan(jax.checkpoint(lambda x, w: (x + block(x, w), None)), x, w)[0])


def remat_of_the_loop(w, x):
    return jnp.sum(jax.checkpoint(lambda w, x: lax.scan(lambda x, w: (x + block(x, w), None), x, w)[0])(w, x))


def a_row_at_a_time(w, x):
    return jnp.sum(lax.map(jax.checkpoint(lambda row: block(row, w)), x))


def all_rows_at_once(w, x):
    return jnp.sum(jax.vmap(lambda row: block(row, w))(x))


# --- dtypes -----------------------------------------------------------------------------------------------------------


def half(w, x):
    return jnp.sum(jnp.tanh(x @ w["up"]) @ w["down"])


def upcast(w, x):
    return jnp.sum(jnp.tanh((x @ w["up"]).astype(jnp.float32)).astype(jnp.bfloat16) @ w["down"])


def remat_in_half(w, x):
    return jnp.sum(jax.checkpoint(block)(x, w))


def remat_of_an_upcast(w, x):
    return jnp.sum(jax.checkpoint(lambda x, w: block(x.astype(jnp.float32), w).astype(x.dtype))(x, w))


def boolean_mask(w, x):
    hidden = x @ w["up"]
    return jnp.sum(jnp.where(x[:, :1] > 0, jnp.tanh(hidden), 0) @ w["down"])


def mask_of_numbers(w, x):
    hidden = x @ w["up"]
    return jnp.sum(jnp.broadcast_to(x[:, :1] > 0, hidden.shape).astype(hidden.dtype) * jnp.tanh(hidden) @ w["down"])


# --- donations --------------------------------------------------------------------------------------------------------


def update(w, x):
    g = jax.grad(no_remat)(w, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, w, g), jnp.sum(x)


def norms(w, x):
    g = jax.grad(no_remat)(w, x)
    return jax.tree.map(lambda w, g: jnp.sum(w - 0.1 * g), w, g), jnp.sum(x)


donating = jax.jit(update, donate_argnums=0)
not_donating = jax.jit(update)
donating_for_nothing = jax.jit(norms, donate_argnums=0)


@jax.jit
def step_in_a_step(w, x):
    w, n = donating(w, x)
    return w, n + 1


# --- collectives ------------------------------------------------------------------------------------------------------

SPLIT = ({"up": placed((16, 64), None, "model"), "down": placed((64, 16), "model", None)}, placed((32, 16), "data"))


def column_then_row(w, x):
    hidden = jnp.tanh(jnp.matmul(x, w["up"], out_sharding=P("data", "model")))
    return jnp.sum(jnp.matmul(hidden, w["down"], out_sharding=P("data", None)))


def gathers_hidden(w, x):
    hidden = jnp.tanh(jnp.matmul(x, w["up"], out_sharding=P("data", "model")))
    hidden = jax.sharding.reshard(hidden, P("data", None))
    return jnp.sum(jnp.matmul(hidden, jax.sharding.reshard(w["down"], P()), out_sharding=P("data", None)))


def sums_in_the_middle(w, x):
    hidden = jnp.tanh(jnp.matmul(x, w["up"], out_sharding=P("data", "model")))
    hidden = hidden / jnp.sum(hidden, 1, keepdims=True)
    return jnp.sum(jnp.matmul(hidden, w["down"], out_sharding=P("data", None)))


# --- where the gradient goes ------------------------------------------------------------------------------------------


def stopped(w, x):
    return jnp.sum(jnp.tanh(x @ lax.stop_gradient(w["up"])) @ w["down"])


def rounded(w, x):
    return jnp.sum(jnp.tanh(x @ jnp.round(w["up"])) @ w["down"])


def reached(w, x):
    return jnp.sum(jnp.tanh(x @ w["up"]) @ w["down"])


# --- work -------------------------------------------------------------------------------------------------------------


def projects_twice(w, x):
    scale = jnp.max(jnp.abs(lax.stop_gradient(x @ w["up"])))
    return jnp.sum(jnp.tanh(x @ w["up"]) @ w["down"]) / scale


def one_layer_more(w, x):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w["up"]) @ w["down"]))


def looks_up(w, ids):
    return jnp.sum(jnp.tanh(w["down"][ids] @ w["up"]))


def multiplies_one_hot(w, ids):
    return jnp.sum(jnp.tanh(jax.nn.one_hot(ids, 64) @ w["down"] @ w["up"]))


def shared_heads(w, x):
    q, k = (jnp.tanh(x @ w["up"]).reshape(32, 4, 16), x @ w["down"].T[:, :16])
    return jnp.sum(jax.nn.softmax(jnp.einsum("qhd,kd->hqk", q, k), -1) ** 2)


def repeated_heads(w, x):
    q, k = (jnp.tanh(x @ w["up"]).reshape(32, 4, 16), x @ w["down"].T[:, :16])
    k = jnp.repeat(k[:, None], 4, 1) * jnp.ones((4, 1))
    return jnp.sum(jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, k), -1) ** 2)


IDS = jax.ShapeDtypeStruct((32,), jnp.int32)

REGRESSIONS = (
    Regression("remat moved below a value", remat_around_it, remat_below_a_value, (W, X), "without_effect", "no bytes"),
    Regression("a policy lists what is not there", saves_hidden, saves_hiden, (W, X), "without_effect", "'hiden'"),
    Regression("upcast", half, upcast, HALF, "dtypes", "astype(jnp.float32)"),
    Regression("a donation is dropped", donating, not_donating, (W, X), "donated", "`w` is not donated"),
    Regression("an all-gather more", column_then_row, gathers_hidden, SPLIT, "collectives", "hidden"),
    Regression("a name is removed", saves_hidden, saves_what_has_no_name, (W, X), "without_effect", "'hidden'"),
    Regression("a scan is unrolled", scanned, unrolled, (STACKED, X), "equations", "jnp.tanh"),
    Regression("a policy saves everything", remat_around_it, saves_everything, (W, X), "without_effect", "`block`"),
    Regression("no remat", remat_around_it, no_remat, (W, X), "residuals", "silu(gate)"),
    Regression("no policy", saves_hidden, saves_no_names, (W, X), "names", "'hidden'"),
    Regression("saves products no more", saves_products, remat_around_it, (W, X), "recomputed", "x @ w"),
    Regression("remat in remat", remat_once, remat_twice, (W, X), "recomputed", "silu(gate)"),
    Regression("remat of the loop", remat_of_the_body, remat_of_the_loop, (STACKED, X), "without_effect", "the peak"),
    Regression("no longer a row at a time", a_row_at_a_time, all_rows_at_once, (W, X), "residuals", "silu(gate)"),
    Regression("a mask of numbers", boolean_mask, mask_of_numbers, (W, X), "residuals", "astype"),
    Regression("donated for nothing", donating, donating_for_nothing, (W, X), "without_effect", "donates `w"),
    Regression("donated inside", donating, step_in_a_step, (W, X), "without_effect", "inside of another"),
    Regression("a sum over devices more", column_then_row, sums_in_the_middle, SPLIT, "collectives", "jnp.sum"),
    Regression("a gradient is stopped", reached, stopped, (W, X), "dead", "stop_gradient"),
    Regression("a gradient ends at rounding", reached, rounded, (W, X), "dead", "jnp.round"),
    Regression("a product is computed twice", reached, projects_twice, (W, X), "work", "x @ w"),
    Regression("one-hot in place of a look-up", looks_up, multiplies_one_hot, (W, IDS), "residuals", "one_hot"),
    Regression("heads are repeated", shared_heads, repeated_heads, (W, X), "residuals", "jnp.repeat"),
    Regression("upcast inside of remat", remat_in_half, remat_of_an_upcast, HALF, "work_in", "silu(gate)"),
    Regression("a layer more", reached, one_layer_more, (W, X), "residuals", "jnp.sin"),
)
