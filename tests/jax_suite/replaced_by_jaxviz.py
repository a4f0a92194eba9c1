"""A pytest plugin that runs JAX's own tests on jaxviz.

It puts jaxviz's functions in the place of JAX's in `jax` and `jax._src.api`, before JAX's test files are imported. JAX's own
linearize and backward pass then raise where jaxviz reaches them, so a test cannot pass by handing the work back to JAX.
"""

from __future__ import annotations

import functools
import os
import sys

import jax
from jax._src import api
from jax._src.interpreters import ad

import jaxviz

REPLACED = ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian", "linear_transpose")
FORBIDDEN = ("linearize", "linearize_jaxpr", "_linearize_jaxpr", "linearize_subtrace", "linearize_subtrace_2", "backward_pass", "backward_pass3")
JAX_FOLDER = os.path.dirname(jax.__file__)
JAXVIZ_FOLDER = os.path.dirname(jaxviz.__file__)


def reached_from_jaxviz() -> bool:
    """Whether the innermost frame that is not JAX's own is jaxviz's, and not a test's."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(JAXVIZ_FOLDER):
            return True
        if not file.startswith(JAX_FOLDER) and "<" not in file and f"{os.sep}functools.py" not in file and "contextlib" not in file:
            return False
        frame = frame.f_back
    return False


def forbidden(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if reached_from_jaxviz():
            raise AssertionError(f"jaxviz handed its work to JAX's own {function.__name__}")
        return function(*args, **kwargs)

    return wrapper


for name in REPLACED:
    for module in (jax, api):
        setattr(module, name, getattr(jaxviz, name))
for name in FORBIDDEN:
    setattr(ad, name, forbidden(getattr(ad, name)))
