"""What only the wing needs of JAX's private names, which it takes from `jaxviz.ir.compat.private`."""
