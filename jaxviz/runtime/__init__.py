"""What runs programs, and knows no user function."""
