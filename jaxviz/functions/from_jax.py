"""Functions of JAX's that need no version for derived functions, under JAX's names."""

from jax import checkpoint as checkpoint
from jax import closure_convert as closure_convert
from jax import pmap as pmap
from jax import remat as remat
from jax import shard_map as shard_map
from jax.ad_checkpoint import checkpoint_name as checkpoint_name
from jax.custom_derivatives import linear_call as linear_call
