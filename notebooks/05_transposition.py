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
# # 5 · How do I get the gradient of a blur without deriving it?
#
# A camera moved while its shutter was open. The photo is the result of a known program: the mean of shifted scenes. To find the scene,
# you minimise the misfit between the photo and the program's result for a guess, and for that you need a gradient. The gradient of
# a linear program `A` uses its *transpose*, `Aᵀ`. Nobody has to derive it: JAX transposes the program of `A`.
#
# This notebook shows how, and ends with a sharp picture. It takes 30 minutes. You should know that `linearize` makes a linear program of any function, with
# equations that only add, and multiply by values that are known already; the end of [0 · a first look](00_first_look.ipynb) shows one.
#
# ## The program

# %%
import textwrap

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data

import jaxviz
from jaxviz import teach

colours = plt.imread(get_sample_data("grace_hopper.jpg"))[30:414, 60:444] / 255
scene = jnp.asarray(colours.reshape(128, 3, 128, 9).mean((1, 3)), jnp.float32)

H = W = 112
# Where the camera looked, in pixels
PATH = [(0, 0), (1, 1), (2, 3), (4, 5), (6, 6), (8, 8), (9, 11), (10, 13), (12, 15)]
row, column = np.mgrid[:H, :W]
# Darker to the corners
VIGNETTE = jnp.asarray(1.0 - 0.5 * ((row / H - 0.5) ** 2 + (column / W - 0.5) ** 2), jnp.float32)


def camera(scene):
    light = scene[:H, :W]
    for i, j in PATH[1:]:
        light = light + scene[i : i + H, j : j + W]
    return VIGNETTE * light / len(PATH)


# %%
def show(**pictures):
    figure, axes = plt.subplots(1, len(pictures), figsize=(3 * len(pictures), 3.3), layout="constrained")
    for ax, (title, picture) in zip(axes, pictures.items()):
        ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
        ax.set(title=title.replace("_", " "), xticks=[], yticks=[])
    plt.show()


photo = camera(scene) + 0.003 * jax.random.normal(jax.random.key(0), (H, W))
show(the_scene=scene, the_photo=photo)

# %% [markdown]
# ## Linear
#
# Each pixel of the photo is a weighted sum of pixels of the scene. So sums and multiples go through `camera`, and that is what *linear* means:
# `A(2u - 3v) = 2 A(u) - 3 A(v)`.

# %%
u, v = jax.random.normal(jax.random.key(1), (2, 128, 128))
print(float(jnp.abs(camera(2 * u - 3 * v) - (2 * camera(u) - 3 * camera(v))).max()))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: linear
_candidates = {
    "x + 0.1": lambda x: x + 0.1,
    "x * x": lambda x: x * x,
    "jnp.cumsum(x)": jnp.cumsum,
    "jnp.abs(x)": jnp.abs,
}


def _keeps_sums(f):
    a, b = jnp.array([1.0, -2.0, 0.5]), jnp.array([-3.0, 1.0, 2.0])
    return bool(jnp.allclose(f(2 * a - 3 * b), 2 * f(a) - 3 * f(b), atol=1e-5))


linear = teach.predict(
    "Which of these is linear in `x`?",
    list(_candidates),
    truth=lambda: next(name for name, f in _candidates.items() if _keeps_sums(f)),
    because={
        "x + 0.1": "Its graph is a line, but twice the input does not give twice the output. It is *affine*.",
        "x * x": "With a constant in place of one `x` it would be. A product is linear in each factor, not in both together.",
        "jnp.cumsum(x)": "Each element is a sum of elements, so sums and multiples go through.",
        "jnp.abs(x)": "Positive multiples go through, and -1 does not.",
    },
    hints=("Put in 2x. Does twice as much come out?", "Put in 0. A linear function gives 0."),
)
linear

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
linear.solution("jnp.cumsum(x)")

# %% [markdown]
# A linear function of arrays is a matrix in disguise. This one has a row for each pixel of the photo and a column for each of the scene.

# %%
print(f"the matrix of `camera`: {photo.size:,} × {scene.size:,}, {4 * photo.size * scene.size / 2**20:.0f} MiB")

