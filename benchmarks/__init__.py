"""Speed and memory of the engine, relative to JAX's own, measured side by side in one process.

Run with `make bench`.
"""
