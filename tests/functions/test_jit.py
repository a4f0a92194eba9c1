"""`jaxviz.jit`: the compile cache, donation, and the report of devices and layouts."""

import functools
import gc
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_programs import CASES, EXPLICIT, GRID, LINE
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from laws import assert_same

import jaxviz
from jaxviz.analysis.devices import placement_of
from jaxviz.analysis.donation import donations_of

X = jnp.linspace(0.1, 1.0, 3)
M = jnp.linspace(0.1, 1.2, 12).reshape(4, 3)


@pytest.fixture(autouse=True)
def _empty_cache(little_to_collect):
    jaxviz.clear_caches()
    gc.collect()


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w))


@pytest.mark.process
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


def test_the_same_of_the_same_function_is_compiled_once():
    for _ in range(3):
        jaxviz.jit(jaxviz.grad(loss))(X, M)
    info = jaxviz.cache_info()
    assert (info.hits, info.misses, info.functions) == (2, 1, 1)
    assert str(info) == ("2 hits, 1 miss; 1 program of 1 function\n  grad(loss) of (f32[3], f32[4,3])")


def test_looking_at_a_program_is_no_hit():
    f = jaxviz.jit(loss)
    f.lower(X, M)
    f.report(X, M)
    assert (jaxviz.cache_info().hits, jaxviz.cache_info().misses) == (0, 1)
    f(X, M)
    assert (jaxviz.cache_info().hits, jaxviz.cache_info().misses) == (1, 1)


def test_other_transforms_parameters_and_types_are_others():
    jaxviz.jit(loss)(X, M)
    jaxviz.jit(jaxviz.grad(loss))(X, M)
    jaxviz.jit(jaxviz.grad(loss, argnums=1))(X, M)
    jaxviz.jit(jaxviz.grad(loss), donate_argnums=1)(X, M + 0.0)
    jaxviz.jit(jaxviz.vmap(jaxviz.grad(loss), in_axes=(None, 0)))(X, M)
    jaxviz.jit(jaxviz.vmap(jaxviz.grad(loss), in_axes=(None, -2)))(X, M)
    jaxviz.jit(loss)(X.astype(jnp.float16), M)
    info = jaxviz.cache_info()
    assert (info.hits, info.misses, info.functions) == (0, 7, 1)
    assert [p.transforms for p in info.programs].count(("grad", "vmap")) == 2
    assert sum(str(p).startswith("vmap(grad(loss)) of ") for p in info.programs) == 2
    assert any(p.types == "(f16[3], f32[4,3])" for p in info.programs)


@pytest.mark.values
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


def update(params, grads, count):
    new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return new, sum(jnp.sum(g) for g in jax.tree.leaves(grads))


def test_which_result_reuses_which_argument_and_which_cannot():
    params = {"b": jnp.ones(3), "w": jnp.ones((4, 3))}
    grads = {"b": jnp.ones(3), "w": jnp.ones((4, 3))}
    report = jaxviz.jit(update, donate_argnums=(0, 1, 2)).report(params, grads, jnp.ones(7))
    notes = {p.path: p.note for p in (*report.arguments, *report.results)}
    assert notes == {
        "params['b']": "donated: result[0]['b'] reuses its memory",
        "params['w']": "donated: result[0]['w'] reuses its memory",
        "grads['b']": "donated, but the only result of type f32[3], result[0]['b'], reuses the memory of another argument",
        "grads['w']": "donated, but the only result of type f32[4,3], result[0]['w'], reuses the memory of another argument",
        "count": "donated, but nothing reads it, so it is not part of the compiled program",
        "result[0]['b']": "in the memory of params['b']",
        "result[0]['w']": "in the memory of params['w']",
        "result[1]": "",
    }
    assert "2 of 5 donated arguments reused, 60 B" in str(report)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize(
    ("fun", "arg", "reason"),
    [
        (lambda x: x.sum(), X, "no result has its type f32[3] (12 B)"),
        (
            lambda x: x.astype(jnp.float16),
            X,
            "no result has its type f32[3]; result, f16[3], has the same number of elements, but XLA did not reuse its memory for it",
        ),
        (lambda x: jnp.ones(3), X, "nothing reads it"),
    ],
)
def test_why_a_donation_cannot_be_used(fun, arg, reason):
    (placed,) = jaxviz.jit(fun, donate_argnums=0).report(arg).arguments
    assert placed.note.startswith(f"donated, but {reason}")


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


