"""The modules under `jax._src` that are used.

A name that this JAX lacks, and that only some feature needs, is replaced by an object that raises.
"""

from __future__ import annotations

import types

from jaxviz.ir.private_names import check_jax, complete

check_jax()  # before the imports below, which may fail with other versions of JAX

from jax._src import ad_util as _ad_util
from jax._src import api as _api
from jax._src import api_util, debugging, dispatch, dtypes, pjit
from jax._src import array as _array
from jax._src import callback as _callback
from jax._src import compute_on as _compute_on
from jax._src import config as _config
from jax._src import core as _core
from jax._src import custom_batching as _custom_batching
from jax._src import custom_derivatives as _custom_derivatives
from jax._src import effects as _effects
from jax._src import hijax as _hijax
from jax._src import linear_util as _lu
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map
from jax._src import sharding_impls as _sharding_impls
from jax._src import source_info_util as _source
from jax._src import traceback_util as _traceback_util
from jax._src import tree_util as _tree_util
from jax._src import xla_metadata as _xla_metadata
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.interpreters import pxla as _pxla
from jax._src.interpreters import remat as _remat
from jax._src.lax import lax as _lax
from jax._src.lax import slicing as _slicing
from jax._src.lax.control_flow import conditionals as _conditionals
from jax._src.lib import xla_client as _xla_client
from jax._src.lib.mlir import ir as _mlir
from jax._src.lib.mlir import passmanager as _passmanager
from jax._src.lib.mlir.dialects import hlo as _hlo
from jax._src.lib.mlir.dialects import sdy as _sdy
from jax._src.state import discharge as _discharge
from jax._src.state import primitives as _state_primitives
from jax._src.state import types as _state_types

try:
    from jax._src import flattree as _flattree
except ImportError:  # before 0.11
    _flattree = None

for _alias, _module in tuple(globals().items()):
    if isinstance(_module, types.ModuleType) and _module.__name__.startswith("jax._src."):
        globals()[_alias] = complete(_module)
