"""Checks what jaxviz says on an accelerator, beside what plain JAX computes there: `make device`. See README.md."""