# %% [markdown]
# It is never formed. `camera` multiplies by it, and now we want a second program that multiplies by its transpose.

# %%
transposed = jaxviz.linear_transpose(camera, scene)


def camera_t(y):
    return transposed(y)[0]  # one cotangent for each argument; there is one argument


print("camera:  ", scene.shape, "→", camera(scene).shape)
print("camera_t:", photo.shape, "→", camera_t(photo).shape)

# %% [markdown]
# `jax.linear_transpose` does the same. The check for any pair of this kind takes
# two random arrays: the inner product `⟨A x, y⟩` must be `⟨x, Aᵀ y⟩`.

# %%
x, y = jax.random.normal(jax.random.key(2), (128, 128)), jax.random.normal(jax.random.key(3), (H, W))


def products(a, a_t, x, y):
    return float(jnp.vdot(a(x), y)), float(jnp.vdot(x, a_t(y)))


print("⟨A x, y⟩ = {:.4f}   ⟨x, Aᵀ y⟩ = {:.4f}".format(*products(camera, camera_t, x, y)))

# %% [markdown]
# The check is worthwhile, because `linear_transpose` trusts you that the function is linear. Here is an affine one. It is transposed
# without an error, the 0.1 is dropped, and the check fails:


# %%
def brighter(x):
    return camera(x) + 0.1


def brighter_t(y):
    return jaxviz.linear_transpose(brighter, x)(y)[0]


print("⟨A x, y⟩ = {:.4f}   ⟨x, Aᵀ y⟩ = {:.4f}".format(*products(brighter, brighter_t, x, y)))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(camera(2 * u - 3 * v), 2 * camera(u) - 3 * camera(v), atol=1e-4)
assert np.allclose(*products(camera, camera_t, x, y), rtol=1e-3)
assert jnp.allclose(camera_t(y), jax.linear_transpose(camera, scene)(y)[0], atol=1e-5)
assert not np.allclose(*products(brighter, brighter_t, x, y), rtol=1e-3)

# %% [markdown]
# ## The rules
#
# JAX has a transpose rule for each linear primitive. On the left is what a program does with its input, on the
# right what its transpose does with a *cotangent*, an array of the type of the output.

# %%
ROWS, MATRIX, KERNEL = jnp.array([0, 2, 2]), jnp.arange(12.0).reshape(4, 3), jnp.array([1.0, 2.0, 3.0])
dictionary = {
    "2.0 * x": lambda x: 2.0 * x,
    "jnp.broadcast_to(x, (4, 3))": lambda x: jnp.broadcast_to(x, (4, 3)),
    "jnp.sum(x)": jnp.sum,
    "x[1:]": lambda x: x[1:],
    "jnp.flip(x)": jnp.flip,
    "jnp.cumsum(x)": jnp.cumsum,
    "x[ROWS]": lambda x: x.at[ROWS].get(mode="promise_in_bounds"),
    "MATRIX @ x": lambda x: MATRIX @ x,
    "jnp.convolve(x, KERNEL)": lambda x: jnp.convolve(x, KERNEL),
}


def primitives(program):
    names = []
    for e in program.equations:  # those of a jitted function in its place
        names += primitives(e.programs[0][1]) if e.primitive.name == "jit" else [e.primitive.name]
    return names


example = jnp.ones(3)
for name, f in dictionary.items():
    d = jaxviz.derive(f, example)
    print(f"{name:28}{', '.join(primitives(d.linear)):49}{', '.join(primitives(d.backward))}")

# %% [markdown]
# Most of it is one idea: *what is copied is summed, and what is left out is filled with zeros.* A broadcast copies, so its transpose sums.
# A slice leaves elements out, so its transpose pads with zeros. `x[ROWS]` does both: it
# reads an element twice, and leaves one out.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: scattered
gather = dictionary["x[ROWS]"]


def _gather_t(ct):
    return jax.linear_transpose(gather, example)(ct)[0]


