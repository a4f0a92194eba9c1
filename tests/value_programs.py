"""Programs that only transforms without `jit` take: their Python looks at values, or what their rules use changes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir
from programs import Case

ONE = jnp.float32(1.0)
X = jnp.linspace(0.5, 1.5, 3)
CASES: list[Case] = []


def case(*args, forward=True, name=""):
    """Adds a function to the table, once for each argument."""

    def enter(fun):
        of = name or fun.__name__
        CASES.extend(Case(f"{of}_{i}" if i else of, fun, (x,), forward=forward) for i, x in enumerate(args))
        return fun

    return enter


# --- branches ---------------------------------------------------------------------------------------------------------


@case(3 * ONE, -3 * ONE)
def piecewise(x):
    return x**2 if x > 0 else -x


@jax.jit
def piece(x):
    return jnp.sin(x) * 1.5


@case(ONE)
def loop(x):
    while x < 3:
        x = piece(x) + x
    return x


@case(2 * ONE)
def scaled_by_itself(x):
    return x * float(lax.stop_gradient(x))


@case(jnp.array([1.0, 5.0, 2.0]))
def picks(x):
    return x[int(jnp.argmax(x))] ** 2


@case(jnp.array([1.0, 1.5]))
def early_return(x):
    y = jnp.sum(x**2)
    if y > 100:
        return y
    for i in range(int(lax.stop_gradient(jnp.round(y)))):
        y = y * (1 + i * 0.1)
    return y


@case(jnp.array([1.0, 4.0]))
def numpy_of_what_carries_no_tangent(x):
    return jnp.sum(x) * np.asarray(lax.stop_gradient(x)).max()


@case(X)
def masked_by_constants(x):
    x = x.at[jnp.array([True, False, True])].set(2.0) * int(jnp.asarray(3))
    return jnp.choose(jnp.array([1, 0, 1]), [x, x * x])[jnp.asarray(np.array([False, True, True]))]


PATHS = tuple(CASES)

# --- rules that look at values ----------------------------------------------------------------------------------------

VALUES = (0.7 * ONE, -0.7 * ONE, 1.3 * ONE)


@case(*VALUES)
@jax.custom_jvp
def branching_jvp(x):
    return jnp.sin(x) if x > 0 else jnp.cos(x)


branching_jvp.defjvp(lambda p, t: (branching_jvp(*p), (2.0 if p[0] > 0 else 3.0) * t[0]))


@case(*VALUES, forward=False)
@jax.custom_vjp
def branching_vjp(x):
    return jnp.sin(x)


branching_vjp.defvjp(
    lambda x: (branching_vjp(x), (x if x > 1 else 2 * x)), lambda x, ct: ((2.0 if x > 0 else 3.0) * ct * x,)
)


@case(*VALUES, forward=False)
@jax.custom_vjp
def branching_backward(x):
    return jnp.sin(x)


branching_backward.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 2.0,) if float(ct) > 1 or x < 0 else (ct * x,))
case(*VALUES, forward=False, name="rules_amid_others")(lambda x: jnp.sin(branching_vjp(x * 2.0)) * branching_jvp(x))
case(VALUES[0], name="rules_beside_a_branch")(lambda x: branching_jvp(x) if x < 1 else branching_vjp(x))
case(VALUES[2], forward=False, name="rules_beside_the_other")(lambda x: branching_jvp(x) if x < 1 else branching_vjp(x))


LOOK_AT_VALUES = tuple(CASES[len(PATHS) :])
"""Their backward rules have values only where JAX runs them, and not in a program."""


@case(jnp.ones(3), -jnp.ones(3), forward=False)
def both_rules_on_a_path(x):
    y = halved(log1pexp(jnp.sin(x)))
    return log1pexp(y).sum() if y.sum() > 0 else halved(y).sum()


@jax.custom_jvp
def log1pexp(x):
    return jnp.sin(x)


@jax.custom_vjp
def halved(x):
    return jnp.sin(x)


log1pexp.defjvp(lambda p, t: (log1pexp(*p), jnp.cos(p[0]) * t[0]))
halved.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda residual, ct: (residual * ct,))

# --- what a rule closes over ------------------------------------------------------------------------------------------


def scaled_by_jvp(scale, x):
    g = jax.custom_jvp(lambda y: scale * y)
    g.defjvp(lambda p, t: (scale * p[0], scale * 3.0 * t[0]))
    return g(x)


def scaled_by_vjp(scale, x):
    g = jax.custom_vjp(lambda y: scale * y)
    g.defvjp(lambda y: (scale * y, (scale, y)), lambda res, ct: (res[0] * ct * res[1],))
    return g(x)


for scaled in (scaled_by_jvp, scaled_by_vjp):
    name, forward = f"{scaled.__name__}_of_vmap", scaled is scaled_by_jvp
    of_one = lambda x, f=scaled: jax.vmap(f, in_axes=(0, None))(jnp.arange(1.0, 4.0), x).sum()
    of_each = lambda x, f=scaled: jax.vmap(f)(jnp.arange(1.0, 4.0), x * jnp.ones(3)).sum()
    case(2 * ONE, forward=forward, name=name)(of_one)
    case(2 * ONE, forward=forward, name=f"{name}_of_both")(of_each)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def times(n, y):
    return n * y


times.defjvp(lambda n, p, t: (times(n, p[0]), 5.0 * n * t[0]))
case(jnp.array([3.0, 4.0]), name="nondiff_argument_that_is_mapped")(lambda y: jax.vmap(times)(jnp.array([2.0, 3.0]), y))
case(ONE, name="nondiff_argument_of_a_key")(lambda x: times(jax.random.uniform(jax.random.key(1)), x))


@case(1.5 * ONE, forward=False)
def closes_over_a_dict_whose_keys_have_no_order(x):
    limits = {"low": 0.5, ("high", 1): 2.0}
    clipped = jax.custom_vjp(lambda x: jnp.clip(x, *limits.values()))
    clipped.defvjp(lambda x: (clipped(x), None), lambda _, ct: (ct * len(limits),))
    return lax.scan(lambda c, _: (clipped(c), None), x, length=2)[0]


# --- rules that a Python loop defines, which use its variables
# ---------------------------------------------------------


def with_jvp(s):
    """What a loop's body defines; `s` returns the loop's variable."""
    scale = jax.custom_jvp(lambda x: jnp.sin(x) * s())
    scale.defjvp(lambda p, t: (jnp.sin(p[0]) * s(), jnp.cos(p[0]) * t[0] * s()))
    return scale


def with_vjp(s):
    scale = jax.custom_vjp(lambda x: jnp.sin(x) * s())
    scale.defvjp(lambda x: (jnp.sin(x) * s(), (jnp.cos(x), s())), lambda saved, ct: (ct * saved[0] * saved[1],))
    return scale


NESTED = {
    "plain": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "scan": lambda f, x: lax.scan(lambda h, _: (f(h), None), x, None, length=2)[0],
    "cond": lambda f, x: lax.cond(x > 0, f, lambda x: x, x),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "vmap": lambda f, x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum(),
    "scan_of_checkpoint": lambda f, x: lax.scan(lambda h, _: (jax.checkpoint(f)(h), None), x, None, length=2)[0],
}


def looping(make, apply):
    def loss(x):
        for s in (1.0, 2.0, 3.0):
            x = apply(make(lambda: s), x)
        return x

    return loss


N_BEFORE = len(CASES)
for make in (with_jvp, with_vjp):
    for nested, apply in NESTED.items():
        name = f"loop_{make.__name__}_in_{nested}"
        case(VALUES[0], forward=make is with_jvp, name=name)(looping(make, apply))
        case(VALUES[0], forward=make is with_jvp, name=f"{name}_of_jit")(jax.jit(looping(make, apply)))
LOOPS = tuple(CASES[N_BEFORE:])


@case(ONE, forward=False)
def loop_whose_variable_a_rule_closes_over(x):
    for s in (1.0, 2.0):

        @jax.custom_vjp
        def scale(x):
            return x * s

        scale.defvjp(lambda x: (x * s, None), lambda _, ct: (ct * s,))
        x = scale(x)
    return x


# --- a number that a primitive's rule saves ---------------------------------------------------------------------------


def primitive(name, fun):
    p = Primitive(name)
    p.def_impl(fun)
    p.def_abstract_eval(lambda *avals: avals[-1])
    mlir.register_lowering(p, mlir.lower_fun(fun, multiple_results=False))
    return p


doubled_if_p = primitive("doubled_if", lambda doubles, t: t * (1.0 + doubles))
ad.primitive_transposes[doubled_if_p] = lambda ct, doubles, t: [None, 2.0 * ct if doubles else ct]
same_p = primitive("same", lambda x: x)
ad.primitive_jvps[same_p] = lambda primals, tangents: (same_p.bind(*primals), doubled_if_p.bind(True, tangents[0]))
case(X, name="transpose_rule_that_looks_at_a_number")(lambda x: jnp.sum(same_p.bind(jnp.sin(x))))
