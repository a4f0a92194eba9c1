"""What a gradient keeps for its backward pass, and why."""
