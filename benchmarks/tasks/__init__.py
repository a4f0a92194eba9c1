"""Twenty tasks that measure a solver, with jaxviz and without it."""
