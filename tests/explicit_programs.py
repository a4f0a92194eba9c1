"""Programs on a mesh of explicit axes: what each exchanges is in the types of its values. They need eight devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

AXES = {"data": 2, "model": 4}
MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
ABSTRACT = jax.sharding.AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)


@dataclass(frozen=True)
class Explicit:
    """A function, and the shapes and shardings of its arguments; it is differentiated in the first `n_params`."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[tuple[int, ...], P], ...]
    n_params: int = 1

    @property
    def argnums(self) -> tuple[int, ...]:
        return tuple(range(self.n_params))

    def args(self, mesh: Any = MESH) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.sharding.NamedSharding(mesh, spec))
            for shape, spec in self.shapes
        ]


PROGRAMS: list[Explicit] = []


def program(*shapes: tuple[tuple[int, ...], P], n_params: int = 1) -> Callable[[Any], Any]:
    def enter(function: Any) -> Any:
        PROGRAMS.append(Explicit(function.__name__, function, shapes, n_params))
        return function

    return enter


W, X = (64, 32), (16, 64)
REPLICATED, ROWS, COLUMNS = P(None, None), P("data", None), P(None, "model")


def loss_of(h: Any) -> Any:
    return jnp.sum(jnp.tanh(h) ** 2)


# --- sums over a dimension that is split ------------------------------------------------------------------------------


@program((W, REPLICATED), (X, ROWS))
def data_parallel(w, x):
    return loss_of(x @ w)


@program((W, REPLICATED), (X, ROWS))
def reduced_weight(w, x):
    return loss_of(x @ jax.reshard(w, P(None, None, reduced={"data"})))


@program((W, REPLICATED), (X, ROWS), (X, ROWS))
def microbatches_of_a_reduced_weight(w, x, y):
    w = jax.reshard(w, P(None, None, reduced={"data"}))
    return loss_of(x @ w) + loss_of(y @ w)


@program((W, COLUMNS), ((32, 64), P("model", None)), (X, ROWS), n_params=2)
def tensor_parallel(w, v, x):
    h = jax.nn.relu(x @ w)
    return loss_of(jnp.einsum("bf,fd->bd", h, v, out_sharding=P("data", None)))


@program((W, P("model", None)), (X, P("data", "model")))
def product_left_unreduced(w, x):
    y = jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None, unreduced={"model"}))
    z = jnp.einsum("bd,df->bf", 2.0 * x, w, out_sharding=P("data", None, unreduced={"model"}))
    return loss_of(jax.reshard(y + z, P("data", None)))


@program((W, P("model", None)), (X, P("data", "model")))
def product_scattered(w, x):
    y = jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None, unreduced={"model"}))
    return loss_of(jax.reshard(y, P("data", "model")))


def summed_into(name, out):
    """A product that is left unreduced, and then summed and laid out otherwise at once."""

    def function(w, x):
        y = jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None, unreduced={"model"}))
        return loss_of(jax.reshard(y, out))

    PROGRAMS.append(Explicit(name, function, ((W, P("model", None)), (X, P("data", "model")))))


summed_into("summed_and_gathered", P(None, None))
summed_into("summed_and_moved", P(None, "data"))


