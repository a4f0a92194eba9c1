"""The memory of a compiled program over its schedule, each byte led back to the values that it is."""
