"""Values inside XLA's CPU kernels, which no figure of XLA counts."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.analysis.unreported import NOTHING
from jaxviz.features.remat.verify import compiled_figures

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends have no such kernels"),
]


@jax.checkpoint
def spread(z):
    return jnp.sum(jnp.sqrt(jnp.sum((z[:, None] - z) ** 2, -1) + 1e-6))


Z = jax.ShapeDtypeStruct((64, 32), "float32")


def test_an_array_inside_of_a_kernel_is_named_beside_the_figures():
    found = jaxviz.compiled_memory(spread, Z)
    compiled = jax.jit(jax.value_and_grad(spread)).lower(Z).compile()
    assert "ynn_fusion" in compiled.as_text()
    assert (found.unreported.type, found.unreported.nbytes) == ("f32[64,64,32]", 64 * 64 * 32 * 4)
    assert found.unreported.nbytes <= found.unreported.most
    assert "one computes f32[64,64,32], 512.0 KiB, inside and may store it" in " ".join(str(found).split())
    assert compiled_figures(compiled).unreported == found.unreported


def test_a_kernel_whose_values_are_as_large_as_its_operands_is_not_told_of():
    found = jaxviz.compiled_memory(lambda x: jnp.sum(jnp.exp(x) * x), jax.ShapeDtypeStruct((64, 512), "float32"))
    assert found.unreported == NOTHING
    assert "ynn_fusion" not in str(found)


WITHOUT = """
import jax, jaxviz
from test_kernels import Z, spread
found = jaxviz.compiled_memory(spread, Z)
print(found.unreported.most, found.temp_nbytes >= 64 * 64 * 32 * 4)
"""


def test_with_the_flag_of_the_note_xla_reports_the_array():
    env = {**os.environ, "XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["0", "True"]


def pairs(z):
    return jnp.sum(jnp.sqrt(jnp.sum((z[:, None] - z) ** 2, -1) + 1e-6) ** 2)


def loss(z):
    return pairs(jnp.tanh(z))


@pytest.mark.parametrize(("limit", "says"), [("1MiB", "whether that fits is not known"), ("64KiB", "does not fit")])
def test_that_a_change_fits_is_not_said_of_a_peak_beside_which_a_kernel_may_allocate_more(limit, says):
    error = "RESOURCE_EXHAUSTED: Out of memory allocating 99999999 bytes."
    found = jaxviz.oom(error, loss, jax.ShapeDtypeStruct((64, 256), "float32"), limit=limit)
    (change,) = found.changes
    text = " ".join(str(found).split())
    assert not change.fits
    assert says in text
    assert "that fits." not in text
    assert ("f32[64,64,256], 4.0 MiB, inside and may store it" in text) is (change.after < 1 << 20)
