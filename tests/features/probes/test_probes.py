"""Probes compared with JAX: a value and its cotangent are reported exactly as JAX computes them."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from short_runs import short, short_rows

import jaxviz
from jaxviz.features.probes import probes
from jaxviz.features.probes import series as series_module

X = jnp.linspace(-1.0, 2.0, 3)
XS = jnp.linspace(-1.0, 2.0, 6).reshape(2, 3)
MESH = Mesh(np.array(jax.devices()), ("i",))


def rest(h):
    return jnp.sum(h * h * jnp.arange(1.0, 4.0))


def probed(x):
    return rest(jaxviz.probe(jnp.sin(x) * x, "h"))


def value(x):
    return jnp.sin(x) * x


def cotangent(x):
    return jax.grad(rest)(value(x))


def step(c, x):
    h = jaxviz.probe(jnp.sin(c) * x, "h")
    return h, h.sum()


def scanned(x, body=step):
    return jax.lax.scan(body, x, jnp.arange(1.0, 5.0))[0].sum()


def carried(x, offsets):
    """The values of `scanned`, and their cotangents from offsets of zero, as computed by JAX."""

    def body(c, at):
        x, offset = at
        h = jnp.sin(c) * x + offset
        return h, (h, h.sum())

    last, (hs, _) = jax.lax.scan(body, x, (jnp.arange(1.0, 5.0), offsets))
    return last.sum(), hs


def told(fun, *args, what="value", names=("h",)):
    """What is reported, and that the result is the same as without probes."""
    expected = fun(*args)
    with jaxviz.watch(*names, what=what) as w:
        found = fun(*args)
    assert not w.errors
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    return w


same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def _with_jvp(f):
    made = jax.custom_jvp(f)
    made.defjvp(lambda primals, tangents: (f(*primals), tangents[0].sum()))
    return made


FORWARD = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "jit_jit": lambda f: jax.jit(lambda x: jax.jit(f)(x)),
    "checkpoint": jax.checkpoint,
    "jit_checkpoint": lambda f: jax.jit(jax.checkpoint(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[0],
    "cond": lambda f: lambda x: jax.lax.cond(x[0] < 5, f, lambda x: 0.0, x),
    "custom_jvp": lambda f: _with_jvp(f),
    "jaxviz_jit": lambda f: jaxviz.jit(f),
    "jaxviz_jvp": lambda f: lambda x: jaxviz.jvp(f, (x,), (x,))[0],
}

BACKWARD = {
    "grad": jax.grad,
    "jit_grad": lambda f: jax.jit(jax.grad(f)),
    "grad_jit": lambda f: jax.grad(jax.jit(f)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0),
    "value_and_grad": jax.value_and_grad,
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "nested_checkpoint": lambda f: jax.jit(jax.grad(jax.checkpoint(lambda x: jax.checkpoint(f)(x * 1.0)))),
    "dots_saveable": lambda f: jax.jit(jax.grad(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable))),
    "everything_saveable": lambda f: jax.grad(jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable)),
    "cond": lambda f: jax.jit(jax.grad(lambda x: jax.lax.cond(x[0] < 5, f, lambda x: 0.0, x))),
    "scan_of_one": lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (c, f(c)), x, None, length=1)[1].sum()),
    "grad_grad": lambda f: jax.grad(lambda x: jax.grad(f)(x).sum()),
    "jacfwd_grad": lambda f: jax.jacfwd(jax.grad(f)),
    "jaxviz_grad": jaxviz.grad,
    "jit_jaxviz_grad": lambda f: jax.jit(jaxviz.grad(f)),
    "jaxviz_grad_jit": lambda f: jaxviz.grad(jax.jit(f)),
    "jaxviz_checkpoint": lambda f: jaxviz.grad(jax.checkpoint(f)),
    "jaxviz_policy": lambda f: jaxviz.grad(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)),
}

MAPPED = {
    "vmap_grad": lambda f: jax.vmap(jax.grad(f)),
    "jit_vmap_grad": lambda f: jax.jit(jax.vmap(jax.grad(f))),
    "vmap_jit_grad": lambda f: jax.vmap(jax.jit(jax.grad(f))),
    "grad_vmap": lambda f: jax.grad(lambda xs: jax.vmap(f)(xs).sum()),
    "checkpoint": lambda f: jax.vmap(jax.grad(jax.checkpoint(f))),
    "grad_checkpoint_vmap": lambda f: jax.grad(jax.checkpoint(lambda xs: jax.vmap(f)(xs).sum())),
    "jaxviz_vmap": lambda f: jaxviz.vmap(jaxviz.grad(f)),
    "jit_jaxviz_vmap": lambda f: jax.jit(jaxviz.vmap(jaxviz.grad(f))),
}
EACH = [pytest.param(f, X, n, id=name) for n, table in enumerate((FORWARD, BACKWARD)) for name, f in table.items()]
EACH += [pytest.param(f, XS, 1, id=f"mapped-{name}") for name, f in MAPPED.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("transform", "x", "n_cotangents"), short_rows(EACH, 2))
def test_a_value_and_its_cotangent_are_reported_once(transform, x, n_cotangents):
    h = told(transform(probed), x)["h"]
    each = jax.vmap if x is XS else lambda f: f
    assert (h.count, h.cotangents.count, h.records[0].axes) == (1, n_cotangents, int(x is XS))
    same(h.values[0], each(value)(x))
    if n_cotangents:
        same(h.cotangents.values[0], each(cotangent)(x))
    if x is XS:  # examples lead
        summary = told(transform(probed), x, what="summary")["h"]
        same(summary.norm[0], jnp.linalg.norm(each(value)(x), axis=1))
        same(summary.cotangents.max[0], each(cotangent)(x).max(1))


def test_examples_of_examples_and_along_another_dimension():
    xs = jnp.arange(24.0).reshape(2, 3, 4)
    w = told(jax.vmap(jax.vmap(probed), in_axes=2), xs)
    same(w["h"].values[0], np.moveaxis(value(xs), 2, 0))
    assert w["h"].records[0].axes == 2
    plain = told(jax.vmap(lambda x, y: probed(x) * y, in_axes=(None, 0)), X, jnp.ones(2))
    assert plain["h"].records[0].axes == 0  # the same for all examples


LOOPS = {
    "eager": lambda f: jax.grad(f),
    "jit": lambda f: jax.jit(jax.grad(f)),
    "checkpointed_body": lambda f: jax.jit(jax.grad(lambda x: f(x, jax.checkpoint(step)))),
    "checkpointed_scan": lambda f: jax.grad(jax.checkpoint(f)),
    "jaxviz": lambda f: jaxviz.grad(f),
    "jit_jaxviz": lambda f: jax.jit(jaxviz.grad(f)),
    "jaxviz_checkpointed_body": lambda f: jaxviz.grad(lambda x: f(x, jax.checkpoint(step))),
}


@pytest.mark.slow
@pytest.mark.parametrize("transform", short(list(LOOPS.values()), 2), ids=LOOPS.keys())
def test_each_iteration_of_a_scan_is_told(transform):
    w = told(transform(scanned), X)
    cts, hs = jax.grad(carried, argnums=1, has_aux=True)(X, jnp.zeros((4, 3)))
    same(w["h"].values, hs)
    same(w["h"].cotangents.values, cts[::-1])  # the backward pass reports the last one first
    assert w["h"].count == w["h"].cotangents.count == 4


@pytest.mark.slow
def test_scans_under_vmap_and_an_index_of_the_programs_own():
    def body(c, i):
        h = jaxviz.probe(jnp.sin(c) * (i + 1), "h", index=i)
        return h, None

    fun = lambda x: jax.lax.scan(body, x, jnp.arange(4))[0].sum()
    w = told(jax.jit(jax.grad(fun)), X)
    assert w["h"].index.ravel().tolist() == [0, 1, 2, 3]
    assert w["h"].cotangents.index.ravel().tolist() == [3, 2, 1, 0]
    mapped = told(jax.vmap(jax.grad(scanned)), XS)
    _, hs = jax.vmap(carried, in_axes=(0, None))(XS, jnp.zeros((4, 3)))
    same(mapped["h"].values, np.moveaxis(hs, 0, 1))


@pytest.mark.slow
def test_each_device_of_a_shard_map_tells_of_its_part():
    x = jnp.arange(16.0)
    sharded = jax.shard_map(lambda x: jaxviz.probe(jnp.sin(x), "h"), mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    fun = lambda x: jnp.sum(sharded(x) ** 2)
    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.jit(jaxviz.grad(f))):
        w = told(transform(fun), x)
        for series, whole in ((w["h"], jnp.sin(x)), (w["h"].cotangents, 2 * jnp.sin(x))):
            assert sorted(series.devices) == list(range(8))
            same(series.values[np.argsort(series.devices)].ravel(), whole)
    mapped = told(jax.pmap(probed), jnp.arange(24.0).reshape(8, 3))
    same(mapped["h"].values[np.argsort(mapped["h"].devices)], value(jnp.arange(24.0).reshape(8, 3)))


def test_a_value_laid_out_over_devices_is_told_whole():
    x = jax.device_put(jnp.arange(8.0), NamedSharding(MESH, P("i")))
    for fun in (lambda x: jaxviz.probe(x * 2, "h"), jax.jit(lambda x: jaxviz.probe(x * 2, "h"))):
        same(told(fun, x)["h"].values, [np.arange(8.0) * 2])


def test_nothing_is_in_the_program_unless_it_is_watched():
    plain, with_probe = (str(jax.make_jaxpr(f)(X)) for f in (lambda x: rest(jnp.sin(x) * x), probed))
    assert plain == with_probe
    with jaxviz.watch("other"):
        assert str(jax.make_jaxpr(probed)(X)) == plain
    with jaxviz.watch("h"):
        assert "report" in str(jax.make_jaxpr(probed)(X))
    assert str(jax.make_jaxpr(probed)(X)) == plain
    text = jax.jit(probed).lower(X).as_text()
    assert "callback" not in text


def test_the_value_is_lowered_to_what_it_would_be_but_for_the_call():
    with jaxviz.watch("h", what="value"):
        text = jax.jit(jax.grad(probed)).lower(X).as_text()
    assert text.count("xla_ffi_python_cpu_callback") == 2


def test_a_program_of_another_thread_is_watched():
    fun = jax.jit(probed)
    with jaxviz.watch("h") as w:
        thread = threading.Thread(target=lambda: fun(X).block_until_ready())
        thread.start()
        thread.join()
    assert w["h"].count == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", short(["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64"], 3))
def test_summaries_are_those_of_jnp(dtype):
    x = jnp.array([[1.5, -2.0, 0.0], [3.0, 4.0, -5.0]]).astype(dtype)
    w = told(jax.jit(lambda x: jaxviz.probe(x, "h")), x, what="summary")
    values = told(jax.jit(lambda x: jaxviz.probe(x, "h")), x, what="value")
    wide = (jnp.abs(x) if dtype == "complex64" else x).astype(jnp.float32)
    for found in (w["h"], values["h"]):
        same(found.norm, [jnp.linalg.norm(wide)])
        same(found.mean, [wide.mean()])
        same(found.min, [wide.min()])
        same(found.max, [wide.max()])
    np.testing.assert_array_equal(values["h"].values[0], x)


def test_errors_of_the_program_come_through():
    class Wrong(Exception):
        pass

    def fun(x):
        jaxviz.probe(x, "h")
        raise Wrong

    def interrupted(x):
        jax.jit(probed)(x)
        raise KeyboardInterrupt

    for error, f in ((Wrong, fun), (Wrong, jax.jit(fun)), (KeyboardInterrupt, interrupted)):
        with pytest.raises(error), jaxviz.watch("h"):
            f(X)
        assert probes.active_specs() == ()


def test_what_cannot_be_taken_does_not_end_the_program(monkeypatch):
    with jaxviz.watch("h") as w:
        monkeypatch.setattr(w, "receive", lambda report: 1 / 0)
        jax.jit(probed)(X).block_until_ready()
    assert isinstance(w.errors[0], ZeroDivisionError)
    assert "division by zero" in str(w._notes())


def test_a_watch_that_is_over_holds_nothing():
    fun = jax.jit(probed)
    with jaxviz.watch("h") as w:
        fun(X)
    held = weakref.ref(w)
    del w
    gc.collect()
    assert held() is None
    with jaxviz.watch("h") as again:
        fun(X)
    assert again["h"].count == 1


def test_whole_values_are_bounded_by_bytes(monkeypatch):
    monkeypatch.setattr(series_module, "MOST_BYTES", 100)
    f = jax.jit(lambda x: jaxviz.probe(x, "h"))
    with jaxviz.watch("h", what="value") as w:
        for x in w.steps(range(40)):
            f(jnp.full(3, float(x)))
    assert 0 < sum(r.values.nbytes for r in w["h"].records) <= 100
    assert w["h"].values.shape[1:] == (3,)


@pytest.mark.slow
@transcripts.of("probes")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
