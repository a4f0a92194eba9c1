"""Batches of documents of different lengths."""

import numpy as np

BATCH, LONGEST = 4, 96


def documents(seed, n=26):
    """Lists of tokens, of 5 to `LONGEST` each."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 50, rng.integers(5, LONGEST + 1)).tolist() for _ in range(n)]


def padded(docs):
    """i32[documents, tokens] with zeros before the shorter ones, so that all of them end together, and the mask."""
    width = max(map(len, docs))
    tokens = np.zeros((len(docs), width), np.int32)
    for row, doc in zip(tokens, docs, strict=True):
        row[width - len(doc) :] = doc
    return tokens, tokens > 0


def batches(docs):
    docs = sorted(docs, key=len)
    for i in range(0, len(docs), BATCH):
        yield padded(docs[i : i + BATCH])
