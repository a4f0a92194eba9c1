"""Pictures of programs, laid out by jaxviz or by Graphviz."""
