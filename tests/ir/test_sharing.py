"""What is shared, and what only looks alike; and that a user's data is freed when the user drops it."""

import gc
import inspect
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compute_on import compute_on
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import jaxviz
from jaxviz.ir.sharing import SharedTable, exact
from jaxviz.ir.syntax import Program

ALIKE = (
    0,
    0.0,
    -0.0,
    False,
    0j,
    np.int32(0),
    np.int64(0),
    np.float32(0),
    np.float32(-0.0),
    np.float64(0),
    np.bool_(False),
)


class Pair(NamedTuple):
    x: object
    y: object


def attributes(program):
    return [dict(e.params["attributes"]) for e in program.equations if e.primitive.name == "ffi_call"]


def test_keys_tell_apart_what_python_takes_for_equal():
    keys = [exact(x) for x in ALIKE]
    assert len(set(keys)) == len(ALIKE)
    assert len({exact(("a", (x, None))) for x in ALIKE}) == len(ALIKE)
    assert len({exact(Pair(1, x)) for x in ALIKE}) == len(ALIKE)
    assert [exact(x) for x in ALIKE] == keys
    assert exact((True, False)) != exact((1, 0))
    assert exact((1, 2)) != exact(Pair(1, 2))
    assert exact(float("nan")) == exact(float("nan"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(exact([1]))


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: {"inner": x}], ids=["plain", "in a dict"])
def test_attributes_of_a_foreign_function_keep_their_types(wrapped):
    call = jax.ffi.ffi_call("unregistered", jax.ShapeDtypeStruct((3,), jnp.float32))
    for value in (np.int32(1), np.float32(1), np.int64(1), True, 1, 1.0):
        f = lambda x, value=value: call(x, option=wrapped(value))
        x = jnp.ones(3)
        (want,) = attributes_of_jaxpr(jax.make_jaxpr(f)(x))
        (got,) = attributes(jaxviz.trace(f)(x))
        assert repr(got) == repr(want)


def attributes_of_jaxpr(closed):
    return [dict(e.params["attributes"]) for e in closed.eqns if e.primitive.name == "ffi_call"]


def test_params_of_a_users_primitive_keep_their_types():
    """In its JVP rule, its transpose and its batching rule."""
    scaled = Primitive("scaled")
    scaled.def_abstract_eval(lambda x, *, by: x)
    scaled.def_impl(lambda x, *, by: x * by)
    ad.deflinear2(scaled, lambda ct, x, *, by: [scaled.bind(ct, by=by)])
    batching.defvectorized(scaled)
    mlir.register_lowering(scaled, mlir.lower_fun(lambda x, *, by: x * by, multiple_results=False))
    for by in (*ALIKE, (1, 2), (1.0, 2), (True, 2)):
        f = lambda x, by=by: scaled.bind(scaled.bind(x, by=by), by=by)
        d = jaxviz.derive(f, 1.0)
        mapped = jaxviz.trace(jaxviz.vmap(f))(jnp.ones(3))
        for program in (d.primal, d.jvp, d.forward, d.linear, d.backward, mapped):
            params = [e.params["by"] for e in program.equations if e.primitive is scaled]
            assert [repr(p) for p in params] == [repr(by)] * len(params)
            assert params or program is d.forward or program is d.linear


def plain(x):
    return jnp.sin(x) * jnp.cos(x) + x * x


def compute_types(program):
    return sorted((e.primitive.name, str(e.operation.context.compute_type)) for _, e in program.walk())


IN_CONTEXT = pytest.mark.skipif(
    "out_memory_spaces" in inspect.signature(compute_on).parameters,
    reason="since JAX 0.11.1 compute_on wraps a function, and puts what it computes into an equation of its own",
)


@IN_CONTEXT
def test_the_context_of_one_gradient_does_not_reach_another():
    with compute_on("device_host"):
        inside = jaxviz.derive(plain, 1.0).backward
    outside = jaxviz.derive(plain, 1.0).backward
    assert "add_any" in {name for name, _ in compute_types(inside)}
    assert {kind for _, kind in compute_types(inside)} == {"device_host"}
    assert {kind for _, kind in compute_types(outside)} == {"None"}
    text = jax.jit(jaxviz.grad(lambda x: plain(x) * 2.0)).lower(1.0).as_text()
    assert "_xla_compute_type" not in text
    assert "_xla_compute_type" not in jax.jit(jax.grad(lambda x: plain(x) * 2.0)).lower(1.0).as_text()


@IN_CONTEXT
@pytest.mark.parametrize("loop", [False, True])
def test_compute_types_within_a_function_are_those_of_jax(loop):
    """The sum of cotangents, and zeros that are filled in, have the context of the equation that needs them."""

    def body(c, x):
        return c * jnp.sin(x), (c + x, jnp.int32(1))

    def f(x):
        with compute_on("device_host"):
            y = plain(x) if not loop else jnp.sum(jax.lax.scan(body, x, jnp.arange(3.0) * x)[1][0])
        return y * jnp.cos(y)

    ours, theirs = (compute_types(jaxviz.trace(grad(f))(jnp.float32(1))) for grad in (jaxviz.grad, jax.grad))
    assert {("add_any", "None"), ("add_any", "device_host")} <= set(ours)
    assert ours == theirs


