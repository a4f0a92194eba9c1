"""Flags compared with evaluating equation by equation."""

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from programs import CASES
from short_runs import short

import jaxviz
from jaxviz.features.nans.capture import evaluate_equation
from jaxviz.higher_order import carried, of
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Literal, Var
from jaxviz.transforms.flags import INFINITE, NAN, flag_program, is_watchable


def poisoned(x, with_, rng):
    """An array with one element replaced, if its type can represent it."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact) or not x.size:
        return x
    return x.ravel().at[rng.integers(x.size)].set(with_).reshape(x.shape)


BAD = (np.inf, -np.inf, np.nan)


@pytest.mark.slow
@pytest.mark.parametrize("k", short(range(0, len(CASES), 3), 2), ids=lambda k: str(CASES[k]))
def test_flags_say_what_each_value_is(k):
    case, rng = CASES[k], np.random.default_rng(k)
    leaves, tree = jax.tree.flatten(case.args)
    leaves = [poisoned(x, BAD[k // 3 % 3], rng) if isinstance(x, (jax.Array, np.ndarray)) else x for x in leaves]
    program = jaxviz.trace(case.fun)(*jax.tree.unflatten(tree, leaves))
    flagged = flag_program(program)
    outs = jax.jit(as_function(flagged.program))(*leaves)
    n = len(program.outvars)
    env = dict(zip((*program.constvars, *program.invars), (*program.consts, *leaves), strict=True))
    read = lambda atoms: [a.val if isinstance(a, Literal) else env[a] for a in atoms]
    for e in program.equations:
        env.update(zip(e.outvars, evaluate_equation(e, read(e.invars)), strict=True))
    for x, y in zip(outs[:n], read(program.outvars), strict=True):
        if is_watchable(jax.typeof(x)):
            np.testing.assert_allclose(wide(x), wide(y), rtol=1e-2)
    for watch, flags in zip(flagged.watches, outs[n:], strict=True):
        for k, v in enumerate(watch.values if not watch.path else ()):
            assert bool(flags[INFINITE][k]) == (not np.isfinite(wide(env[v])).all())
            assert bool(flags[NAN][k]) == bool(np.isnan(wide(env[v])).any())


def wide(x):
    return np.asarray(x).astype(np.complex128)


def test_a_loop_gives_the_iteration_in_which_it_first_happened():
    def f(x):
        def inner(c, y):
            return c + jnp.log(y), jnp.exp(c)

        def outer(c, ys):
            c, zs = jax.lax.scan(inner, c, ys)
            return jnp.tanh(c), zs

        return jax.lax.scan(outer, 0.0, x)

    x = jnp.ones((4, 5)).at[2, 3].set(0.0).at[3, 1].set(0.0)
    program = jaxviz.trace(f)(x)
    flagged = flag_program(program)
    outs = jax.jit(as_function(flagged.program))(x)[len(program.outvars) :]
    deepest = [(w, f) for w, f in zip(flagged.watches, outs, strict=True) if w.n_loops == 2]
    ((watch, flags),) = deepest
    raised = {tuple(map(int, flags[INFINITE][k])) for k in range(len(watch.values))}
    assert (2, 3) in raised
    assert raised <= {(2, 3), (2, 4), (-1, -1)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "float8_e5m2", "float8_e4m3fn"]
)
def test_a_nan_is_seen_whatever_its_sign_and_type(dtype):
    """`inf - inf` has a negative sign, and XLA assumes that `exp` is never negative."""
    with jax.enable_x64(dtype == "float64"):
        f = lambda x: jnp.exp((x - x).astype("float32" if dtype.startswith("float8") else dtype)).astype(dtype)
        program = jaxviz.trace(f)(jnp.ones(3, dtype))
        flagged = flag_program(program)
        for element in (jnp.inf, jnp.nan, 1.0):
            x = jnp.ones(3, dtype).at[1].set(element)
            *_, flags = jax.jit(as_function(flagged.program))(x)
            y = wide(f(x))
            assert tuple(flags[:, -1]) == (not np.isfinite(y).all(), np.isnan(y).any())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_half_precise_is_not_widened_before_it_is_looked_at(dtype):
    """If XLA widens it right after rounding, it may be more precise than its type, or finite by mistake."""
    flagged = flag_program(jaxviz.trace(lambda x: x.astype(dtype))(jnp.ones(3)))
    conversions = [e for e in flagged.program.equations if e.primitive.name == "convert_element_type"]
    assert [
        e.operation.out_avals[0].dtype.name for e in conversions if jnp.issubdtype(e.invars[0].aval.dtype, jnp.floating)
    ] == [dtype]


def scan_with_a_key(x):
    def step(carry, y):
        key, n, c = carry
        key, of_step = jax.random.split(key)
        return (key, n + 1, c + jnp.log(y) * jax.random.uniform(of_step)), c

    return jax.lax.scan(step, (jax.random.key(0), 0, 0.5), x)[1]


def scan_in_reverse(x):
    return jax.lax.scan(lambda c, y: (jnp.sin(c) + jnp.log(y), c), 0.5, x, reverse=True)


def while_with_a_bound(x):
    return jax.lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 0.5 + jnp.log(x[s[0]])), (0, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("bad", [0, 3, 4, None])
@pytest.mark.parametrize("f", [scan_with_a_key, scan_in_reverse, while_with_a_bound])
def test_a_loop_keeps_the_carry_that_the_first_step_with_a_flag_began_with(f, bad):
    x = jnp.linspace(1.0, 2.0, 5)
    x = x if bad is None else x.at[bad].set(0.0)
    program = jaxviz.trace(f)(x)
    flagged = flag_program(program, keeps=True)
    outs = jax.jit(as_function(flagged.program))(x)
    (loop,) = flagged.loops
    n = len(carried(loop))
    *_, flags = outs[: len(outs) - n - len(flagged.known)]
    kept, known = outs[-n - len(flagged.known) : -len(flagged.known)], outs[-len(flagged.known) :]
    values = dict(zip((*flagged.known, *program.invars), (*known, x), strict=True))
    assert all(v in values for v in (*loop.invars, *loop.outvars) if type(v) is Var)
    operands = [a.val if isinstance(a, Literal) else values[a] for a in loop.invars]
    steps = [inputs for inputs, _ in of(loop).steps(loop.operation, operands)]
    first = flags[INFINITE][flags[INFINITE] >= 0]
    assert bool(first.size) == (bad is not None)
    began = steps[int(first.min()) if first.size else -1]
    before = of(loop).carry(loop.operation)[0]
    for got, want in zip(kept, began[before : before + n], strict=True):
        assert got.dtype == jax.typeof(want).dtype
        if jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_allclose(got, want, rtol=1e-6)
