"""The transcripts that are lines at Python's prompt, and need nothing else."""

import pytest
import transcripts


@transcripts.of("budgets", "options", "tables")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.slow
@transcripts.of("hi_types", "leaks", "references", "teach", "unopened")
def test_slow_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
