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
# # 10 · How do I differentiate a solver?
#
# Where a planet stands after a time is an equation without a formula for its solution. Kepler's equation `E - e sin E = M` takes the
# eccentricity `e` of the orbit and the mean anomaly `M`, which is the time as an angle, and wants the angle `E`. You solve it by Newton's
# method, in a loop that runs until the error is small enough. And to fit an orbit to observations, you need its gradient.
#
# You give JAX a rule for it, in forward mode and in reverse mode, and check that it is right, also in second order.
# It takes 35 minutes. You should know what a transpose is: [6 · transposition](06_transposition.ipynb).

# %%
import jax
import jax.numpy as jnp

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
        "forward": "A tangent goes round the loop with its value. The reverse mode would go round backwards, and would need what each iteration kept; nobody knows "
        "before it runs how many there will be, and XLA wants the sizes of arrays beforehand.",
        "both": "In reverse mode, how much memory would have to be set aside for what the iterations keep?",
        "reverse": "The reverse mode is the harder one: it needs what every iteration kept.",
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
def anomaly(e, M):
    return solve(e, M)


anomaly.defjvp(kepler_rule)


def misfit(e):
    return jnp.mean((jnp.cos(anomaly(e, M)) - jnp.cos(solve(0.4, M))) ** 2)


print(jax.grad(misfit)(0.3))

# %% [markdown]
# The rule was written for tangents, and reverse mode came with it: JAX linearizes the rule, and transposes what is linear in it. That is why a JVP rule has to
# be linear in the tangents. Look at `forward` and `linear`: the loop runs forward, and the rule's division is in the linear program.

# %%
explorer = jaxviz.explore(misfit, 0.3)
explorer.stage = "linear"
explorer

# %% [markdown]
# ## Is the rule right?
#
# A wrong rule raises no error, and a fit with a gradient that is half right still moves. So compare it with numerical differences:

# %%
checked = jaxviz.check_rule(anomaly, 0.3, M[:4])
print(checked)

# %% [markdown]
# Here is the most common mistake, a forgotten term:


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

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert checked and not found
assert [x.verdict for x in found.leaves if x.path == "M"] == ["right"]
assert [x.verdict for x in found.leaves if x.path == "e"] == ["wrong"]
stages = jaxviz.derive(misfit, 0.3)
assert any(e.primitive.name == "while" for _, e in stages.forward.walk())
assert not any(e.primitive.name == "while" for _, e in stages.linear.walk())
assert any(e.primitive.name == "div" for _, e in stages.linear.walk())

# %% [markdown]
# ## The second derivative
#
# To find the orbit that fits, Newton's method also needs the derivative of the gradient. The rule from before is right, and `check_rule` agrees:


# %%
@jax.custom_jvp
def once(e, M):
    return solve(e, M)


@once.defjvp
def _(primals, tangents):
    (e, M), (de, dM) = primals, tangents
    E = solve(e, M)
    return E, (dM + jnp.sin(E) * de) / (1 - e * jnp.cos(E))


def misfit_with(anomaly):
    return lambda e: jnp.mean((jnp.cos(anomaly(e, M)) - jnp.cos(solve(0.4, M))) ** 2)


print(jax.grad(misfit_with(once))(0.3))
try:
    jax.grad(jax.grad(misfit_with(once)))(0.3)
except Exception as error:
    print(type(error).__name__, error)

# %% [markdown]
# A rule is a function like any other, and a second derivative differentiates it. So everything that a rule calls has to be differentiable itself.
# The last line of the report says it:

# %%
not_twice = jaxviz.check_rule(once, 0.3, M[:4])
print(not_twice)


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
# Here is Newton's method with both derivatives. The planet was seen at equal intervals of time, on an orbit with `e = 0.4`; the fit begins at 0.1.

# %%
import matplotlib.pyplot as plt

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
assert not_twice and "Reverse-mode" in not_twice.no_second
assert abs(fitted[-1] - 0.4) < 1e-3
assert jnp.allclose(curvature(0.3), jax.hessian(misfit_with(anomaly))(0.3), rtol=1e-4)
assert twice.answer(_anomaly_by(lambda anomaly: lambda e, M: anomaly(e, M)))

