"""Hi-primitives: functions with custom rules under the flags that make them such, and those that a user defines."""

import contextlib
import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from hi_primitives import HiPrim
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from lines import line_of
from programs import CASES
from short_runs import short

import jaxviz
from jaxviz.features.explorer.columns import view_of
from jaxviz.higher_order import bodies, of
from jaxviz.ir.convert import with_programs
from jaxviz.runtime.evaluate import evaluate

X = jnp.linspace(0.5, 2.5, 4)
W = jnp.arange(16.0).reshape(4, 4) / 16 + 0.1

FLAGS = tuple(f for f in ("jax_custom_vjp3", "jax_custom_jvp3") if hasattr(jax.config, f))


@contextlib.contextmanager
def flagged(*flags):
    for flag in flags:
        jax.config.update(flag, True)
    try:
        yield
    finally:
        for flag in flags:
            jax.config.update(flag, False)


@jax.custom_vjp
def by_vjp(x):
    return x * jnp.tanh(x)


def by_vjp_fwd(x):
    t = checkpoint_name(jnp.tanh(x), "t")  # named in a rule
    return x * t, (t, x)


by_vjp.defvjp(by_vjp_fwd, lambda saved, ct: (ct * (saved[0] + saved[1] * (1.0 - saved[0] ** 2)),))


@jax.custom_jvp
def by_jvp(x):
    return jnp.log(1.0 + jnp.exp(x))


@by_jvp.defjvp
def by_jvp_rule(primals, tangents):
    e = checkpoint_name(jnp.exp(primals[0]), "e")
    return jnp.log(1.0 + e), tangents[0] * e / (1.0 + e)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped(x, limit):
    return x


clipped.defvjp(lambda x, limit: (x, None), lambda limit, _, ct: (jnp.clip(ct, -limit, limit),))


def layer(w, x):
    return by_vjp(by_jvp(jax.nn.relu(w @ x)))


keeping = partial(jax.checkpoint, policy=jax.checkpoint_policies.save_only_these_names("t", "e"))
PROGRAMS = {
    "relu": lambda w, x: jax.nn.relu(w @ x),
    "silu": lambda w, x: jax.nn.silu(w @ x),
    "logsumexp": lambda w, x: jax.nn.logsumexp(jax.nn.gelu(w @ x)),
    "nondiff": lambda w, x: jnp.exp(clipped(w @ x, 3.0)),
    "jit": lambda w, x: jax.jit(layer)(w, x),
    "scan": lambda w, x: lax.scan(lambda x, w: (layer(w, x), None), x, jnp.stack([w, w * 0.5]))[0],
    "vmap": lambda w, x: jax.vmap(layer, (None, 0))(w, jnp.stack([x, x * 2.0])),
    "cond": lambda w, x: lax.cond(x[0] > 0, by_vjp, by_jvp, w @ x),
    "checkpoint": lambda w, x: jax.checkpoint(layer)(w, x),
    "names in rules": lambda w, x: keeping(layer)(w, keeping(layer)(w, x)),
    "gradient": lambda w, x: jax.grad(lambda x: jnp.sum(by_jvp(w @ x)))(x),
}


def loss_of(program):
    return lambda w, x: jnp.sum(PROGRAMS[program](w, x))


@pytest.mark.slow
@pytest.mark.parametrize("program", short(list(PROGRAMS), 2))
def test_rules_that_are_hi_primitives_are_opened(program):
    loss = loss_of(program)
    with flagged(*FLAGS):
        derivation = jaxviz.derive(loss, W, X)
        assert derivation.check(), derivation.check()
        assert derivation.unopened == ()
        ours, theirs = (jax.jit(grad(loss))(W, X) for grad in (jaxviz.grad, jax.grad))
        np.testing.assert_array_equal(ours, theirs)


WITH_RULES = [c for c in CASES if re.search("custom|jvp|vjp", c.name) and c.reverse]


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_RULES, ids=str)
def test_so_are_those_of_the_table_of_programs(case):
    with case.where(), flagged(*FLAGS):
        derivation = jaxviz.derive(case.fun, *case.args, argnums=range(len(case.args)))
        assert derivation.check(), derivation.check()
        assert "call_hi_primitive" not in str(jaxviz.residuals(derivation))


