"""A pytest plugin that runs JAX's own tests with jaxviz.

It replaces functions in `jax` and `jax._src.api` by jaxviz's before JAX's test files are imported. JAX's own linearize
and backward pass then raise if jaxviz calls them, so that no test passes by delegating to JAX. A test in `reasons.py`
is expected to fail, and the run fails if it passes.

`make test-jax JAX_CHECKOUT=…` runs it on a checkout of JAX at the tag of the installed version.
"""

from __future__ import annotations

import functools
import os
import sys

import jax
import pytest
from jax._src import api
from jax._src.interpreters import ad
from reasons import CANNOT, RAISES

import jaxviz

REPLACED = ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian", "linear_transpose")
FORBIDDEN = (
    "linearize", "linearize_jaxpr", "_linearize_jaxpr", "linearize_subtrace", "linearize_subtrace_2", "backward_pass",
    "backward_pass3",
)  # fmt: skip
JAX_FOLDER = os.path.dirname(jax.__file__) + os.sep
JAXVIZ_FOLDER = os.path.dirname(jaxviz.__file__) + os.sep
IN_BETWEEN = (os.sep + "functools.py", os.sep + "contextlib.py", __file__)


def reached_from_jaxviz() -> bool:
    """Whether the innermost frame outside JAX is in jaxviz, not in a test."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(JAXVIZ_FOLDER):
            return True
        if not file.startswith(JAX_FOLDER) and not file.endswith(IN_BETWEEN):
            return False
        frame = frame.f_back
    return False


def forbidden(function):
    @functools.wraps(function)
    def checked(*args, **kwargs):
        if reached_from_jaxviz():
            raise AssertionError(f"jaxviz handed its work to JAX's own {function.__name__}")
        return function(*args, **kwargs)

    return checked


for _name in REPLACED:
    for _module in (jax, api):
        setattr(_module, _name, getattr(jaxviz, _name))
for _name in FORBIDDEN:
    if hasattr(ad, _name):
        setattr(ad, _name, forbidden(getattr(ad, _name)))


def pytest_collection_modifyitems(items):
    for item in items:
        names = item.name, f"{item.parent.name}.{item.name}"
        if reason := next((CANNOT[name] for name in names if name in CANNOT), None):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=RAISES.get(reason)))
