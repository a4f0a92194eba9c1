"""What XLA makes of a program: a wing that the core does not import; `displays.py` lists what it adds to lower layers."""
