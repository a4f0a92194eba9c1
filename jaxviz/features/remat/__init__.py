"""Which values to save and which to recompute: plans, and the policies of checkpoints."""
