"""Runs programs; independent of user functions."""
