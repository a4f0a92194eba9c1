"""The transcripts that are lines at Python's prompt, and need nothing else."""

import pytest
import transcripts


@transcripts.of(
    "budgets", "files", "modules", "names", "options", "page", "places", "schema", "sources", "tables", "vmap"
)
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.slow
@transcripts.of("hi_types", "leaks", "references", "sharing", "teach", "unopened")
def test_slow_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.slow
@transcripts.of("own_code")
def test_transcript_with_flax(transcript, tmp_path):
    pytest.importorskip("flax.linen", reason="the engine's tests with the newest JAX go without the libraries")
    transcripts.replay(transcript, tmp_path)
