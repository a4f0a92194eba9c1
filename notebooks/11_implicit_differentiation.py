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
# # 11 · My solver takes any function. What is its derivative with respect to the values that the function closes over?
#
# A fixed point `x = step(x)` is found by a loop of unknown length, and differentiated without it: by another fixed point. The difficulty is that
# the step closes over the values that you want the gradient of; `closure_convert` solves it.
#
# It takes 25 minutes. You need custom rules: [10 · custom rules](10_custom_rules.ipynb), whose orbit is used again here.

# %%
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import jaxviz
from jaxviz import teach


@jax.jit
def solve(e, M):
    def is_off(E):
        return jnp.max(jnp.abs(E - e * jnp.sin(E) - M)) > 1e-5

    def newton(E):
        return E - (E - e * jnp.sin(E) - M) / (1 - e * jnp.cos(E))

    return jax.lax.while_loop(is_off, newton, M)


@jax.custom_jvp
def by_newton(e, M):
    return solve(e, M)


@by_newton.defjvp
def _(primals, tangents):
    (e, M), (de, dM) = primals, tangents
    E = by_newton(e, M)
    return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))


M = jnp.linspace(0.0, 6.0, 256)

# %% [markdown]
# ## A solver for any function
#
# Newton's method for one equation is a special case. Here is a solver that takes a `step`, and applies it until nothing changes any more. The
# step is a function of yours, and closes over `e` and `M`.


# %%
def iterate(step, x):
    def again(state):
        x, _ = state
        return step(x), x

    return jax.lax.while_loop(lambda state: jnp.max(jnp.abs(state[0] - state[1])) > 1e-6, again, (step(x), x))[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def fixed_point(step, x):
    return iterate(step, x)


fixed_point.defvjp(lambda step, x: (iterate(step, x), x), lambda step, x, ct: (jnp.zeros_like(x),))


def anomaly4(e, M):
    return fixed_point(lambda E: M + e * jnp.sin(E), M)


try:
    jaxviz.grad(lambda e: jnp.sum(anomaly4(e, M)))(0.3)
except Exception as error:
    print(type(error).__name__, error)

# %% [markdown]
# The rule has no argument for `e`, so it can give no cotangent for it. `closure_convert` takes values out of a function that closes over them,
# and gives the function with arguments for them, and the values:


# %%
def taken_out(e):
    step, held = jax.closure_convert(lambda E: M + e * jnp.sin(E), M)
    return jnp.sum(step(M, *held)), held


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: moved
moved = teach.predict(
    "The lambda closes over `e` and `M`. How many values does `held` have in `jax.grad(taken_out, has_aux=True)(0.3)`?",
    truth=lambda: len(jax.grad(taken_out, has_aux=True)(0.3)[1]),
    because="Only what is being differentiated is taken out: `e`. `M` does not move here, so it stays inside as a constant.",
    hints=("For which values does a rule have to give a cotangent?", "`jax.grad(taken_out)` differentiates in `e` alone."),
)
moved

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
moved.solution(1)

# %%
print("held:", jax.grad(taken_out, has_aux=True)(0.3)[1])

# %% [markdown]
# Now the rule can return a cotangent for them. The solution obeys `y = step(y, held)`. With `J` for the derivative of `step` in `y`, a
# cotangent `ct` of `y` has to be carried through `(1 - J)⁻¹` transposed: `w = ct + Jᵀ w`, which is a fixed point too.


# %%
def solver_with(backward):
    """A solver for any step, whose cotangents are `backward(step, y, held, ct)`, a tuple like `held`."""

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def solve_for(step, x, held):
        return iterate(lambda y: step(y, *held), x)

    def forward(step, x, held):
        y = iterate(lambda y: step(y, *held), x)
        return y, (y, held)

    solve_for.defvjp(forward, lambda step, kept, ct: (jnp.zeros_like(ct), backward(step, *kept, ct)))

    def any_fixed_point(step, x):
        step, held = jax.closure_convert(step, x)
        return solve_for(step, x, tuple(held))

    return any_fixed_point


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: adjoint
def _kepler_with(backward):
    return jax.jit(lambda e, M: solver_with(backward)(lambda E: M + e * jnp.sin(E), M))


def _cotangents(step, y, held, ct):
    _, through_y = jax.vjp(lambda y: step(y, *held), y)
    w = iterate(lambda w: ct + through_y(w)[0], ct)
    return jax.vjp(lambda *held: step(y, *held), *held)[1](w)


def _direct(step, y, held, ct):
    return jax.vjp(lambda *held: step(y, *held), *held)[1](ct)


adjoint = teach.rule(
    "Write `backward(step, y, held, ct)`: the cotangents of `held`, a tuple, from the cotangent `ct` of the solution `y`.",
    teach.gradient_of(lambda e: jnp.sum(by_newton(e, M[:4])), (0.3,)).of(lambda b: lambda e: jnp.sum(_kepler_with(b)(e, M[:4]))).saying(
        "has the gradient of Kepler's equation in e"
    ),
    teach.Check("its rule agrees with numerical differences", lambda b: "" if (found := jaxviz.check_rule(_kepler_with(b), 0.3, M[:4])) else found.summary),
    hints=(
        "`_, through_y = jax.vjp(lambda y: step(y, *held), y)` gives `Jᵀ`: `through_y(w)[0]` is `Jᵀ w`.",
        "`w` is a fixed point: `iterate(lambda w: ct + …, ct)`.",
        "Then `w` goes through the step once more, to `held`: `jax.vjp(lambda *held: step(y, *held), *held)[1](w)` is the tuple.",
    ),
    example=_cotangents,
    wrong=(_direct, lambda step, y, held, ct: tuple(jnp.zeros_like(h) for h in held)),
)
adjoint


# %% tags=["answer"]
def backward(step, y, held, ct):
    _, through_y = jax.vjp(lambda y: step(y, *held), y)
    w = iterate(lambda w: ..., ct)
    return ...


adjoint.answer(backward)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
adjoint.solution(_cotangents)


# %%
any_fixed_point = solver_with(_cotangents)


@jax.jit
def anomaly5(e, M):
    return any_fixed_point(lambda E: M + e * jnp.sin(E), M)


print(jax.grad(lambda e: jnp.sum(anomaly5(e, M)))(0.3), jax.grad(lambda e: jnp.sum(by_newton(e, M)))(0.3))

# %% [markdown]
# A fixed point of more than one number: the equilibrium of a chain of springs. Gradient descent through the solver finds its stiffness.

# %%
pulls = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0, -0.6, 0.0, 0.0])


