"""Donated arguments: which results reuse their memory, and where each array was donated."""
