"""The shared table of programs, on each of which every transform is compared with jax."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.compute_on
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, eq=False)
class Case:
    """A function and its arguments; all floating-point inputs are differentiated.

    Args:
      vmaps: whether jax can vmap it.
      forward: whether it has forward mode, which a custom VJP rule removes.
      reverse: whether it has reverse mode, which a loop without a fixed length removes.
      where: what it is run in, such as a mesh or 64 bits.
      rtol: how far its numbers may be from JAX's.
    """

    name: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    vmaps: bool = True
    forward: bool = True
    reverse: bool = True
    where: Callable[[], AbstractContextManager[Any]] = nullcontext
    rtol: float = 2e-5

    def __str__(self) -> str:
        return self.name


CASES: list[Case] = []


def case(*args: Any, vmaps: bool = True, forward: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to the table, to be called with these arguments."""

    def enter(fun: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(fun.__name__, fun, args, vmaps, forward))
        return fun

    return enter


def on_device(tree: Any) -> Any:
    """Converts NumPy arrays to JAX's. Creating these by JAX would compile something for each shape and process."""
    return jax.tree.map(lambda x: jax.device_put(x) if isinstance(x, np.ndarray) else x, tree)


def arange(*shape: int) -> jax.Array:
    return on_device(np.linspace(0.3, 1.7, int(np.prod(shape)), dtype=np.float32).reshape(shape))


X = arange(3)
M = arange(4, 3)
W = [(arange(3, 5) * 0.2, arange(5) * 0.1), (arange(5, 2) * 0.3, arange(2))]
TABLE = np.array([1.0, 2.0, 3.0], np.float32)
DEVICE_TABLE = jnp.array([0.5, 1.5, 2.5])
DEVICE_SCALAR = jnp.float32(1.25)


# --- models -----------------------------------------------------------------------------------------------------------


@case(W, M)
def mlp(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return jnp.mean(x**2)


@case(M, arange(3), arange(3))
def layer_norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return jnp.sum((x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift)


@case(M, arange(3, 3), arange(3, 3), arange(3, 3))
def attention(x, q, k, v):
    scores = (x @ q) @ (x @ k).T / jnp.sqrt(3)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape, bool)), scores, -1e9)
    return jnp.sum(jax.nn.softmax(scores) @ (x @ v))


@case(arange(1, 2, 6, 6), arange(3, 2, 3, 3))
def convolution(image, kernel):
    out = lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
    return jnp.sum(jax.nn.relu(out - 1.0))


@case(arange(5, 3), jnp.array([0, 2, 1, 0, 2]))
def cross_entropy(logits, labels):
    log_p = logits - jax.scipy.special.logsumexp(logits, -1, keepdims=True)
    return -jnp.take_along_axis(log_p, labels[:, None], 1).mean()


@case(arange(7, 3), jnp.array([1, 1, 6]))
def embedding(table, tokens):
    return jnp.sum(jnp.sin(table[tokens]))


@case(X)
def gelu(x):
    return jax.nn.gelu(x).sum()


@case(X)
def activations(x):
    return sum(jnp.sum(f(x)) for f in (jax.nn.relu, jax.nn.silu, jax.nn.softplus, jax.nn.elu, jax.nn.sigmoid))


@case(M)
def dropout(x):
    keep = jax.random.bernoulli(jax.random.key(3), 0.5, x.shape)
    return jnp.sum(jnp.where(keep, x / 0.5, 0.0) ** 2)


@case(X, jax.random.key(0))
def with_a_key(x, key):
    return jnp.sum(x * jax.random.normal(key, x.shape))


# --- forms of programs ------------------------------------------------------------------------------------------------


@case(X)
def identity(x):
    return x


@case(X)
def constant_result(x):
    return jnp.ones(2), 3.0


@case(X, X)
def unused_input(x, y):
    return jnp.sin(x)


@case(X)
def input_and_result(x):
    return x, jnp.exp(x), x


@case(X)
def used_often(x):
    y = jnp.sin(x)
    return y * y + y * x - x


@case(2.0)
def scalars(x):
    return 3 * x * jnp.sin(x) * 2.0 + x**3


@case(3.0, 2)
def python_numbers(x, n):
    return x * n + n


@case(jnp.zeros((0, 3)))
def no_elements(x):
    return jnp.sum(jnp.sin(x) * x)


@case({"a": X, "b": (M, None, [2.0])})
def trees(p):
    m, _, (s,) = p["b"]
    return {"out": jnp.sin(p["a"]) * s, "rest": [m.sum(), p["a"]]}


@case(X)
def closed_over(x):
    return x * TABLE * DEVICE_TABLE * DEVICE_SCALAR * np.float32(3.0) * jnp.float32(2.0)


@case(X)
def python_scalars(x):
    return (x * 2.0 + 1) / 3.0 - 4 * x


@case(X)
def no_gradient(x):
    return lax.stop_gradient(x) * x + jnp.floor(x)


@case(X, jnp.arange(3))
def integers(x, i):
    return x[i] * i, i + 1


@case(X, jnp.array([True, False, True]))
def booleans(x, mask):
    return jnp.where(mask, jnp.sin(x), x), ~mask


@case(X.astype(jnp.bfloat16))
def bfloat16(x):
    return jnp.sum(jnp.exp(x) * x)


