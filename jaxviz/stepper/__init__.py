"""`step`: a function's forward and backward program, run equation by equation."""
