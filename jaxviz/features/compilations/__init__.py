"""What was compiled, why again, and what XLA made of it."""
