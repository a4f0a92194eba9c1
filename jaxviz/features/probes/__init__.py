"""Values recorded while a program runs."""
