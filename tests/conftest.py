"""What all tests share: a CPU backend, and no state left over from another test's caches."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
