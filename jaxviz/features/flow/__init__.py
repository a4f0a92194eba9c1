"""Which parameters the gradient of a loss reaches, and where it ends on the way to the others."""
