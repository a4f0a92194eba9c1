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
# # 9 · How do I differentiate a solver?
#
# Where a planet stands after a time is an equation without a formula for its solution: Kepler's equation `E - e sin E = M`. Given the
# eccentricity `e` of the orbit and the mean anomaly `M`, which is the time as an angle, you solve it for the angle `E` by Newton's
# method, in a loop that runs until the error is small enough. And to fit an orbit to observations, you need its gradient.
#
# You give JAX a rule for it, check that it is right, also in second order, and then write a rule for a solver of any equation.
# It takes 35 minutes. You should know what a transpose is: [5 · transposition](05_transposition.ipynb).

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


M = jnp.linspace(0.0, 6.0, 256)
print(solve(0.3, M)[:5])

# %% [markdown]
# ## What does JAX do with it?

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: modes
def _works(transform):
    try:
        transform()
    except Exception:
        return False
    return True


def _modes():
    forward = _works(lambda: jax.jvp(solve, (0.3, M), (1.0, jnp.zeros_like(M))))
    reverse = _works(lambda: jax.grad(lambda e: jnp.sum(solve(e, M)))(0.3))
    return {(True, False): "forward", (False, True): "reverse", (True, True): "both", (False, False): "neither"}[
        forward, reverse
    ]


modes = teach.predict(
    "In which mode does JAX differentiate `solve`, with its `while_loop`?",
    ["forward", "reverse", "both", "neither"],
    truth=_modes,
    because={
        "forward": "In forward mode each iteration computes a tangent with its value. Reverse mode goes from the last iteration to the first, and needs what each of them saved. How many iterations "
        "there are is not known before the loop runs, and XLA needs the shapes of arrays when it compiles.",
        "both": "In reverse mode, how much memory would have to be set aside for what the iterations keep?",
        "reverse": "Reverse mode is the harder one: it needs what every iteration saved.",
        "neither": "In forward mode, what does an iteration need that it doesn't have?",
    },
    hints=["Think of what each mode has to keep from one iteration to the next."],
)
modes

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
modes.solution("forward")

# %%
try:
    jaxviz.grad(lambda e: jnp.sum(solve(e, M)))(0.3)
except Exception as error:
    print(type(error).__name__, error)

# %% [markdown]
# ## The derivative, without the loop
#
# The loop is how the solution is *found*. The solution itself obeys `E - e sin E = M`, whatever found it. Differentiate that on both sides:
#
# $$ dE - e \cos E \; dE - \sin E \; de = dM \quad\Rightarrow\quad dE = \frac{dM + \sin E \; de}{1 - e \cos E} $$
#
# A `custom_jvp` replaces the derivative of the function with this.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: kepler
def _of(rule):
    @jax.custom_jvp
    def anomaly(e, M):
        return solve(e, M)

    anomaly.defjvp(rule)
    return anomaly


def _example(primals, tangents):
    (e, M), (de, dM) = primals, tangents
    E = solve(e, M)
    return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))


def _forgets_e(primals, tangents):
    E, dE = _example(primals, (0.0 * tangents[0], tangents[1]))
    return E, dE


def _wrong_sign(primals, tangents):
    E, dE = _example(primals, (-tangents[0], tangents[1]))
    return E, dE


kepler = teach.rule(
    "Write the rule: from `(e, M)` and their tangents to `E` and its tangent.",
    teach.computes(solve, (0.3, M[:4])).of(_of),
    teach.has_right_rule((0.3, M[:4])).of(_of),
    hints=[
        "Begin with `(e, M), (de, dM) = primals, tangents`.",
        "`E = solve(e, M)`; the tangent is the fraction above.",
    ],
    example=_example,
    wrong=[_forgets_e, _wrong_sign],
)
kepler


# %% tags=["answer"]
def kepler_rule(primals, tangents):
    """((e, M), (de, dM)) -> (E, dE)"""
    ...


kepler.answer(kepler_rule)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def kepler_rule(primals, tangents):
    (e, M), (de, dM) = primals, tangents
    E = solve(e, M)
    return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))


kepler.solution(kepler_rule)


# %%
@jax.custom_jvp
def once(e, M):
    return solve(e, M)


once.defjvp(kepler_rule)


def misfit_with(anomaly):
    return lambda e: jnp.mean((jnp.cos(anomaly(e, M)) - jnp.cos(solve(0.4, M))) ** 2)


print(jax.grad(misfit_with(once))(0.3))

# %% [markdown]
# The rule was written for tangents, and reverse mode came with it: JAX linearizes the rule, and transposes what is linear in it. That is why a JVP rule has to
# be linear in the tangents. In this picture of a gradient, the loop is the box `jit solve` in the forward program; the backward program
# has the division of the rule, and no loop.

