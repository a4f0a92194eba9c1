"""Where a NaN first occurs: programs with a NaN, with the line, equation and cause that are expected."""

import functools
import inspect
from pathlib import Path
from typing import Any, NamedTuple

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


class Case(NamedTuple):
    """A function, of one line or with a line that is marked `here`, and what its report has to say of that line."""

    primitive: str
    cause: str
    fun: Any
    x: Any
    phase: str = "forward"
    iterations: tuple[int, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()
    gradient: bool | None = None


X = jnp.array([1.0, 0.0, 2.0])
ONES_AND_ZERO = jnp.ones((30, 4)).at[17].set(0.0)
CASES = {
    "norm_of_zeros": Case("div", "slope-of-norm-at-zero", lambda x: jnp.linalg.norm(x), jnp.zeros(3)),
    "root_at_zero": Case("div", "slope-of-sqrt", lambda x: jnp.sum(jnp.sqrt(x)), X),
    "deviation_of_equals": Case("div", "slope-of-std-at-zero", lambda x: jnp.std(x), jnp.ones(4)),
    "division": Case("div", "division-by-zero", lambda x: jnp.sum(1.0 / x), X),
    "scaled_by_its_range": Case(
        "div", "zero-by-zero", lambda x: jnp.sum((x - x.min()) / (x.max() - x.min())), jnp.ones(3)
    ),
    "arccos": Case("rsqrt", "slope-of-arccos", lambda x: jnp.sum(jnp.arccos(x)), jnp.array([1.0, 0.3])),
    "arccos_outside": Case("acos", "outside-of-domain", lambda x: jnp.sum(jnp.arccos(x)), jnp.array([1.5, 0.3])),
    "exp": Case("exp", "overflow-of-exp", lambda x: jnp.sum(jnp.exp(x)), jnp.array([100.0, 1.0])),
    "half": Case("mul", "overflow-of-float16", lambda x: jnp.sum(x * x), jnp.array([300.0, 1.0], jnp.float16)),
    "cast": Case("convert_element_type", "overflow-of-cast", lambda x: x.astype(jnp.float16), jnp.array([1e38, 1e38])),
    "long_sum": Case(
        "reduce_sum",
        "overflow-of-float16",
        lambda x: lax.reduce(x, np.float16(0), lax.add, (0,)),
        jnp.full(70_000, 1.0, jnp.float16),
    ),
    "power": Case("pow", "power-of-negative", lambda x: jnp.sum(x**0.5), jnp.array([-1.0, 4.0])),
    "all_masked": Case(
        "log", "all-masked", lambda x: jax.scipy.special.logsumexp(jnp.where(x > 5, x, -jnp.inf)), jnp.ones(3)
    ),
    "eigenvectors": Case(
        "integer_pow", "repeated-values-of-eigh", lambda x: jnp.sum(jnp.linalg.eigh(x)[1]), jnp.eye(3)
    ),
    "factor": Case(
        "cholesky", "not-positive-definite", lambda x: jnp.sum(jnp.linalg.cholesky(x)), -jnp.eye(2), gradient=False
    ),
    "zero_times_infinity": Case("mul", "zero-times-infinity", lambda x: jnp.sum(x * jnp.inf), jnp.array([0.0, 1.0])),
    "complex_log": Case("log", "log-of-zero", lambda x: jnp.abs(jnp.sum(jnp.log(x + 0j))), jnp.array([0.0, 1.0])),
    "overflow_of_both_signs": Case(
        "dot_general",
        "overflow",
        lambda x: x @ jnp.full(4, 1e30),
        jnp.array([1e38, 1e38, -1e38, -1e38]),
        gradient=False,
    ),
    "singular": Case(
        "triangular_solve", "singular-matrix", lambda x: jnp.sum(jnp.linalg.inv(x)), jnp.zeros((3, 3)), gradient=False
    ),
    "functions_in_the_result": Case(
        "log", "log-of-zero", lambda x: {"activation": jnp.tanh, "name": "mlp", "logs": jnp.log(x)}, X
    ),
    "jitted": Case("log", "log-of-zero", jax.jit(lambda x: {"loss": jnp.log(x), "other": x}), X),
    "mapped": Case("log", "log-of-zero", lambda x: jax.vmap(lambda y: jnp.sum(jnp.log(y)))(x), X[:, None]),
    "by_pmap": Case(
        "log", "log-of-zero", lambda x: jnp.sum(jax.pmap(jnp.log)(x)), jnp.ones((8, 2)).at[5].set(0.0), devices=((5,),)
    ),
}


def case(primitive, cause, x, transform=lambda fun: fun, name="", **expected):
    """Adds a function to the cases, or the transformed one."""

    def enter(fun):
        CASES[name or fun.__name__] = Case(primitive, cause, transform(fun), x, **expected)
        return fun

    return enter


@case("log", "log-of-zero", X)
def log_of_zero(x):
    y = jnp.log(x)  # here
    return jnp.sum(y)


@case("log", "log-of-negative", X - 0.5)
def log_of_negative(x):
    return jnp.sum(jnp.log(x))  # here


@case("div", "unsafe-where", X, phase="backward")
def unsafe_log(x):
    safe = jnp.log(x)  # here
    return jnp.sum(jnp.where(x > 0, safe, 0.0))


@case("div", "unsafe-where", X)
@case("div", "unsafe-where", X, name="unsafe_sqrt_by_jax", transform=jax.grad)
@case("div", "unsafe-where", X, name="unsafe_sqrt_by_jaxviz", transform=jaxviz.grad)
def unsafe_sqrt(x):
    root = jnp.sqrt(x)  # here
    return jnp.sum(jnp.where(x > 0, root, 0.0))


@case("sub", "all-masked", X)
def masked(x):
    scores = jnp.where(jnp.arange(3) > 5, x, -jnp.inf)
    return jnp.sum(jax.nn.softmax(scores))  # here


@case("integer_pow", "unsafe-where", jnp.ones((3, 2)).at[1, 0].set(0.0), iterations=(1,))
def unsafe_division(x):
    def step(c, y):
        quotient = y[1] / y[0]  # here
        return c + jnp.where(y[0] > 0, quotient, 0.0), None

    return lax.scan(step, 0.0, x)[0]


def recurrent(make, xs):
    def step(h, x):
        h = jnp.tanh(h @ jnp.zeros((4, 4)) + x)
        return h, make(h)

    return jnp.mean(lax.scan(step, jnp.zeros(4), xs)[1])


@case("div", "slope-of-sqrt", ONES_AND_ZERO, iterations=(17,))
def roots_in_a_scan(xs):
    return recurrent(lambda h: jnp.sum(jnp.sqrt(jnp.abs(h))), xs)  # here


@case("div", "slope-of-norm-at-zero", ONES_AND_ZERO, iterations=(17,), transform=jax.grad)
def norms_in_a_scan(xs):
    return recurrent(lambda h: jnp.linalg.norm(h), xs)  # here


@case("mul", "overflow", jnp.array(3.0), iterations=(6,))
def growing(x):
    def step(c, _):
        return c * c, c  # here

    return lax.scan(step, x, None, length=20)[0]


@case("exp", "overflow-of-exp", jnp.array(1.0), iterations=(3,))
def growing_while(x):
    def body(c):
        return c[0] + 1, jnp.exp(c[1])  # here

    return lax.while_loop(lambda c: c[0] < 9, body, (0, x))[1]


@case("log", "log-of-zero", jnp.ones((3, 4)).at[2, 1].set(0.0), iterations=(2, 1))
def nested_loops(x):
    def inner(c, y):
        return c + jnp.log(y), None  # here

    return lax.scan(lambda c, ys: (lax.scan(inner, c, ys)[0], None), 0.0, x)[0]


@case("sqrt", "sqrt-of-negative", jnp.ones((3, 2)).at[1, 0].set(-1.0), iterations=(1,))
def branch(x):
    def step(c, y):
        return c + lax.cond(y[0] < 0, jnp.sqrt, jnp.abs, y).sum(), None  # here

    return lax.scan(step, 0.0, x)[0]


@case("rsqrt", "slope-of-arccos", jnp.array([jnp.pi / 2, 0.3]), phase="backward")
def checkpointed(x):
    @jax.checkpoint
    def f(x):
        return jnp.arccos(jnp.sin(x))  # here

    return jnp.sum(f(x))


@case("log", "log-of-zero", X)
def custom(x):
    @jax.custom_vjp
    def f(x):
        return jnp.log(x)

    f.defvjp(lambda x: (jnp.log(x), x), lambda x, ct: (ct * x,))  # here
    return jnp.sum(f(x))


@case("log", "log-of-negative", jnp.array([1.0, 5.0, -1.0]), iterations=(0,))
def mapped_while(x):
    def until_three(x):
        step = lambda s: (s[0] + 1.0, jnp.log(s[1] - s[0]))  # here
        return lax.while_loop(lambda s: s[0] < 3.0, step, (x, 2.0 * x))[1]

    return jax.vmap(until_three)(x)


def over_devices(*shape, out=None, check_vma=True):
    """A `shard_map` over eight devices, along `i`, or along `i` and `j`."""
    axes = ("i", "j")[: len(shape)]
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(shape), axes)
    return functools.partial(jax.shard_map, mesh=mesh, in_specs=P(*axes), out_specs=out or P(), check_vma=check_vma)


