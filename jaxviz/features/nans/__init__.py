"""Finds where a NaN or an infinity first occurs."""