# %%
def total(e):
    return jnp.sum(once(e, M))


jaxviz.draw(total, 0.3, stage="forward+backward", depth=0)

# %% [markdown]
# ## Is the rule right?
#
# A wrong rule raises no error, and a fit with a gradient that is half right still makes progress. So compare it with numerical differences. Here is the most common mistake, a forgotten term:

# %%
@jax.custom_jvp
def forgetful(e, M):
    return solve(e, M)


@forgetful.defjvp
def _(primals, tangents):
    (e, M), (_, dM) = primals, tangents
    E = solve(e, M)
    return E, dM / (1 - e * jnp.cos(E))


found = jaxviz.check_rule(forgetful, 0.3, M[:4])
print(found)

# %% [markdown]
# And the rule from above:

# %%
not_twice = jaxviz.check_rule(once, 0.3, M[:4])
print(not_twice)

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert not found
assert not_twice and "Reverse-mode" in not_twice.no_second
assert [x.verdict for x in found.leaves if x.path == "M"] == ["right"]
assert [x.verdict for x in found.leaves if x.path == "e"] == ["wrong"]
stages = jaxviz.derive(total, 0.3)
assert any(e.primitive.name == "while" for _, e in stages.forward.walk())
assert not any(e.primitive.name == "while" for _, e in stages.backward.walk())
assert any(e.primitive.name == "div" for _, e in stages.backward.walk())

# %% [markdown]
# ## The second derivative
#
# The last line of that report says what is still missing. To find the orbit that fits, Newton's method also needs the derivative of the gradient. A rule is a function like any other, and a second derivative
# differentiates it. So everything that a rule calls has to be differentiable itself.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: twice
def _anomaly_by(root):
    """`anomaly` with Kepler's rule, which computes with `root(anomaly)`."""

    @jax.custom_jvp
    def anomaly(e, M):
        return solve(e, M)

    @anomaly.defjvp
    def _(primals, tangents):
        (e, M), (de, dM) = primals, tangents
        E = root(anomaly)(e, M)
        return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))

    return anomaly


twice = teach.rule(
    "Write `anomaly`, whose rule can be differentiated again, forwards and backwards.",
    teach.computes(solve, (0.3, M[:4])),
    teach.has_right_rule((0.3, M[:4]), twice=True),
    hints=(
        "Which function in the rule has no derivative in reverse mode?",
        "Is there a function in this notebook that gives the same numbers, and has a derivative?",
        "The function that the rule belongs to may be called in it.",
    ),
    example="E = anomaly(e, M), in the rule of anomaly; the rest stays as it was",
    wrong=(once, forgetful, solve, _anomaly_by(lambda anomaly: lambda e, M: jax.lax.stop_gradient(solve(e, M)))),
)
twice


# %% tags=["answer"]
@jax.custom_jvp
def my_anomaly(e, M):
    return solve(e, M)


@my_anomaly.defjvp
def _(primals, tangents):
    (e, M), (de, dM) = primals, tangents
    E = ...
    return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))


twice.answer(my_anomaly)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
@jax.custom_jvp
def anomaly(e, M):
    return solve(e, M)


@anomaly.defjvp
def _(primals, tangents):
    (e, M), (de, dM) = primals, tangents
    E = anomaly(e, M)
    return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))


twice.solution(anomaly)

# %% [markdown]
# Here is Newton's method with both derivatives. The planet was seen at equal intervals of time, on an orbit with `e = 0.4`; the fit begins at 0.1. A step is the slope divided by the *magnitude* of the curvature, so that it goes
# downhill even where the misfit curves downward.

# %%
slope = jax.jit(jax.grad(misfit_with(anomaly)))
curvature = jax.jit(jax.grad(jax.grad(misfit_with(anomaly))))


def place(e, E):
    return jnp.cos(E) - e, jnp.sqrt(1 - e**2) * jnp.sin(E)


times = jnp.linspace(0.0, 6.0, 24)
plt.figure(figsize=(5, 3.6))
fitted = [0.1]
for _ in range(5):
    plt.plot(*place(fitted[-1], jnp.linspace(0, 6.3, 100)), lw=1, alpha=0.6, label=f"e = {fitted[-1]:.4f}")
    fitted.append(fitted[-1] - float(slope(fitted[-1]) / abs(curvature(fitted[-1]))))
