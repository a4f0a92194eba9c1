"""Donated arguments: what takes over their memory, and where each array was donated."""
