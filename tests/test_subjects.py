"""What reports are about, as transcripts: the gradient that a training step takes, or no gradient, because of which loop."""

import jax.numpy as jnp
import pytest
import transcripts
from lines import line_of

import jaxviz


@pytest.mark.slow
@transcripts.of("subject")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.parametrize("report", ["residuals", "lint", "cost", "memory"])
def test_a_loop_in_a_librarys_jitted_function_has_the_users_line_too(tmp_path, report):
    file = tmp_path / "site-packages" / "halving.py"
    file.parent.mkdir()
    file.write_text(
        "import jax\n\n\n@jax.jit\ndef halved(x):\n    return jax.lax.while_loop(lambda x: x > 1.0, lambda x: 0.5 * x, x)\n"
    )
    space = {}
    exec(compile(file.read_text(), str(file), "exec"), space)

    def f(x):
        return space["halved"](x[0])  # here

    try:
        found = str(getattr(jaxviz, report)(f, jnp.array([3.0, 2.0])))
    except jaxviz.ReverseModeError as error:
        found = str(error)
    said = " ".join(found.split())
    assert "halving.py:6" in said
    assert f"test_subjects.py:{line_of(f)})" in said
