"""Why functions are compiled again: each part of the cache key separately, with jax's own counts as the oracle."""

import dataclasses
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts

import jaxviz
from jaxviz.runtime import compilations

pytestmark = pytest.mark.usefixtures("nothing_from_disk")


@pytest.fixture
def compile_seconds():
    """The seconds of jax's own compile events."""
    seconds = []

    def listen(event, n, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(n)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seconds
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True)
def nothing_missed():
    before = compilations.failures()
    jaxviz.watch_compilations()
    yield
    jaxviz.watch_compilations(False)
    assert compilations.failures() == before


@pytest.mark.slow
@transcripts.of("compilations")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_as_many_programs_as_jax_says_that_it_compiled(compile_seconds):
    f = jax.jit(lambda x: jnp.sin(x) * 2)
    with jaxviz.watch_compilations() as seen:
        jax.eval_shape(jax.jit(lambda x: jnp.sin(x) + 1.0), 1.0)
        assert seen.count == 0
        for n in (3, 4, 3, 5):
            f(np.ones(n, np.float32))
        jax.grad(lambda x: f(x).sum())(jnp.ones(7))
        f.lower(np.ones(6, np.float32)).compile()
        jnp.arange(11) * 2
    assert seen.count == len(compile_seconds) < len(seen.records)
    assert [c.seconds["compile"] for c in seen.records if c.is_compiled] == compile_seconds
    by_call = next(g for g in seen if not g.is_part)
    assert by_call.count == f._cache_size() + 1  # and one ahead of time
    assert by_call.compiled[-1].ahead


@pytest.mark.slow
def test_neither_arguments_nor_functions_are_kept():
    def make():
        constant = np.ones(1000)

        def f(x):
            return x + constant

        return f

    f = make()
    x = np.ones(1000)
    gone = [weakref.ref(f), weakref.ref(x)]
    jitted = jax.jit(f)
    jitted(x)
    assert jaxviz.explain_recompile(jitted).count == 1
    del f, x, jitted
    gc.collect()
    assert [r() for r in gone] == [None, None]


def test_a_listener_that_was_cleared_comes_back(monkeypatch):
    from jax._src import monitoring

    for name in ("_scalar_listeners", "_event_duration_secs_listeners"):
        monkeypatch.setattr(monitoring, name, [])
    with jaxviz.watch_compilations() as seen:
        jax.jit(lambda x: x + 7)(1.0)
    assert seen.count == 1


def test_seconds_are_those_of_all_phases():
    f = jax.jit(lambda x: jnp.sin(x) * 2.0)
    f(jnp.ones(5))
    found = jaxviz.explain_recompile(f)
    (one,) = found.compiled
    assert all(x is not None and x > 0 for x in (one.trace, one.lower, one.compile))
    assert found.seconds == pytest.approx(one.trace + one.lower + one.compile)
    f(jax.device_put(jnp.ones(5), jax.devices()[1]))
    again = jaxviz.explain_recompile(f).compiled[-1]
    assert again.trace is None  # it is kept
    assert again.compile > 0


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["n"])
@dataclasses.dataclass
class Registered:
    w: jax.Array
    n: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Marked:
    w: jax.Array
    n: int = dataclasses.field(metadata={"static": True})
    m: int = dataclasses.field(metadata={"static": True})


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (Marked(1.0, 2, 3), Marked(1.0, 2, 4), "static field model.m: 3 → 4"),
        (
            Registered(1.0, 2),
            Registered(1.0, 3),
            "static field of model: a Registered with (2,) → a Registered with (3,)",
        ),
        ((Marked(1.0, 2, 3),), (Marked(1.0, 5, 3),), "static field model[0].n: 2 → 5"),
        ([Marked(1.0, 2, 3), 1.0], [Marked(1.0, 2, 3), (1.0,)], "model[1][0] is new"),
    ],
)
def test_a_static_field_of_an_argument_is_named(before, after, text):
    @jax.jit
    def f(model):
        return jax.tree.map(lambda x: x * 2, model)

    with jaxviz.watch_compilations() as seen:
        f(before)
        f(after)
    (found,) = (c for c in seen.functions if c.name == "f")
    assert [str(c) for c in found.compiled[1].changes][:1] == [text]
    assert ("The values of static fields" in " ".join(found.advice)) == text.startswith("static field")