def plan_of(loss, *args):
    plan = jaxviz.plan_remat(loss, *args)
    return str(plan), str(plan.code())


REPORTS = {
    "residuals": jaxviz.residuals, "memory": jaxviz.memory, "policies": jaxviz.policies, "lint": jaxviz.lint,
    "cost": jaxviz.cost, "plan": plan_of, "step": lambda *args: jaxviz.step(*args).into(),
}  # fmt: skip
MORE_LINES = {("cost", "scan")}
"""With the flags, JAX's own functions have the line of their call in a loop."""


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_reports_say_the_same_with_the_flags(program):
    same_with_the_flags(program, [name for name in REPORTS if name != "plan"])


@pytest.mark.slow
@pytest.mark.parametrize("program", short(list(PROGRAMS), ["silu", "names in rules"]))
def test_plans_are_the_same_with_the_flags(program):
    same_with_the_flags(program, ["plan"])


def same_with_the_flags(program, names):
    loss, shown = loss_of(program), {}
    for flags in ((), FLAGS):
        with flagged(*flags):
            shown[flags] = {name: str(REPORTS[name](loss, W, X)) for name in names}
    for name in names:
        assert "call_hi_primitive" not in shown[FLAGS][name]
        if (name, program) not in MORE_LINES:
            assert shown[FLAGS][name] == shown[()][name], name


def test_a_page_does_not_name_what_calls_a_hi_primitive():
    with flagged(*FLAGS):
        view = view_of(jaxviz.derive(loss_of("scan"), W, X))
    assert "custom_vjp_call" in view.strings
    assert not any("call_hi_primitive" in s for s in view.strings)


def with_jvp(f, rule):
    g = jax.custom_jvp(f)
    g.defjvp(rule)
    return g


def with_vjp(f, fwd, bwd):
    g = jax.custom_vjp(f)
    g.defvjp(fwd, bwd)
    return g


