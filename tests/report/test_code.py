"""How a diff displays."""

import json

from IPython.core.formatters import DisplayFormatter

from jaxviz.report.code import Diff

TEXT = "# loss: peak 2.0 MiB → 1.0 MiB\n--- a/model.py\n+++ b/model.py\n@@ -1 +1 @@\n-x = f(x)\n+x = jax.checkpoint(f)(x)  # ```"


def test_a_notebook_shows_a_diff_in_colour_and_everything_else_as_it_is():
    shown, _ = DisplayFormatter().format(Diff(TEXT))
    assert shown["text/markdown"] == f"````diff\n{TEXT}\n````"
    assert shown["text/plain"].strip() == repr(Diff(TEXT)) == TEXT
    assert Diff(TEXT) == TEXT
    assert json.loads(json.dumps(Diff(TEXT))) == TEXT
