"""Processes in which notebooks run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def run():
    """Runs sources in sequence in a fresh process that has already imported JAX; returns the text output of each."""
    command = [sys.executable, str(Path(__file__).with_name("forking.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:

        def run(cells, folder):
            server.stdin.write(json.dumps({"cells": cells, "folder": str(folder)}) + "\n")
            server.stdin.flush()
            found = json.loads(server.stdout.readline())
            assert "error" not in found, found["error"]
            return found["texts"]

        yield run
        server.stdin.close()
