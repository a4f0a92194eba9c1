"""What is changed of docstrings before and after napoleon reads them."""

import re

from sphinx.ext.napoleon import GoogleDocstring

SECTIONS = [("Traits that can be observed and set", "params_style"), ("Traits", "params_style")]
"""Sections that napoleon does not know, and reads like `Args`."""
_PROPERTIES: dict[str, list[str]] = {}


def before_napoleon(app, what, name, obj, options, lines):
    """Renders text in single backquotes as code, and hides properties from napoleon, which takes `bytes:
    of all` for a type."""
    in_example = False
    for i, line in enumerate(lines):
        in_example = line.lstrip().startswith(">>>") or (in_example and bool(line.strip()))
        if not in_example:
            lines[i] = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
    if what in ("property", "attribute"):
        _PROPERTIES[name] = GoogleDocstring(lines, app.config, app, "method", name, obj, options).lines()
        lines[:] = [""]


def after_napoleon(app, what, name, obj, options, lines):
    """Fixes napoleon's rendering of `*args, **kwargs: text`, and of sentences in `Raises`."""
    lines[:] = _PROPERTIES.pop(name, lines)
    lines[:] = [line.replace(":param **kwargs:", r":param \*\*kwargs:") for line in lines]
    lines[:] = [re.sub(r"^:raises ([^:]* [^:]*):\s*$", r":raises: \1", line) for line in lines]
