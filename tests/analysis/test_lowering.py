"""A gradient's compiled program belongs to exactly this gradient."""

import subprocess
import sys

import pytest

TWO_THAT_COMPILE_ALIKE = """
import sys
import jax, jax.ad_checkpoint, jax.numpy as jnp
import jaxviz
from jaxviz.analysis.lowering import lower_gradient

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

def loss(name):
    def f(x):
        x = jax.ad_checkpoint.checkpoint_name(x, "x") if name else x
        return jnp.sum(jnp.sin(x))
    return f

for name in (False, True, False):
    derivation = jaxviz.derive(loss(name), jnp.ones(7))
    number = next(i for i, e in enumerate(derivation.forward.equations) if e.primitive.name == "sin")
    print(number, f"jaxviz.{number}/sin" in lower_gradient(derivation).hlo)
"""


@pytest.mark.slow
def test_a_cache_on_disk_gives_no_program_with_the_lines_of_another(tmp_path):
    """XLA's cache ignores names and source lines, but the equations' numbers differ."""
    done = subprocess.run(
        [sys.executable, "-c", TWO_THAT_COMPILE_ALIKE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:3] == ["0 True", "1 True", "0 True"]
    assert list(tmp_path.iterdir()), "nothing was cached"
