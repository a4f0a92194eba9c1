"""Reports → view models: plain data for the explorer and the exports, with no jax array and no widget inside."""
