"""The temperature is static, and changes in each epoch; and to Equinox a float of Python is static, field or not.

Shown by `jaxviz run train.py`.
After equinox#154 and equinox#640.
"""

import jax
import jax.numpy as jnp

from benchmarks.tasks.judging import Attempt, Edit, compilations, differs, load

KIND = "recompilation"
FIELD = "    temperature: float = eqx.field(static=True)\n"
SOLUTION = Attempt(
    "the temperature is an array",
    (
        Edit("agent.py", FIELD, "    temperature: jax.Array\n"),
        Edit("agent.py", "self.temperature = temperature\n", "self.temperature = jnp.asarray(temperature)\n"),
        Edit("agent.py", "max(self.temperature * factor, 0.1)", "jnp.maximum(self.temperature * factor, 0.1)"),
    ),
)
WRONG = Attempt(
    "no static field any more, but a float of Python, which `filter_jit` takes as static as well",
    (Edit("agent.py", FIELD, "    temperature: float\n"),),
)


def expected(key, epochs):
    """The same in plain JAX, one episode after the other."""
    from agent import Agent  # its initial weights

    first = Agent(key, 2, 3)
    weights = [x for layer in first.layers for x in (layer.weight, layer.bias)]

    def rewards(weights, temperature, key):
        start, key = jax.random.split(key)
        state, total = jax.random.normal(start, (2,)), 0.0
        for k in jax.random.split(key, 50):
            scores = weights[2] @ jnp.tanh(weights[0] @ state + weights[1]) + weights[3]
            action = jax.random.categorical(k, scores / temperature)
            speed = 0.98 * state[1] + 0.1 * (action - 1)
            state = jnp.stack([state[0] + 0.1 * speed, speed])
            total -= jnp.abs(state[0])
        return total / 50

    of = jax.jit(lambda w, t, key: jnp.mean(jax.vmap(lambda k: rewards(w, t, k))(jax.random.split(key, 8))))
    history, temperature = [], 2.0
    for epoch in range(epochs):
        a, b = jax.random.split(jax.random.fold_in(key, epoch))
        keys = jax.random.split(a, 4)
        other = [x + 0.1 * jax.random.normal(k, x.shape) for k, x in zip(keys, weights, strict=True)]
        both = of(weights, temperature, b), of(other, temperature, b)
        history.append(float(max(both)))
        weights = weights if both[0] >= both[1] else other
        temperature = max(0.9 * temperature, 0.1)
    return history


def check(folder):
    train, _ = load(folder, "annealed_agent", train="run", rollout="environment")
    with compilations() as counts:
        actual = train.run(jax.random.key(3), 5)
    wrong = differs("what run returns", jnp.array(actual), jnp.array(expected(jax.random.key(3), 5)), rtol=2e-2)
    n = sum(n for name, n in counts.items() if "rollout" in name)
    return wrong + ([] if n == 1 else [f"`rollout` is compiled {n} times"])
