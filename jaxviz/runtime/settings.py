"""JAX's settings for what jaxviz itself computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh

from jaxviz.ir import compat


@contextlib.contextmanager
def usual_settings() -> Iterator[None]:
    """Within the context, JAX computes as it does by default: without the user's mesh, and without stricter rules or
    checks.

    What is computed about the user's values, such as their mean, must not depend on what the user's own code may do.
    """
    none = Mesh(np.empty((), dtype=object), ())
    with (
        jax.set_mesh(none), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"),
        jax.disable_jit(False), compat.nan_checks_off(),
    ):  # fmt: skip
        yield
