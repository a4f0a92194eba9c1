"""What stands in the place of JAX's own functions: the transformations, Jacobians, jit and functions with custom rules."""