SHARDED = jnp.ones(16).at[7].set(0.0).at[13].set(0.0)


@case("log", "log-of-zero", SHARDED, devices=((3,), (6,)), transform=over_devices(8))
@case(
    "log",
    "log-of-zero",
    SHARDED,
    devices=((3,), (6,)),
    transform=over_devices(8, check_vma=False),
    name="on_untyped_devices",
)
def on_devices(x):
    y = jnp.log(x)  # here
    return lax.psum(jnp.sum(y), "i")


@case(
    "div",
    "unsafe-where",
    jnp.ones((8, 4)).at[6, 3].set(0.0),
    iterations=(2,),
    devices=((1, 3),),
    transform=over_devices(2, 4),
)
def in_a_loop_on_devices(x):
    def step(c, y):
        root = jnp.sqrt(y)  # here
        return c + jnp.sum(jnp.where(y > 0, root, 0.0)), root

    start = lax.pcast(0.0, ("i", "j"), to="varying")
    return lax.psum(lax.scan(step, start, x)[0], ("i", "j"))


@case("sqrt", "sqrt-of-negative", jnp.ones((3, 8)).at[2, 5].set(-1.0), iterations=(2,), devices=((5,),))
def on_devices_in_a_loop(x):
    def body(x):
        return lax.psum(lax.cond(x[0] < 0, jnp.sqrt, jnp.abs, x).sum(), "i")  # here

    return lax.scan(lambda c, y: (c + over_devices(8)(body)(y), None), 0.0, x)[0]