# %% [markdown]
# ## What the gradient saves
#
# The rule decides that too: the gradient saves what the linear part of the rule reads.

# %%
print(jaxviz.residuals(anomaly, 0.3, M, argnums=(0, 1)))

# %% [markdown]
# Two arrays of 1 KiB, and both come from `E` and `e`. To decide yourself what is saved, write the two halves: `fwd` returns the result and
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
print(jaxviz.residuals(anomaly2, 0.3, M, argnums=(0, 1)).summary)

# %% [markdown]
# Two arrays again. It can be done with one.


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: lean
def _with(rule):
    @jax.custom_vjp
    def anomaly(e, M):
        return solve(e, M)

    anomaly.defvjp(*rule)
    return anomaly


def _keeps_too_much(f):
    kept = jaxviz.residuals(f, 0.3, M, argnums=(0, 1))
    return (
        ""
        if kept.nbytes <= M.nbytes + 4
        else f"It keeps {len(kept)} values, {kept.nbytes:,} B: " + ", ".join(f"{r.aval.str_short()}" for r in kept)
    )


def _lean_fwd(e, M):
    E = solve(e, M)
    return E, (e, E)


def _lean_bwd(kept, ct):
    e, E = kept
    part = ct / (1 - e * jnp.cos(E))
    return jnp.sum(part * jnp.sin(E)), part


lean = teach.rule(
    f"Write `(fwd, bwd)` that keep at most {M.nbytes + 4:,} B: one array, and one number.",
    teach.Check("it keeps one array and one number at most", _keeps_too_much).of(_with),
    teach.has_right_rule((0.3, M[:4])).of(_with),
    hints=["Which of `e`, `M` and `E` does `bwd` read?"],
    example="fwd keeps (e, E); bwd is as it was, without M",
    wrong=[(fwd, bwd), (_lean_fwd, lambda kept, ct: (jnp.sum(ct), ct))],
)
lean


# %% tags=["answer"]
def lean_fwd(e, M): ...


def lean_bwd(kept, ct): ...


lean.answer((lean_fwd, lean_bwd))


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def lean_fwd(e, M):
    E = solve(e, M)
    return E, (e, E)


def lean_bwd(kept, ct):
    e, E = kept
    part = ct / (1 - e * jnp.cos(E))
    return jnp.sum(part * jnp.sin(E)), part


lean.solution((lean_fwd, lean_bwd))

# %% [markdown]
# The last line of the table says what is saved without need:

# %%
print(str(jaxviz.residuals(anomaly2, 0.3, M, argnums=(0, 1))).splitlines()[-1])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
kept = jaxviz.residuals(anomaly, 0.3, M, argnums=(0, 1))
assert [r.nbytes for r in kept if r.nbytes > 4] == [1024, 1024]
assert "never reads: `M`" in str(jaxviz.residuals(anomaly2, 0.3, M, argnums=(0, 1)))

# %% [markdown]
# `custom_gradient` is the same in one function, which returns its result and its `bwd`; the values that `bwd` closes over are saved. That is short, and
# easily saves more than you meant:


# %%
@jaxviz.custom_gradient
def anomaly3(e, M):
    E = solve(e, M)
    slope = 1 - e * jnp.cos(E)
    return E, lambda ct: (jnp.sum(ct / slope * jnp.sin(E)), ct / slope)


print(jaxviz.residuals(anomaly3, 0.3, M, argnums=(0, 1)))

# %% [markdown]
# ## What to remember
#
# - Differentiate a solver with a rule that comes from the equation, not from the solver.
# - A rule is differentiated in turn: the functions that it calls need derivatives too.
# - The rule decides what is saved: a value that `fwd` returns is saved even if `bwd` never reads it.
# - A wrong rule raises no error. Check it before you trust it: `jaxviz.check_rule(f, *args)`.
#
# Next: a rule for a solver of any equation, in [11 · implicit differentiation](11_implicit_differentiation.ipynb).