scattered = teach.rule(
    "`x[ROWS]` reads the elements 0, 2 and 2 of `x`. Write its transpose: from three cotangents to three.",
    teach.is_linear((jnp.ones(3),)),
    teach.computes(_gather_t, (jnp.array([1.0, 0.0, 0.0]),), (jnp.array([1.0, 10.0, 100.0]),)),
    hints=(
        "Which results read element 2? And element 1?",
        "Write `x[ROWS]` as a matrix of zeros and ones, and multiply by its transpose. Or begin with zeros, and use `.at[ROWS]`.",
        "An element that is read twice gets two cotangents, and they are added: `.add`, and not `.set`.",
    ),
    wrong=(lambda ct: jnp.zeros(3).at[ROWS].set(ct), lambda ct: ct[ROWS], lambda ct: jnp.stack([ct[0], ct[1] * 0, ct[2]])),
)
scattered


# %% tags=["answer"]
def gather_t(ct):
    return ...


scattered.answer(gather_t)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
scattered.solution(lambda ct: jnp.zeros(3).at[ROWS].add(ct))

# %% [markdown]
# The matrix of a gather has one 1 in each row. In its transpose, two 1s can stand in one row:

# %%
print(jax.jacobian(gather)(example), "\n")
print(jax.jacobian(lambda ct: jax.linear_transpose(gather, example)(ct)[0])(jnp.ones(3)))

# %% [markdown]
# Now write one by hand. `differences` takes n numbers and gives n - 1.


# %%
def differences(x):
    return x[1:] - x[:-1]


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: by_hand
def the_transpose_of_differences(ct):
    return jax.linear_transpose(differences, jnp.zeros(ct.size + 1))(ct)[0]


def _example(ct):
    return jnp.pad(ct, (1, 0)) - jnp.pad(ct, (0, 1))


by_hand = teach.rule(
    "Write the transpose of `differences`: it takes n - 1 cotangents and gives n.",
    teach.is_linear((jnp.ones(4),)),
    teach.computes(
        the_transpose_of_differences, (jnp.array([1.0, 0.0, 0.0]),), (jnp.array([1.0, 10.0, 100.0, 1000.0]),)
    ),
    hints=(
        "It is a difference of two slices. Transpose each slice by itself, and keep the sign.",
        "A slice's transpose pads with zeros: `jnp.pad(ct, (before, after))`. `x[1:]` left out one element, at the beginning.",
        "The matrix of `differences` has rows such as [-1, 1, 0, 0]. Write down its columns.",
    ),
    example=_example,
    wrong=(
        lambda ct: jnp.pad(jnp.cumsum(ct), (1, 0)),
        lambda ct: jnp.pad(ct, (0, 1)) - jnp.pad(ct, (1, 0)),
        lambda ct: ct[1:] - ct[:-1],
    ),
)
by_hand


# %% tags=["answer"]
def differences_t(ct):
    return ...


by_hand.answer(differences_t)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
by_hand.solution(lambda ct: jnp.pad(ct, (1, 0)) - jnp.pad(ct, (0, 1)))

# %% [markdown]
# `jnp.cumsum`, which undoes `differences`, is not it. A misconception: *the transpose goes back.* It goes from outputs to inputs,
# but it does not undo. Here is the photo, and `camera_t` of it:

# %%
show(the_photo=photo, camera_t_of_the_photo=camera_t(photo))

# %% [markdown]
# It is blurred twice: each pixel of the photo was spread again over all the places that it was gathered from.


# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_x, _y = jnp.array([0.5, -2.0, 3.0]), np.arange(15, dtype=np.float32)
for f in dictionary.values():
    _out = np.asarray(f(_x))
    _ct = _y[: _out.size].reshape(_out.shape)
    assert np.isclose(np.vdot(_out, _ct), np.vdot(_x, jax.linear_transpose(f, _x)(_ct)[0]))
assert "scatter-add" in primitives(jaxviz.derive(gather, example).backward)
assert primitives(jaxviz.derive(dictionary["x[1:]"], example).backward) == ["pad"]
assert by_hand.answer(lambda ct: jnp.pad(jnp.cumsum(ct), (1, 0))).is_right is False
_sharpness = [float(jnp.abs(jnp.diff(p[20:90, 20:90])).mean()) for p in (scene, photo, camera_t(photo))]
assert _sharpness == sorted(_sharpness, reverse=True)

