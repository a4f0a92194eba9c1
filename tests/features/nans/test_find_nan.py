"""Where a NaN first occurs: programs with a NaN, with the line, equation and cause that are expected."""

import functools
import inspect
import json
import re
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from jaxviz.features.nans import find as finding
from jaxviz.features.nans import run as running

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


@pytest.mark.values
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


@pytest.mark.values
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


FINITE = {
    "harmless": (lambda x: jnp.sum(jnp.where(x > 0, x, jnp.log(-x))), (jnp.array([1.0, 2.0]),)),
    "masked": (lambda x: jnp.sum(jax.nn.softmax(jnp.where(jnp.arange(3) > 0, x, -jnp.inf)) ** 2), (X,)),
    "no_floats": (lambda i: i + 1, (jnp.arange(3),)),
    "relu": (lambda x: jnp.sum(jax.nn.relu(x)), (X,)),
    "max_of_equals": (lambda x: jnp.max(x), (jnp.ones(3),)),
    "clipped": (lambda x: jnp.sum(jnp.minimum(jnp.exp(x * 100.0), 5.0)), (jnp.array([1.0]),)),
}


@pytest.mark.parametrize("name", FINITE)
def test_no_false_alarm(name):
    fun, args = FINITE[name]
    gradient = False if name in ("harmless", "clipped") else None  # their gradients do have NaNs
    assert jaxviz.find_nan(fun, *args, gradient=gradient) is None


def test_harmless_ones_are_listed_apart():
    fun, args = FINITE["harmless"]
    report = jaxviz.find_nan(fun, *args, gradient=False, harmless=True)
    assert not report
    assert [(p.operations, p.phase) for p in report.harmless] == [(("log",), "forward")]
    assert "without effect on any result" in str(report)
    assert report.to_dict()["harmless"][0]["operations"] == ["log"]


def test_harmless_ones_do_not_hide_the_one_that_matters():
    def loss(x):
        hidden = jnp.where(x > 5, jnp.log(x), 0.0)
        return jnp.sum(hidden + jnp.sqrt(x - 1.0))

    report = jaxviz.find_nan(loss, X, gradient=False, harmless=True)
    assert report.born.primitive == "sqrt"
    assert [p.operations for p in report.harmless] == [("log",)]


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


def until_close(x):
    def goes_on(s):
        error = jnp.sqrt(s[1] - 5.0)
        return (error > 0.1) & (s[0] < 100)

    return lax.while_loop(goes_on, lambda s: (s[0] + 1, s[1] - 0.75), (0, x))[1]


@pytest.mark.parametrize("f", [until_close, lambda x: jax.vmap(until_close)(x[None])], ids=["plain", "mapped"])
def test_a_nan_that_ends_a_loop_is_listed_with_what_it_decides(f):
    x = jnp.float32(8.1)
    assert jaxviz.find_nan(f, x, gradient=False) is None
    report = jaxviz.find_nan(f, x, gradient=False, harmless=True)
    assert not report
    (passed,) = [p for p in report.harmless if p.location.line == inspect.getsourcelines(until_close)[1] + 2]
    assert passed.operations == ("sqrt",)
    assert passed.decides.startswith("`gt` reads it at test_find_nan.py:")
    assert "gives False, as any comparison with NaN does" in passed.decides
    if f is until_close:  # 8.1 - 5 * 0.75 is the first value below 5
        assert passed.decides.endswith("goes on, first before iteration 5")
    assert "a decision depends on it" in str(report)


def test_a_nan_that_is_only_compared_is_listed_too():
    f = lambda x: jnp.sum(jnp.where(jnp.sqrt(x) > 1.0, x, 0.0))
    assert jaxviz.find_nan(f, -X, gradient=False) is None
    (passed,) = jaxviz.find_nan(f, -X, gradient=False, harmless=True).harmless
    assert (passed.operations, passed.decides[:14]) == (("sqrt",), "`gt` reads it ")


def kept_where_asked(y, keep):
    return jnp.where(keep, y, 0.0)


