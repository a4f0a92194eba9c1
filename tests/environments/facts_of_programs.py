"""Facts of small programs, gathered once in this process, and the report of two of them."""

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import jax
import jax.numpy as jnp

from jaxviz.environments.changes import leaf_changes
from jaxviz.environments.gather import gather_facts
from jaxviz.environments.report import Upgrade
from jaxviz.environments.values import ARRAYS, GIVEN, leaves_in

W = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
X = jnp.linspace(0.0, 2.0, 8).reshape(2, 4)


def loss(w, x):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w)))


def checkpointed(w, x):
    return jnp.sum(jax.checkpoint(lambda h: jnp.sin(jnp.tanh(h)) * h)(x @ w))


PROGRAMS = {
    "loss": (loss, (W, X)),
    "checkpointed": (checkpointed, (W, X)),
    "types": (loss, (W, jax.ShapeDtypeStruct(X.shape, X.dtype))),
}


def gathered(name, folder, args=None):
    fun, own = PROGRAMS[name]
    return gather_facts(f"programs:{name}", "w, x", fun, own if args is None else args, {}, 0, Path(folder))


@cache
def facts(name):
    """The facts of a program, and the folder with its arrays."""
    folder = Path(mkdtemp(prefix="jaxviz-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return gathered(name, folder), folder


def upgrade_of(before, after):
    """The report of two programs, as if they were one in two environments."""
    (a, first), (b, second) = facts(before), facts(after)
    leaves = leaf_changes(a, b, (leaves_in(first), leaves_in(second)))
    return Upgrade("programs:loss", "w, x", (a.environment, b.environment), (a, b), leaves=leaves)


def give(folder, other):
    """Puts the arguments of another environment into a folder."""
    shutil.copyfile(other / ARRAYS, folder / GIVEN)
