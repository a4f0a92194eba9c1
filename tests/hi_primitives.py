"""Hi-primitives that several tests use, under each version's name for their base class."""

import jax.numpy as jnp

try:
    from jax.experimental.hijax import HiPrim
except ImportError:  # before 0.12
    from jax.experimental.hijax import VJPHiPrimitive as HiPrim


__all__ = ["HiPrim", "OnlyReverse"]


class OnlyReverse(HiPrim):
    """The hyperbolic tangent, without a rule for forward mode."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return jnp.tanh(x)

    def vjp_fwd(self, nonzeros, x):
        y = jnp.tanh(x)
        return y, y

    def vjp_bwd_retval(self, y, ct):
        return (ct * (1 - y * y),)