def closing_over(kind, w, x):
    """A rule that closes over a value of the function that is differentiated."""
    y = lax.stop_gradient(jnp.sin(x))
    if kind == "jvp":
        g = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), jnp.cos(p[0]) * y * t[0]))
    elif kind == "fwd":
        g = with_vjp(jnp.sin, lambda v: (jnp.sin(v), (v, y)), lambda saved, ct: (jnp.cos(saved[0]) * ct * saved[1],))
    else:
        g = with_vjp(jnp.sin, lambda v: (jnp.sin(v), v), lambda v, ct: (jnp.cos(v) * ct * y,))
    return jnp.sum(g(w @ x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jvp", "fwd", "bwd"])
def test_a_rule_may_close_over_a_value_of_the_function(kind):
    loss = partial(closing_over, kind)
    with flagged(*FLAGS):
        assert jaxviz.derive(loss, W, X).check(), jaxviz.derive(loss, W, X).check()
        for of in (lambda f: f, jax.jit):
            np.testing.assert_allclose(of(jaxviz.grad(loss))(W, X), of(jax.grad(loss))(W, X), rtol=1e-6)


@pytest.mark.parametrize("around", [lambda g, x: g(x), lambda g, x: lax.scan(lambda c, _: (g(c), None), x, None, 2)[0]])
def test_a_rule_of_a_loop_has_the_variables_of_its_iteration(around):
    def loss(x):
        for i in range(3):
            g = with_jvp(jnp.sin, lambda p, t: (jnp.sin(p[0]), (i + 1.0) * t[0]))
            h = with_vjp(jnp.sin, lambda v: (jnp.sin(v), (i + 1.0) * v), lambda saved, ct: (saved * ct,))
            x = around(lambda x, g=g, h=h: h(g(x)), x)
        return jnp.sum(x)

    with flagged(*FLAGS):
        np.testing.assert_allclose(jaxviz.grad(loss)(X), jax.grad(loss)(X), rtol=1e-6)


@pytest.mark.parametrize("transform", ["grad", "jacfwd"])
@pytest.mark.parametrize("flags", [(), FLAGS])
def test_a_forward_rule_may_close_over_what_is_differentiated_outside(flags, transform):
    """The function does not depend on it, so its result has no tangent."""

    def outer(module, y):
        f = with_vjp(jnp.sin, lambda x: (jnp.sin(x), y), lambda y, ct: (2.0 * jnp.cos(y) * ct,))
        return module.grad(lambda x: f(x) * y)(1.0)

    with flagged(*flags):
        derivative = getattr(jaxviz, transform)(lambda y: outer(jaxviz, y))(4.0)
    np.testing.assert_allclose(derivative, 2.0 * jnp.cos(4.0) - 2.0 * 4.0 * jnp.sin(4.0), rtol=1e-6)


def test_a_backward_rule_may_look_at_values():
    g = with_vjp(jnp.sin, lambda v: (jnp.sin(v), v), lambda v, ct: (ct * (2.0 if v[0] > 0 else 3.0),))
    loss = lambda x: jnp.sum(g(x))
    with flagged(*FLAGS):
        for x in (X, -X):
            np.testing.assert_allclose(jaxviz.grad(loss)(x), jax.grad(loss)(x))
            assert jaxviz.derive(loss, x).check()


# --- a user's hi-primitive --------------------------------------------------------------------------------------------


class Gate(HiPrim):
    """tanh(x) · sigmoid(x), with rules for both modes."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return jnp.tanh(x) * jax.nn.sigmoid(x)  # the body

    def vjp_fwd(self, nonzeros, x):
        t, s = jnp.tanh(x), jax.nn.sigmoid(x)  # what is saved
        return t * s, (t, s)

    def vjp_bwd_retval(self, saved, ct):
        t, s = saved
        slope = (1.0 - t * t) * s + t * s * (1.0 - s)  # the slope
        return (ct * slope,)

    def jvp(self, primals, tangents):
        return jax.jvp(self.expand, primals, tangents)

    def batch_dim_rule(self, axis, dims):
        return dims[0]

    def batch(self, axis, args, dims):
        return Gate(jax.typeof(*args))(*args), dims[0]


def gate(x):
    return Gate(jax.typeof(x))(x)


def gated(w, x):
    return jnp.sum(gate(w @ gate(x)))  # the calls


def test_what_its_rule_saves_is_on_the_lines_of_the_rule():
    saved = [r for r in jaxviz.residuals(gated, W, X) if r.location.line == line_of(Gate, "# what is saved")]
    assert [r.expression for r in saved] == ["jnp.tanh(x)", "jax.nn.sigmoid(x)"]
    assert all("the rule `vjp_fwd` of Gate saves it" in r.reason for r in saved)
    assert "(Gate)" in str(jaxviz.residuals(gated, W, X))
    backward = jaxviz.derive(gated, W, X).backward
    lines = {e.location.line for e in backward.equations if e.origin is not None}
    assert line_of(Gate, "# the slope") in lines


def test_it_has_a_body():
    program = jaxviz.trace(gated)(W, X)
    (first, *_), names = program.equations, [e.primitive.name for e in program.equations]
    assert names.count("Gate") == 2
    (body,) = bodies(first)
    assert [e.primitive.name for e in body.program.equations] == ["tanh", "logistic", "mul"]
    assert body.program.equations[0].location.line == line_of(Gate, "# the body")
    assert of(first).kind == "call"
    assert jaxviz.cost(gate, X).by_primitive["tanh"].transcendentals == 4
    assert "tanh" in str(jaxviz.step(gate, X).into())
    assert str(program) == str(jax.make_jaxpr(gated)(W, X))


@pytest.mark.slow
@pytest.mark.parametrize("around", [jax.jit, jax.checkpoint, jax.vmap], ids=["jit", "checkpoint", "vmap"])
def test_it_is_derived_as_by_jax(around):
    loss = lambda x: jnp.sum(around(gate)(jnp.stack([x, x * 2.0])) ** 2)
    for f in (loss, lambda x: jnp.vdot(jax.grad(loss)(x), x)) if around is not jax.vmap else (loss,):
        derivation = jaxviz.derive(f, X)
        assert derivation.check(), derivation.check()
        np.testing.assert_array_equal(jax.jit(jaxviz.grad(f))(X), jax.jit(jax.grad(f))(X))
    ours, theirs = (t.jvp(loss, (X,), (X,)) for t in (jaxviz, jax))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


class Looking(Gate):
    """Its rule looks at the values."""

    def vjp_fwd(self, nonzeros, x):
        return self(x), x if x[0] > 0 else None

    def vjp_bwd_retval(self, x, ct):
        return (ct * (0.0 if x is None else x),)


def test_a_rule_that_looks_at_values():
    f = lambda x: jnp.sum(Looking(jax.typeof(x))(x))
    for x in (X, -X):
        np.testing.assert_allclose(jaxviz.grad(f)(x), jax.grad(f)(x), rtol=1e-6)


class Failing(Gate):
    def expand(self, x):
        raise RuntimeError("it has no body")


def test_one_that_computes_nothing_is_said_not_to_be_opened():
    f = lambda x: jnp.sum(Failing(jax.typeof(x))(x))
    assert [u.name for u in jaxviz.derive(f, X).unopened] == ["Failing"]
    assert re.search(r"not opened: Failing \(test_hi_rules.py:\d+\)", str(jaxviz.residuals(f, X)))


def test_an_edited_body_is_what_runs():
    """Flags, probes and names are put into bodies: the call then computes what the new body does, by the same rules."""
    program, half = jaxviz.trace(gate)(X), jaxviz.trace(lambda x: 0.5 * x)(X)
    (e,) = program.equations
    e = replace(e, operation=with_programs(e.operation, lambda _: half))
    changed = replace(program, equations=(e,))
    np.testing.assert_allclose(evaluate(changed, [X])[0], 0.5 * X)
    derived = jaxviz.derive(changed, argnums=(0,))
    assert [e.primitive.name for e in derived.forward.equations] == ["tanh", "logistic", "mul"]


class Scaled(HiPrim):
    """A power that its forward rule chooses, and writes among its residuals as numbers and a bool."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return x**3

    def vjp_fwd(self, nonzeros, x):
        return x**3, {"x": x, "power": 3, "is_odd": True}

    def vjp_bwd_retval(self, saved, ct):
        if any(isinstance(saved[name], jax.core.Tracer) for name in ("power", "is_odd")):
            raise ValueError("what the rule takes for static is a tracer")
        assert saved["is_odd"]
        return (int(saved["power"]) * saved["x"] ** 2 * ct,)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: lambda x: f(jnp.sin(f(x)))], ids=["", "jit", "twice"])
