"""The program representation: syntax, origins, type checks, and the one file that knows JAX's insides."""
