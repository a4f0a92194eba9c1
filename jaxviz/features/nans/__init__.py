"""Finds where a NaN or an infinity is born."""