def rest(stiffness):
    def settle(x):
        wide = jnp.pad(x, 1)
        return 0.5 * (wide[:-2] + wide[2:]) + 0.2 * jnp.tanh(pulls / stiffness) - 0.05 * x**3

    return any_fixed_point(settle, jnp.zeros(8))


seen = rest(0.5)
slope = jax.jit(jax.value_and_grad(lambda k: jnp.sum((rest(k) - seen) ** 2)))
stiffness, found = 1.5, []
for _ in range(60):
    off, g = slope(stiffness)
    found.append(float(stiffness))
    stiffness = stiffness - 0.3 * g
figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), layout="constrained")
axes[0].plot(found)
axes[0].set(xlabel="step", ylabel="stiffness")
axes[1].plot(seen, "o", label="as seen")
axes[1].plot(rest(1.5), lw=1, label="at 1.5")
axes[1].plot(rest(stiffness), label="fitted")
axes[1].legend(frameon=False)
plt.show()

# %% [markdown]
# ## When you know the transpose
#
# Sometimes only a linear part needs a rule: an operation that is linear, and whose transpose you know and JAX does not. `x = b + J x`, solved
# by `iterate`, is one: linear in `b`, but a `while_loop`. `linear_call(f, transpose, residuals, x)` says that `f` is linear in `x`, and what
# its transpose is. JAX then never looks inside.

# %%
J = jnp.array([[0.1, 0.3, 0.0], [0.0, 0.2, 0.3], [0.3, 0.0, 0.1]])
b = jnp.arange(3.0)


