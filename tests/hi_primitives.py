"""Hi-primitives that several tests use, under each version's name for their base class, and programs with them."""

import jax
import jax.numpy as jnp
from jax import lax
from programs import Case

try:
    from jax.experimental.hijax import HiPrim
except ImportError:  # before 0.12
    from jax.experimental.hijax import VJPHiPrimitive as HiPrim


__all__ = ["CASES", "HiPrim", "OnlyReverse", "squared"]


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


class Squared(HiPrim):
    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return x**2

    def vjp_fwd(self, nonzeros, x):
        return self(x), x

    def vjp_bwd_retval(self, x, ct):
        return (2.0 * ct * x,)

    def jvp(self, primals, tangents):
        (x,), (t,) = primals, tangents
        return self(x), 2.0 * x * t


def squared(x):
    return Squared(jax.typeof(x))(x)


PROGRAMS: dict = {
    "alone": squared,
    "in scan": lambda x: lax.scan(lambda c, _: (squared(c), None), x, None, length=2)[0],
    "in cond": lambda x: lax.cond(x[0] > 0, squared, jnp.sin, x),
    "in checkpoint": jax.checkpoint(lambda x: squared(jnp.sin(x))),
    "in jit": jax.jit(lambda x: squared(jnp.sin(x))),
    "named call": jax.named_call(jnp.sin, name="sine"),
    "platform": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
    "barrier": lambda x: lax.optimization_barrier(jnp.sin(x)),
    "root by Newton": lambda a: lax.custom_root(
        lambda x: x**2 - a,
        jnp.ones(3),
        lambda f, x: lax.while_loop(lambda c: c[0] < 20, lambda c: (c[0] + 1, c[1] - f(c[1]) / (2 * c[1])), (0, x))[1],
        lambda g, y: y / g(jnp.ones(3)),
    ),
}
if jax.__version_info__ >= (0, 11):
    from jax.experimental.xla_metadata import xla_metadata_call

    # In a checkpoint JAX cannot transpose it, and so it is not in the shared table.
    PROGRAMS["metadata"] = lambda x: xla_metadata_call(lambda x: (jnp.tanh(x) * x, x, jnp.exp(x)), tag="a")(jnp.sin(x))
CASES = [Case(f"hi_{name.replace(' ', '_')}", f, (jnp.linspace(0.5, 2.5, 3),)) for name, f in PROGRAMS.items()]
"""Programs with primitives that hold programs, or have rules of their own, and are not in the shared table."""
