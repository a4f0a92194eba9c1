"""Speed and memory of the engine, as ratios to JAX's own taken side by side in one process. Run with `make bench`."""
