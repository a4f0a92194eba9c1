"""Why functions are compiled again: each part of the cache key separately, with jax's own counts as the oracle."""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxviz
from jaxviz.runtime import compilations
from jaxviz.xla.compat.jitted import jitted_function

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


def last(f):
    return jaxviz.explain_recompile(f).compiled[-1]


def kinds(f):
    return [[c.kind for c in r.changes] for r in jaxviz.explain_recompile(f).compiled]


def test_each_argument_that_changed_is_named_with_the_line_of_the_call():
    @jax.jit
    def step(params, x):
        return jnp.sum(params["w"]) * x

    step({"w": np.ones(3, np.float32)}, 1.0)
    step({"w": np.ones(4, np.float32)}, 1.0)
    line = inspect.currentframe().f_lineno - 1
    found = last(step)
    assert str(found.changes[0]) == "params['w']: f32[3] → f32[4]"
    assert found.since == 1
    assert (found.site.file, found.site.line) == (__file__, line)
    step({"w": np.ones(3, np.int32)}, 1.0)
    assert last(step).text == "params['w']: f32[3] → i32[3]"
    step({"w": np.ones(3, np.float32)}, jnp.float32(1.0))
    assert last(step).text == "x: f32[], weakly typed → f32[], not weakly"
    step({"w": np.ones((2, 2), np.int32)}, 1.0)
    assert kinds(step) == [[], ["shape"], ["dtype"], ["weak type"], ["shape"]]
    assert jaxviz.explain_recompile(step).count == step._cache_size() == 5


def test_static_values_by_name_and_by_place():
    @functools.partial(jax.jit, static_argnums=1, static_argnames="mode")
    def f(x, n, mode="a"):
        return x * n

    f(1.0, 3)
    f(1.0, 4)
    assert last(f).text == "static n: 3 → 4"
    f(1.0, 4, mode="b")
    assert last(f).text == "static mode: not given → 'b'"
    assert any("not as static" in line for line in jaxviz.explain_recompile(f).advice)


def test_a_static_object_that_only_equals_itself():
    class Config:
        pass

    f = jax.jit(lambda config, x: x + 1, static_argnums=0)
    f(Config(), 1.0)
    f(Config(), 1.0)
    assert last(f).text == "static config: a Config → another Config"
    assert "__eq__" in jaxviz.explain_recompile(f).advice[0]


def test_the_structure_of_the_arguments():
    @jax.jit
    def f(x):
        return sum(jax.tree.leaves(x))

    f({"a": 1.0})
    f({"a": 1.0, "b": 2.0})
    assert last(f).text == "x['b'] is new"
    f({"b": 2.0})
    assert last(f).text in ("x['a'] is gone", "x['b'] is new; x['a'] is gone")
    f([1.0])
    f((1.0,))
    assert last(f).text == "x: a list → a tuple"
    f(x=(1.0,))
    assert last(f).text == "x: given by position → given by keyword"
    assert jaxviz.explain_recompile(f).count == f._cache_size()


def test_a_watch():
    @jax.jit
    def f(x):
        return jaxviz.probe(jnp.sin(x), "h")

    f(1.0)
    with jaxviz.watch("h", "other"):
        f(1.0)
    assert str(last(f).changes[0]) == "jaxviz.watch: nothing → h, other"
    assert last(f).changes[0].kind == "watch"
    assert "compiled separately" in str(jaxviz.explain_recompile(f))
    with jaxviz.watch("h", "other"):
        f(1.0)
    assert jaxviz.explain_recompile(f).count == 2


def test_what_was_never_compiled():
    assert "never_called (test_recompilations.py:" in (text := str(jaxviz.explain_recompile(jax.jit(never_called))))
    assert text.endswith("not compiled while compilations were watched")


def never_called(x):
    return x


def test_configuration():
    @jax.jit
    def f(x):
        return x @ x

    x = np.ones((2, 2), np.float32)
    f(x)
    with jax.default_matmul_precision("highest"):
        f(x)
    assert last(f).text == "jax_default_matmul_precision: None → highest"
    with jax.enable_x64(True):
        f(x)
    assert last(f).text == "jax_enable_x64: False → True"


