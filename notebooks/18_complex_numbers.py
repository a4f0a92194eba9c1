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
# # 18 · What does `jax.grad` give for complex numbers?
#
# A camera without a lens records how bright the light is that reaches it, and loses the phase. A program can find the phase
# again, by gradient descent on complex numbers. Written as usual, the descent goes up.
#
# This notebook shows what `grad` returns and why, and what `holomorphic=True` promises. It takes 35 minutes. You should
# know what a transpose and a cotangent are: [5 · transposition](05_transposition.ipynb).
#
# ## The program
#
# The specimen is a transparent film. It delays the light by an angle at each pixel, so it is the complex number `exp(1j * angle)`, and a photo of it
# is blank. Four known masks, one after the other, delay the light further. What arrives at the camera is a Fourier transform.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data

import jaxviz
from jaxviz import teach

colours = plt.imread(get_sample_data("grace_hopper.jpg"))[30:414, 60:444] / 255
picture = jnp.asarray(colours.reshape(48, 8, 48, 24).mean((1, 3)), jnp.float32)
specimen = jnp.exp(2j * picture)
MASKS = jax.random.choice(jax.random.key(0), jnp.array([1, 1j, -1, -1j]), (4, 48, 48))


def camera(z):
    return jnp.fft.fft2(MASKS * z) / 48


measured = jnp.abs(camera(specimen))


def loss(z):
    return jnp.sum((jnp.abs(camera(z)) - measured) ** 2) / (2 * len(MASKS))


# %% jupyter={"source_hidden": true}
# The specimen, and what the camera records with the first mask
def show(**pictures):
    figure, axes = plt.subplots(1, len(pictures), figsize=(2.7 * len(pictures), 3), layout="constrained")
    for ax, (title, (values, high)) in zip(axes, pictures.items()):
        ax.imshow(values, cmap="gray", vmin=0, vmax=high)
        ax.set(title=title.replace("_", " "), xticks=[], yticks=[])
    plt.show()


show(a_photo=(jnp.abs(specimen), 1), its_angle=(jnp.angle(specimen), 2), the_record=(measured[0], 3))

# %% [markdown]
# Gradient descent, as one writes it for real numbers:

# %%
z = jnp.ones_like(specimen)
slope = jax.jit(jax.grad(loss))
up = [float(loss(z))]
for _ in range(5):
    z = z - slope(z)
    up.append(float(loss(z)))
print("loss:", *(f"{value:,.0f}" for value in up))

# %% [markdown]
# A smaller rate only makes it slower. One number is enough to see why.

# %%
def squared_size(z):
    return z.real**2 + z.imag**2


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: convention
def _shown(number):
    return f"{number.real:g}{number.imag:+g}j"


convention = teach.predict(
    "What does `jax.grad(squared_size)(3 + 4j)` return?",
    ["6+8j", "6-8j", "3-4j", "10+0j"],
    truth=lambda: _shown(complex(jax.grad(squared_size)(3 + 4j))),
    because={
        "6+8j": "That is the direction of steepest ascent. JAX returns its conjugate.",
        "6-8j": "The slope in the real part is 6 and that in the imaginary part 8. JAX returns the first minus `1j` times the second.",
        "3-4j": "That is the derivative in z of z times its conjugate, with the conjugate held fixed. JAX returns twice that for a real function.",
        "10+0j": "The gradient of one complex number is one complex number: it says how each of two parts changes the loss.",
    },
    hints=("Differentiate in the real part and in the imaginary part.", "The descent above went wrong by one sign."),
)
convention

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
convention.solution("6-8j")

# %%
def of_parts(x, y):
    return squared_size(jax.lax.complex(x, y))


print("of z:      ", jax.grad(squared_size)(3 + 4j))
print("of x and y:", *jax.grad(of_parts, argnums=(0, 1))(3.0, 4.0))

# %% [markdown]
# For a real loss of `z = x + i y`, `grad` returns `∂L/∂x - i ∂L/∂y`. Why the minus? So that a plain product gives the change of the loss: for a small step
# `dz` it is the real part of `grad * dz`. That is the chain rule of real numbers, with `Re` before it.

# %%
z = jnp.ones_like(specimen)
real_part, imaginary_part = jax.random.normal(jax.random.key(1), (2, 48, 48))
dz = real_part + 1j * imaginary_part
g = slope(z)
print("jvp:          ", jax.jvp(loss, (z,), (dz,))[1])
print("Re(grad * dz):", jnp.sum(g * dz).real)