def kept_in_a_branch(y, keep):
    return lax.cond(keep, lambda y: y * 1.0, lambda y: 0.0, y)


@pytest.mark.values
@pytest.mark.parametrize("keep", [kept_where_asked, kept_in_a_branch])
@pytest.mark.parametrize("loop", ["scan", "while"])
def test_what_was_harmless_in_one_iteration_is_told_from_what_matters_in_a_later_one(loop, keep):
    def step(c, x):
        return c + keep(jnp.log(x[0]), x[1] > 0), None

    def f(xs):
        if loop == "scan":
            return lax.scan(step, 0.0, xs)[0]
        return lax.fori_loop(0, len(xs) + 0 * xs[0, 0].astype(int), lambda i, c: step(c, xs[i])[0], 0.0)

    xs = jnp.ones((10, 2)).at[3].set(0.0).at[7, 0].set(0.0)
    born = jaxviz.find_nan(f, xs, gradient=False).born
    assert (born.primitive, [i.index for i in born.iterations]) == ("log", [7])


def test_what_went_round_is_followed_to_where_it_began():
    def step(c, x):
        d, e = c
        d = d + jnp.where(x[1] > 0, jnp.log(x[0]), 0.0)
        return (d, e + d), None

    xs = jnp.ones((400, 2)).at[3].set(0.0).at[70, 0].set(0.0).at[90, 0].set(0.0)
    born = jaxviz.find_nan(lambda xs: lax.scan(step, (0.0, 0.0), xs)[0][1], xs, gradient=False).born
    assert (born.primitive, [i.index for i in born.iterations]) == ("log", [70])


def test_a_branch_that_is_bad_when_it_is_not_taken_is_not_named():
    def f(xs):  # in iteration 2 the first branch produces an infinity that `where` hides
        def hidden(c, x):
            y = lax.cond(x[1] > 0, lambda y: jnp.log(y), lambda y: jnp.sqrt(y - 9.0), x[0])
            return c + jnp.where(x[2] > 0, y, 0.0), None

        return lax.scan(hidden, 0.0, xs)[0]

    xs = jnp.ones((6, 3)).at[2].set(jnp.array([0.0, 1.0, 0.0])).at[4].set(jnp.array([0.0, 0.0, 1.0]))
    born = jaxviz.find_nan(f, xs, gradient=False).born
    assert (born.primitive, [i.index for i in born.iterations]) == ("sqrt", [4])


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


