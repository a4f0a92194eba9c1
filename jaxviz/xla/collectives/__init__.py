"""Which line communicates: the collectives of a gradient, before and after XLA partitions it."""
