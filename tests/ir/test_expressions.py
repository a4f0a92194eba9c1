"""The source text of the expression that produced an equation, and the names that values have from it, as transcripts."""

import linecache

import transcripts

from jaxviz import trace
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.origin import locate
from jaxviz.report.places import source_line


@transcripts.of("names")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_another_source_than_what_was_run_gives_none(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("import jax.numpy as jnp\ndef f(x):\n    return jnp.sin(x)\n")
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    at = lambda: locate(trace(space["f"])(1.0).equations[0].source)
    assert (expression_at(at()), source_line(at())) == ("jnp.sin(x)", "return jnp.sin(x)")
    file.write_text("import jax.numpy as jnp\ndef f(x):\n    y = 1\n    return y\n")
    linecache.checkcache(str(file))
    assert expression_at(at()) == ""
