"""The explorer: a derivation in columns, in a notebook and as a page."""
