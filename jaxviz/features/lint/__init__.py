"""Advice on what to write differently, with the bytes that it frees."""
