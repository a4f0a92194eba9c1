"""The explorer: a derivation as columns, in a notebook and as a page."""