def test_two_meshes():
    devices = np.array(jax.devices()[:1])
    for name in ("i", "j", "i"):
        mesh = jax.sharding.Mesh(devices, (name,))
        with jax.set_mesh(mesh):
            d = jaxviz.derive(lambda x: jax.vmap(plain)(x).sum(), jnp.arange(3.0))
            for program in (d.forward, d.linear, d.backward):
                names = {e.operation.context.cur_abstract_mesh.axis_names for _, e in program.walk()}
                assert names == {(name,)}


class Callback:
    """With a large array, like a closure."""

    def __init__(self):
        self.table = np.ones(1000)

    def __call__(self, x):
        return x + self.table[0].astype(x.dtype)


def call_back(x, callback):
    return jax.pure_callback(callback, x, x, vmap_method="expand_dims")


def as_callback():
    callback = Callback()
    f = lambda x: call_back(jax.lax.stop_gradient(x), callback) * x
    assert jaxviz.derive(f, 1.0).backward.equations
    jaxviz.trace(jaxviz.vmap(f))(jnp.ones(3))
    return weakref.ref(callback)


def as_custom_rule():
    callback = Callback()
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (call_back(x, callback) * ct,))
    assert jaxviz.derive(lambda x: f(x) + jax.jit(f)(x), 1.0).backward.equations
    return weakref.ref(callback)


def as_param():
    callback = Callback()
    called = Primitive("called")
    called.def_abstract_eval(lambda x, *, fun: x)
    ad.deflinear2(called, lambda ct, x, *, fun: [called.bind(ct, fun=fun)])
    f = lambda x: called.bind(x, fun=(callback, "a name"))
    d = jaxviz.derive(f, 1.0)
    assert d.backward.equations
    return weakref.ref(callback)


@pytest.mark.parametrize("use", [as_callback, as_custom_rule, as_param], ids=lambda use: use.__name__)
def test_what_a_callback_closes_over_goes_with_it(use):
    reference = use()
    jax.clear_caches()  # JAX's own
    gc.collect()
    assert reference() is None


def test_operations_of_callbacks_are_shared_while_they_are_in_use():
    callback = Callback()
    f = lambda x: call_back(x, callback) + call_back(x, callback)
    program = jaxviz.trace(f)(1.0)
    first, second, _ = (e.operation for e in program.equations)
    assert first is second
    again = jaxviz.trace(f)(1.0)
    assert again.equations[0].operation is first


def test_a_table_keeps_what_was_used_lately():
    table = SharedTable(10)
    for i in range(1000):
        table.keep(i, f"{i}")
        assert table.get(0) == "0"  # the oldest of all, and always just used
        assert len(table) <= 20
    assert [table.get(i) for i in range(991, 1000)] == [f"{i}" for i in range(991, 1000)]
    assert table.get(500) is None


def test_rules_used_lately_survive(monkeypatch):
    from jaxviz.transforms.linearize import linearize_rules

    jaxviz.clear_caches()
    monkeypatch.setattr(linearize_rules, "size", 4)
    sine = jaxviz.trace(jnp.sin)(1.0).equations[0].operation
    rule = linearize_rules(sine, (True,))
    for n in range(1, 20):
        assert jaxviz.derive(jnp.cos, jnp.ones(n)).forward.equations
        assert linearize_rules(sine, (True,)) is rule
    assert len(linearize_rules) <= 8


def test_clear_caches_empties_every_table():
    from jaxviz.ir import sharing

    assert jaxviz.derive(plain, 1.0).backward.equations
    jaxviz.find_nan(lambda x: jnp.log(x), -1.0)
    jaxviz.trace(jaxviz.vmap(lambda x: jax.lax.scan(lambda c, _: (c * x, None), 1.0, None, 3)[0]))(jnp.ones(3))
    # Caches that a feature keeps itself and clears with a function are tested with that feature.
    cleared = [clear.__self__ for clear in sharing._clear if hasattr(clear, "__self__")]
    tables = [t for t in cleared if isinstance(t, SharedTable)]
    assert sum(map(len, tables)) > 20
    jaxviz.clear_caches()
    assert [len(t) for t in tables] == [0] * len(tables)
    assert [c.cache_info().currsize for c in cleared if c not in tables] == [0] * (len(cleared) - len(tables))


def test_a_program_is_what_it_was_before_its_like():
    """The second program is printed the same whether the first existed or not."""
    call = jax.ffi.ffi_call("unregistered", jax.ShapeDtypeStruct((3,), jnp.float32))
    make = lambda value: jaxviz.trace(lambda x: call(x, option=value))(jnp.ones(3))
    jaxviz.clear_caches()
    alone = str(make(np.float32(1)))
    jaxviz.clear_caches()
    make(np.int32(1))
    after: Program = make(np.float32(1))
    assert str(after) == alone
