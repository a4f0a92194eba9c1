"""What an unmodified run leaves behind: what it compiled, the gradients that it took, and what to do about them."""
