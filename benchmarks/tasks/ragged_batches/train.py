"""An epoch of evaluation."""

import jax
from batches import batches, documents
from model import batch_loss, init

compiled = jax.jit(batch_loss)


def losses(params, docs):
    """Of each batch, from the shortest documents to the longest."""
    return [float(compiled(params, tokens, mask)) for tokens, mask in batches(docs)]


if __name__ == "__main__":
    print(losses(init(jax.random.key(0)), documents(0)))
