"""Lines of test files, where a report has to lead to one."""

import inspect


def line_of(fun, text="# here"):
    """The first line of a function, or of what it wraps, with this text."""
    lines, first = inspect.getsourcelines(inspect.unwrap(fun))
    return first + next(i for i, line in enumerate(lines) if text in line)