# %% [markdown]
# A step along `-conj(grad)` changes the loss by `-|grad|²`: it goes down, and steepest. One along `-grad` changes it by the real part of `-grad²`, which can be
# anything. Here is the squared distance from a point, in the plane of complex numbers:

# %% jupyter={"source_hidden": true}
# Descent with and without the conjugate
goal = 2.0 + 1.0j
distance = lambda z: jnp.abs(z - goal) ** 2


def path(direction, rate=0.1, steps=10):
    points = [jnp.complex64(0)]
    for _ in range(steps):
        points.append(points[-1] - rate * direction(jax.grad(distance)(points[-1])))
    return np.array(points)


paths = {"z - rate * conj(grad)": path(jnp.conj), "z - rate * grad": path(lambda g: g)}
x, y = np.meshgrid(np.linspace(-3, 8, 60), np.linspace(-6, 3.5, 60))
plt.figure(figsize=(4.6, 4))
plt.contour(x, y, np.abs(x + 1j * y - goal) ** 2, 12, colors="lightgray")
for label, points in paths.items():
    plt.plot(points.real, points.imag, ".-", label=label)
plt.plot(goal.real, goal.imag, "k*")
plt.gca().set_aspect("equal")
plt.xlabel("real part")
plt.ylabel("imaginary part")
plt.legend();

# %% [markdown]
# Without the conjugate, the real part arrives and the imaginary part runs away.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: descent
def _misfit(params):
    return jnp.sum(jnp.abs(params["gain"] * params["z"] - jnp.array([1 + 2j, -1j])) ** 2)


def _steepest(params):
    def of_pairs(pairs):
        return _misfit(jax.tree.map(lambda p, x, y: x + 1j * y if jnp.iscomplexobj(p) else x, params, *pairs))

    x, y = jax.grad(of_pairs)((jax.tree.map(jnp.real, params), jax.tree.map(jnp.imag, params)))
    return jax.tree.map(lambda p, x, y: p - 0.1 * (x + 1j * y if jnp.iscomplexobj(p) else x), params, x, y)


def _with(change):
    return lambda f, params, rate: jax.tree.map(lambda p, g: change(p, rate, g), params, jax.grad(f)(params))


_point = {"gain": jnp.float32(1.5), "z": jnp.array([0.5 - 1j, 2 + 0.25j])}
descent = teach.rule(
    "Write one step of gradient descent on a real `f`, for a tree of parameters of which some are complex and some are real.",
    teach.computes(_steepest, (_point,))
    .of(lambda descend: lambda params: descend(_misfit, params, 0.1))
    .saying("moves each real and each imaginary part down its own slope"),
    teach.Check(
        "keeps the types",
        lambda descend: ""
        if jax.tree.map(jnp.result_type, descend(_misfit, _point, 0.1)) == jax.tree.map(jnp.result_type, _point)
        else "A parameter changes its type. Is one that was real complex now?",
    ),
    hints=(
        "Which of the two paths in the picture goes down?",
        "`jnp.conj` leaves a real number as it is, so all parameters can be treated alike.",
        "`jax.tree.map(lambda p, g: ..., params, jax.grad(f)(params))`",
    ),
    wrong=(
        _with(lambda p, rate, g: p - rate * g),
        _with(lambda p, rate, g: p - 2 * rate * jnp.conj(g)),
        _with(lambda p, rate, g: p - rate * jnp.conj(g) / 2),
        _with(lambda p, rate, g: p + rate * jnp.conj(g)),
        _with(lambda p, rate, g: p + rate * g),
        _with(lambda p, rate, g: p - rate * g.real),
        _with(lambda p, rate, g: p - rate * (jnp.conj(g) + 0j)),
    ),
)
descent


# %% tags=["answer"]
def descend(f, params, rate):
    return ...


descent.answer(descend)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def descends(f, params, rate):
    return jax.tree.map(lambda p, g: p - rate * jnp.conj(g), params, jax.grad(f)(params))


descent.solution(descends)

# %% [markdown]
# With the conjugate, the film appears. The camera cannot tell `z` from `exp(1j * a) * z`, so the result is turned by one angle before it is shown.

