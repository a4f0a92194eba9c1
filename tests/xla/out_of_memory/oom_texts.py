"""Texts with which XLA says that memory ran out, in the forms of public reports; names, paths and sizes are made up."""

from pathlib import Path

TEXTS = {path.stem: path.read_text() for path in sorted(Path(__file__).with_name("texts").glob("*.txt"))}