PARTLY_USED = {
    "healthy": (lambda w: jnp.sum(w["a"] ** 2), 1, ()),
    "constant": (lambda w: 3.0 + jnp.zeros(()), 1, ()),
    "stopped": (lambda w: lax.stop_gradient(jnp.sum(w["a"])), 1, ()),
    "constant_nan": (lambda w: jnp.log(jnp.zeros(())), 1, ("the loss",)),
    "unused": (lambda w: jnp.sum(jnp.sqrt(0 * w["b"]["d"])), 1, ("the gradient in w['b']['d']",)),
    "frozen": (
        lambda w: jnp.sum(lax.stop_gradient(w["a"]) * jnp.sqrt(0 * w["b"]["c"])), 1, ("the gradient in w['b']['c']",),
    ),
    "several": (
        lambda w, n, v: n * jnp.sum(w["b"]["d"]) + jnp.sum(jnp.sqrt(0 * v["a"])), 3, ("the gradient in v['a']",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTLY_USED)
def test_gradients_keep_their_names_where_others_are_zero(name):
    f, n, results = PARTLY_USED[name]
    w = {"a": X + 1, "b": {"c": X + 1, "d": X + 1}}
    args, argnums = ((w,), 0) if n == 1 else ((w, 2, w), (0, 2))
    report = jaxviz.find_nan(f, *args, argnums=argnums)
    assert (report.results if report else ()) == results
    # JAX's own gradients are not finite for those parameters, and for no others
    arrays = jax.tree.leaves_with_path(jax.grad(f, argnums)(*args))
    n_bad = sum(not jnp.isfinite(x).all() for _, x in arrays)
    assert n_bad == sum(r.startswith("the gradient") for r in results)


@pytest.mark.values
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


@jax.custom_vjp
def doubled(x):
    return 2.0 * x


def doubled_backward(x, ct):
    return (ct / x,)


doubled.defvjp(lambda x: (2.0 * x, x), doubled_backward)


@pytest.mark.parametrize("grad", [jax.grad, jaxviz.grad], ids=["jax", "jaxviz"])
@pytest.mark.parametrize("looped", [False, True])
def test_a_rule_of_the_users_is_no_derivative_of_what_it_computes_with(grad, looped):
    def f(x):
        if looped:
            return jnp.sum(lax.scan(lambda c, x: (c, doubled(jnp.sin(x)) / 3.0), 0.0, x)[1])
        return jnp.sum(doubled(jnp.sin(x)) / 3.0)

    report = jaxviz.find_nan(grad(f), X)
    assert (report.born.primitive, report.born.phase) == ("div", "backward")
    assert not report.born.is_derivative
    assert report.born.cause.id == "division-by-zero"
    assert "derivative of" not in report.born.expression
    assert "of a function with a custom rule" in str(report)


def test_a_rule_of_the_users_for_tangents_is_none_either():
    @jax.custom_jvp
    def f(x):
        return 2.0 * x

    f.defjvp(lambda p, t: (f(*p), t[0] / p[0]))
    report = jaxviz.find_nan(jax.grad(lambda x: jnp.sum(f(x))), X)
    assert report.born.primitive == "div"
    assert "derivative of" not in report.born.expression


@pytest.mark.parametrize("loop", ["none", "scan"])
@pytest.mark.parametrize("by", ["find_nan", "jax"])
def test_the_where_is_seen_the_first_time(loop, by):
    root = lambda x: jnp.sqrt(x) * 2.0 + 1.0
    hidden = lambda x: jnp.where(x > 0, root(x), 0.0)
    f = lambda x: jnp.sum(lax.scan(lambda c, x: (c, hidden(x)), 0.0, x)[1] if loop == "scan" else hidden(x))
    report = jaxviz.find_nan(f if by == "find_nan" else jax.grad(f), jnp.array([-1.0, 0.0, 4.0]))
    assert (report.born.operation, report.born.cause.id) == ("sqrt", "unsafe-where")


@pytest.mark.values
def test_the_where_around_a_loop_is_seen_too():
    def f(x):
        roots = lax.scan(lambda c, x: (c, jnp.sqrt(x)), 0.0, x)[1]
        return jnp.sum(jnp.where(x > 0, roots, 0.0))

    assert jaxviz.find_nan(f, jnp.array([-1.0, 0.0, 4.0])).born.cause.id == "unsafe-where"
    assert jaxviz.find_nan(f, jnp.array([0.0, 4.0])).born.cause.id == "unsafe-where"


def writes_to_a_reference(x):
    r = jax.new_ref(jnp.zeros_like(x))
    r[0] = x[1]
    return jnp.sum(jnp.log(r[...]))


def test_what_is_in_a_reference_is_searched_but_no_gradient_through_it():
    report = jaxviz.find_nan(writes_to_a_reference, X)
    assert (report.born.primitive, report.results) == ("log", ("the result",))
    assert re.search(r"Its gradient was not searched: .*mutable reference.*test_find_nan.py:\d+", report.unsearched)


def logs_in_a_loop(x, total):
    def body(h, step):
        total[...] += jnp.log(h)
        return h - 1.0, None

    return lax.scan(body, x, jnp.arange(4))[0]


def in_a_branch(x, total):
    def add():
        total[...] = jnp.log(x)

    lax.cond(x[0] > 1.0, add, lambda: None)
    return x


CLOSED_OVER = jax.new_ref(jnp.float32(2.0))


@pytest.mark.parametrize("jitted", [False, True])
def test_references_are_searched_and_left_as_they_were(jitted):
    """JAX is run on other references, to compare what is in them."""
    before = jnp.array([1.0, 1.0])
    made = jax.new_ref(before), jax.new_ref(before)
    x = jnp.array([2.0, 5.0])
    f = jax.jit(logs_in_a_loop) if jitted else logs_in_a_loop
    report = jaxviz.find_nan(f, x, made[0])
    f(x, made[1])
    assert not jnp.isfinite(made[1][...]).all()
    assert report.results == ("what is then in total",)
    assert (report.born.primitive, report.born.expression) == ("log", "jnp.log(h)")
    assert [i.index for event in (report.born, report.became_nan) for i in event.iterations] == [2, 3]
    assert jnp.array_equal(made[0][...], before)
    assert jaxviz.find_nan(f, x + 2.0, made[0]) is None


@pytest.mark.parametrize("x", [[2.0, 0.0], [0.0, 0.0]])
def test_only_the_branch_that_is_taken_writes_to_a_reference(x):
    x = jnp.array(x)
    report = jaxviz.find_nan(in_a_branch, x, jax.new_ref(jnp.zeros(2)))
    assert (report is not None) == bool(x[0] > 1.0)
    assert report is None or report.born.primitive == "log"


def test_a_reference_that_is_closed_over_is_searched_too():
    def f(x):
        CLOSED_OVER[...] -= 1.0
        return x / CLOSED_OVER[...] - jnp.log(CLOSED_OVER[...] - 1.0)

    report = jaxviz.find_nan(f, jnp.float32(3.0), argnums=())
    assert (report.born.primitive, report.results) == ("log", ("the result",))
    assert CLOSED_OVER[...] == 2.0
    bad = jax.new_ref(jnp.nan)
    assert "a reference that is closed over" in jaxviz.find_nan(lambda x: x * bad[...], X).given[0]


def test_the_gradient_of_a_loss_that_counts_is_searched():
    def loss(x, count):
        count[...] += 1.0
        return jnp.sum(jnp.sqrt(x)) * count[...]

    count = jax.new_ref(jnp.float32(0.0))
    report = jaxviz.find_nan(loss, jnp.array([0.0, 4.0]), count)
    assert report.results == ("the gradient in x",)
    assert report.unsearched == ""
    assert count[...] == 0.0


@pytest.mark.parametrize("holder", ["checkpoint", "rule"])
def test_a_gradient_that_uses_references_otherwise_than_the_function_is_not_searched(holder):
    count = jax.new_ref(jnp.float32(1.0))

    def counting(x):
        count[...] += 1.0
        return jnp.sin(x) * count[...]

    if holder == "rule":
        counted = jax.custom_vjp(jnp.sin)
        counted.defvjp(lambda x: (counting(x), x), lambda x, ct: (ct * jnp.cos(x),))
    else:
        counted = jax.checkpoint(counting)
    report = jaxviz.find_nan(lambda x: jnp.sum(counted(x)), X)
    assert report.results == ()
    assert re.search(r"Its gradient was not searched: .*test_find_nan.py:\d+", report.unsearched)
    assert count[...] == 1.0


def test_a_step_that_adds_its_gradient_to_references_is_searched_as_it_is():
    def step(p, x, total):
        value, pull = jax.vjp(lambda p: jnp.sum(jnp.sqrt(p * x)), p)
        pull.with_refs(total)(jnp.ones(()))
        return value

    total = jax.new_ref(jnp.zeros(3))
    report = jaxviz.find_nan(step, jnp.array([1.0, 0.0, 1.0]), jnp.ones(3), total)
    assert (report.results, report.unsearched) == (("what is then in total",), "")
    assert jnp.array_equal(total[...], jnp.zeros(3))


def test_a_loss_with_a_gradient_in_it_is_a_loss():
    energy = lambda x: jnp.sum(x**2)
    loss = lambda x: jnp.sum(jnp.sqrt(jax.grad(energy)(x)))
    assert jaxviz.find_nan(loss, X).results == ("the gradient in x",)
    assert jaxviz.find_nan(jax.jit(jax.grad(jnp.sqrt)), 0.0).results == ("the result",)


def test_what_came_in_is_named():
    report = jaxviz.find_nan(lambda p, x: jnp.sum(p["w"] * x), {"w": jnp.array([1.0, jnp.nan])}, jnp.ones(2))
    assert report.born is None
    assert report.given[0].startswith("the argument p['w'] (f32[2]")
    assert report.given[0].endswith("the first NaN at [1])")
    assert "came in through the argument p['w']" in report.summary.replace("\n", " ")


def unless_it_is_finite(w):
    y = jnp.sum(w)
    return jnp.where(jnp.isfinite(y), y, -jnp.inf)


@pytest.mark.parametrize("f", [jnp.var, unless_it_is_finite])
def test_a_number_that_the_program_says_is_not_named_beside_an_argument(f):
    """`jnp.var` returns NaN for an empty array."""
    report = jaxviz.find_nan(f, jnp.array([1.0, jnp.nan]))
    assert report.born is None
    assert [given.startswith("the argument") for given in report.given] == [True]


def test_a_constant_that_is_closed_over_is_named():
    table = jnp.array([jnp.nan, 1.0])
    report = jaxviz.find_nan(lambda x: jnp.sum(x * table), jnp.ones(2))
    assert report.given[0].startswith("a constant that is closed over (f32[2]")
    assert report.given[0].endswith("the first NaN at [0])")


def test_what_reads_an_infinite_argument_does_not_make_it():
    def f(p, x):
        scores = p["w"] * x  # infinite
        return jnp.sum(scores - jnp.max(scores))

    report = jaxviz.find_nan(f, {"w": jnp.ones((2, 2)).at[1, 0].set(jnp.inf)}, jnp.ones(2))
    assert report.born is None
    assert (
        "came in through the argument p['w'] (f32[2,2] (1 to 1, 1 of 4 infinite), the first infinity at [1, 0])"
        in report.summary
    )
    assert report.became_nan.primitive == "sub"
    assert "Becomes NaN at test_find_nan.py" in str(report)


def test_a_loss_without_reverse_mode_is_searched_forward():
    def loss(x):
        return lax.while_loop(lambda c: c < 3.0, lambda c: c + 1.0, x)

    report = jaxviz.find_nan(loss, 1.0)
    assert report
    assert report.summary == "function `loss`: every result is finite, but its gradient was not searched"
    assert re.match(r"Its gradient was not searched: ReverseModeError: .*test_find_nan.py:\d+", report.unsearched)
    assert report.unsearched in " ".join(str(report).split())
    assert report.unsearched == report.to_dict()["unsearched"]
    assert "ReverseModeError" in report._repr_html_()
    assert jaxviz.find_nan(loss, 1.0, gradient=False) is None
    report = jaxviz.find_nan(lambda x: jnp.log(loss(x) - 3.0), 0.0)
    assert report.born.primitive == "log"
    assert "Its gradient was not searched" in report.unsearched


@pytest.mark.parametrize("missing", ["rule", "callback"])
def test_a_loss_that_jax_cannot_differentiate_is_searched_forward(missing):
    def loss(x):
        if missing == "rule":
            return jnp.sum(jnp.ones(3).at[jnp.array([0, 1, 1])].multiply(jnp.log(x)))
        return jax.pure_callback(np.sum, jax.ShapeDtypeStruct((), x.dtype), jnp.log(x))

    report = jaxviz.find_nan(loss, X)
    assert report.born.primitive == "log"
    assert "Its gradient was not searched" in report.unsearched
    report = jaxviz.find_nan(loss, X + 1)
    assert (report.results, report.born) == ((), None)
    assert "Its gradient was not searched" in report.unsearched
    with pytest.raises((NotImplementedError, ValueError)):
        jaxviz.find_nan(loss, X, gradient=True)


def flat_root(x):
    return jnp.sqrt(jnp.sum(x * 0))


def scaled_root(w, x):
    return flat_root(w * x)


Pair = namedtuple("Pair", "loss metrics")

SEARCHED = {
    "keyword": (flat_root, (), {"x": X}, ["x"]),
    "keyword-only": (lambda *, x: flat_root(x), (), {"x": X}, ["x"]),
    "any-keyword": (lambda **given: flat_root(given["b"]["c"]), (), {"b": {"c": X}, "n": 1, "s": "text"}, ["given['b']['c']"]),
    "keywords-in-any-order": (scaled_root, (), {"x": X, "w": X}, ["w"]),
    "second-by-keyword": (scaled_root, (X,), {"x": X, "argnums": 1}, ["x"]),
    "both-by-keyword": (scaled_root, (), {"x": X, "w": X, "argnums": (0, 1)}, ["w", "x"]),
    "all": (scaled_root, (X,), {"x": X, "argnums": None}, ["w", "x"]),
    "partial": (functools.partial(scaled_root, x=X), (), {"w": X}, ["w"]),
    "static": (jax.jit(lambda x, n: flat_root(x) * n, static_argnames="n"), (), {"x": X, "n": 2}, ["x"]),
    "auxiliary": (lambda x: (flat_root(x), {"accuracy": x[0]}), (X,), {}, ["x"]),
    "auxiliary-list": (lambda x: [flat_root(x), x], (X,), {}, ["x"]),
    "auxiliary-named": (lambda x: Pair(flat_root(x), x), (X,), {}, ["x"]),
    "auxiliary-text": (lambda x: (flat_root(x), "text"), (X,), {}, ["x"]),
    "auxiliary-keyword": (lambda x: (flat_root(x), x), (), {"x": X}, ["x"]),
    "auxiliary-with-a-gradient": (lambda x: (flat_root(x) + jnp.sum(jax.grad(jnp.sum)(x)), x), (X,), {}, ["x"]),
}  # fmt: skip
"""Calls whose gradient is NaN, with the arguments that it is NaN in."""


@pytest.mark.parametrize("name", SEARCHED)
def test_no_gradient_is_passed_over(name):
    f, args, options, arguments = SEARCHED[name]
    for gradient in None, True:
        report = jaxviz.find_nan(f, *args, gradient=gradient, **options)
        assert report.results == tuple(f"the gradient in {argument}" for argument in arguments)
        assert report.born.primitive == "div"
        assert not report.unsearched


def test_auxiliary_results_are_searched_too():
    report = jaxviz.find_nan(lambda x: (jnp.sum(x), {"logs": jnp.where(x > 0, jnp.log(x), jnp.log(x))}), X)
    assert report.results == ("the auxiliary result['logs']",)
    assert report.born.cause.id == "log-of-zero"


def test_what_is_harmless_in_an_auxiliary_result_is_listed():
    report = jaxviz.find_nan(lambda x: (jnp.sum(x), jnp.where(x > 0, jnp.log(x), 0.0)), X, harmless=True)
    assert not report
    assert [p.operations for p in report.harmless] == [("log",)]
    assert report.summary == "gradient of `<lambda>` in `x`: every result is finite"


def own_step(grad):
    def step(w, x):
        value, slope = grad(lambda w: jnp.sum((w * x) ** 2))(w)
        return value, w - jnp.sqrt(slope * 0)

    return step


@pytest.mark.parametrize("grad", [jax.value_and_grad, jaxviz.value_and_grad], ids=["jax", "jaxviz"])
@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jitted", "plain"])
def test_a_step_that_takes_its_own_gradient_is_not_differentiated_again(grad, jit):
    """The gradient of its first result in the weights is finite, and that of its second result is not."""
    assert jaxviz.find_nan(jit(own_step(grad)), X, X) is None
    assert jaxviz.find_nan(grad(lambda x: jnp.sum(x**2)), X) is None


NOT_SEARCHED = {
    "integers": (lambda n, x: flat_root(x) * jnp.sum(n), (jnp.arange(3), X), "choose others with `argnums`"),
    "number": (lambda n, x: flat_root(x) * n, (2, X), "choose others with `argnums`"),
    "text": (lambda kind, x: flat_root(x), ("mean", X), "is not a valid JAX type. It is the argument kind"),
}


@pytest.mark.parametrize("name", NOT_SEARCHED)
def test_arguments_that_have_no_gradient_are_said(name):
    f, args, reason = NOT_SEARCHED[name]
    report = jaxviz.find_nan(f, *args)
    assert report.results == ()
    assert reason in report.unsearched
    with pytest.raises(TypeError, match=re.escape(reason)):
        jaxviz.find_nan(f, *args, gradient=True)
    assert jaxviz.find_nan(f, *args, argnums=()) is None
    assert jaxviz.find_nan(f, *args, gradient=False) is None


def test_functions_in_an_argument_are_fixed():
    report = jaxviz.find_nan(lambda p, x: flat_root(p["w"] * x), {"w": X, "act": jnp.tanh}, X)
    assert report.results == ("the gradient in p['w']",)


def test_a_rule_that_fails_is_named():
    @jax.custom_vjp
    def f(x):
        return jnp.sum(x)

    def backward(_, ct):
        raise KeyError("gamma")

    f.defvjp(lambda x: (f(x), None), backward)
    report = jaxviz.find_nan(lambda x: f(x), X)
    assert report.unsearched.startswith("Its gradient was not searched: KeyError: 'gamma'")


@pytest.mark.parametrize("f", [log_of_zero, jax.grad(log_of_zero), recurrent_by_jax], ids=lambda f: f.__name__)
def test_it_works_where_jit_is_disabled(f):
    args = CASES["recurrent_by_jax"][1] if f is recurrent_by_jax else (X,)
    compiled = jaxviz.find_nan(f, *args)
    with jax.disable_jit():
        report = jaxviz.find_nan(f, *args)
        assert jaxviz.find_nan(jnp.sum, X) is None
    what = lambda r: (r.results, r.born.location, r.born.primitive, r.born.phase)
    assert what(report) == what(compiled)


@pytest.mark.parametrize("f", [jnp.sum, jnp.sin])
def test_types_without_values_are_refused(f):
    with pytest.raises(TypeError, match=r"it needs arrays; got a ShapeDtypeStruct.*jnp.ones\(\(3,\)\)"):
        jaxviz.find_nan(f, jax.ShapeDtypeStruct((3,), jnp.float32))


def test_it_may_be_called_with_nothing():
    assert jaxviz.find_nan(lambda: jnp.log(0.0) + jnp.zeros(2)).results == ("the result",)
    assert jaxviz.find_nan(lambda: jnp.exp(0.0)) is None


def test_the_gradient_must_be_of_one_number():
    def f(x):
        return x

    with pytest.raises(TypeError, match=r"needs a function that returns one real number.*; f returns f32\[3\]"):
        jaxviz.find_nan(f, X, gradient=True)


def test_a_nan_of_its_own_is_not_said_to_come_of_the_infinity():
    f = lambda x: jnp.sum((x - x.mean()) / jnp.sqrt(jnp.var(x)))
    report = jaxviz.find_nan(jax.value_and_grad(f), jnp.ones(4))
    assert (report.born.primitive, report.became_nan.cause.id) == ("div", "zero-by-zero")
    assert "The first NaN is born at test_find_nan.py" in str(report)
    assert "Becomes NaN at test_find_nan.py" in str(jaxviz.find_nan(unsafe_sqrt, X))


def test_static_arguments_and_keywords():
    def loss(x, power, *, scale):
        return jnp.sum(jnp.log(x) ** power) * scale

    report = jaxviz.find_nan(loss, X, 2, scale=3.0)
    assert report.born.primitive == "log"
    assert report.results[0] == "the loss"
    assert "the gradient in x" in report.results


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


def masks_what_it_makes(x, n):
    mask = jnp.arange(3) < 2
    made = jnp.where(mask, jnp.sum(x), 1.0 / jnp.zeros(3))
    return jnp.sum(jnp.where(mask, made, 0.0)) + jnp.log(n)


def test_an_argument_is_to_blame_where_all_would_be_finite_without_its_nans():
    report = jaxviz.find_nan(masks_what_it_makes, jnp.array([1.0, jnp.nan, 2.0]), 1.0)
    assert report.born is None
    assert "the argument x" in report.given[0]
    assert "the first NaN at [1]" in report.given[0]


def test_a_missing_value_is_not_to_blame_for_what_is_made_elsewhere():
    report = jaxviz.find_nan(lambda x, n: jnp.nansum(x) * jnp.log(n), jnp.array([1.0, jnp.nan, 2.0]), 0.0)
    assert report.born.primitive == "log"


def test_a_report_on_complex_numbers_is_plain_data():
    report = jaxviz.find_nan(lambda z: jnp.abs(jnp.log(z * 0)), 1.0 + 2.0j, gradient=False)
    assert json.loads(json.dumps(report.to_dict()))["born"]["inputs"][0]["value"] == [0.0, 0.0]


# --- what is compiled to narrow it down ---------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch):
    """The programs compiled after the first one, as text."""
    texts, once = [], running.Run.once

    def noted(run, fun):
        def call(*args):
            texts.append(jax.jit(fun).lower(*args).as_text())
            return once(run, fun)(*args)

        return call

    monkeypatch.setattr(running.Run, "once", noted)
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


def test_any_sum_of_infinities_says_so():
    sums = (jnp.cumsum, lambda x: jnp.zeros(1).at[jnp.array([0, 0])].add(x))
    for add_up in sums:
        report = jaxviz.find_nan(lambda x, add_up=add_up: add_up(x * 1e38 * 1e10), jnp.array([1.0, -1.0]))
        assert "Infinity minus infinity is NaN." in str(report)


INF, ONES = jnp.inf, jnp.ones(3)
conv = lambda x, k, *args: lax.conv_general_dilated(x[None, None], k[None, None], (1,), *args)
GIVES_NAN = [
    ("infinity-minus-infinity", lambda x: conv(x, ONES, "VALID"), jnp.array([INF, 1.0, -INF])),
    ("zero-times-infinity", lambda x: conv(x, ONES, "VALID"), jnp.array([INF, 0.0, -INF])),
    ("zero-times-infinity", lambda x: conv(ONES, x, "SAME"), jnp.array([INF, INF, INF])),
    ("infinity-minus-infinity", lambda x: x @ ONES, jnp.array([INF, 1.0, -INF])),
    ("other", lambda x: (x + 0j) @ (ONES + 0j), jnp.array([INF, 1.0, -INF])),
    ("other", jnp.fft.rfft, jnp.array([INF, 1.0, -INF])),
]


@pytest.mark.parametrize(("cause", "f", "x"), GIVES_NAN)
def test_infinities_cancel_only_where_no_zero_can_be_what_they_are_multiplied_by(cause, f, x):
    report = jaxviz.find_nan(f, x, gradient=False)
    assert report.became_nan.cause.id == cause


OVERFLOWS = [
    (
        "",
        lambda x: ONES.at[jnp.array([0, 0])].multiply(x),
        jnp.full(2, 1e30),
    ),  # how many factors depends on the indices
    ("jnp.clip(x, -1e+37, 1e+37)", jnp.fft.rfft, jnp.full(3, 2e38)),
    ("", lambda x: jnp.fft.fft(x + 0j), jnp.full(3, 2e38)),  # complex numbers are not clipped
]


@pytest.mark.parametrize(("code", "f", "x"), OVERFLOWS)
def test_what_overflows_is_clipped_only_where_that_is_enough(code, f, x):
    cause = jaxviz.find_nan(f, x, gradient=False).born.cause
    assert cause.id == "overflow"
    assert cause.remedy.partition("`")[2].partition("`")[0] == code


def logged_in_a_call(x):
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (jax.jit(lambda ct: jnp.log(ct - 2.0))(ct),))
    return f(x)


def logged_in_a_solve(x):
    return lax.custom_linear_solve(lambda x: x, x, lambda _, b: b, lambda _, b: jnp.log(b - 2.0))


@pytest.mark.parametrize("f", [logged_in_a_call, logged_in_a_solve])
def test_a_call_in_the_backward_pass_is_part_of_it(f):
    born = jaxviz.find_nan(f, 1.0).born
    assert (born.primitive, born.phase, born.cause.id) == ("log", "backward", "log-of-negative")
    assert born.expression.startswith("jnp.log(")
    assert not born.inputs[0].is_cotangent  # but a value of the user's code
