"""Runs programs; knows no user functions."""
