"""Functions of JAX's that derived functions need no others for, under the names that JAX gives them."""

from jax import checkpoint as checkpoint
from jax import closure_convert as closure_convert
from jax import pmap as pmap
from jax import remat as remat
from jax import shard_map as shard_map
from jax.ad_checkpoint import checkpoint_name as checkpoint_name
from jax.custom_derivatives import linear_call as linear_call
