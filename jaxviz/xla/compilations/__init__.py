"""What was compiled, why it was compiled again, and the compiled program."""