@program((W, P("model", None)), (X, P("data", "model")))
def product_with_its_result_split(w, x):
    return loss_of(jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", "model")))


@program((X, P("data", "model")))
def softmax_over_a_split_dimension(x):
    return jnp.sum(jax.nn.softmax(x, axis=1) * jnp.sin(x))


@program(((64,), P(None)), (X, P("data", "model")))
def bias(b, x):
    return loss_of(x + jax.reshard(b, P("model"))[None])


@program(((64,), P("model")), (X, P("data", "model")))
def mean_over_the_batch(b, x):
    return jnp.sum(jnp.sin(jnp.mean(x * b, axis=0)))


# --- other shardings --------------------------------------------------------------------------------------------------


@program((W, P("data", None)), (X, ROWS))
def fully_sharded(w, x):
    return loss_of(x @ jax.reshard(w, P(None, None)))


@program((W, P("data", "model")), ((32, 64), P("model", "data")), (X, ROWS), n_params=2)
def fully_sharded_and_tensor_parallel(w, v, x):
    h = jax.nn.relu(x @ jax.reshard(w, P(None, "model")))
    return loss_of(jnp.einsum("bf,fd->bd", h, jax.reshard(v, P("model", None)), out_sharding=P("data", None)))


@program((X, P("data", None)))
def split_further(x):
    return loss_of(jax.reshard(jnp.sin(x), P("data", "model")))


@program((X, P("model", None)))
def from_one_dimension_to_another(x):
    return loss_of(jax.reshard(jnp.sin(x), P(None, "model")))


@program((X, P(("data", "model"), None)))
def one_of_two_axes_gathered(x):
    return loss_of(jax.reshard(jnp.sin(x), P("data", None)))


@program((X, P(("data", "model"), None)))
def one_of_two_axes_moved(x):
    return loss_of(jax.reshard(jnp.sin(x), P("data", "model")))


@program((X, P("data", "model")))
def both_gathered(x):
    return loss_of(jax.reshard(jnp.sin(x), P(None, None)))


@program(((8, 64, 32), P("model", None, None)), ((8, 16, 64), P(None, ("data", "model"), None)))
def experts(w, x):
    """Tokens go to the devices that have their expert, and back."""
    x = jax.reshard(x, P("model", "data", None))
    h = jnp.einsum("ebd,edf->ebf", x, w)
    return loss_of(jax.reshard(h, P(None, ("data", "model"), None)))


# --- loops, checkpoints, calls ----------------------------------------------------------------------------------------


@program(((3, 64, 64), P(None, "data", None)), (X, ROWS))
def layers_in_a_scan(ws, x):
    def layer(h, w):
        return jnp.tanh(h @ jax.reshard(w, P(None, None))), None

    return jnp.sum(lax.scan(layer, x, ws)[0] ** 2)


@program(((3, 64, 64), P(None, "data", None)), (X, ROWS))
def checkpointed_layers(ws, x):
    @jax.checkpoint
    def layer(h, w):
        return jnp.tanh(h @ jax.reshard(w, P(None, None))), None

    return jnp.sum(lax.scan(layer, x, ws)[0] ** 2)


# --- shard_map --------------------------------------------------------------------------------------------------------

mapped = partial(jax.shard_map, axis_names={"data", "model"})


@program((W, REPLICATED), (X, ROWS))
def written_psum(w, x):
    @partial(mapped, in_specs=(REPLICATED, ROWS), out_specs=P())
    def per_device(w, x):
        return lax.psum(loss_of(x @ w), "data")

    return per_device(w, x)


@program((W, P("data", None)), (X, ROWS))
def written_all_gather(w, x):
    @partial(mapped, in_specs=(P("data", None), ROWS), out_specs=P())
    def per_device(w, x):
        return lax.psum(loss_of(x @ lax.all_gather(w, "data", tiled=True)), "data")

    return per_device(w, x)


@program(((16, 64), P("model", None)))
def written_all_to_all(x):
    @partial(mapped, in_specs=P("model", None), out_specs=P())
    def per_device(x):
        return lax.psum(loss_of(lax.all_to_all(x, "model", 1, 0, tiled=True)), "model")

    return per_device(x)


@program(((16, 64), P("model", None)))
def written_ppermute(x):
    @partial(mapped, in_specs=P("model", None), out_specs=P())
    def per_device(x):
        return lax.psum(loss_of(lax.ppermute(x, "model", [(i, (i + 1) % 4) for i in range(4)])), "model")

    return per_device(x)


@program(((16, 64), P("data", "model")))
def written_reduce_scatter(x):
    @partial(mapped, in_specs=P("data", "model"), out_specs=P())
    def per_device(x):
        return lax.psum(loss_of(lax.psum_scatter(x, "data", tiled=True)), ("data", "model"))

    return per_device(x)


@program((W, REPLICATED), (X, ROWS))
def varying_in_a_scan(w, x):
    @partial(mapped, in_specs=(REPLICATED, ROWS), out_specs=P())
    def per_device(w, x):
        w = lax.pcast(w, "data", to="varying")

        def step(c, row):
            return c + jnp.sum(jnp.tanh(row @ w)), None

        c = lax.pcast(jnp.float32(0), "data", to="varying")
        return lax.psum(lax.scan(step, c, x)[0], "data")

    return per_device(w, x)


@program(((8, 4, 3, 3), P()), ((16, 4, 8, 8), P("data", None, None, None)))
def convolution(w, x):
    return loss_of(lax.conv_general_dilated(x, w, (1, 1), "SAME"))


@program(((128, 64), P(None, "model")), (X, P("data", "model")))
def largest_along_a_split_dimension(w, x):
    return loss_of(x) + jnp.sum(w[0] * jnp.argmax(x, axis=1).sum())


@program((W, P("model", None)), (X, P("data", "model")))
def two_sums(w, x):
    h = jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None))
    return jnp.sum(jnp.max(h, axis=0))


@program((W, REPLICATED), (X, P(("data", "model"), None)))
def batch_over_both_axes(w, x):
    return loss_of(x @ w)


@program((W, COLUMNS), ((64, 16), P(None, "data")))
def result_asked_for_whole(w, x):
    return loss_of(jnp.einsum("db,df->bf", x, w, out_sharding=P(None, None)))


@program((W, REPLICATED), (X, ROWS), (X, ROWS))
def accumulated_unreduced(w, x, y):
    """The gradients of two microbatches are added unreduced, and summed once: the program is a training step."""
    reduced = jax.reshard(w, P(None, None, reduced={"data"}))
    first, second = (jax.grad(lambda w, x: loss_of(x @ w))(reduced, each) for each in (x, y))
    return jnp.sum(w), w - 0.1 * jax.reshard(first + second, P(None, None))


@program((X, P("data", None)))
def in_the_memory_of_the_host(x):
    h = jax.device_put(jnp.sin(x), jax.memory.Space.Host)
    return loss_of(jax.device_put(h, jax.memory.Space.Device))


@program((W, REPLICATED), ((3, 16, 64), P(None, "data", None)))
def accumulated_in_a_scan(w, xs):
    """The same for the microbatches of a scan, whose losses are summed in each iteration."""
    reduced = jax.reshard(w, P(None, None, reduced={"data"}))

    def step(total, x):
        loss, gradient = jax.value_and_grad(lambda w, x: loss_of(x @ w))(reduced, x)
        return total + gradient, loss

    total = jax.reshard(jnp.zeros(W), P(None, None, unreduced={"data"}))
    total, losses = lax.scan(step, total, xs)
    return jnp.sum(losses), w - 0.1 * jax.reshard(total, P(None, None))


@program((W, REPLICATED), (X, ROWS), (X, ROWS))
def random_keys_and_labels(w, x, y):
    """Along dimensions that are not split, whatever is done needs no exchange."""
    keep = jax.random.bernoulli(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), 0.5, (16, 32))
    h = jnp.cumsum(jnp.pad(x, ((0, 0), (1, 1))), 1)[:, 1:-1] @ w + jnp.roll(y, 3, axis=1) @ w
    h = jax.nn.log_softmax(h) + jnp.where(keep[:1], 0.0, 1.0)
    return jnp.sum(jnp.take_along_axis(h, jnp.argmax(h, axis=1)[:, None], axis=1))