@pytest.mark.values
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


def read(p):
    return jnp.sum(p["w"])


@pytest.fixture
def watched():
    jaxviz.watch_donations()
    yield
    jaxviz.watch_donations(False)


def test_reading_a_donated_array_again(watched):
    def step(params, x):
        return {"w": params["w"] * x}

    jitted = jaxviz.jit(step, donate_argnums=0)
    params = {"w": jnp.ones(3)}
    line = step.__code__.co_firstlineno + 6
    jitted(params, 2.0)
    told = r"Array has been deleted with shape=float32\[3\]\. It is the argument {}\. It was donated to step as params\['w'\] at .*test_jit\.py:{}"
    with pytest.raises(RuntimeError, match=told.format(r"params\['w'\] of step", line)):
        jitted(params, 2.0)
    with pytest.raises(RuntimeError, match=told.format(r"p\['w'\] of read", line)):
        jaxviz.grad(read)(params)
    for transform in (jaxviz.vjp, jaxviz.linearize):
        with pytest.raises(RuntimeError, match="It was donated to step"):
            transform(read, params)
    with pytest.raises(RuntimeError, match="It was donated to step"):
        jaxviz.jvp(read, (params,), ({"w": jnp.ones(3)},))
    assert jaxviz.derive(read, params).check()  # which only considers types


def test_a_consumed_key():
    def draw(key, n):
        key, sub = jax.random.split(key)
        return key, jax.random.normal(sub, (n,))

    jitted = jaxviz.jit(draw, donate_argnums=0, static_argnums=1)
    key = jax.random.key(0)
    jitted(key, 3)
    assert key.is_deleted()
    with pytest.raises(
        RuntimeError, match=r"Random key has been deleted .* the argument key of draw.* Split a key before"
    ):
        jitted(key, 3)


def test_an_array_that_was_deleted_elsewhere():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(
        RuntimeError, match=r"It is the argument w of loss. It was donated to a jitted function, or deleted"
    ):
        jaxviz.grad(loss)(x, M)


# --- devices ----------------------------------------------------------------------------------------------------------


def test_where_it_runs_and_why():
    plain = jaxviz.jit(loss).report(X, M)
    assert plain.summary.startswith("loss on cpu:0, the default device")
    assert plain.backend == "cpu"
    committed = jaxviz.jit(loss).report(jax.device_put(X, jax.devices()[3]), M)
    assert committed.summary.startswith("loss on cpu:3, where its argument w is")
    with pytest.warns(DeprecationWarning, match="on jit is deprecated"):
        asked = jaxviz.jit(loss, backend="cpu").report(X, M)
    assert "asked for by backend=cpu" in asked.summary
    mapped = jaxviz.jit(jax.shard_map(jnp.sin, mesh=LINE, in_specs=P("i"), out_specs=P("i"))).report(jnp.ones(8))
    assert "on 8 devices, cpu:0 to cpu:7, the mesh that it specifies" in mapped.summary


@pytest.mark.parametrize("args", [(), (X,)], ids=["no argument", "an argument"])
@pytest.mark.parametrize("result", [None, (), {}], ids=str)
def test_the_report_of_a_function_without_results(args, result):
    report = jaxviz.jit(lambda *_: result).report(*args)
    assert "on cpu:0, the default device" in str(report)
    assert len(report.arguments) == len(args)
    assert report.results == ()


def test_without_results_the_devices_are_those_of_the_arguments():
    x = jax.device_put(X, jax.devices()[2])
    assert jaxviz.jit(lambda x: None).report(x).devices == ("cpu:2",)


def test_the_layout_of_terms_of_a_sum():
    x = jax.device_put(jnp.ones(8), NamedSharding(EXPLICIT, P("i")))
    terms = NamedSharding(EXPLICIT, P(unreduced={"i"}))
    report = jaxviz.jit(lambda x: jnp.einsum("i,i->", x, x, out_sharding=terms)).report(x)
    assert report.arguments[0].layout == "P('i')"
    assert len(report.results) == 1


def test_a_report_in_which_nothing_is_donated_is_printed():
    report = jaxviz.jit(lambda p, x: p - x).report(jnp.ones(3), jnp.ones(3))
    assert [line.split()[:2] for line in str(report).splitlines()[3:]] == [
        ["p", "f32[3]"],
        ["x", "f32[3]"],
        ["result", "f32[3]"],
    ]