# %%
down, states = [float(loss(z))], [z]
for _ in range(60):
    z = z - jnp.conj(slope(z))
    states.append(z)
    down.append(float(loss(z)))


def turned(z):
    overlap = jnp.vdot(z, specimen)
    return z * overlap / jnp.abs(overlap)


show(**{f"after_step_{n}": (jnp.angle(turned(states[n])), 2) for n in (1, 5, 60)})

# %% jupyter={"source_hidden": true}
# The loss at each step
plt.figure(figsize=(5, 2.2))
plt.semilogy(down[:30], ".-", label="z - conj(grad)")
plt.semilogy(up, ".-", label="z - grad")
plt.xlabel("step")
plt.ylabel("loss")
plt.legend();

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert all(b > a for a, b in zip(up, up[1:])) and up[-1] > 10 * up[0]
_slower = jnp.ones_like(specimen)
for _ in range(60):
    _slower = _slower - 0.1 * slope(_slower)
assert loss(_slower) > 10 * up[0]
assert jnp.allclose(jnp.abs(specimen), 1, atol=1e-5)
assert jax.grad(of_parts, argnums=(0, 1))(3.0, 4.0) == (6.0, 8.0)
assert np.isclose(jax.jvp(loss, (z,), (dz,))[1], jnp.sum(slope(z) * dz).real, rtol=1e-3, atol=1e-3)
assert np.isclose(jax.jvp(loss, (jnp.ones_like(z),), (dz,))[1], jnp.sum(g * dz).real, rtol=1e-3)
_along = lambda d: jax.jvp(loss, (jnp.ones_like(z),), (d,))[1]
assert np.isclose(_along(-jnp.conj(g)), -jnp.sum(jnp.abs(g) ** 2), rtol=1e-3)
assert np.isclose(_along(-g), -jnp.sum(g**2).real, rtol=1e-3) and _along(-g) > 0
_good, _bad = paths.values()
assert abs(_good[-1] - goal) < 0.3 and abs(_bad[-1].real - goal.real) < 0.3 and _bad[-1].imag < -5
assert all(b < a for a, b in zip(down[:20], down[1:])) and down[-1] < 1e-6 * down[0]
assert jnp.abs(turned(z) - specimen).max() < 1e-2
assert np.isclose(loss(states[3] * jnp.exp(0.7j)), loss(states[3]), rtol=1e-4)

# %% [markdown]
# ## Two derivatives
#
# A complex function of a complex number has two slopes, `∂f/∂x` and `∂f/∂y`, which are complex. Its *Wirtinger derivatives* are
#
# `∂f/∂z = (∂f/∂x - i ∂f/∂y) / 2` and `∂f/∂z̄ = (∂f/∂x + i ∂f/∂y) / 2`.
#
# With them, the change for a step `dz` is `∂f/∂z · dz + ∂f/∂z̄ · conj(dz)`. `jax.jvp` gives that change for a step that you choose.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: both
def _from_parts(f):
    def derivatives(z):
        parts = lambda x, y: (jnp.real(f(x + 1j * y)), jnp.imag(f(x + 1j * y)))
        (ux, uy), (vx, vy) = jax.jacfwd(parts, argnums=(0, 1))(jnp.real(z), jnp.imag(z))
        return (ux + vy + 1j * (vx - uy)) / 2, (ux - vy + 1j * (vx + uy)) / 2

    return derivatives


def _slopes(f, z):
    return [jax.jvp(f, (z,), (direction,))[1] for direction in (jnp.ones_like(z), 1j * jnp.ones_like(z))]


def _combined(combine):
    return lambda f, z: combine(*_slopes(f, z))