def test_a_device_that_an_argument_is_committed_to_and_what_is_kept_of_the_trace():
    @jax.jit
    def f(x):
        return x * 2

    x = jnp.ones(3)
    f(x)
    f(jax.device_put(x, jax.devices()[1]))
    found = last(f)
    assert found.text == "x: not committed to a device → committed to cpu:1"
    assert found.trace is None
    assert found.compile > 0


def train(lr):
    @jax.jit
    def update(x):
        return x - lr * x

    return update(np.ones(3, np.float32))


def test_a_function_that_is_made_anew_in_each_call():
    with jaxviz.watch_compilations() as seen:
        for lr in (0.1, 0.01, 0.01):
            train(lr)
    (update,) = seen
    assert [r.text for r in update.compiled] == [
        "the first", "a new function object; it closes over lr: 0.1 → 0.01", "a new function object",
    ]  # fmt: skip
    assert update.n_functions == 3
    assert "defined again in each call of train" in update.advice[0]
    assert any("pass lr as an argument" in line for line in update.advice)


def test_an_array_that_is_closed_over():
    def make(scale):
        return jax.jit(lambda x: scale * x)

    with jaxviz.watch_compilations() as seen:
        for _ in range(2):
            make(np.ones(3))(1.0)
    assert "it closes over scale: float64[3] → another float64[3]" in seen[0].compiled[1].text


def test_jitting_the_same_function_again_costs_nothing():
    def f(x):
        return x + 1

    with jaxviz.watch_compilations() as seen:
        for _ in range(3):
            jax.jit(f)(1.0)
    assert seen.count == 1


def test_what_was_cleared_is_told_from_what_changed():
    f = jax.jit(lambda x: x - 1)
    f(1.0)
    f.clear_cache()
    f(1.0)
    assert "no longer cached" in last(f).text
    assert last(f).changes == ()


def test_as_many_programs_as_jax_says_that_it_compiled(events):
    f = jax.jit(lambda x: jnp.sin(x) * 2)
    with jaxviz.watch_compilations() as seen:
        for n in (3, 4, 3, 5):
            f(np.ones(n, np.float32))
        jax.grad(lambda x: f(x).sum())(jnp.ones(7))
        f.lower(np.ones(6, np.float32)).compile()
        jnp.arange(11) * 2
    assert seen.count == len(events)
    own = [c.seconds["compile"] for c in seen.records if c.is_compiled]
    assert own == [seconds for _, seconds in events]
    by_call = next(g for g in seen if not g.is_part)
    assert by_call.count == f._cache_size() + 1  # and one ahead of time
    assert by_call.compiled[-1].ahead


def test_parts_that_a_transform_outside_of_jit_compiles():
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    with jaxviz.watch_compilations() as seen:
        jax.grad(inner)(1.0)
    (part,) = seen
    assert part.is_part
    assert part.name == "inner"
    assert "jax.jit(jax.grad(f))" in part.advice[0]


def test_what_is_only_traced_is_not_compiled():
    f = jax.jit(lambda x: x * 3)
    jax.eval_shape(f, 1.0)
    jax.make_jaxpr(f)(1.0)
    found = jaxviz.explain_recompile(f)
    assert found.count == 0
    assert "never" in found.summary


def test_functions_of_jaxviz_and_partial_applications_and_methods():
    class Model:
        def loss(self, x, n):
            return x * n

    model = Model()
    f = jaxviz.jit(functools.partial(model.loss, n=2))
    f(1.0)
    f(jnp.ones(3))
    found = jaxviz.explain_recompile(f)
    assert [r.text for r in found.compiled] == [
        "the first",
        "x: f32[] → f32[3]; x: f32[], weakly typed → f32[3], not weakly",
    ]
    assert found.definition.function.endswith("Model.loss")


