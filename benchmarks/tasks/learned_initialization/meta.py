"""The outer loop: an initialization that adapts well."""

import jax
import jax.numpy as jnp
from adapt import WORDS, adapted, init, task_loss


def meta_loss(params, tasks):
    """The mean loss on the queries of tasks, after adapting to their support."""

    def of_a_task(support, query):
        return task_loss(adapted(params, *support), *query)

    return jnp.mean(jax.vmap(of_a_task)(*tasks))


def tasks(key, n=4):
    """Words and targets of the support and of the queries of `n` tasks."""

    def examples(key):
        words = jax.random.randint(key, (n, 8, 3), 0, WORDS)
        return words, jnp.sin(words.sum(-1).astype(jnp.float32) + jnp.arange(n)[:, None])

    a, b = jax.random.split(key)
    return examples(a), examples(b)


if __name__ == "__main__":
    params = init(jax.random.key(0))
    step = jax.jit(jax.value_and_grad(meta_loss))
    for i in range(3):
        value, grads = step(params, tasks(jax.random.key(i)))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        print(i, value)