# %% [markdown]
# ## The whole program, from its end
#
# A program is a product of its equations: `A = A₃ A₂ A₁`. So `Aᵀ = A₁ᵀ A₂ᵀ A₃ᵀ`, and the last equation comes first. That is why backward runs backwards.
#
# And `scene` is read by several slices. Each sends a cotangent back to it, and these are added: an `add_any` adds two.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: additions
derivation = jaxviz.derive(camera, scene)
additions = teach.predict(
    f"`scene` is read {len(PATH)} times. How many `add_any` equations does the transpose have?",
    truth=lambda: primitives(derivation.backward).count("add_any"),
    because="The first cotangent is there already; each further one is added to it. For a value that is read once there is no addition, and the "
    "cotangent of one that nothing reads is a symbolic zero.",
    hints=("Adding up two numbers takes one addition.",),
)
additions

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
additions.solution(8)

# %% [markdown]
# Here is which equation of `camera` each equation of its transpose was made from:

# %%
place = {e: i for i, e in enumerate(derivation.linear.equations)}
source = {made: e for e in place for made in derivation.links.get(e, ())}
linear_order = [f"{i}:{e.primitive.name}" for e, i in place.items()]
backward_order = [f"{place[source[e]]}:{e.primitive.name}" for e in derivation.backward.equations]
for order in ("linear:", *linear_order), ("backward:", *backward_order):
    print(textwrap.fill(" ".join(order), 120, subsequent_indent="    "))

# %% [markdown]
# The sums have disappeared: the transpose of an `add` passes its cotangent to both operands, which takes no work.
#
# The additions too are why the order is reversed. The cotangent of a value is complete when *all* that read the value have sent their part. Those come
# later in the program, so they must come earlier in the transpose. Then the cotangent is read once, by the transpose of the equation that
# made the value, and never again.
#
# At the left is the linear program of `camera`, at the right its transpose. Click an equation at either side, and those that belong to it light up.

# %%
explorer = jaxviz.explore(derivation)
explorer.stage, explorer.beside = "linear", "backward"
explorer.selected = f"linear:{primitives(derivation.linear).index('slice')}"
explorer


# %% [markdown]
# The cost is about that of the program itself, because each equation is transposed to one of the same size.


# %%
def flops(program):
    return sum(jaxviz.cost_of(e).flops for e in program.equations)


print(f"camera {flops(derivation.linear):,} FLOPs, transpose {flops(derivation.backward):,} FLOPs")

# %% [markdown]
# And the transpose is a linear program again. Its transpose, `(Aᵀ)ᵀ`, does what `A` does: slices became pads, and become slices. The text of
# the program differs: JAX undoes padding with a pad of negative width and a slice.

# %%
twice = jaxviz.linear_transpose(camera_t, photo)
print("as camera:", bool(jnp.allclose(twice(scene)[0], camera(scene), atol=1e-5)))
for name, f, given in [("camera", camera, scene), ("camera_t", camera_t, photo), ("twice", twice, scene)]:
    found = primitives(jaxviz.trace(f)(given))
    print(f"{name:9}", {p: found.count(p) for p in ("slice", "pad", "add", "add_any", "mul", "div")})

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
_order = [place[source[e]] for e in derivation.backward.equations]
assert _order == sorted(_order, reverse=True)
assert "add" not in primitives(derivation.backward)
assert primitives(derivation.backward).count("pad") == len(PATH)
assert 0.5 < flops(derivation.backward) / flops(derivation.linear) < 2
assert jnp.allclose(twice(scene)[0], camera(scene), atol=1e-5)
assert primitives(jaxviz.trace(twice)(scene)).count("slice") == len(PATH)
assert primitives(jaxviz.trace(camera_t)(photo)).count("pad") == len(PATH)

# %% [markdown]
# ## Deblurring
#
# The scene `x` that fits the photo best makes `½‖A x - photo‖²` smallest. Its gradient is `Aᵀ(A x - photo)`: go through the camera, see what
# is wrong, and hand that back to the pixels that it came from. It is zero where `AᵀA x = Aᵀ photo`. That is a linear system; conjugate
# gradients solves it with products alone. A small multiple of `x` is added, so that noise is not blown up.


# %%
def normal_equations(x):
    return camera_t(camera(x)) + 1e-4 * x


