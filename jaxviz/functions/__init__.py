"""Replacements for JAX's functions: the transformations, Jacobians, jit and functions with custom rules."""
