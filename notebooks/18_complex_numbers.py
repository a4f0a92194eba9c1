# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18 · What is the gradient of a complex number?
#
# A camera measures intensities and loses the phase of the light. This notebook recovers it by gradient descent on complex numbers. The first attempt runs away, although the gradient
# is right: JAX's gradient is the *conjugate* of the direction of steepest ascent. You will see where that comes from, in which equations a conjugate appears, and what `holomorphic=True` promises.
#
# It takes 25 minutes. You should know what `jax.jvp` and `jax.vjp` return ([3 · JVP and linearize](03_jvp_and_linearize.ipynb)), and
# what it means to transpose a linear program ([5 · transposition](05_transposition.ipynb)).
#
# ## Phase retrieval
#
# A signal of 64 complex numbers passes through six known random masks, one after the other, and a lens, which is a Fourier transform. Of the result only the intensity is measured.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxviz
from jaxviz import teach

N, MASKS = 64, 6
rng = np.random.default_rng(0)
t = np.arange(N)
signal = np.exp(-(((t - 20) / 6) ** 2) + 0.4j * t) + 0.7 * np.exp(-(((t - 44) / 8) ** 2) - 0.2j * t)
signal = jnp.asarray(signal, jnp.complex64)
masks = jnp.asarray(np.exp(2j * np.pi * rng.random((MASKS, N))), jnp.complex64)


def at_camera(z):
    return jnp.fft.fft(masks * z) / N**0.5


measured = jnp.abs(at_camera(signal)) ** 2


def loss(z):
    w = at_camera(z)
    intensity = jnp.real(w * jnp.conj(w))
    return jnp.mean((intensity - measured) ** 2)


start = jnp.asarray(0.3 * (rng.normal(size=N) + 1j * rng.normal(size=N)), jnp.complex64)


# %%
def descend(update, rate=10.0, steps=800):
    def step(z, _):
        value, gradient = jax.value_and_grad(loss)(z)
        return z - rate * update(gradient), value

    return jax.jit(lambda z: jax.lax.scan(step, z, length=steps))(start)


updates = {"gradient": lambda g: g, "conjugate": jnp.conj, "-gradient": lambda g: -g}
_, losses = descend(updates["gradient"])
print("losses:", losses[:6])

# %% [markdown]
# It is not the rate: a hundredth of it grows too, only later. The gradient itself is what JAX promises. What should be subtracted?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: descends
descends = teach.predict(
    "With which update does the loss fall?",
    ["z - rate * jnp.conj(gradient)", "z + rate * gradient", "z - rate * jnp.abs(gradient)"],
    truth=lambda: "z - rate * jnp.conj(gradient)" if descend(jnp.conj)[1][-1] < losses[0] / 100 else "?",
    because={
        "z - rate * jnp.conj(gradient)": "`jax.grad` returns ∂x − i ∂y of the loss. Steepest ascent is towards ∂x + i ∂y.",
        "z + rate * gradient": "That turns both parts round. The imaginary part falls, and the real part rises.",
        "z - rate * jnp.abs(gradient)": "A direction in the plane has an angle, and the absolute value has none.",
    },
    hints=("Take the loss `|z|²` at `3 + 4i`, and compare `jax.grad` of it with the way to 0.",),
)
descends

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
descends.solution("z - rate * jnp.conj(gradient)")

# %%
found, losses = descend(jnp.conj)
turned = found * jnp.exp(-1j * jnp.angle(jnp.vdot(signal, found)))
print(f"the loss goes from {losses[0]:.3f} to {losses[-1]:.0e}; error of the signal: {jnp.linalg.norm(turned - signal) / jnp.linalg.norm(signal):.1e}")

# %% jupyter={"source_hidden": true}
# The loss, and the phase
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.5))
with np.errstate(all="ignore"):
    for name, update in updates.items():
        left.semilogy(np.asarray(descend(update)[1]), label=f"z - rate * {name}")
