"""Which values to save and which to recompute: plans, and checkpoint policies."""
