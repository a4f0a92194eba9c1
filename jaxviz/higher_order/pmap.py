"""`jax.pmap`, which JAX builds from a `shard_map` inside a `jit`: their files have its rules."""
