"""`jax.pmap`, which JAX builds from a `shard_map` inside a `jit`: their files have its rules.

The primitives that it was before, `xla_pmap` and `pmap`, are rejected, with the user's line: see `OWN_RULES` in `transforms/driver.py`.
"""
