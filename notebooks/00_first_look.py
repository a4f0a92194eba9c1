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
# # What does my gradient keep in memory, and why?
#
# `jax.grad` runs your function forward, keeps some of what it computed, and runs backward over what it kept.
# Those kept values are the *residuals*. Here they are, for a small network.

# %%
import jax
import jax.numpy as jnp

import jaxviz


def predict(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def loss(params, x, y):
    error = predict(params, x) - y
    return jnp.mean(error**2)


keys = jax.random.split(jax.random.key(0), 3)
sizes = [(4, 16), (16, 16), (16, 2)]
params = [(jax.random.normal(k, s) * 0.3, jnp.zeros(s[1])) for k, s in zip(keys, sizes)]
x, y = jnp.ones((8, 4)), jnp.zeros((8, 2))

print(jaxviz.residuals(loss, params, x, y, argnums=0))

# %% [markdown]
# Each row names the line of your code that made the value, and the rule that asked for it.
# JAX holds exactly these, which can be checked:

# %%
derivation = jaxviz.derive(loss, params, x, y)
derivation.check()

# %% [markdown]
# ## The explorer
#
# Click an equation: everything it came from, and everything that was made from it, lights up in every pane.
# The number beside a source line is what that line makes the gradient keep.

# %%
explorer = jaxviz.explore(derivation)
explorer

# %% [markdown]
# ## The same as text
#
# The magics take a call, and show what JAX makes of it. `%jaxpr` shows the program that tracing sees.

# %%
# %load_ext jaxviz

# %%
# %jaxpr predict(params, x)

# %% [markdown]
# `%linearize` splits a function in two: a forward program that does all the nonlinear work and returns residuals,
# and a linear program from tangents to tangents. JVP does both at once, and so it keeps nothing.

# %%
# %linearize jnp.tanh(1.0)

# %% [markdown]
# `%vjp` transposes the linear program: cotangents go in, cotangents come out, backwards.

# %%
# %vjp jnp.tanh(1.0)

# %% [markdown]
# ## Python that looks at values
#
# A function whose `if` depends on a value is recorded along the path it takes; the program says so.

# %%
def absolute_or_square(x):
    return x**2 if x > 0 else -x


print(jaxviz.grad(absolute_or_square)(3.0), jaxviz.grad(absolute_or_square)(-3.0))
print(jaxviz.trace(absolute_or_square)(3.0))

# %% [markdown]
# ## Take it with you
#
# One file, without a kernel and without a network.

# %%
explorer.save_html("first_look.html")
