"""Programs that run on several devices: each transform is compared with jax on them, with eight host devices."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import Case

ALL = np.array(jax.devices()[:8])
LINE = Mesh(ALL, ("i",))
GRID = Mesh(ALL.reshape(2, 4), ("i", "j"))
EXPLICIT = Mesh(ALL.reshape(2, 4), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)

X = jnp.linspace(0.1, 1.6, 16)
M = jnp.linspace(0.1, 1.6, 32).reshape(8, 4)
W = jnp.linspace(-0.5, 0.5, 12).reshape(4, 3)
B = jnp.array([0.1, -0.2, 0.3])
S = jnp.float32(1.5)

CASES: list[Case] = []

BODIES = []
"""What `both` registers: (name, body, in_specs, mesh, check_vma, args), to be used inside a shard_map."""


def case(*args, **options):
    """Adds a function to the table, to be called with these arguments."""

    def enter(fun):
        CASES.append(Case(fun.__name__, fun, args, **options))
        return fun

    return enter


explicit = partial(case, where=partial(jax.set_mesh, EXPLICIT))


def mapped(in_specs, out_specs, mesh=LINE, **options):
    return partial(jax.shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def both(name, in_specs, out_specs, *args, mesh=LINE, **options):
    """Adds a body twice: with types that track how values vary over devices, and without."""

    def enter(body):
        for check_vma in (True, False):
            fun = mapped(in_specs, out_specs, mesh, check_vma=check_vma)(body)
            name_of_this = name if check_vma else f"{name}_untyped"
            CASES.append(Case(name_of_this, fun, args, **options))
            BODIES.append((name_of_this, body, in_specs, mesh, check_vma, args))
        return body

    return enter


# --- shard_map --------------------------------------------------------------------------------------------------------

both("elementwise", P("i"), P("i"), X)(lambda x: jnp.sin(x) * 2.0)
both("numbers", P("i"), P("i"), X)(lambda x: jnp.sin(x) * 3.0 * x + jnp.exp(x) / 7.0)
both("two_axes", P("j", "i"), P("j", "i"), M, mesh=GRID)(lambda x: jnp.tanh(x) * x)
both("one_of_two_axes", (P("j"), P()), P("j"), M, W, mesh=GRID)(lambda x, w: jnp.tanh(x @ w))
both("replicated_argument", (P("i"), P()), P("i"), X, S)(lambda x, s: jnp.sin(x * s) * s)
both("whole_argument", (P("i"), P(), P()), P("i"), M, W, B)(lambda x, w, b: jnp.tanh(x @ w + b))
both("replicated_result", P("i"), P(), X)(lambda x: lax.psum(jnp.sum(jnp.sin(x)) ** 2, "i"))
both("result_is_a_residual", P("i"), (P("i"), P("i")), X)(lambda x: (jnp.exp(x), jnp.sin(x) * jnp.exp(x)))
both("result_is_an_argument", (P("i"), P()), (P("i"), P(), P("i")), X, S)(lambda x, s: (x, s, x * s))
both("argument_twice", (P("i"), P("i")), P("i"), X, X)(lambda x, y: x * y + jnp.cos(x))
both("scalar_on_each_device", P("i"), P("i"), X)(lambda x: x * jnp.sin(jnp.sum(x)) ** 2)
both("integers", (P("i"), P("i")), P("i"), X, jnp.arange(16))(lambda x, n: jnp.sin(x) * n)
both("unread_argument", (P("i"), P("i")), P("i"), X, X)(lambda x, _: jnp.sin(x))
both("psum", P("i"), P("i"), X)(lambda x: jnp.sin(x) * lax.psum(jnp.sum(x), "i"))
both("psum_of_two_axes", P("i", "j"), P("i", "j"), M, mesh=GRID)(
    lambda x: jnp.sin(x) / lax.psum(jnp.sum(x), ("i", "j"))
)
both("pmean", P("i"), P("i"), X)(lambda x: (x - lax.pmean(x, "i")) ** 2)
both("psum_of_one", (P("i"), P()), P("i"), X, S)(lambda x, s: jnp.sin(x) * s / lax.psum(1, "i"))
both("all_gather", P("i"), P("i"), X)(lambda x: jnp.sin(x) * jnp.sum(lax.all_gather(x, "i") ** 2))
both("all_gather_tiled", P("i"), P("i"), X)(lambda x: x * jnp.sum(jnp.cos(lax.all_gather(x, "i", tiled=True))))
both("ppermute", P("i"), P("i"), X)(lambda x: x * lax.ppermute(jnp.sin(x), "i", [(k, (k + 1) % 8) for k in range(8)]))
both("all_to_all", P(None, "i"), P("i", None), jnp.tile(M, 2).reshape(8, 8))(
    lambda x: lax.all_to_all(jnp.sin(x), "i", 0, 1, tiled=True)
)
both("psum_scatter", P(None, "i"), P("i"), jnp.tile(M, 2).reshape(8, 8))(
    lambda x: lax.psum_scatter(jnp.sin(x[:, 0]) * x[:, 0], "i", tiled=True)
)
both("axis_index", (P("i"), P()), P("i"), X, S)(lambda x, s: jnp.sin(x) * s * lax.axis_index("i"))
both("axis_size", P("i"), P("i"), X)(lambda x: jnp.sin(x) * lax.axis_size("i"))


@both("jit_inside", (P("i"), P()), P("i"), X, S)
def jit_inside(x, s):
    return jax.jit(lambda x, s: jnp.sin(x * s) * 2.0)(x, s) * s


@both("scan_inside", (P("i"), P()), P("i"), X, S)
def scan_inside(x, s):
    return lax.scan(lambda c, k: (jnp.sin(c) * s + k, None), x, jnp.arange(3.0))[0]


@both("cond_inside", (P("i"), P()), P("i"), X, S)
def cond_inside(x, s):
    return lax.cond(s > 1.0, lambda x: jnp.sin(x) * s, lambda x: x * x, x)


@both("checkpoint_inside", (P("i"), P()), P("i"), X, S)
def checkpoint_inside(x, s):
    return jax.checkpoint(lambda x, s: jnp.sin(jnp.sin(x * s)) * lax.psum(x, "i"))(x, s)


@both("policy_inside", P("i"), P("i"), X)
def policy_inside(x):
    saves = jax.checkpoint_policies.save_only_these_names("a")
    return jax.checkpoint(lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "a")) * x, policy=saves)(x)


@both("while_inside", P("i"), P("i"), X, vmaps=False)
def while_inside(x):
    n = lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
    return jnp.sin(x) * n


@jax.custom_vjp
def doubled(x):
    return jnp.sin(x)


doubled.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2.0 * jnp.cos(x) * ct,))


@both("custom_vjp_inside", P("i"), P("i"), X, forward=False)
def custom_vjp_inside(x):
    return doubled(x) * x


@both("custom_jvp_inside", P("i"), P("i"), X)
def custom_jvp_inside(x):
    return jax.nn.relu(x - 0.5) * jax.nn.silu(x)


@case(M, W)
def only_one_axis_manual(x, w):
    body = lambda x, w: jnp.tanh(x @ w) * lax.axis_index("i")
    return jax.jit(jax.shard_map(body, mesh=GRID, in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"}))(x, w)


@case(M, W)
def one_in_another(x, w):
    inner = jax.shard_map(
        lambda x, w: jnp.sin(x @ w), in_specs=(P("j"), P()), out_specs=P("j"), axis_names={"j"}, check_vma=False
    )
    outer = lambda x, w: inner(x, w) * 2.0  # without varying types, since JAX cannot lower its gradient with them
    specs = {"in_specs": (P("i"), P()), "out_specs": P("i"), "axis_names": {"i"}, "check_vma": False}
    return jax.jit(jax.shard_map(outer, mesh=GRID, **specs))(x, w)


@case(X, S)
def closed_over(x, s):
    return mapped(P("i"), P("i"))(lambda x: jnp.sin(x * s) * jnp.arange(2.0))(x)


@case(M, W, B)
def data_parallel_loss(x, w, b):
    def loss(x, w, b):
        return lax.pmean(jnp.mean(jnp.tanh(x @ w + b) ** 2), "i")

    return mapped((P("i"), P(), P()), P())(loss)(x, w, b)


@case(M, W)
def tensor_parallel_layer(x, w):
    def layer(x, w):
        return lax.psum(jnp.tanh(x) @ w, "j")

    return mapped((P("i", "j"), P("j")), P("i"), GRID)(layer)(x, w)


@case(M)
def jit_of_shard_map(x):
    return jax.jit(mapped(P("i"), P("i"))(lambda x: jnp.sin(x) * 2.0 * x))(x).sum()


@case(M, W)
def shard_map_between(x, w):
    y = mapped((P("i"), P()), P("i"))(lambda x, w: jnp.tanh(x @ w))(jnp.sin(x), w)
    return jnp.sum(jnp.exp(y) * y)


# --- pmap -------------------------------------------------------------------------------------------------------------


@case(M)
def pmap(x):
    return jax.pmap(lambda x: jnp.sin(x) * 2.0 * lax.psum(x, "i"), axis_name="i")(x)


@case(M, W)
def pmap_in_axes(x, w):
    return jax.pmap(lambda x, w: jnp.tanh(x @ w), in_axes=(0, None))(x, w)


@case(jnp.moveaxis(M, 0, 1), {"w": W, "b": B})
def pmap_trees_and_axes(x, p):
    def f(x, p):
        y = jnp.tanh(x @ p["w"] + p["b"])
        return {"y": y, "z": jnp.sum(y) * x}

    return jax.pmap(f, in_axes=(1, None), out_axes={"y": 1, "z": 0}, axis_name="i")(x, p)


@case(M)
def pmap_of_half_the_devices(x):
    return jax.pmap(lambda x: jnp.sin(x) * x, devices=jax.devices()[:4])(x[:4])


@case(M)
def pmap_static(x):
    return jax.pmap(lambda n, x: jnp.sin(x) * n, static_broadcasted_argnums=0)(3, x)


@case(M, W)
def pmap_loss(x, w):
    return jax.pmap(lambda x, w: lax.pmean(jnp.sum((x @ w) ** 2), "i"), axis_name="i", in_axes=(0, None))(x, w).sum()


@case(M)
def pmap_with_collectives(x):
    def f(x):
        y = lax.all_gather(jnp.sin(x), "i")
        return lax.ppermute(x, "i", [(k, (k + 3) % 8) for k in range(8)]) * y.sum() + lax.axis_index("i")

    return jax.pmap(f, axis_name="i")(x)


# --- jit with shardings -----------------------------------------------------------------------------------------------


@case(M, W)
def jit_shardings(x, w):
    rows, whole = NamedSharding(GRID, P("i")), NamedSharding(GRID, P())
    f = jax.jit(lambda x, w: (jnp.tanh(x @ w), x), in_shardings=(rows, whole), out_shardings=(rows, rows))
    return f(x, w)


@case(M, W)
def constrained(x, w):
    y = lax.with_sharding_constraint(jnp.sin(x), NamedSharding(GRID, P("i", "j")))
    return jnp.sum(jnp.tanh(y @ w))


@case(jax.device_put(M, NamedSharding(GRID, P("i", "j"))), jax.device_put(W, NamedSharding(GRID, P("j"))))
def jitted_in_a_library(x, w):
    return jax.nn.relu(jnp.tanh(x) @ w) * jnp.sum(x)


@explicit(jax.device_put(M, NamedSharding(EXPLICIT, P("i", "j"))), jax.device_put(W, NamedSharding(EXPLICIT, P())))
def explicit_axes(x, w):
    return jnp.sin(x) * x, jnp.sum(w * w, 0)


@explicit(jax.device_put(M, NamedSharding(EXPLICIT, P("i", None))), jax.device_put(W, NamedSharding(EXPLICIT, P())))
def explicit_axes_in_a_jitted_function(x, w):
    return jax.nn.relu(jnp.tanh(x) @ w)


@explicit(jax.device_put(M, NamedSharding(EXPLICIT, P("i", None))), jax.device_put(W, NamedSharding(EXPLICIT, P())))
def explicit_axes_in_shard_map(x, w):
    return jax.shard_map(lambda x, w: jnp.tanh(x @ w), mesh=EXPLICIT, in_specs=(P("i"), P()), out_specs=P("i"))(x, w)


@explicit(jax.device_put(M, NamedSharding(EXPLICIT, P("i", None))), jax.device_put(W, NamedSharding(EXPLICIT, P())))
def reduced(x, w):
    return jnp.tanh(x @ jax.reshard(w, NamedSharding(EXPLICIT, P(None, None, reduced={"i"}))))


@explicit(jax.device_put(M, NamedSharding(EXPLICIT, P(None, "i"))), jax.device_put(W, NamedSharding(EXPLICIT, P("i"))))
def unreduced(x, w):
    terms = jnp.einsum("ij,jk->ik", x, w, out_sharding=NamedSharding(EXPLICIT, P(None, None, unreduced={"i"})))
    return jnp.sin(jax.reshard(terms + terms, NamedSharding(EXPLICIT, P(None, None))))


@explicit(
    jax.device_put(M, NamedSharding(EXPLICIT, P("i", None))),
    jax.device_put(W, NamedSharding(EXPLICIT, P())),
    vmaps=False,
)
def moved_to_the_host(x, w):
    h = jax.device_put(jnp.sin(x @ w), jax.memory.Space.Host)
    return jax.device_put(h, jax.memory.Space.Device) ** 2
