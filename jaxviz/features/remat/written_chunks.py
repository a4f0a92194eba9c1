"""A scan over chunks in the user's source: a function around `lax.scan` that splits it into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxviz.features.remat.edits import Way, around
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.source import end_of, last_name, start_of

SCAN_IN_CHUNKS = "scan_in_chunks"
"""The name of the function."""
DEFINITION = '''
def scan_in_chunks(scan, length_of_chunk):
    """A scan over chunks of iterations, each in a checkpoint: only the carries between chunks are saved, and while a chunk is recomputed, those within it."""

    def over_chunks(f, init, xs=None, length=None, reverse=False, unroll=1):
        n = length if length is not None else jax.tree.leaves(xs)[0].shape[0]
        split = lambda x: x.reshape(n // length_of_chunk, length_of_chunk, *x.shape[1:])
        inside = lambda carry, xs: scan(f, carry, xs, length_of_chunk, reverse, unroll)
        chunk = jax.checkpoint(inside, prevent_cse=False)
        carry, ys = scan(chunk, init, jax.tree.map(split, xs), n // length_of_chunk, reverse)
        return carry, jax.tree.map(lambda y: y.reshape(n, *y.shape[2:]), ys)

    return over_chunks

'''
"""The source of the function."""


def in_chunks(ways: Sequence[Way], chunk: int) -> list[Way] | None:
    """The ways to write a checkpoint in a body, with its scan also split into chunks; None if it is not called as `lax.scan` is.

    Args:
      ways: the ways without chunks.
      chunk: the iterations of a chunk.
    """
    found: list[Way] = []
    for way in ways:
        func = way.call.func if way.call is not None else None
        if func is None or last_name(func) != "scan":
            return None
        whole = around(way.file, start_of(func), end_of(func), f"{SCAN_IN_CHUNKS}(", f", {chunk})")
        found.append(replace(way, changes=(*way.changes, *whole)))
    return found


def by_hand(region: Region, chunk: int) -> str:
    """What the user has to write if it cannot be written automatically."""
    return (
        f"Turn the loop of {region.described} into a loop over chunks, whose body is jax.checkpoint of a loop over {chunk} "
        "iterations; the figures above assume that."
    )
