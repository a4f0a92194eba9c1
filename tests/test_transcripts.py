"""The transcripts that are lines at Python's prompt, and need nothing else."""

import re

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


def test_no_expected_text_names_a_folder_of_the_machine_that_wrote_it():
    """Such a text would be right in one checkout only."""
    tests = transcripts.FOLDER.parents[1]
    files = [p for folder in ("goldens", "fixtures") for p in (tests / folder).rglob("*.*")]
    assert len(files) > 100
    folders = re.compile(rb"/(?:site-packages|root|work|Users)/")
    assert {p.name: found[0] for p in files if (found := folders.search(p.read_bytes()))} == {}
