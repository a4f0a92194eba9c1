"""`jax.pmap`, which JAX makes of a `shard_map` inside a `jit`: those two files are its rules.

The primitives that it was before, `xla_pmap` and `pmap`, are refused, with the user's line: see `OWN_RULES` in `transforms/driver.py`.
"""