def test_a_call_that_is_asked_about():
    @jax.jit
    def f(x, y=1.0):
        return x + y

    x = np.ones(3, np.float32)
    assert jaxviz.explain_recompile(f, x).answer == "A call with these arguments would be compiled, the first."
    f(x)
    assert jaxviz.explain_recompile(f, x).answer == "A call with these arguments has been compiled: 1."
    assert "would be compiled: x: f32[3] → f32[2]" in jaxviz.explain_recompile(f, x[:2]).answer
    assert f._cache_size() == 1
    with pytest.raises(TypeError, match=r"pass jax\.jit\(sin\)"):
        jaxviz.explain_recompile(jnp.sin.__wrapped__ if hasattr(jnp.sin, "__wrapped__") else np.sin, x)


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


@pytest.mark.large
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


def test_arguments_with_paths_of_their_own():
    def f(*xs, **named):
        return sum(jax.tree.leaves((xs, named)))

    jitted = jax.jit(f)
    jitted(1.0, [2.0], k=3.0)
    jitted(1.0, [2], k=3.0)
    assert "xs[1][0]" in last(jitted).text
    assert jitted_function(jitted)[0] is f


def test_what_was_not_watched_is_said_and_watched_from_then_on():
    jaxviz.watch_compilations(False)
    compilations.LOG.clear()
    f = jax.jit(lambda x: x * 6)
    f(1.0)
    first = jaxviz.explain_recompile(f)
    assert first.count == 0
    assert "not known, since compilations are watched only from now on" in first.summary
    f(jnp.ones(3))
    found = jaxviz.explain_recompile(f)
    assert (found.count, found.is_watched) == (1, True)


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


def test_no_code_of_a_users_class_is_called():
    """Except `__hash__` and `__eq__` of a static argument, which JAX calls as well."""
    called = []

    class Shy:
        def __init__(self, n):
            self.n = n

        def __repr__(self):
            called.append("repr")
            return "Shy()"

        def __hash__(self):
            called.append("hash")
            return self.n

        def __eq__(self, other):
            return self.n == other.n

    def make(shy):
        return jax.jit(lambda x, y=shy: x * shy.n)

    for n in (1, 2):
        make(Shy(n))(1.0)
    assert called == []
    f = jax.jit(lambda x, config: x * config.n, static_argnums=1)
    f(1.0, Shy(1))
    f(1.0, Shy(2))
    assert "repr" not in called
    assert last(f).text == "static config: a Shy → another Shy"


def test_dataclasses_are_shown_by_their_fields():
    @dataclasses.dataclass(frozen=True)
    class Config:
        width: int
        names: tuple[str, ...] = ("a",)

        def __repr__(self):
            raise AssertionError("not to be called")

    f = jax.jit(lambda x, config: x * config.width, static_argnums=1)
    f(1.0, Config(1))
    f(1.0, Config(2))
    assert last(f).text == "static config: Config(width=1, names=('a')) → Config(width=2, names=('a'))"


def test_what_was_traced_alone_counts_as_no_compilation():
    with jaxviz.watch_compilations() as seen:
        jax.eval_shape(jax.jit(lambda x: jnp.sin(x) + 1.0), 1.0)
        assert seen.count == 0
        jax.jit(lambda x: jnp.cos(x) + 1.0)(jnp.ones(7))
    assert seen.count == len([c for c in seen.records if c.is_compiled]) < len(seen.records)


def test_seconds_are_those_of_all_phases():
    @jax.jit
    def f(x):
        return jnp.sin(x) * 2.0

    f(jnp.ones(5))
    found = jaxviz.explain_recompile(f)
    (one,) = found.compiled
    assert all(x is not None and x > 0 for x in (one.trace, one.lower, one.compile))
    assert found.seconds == pytest.approx(one.trace + one.lower + one.compile)


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


def test_a_mesh_is_called_as_the_user_writes_it():
    f = jax.jit(lambda x: x * 2)
    x = jnp.ones(3)
    jaxviz.watch_compilations()
    f(x)
    with jax.set_mesh(jax.make_mesh((1,), ("d",))):
        f(x)
    found = jaxviz.explain_recompile(f)
    assert "jax.set_mesh: no mesh → d: 1" in found.compiled[1].text
    assert any("jax.set_mesh(mesh) once" in line for line in found.advice)
    assert "context_manager" not in str(found)
