"""Where a NaN first occurs: programs with a NaN, with the line, equation and cause that are expected."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from jaxviz.features.nans import capture
from jaxviz.features.nans import find as finding

CASES = {}


def case(*args, primitive, cause, phase="forward", iterations=(), devices=(), **options):
    """Registers a function with a line that is marked `here`."""

    def enter(fun):
        CASES[fun.__name__] = (fun, args, primitive, cause, phase, iterations, devices, options)
        return fun

    return enter


X = jnp.array([1.0, 0.0, 2.0])


@case(X, primitive="log", cause="log-of-zero")
def log_of_zero(x):
    y = jnp.log(x)  # here
    return jnp.sum(y)


@case(X - 0.5, primitive="log", cause="log-of-negative")
def log_of_negative(x):
    return jnp.sum(jnp.log(x))  # here


@case(X, primitive="div", cause="unsafe-where", phase="backward")
def unsafe_log(x):
    safe = jnp.log(x)  # here
    return jnp.sum(jnp.where(x > 0, safe, 0.0))


@case(X, primitive="div", cause="unsafe-where")
def unsafe_sqrt(x):
    root = jnp.sqrt(x)  # here
    return jnp.sum(jnp.where(x > 0, root, 0.0))


@case(X, primitive="div", cause="unsafe-where")
def unsafe_sqrt_by_jax(x):
    def loss(x):
        root = jnp.sqrt(x)  # here
        return jnp.sum(jnp.where(x > 0, root, 0.0))

    return jax.grad(loss)(x)


@case(X, primitive="div", cause="unsafe-where")
def unsafe_sqrt_by_jaxviz(x):
    def loss(x):
        root = jnp.sqrt(x)  # here
        return jnp.sum(jnp.where(x > 0, root, 0.0))

    return jaxviz.grad(loss)(x)


@case(jnp.zeros(3), primitive="div", cause="slope-of-norm-at-zero")
def norm_of_zeros(x):
    return jnp.linalg.norm(x)  # here


@case(X, primitive="div", cause="slope-of-sqrt")
def root_at_zero(x):
    return jnp.sum(jnp.sqrt(x))  # here


@case(jnp.ones(4), primitive="div", cause="slope-of-std-at-zero")
def deviation_of_equals(x):
    return jnp.std(x)  # here


@case(X, primitive="div", cause="division-by-zero")
def division(x):
    return jnp.sum(1.0 / x)  # here


@case(jnp.ones(3), primitive="div", cause="zero-by-zero")
def scaled_by_its_range(x):
    return jnp.sum((x - x.min()) / (x.max() - x.min()))  # here


@case(jnp.array([1.0, 0.3]), primitive="rsqrt", cause="slope-of-arccos", phase="forward")
def arccos(x):
    return jnp.sum(jnp.arccos(x))  # here


@case(jnp.array([1.5, 0.3]), primitive="acos", cause="outside-of-domain")
def arccos_outside(x):
    return jnp.sum(jnp.arccos(x))  # here


@case(jnp.array([100.0, 1.0]), primitive="exp", cause="overflow-of-exp")
def exp(x):
    return jnp.sum(jnp.exp(x))  # here


@case(jnp.array([300.0, 1.0], jnp.float16), primitive="mul", cause="overflow-of-float16")
def half(x):
    return jnp.sum(x * x)  # here


@case(jnp.array([1e38, 1e38]), primitive="convert_element_type", cause="overflow-of-cast")
def cast(x):
    return x.astype(jnp.float16)  # here


@case(jnp.full(70_000, 1.0, jnp.float16), primitive="reduce_sum", cause="overflow-of-float16")
def long_sum(x):
    return lax.reduce(x, np.float16(0), lax.add, (0,))  # here


@case(jnp.array([-1.0, 4.0]), primitive="pow", cause="power-of-negative")
def power(x):
    return jnp.sum(x**0.5)  # here


@case(X, primitive="sub", cause="all-masked")
def masked(x):
    scores = jnp.where(jnp.arange(3) > 5, x, -jnp.inf)
    return jnp.sum(jax.nn.softmax(scores))  # here


@case(jnp.ones(3), primitive="log", cause="all-masked")
def all_masked(x):
    return jax.scipy.special.logsumexp(jnp.where(x > 5, x, -jnp.inf))  # here


@case(
    jnp.zeros((4, 4)),
    jnp.ones((30, 4)).at[17].set(0.0),
    primitive="div",
    cause="slope-of-norm-at-zero",
    iterations=(17,),
)
def recurrent_by_jax(w, xs):
    def loss(xs):
        def step(h, x):
            h = jnp.tanh(h @ w + x)
            return h, jnp.linalg.norm(h)  # here

        return jnp.mean(lax.scan(step, jnp.zeros(4), xs)[1])

    return jax.grad(loss)(xs)


@case(jnp.ones((3, 2)).at[1, 0].set(0.0), primitive="integer_pow", cause="unsafe-where", iterations=(1,))
def unsafe_division(x):
    def step(c, y):
        quotient = y[1] / y[0]  # here
        return c + jnp.where(y[0] > 0, quotient, 0.0), None

    return lax.scan(step, 0.0, x)[0]


@case(jnp.eye(3), primitive="integer_pow", cause="repeated-values-of-eigh")
def eigenvectors(x):
    return jnp.sum(jnp.linalg.eigh(x)[1])  # here


@case(-jnp.eye(2), primitive="cholesky", cause="not-positive-definite", gradient=False)
def factor(x):
    return jnp.sum(jnp.linalg.cholesky(x))  # here


@case(jnp.array([0.0, 1.0]), primitive="mul", cause="zero-times-infinity")
def zero_times_infinity(x):
    return jnp.sum(x * jnp.inf)  # here


@case(jnp.zeros((4, 4)), jnp.ones((30, 4)).at[17].set(0.0), primitive="div", cause="slope-of-sqrt", iterations=(17,))
def recurrent(w, xs):
    def step(h, x):
        h = jnp.tanh(h @ w + x)
        return h, jnp.sum(jnp.sqrt(jnp.abs(h)))  # here

    return jnp.mean(lax.scan(step, jnp.zeros(4), xs)[1])


@case(jnp.array(3.0), primitive="mul", cause="overflow", iterations=(6,))
def growing(x):
    def step(c, _):
        return c * c, c  # here

    return lax.scan(step, x, None, length=20)[0]


@case(jnp.array(1.0), primitive="exp", cause="overflow-of-exp", iterations=(3,))
def growing_while(x):
    def body(c):
        return c[0] + 1, jnp.exp(c[1])  # here

    return lax.while_loop(lambda c: c[0] < 9, body, (0, x))[1]


@case(jnp.ones((3, 4)).at[2, 1].set(0.0), primitive="log", cause="log-of-zero", iterations=(2, 1))
def nested_loops(x):
    def inner(c, y):
        return c + jnp.log(y), None  # here

    return lax.scan(lambda c, ys: (lax.scan(inner, c, ys)[0], None), 0.0, x)[0]


@case(jnp.ones((3, 2)).at[1, 0].set(-1.0), primitive="sqrt", cause="sqrt-of-negative", iterations=(1,))
def branch(x):
    def step(c, y):
        return c + lax.cond(y[0] < 0, jnp.sqrt, jnp.abs, y).sum(), None  # here

    return lax.scan(step, 0.0, x)[0]


@case(jnp.array([jnp.pi / 2, 0.3]), primitive="rsqrt", cause="slope-of-arccos", phase="backward")
def checkpointed(x):
    @jax.checkpoint
    def f(x):
        return jnp.arccos(jnp.sin(x))  # here

    return jnp.sum(f(x))


@case(jnp.array([0.0, 1.0]), primitive="log", cause="log-of-zero")
def complex_log(x):
    return jnp.abs(jnp.sum(jnp.log(x + 0j)))  # here


@case(jnp.array([1e38, 1e38, -1e38, -1e38]), primitive="dot_general", cause="overflow", gradient=False)
def overflow_of_both_signs(x):
    return x @ jnp.full(4, 1e30)  # here


@case(jnp.zeros((3, 3)), primitive="triangular_solve", cause="singular-matrix", gradient=False)
def singular(x):
    return jnp.sum(jnp.linalg.inv(x))  # here


@case(X, primitive="log", cause="log-of-zero")
def gives_a_function_too(x):
    return {"activation": jnp.tanh, "name": "mlp", "logs": jnp.log(x)}  # here


@case(X, primitive="log", cause="log-of-zero")
def jitted(x):
    @jax.jit
    def step(x):
        return {"loss": jnp.log(x), "other": x}  # here

    return step(x)


@case(X, primitive="log", cause="log-of-zero")
def custom(x):
    @jax.custom_vjp
    def f(x):
        return jnp.log(x)

    f.defvjp(lambda x: (jnp.log(x), x), lambda x, ct: (ct * x,))  # here
    return jnp.sum(f(x))


@case(X[:, None], primitive="log", cause="log-of-zero")
def mapped(x):
    return jax.vmap(lambda y: jnp.sum(jnp.log(y)))(x)  # here


def over_devices(*shape, out=None, check_vma=True):
    """A `shard_map` over eight devices, along `i`, or along `i` and `j`."""
    axes = ("i", "j")[: len(shape)]
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(shape), axes)
    return functools.partial(jax.shard_map, mesh=mesh, in_specs=P(*axes), out_specs=out or P(), check_vma=check_vma)


SHARDED = jnp.ones(16).at[7].set(0.0).at[13].set(0.0)


@case(SHARDED, primitive="log", cause="log-of-zero", devices=((3,), (6,)))
def on_devices(x):
    def body(x):
        y = jnp.log(x)  # here
        return lax.psum(jnp.sum(y), "i")

    return over_devices(8)(body)(x)


@case(SHARDED, primitive="log", cause="log-of-zero", devices=((3,), (6,)))
def on_untyped_devices(x):
    def body(x):
        y = jnp.log(x)  # here
        return lax.psum(jnp.sum(y), "i")

    return over_devices(8, check_vma=False)(body)(x)


@case(jnp.ones((8, 4)).at[6, 3].set(0.0), primitive="div", cause="unsafe-where", iterations=(2,), devices=((1, 3),))
def in_a_loop_on_devices(x):
    def body(x):
        def step(c, y):
            root = jnp.sqrt(y)  # here
            return c + jnp.sum(jnp.where(y > 0, root, 0.0)), root

        start = lax.pcast(0.0, ("i", "j"), to="varying")
        return lax.psum(lax.scan(step, start, x)[0], ("i", "j"))

    return over_devices(2, 4)(body)(x)


@case(jnp.ones((3, 8)).at[2, 5].set(-1.0), primitive="sqrt", cause="sqrt-of-negative", iterations=(2,), devices=((5,),))
def on_devices_in_a_loop(x):
    def body(x):
        return lax.psum(lax.cond(x[0] < 0, jnp.sqrt, jnp.abs, x).sum(), "i")  # here

    step = lambda c, y: (c + over_devices(8)(body)(y), None)
    return lax.scan(step, 0.0, x)[0]


@case(jnp.full(8, 1e38), primitive="psum_invariant", cause="overflow", devices=tuple((i,) for i in range(8)))
def sum_over_devices(x):
    body = lambda x: lax.psum(jnp.sum(x), "i")  # here
    return over_devices(8)(body)(x)


@case(jnp.ones(8).at[5].set(0.0), primitive="log", cause="log-of-zero", devices=((5,),))
def passed_round_devices(x):
    def body(x):
        y = jnp.log(x)  # here
        return jnp.sum(lax.ppermute(y, "i", [(k, (k + 1) % 8) for k in range(8)]) * 2.0, keepdims=True)

    return jnp.sum(over_devices(8, out=P("i"))(body)(x))


@case(jnp.ones((8, 2)).at[5].set(0.0), primitive="log", cause="log-of-zero", devices=((5,),))
def by_pmap(x):
    return jnp.sum(jax.pmap(lambda x: jnp.log(x))(x))  # here


@case(jnp.array([1.0, 5.0, -1.0]), primitive="log", cause="log-of-negative", iterations=(0,))
def mapped_while(x):
    def until_three(x):
        step = lambda s: (s[0] + 1.0, jnp.log(s[1] - s[0]))  # here
        return lax.while_loop(lambda s: s[0] < 3.0, step, (x, 2.0 * x))[1]

    return jax.vmap(until_three)(x)


def line_of(fun):
    lines, start = inspect.getsourcelines(fun)
    return start + next(k for k, line in enumerate(lines) if "# here" in line)


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(CASES), 2))
def test_the_first_equation_is_named(name):
    fun, args, primitive, cause, phase, iterations, devices, options = CASES[name]
    report = jaxviz.find_nan(fun, *args, **options)
    born = report.born
    assert born.location.file == __file__
    assert born.location.line == line_of(fun)
    assert (born.primitive, born.cause.id, born.phase) == (primitive, cause, phase)
    assert tuple(i.index for i in born.iterations) == iterations
    assert tuple(at for d in born.devices for at in (d.index, *d.alike)) == devices
    assert born.is_exact
    assert f"{__file__}:{line_of(fun)}" in str(report).replace("\n", "")
    assert not any(o.is_finite for o in born.outputs if o.low is not None or o.n_nan or o.n_inf)
    assert report.chain


ON_DEVICES = [name for name, (*_, devices, _) in CASES.items() if devices]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", short([name for name in CASES if name not in ON_DEVICES], 2)
)  # it does not step into a shard_map
def test_stepping_finds_the_same(name):
    fun, args, *_, options = CASES[name]
    subject = finding._subject(fun, args, {}, 0, options.get("gradient"))
    bad = [k for k, (infinite, _) in enumerate(subject.run.kinds) if infinite]
    by_flags, by_steps = finding._find_by_flags(subject, bad), finding._find_by_stepping(subject)
    what = lambda r: (r.born.equation, r.born.location, r.born.iterations, r.born.branch, r.born.phase)
    assert what(by_steps) == what(by_flags)
    assert "equation by equation" in by_steps.note


def test_what_is_harmless_on_one_device_is_told_from_what_matters_on_another():
    def body(x):
        logs = jnp.log(x)
        return lax.psum(jnp.sum(jnp.where(x == 0, 0.0, logs)), "i")

    f = over_devices(8)(body)
    x = jnp.ones(8).at[1].set(0.0)
    assert jaxviz.find_nan(f, x, gradient=False) is None
    (passed,) = jaxviz.find_nan(f, x, gradient=False, harmless=True).harmless
    assert passed.operations == ("log",)
    report = jaxviz.find_nan(f, x.at[6].set(-1.0), gradient=False)
    assert [d.index for d in report.born.devices] == [(6,)]
    assert "on device i=6 of 8" in str(report)
    assert report.to_dict()["born"]["devices"][0]["index"] == {"i": 6}


def test_what_the_compiled_program_alone_shows_is_said(monkeypatch):
    monkeypatch.setattr(finding, "_find_by_flags", lambda subject, bad: None)
    report = jaxviz.find_nan(log_of_zero, X)
    assert report.born.primitive == "log"
    assert "equation by equation" in report.note
    monkeypatch.setattr(finding, "_find_by_stepping", lambda subject: None)
    report = jaxviz.find_nan(log_of_zero, X)
    assert report.born is None
    assert report.results == ("the loss", "the gradient in x")
    assert "its origin was not found" in report.summary
    assert "gave finite results as well" in report.note


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["unsafe_log", "norm_of_zeros", "nested_loops", "growing_while", "branch", "cast", "complex_log"]
)
def test_it_works_in_64_bits(name):
    fun, args, primitive, cause, phase, iterations, _, options = CASES[name]
    with jax.enable_x64(True):
        args = [x.astype("float64") for x in args]
        born = jaxviz.find_nan(fun, *args, **options).born
        assert (born.primitive, born.cause.id, born.phase, born.location.line) == (
            primitive,
            cause,
            phase,
            line_of(fun),
        )
        assert tuple(i.index for i in born.iterations) == iterations
        assert jaxviz.find_nan(fun, *args, harmless=True, **options).born.primitive == primitive
        assert jaxviz.find_nan(lambda x: jnp.sum(x**2), jnp.arange(3.0, dtype="float64")) is None


@pytest.mark.parametrize("f", [log_of_zero, jax.grad(log_of_zero), recurrent_by_jax], ids=lambda f: f.__name__)
def test_it_works_where_jit_is_disabled(f):
    args = CASES["recurrent_by_jax"][1] if f is recurrent_by_jax else (X,)
    compiled = jaxviz.find_nan(f, *args)
    with jax.disable_jit():
        report = jaxviz.find_nan(f, *args)
        assert jaxviz.find_nan(jnp.sum, X) is None
    what = lambda r: (r.results, r.born.location, r.born.primitive, r.born.phase)
    assert what(report) == what(compiled)


def test_the_function_is_not_left_changed_by_the_report():
    report = jaxviz.find_nan(log_of_zero, X)
    data = report.to_dict()
    assert data["born"]["index"] == [1]
    assert data["born"]["inputs"][0]["n_zero"] == 1
    assert "<script>" not in report._repr_html_()
    assert "<pre" not in report._repr_html_()
    assert "<td" in report._repr_html_()


@pytest.fixture
def debug_nans(own_state):
    jax.config.update("jax_debug_nans", True)
    yield
    jax.config.update("jax_debug_nans", False)


def test_debug_nans_neither_stops_it_nor_is_switched_off(debug_nans):
    log = jax.jit(jnp.log)
    log(jnp.ones(2))
    assert jaxviz.find_nan(log_of_negative, X - 0.5).born.primitive == "log"
    with pytest.raises(FloatingPointError):
        log(-jnp.ones(2))


def test_what_is_run_leaves_debug_nans_to_be_switched_on_later(own_state):
    log = jax.jit(jnp.log)
    log(jnp.ones(2))
    assert jaxviz.find_nan(log_of_negative, X + 0.5) is None
    jaxviz.grad(log_of_negative)(X + 0.5)
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(FloatingPointError):
            log(-jnp.ones(2))
        with pytest.raises(FloatingPointError):
            jaxviz.grad(log_of_negative)(X - 5.0)
    finally:
        jax.config.update("jax_debug_nans", False)


# --- what is compiled to narrow it down ---------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch):
    """The programs compiled after the first one, as text."""
    texts, once = [], capture.CompiledRun.once

    def noted(run, fun):
        def call(*args):
            texts.append(jax.jit(fun).lower(*args).as_text())
            return once(run, fun)(*args)

        return call

    monkeypatch.setattr(capture.CompiledRun, "once", noted)
    return texts


def loops_in(text):
    return text.count("stablehlo.while(")


def goes_bad(x):
    return jnp.sum(lax.scan(lambda c, y: (jnp.tanh(c + y), c / (y - 1.75)), 1.0, x)[1])


@pytest.mark.parametrize(("f", "n"), [(goes_bad, 1), (jax.grad(goes_bad), 2)], ids=["forward", "backward"])
def test_a_loop_that_was_run_with_flags_is_not_run_again(compiled, f, n):
    report = jaxviz.find_nan(f, jnp.linspace(1.0, 2.0, 5))
    assert [i.index for i in report.born.iterations] == [3]
    assert report.born.is_exact
    flagged, closely = compiled
    assert loops_in(flagged) == n
    assert loops_in(closely) == 0


def infinite_and_then_a_nan(x):
    def inner(c, y):
        pole = 1.0 / (y - 2.0)
        return c + 0.1, jnp.where(y == 2.0, jnp.sin(pole), c)

    def outer(c, _):
        c, ys = lax.scan(inner, c, x)
        return c, jnp.sum(ys)

    return lax.scan(outer, 0.5, None, length=2)[1]


def test_what_is_born_in_the_same_step_is_looked_at_in_one_run_of_the_loop(compiled):
    """The infinity and the NaN that it becomes are in a nested loop: the inner loop runs up to there once, and once fully for its sum."""
    report = jaxviz.find_nan(infinite_and_then_a_nan, jnp.arange(4.0), gradient=False)
    assert (report.born.primitive, report.became_nan.primitive) == ("div", "sin")
    assert [i.index for i in report.born.iterations] == [i.index for i in report.became_nan.iterations] == [0, 2]
    _, closely = compiled
    assert loops_in(closely) == 2


@transcripts.of("nans")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)