def forwards(J, b):
    return iterate(lambda x: b + J @ x, b)


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: turned
def _solve_with(back):
    return lambda b: jaxviz.linear_call(forwards, back, J, b)


turned = teach.rule(
    "Write the transpose of `forwards` in `b`: `my_transpose(J, ct)`, from a cotangent of `x` to that of `b`.",
    teach.gradient_of(lambda b: jnp.linalg.solve(jnp.eye(3) - J, b) ** 2, (b,)).of(lambda back: lambda b: _solve_with(back)(b) ** 2).saying(
        "the gradient is that of jnp.linalg.solve"
    ),
    hints=("x = (1 - J)⁻¹ b. What is the transpose of an inverse?", "It is a solution of the same kind, with another matrix."),
    wrong=(lambda J, ct: forwards(J, ct), lambda J, ct: ct - J.T @ ct),
)
turned


# %% tags=["answer"]
def my_transpose(J, ct):
    return ...


turned.answer(my_transpose)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
turned.solution(lambda J, ct: forwards(J.T, ct))


# %%
def solve_linear(J, b):
    return jaxviz.linear_call(forwards, lambda J, ct: forwards(J.T, ct), J, b)


ours = jax.grad(lambda b: jnp.sum(solve_linear(J, b) ** 2))(b)
theirs = jax.grad(lambda b: jnp.sum(jnp.linalg.solve(jnp.eye(3) - J, b) ** 2))(b)
print(ours, theirs)
backward = jaxviz.derive(lambda b: solve_linear(J, b), b).backward
print([e.primitive.name for e in backward.equations])

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: choice
_RULES = ["custom_jvp", "custom_vjp", "linear_call"]


def _works(transform):
    try:
        transform()
    except Exception:
        return False
    return True


@jax.custom_vjp
def _by_vjp(e, M):
    return solve(e, M)


_by_vjp.defvjp(lambda e, M: (solve(e, M), (e, M)), lambda kept, ct: (jnp.sum(ct), ct))


def _which():
    """Of those three, the one whose function has both modes, and whose rule may be anything that is linear in the tangents."""
    with_modes = {
        "custom_jvp": lambda: jax.jvp(by_newton, (0.3, M), (1.0, M)) and jax.grad(lambda e: jnp.sum(by_newton(e, M)))(0.3),
        "custom_vjp": lambda: jax.jvp(_by_vjp, (0.3, M), (1.0, M)),
        "linear_call": lambda: jax.jvp(lambda e: solve_linear(e * J, b), (1.0,), (1.0,)),
    }
    return next(name for name in _RULES if _works(with_modes[name]))


choice = teach.predict(
    "A function that is not linear gets a rule, and you want forward mode, reverse mode and Hessians. Which do you write?",
    _RULES,
    truth=_which,
    because={
        "custom_jvp": "One rule, for tangents; JAX makes the rest of it, if what the rule computes with can be differentiated.",
        "custom_vjp": "With it JAX has no forward mode: you have given it the transpose, and not what it is the transpose of.",
        "linear_call": "It is for what is linear; it has no tangent in its first argument.",
    },
    hints=("Of which of them can JAX make the other mode by itself?",),
)
choice

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
choice.solution("custom_jvp")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert jnp.allclose(ours, theirs, rtol=1e-4)
assert [e.primitive.name for e in backward.equations] == ["linear_call"]
assert not _works(lambda: jax.grad(lambda b: jnp.sum(forwards(J, b)))(b))
assert jaxviz.check_rule(anomaly5, 0.3, M[:4])
assert abs(float(stiffness) - 0.5) < 0.05

# %% [markdown]
# ## What to remember
#
# - A rule gives no cotangent for values that a function closes over. `closure_convert` turns them into arguments.
# - The cotangent of a fixed point is a fixed point, of the transposed step.
# - Which kind of rule to write follows from what you know of the function: its tangent, what to keep of it, or, if it is linear, its transpose.
#
# Next: one function on many devices, in [12 · named axes](12_named_axes.ipynb).
