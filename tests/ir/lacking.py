"""Makes jaxviz see a JAX without some private names: `python lacking.py NAME... -- CODE`."""

import importlib
import sys
import types

import jax.experimental
import jax.extend
import jax.numpy  # noqa: F401  what of JAX is imported while jaxviz is, with the names that it needs itself


def hide(name):
    """Hides a name under `jax._src` from later imports; JAX's own modules still have it."""
    *path, last = name.split(".")
    owner = importlib.import_module("jax._src")
    for i, part in enumerate(path):
        if not hasattr(owner, part):
            importlib.import_module(".".join(["jax._src", *path[: i + 1]]))
        found = getattr(owner, part)
        copy = types.ModuleType(getattr(found, "__name__", part))
        copy.__dict__.update({k: v for k, v in vars(found).items() if k != "__dict__"})  # a class has one there
        setattr(owner, part, copy)
        owner = copy
    del owner.__dict__[last]


if __name__ == "__main__":
    end = sys.argv.index("--")
    for name in sys.argv[1:end]:
        hide(name)
    exec(sys.argv[end + 1])