left.set(ylim=(1e-12, 1e2), xlabel="step", ylabel="loss")
left.legend(frameon=False, fontsize=7)
right.plot(jnp.angle(signal), ".", color="0.6", label="phase of the signal")
right.plot(jnp.where(jnp.abs(turned) > 0.02, jnp.angle(turned), jnp.nan), lw=1, label="recovered")
right.legend(frameon=False, fontsize=7);

# %% [markdown]
# The phase comes back, except for one angle common to the whole signal, on which no intensity depends.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert not descend(lambda g: g)[1][-1] < losses[0] and not descend(lambda g: g, rate=0.1, steps=3000)[1][-1] < losses[0]
assert not descend(lambda g: -g)[1][-1] < losses[0]
assert losses[-1] < 1e-8 and jnp.linalg.norm(turned - signal) < 1e-3 * jnp.linalg.norm(signal)
assert np.isclose(loss(found * jnp.exp(0.7j)), loss(found), atol=1e-8)

# %% [markdown]
# ## Two real numbers
#
# To JAX a complex number is a pair of real ones. Nothing has to be holomorphic: write $z = x + iy$, and the loss is a function of two real arrays.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: packed
def _skew(z):
    return jnp.sum(jnp.real(z) ** 2 * jnp.imag(z) + jnp.sin(jnp.imag(z)))


def _from_pair(f, z, of):
    by_x, by_y = jax.grad(lambda x, y: f(x + 1j * y), (0, 1))(jnp.real(z), jnp.imag(z))
    return of(by_x, by_y)


_points = (_skew, jnp.array([1 + 2j, -0.5j, 3.0 + 0j])), (loss, start)
packed = teach.rule(
    "Write `my_gradient(f, z)`: what `jax.grad(f)(z)` returns for a real `f`. Take `jax.grad` of real numbers only.",
    teach.computes(lambda f, z: jax.grad(f)(z), *_points).saying("returns what jax.grad returns"),
    hints=(
        "Differentiate `lambda x, y: f(x + 1j * y)` in both.",
        "The exercise before says how the two are put together: with a minus.",
    ),
    wrong=(
        lambda f, z: _from_pair(f, z, lambda x, y: x + 1j * y),
        lambda f, z: _from_pair(f, z, lambda x, y: (x - 1j * y) / 2),
        lambda f, z: _from_pair(f, z, lambda x, y: x),
        lambda f, z: _from_pair(f, z, lambda x, y: y - 1j * x),
    ),
)
packed


# %% tags=["answer"]
def my_gradient(f, z):
    by_x, by_y = jax.grad(lambda x, y: f(x + 1j * y), (0, 1))(...)
    return ...


packed.answer(my_gradient)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def of_pairs(f, z):
    by_x, by_y = jax.grad(lambda x, y: f(x + 1j * y), (0, 1))(jnp.real(z), jnp.imag(z))
    return by_x - 1j * by_y


packed.solution(of_pairs)

# %% [markdown]
# The minus has a reason. With it, the change of the loss along a tangent is a plain product, $\mathrm{Re}(g \cdot \dot z)$, and the transpose of a multiplication by $a$ is a
# multiplication by $a$. `jax.vjp` obeys $\mathrm{Re}(w \cdot \dot f) = \mathrm{Re}(\mathrm{vjp}(w) \cdot \dot z)$ for all $w$ and $\dot z$:

# %%
tangent = jnp.asarray(rng.normal(size=N) + 1j * rng.normal(size=N), jnp.complex64)
w = jnp.asarray(rng.normal(size=(MASKS, N)) + 1j * rng.normal(size=(MASKS, N)), jnp.complex64)
_, out = jax.jvp(at_camera, (start,), (tangent,))
(back,) = jax.vjp(at_camera, start)[1](w)
print("plain products:     ", jnp.sum(jnp.real(w * out)), jnp.sum(jnp.real(back * tangent)))
print("with w conjugated:  ", jnp.sum(jnp.real(jnp.conj(w) * out)), jnp.sum(jnp.real(jnp.conj(back) * tangent)))

# %% [markdown]
# So the matrix of a complex linear function is transposed, and *not* conjugated. The matrix of the Fourier transform is symmetric.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: transposed
_KINDS = {0: "fft", 1: "ifft"}