_at = jnp.complex64(0.5 - 2j)
_tried = {"z ** 2": lambda z: z**2, "jnp.conj(z)": jnp.conj, "z * jnp.abs(z)": lambda z: z * jnp.abs(z)}
both = teach.rule(
    "Write `wirtinger(f, z)`, which returns both derivatives of `f` at one complex number `z`: first that in z, then that in its conjugate.",
    *(
        teach.computes(_from_parts(f), (_at,), tol=1e-4)
        .of(lambda wirtinger, f=f: lambda z: tuple(wirtinger(f, z)))
        .saying(f"is right for {name}")
        for name, f in _tried.items()
    ),
    hints=(
        "Which step `dz` changes x alone? And which changes y alone?",
        "`jax.jvp(f, (z,), (dz,))` returns the value and the change; `dz` needs the type of `z`, as `jnp.ones_like(z)` has it.",
        "Steps of 1 and of 1j give the two slopes. Then use the two formulas.",
    ),
    wrong=(
        _combined(lambda x, y: ((x + 1j * y) / 2, (x - 1j * y) / 2)),
        _combined(lambda x, y: (x - 1j * y, x + 1j * y)),
        _combined(lambda x, y: ((x - y) / 2, (x + y) / 2)),
        _combined(lambda x, y: (x, y)),
        _combined(lambda x, y: ((x - 1j * y) / 2, jnp.conj(x - 1j * y) / 2)),
    ),
)
both


# %% tags=["answer"]
def my_wirtinger(f, z):
    return ...


both.answer(my_wirtinger)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def wirtinger(f, z):
    _, along_x = jax.jvp(f, (z,), (jnp.ones_like(z),))
    _, along_y = jax.jvp(f, (z,), (1j * jnp.ones_like(z),))
    return (along_x - 1j * along_y) / 2, (along_x + 1j * along_y) / 2


both.solution(wirtinger)

# %% [markdown]
# A function is *holomorphic* if `∂f/∂z̄` is zero everywhere: it can be written without the conjugate of `z`.

# %%
candidates = {
    "jnp.abs(z) ** 2 + 0j": lambda z: jnp.abs(z) ** 2 + 0j,
    "jnp.exp(1j * z)": lambda z: jnp.exp(1j * z),
    "z.real + 2j * z.imag": lambda z: z.real + 2j * z.imag,
    "1 / jnp.conj(z)": lambda z: 1 / jnp.conj(z),
}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: smooth
_points = [jnp.complex64(p) for p in (3 + 4j, -0.5 + 1j, 1 - 2j)]


def _reads_no_conjugate(f):
    return all(abs(wirtinger(f, p)[1]) < 1e-4 for p in _points)


smooth = teach.predict(
    "Which of these is holomorphic?",
    list(candidates),
    truth=lambda: next(name for name, f in candidates.items() if _reads_no_conjugate(f)),
    because={
        "jnp.abs(z) ** 2 + 0j": "Its type is complex, and its values are real. It is z times conj(z), whose derivative in the conjugate is z.",
        "jnp.exp(1j * z)": "It is a power series in z alone. The constant 1j does no harm: what matters is whether z is conjugated.",
        "z.real + 2j * z.imag": "z.real + 1j * z.imag would be z itself. With a 2, half of conj(z) is subtracted from one and a half z.",
        "1 / jnp.conj(z)": "It is a function of the conjugate alone: its derivative in z is 0, and that in the conjugate is not.",
    },
    hints=("Write each in terms of z and conj(z). Which one needs no conj?", "`z.real` is `(z + conj(z)) / 2`."),
)
smooth

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
smooth.solution("jnp.exp(1j * z)")

# %% jupyter={"source_hidden": true}
# Both derivatives of each at 3 + 4j, and what `grad` returns with `holomorphic=True`
print(f"{'f(z) at 3+4j':22}{'∂f/∂z':>16}{'∂f/∂z̄':>17}{'grad, holomorphic=True':>26}")
for name, f in candidates.items():
    numbers = *wirtinger(f, jnp.complex64(3 + 4j)), jax.grad(f, holomorphic=True)(3 + 4j)
    print(f"{name:22}", *(f"{complex(n):{width}.2f}" for n, width in zip(numbers, (16, 16, 24))))

# %% [markdown]
# `holomorphic=True` is a promise, and JAX does not check it. If it holds, `grad` returns `∂f/∂z`, the derivative `f'(z)`. If not, it returns
# `∂f/∂z + conj(∂f/∂z̄)`, without a warning. JAX checks only the types:

# %%
def tried(f, *args):
    try:
        return f(*args)
    except TypeError as error:
        return str(error).partition(". ")[0]


print(tried(jax.grad(jnp.exp), 3 + 4j))
print(tried(jax.grad(jnp.exp, holomorphic=True), 3.0))
print(tried(jax.grad(loss, holomorphic=True), z))

