"""The values that a gradient saves for its backward pass, and why."""