plt.scatter(*place(0.4, solve(0.4, times)), s=12, color="black", label="as seen", zorder=3)
plt.scatter(0, 0, marker="*", s=120, color="orange", zorder=3)
plt.gca().set(aspect="equal", xticks=[], yticks=[])
plt.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5));

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert abs(fitted[-1] - 0.4) < 1e-3
assert jnp.allclose(curvature(0.3), jax.hessian(misfit_with(anomaly))(0.3), rtol=1e-4)
assert twice.answer(_anomaly_by(lambda anomaly: lambda e, M: anomaly(e, M)))

# %% [markdown]
# ## What the gradient saves
#
# The rule decides that too. To choose yourself what is saved, write the two halves: `fwd` returns the result and
# the residuals, `bwd` takes the residuals and the cotangent. You write the transpose yourself, so JAX has no forward mode for it.

# %%
@jax.custom_vjp
def anomaly2(e, M):
    return solve(e, M)


def fwd(e, M):
    E = solve(e, M)
    return E, (e, M, E)


def bwd(kept, ct):
    e, M, E = kept
    part = ct / (1 - e * jnp.cos(E))
    return jnp.sum(part * jnp.sin(E)), part


anomaly2.defvjp(fwd, bwd)
print(jaxviz.residuals(anomaly2, 0.3, M, argnums=(0, 1)))

# %% [markdown]
# The last line of the table names what is saved without need. With `(e, E)` as residuals it would be one array and one number.

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
anomaly_lean = jax.custom_vjp(solve)
anomaly_lean.defvjp(lambda e, M: ((E := solve(e, M)), (e, E)), lambda kept, ct: bwd((kept[0], None, kept[1]), ct))
assert jaxviz.residuals(anomaly_lean, 0.3, M, argnums=(0, 1)).nbytes == M.nbytes + 4
assert jaxviz.check_rule(anomaly_lean, 0.3, M[:4])
assert not _works(lambda: jax.jvp(anomaly2, (0.3, M), (1.0, M)))
assert "never reads: `M`" in str(jaxviz.residuals(anomaly2, 0.3, M, argnums=(0, 1)))

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


def anomaly3(e, M):
    return fixed_point(lambda E: M + e * jnp.sin(E), M)


try:
    jaxviz.grad(lambda e: jnp.sum(anomaly3(e, M)))(0.3)
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
    teach.gradient_of(lambda e: jnp.sum(anomaly(e, M[:4])), (0.3,)).of(lambda b: lambda e: jnp.sum(_kepler_with(b)(e, M[:4]))).saying(
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

# %% [markdown]
# A fixed point of more than one number: the equilibrium of a chain of springs. Gradient descent through the solver finds its stiffness.

# %%
pulls = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0, -0.6, 0.0, 0.0])


any_fixed_point = solver_with(_cotangents)


def rest(stiffness):
    def settle(x):
        wide = jnp.pad(x, 1)
        return 0.5 * (wide[:-2] + wide[2:]) + 0.2 * jnp.tanh(pulls / stiffness) - 0.05 * x**3

    return any_fixed_point(settle, jnp.zeros(8))


seen = rest(0.5)
slope_of_fit = jax.jit(jax.value_and_grad(lambda k: jnp.sum((rest(k) - seen) ** 2)))
stiffness, tried = 1.5, []
for _ in range(60):
    off, g = slope_of_fit(stiffness)
    tried.append(float(stiffness))
    stiffness = stiffness - 0.3 * g
figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), layout="constrained")
axes[0].plot(tried)
axes[0].set(xlabel="step", ylabel="stiffness")
axes[1].plot(seen, "o", label="as seen")
axes[1].plot(rest(1.5), lw=1, label="at 1.5")
axes[1].plot(rest(stiffness), label="fitted")
axes[1].legend(frameon=False)
plt.show()

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert len(jax.grad(taken_out, has_aux=True)(0.3)[1]) == 1
assert jaxviz.check_rule(jax.jit(lambda e, M: any_fixed_point(lambda E: M + e * jnp.sin(E), M)), 0.3, M[:4])
assert abs(float(stiffness) - 0.5) < 0.05

# %% [markdown]
# ## What to remember
#
# - Differentiate a solver with a rule that comes from the equation, not from the solver.
# - A `custom_jvp` has both modes, and Hessians: it is differentiated in turn, so the functions that it calls need derivatives too. A `custom_vjp` decides what is saved.
# - A wrong rule raises no error. Check it before you trust it: `jaxviz.check_rule(f, *args)`.
# - A rule gives no cotangent for values that a function closes over; `closure_convert` turns them into arguments. The cotangent of a fixed point is a fixed point, of the transposed step.
#
# Next: one function on many devices, in [10 · named axes](10_named_axes.ipynb).