# %% [markdown]
# A loss is real, so it is not a case for `holomorphic=True`. The two derivatives of a real function are conjugates of each other, and `grad` returns twice the first. Texts that step
# along `-∂L/∂z̄` use half of `conj(grad)`: the same direction, at half the rate.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
for _p in _points:
    for _f in (*candidates.values(), *_tried.values()):
        _a, _b = wirtinger(_f, _p)
        assert np.isclose(jax.jvp(_f, (_p,), (jnp.complex64(0.3 - 1j),))[1], _a * (0.3 - 1j) + _b * (0.3 + 1j), rtol=1e-4)
        assert np.isclose(jax.grad(_f, holomorphic=True)(_p), _a + jnp.conj(_b), rtol=1e-4, atol=1e-6)
    for _f in (squared_size, distance, jnp.abs):
        _a, _b = wirtinger(_f, _p)
        assert np.isclose(_a, jnp.conj(_b), atol=1e-5) and np.isclose(jax.grad(_f)(_p), 2 * _a, atol=1e-5)
assert all("grad" in tried(*case) for case in [(jax.grad(jnp.exp), 3 + 4j), (jax.grad(jnp.exp, holomorphic=True), 3.0)])
assert "requires outputs with complex dtype" in tried(jax.grad(loss, holomorphic=True), z)

# %% [markdown]
# ## A transpose, not an adjoint
#
# `camera` is linear, also for complex multiples: it is a matrix `A`. The matrix of a Fourier transform is symmetric, and that of the inverse transform is its conjugate, up to a factor.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: way_back
def _transform():
    (e,) = [e for _, e in jaxviz.derive(camera, z).backward.walk() if e.primitive.name == "fft"]
    return ["an fft", "an ifft"][int(e.params["fft_type"])]


way_back = teach.predict(
    "`camera` computes an fft. What does `jax.vjp(camera, z)` compute from a cotangent?",
    ["an fft", "an ifft", "neither"],
    truth=_transform,
    because={
        "an fft": "The transpose of a symmetric matrix is the same matrix, and JAX's transpose does not conjugate.",
        "an ifft": "That would be the transpose with all its elements conjugated, up to a factor.",
        "neither": "A Fourier transform is linear. Its tangent is a Fourier transform, which is then transposed.",
    },
    hints=("Transpose a symmetric matrix. Is there a reason to conjugate it?",),
)
way_back

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
way_back.solution("an fft")

# %% [markdown]
# `jax.jvp` multiplies by `A`, and `jax.vjp` by its transpose `Aᵀ`. Neither conjugates. Mathematics
# often wants the *adjoint* `Aᴴ`, the conjugate of the transpose, for which `⟨A x, y⟩ = ⟨x, Aᴴ y⟩`; `jnp.vdot` conjugates its first argument.

# %%
transposed = jax.linear_transpose(camera, z)
ct = camera(dz) + 1j * measured
print("⟨A x, y⟩  =", jnp.vdot(camera(z), ct))
print("⟨x, Aᵀ y⟩ =", jnp.vdot(z, transposed(ct)[0]))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: adjoint
def _adjoint(y):
    return jnp.sum(jnp.conj(MASKS) * jnp.fft.ifft2(y, norm="ortho"), axis=0)


_impulse = jnp.zeros((4, 48, 48), jnp.complex64).at[1, 3, 5].set(1j)
adjoint = teach.rule(
    "Write `camera_h`, the adjoint of `camera`. Use `transposed`, and let JAX do the work.",
    teach.is_linear((_impulse,)),
    teach.computes(_adjoint, (_impulse,), (ct,), tol=1e-4).saying("satisfies ⟨A x, y⟩ = ⟨x, Aᴴ y⟩"),
    hints=(
        "The adjoint is the transpose of the matrix with all its elements conjugated.",
        "Of a product, conj(M y) = conj(M) conj(y). So how do you multiply by conj(M), if you can multiply by M?",
        "Conjugate before and after.",
    ),
    wrong=(
        lambda y: transposed(y)[0],
        lambda y: jnp.conj(transposed(y)[0]),
        lambda y: transposed(jnp.conj(y))[0],
        lambda y: 2 * jnp.conj(transposed(jnp.conj(y))[0]),
    ),
)
adjoint


# %% tags=["answer"]
def my_camera_h(y):
    return ...


adjoint.answer(my_camera_h)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
camera_h = lambda y: jnp.conj(transposed(jnp.conj(y))[0])
adjoint.solution(camera_h)

