"""Where a NaN comes from."""
