"""A simulation at constant temperature, and the energy minimised before it, as in the notebooks of JAX MD."""

import jax
import jax.numpy as jnp
from jax import random
from jax_md import energy, minimize, quantity, simulate, space

N, dimension = 64, 2
box_size = quantity.box_size_at_number_density(N, 0.8, dimension)
displacement, shift = space.periodic(box_size)

key, split = random.split(random.PRNGKey(0))
R = random.uniform(split, (N, dimension), minval=0.0, maxval=box_size, dtype=jnp.float32)

energy_fn = energy.soft_sphere_pair(displacement)
fire_init, fire_apply = minimize.fire_descent(energy_fn, shift)
fire_apply = jax.jit(fire_apply)
fire_state = fire_init(R)
for _ in range(20):
    fire_state = fire_apply(fire_state)
print(float(energy_fn(fire_state.position)).hex())

init, apply = simulate.nvt_nose_hoover(energy_fn, shift, dt=1e-3, kT=0.1)


@jax.jit
def run(state):
    return jax.lax.fori_loop(0, 100, lambda i, state: apply(state), state)


state = init(key, fire_state.position)
for _ in range(3):
    state = run(state)
    print(float(energy_fn(state.position)).hex())