@case("psum_invariant", "overflow", jnp.full(8, 1e38), devices=tuple((i,) for i in range(8)), transform=over_devices(8))
def sum_over_devices(x):
    return lax.psum(jnp.sum(x), "i")  # here


@case("log", "log-of-zero", jnp.ones(8).at[5].set(0.0), devices=((5,),))
def passed_round_devices(x):
    def body(x):
        y = jnp.log(x)  # here
        return jnp.sum(lax.ppermute(y, "i", [(k, (k + 1) % 8) for k in range(8)]) * 2.0, keepdims=True)

    return jnp.sum(over_devices(8, out=P("i"))(body)(x))


def line_of(fun):
    lines, start = inspect.getsourcelines(fun)
    return start + next((k for k, line in enumerate(lines) if "# here" in line), 0)


def found(born):
    """What the cases say of a report."""
    devices = tuple(at for d in born.devices for at in (d.index, *d.alike))
    return born.primitive, born.cause.id, born.phase, tuple(i.index for i in born.iterations), devices


def expected(case):
    return case.primitive, case.cause, case.phase, case.iterations, case.devices


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(CASES), 3))
def test_the_first_equation_is_named(name):
    case = CASES[name]
    report = jaxviz.find_nan(case.fun, case.x, gradient=case.gradient)
    born, line = report.born, line_of(case.fun)
    assert (born.location.file, born.location.line) == (__file__, line)
    assert found(born) == expected(case)
    assert born.is_exact
    assert f"{Path(__file__).name}:{line}" in str(report).replace("\n", "")
    assert not any(o.is_finite for o in born.outputs if o.low is not None or o.n_nan or o.n_inf)
    assert report.chain


