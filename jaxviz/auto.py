"""Records the run of this process, as `jaxviz run` does: `import jaxviz.auto`, before JAX compiles anything.

The folder is `jaxviz-run`, or that of the environment variable JAXVIZ.
"""

import os
import sys

from jaxviz.runs.start import BUDGET, OUT, when_jax_is_imported

when_jax_is_imported(os.path.basename(sys.argv[0]) or "python", os.environ.get("JAXVIZ") or OUT, BUDGET)
