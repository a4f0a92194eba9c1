"""`jaxviz.jit`: the compile cache, donation, and the report of devices and layouts."""

import functools
import gc
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import pytest
import transcripts
from device_programs import CASES, GRID, LINE
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from laws import assert_same

import jaxviz
from jaxviz.analysis.donation import donations_of

X = jnp.linspace(0.1, 1.0, 3)
M = jnp.linspace(0.1, 1.2, 12).reshape(4, 3)


@pytest.fixture(autouse=True)
def _empty_cache(little_to_collect):
    jaxviz.clear_caches()
    gc.collect()


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w))


@pytest.mark.slow
def test_nothing_is_said_when_python_ends():
    program = "import jaxviz\nf = jaxviz.jit(lambda x: 2 * x)\nf(1.0)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Exception ignored" not in ended.stderr


# --- the same results as jax.jit --------------------------------------------------------------------------------------


def test_results():
    assert_same(jaxviz.jit(loss)(X, M), jax.jit(loss)(X, M))
    assert_same(jaxviz.jit(jaxviz.grad(loss))(X, M), jax.jit(jax.grad(loss))(X, M))
    assert_same(jaxviz.grad(jaxviz.jit(loss))(X, M), jax.grad(jax.jit(loss))(X, M))
    assert_same(jaxviz.jit(jaxviz.vmap(jaxviz.grad(loss), (None, 0)))(X, M), jax.vmap(jax.grad(loss), (None, 0))(X, M))
    assert jaxviz.derive(jaxviz.jit(loss), X, M).check()


def test_what_a_jitted_function_of_jax_has():
    f = jaxviz.jit(loss)
    assert f.__name__ == "loss"
    assert str(f.lower(X, M).as_text()) == str(jax.jit(loss).lower(X, M).as_text())
    assert str(f.trace(X, M).jaxpr) == str(jax.jit(loss).trace(X, M).jaxpr)
    assert f.eval_shape(X, M).shape == ()


def test_decorator_and_method():
    @jaxviz.jit(static_argnums=1)
    def power(x, n):
        return x**n

    assert_same(power(X, 3), X**3)

    class Model:
        def __init__(self, scale):
            self.scale = scale

        def apply(self, x):
            return self.scale * x

    two, three = Model(2.0), Model(3.0)
    assert_same(jaxviz.jit(two.apply)(X), 2.0 * X)
    assert_same(jaxviz.jit(three.apply)(X), 3.0 * X)
    assert_same(jaxviz.jit(two.apply)(X), 2.0 * X)
    assert jaxviz.cache_info().misses == 3


@pytest.mark.parametrize("inline", [False, True])
def test_inlining(inline):
    """A function that JAX inlines leaves no jit behind, and has the residuals of plain code."""
    f = lambda jit: lambda x: jnp.sum(jit(lambda x: jnp.sin(x) * 2.0, inline=inline)(x) * x)
    derivation = jaxviz.derive(f(jax.jit), X)
    assert derivation.check()
    has_jit = "jit[" in str(jax.make_jaxpr(f(jax.jit))(X))
    assert any(e.primitive.name == "jit" for e in derivation.primal.equations) is has_jit
    assert str(jaxviz.derive(f(jaxviz.jit), X).primal) == str(derivation.primal)


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_functions_made_in_a_loop_are_not_confused():
    """Each is dropped before the next is created, which may then have the same id."""
    for k in range(20):
        f = lambda x: x * k
        assert_same(jaxviz.jit(f)(X), jax.jit(f)(X))
        g = lambda x: jnp.sum(jnp.sin(x) * k)
        assert_same(jaxviz.jit(jaxviz.grad(g))(X), jax.jit(jax.grad(g))(X))
        del f, g
    assert jaxviz.cache_info().misses == 40


def test_what_is_compiled_of_a_function_goes_with_it():
    def f(x):
        return jnp.sin(x) * table

    table = jnp.arange(3.0)
    gone = weakref.ref(f)
    jitted = jaxviz.jit(jaxviz.grad(lambda x: jnp.sum(x)))
    assert_same(jaxviz.jit(f)(X), f(X))
    jaxviz.jit(jaxviz.vmap(f))(X)
    jitted(X)
    assert jaxviz.cache_info().functions == 2
    del f
    gc.collect()
    assert gone() is None
    info = jaxviz.cache_info()
    assert (info.functions, info.misses) == (1, 3)
    assert [p.transforms for p in info.programs] == [("grad",)]


def test_a_wrapper_of_the_users_is_a_function_of_its_own():
    """`functools.wraps` copies attributes, so the cache must not use them."""
    gradient = jaxviz.grad(loss)

    @functools.wraps(gradient)
    def clipped(w, x):
        return jnp.clip(gradient(w, x), -0.1, 0.1)

    assert_same(jaxviz.jit(clipped)(X, M), jnp.clip(jax.grad(loss)(X, M), -0.1, 0.1))
    assert_same(jaxviz.jit(gradient)(X, M), jax.jit(jax.grad(loss))(X, M))