def _backward_fft():
    (e,) = [e for _, e in jaxviz.derive(loss, start).backward.walk() if e.primitive.name == "fft"]
    return _KINDS[int(e.params["fft_type"])]


transposed = teach.predict(
    "Forward the program computes `fft`. Which transform does the backward pass compute?",
    ["fft", "ifft", "none"],
    truth=_backward_fft,
    because={
        "fft": "The transpose of a symmetric matrix is that matrix. The adjoint, which is also conjugated, would be the inverse up to a factor.",
        "ifft": "The inverse is the conjugated transpose, up to a factor. JAX's transpose does not conjugate.",
        "none": "`fft` is linear: its tangent is an `fft`, and that is transposed.",
    },
    hints=("Is a transposed matrix conjugated here?",),
)
transposed

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
transposed.solution("fft")

# %% [markdown]
# ## Where a conjugate appears
#
# Here is the loss and its backward pass. `jnp.conj` in your program is linear over the real numbers, and its transpose is `conj`: it is selected, with the equation in the backward pass that it
# leads to. `jnp.real` becomes `complex(…, 0)`. Everything else is transposed as with real numbers.

# %%
derivation = jaxviz.derive(loss, start)
explorer = jaxviz.explore(derivation)
explorer.beside = "backward"
explorer.select("jnp.conj(w)")
explorer

# %%
for _, e in derivation.backward.walk():
    if e.primitive.name in ("complex", "conj", "fft"):
        print(e)
print(derivation.check())

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert derivation.check()
_names = [e.primitive.name for _, e in derivation.backward.walk()]
assert _names.count("conj") == _names.count("complex") == _names.count("fft") == 1
assert np.allclose(jaxviz.grad(loss)(start), jax.grad(loss)(start))
assert np.allclose(jnp.sum(jnp.real(w * out)), jnp.sum(jnp.real(back * tangent)), rtol=1e-3)
assert not np.allclose(jnp.sum(jnp.real(jnp.conj(w) * out)), jnp.sum(jnp.real(jnp.conj(back) * tangent)), rtol=1e-2)
_slope = jax.jvp(loss, (start,), (tangent,))[1]
assert np.isclose(_slope, jnp.sum(jnp.real(jax.grad(loss)(start) * tangent)), rtol=1e-3)

# %% [markdown]
# ## Wirtinger's derivatives
#
# Of a function from complex to complex numbers, one complex number cannot say how both parts change with both parts. Two can: $\dot f = \frac{\partial f}{\partial z}\,\dot z +
# \frac{\partial f}{\partial \bar z}\,\overline{\dot z}$. They follow from the tangents along $1$ and along $i$.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: wirtinger
_FUNCTIONS = {"z**2": lambda z: z**2, "conj(z)": jnp.conj, "z * conj(z) + 1j * z": lambda z: z * jnp.conj(z) + 1j * z}
_TRUE = {"z**2": lambda z: (2 * z, 0 * z), "conj(z)": lambda z: (0 * z, 1 + 0 * z), "z * conj(z) + 1j * z": lambda z: (jnp.conj(z) + 1j, z)}


def _wrong_derivatives(written):
    z = jnp.complex64(0.7 - 1.2j)
    for name, f in _FUNCTIONS.items():
        given, true = written(f, z), _TRUE[name](z)
        for which, a, b in zip(("∂/∂z", "∂/∂z̄"), given, true, strict=True):
            if not np.allclose(a, b, atol=1e-5):
                return f"Of `{name}` at {z:.2g}, {which} is {complex(a):.3g}, and should be {complex(b):.3g}."
    return ""


def _by_tangents(f, z, of):
    return of(*(jax.jvp(f, (z,), (jnp.complex64(d),))[1] for d in (1, 1j)))


