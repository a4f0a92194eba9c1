"""An agent that explores less and less (Equinox)."""

import equinox as eqx
import jax
import jax.numpy as jnp


class Agent(eqx.Module):
    """A network that scores actions, and how it explores."""

    layers: list
    temperature: float = eqx.field(static=True)
    actions: int = eqx.field(static=True)

    def __init__(self, key, observations, actions, temperature=2.0):
        a, b = jax.random.split(key)
        self.layers = [eqx.nn.Linear(observations, 16, key=a), eqx.nn.Linear(16, actions, key=b)]
        self.temperature = temperature
        self.actions = actions

    def scores(self, observation):
        first, second = self.layers
        return second(jnp.tanh(first(observation)))

    def act(self, key, observation):
        return jax.random.categorical(key, self.scores(observation) / self.temperature)

    def annealed(self, factor=0.9):
        """The same agent, a little less curious."""
        clone = object.__new__(Agent)
        object.__setattr__(clone, "layers", self.layers)
        object.__setattr__(clone, "temperature", max(self.temperature * factor, 0.1))
        object.__setattr__(clone, "actions", self.actions)
        return clone
