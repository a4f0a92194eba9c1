"""The colours of text in pictures."""

INK = "#222222"
"""On coloured surfaces."""

ON_ANY_PAGE = "#7b8189"
"""Readable on white and on black."""