@pytest.mark.slow
@pytest.mark.parametrize("name", short([name for name, case in CASES.items() if not case.devices], 7))
def test_stepping_finds_the_same(name):
    """It does not step into a `shard_map`."""
    case = CASES[name]
    subject = finding._subject(case.fun, (case.x,), {}, 0, case.gradient)
    bad = [k for k, (infinite, _) in enumerate(subject.run.kinds) if infinite]
    by_flags, by_steps = finding._find_by_flags(subject, bad), finding._find_by_stepping(subject)
    what = lambda r: (r.born.equation, r.born.location, r.born.iterations, r.born.branch, r.born.phase)
    assert what(by_steps) == what(by_flags)
    assert "equation by equation" in by_steps.note


@pytest.mark.slow
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
    "name",
    short(
        ["unsafe_log", "norm_of_zeros", "nested_loops", "growing_while", "branch", "cast", "complex_log"],
        ["unsafe_log", "growing_while", "branch"],
    ),
)
def test_it_works_in_64_bits(name):
    case = CASES[name]
    with jax.enable_x64(True):
        x = case.x.astype("float64")
        born = jaxviz.find_nan(case.fun, x).born
        assert (found(born), born.location.line) == (expected(case), line_of(case.fun))
        assert jaxviz.find_nan(case.fun, x, harmless=True).born.primitive == case.primitive
        assert jaxviz.find_nan(lambda x: jnp.sum(x**2), jnp.arange(3.0, dtype="float64")) is None


@pytest.mark.parametrize(
    "name", short(["log_of_zero", "unsafe_sqrt_by_jax", "norms_in_a_scan"], ["log_of_zero", "unsafe_sqrt_by_jax"])
)
def test_it_works_where_jit_is_disabled(name):
    case = CASES[name]
    compiled = jaxviz.find_nan(case.fun, case.x)
    with jax.disable_jit():
        report = jaxviz.find_nan(case.fun, case.x)
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


# --- what is compiled to narrow it down
# ---------------------------------------------------------------------------------


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


@pytest.mark.slow
@pytest.mark.parametrize(("f", "n"), [(goes_bad, 1), (jax.grad(goes_bad), 2)], ids=["forward", "backward"])
def test_a_loop_that_was_run_with_flags_is_not_run_again(compiled, f, n):
    report = jaxviz.find_nan(f, jnp.linspace(1.0, 2.0, 5))
    assert [i.index for i in report.born.iterations] == [3]
    assert report.born.is_exact
    flagged, *closely = compiled
    assert loops_in(flagged) == n
    assert [*map(loops_in, closely)] == [0] * len(closely)


def infinite_and_then_a_nan(x):
    def inner(c, y):
        pole = 1.0 / (y - 2.0)
        return c + 0.1, jnp.where(y == 2.0, jnp.sin(pole), c)

    def outer(c, _):
        c, ys = lax.scan(inner, c, x)
        return c, jnp.sum(ys)

    return lax.scan(outer, 0.5, None, length=2)[1]


def test_what_is_born_in_the_same_step_is_looked_at_in_one_run_of_the_loop(compiled):
    """The infinity and the NaN that it becomes are in a nested loop: the inner loop runs up to there once, and once
    fully for its sum."""
    report = jaxviz.find_nan(infinite_and_then_a_nan, jnp.arange(4.0), gradient=False)
    assert (report.born.primitive, report.became_nan.primitive) == ("div", "sin")
    assert [i.index for i in report.born.iterations] == [i.index for i in report.became_nan.iterations] == [0, 2]
    _, closely = compiled
    assert loops_in(closely) == 2


@pytest.mark.slow
@transcripts.of("nans")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.parametrize(("f", "x"), [(jax.grad(jnp.linalg.norm), jnp.zeros(3)), (jnp.log, jnp.float32(0))])
def test_the_call_of_find_nan_is_no_part_of_a_function_of_jax(f, x):
    explained = str(jaxviz.find_nan(f, x)).partition("From there:")[0]
    assert "in find_nan" not in explained
    assert "`jaxviz" not in explained
    assert "is infinite at 0." in explained or "The log of 0 is -inf." in explained


def two_causes(x):
    return jnp.sum(jnp.log(x - 1.0)) + jnp.sum(jnp.exp(x * 100.0))


def two_causes_in_its_gradient(x):
    return jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0)) + jnp.linalg.norm(x - x) + jnp.max(jnp.sqrt(x))


def two_causes_in_a_loop(x):
    def step(c, y):
        return c + jnp.log(y), jnp.sqrt(y - 2.0)

    c, ys = lax.scan(step, 0.0, x[::-1])
    return c + ys.sum()


