"""Steps, series and reports of a watch, and of lines that are watched, as transcripts; what they receive is compared with JAX elsewhere."""

import jax
import jax.numpy as jnp
import pytest
import transcripts

import jaxviz
from jaxviz.features.probes import series


@pytest.mark.slow
@transcripts.of("probes")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_whole_values_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(series, "MOST_BYTES", 100)
    f = jax.jit(lambda x: jaxviz.probe(x, "h"))
    with jaxviz.watch("h", what="value") as w:
        for x in w.steps(range(40)):
            f(jnp.full(3, float(x)))
    assert 0 < sum(r.values.nbytes for r in w["h"].records) <= 100
    assert w["h"].values.shape[1:] == (3,)
