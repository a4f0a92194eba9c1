"""Code of a plan applied with git, and results compared."""

import subprocess

import jax
import numpy as np


def patch(code, encoding="utf-8"):
    """Applies the diff of some code, as it is, in the current folder."""
    text = code.encode(encoding, errors="replace")
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=text, check=True)


def agree(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