def test_a_backward_rule_gets_what_the_forward_rule_writes_in_place_untraced(wrap):
    x = jnp.linspace(0.5, 1.5, 3)
    f = wrap(lambda x: Scaled(jax.typeof(x))(x))
    gradient = lambda m: jax.jit(lambda x: m.vjp(f, x)[1](jnp.ones(3))[0])(x)
    try:
        expected = gradient(jax)
    except ValueError:  # a jitted function returns its residuals, in JAX
        expected = jax.grad(lambda x: jnp.sum(wrap(lambda x: x**3)(x)))(x)
    np.testing.assert_allclose(gradient(jaxviz), expected, rtol=1e-6)
    assert jaxviz.derive(f, x).check().agrees


@jax.custom_jvp
def twice_read(x):
    return jnp.sin(x)


twice_read.defjvp(
    lambda primals, tangents: (
        twice_read(*primals),
        tangents[0] * lax.sin(3.1 * primals[0]) + tangents[0] * lax.cos(2.3 * primals[0]),
    )
)


@pytest.mark.skipif(len(FLAGS) < 2, reason="in this JAX custom JVP rules are no hi-primitives")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: lax.exp(x) * twice_read(x) + lax.tanh(x),
        jax.jit(lambda x: twice_read(x) * x + twice_read(lax.exp(x)) * x),
        lambda x: lax.scan(lambda c, _: (twice_read(c) * c + lax.cos(c), None), x, None, length=2)[0],
    ],
    ids=["alone", "jit", "scan"],
)
def test_what_a_custom_jvp_rule_adds_to_a_cotangent_is_summed_first(f):
    """As in JAX, which transposes such a rule as a whole: the last bits depend on the order of additions."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=500), jnp.float32)
    with flagged(*FLAGS):
        ours, theirs = (jax.jit(lambda x, m=m: m.vjp(f, x)[1](jnp.ones(500))[0])(x) for m in (jaxviz, jax))
        np.testing.assert_array_equal(ours, theirs)
        second = [m.grad(lambda x, m=m: jnp.sum(m.grad(lambda x: jnp.sum(f(x)))(x) ** 2))(x) for m in (jaxviz, jax)]
        np.testing.assert_allclose(*second, rtol=1e-4, atol=1e-4)
