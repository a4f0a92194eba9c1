"""Programs whose text the explorer copies. Run as a script, this writes their views and JAX's output to a fixture."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

import jaxviz
from jaxviz.derivation import STAGES
from jaxviz.features.explorer.columns import view_of
from jaxviz.page.schema import to_json

FIXTURE = Path(__file__).parents[2] / "fixtures" / "printed.json"


def waves(params, x):
    y = jnp.sin(params["w"] * x)
    return jnp.sum(jnp.cos(y) * y + params["b"])


def loop(w, xs):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, jnp.sin(h)

    _, ys = lax.scan(step, jnp.zeros(w.shape[0]), jnp.exp(xs))
    return jnp.sum(ys**2)


@jax.jit
def layer(w, x):
    y = jax.nn.relu(x @ w)
    return lax.cond(y.sum() > 0.0, lambda y: jnp.where(y > 0.5, y, 1.0), lambda y: jnp.exp(y) * 2.0, y)


def layers(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.mean(x)


def sin_cos(x, w):
    return jnp.sum(jnp.sin(x) * jnp.cos(w @ x))


def carries(w, xs):
    def step(c, x):
        c = jnp.tanh(w @ c + x)
        return c, jnp.sum(c)

    c, sums = lax.scan(step, jnp.ones(3), xs)
    return jnp.sum(sums) + jnp.sum(c)


def checkpointed(x):
    return jax.checkpoint(lambda x: jnp.tanh(jnp.sin(x)))(x)


PROGRAMS = {
    "waves": (waves, ({"w": jnp.ones(3), "b": jnp.ones(3)}, jnp.ones(3))),
    "loop": (loop, (jnp.ones((6, 6)), jnp.ones((10, 6)))),
    "sin_cos": (sin_cos, (jnp.ones(3), jnp.ones((3, 3)))),
    "carries": (carries, (jnp.ones((3, 3)), jnp.ones((4, 3)))),
    "checkpointed": (checkpointed, (jnp.ones((128, 128)),)),
    "layers": (layers, ([jnp.ones((4, 4))] * 3, jnp.ones((2, 4)))),
}


def printed(f, args):
    """The view of a function, and JAX's output for each of its stages."""
    derivation = jaxviz.derive(f, *args)
    view = to_json(view_of(derivation, source=False))
    for file in view["files"]:
        file["path"] = Path(file["path"]).name  # independent of the machine
    return {"view": view, "text": {key: str(getattr(derivation, key).jaxpr) for key in STAGES}}


if __name__ == "__main__":
    made = {"jax": jax.__version__, **{name: printed(*p) for name, p in PROGRAMS.items()}}
    FIXTURE.write_text(json.dumps(made) + "\n")
    sys.stdout.write(f"{FIXTURE}: {FIXTURE.stat().st_size:,} bytes\n")
