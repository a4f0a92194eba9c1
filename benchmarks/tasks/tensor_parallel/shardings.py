"""Which dimension of which parameter is split."""

import re

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

RULES = [
    (r"embed$", P()),
    (r"(up|gate)$", P(None, "model")),
    (r"qkv$", P(None, None, "model", None)),
    (r"(^|/)out$", P(None, "model")),
    (r"attention/(out|o)$", P("model", None, None)),
    (r"down$", P("model", None)),
]


def spec(path, x):
    name = "/".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
    return next(spec for pattern, spec in RULES if re.search(pattern, name))


def shardings(params, mesh):
    return jax.tree_util.tree_map_with_path(lambda path, x: NamedSharding(mesh, spec(path, x)), params)
