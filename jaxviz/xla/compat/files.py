"""What the files of JAX do."""

from __future__ import annotations

import jaxlib

from jaxviz.ir.compat.private import pjit

_JAX = pjit.__file__.partition("_src")[0]
_JAXLIB = jaxlib.__file__.removesuffix("__init__.py")
_DERIVES = tuple(
    f"{_JAX}_src/{name}"
    for name in (
        "interpreters/ad.py",
        "interpreters/batching.py",
        "ad_util.py",
        "custom_derivatives.py",
        "ad_checkpoint.py",
    )
)
_WRAPS = ("traceback_util.py", "profiler.py", "/util.py", "linear_util.py", "config.py", "api_util.py")


def part_of_jax(file: str) -> str:
    """The role of a file of JAX's: 'derivation', 'wrapper' if it only calls others, otherwise 'jax'; '' for files that
    are not JAX's."""
    if file.startswith(_JAXLIB):
        return "jax"
    if not file.startswith(_JAX):
        return ""
    return "derivation" if file in _DERIVES else "wrapper" if file.endswith(_WRAPS) else "jax"


def name_in_jax(file: str, function: str) -> str:
    """`jax.numpy.reductions.sum` for a function in `jax/_src/numpy/reductions.py`."""
    if file.startswith(_JAXLIB):
        return f"jaxlib.{file[len(_JAXLIB) :].removesuffix('.py').replace('/', '.')}.{function}"
    return f"jax.{file[len(_JAX) :].removeprefix('_src/').removesuffix('.py').replace('/', '.')}.{function}"
