"""A regression by variational inference, as in NumPyro's documentation."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


x = jax.random.normal(jax.random.PRNGKey(0), (64, 4))
y = (x[:, 0] > 0).astype(jnp.float32)
guide = AutoNormal(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
r = svi.run(jax.random.PRNGKey(1), 50, x, y, progress_bar=False)
print(float(r.losses[-1]).hex())
