"""Gradient contracts: what is locked of a gradient in a file, and which of it no longer holds."""
