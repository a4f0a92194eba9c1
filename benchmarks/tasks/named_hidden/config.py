"""Sizes, and what the checkpoints keep."""

LAYERS, WIDTH, WIDE = 6, 128, 512
BATCH, LENGTH = 4, 128
SAVE = ("mlp_wide",)
