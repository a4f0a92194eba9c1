"""How a diff displays."""

import json
import re

from IPython.core.formatters import DisplayFormatter

from jaxviz.report.code import Diff

TEXT = "# loss: peak 2.0 MiB → 1.0 MiB\n--- a/model.py\n+++ b/model.py\n@@ -1 +1 @@\n-x = f(x) < 1\n+x = jax.checkpoint(f)(x) < 1"


def test_a_notebook_shows_a_diff_in_colour_and_everything_else_as_it_is():
    shown, _ = DisplayFormatter().format(Diff(TEXT))
    coloured = re.findall(r"background: [^\"]+\">([^<]*)</span>", shown["text/html"])
    assert coloured == ["-x = f(x) &lt; 1", "+x = jax.checkpoint(f)(x) &lt; 1"]
    assert shown["text/plain"].strip() == repr(Diff(TEXT)) == TEXT
    assert Diff(TEXT) == TEXT
    assert json.loads(json.dumps(Diff(TEXT))) == TEXT
