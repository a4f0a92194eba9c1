"""The one package that imports `jax._src` and knows JAX versions.

`private_names.py` has a row for each name: why the public API is not enough, and what does not work if JAX lacks it.
"""

from jaxviz.ir.compat.batching import *
from jaxviz.ir.compat.calls import *
from jaxviz.ir.compat.checks import *
from jaxviz.ir.compat.compiling import *
from jaxviz.ir.compat.custom_rules import *
from jaxviz.ir.compat.devices import *
from jaxviz.ir.compat.hi_primitives import *
from jaxviz.ir.compat.jaxprs import *
from jaxviz.ir.compat.policies import *
from jaxviz.ir.compat.recording import *
from jaxviz.ir.compat.rules import *
from jaxviz.ir.compat.shardy import *
from jaxviz.ir.compat.source import *
from jaxviz.ir.compat.tracing import *
from jaxviz.ir.compat.values import *
from jaxviz.ir.compat.vjp_objects import *
