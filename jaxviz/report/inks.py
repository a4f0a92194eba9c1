"""The colours of text in pictures."""

INK = "#222222"
"""On coloured surfaces."""

ON_ANY_PAGE = "#7b8189"
"""Readable on white and on black."""

ADDED, REMOVED = "rgba(46, 160, 67, 0.2)", "rgba(248, 81, 73, 0.2)"
"""Behind lines of a diff, on white and on black."""
