"""The memory of a gradient over time, step by step."""
