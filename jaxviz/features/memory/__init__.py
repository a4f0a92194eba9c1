"""What is alive over a gradient's time, step by step."""