found, _ = jax.scipy.sparse.linalg.cg(normal_equations, camera_t(photo), maxiter=150, tol=1e-5)
show(the_photo=photo, deblurred=found, the_scene=scene)

# %%
middle = slice(20, 100), slice(20, 100)  # away from the rim, which the camera saw in part
rms = lambda picture: float(jnp.sqrt(jnp.mean((picture - scene)[middle] ** 2)))
as_photo = jnp.zeros_like(scene).at[6 : 6 + H, 7 : 7 + W].set(photo)  # where the camera looked at half time
print(f"off by {rms(as_photo):.3f} in the photo, {rms(found):.3f} deblurred")

# %% [markdown]
# Nobody derived anything. Change `PATH` or `VIGNETTE`, or write another camera altogether, and `camera_t` follows.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert rms(found) < 0.5 * rms(as_photo)

# %% [markdown]
# ## And `jax.grad`?
#
# It does the same. This is the misfit, with no transpose in sight:


# %%
def misfit(x):
    return 0.5 * jnp.sum((camera(x) - photo) ** 2)


by_grad = jax.grad(misfit)(x)
print("as Aᵀ(A x - photo):", bool(jnp.allclose(by_grad, camera_t(camera(x) - photo), atol=1e-4)))

# %% [markdown]
# A program that is not linear cannot be transposed, but its *linear program* can: linearize
# ([3 · JVP and linearize](03_jvp_and_linearize.ipynb)), and transpose that. So reverse mode is two transformations, one after the other. Film is an example: it does not get brighter than white.


# %%
def film(x):
    return 1.0 - jnp.exp(-3.0 * camera(x))


value, push = jax.linearize(film, x)
by_hand_vjp = jax.linear_transpose(push, x)(y)[0]
_, pull = jax.vjp(film, x)
print("linearize, then transpose, is vjp:", bool(jnp.allclose(by_hand_vjp, pull(y)[0], atol=1e-5)))

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: kept
kept = teach.saved(
    film,
    x,
    question="Which of these values does the gradient of `film` save? For each operation, find the value by which its transpose "
    "multiplies. `constant a` is `VIGNETTE`.",
    hints=(
        "A slice and a sum have transposes that read no value.",
        "`VIGNETTE * light` is linear in `light`, and its transpose multiplies by `VIGNETTE`.",
    ),
)
kept

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
kept.solution(["constant a", "exp"])

# %% [markdown]
# In the explorer: the forward program with its residuals, the linear program, and at the right its transpose. The
# residuals go into both, since they are what the linear program multiplies by: constants, as far as transposition is concerned.

# %%
explorer = jaxviz.explore(film, x)
explorer.stage, explorer.beside = "forward+linear", "backward"
explorer.selected = f"forward:{primitives(explorer.derivation.forward).index('exp')}"
explorer

# %% [markdown]
# No slice of the scene is saved, and neither is the scene: the derivative of a linear operation reads its constants, and no value. So an imaging
# model, a Fourier transform or a large sum costs a gradient no memory besides those; nonlinear operations do.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(by_grad, camera_t(camera(x) - photo), atol=1e-4)
assert jnp.allclose(by_hand_vjp, pull(y)[0], atol=1e-5)
assert not [r for r in jaxviz.residuals(film, x) if r.kind == "argument"]
assert [r for r in jaxviz.residuals(film, x) if r.kind == "intermediate"][0].producer.primitive.name == "exp"
assert all(r.kind in ("constant", "literal") for r in jaxviz.residuals(camera, scene))

# %% [markdown]
# ## What to remember
#
# - The gradient of a blur: write the blur. Its transpose is made from that program, equation by equation and from its end; the gradient of a misfit is the
#   transpose applied to the error.
# - What is copied is summed, what is left out is filled with zeros, and where a value was read twice its cotangents are added.
# - The transpose is not the inverse. `⟨A x, y⟩ = ⟨x, Aᵀ y⟩` is the check, and `linear_transpose` itself does not check.
# - `jax.grad` is two transformations: linearize, and transpose what is linear.
#
# Next: [6 · checkpoints](06_checkpoints.ipynb), for what is not linear and does not fit in memory.
