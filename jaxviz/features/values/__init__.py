"""What the values of a program are: capture and replace them."""
