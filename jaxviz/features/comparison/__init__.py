"""Two derivations side by side."""