def causes_in_one_expression(x):
    return jnp.sum(jnp.log(x * 2.0)) + jnp.sum(1.0 / (x * 3.0)) + jnp.sum(jnp.log(x * 4.0))


def two_causes_in_one_step(x):
    step = lambda c, y: (c + jnp.log(y * 2.0) + 1.0 / (y * 3.0), None)
    return lax.scan(step, 0.0, x)[0]


@pytest.mark.parametrize(
    ("f", "mended"),
    [
        (causes_in_one_expression, {"jnp.log(x * 2.0)": "x", "1.0 / (x * 3.0)": "x", "jnp.log(x * 4.0)": "x"}),
        (two_causes_in_one_step, {"jnp.log(y * 2.0)": "y", "1.0 / (y * 3.0)": "y"}),
        (two_causes, {"jnp.log(x - 1.0)": "x", "jnp.exp(x * 100.0)": "x"}),
        (two_causes_in_its_gradient, {"jnp.linalg.norm(x - x)": "0.0", "jnp.sqrt(x)": "x", "jnp.log(x)": "x"}),
        (two_causes_in_a_loop, {"jnp.sqrt(y - 2.0)": "y", "jnp.log(y)": "y"}),
    ],
)
def test_every_independent_cause_is_said(f, mended):
    """Without the operations that it names, and not without fewer, everything is finite."""
    x = jnp.array([0.0, 1.0, 2.0])
    report = jaxviz.find_nan(f, x)
    own = lambda e: e is not None and all(o.is_finite for o in e.inputs)
    named = [e.expression for e in (report.born, report.became_nan, *report.also) if own(e)]
    assert report.born.expression.endswith(next(iter(mended)))  # which is evaluated first
    assert sorted(named) == sorted(next(n for n in named if name in n) for name in mended)
    for name in report.also:
        assert name.expression in str(report)
    source = inspect.getsource(f)
    for left_in in [*mended, None]:
        text = source
        for name, instead in mended.items():
            text = text if name == left_in else text.replace(name, instead)
        names = {"jnp": jnp, "lax": lax}
        exec(text, names)
        value, slope = jax.value_and_grad(names[f.__name__])(x)
        assert bool(jnp.isfinite(value) and jnp.all(jnp.isfinite(slope))) == (left_in is None)


def test_every_argument_that_came_in_is_said():
    report = jaxviz.find_nan(lambda x, y: jnp.sum(x * y), jnp.array([jnp.nan, 1.0]), jnp.array([1.0, jnp.nan]))
    assert [text.split(" (")[0] for text in report.given] == ["the argument x", "the argument y"]


def test_an_argument_with_nans_beside_an_operation_is_said():
    report = jaxviz.find_nan(lambda x, y: jnp.log(x).sum() + y.sum(), jnp.zeros(2), jnp.array([1.0, jnp.nan]))
    assert report.born.primitive == "log"
    assert [text.split(" (")[0] for text in report.given] == ["the argument y"]
    assert "on the way to these results:\n  the argument y (" in str(report)
    masked = jaxviz.find_nan(lambda x, y: jnp.log(x).sum() + y.sum(), jnp.zeros(2), jnp.array([1.0, -jnp.inf]))
    assert masked.given == ()  # an infinity may be meant


def test_an_infinity_in_the_expression_of_the_nan_that_it_becomes_is_explained():
    def unit(v):
        length = jnp.sqrt(jnp.sum(v**2))
        return jnp.where(length > 0, v / length, 0.0)

    report = jaxviz.find_nan(lambda v: jnp.sum(unit(v)), jnp.zeros(3))
    assert report.born.expression == "div in the derivative of jnp.sqrt(jnp.sum(v**2))"
    assert report.became_nan.expression == "mul in the derivative of v / length"
    (other,) = report.also
    assert (other.expression, other.cause.id) == ("integer_pow in the derivative of v / length", "unsafe-where")


def test_what_is_not_listed_is_counted():
    code = "def f(x):\n  y = 0.0\n" + "".join(f"  y = y + jnp.log(x * {k}.0)\n" for k in range(1, 13)) + "  return y"
    names = {"jnp": jnp}
    exec(code, names)
    report = jaxviz.find_nan(names["f"], 0.0, gradient=False)
    assert len(report.also) + 1 + report.unlisted == 12
    assert f"and {report.unlisted} more operations" in str(report)
