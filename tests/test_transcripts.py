"""The transcripts that are lines at Python's prompt, and need nothing else."""

import pytest
import transcripts


@pytest.mark.slow
@transcripts.of("hi_types", "leaks", "references", "teach", "unopened")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