@pytest.mark.parametrize("module", [jax, jaxviz], ids=["jax", "jaxviz"])
def test_the_gradient_of_a_jitted_function_is_not_itself_jitted(module):
    f = module.jit(lambda x: jnp.sum(x * x))
    with pytest.raises(TypeError, match="not jitted"):
        jaxviz.donation(module.grad(f), jnp.ones(3))


def test_where_a_derived_function_runs():
    where = lambda f, *args: str(placement_of(jaxviz.derive(f, *args)))
    assert where(loss, X, M) == "cpu:0, the default device"
    assert where(loss, jax.device_put(X, jax.devices()[3]), M) == "cpu:3, where its argument w is"
    mapped = jax.shard_map(jnp.sin, mesh=LINE, in_specs=P("i"), out_specs=P("i"))
    assert where(mapped, jnp.ones(8)) == "8 devices, cpu:0 to cpu:7, the mesh that it specifies"
    assert (
        where(jax.pmap(jnp.sin, devices=jax.devices()[:2]), jnp.ones(2))
        == "2 devices, cpu:0 to cpu:1, the mesh that it specifies"
    )
    rows = NamedSharding(GRID, P("i"))
    assert where(jax.jit(jnp.sin, out_shardings=rows), jnp.ones(8)).startswith("8 devices")
    with jax.default_device(jax.devices()[5]):
        assert where(loss, X, M) == "cpu:5, the default device"
    assert where(loss, jax.ShapeDtypeStruct((3,), jnp.float32), M) == "cpu:0, the default device"


def test_layouts_and_bytes_on_one_device():
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(GRID, P("i", "j")))
    out = NamedSharding(GRID, P("j"))
    report = jaxviz.jit(lambda n, x: x * n, static_argnums=0, out_shardings=out).report(2, x)
    (argument,), (result,) = report.arguments, report.results
    assert (argument.path, argument.layout, argument.nbytes, argument.nbytes_per_device) == (
        "x",
        "P('i', 'j')",
        128,
        16,
    )
    assert (result.layout, result.nbytes_per_device) == ("P('j')", 32)
    assert report.static == {"n": "2"}
    assert "n" in str(report)
    assert "P(&#x27;j&#x27;)" in report._repr_html_()
    assert report.to_dict()["arguments"][0]["nbytes_per_device"] == 16


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


def test_in_a_scan_and_in_a_checkpoint_and_in_pmap():
    body = on_each(lambda x, w: jnp.sin(x) * w)
    scanned = jaxviz.residuals(
        lambda x, w: jax.lax.scan(lambda c, _: (body(c, w), None), x, None, length=5)[0], jnp.ones(16), 2.0
    )
    parts = {r.expression.split(" ")[0]: (r.nbytes, r.nbytes_per_device) for r in scanned}
    assert parts["cos"] == (5 * 64, 5 * 8)
    policy = jax.checkpoint_policies.everything_saveable
    saved = jaxviz.residuals(jax.checkpoint(body, policy=policy), jnp.ones(16), 2.0)
    assert any(r.nbytes_per_device == 8 for r in saved)
    mapped = jaxviz.residuals(jax.pmap(lambda x: jnp.sin(x) * x), jnp.ones((8, 3)))
    assert {r.nbytes_per_device for r in mapped} == {12}


def test_on_one_device_nothing_is_said_of_devices():
    found = jaxviz.residuals(loss, X, M)
    assert found.nbytes_per_device is None
    assert "device" not in str(found)


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


@pytest.mark.values
def test_the_parts_are_those_of_the_compiled_program():
    assert check_parts(CASES[::8]) > 12


@pytest.mark.sweep
def test_the_parts_of_every_program_are_those_of_the_compiled_one():
    assert check_parts(CASES) > 100


def test_numbers_of_each_device_are_named():
    found = jaxviz.residuals(
        jax.shard_map(lambda x: x * 3.0, mesh=LINE, in_specs=P("i"), out_specs=P("i"), check_vma=False), jnp.ones(8)
    )
    (number,) = found
    assert (number.kind, number.expression) == ("literal", "3.0")
    assert number.reason.startswith(
        "the number 3.0, which JAX passes to a jitted function as an array, is saved because"
    )
    assert np.isclose(number.nbytes, 32)
