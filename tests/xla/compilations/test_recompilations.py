"""Why functions are compiled again: each part of the cache key separately, with jax's own counts as the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts

import jaxviz
from jaxviz.runtime import compilations

pytestmark = pytest.mark.usefixtures("nothing_from_disk")
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def events():
    """The names in jax's own compile events."""
    heard = []

    def listen(event, seconds, **about):
        if event == COMPILED:
            heard.append((about["fun_name"], seconds))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield heard
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True)
def nothing_missed():
    before = compilations.failures()
    jaxviz.watch_compilations()
    yield
    jaxviz.watch_compilations(False)
    assert compilations.failures() == before


@transcripts.of("compilations")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_jitting_the_same_function_again_costs_nothing():
    def f(x):
        return x + 1

    with jaxviz.watch_compilations() as seen:
        for _ in range(3):
            jax.jit(f)(1.0)
    assert seen.count == 1


def test_as_many_programs_as_jax_says_that_it_compiled(events):
    f = jax.jit(lambda x: jnp.sin(x) * 2)
    with jaxviz.watch_compilations() as seen:
        jax.eval_shape(jax.jit(lambda x: jnp.sin(x) + 1.0), 1.0)
        assert seen.count == 0
        for n in (3, 4, 3, 5):
            f(np.ones(n, np.float32))
        jax.grad(lambda x: f(x).sum())(jnp.ones(7))
        f.lower(np.ones(6, np.float32)).compile()
        jnp.arange(11) * 2
    assert seen.count == len(events) < len(seen.records)
    own = [c.seconds["compile"] for c in seen.records if c.is_compiled]
    assert own == [seconds for _, seconds in events]
    by_call = next(g for g in seen if not g.is_part)
    assert by_call.count == f._cache_size() + 1  # and one ahead of time
    assert by_call.compiled[-1].ahead


def test_an_error_in_tracing_leaves_the_watch_in_order():
    @jax.jit
    def f(x):
        if x.shape == (2,):
            raise ValueError("no")
        return x

    with jaxviz.watch_compilations() as seen:
        with pytest.raises(ValueError, match="no"):
            f(np.ones(2))
        f(np.ones(3))
    assert (seen[0].count, seen[0].only_traced) == (1, 1)


@pytest.mark.slow
def test_neither_arguments_nor_functions_are_kept():
    import gc
    import weakref

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


def test_a_mistake_in_the_watch_does_not_reach_the_program(monkeypatch, nothing_missed):
    with monkeypatch.context() as m:
        m.setattr(compilations, "_begin", lambda *_: 1 / 0)
        assert jax.jit(lambda x: x + 8)(1.0) == 9.0
    assert "ZeroDivisionError" in compilations.failures()[-1]
    assert "Some compilations were not seen" in str(jaxviz.explain_recompile())
    compilations._failures.clear()


def test_reports_as_text_html_and_plain_data():
    f = jax.jit(lambda x: x * 5)
    with jaxviz.watch_compilations() as seen:
        f(np.ones(2))
        f(np.ones(3))
    assert "x: f32[2] → f32[3]" in str(seen[0])
    assert "compiled twice" in seen[0].summary
    assert "f32[2] → f32[3]" in seen[0]._repr_html_()
    plain = seen.to_dict()
    assert plain["functions"][0]["compiled"][1]["changes"] == [
        {"kind": "shape", "path": "x", "before": "f32[2]", "after": "f32[3]"}
    ]
    assert plain["count"] == 2
    assert "shape (1)" in str(seen)
    assert "shape (1)" in seen._repr_html_()


def test_a_report_of_everything_begins_the_watch_too():
    jaxviz.watch_compilations(False)
    compilations.LOG.clear()
    assert "nothing compiled since" in str(jaxviz.explain_recompile())
    jax.jit(lambda x: x * 7)(1.0)
    assert jaxviz.explain_recompile().count == 1


def test_a_block_that_has_ended_hears_no_more_and_is_still_known():
    jaxviz.watch_compilations(False)
    f = jax.jit(lambda x: x * 9)
    with jaxviz.watch_compilations() as seen:
        f(1.0)
    f(jnp.ones(3))
    assert seen.count == jaxviz.explain_recompile(f).count == 1
    assert not compilations.is_watching()


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


def test_what_jaxviz_compiles_to_look_at_a_program_is_told_apart():
    def loss(x):
        return jnp.sum(jnp.log(x) * jnp.sin(x))

    with jaxviz.watch_compilations() as seen:
        jaxviz.find_nan(loss, np.zeros(3, np.float32))
        jnp.cumsum(np.ones(7))
    assert seen.jaxviz
    assert all(c.definition is None or "jaxviz" not in c.definition.file for c in seen.library)
    assert "cumsum" in {c.name for c in seen.library}
    assert not seen.functions
    assert seen.count == len(seen.library) + len(seen.jaxviz)
    assert seen.summary.endswith(f"{len(seen.library)} of jax's own outside of jit, {len(seen.jaxviz)} of jaxviz's own")
    assert "jaxviz's own " in str(seen)
    assert [c["name"] for c in seen.to_dict()["jaxviz"]] == [c.name for c in seen.jaxviz]