wirtinger = teach.rule(
    "Write `my_wirtinger(f, z)`: the pair ∂f/∂z and ∂f/∂z̄, from two calls of `jax.jvp`.",
    teach.Check("is right for three functions", _wrong_derivatives),
    hints=(
        "Along 1 the tangent is the sum of both. Along `1j`, it is `1j` times their difference.",
        "`(a - 1j * b) / 2` is one of them.",
    ),
    wrong=(
        lambda f, z: _by_tangents(f, z, lambda a, b: (a, b)),
        lambda f, z: _by_tangents(f, z, lambda a, b: ((a + 1j * b) / 2, (a - 1j * b) / 2)),
        lambda f, z: _by_tangents(f, z, lambda a, b: (a - 1j * b, a + 1j * b)),
        lambda f, z: (jax.grad(f, holomorphic=True)(z), 0 * z),
    ),
)
wirtinger


# %% tags=["answer"]
def my_wirtinger(f, z):
    _, along_1 = jax.jvp(f, (z,), (jnp.complex64(1),))
    _, along_i = jax.jvp(f, (z,), (jnp.complex64(1j),))
    return ...


wirtinger.answer(my_wirtinger)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def by_two_tangents(f, z):
    _, along_1 = jax.jvp(f, (z,), (jnp.complex64(1),))
    _, along_i = jax.jvp(f, (z,), (jnp.complex64(1j),))
    return (along_1 - 1j * along_i) / 2, (along_1 + 1j * along_i) / 2


wirtinger.solution(by_two_tangents)

# %% [markdown]
# A function is holomorphic if the second one is zero. Of a real loss the first is half of `jax.grad`, and the second half of its conjugate, the direction in which to step.
#
# ## What `holomorphic=True` promises
#
# `jax.grad` refuses a complex result, unless you promise that the function is holomorphic. It does not look whether it is.

# %%
z = jnp.complex64(3 + 4j)
try:
    jax.grad(jnp.sin)(z)
except TypeError as error:
    print(str(error).partition("\n")[0][:100], "…")
print("sin:", jax.grad(jnp.sin, holomorphic=True)(z), " cos(z):", jnp.cos(z))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: promised
promised = teach.predict(
    "`jnp.conj` is not holomorphic: its ∂/∂z is 0. What does `jax.grad(jnp.conj, holomorphic=True)(z)` return?",
    ["an error", "zero", "one"],
    truth=lambda: {0: "zero", 1: "one"}[int(jnp.real(jax.grad(jnp.conj, holomorphic=True)(z)))],
    because={
        "an error": "A promise is not checked.",
        "zero": "It returns the transposed derivative applied to 1. Is that ∂/∂z, if ∂/∂z̄ is not zero?",
        "one": "It is `vjp` applied to 1, the gradient of the real part. The real part of `conj(z)` is that of `z`.",
    },
    hints=("`holomorphic=True` applies the `vjp` to 1 and does nothing else.",),
)
promised

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
promised.solution("one")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert np.allclose(jax.grad(jnp.sin, holomorphic=True)(z), jnp.cos(z))
assert np.allclose(by_two_tangents(jnp.sin, z)[1], 0, atol=1e-5) and np.allclose(by_two_tangents(jnp.conj, z)[0], 0)
_square = lambda z: jnp.real(z) ** 2 + 3 * jnp.imag(z)
_first, _second = by_two_tangents(lambda z: _square(z) + 0j, z)
assert np.allclose(2 * _first, jax.grad(_square)(z)) and np.allclose(2 * _second, jnp.conj(jax.grad(_square)(z)))
try:
    jax.grad(jnp.sin)(z)
    raise AssertionError("it raises no error")
except TypeError:
    pass
assert jnp.real(jax.grad(jnp.conj, holomorphic=True)(z)) == 1

# %% [markdown]
# ## What to remember
#
# - `jax.grad` of a real loss is ∂x − i ∂y. To descend, subtract its conjugate. An optimizer that was written for real parameters does not do so.
# - The change of the loss is $\mathrm{Re}(g \cdot \dot z)$, with no conjugate. Linear functions are transposed, not conjugated: the backward pass of an `fft` is an `fft`.
# - A conjugate appears in the backward pass where your program has one. `jaxviz.explore` shows the equation.
# - From complex to complex, take `jax.jvp` and `jax.vjp`. `holomorphic=True` is a promise that nobody checks; two tangents do.
#
# Next: gradients that are added to in place, in [19 · references](19_references.ipynb).
