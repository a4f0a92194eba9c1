"""The memory of a compiled program over its schedule, with each byte attributed to values."""
