"""What XLA makes of a program: a wing that the core does not import; it enters through `jaxviz/displays.py`."""