# %% [markdown]
# The conjugate of a gradient is made by adjoints. So the step of our descent has a short form: take what arrives at the camera, keep its phase, replace its size by the measured
# one, go back with `Aᴴ`, and divide by the number of masks.

# %%
arrives = camera(states[1])
by_hand = camera_h(measured * arrives / jnp.abs(arrives)) / len(MASKS)
print("as z - conj(grad):", bool(jnp.allclose(by_hand, states[2], atol=1e-4)))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert np.isclose(jnp.vdot(camera(z), ct), jnp.vdot(z, camera_h(ct)), rtol=1e-3)
assert not np.isclose(jnp.vdot(camera(z), ct), jnp.vdot(z, transposed(ct)[0]), rtol=0.1)
assert jnp.vdot(1j, 1) == -1j
_F, _G = (f(jnp.eye(5), axis=0) for f in (jnp.fft.fft, jnp.fft.ifft))
assert jnp.allclose(_F, _F.T, atol=1e-5) and jnp.allclose(5 * _G, jnp.conj(_F), atol=1e-5) and _transform() == "an fft"
assert jnp.allclose(jax.vjp(camera, z)[1](ct)[0], transposed(ct)[0], atol=1e-4)
assert jnp.allclose(jax.jvp(camera, (z,), (dz,))[1], camera(dz), atol=1e-4)
_M = jnp.array([[1 + 2j, 3j], [0.5, -1j], [2, 1 - 1j]])
_ct = jnp.array([1j, 2 - 1j, 3])
assert jnp.allclose(jax.vjp(lambda v: _M @ v, jnp.ones(2, _M.dtype))[1](_ct)[0], _M.T @ _ct)
assert jnp.allclose(by_hand, states[2], atol=1e-4)

# %% [markdown]
# ## Where the conjugate comes from
#
# `camera` is holomorphic, and `abs` is not: its two derivatives at `w` are `conj(w) / 2|w|` and `w / 2|w|`.

# %%
derivation = jaxviz.derive(loss, z)
programs = {name: getattr(derivation, name) for name in ("primal", "forward", "linear", "backward")}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: place
def _conjugates(of):
    return [name for name, p in of.items() if name != "primal" and any(e.primitive.name == "conj" for e in p.equations)]


place = teach.predict(
    "The derivation has one equation `conj`, and `loss` has none. In which program is it?",
    ["forward", "linear", "backward"],
    truth=lambda: ", ".join(_conjugates(programs)),
    because={
        "forward": "The slope of `abs` is conj(w) / |w|. It is computed from values alone, so it belongs to the forward program, which saves it.",
        "linear": "The linear program multiplies a tangent by a saved slope. Does anything conjugate the tangent itself?",
        "backward": "A transpose does not conjugate: the backward program multiplies by the same slope as the linear one.",
    },
    hints=("What is the derivative of |w|, in terms of w?", "Is `conj` applied to a value, or to a tangent or cotangent?"),
)
place

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
place.solution("forward")

# %% [markdown]
# Follow the selected `conj` to the quotient that is made from it, a residual, and at the right to the product that reads that. Before the product, `complex` makes the real cotangent
# of `abs` complex: it is the transpose of the `real` in the linear program.

# %%
explorer = jaxviz.explore(derivation)
explorer.stage, explorer.beside = "forward+linear", "backward"
walked = [e.primitive.name for _, e in derivation.forward.walk()]
explorer.selected = f"forward:{walked.index('conj')}"
explorer

# %% [markdown]
# A `conj` in your own program is another matter. It is linear in a tangent, so it has a transpose, which is `conj` again:

# %%
product = jaxviz.derive(lambda w: (w * jnp.conj(w)).real, jnp.complex64(3 + 4j))
print(product.backward)
print("the derivations compute what JAX does:", bool(derivation.check()), bool(product.check()))

# %% [markdown]
# What if the parameters are real, and the program is complex in between? Our film is transparent, so its angle is all we look for. The gradient in a real number is
# real, and needs no conjugate: where the program makes it complex, the transpose takes the real part.

# %%
def loss_of_angle(angle):
    return loss(jnp.exp(1j * angle))


angle = jnp.zeros_like(picture)
of_angle = jax.jit(jax.grad(loss_of_angle))
for _ in range(60):
    angle = angle - of_angle(angle)
