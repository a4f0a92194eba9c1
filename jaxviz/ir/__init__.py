"""The program representation: syntax, origins, type checks, and the one package that uses JAX's internals."""