def test_what_has_no_hash_or_cannot_be_held_weakly_is_compiled_all_the_same():
    class Scale:
        __slots__ = ("k",)
        __hash__ = None

        def __call__(self, x):
            return x * self.k

    scale = Scale()
    scale.k = 2.0
    with pytest.raises(TypeError):
        jax.jit(scale)(X)  # JAX does not accept it either
    mapped = jaxviz.vmap(lambda d: d["x"] * 2.0, in_axes=({"x": 0},))
    assert_same(jaxviz.jit(mapped)({"x": X}), X * 2.0)
    assert jaxviz.cache_info().misses == 1


# --- donation ---------------------------------------------------------------------------------------------------------


def test_a_result_of_another_type_may_take_the_memory():
    """JAX offers it to XLA, which uses it on the CPU if the sizes are equal."""
    for fun, arg in ((lambda x: x.astype(jnp.int32), X), (lambda x: x.reshape(3, 4), M)):
        jitted, x = jaxviz.jit(fun, donate_argnums=0), arg + 0.0
        (said,) = jitted.report(x).donations
        pointer = x.unsafe_buffer_pointer()
        assert (said.result == 0) is (jitted(x).unsafe_buffer_pointer() == pointer)
        inside = jaxviz.trace(lambda x: jax.jit(fun, donate_argnums=0)(x))(arg)
        (planned,) = donations_of(inside.equations[0].operation)
        assert planned.reason.endswith("has the same number of elements, but XLA may reuse its memory for it")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_the_report_is_what_xla_did():
    """Every pair of donated arguments and results, compared with what happens to the arrays."""
    kinds = [jnp.ones(3), jnp.ones((4, 3)), jnp.ones(3, jnp.int32), jnp.ones(())]
    for i, x in enumerate(kinds):
        for j, y in enumerate(kinds):
            f = jaxviz.jit(lambda x, y: (y + 1, x * 2, x.sum()), donate_argnums=(0, 1))
            given = x + 0, y + 0
            donations = f.report(*given).donations
            pointers = [a.unsafe_buffer_pointer() for a in given]
            results = f(*given)
            for d in donations:
                assert d.result is not None, (i, j)
                assert results[d.result].unsafe_buffer_pointer() == pointers[d.argument], (i, j)


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [jax, jaxviz], ids=["jax", "jaxviz"])
def test_the_gradient_of_a_jitted_function_is_not_itself_jitted(module):
    f = module.jit(lambda x: jnp.sum(x * x))
    with pytest.raises(TypeError, match="not jitted"):
        jaxviz.donation(module.grad(f), jnp.ones(3))


# --- residuals on devices ---------------------------------------------------------------------------------------------


def on_each(f):
    return jax.shard_map(f, mesh=LINE, in_specs=(P("i"), P()), out_specs=P("i"))


def test_residuals_whole_and_on_one_device():
    w = jnp.ones((3, 3))
    found = jaxviz.residuals(on_each(lambda x, w: jnp.sin(x @ w)), jnp.ones((16, 3)), w)
    _, pull = jax.vjp(on_each(lambda x, w: jnp.sin(x @ w)), jnp.ones((16, 3)), w)
    held = sorted(
        (x.nbytes, x.addressable_shards[0].data.nbytes) for x in jax.tree.leaves(pull) if len(x.devices()) == 8
    )
    assert sorted((r.nbytes, r.nbytes_per_device) for r in found) == held
    assert found.nbytes_per_device == sum(n for _, n in held)
    assert "on each device" in found.summary
    assert found.saved.nbytes == sum(r.nbytes_per_device for r in found if r.is_saved)
    assert found.saved.on_all == sum(r.nbytes for r in found if r.is_saved)


def test_an_argument_is_where_it_lies():
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(GRID, P("i", "j")))
    found = {
        r.expression: r
        for r in jaxviz.residuals(lambda x, w: jnp.sum(jnp.sin(x @ w)), x, jnp.ones((4, 3)), argnums=None)
    }
    assert found["x"].nbytes_per_device == 16
    assert found["w"].nbytes_per_device == found["w"].nbytes // 4  # XLA shards it like x's columns
    compiled = jaxviz.residuals(lambda x, w: jnp.sum(jnp.sin(x @ w)), x, jnp.ones((4, 3)), argnums=None, compile=True)
    assert all(r.nbytes_per_device is not None for r in compiled)


def check_parts(cases):
    """Compares what is reported without compiling with XLA; returns the number of values for which it is reported."""
    known = 0
    for case in cases:
        said = jaxviz.residuals(case.fun, *case.args)
        if not any(r.nbytes_per_device for r in said):
            continue
        for r, c in zip(said, jaxviz.residuals(case.fun, *case.args, compile=True), strict=True):
            if r.nbytes_per_device is not None:
                known += 1
                assert r.nbytes_per_device == c.nbytes_per_device, (case.name, r.expression)
    return known


@pytest.mark.slow
def test_the_parts_are_those_of_the_compiled_program():
    assert check_parts(CASES[::8]) > 12


@pytest.mark.slow(sweep=True)
def test_the_parts_of_every_program_are_those_of_the_compiled_one():
    assert check_parts(CASES) > 100


@pytest.mark.slow
@transcripts.of("jit")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