print(f"{of_angle(angle).dtype}: loss {loss_of_angle(0 * angle):.1f} → {loss_of_angle(angle):.2g}")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert _conjugates(programs) == ["forward"]
assert explorer.equation.primitive.name == "conj"
assert "conj" not in str(programs["linear"]) + str(programs["backward"]) and str(programs["forward"]).count(" conj[") == 1
assert jnp.allclose(camera(1j * z), 1j * camera(z), atol=1e-5)
for _w in _points:
    assert np.allclose(wirtinger(jnp.abs, _w), [jnp.conj(_w) / jnp.abs(_w) / 2, _w / jnp.abs(_w) / 2], atol=1e-5)
_slope_of_abs = [r for r in derivation.residuals if r.type.startswith("c64[4") and r.kind == "intermediate"]
assert [r.producer.primitive.name for r in _slope_of_abs] == ["div"]
assert "conj" not in [e.primitive.name for e in derivation.primal.equations]
_names = {name: [e.primitive.name for e in p.equations] for name, p in programs.items()}
assert "real" in _names["linear"] and "complex" in _names["backward"] and "complex" not in _names["linear"]
assert [e.primitive.name for e in product.backward.equations].count("conj") == 1
assert derivation.check() and product.check() and jaxviz.derive(loss_of_angle, angle).check()
_start = jnp.zeros_like(picture)
_z = jnp.exp(1j * _start)
assert jnp.allclose(of_angle(_start), (slope(_z) * 1j * _z).real, atol=1e-4)
assert of_angle(angle).dtype == jnp.float32 and loss_of_angle(angle) < 1e-3 * loss_of_angle(_start)

# %% [markdown]
# ## At zero
#
# The size and the angle of a complex number have no derivative at 0. Here are some ways to write them:

# %%
at_zero = {
    "jnp.abs(z)": jnp.abs,
    "jnp.sqrt(z.real**2 + z.imag**2)": lambda z: jnp.sqrt(z.real**2 + z.imag**2),
    "jnp.angle(z)": jnp.angle,
    "jnp.log(z).real": lambda z: jnp.log(z).real,
}

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: finite
def _at_zero(name):
    return complex(jax.jit(jax.grad(at_zero[name]))(jnp.complex64(0)))


finite = teach.predict(
    "Which of them has a finite gradient at 0?",
    list(at_zero),
    truth=lambda: next(name for name in at_zero if np.isfinite(_at_zero(name))),
    because={name: (lambda name=name: f"At 0, grad returns {_at_zero(name)}.") for name in at_zero}
    | {"jnp.abs(z)": "JAX has a rule for `abs` in which the slope is 0 where the size is 0."},
    hints=("One of them is a primitive, with a rule of its own for 0.", "What is 0 / 0? And the slope of a root at 0, times 0?"),
)
finite

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
finite.solution("jnp.abs(z)")

# %%
for name, f in at_zero.items():
    print(f"{name:33}", jax.grad(f)(0j))
print("the largest |gradient| of loss at z = 0:", float(jnp.abs(slope(0 * z)).max()))

# %% [markdown]
# So write `jnp.abs` for a size. And do not begin a descent at 0: the gradient of `loss` is zero there, and nothing moves.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert [name for name in at_zero if np.isfinite(_at_zero(name))] == ["jnp.abs(z)"] and _at_zero("jnp.abs(z)") == 0
assert not jnp.any(slope(0 * z)) and loss(0 * z) > 1
assert jaxviz.find_nan(at_zero["jnp.angle(z)"], jnp.complex64(0)) is not None
assert jaxviz.find_nan(at_zero["jnp.abs(z)"], jnp.complex64(0)) is None

# %% [markdown]
# ## What to remember
#
# - For a real loss, `jax.grad` returns `∂L/∂x - i ∂L/∂y`. Descend against its conjugate; for real parameters that changes nothing.
# - `Re(grad * dz)` is the change of the loss. For a linear program, `jvp` multiplies by its matrix and `vjp` by the transpose; neither conjugates.
# - `holomorphic=True` is for complex functions that do not read the conjugate of their argument. It is a promise that nobody checks.
# - The conjugate in a gradient comes from the slopes of operations such as `abs`, and from each `conj` that you write.
#
# Next: [19 · references](19_references.ipynb), for gradients of programs that write.