@case(X + 1j * X)
def complex_numbers(z):
    return jnp.sum(jnp.abs(jnp.exp(z) * z) ** 2)


@case(X)
def real_to_complex(x):
    z = lax.complex(x, x * 2)
    return jnp.sum(jnp.real(z * z)) + jnp.sum(jnp.abs(z))


@case(X)
def mixed_precision(x):
    y = x.astype(jnp.bfloat16)
    return jnp.sum((y * y).astype(jnp.float32) * x)


# --- jit --------------------------------------------------------------------------------------------------------------


@jax.jit
def _sine(x):
    return jnp.sin(x)


@jax.jit
def _sine_and_more(x, y):
    z = _sine(x) * y
    return z, x, jnp.exp(z), 2.0


@case(X)
def jitted(x):
    return jax.jit(lambda y: jnp.sin(y) * 2.0)(x).sum()


@jax.custom_jvp
def _squared_sine(x):
    return lax.composite(lambda x: jnp.sin(x) ** 2, name="jaxviz.squared_sine")(x)


@_squared_sine.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return _squared_sine(x), jnp.sin(2 * x) * t


@case(arange(3), vmaps=False)
def composite(x):
    return x * _squared_sine(x)


def computed_on_host(fun, space=jax.memory.Space.Device):
    """`compute_on`, which took another name before JAX 0.11.1."""
    module = jax.experimental.compute_on
    call = getattr(module, "compute_on2", module.compute_on)
    return call(fun, compute_type="device_host", out_memory_spaces=space)


@case(X, arange(3))
def computed_elsewhere(x, y):
    z, same, e = computed_on_host(lambda x, y: (jnp.tanh(x) * y * TABLE, y, jnp.exp(x)))(jnp.sin(x), y)
    return jnp.sum(z * same) * e


@case(X)
def computed_elsewhere_in_a_loop(x):
    step = computed_on_host(lambda c, w: jnp.sin(c * w))
    return lax.scan(lambda c, w: (step(c, w), c), x, M)[0]


@case(X)
def a_loop_computed_elsewhere(x):
    return computed_on_host(lambda x: lax.scan(lambda c, w: (jnp.sin(c * w), c), x, M))(x)[0] * x


@case(X)
def remat_of_what_is_computed_elsewhere(x):
    inner = computed_on_host(lambda x: jnp.sin(jnp.exp(x)))
    return jnp.sum(jax.checkpoint(lambda x: inner(jnp.tanh(x)) * x)(x))


@case(X, X)
def nested_jit(x, y):
    z, same, e, two = _sine_and_more(x, y)
    return jnp.sum(z * same + e) * two


@case(X)
def jitted_twice(x):
    return _sine(_sine(x)) * x


@case(X)
def part_of_a_jitted_result(x):
    return _sine_and_more(x, x)[2]


@case(X)
def jitted_with_a_number(x):
    return jax.jit(lambda a, b: a * b + b)(x, 3.0)


@case(X)
def jitted_closing_over(x):
    return jax.jit(lambda y: y * DEVICE_TABLE * TABLE)(x)


@case(X)
def jitted_identity(x):
    return jax.jit(lambda y: (y, y))(x)


@case(X)
def jitted_constant(x):
    return jax.jit(lambda y: jnp.ones(3))(x) * x


@case(X, jnp.arange(3))
def jitted_on_integers(x, i):
    return jax.jit(lambda a, b: (a * b, b + 1))(x, i)


# --- linear algebra and indexing --------------------------------------------------------------------------------------


@case(arange(3, 3) + 3 * jnp.eye(3), X)
def solve(a, b):
    return jnp.sum(lax.linalg.cholesky(a @ a.T)) + jnp.sum(jnp.linalg.norm(b))


@case(M)
def slices(x):
    return x[1:3, ::2].sum() + x[-1, 0] * x[0, 1] + lax.dynamic_slice(x, (1, 0), (2, 2)).sum() ** 2


@case(M)
def reductions(x):
    return x.max() + x.min(0).sum() + jnp.prod(x, 1).sum() + jnp.cumsum(x).sum() + jnp.sort(x, 0)[0].sum()


@case(M)
def updates(x):
    return x.at[0].set(1.0).at[1, 2].add(2.0).at[2].multiply(x[0]).sum() ** 2


@case(M)
def reshapes(x):
    y = jnp.concatenate([x.T.reshape(4, 3), x], 1)
    return jnp.sum(jnp.pad(y, 1) ** 2) + jnp.sum(jnp.stack([x, x]) ** 3)


@case(X)
def special_functions(x):
    s = jax.scipy.special
    return jnp.sum(
        s.erf(x) + s.gammaln(x) + s.digamma(x) + s.expit(x) + s.xlogy(x, x) + jnp.log1p(x) + jnp.arctan2(x, 2.0)
    )


@case(X)
def powers(x):
    return jnp.sum(x**2.5 + x**-1 + 2.0**x + jnp.power(x, x) + jnp.sqrt(x) + lax.rsqrt(x) + jnp.cbrt(x))


@case(X)
def clipped(x):
    return jnp.clip(x, 0.5, 1.0).sum() + jnp.maximum(x, 1.0).sum() + jnp.abs(x - 1).sum()
