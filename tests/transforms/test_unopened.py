"""Checkpoints and custom rules under JAX's flags for their upcoming forms. What reports say is in a transcript."""

import inspect

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  they enter themselves into CASES
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from programs import CASES

import jaxviz
from jaxviz.ir import compat

X = np.linspace(0.1, 1.0, 3, dtype=np.float32)


@pytest.fixture
def flag(request):
    """One flag of JAX's, or several."""
    before = {name: getattr(jax.config, name) for name in request.param.split()}
    for name in before:
        jax.config.update(name, True)
    yield request.param
    for name, value in before.items():
        jax.config.update(name, value)
    jaxviz.clear_caches()


W = np.linspace(-1.0, 1.0, 9, dtype=np.float32).reshape(3, 3)

OPENS = jax.__version_info__ >= (0, 12)
opens = pytest.mark.skipif(not OPENS, reason="before JAX 0.12 they are not opened")


def block(x, w):
    h = checkpoint_name(jnp.tanh(x @ w), "h")
    return jnp.sin(h) * 2.0


def checkpointed(policy):
    def loss(x):
        for _ in range(2):
            x = jax.checkpoint(block, policy=policy)(x, W)
        return jnp.sum(
            jax.lax.scan(lambda x, _: (jax.checkpoint(block, policy=policy)(x, W), None), x, None, length=3)[0]
        )

    return loss


policies = jax.checkpoint_policies
POLICIES = [
    None, policies.nothing_saveable, policies.dots_saveable, policies.save_only_these_names("h", "typo"),
    policies.everything_saveable, lambda primitive, *_, **__: primitive.name == "tanh",
]  # fmt: skip


def test_a_sharding_constraint_contains_no_code():
    """One of its params is a mesh, which can be called: it is a decorator too."""
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.NamedSharding(mesh, jax.P("i"))
    derivation = jaxviz.derive(lambda x: jnp.sum(jax.lax.with_sharding_constraint(jnp.sin(x), rows)), jnp.ones((8, 2)))
    assert "sharding_constraint" in [e.primitive.name for e in derivation.primal.equations]
    assert derivation.unopened == ()


@opens
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
@pytest.mark.parametrize("policy", POLICIES, ids=range(len(POLICIES)))
def test_checkpoints_that_are_hi_primitives_are_opened(flag, policy):
    loss = checkpointed(policy)
    derivation = jaxviz.derive(loss, X)
    assert "RematTraced" in str(jax.make_jaxpr(loss)(X))
    assert derivation.unopened == ()
    check = derivation.check()
    assert check, check
    np.testing.assert_array_equal(jaxviz.grad(loss)(X), jax.grad(loss)(X))


def hi_primitives_in(jaxpr):
    """The hi-primitives that a jaxpr calls, also in the jaxprs of checkpoints."""
    for eqn in jaxpr.eqns:
        if "_prim" in eqn.params:
            yield eqn.params["_prim"]
            yield from hi_primitives_in(getattr(eqn.params["_prim"], "jaxpr", jax.make_jaxpr(lambda: 0)()))


@opens
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
def test_they_are_opened_whatever_their_classes_are_called(flag):
    layer = jax.checkpoint(block, policy=policies.save_only_these_names("h"))
    classes = {type(hi) for hi in hi_primitives_in(jax.make_jaxpr(layer)(X, W))}
    assert len(classes) == 2
    names = {of: of.__name__ for of in classes}
    try:
        for i, of in enumerate(classes):
            of.__name__ = f"Renamed{i}"
        assert "Renamed" in str(jax.make_jaxpr(layer)(X, W))
        derivation = jaxviz.derive(lambda x: jnp.sum(layer(x, W)), X)
    finally:
        for of, name in names.items():
            of.__name__ = name
    assert [e.primitive for _, e in derivation.primal.walk() if e.primitive in (compat.remat_p, compat.name_p)] == [
        compat.remat_p, compat.name_p,
    ]  # fmt: skip
    assert derivation.check()
    assert derivation.unopened == ()


@opens
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
def test_a_class_of_the_users_with_the_same_name_is_not(flag):
    from jax.experimental import hijax

    class CheckpointName(hijax.HiPrim):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {"name": "h"}
            super().__init__()

        def expand(self, x):
            return jnp.sin(x)

        def jvp(self, primals, tangents):
            return jnp.sin(*primals), jnp.cos(*primals) * tangents[0]

    f = lambda x: CheckpointName(jax.typeof(x))(x)
    assert [e.primitive.name for e in jaxviz.trace(f)(jnp.asarray(X)).equations] == ["CheckpointName"]


CHECKPOINTED = [c for c in CASES if ("remat" in c.name or "checkpoint" in c.name) and "optimize" not in c.name]


@opens
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
@pytest.mark.parametrize("case", CHECKPOINTED, ids=str)
def test_so_are_those_of_the_table_of_programs(flag, case):
    derivation = jaxviz.derive(case.fun, *case.args, argnums=range(len(case.args)))
    assert any(e.primitive is compat.remat_p for _, e in derivation.primal.walk())
    check = derivation.check()
    assert check, check


@opens
@pytest.mark.parametrize("policy", [POLICIES[0], *POLICIES[2:4]], ids=range(3))
def test_their_policies_are_reported_as_those_of_other_checkpoints(policy):
    def reported():
        found = jaxviz.policies(checkpointed(policy), X)
        assert len(found.checkpoints) == 3
        return str(found)

    before = reported()
    jax.config.update("jax_remat3", True)
    try:
        assert reported() == before
    finally:
        jax.config.update("jax_remat3", False)


@opens
@pytest.mark.parametrize("is_on", [False, True])
def test_a_policy_that_is_not_asked_is_told(is_on):
    """What `jax.vjp` saves is the oracle: with the flag it recomputes the exp, which the policy would save."""
    f = jax.checkpoint(
        lambda x: jnp.sin(jnp.exp(jnp.sin(x))), policy=lambda primitive, *_, **__: primitive.name == "exp"
    )
    jax.config.update("jax_remat3", is_on)
    try:
        saved = len(jax.tree.leaves(jax.vjp(f, X)[1]))
        (*notes,) = jaxviz.policies(lambda x: jnp.sum(f(x)), X).notes
    finally:
        jax.config.update("jax_remat3", False)
    assert saved == (1 if is_on else 2)
    assert bool(notes) == is_on
    assert not is_on or "would save `jnp.exp(jnp.sin(x))`, 12 B, but is not asked, and it is recomputed" in notes[0]


def named(x):
    return checkpoint_name(jnp.tanh(x), "h")


def by_fwd(compute):
    """x * tanh(x), whose forward rule computes the tangent hyperbolic in this way."""
    f = jax.custom_vjp(lambda x: x * jnp.tanh(x))

    def fwd(x):
        t = compute(x)
        return x * t, (t, x)

    f.defvjp(fwd, lambda saved, ct: (ct * (saved[0] + saved[1] * (1.0 - saved[0] ** 2)),))
    return f


@jax.custom_jvp
def by_jvp(x):
    return x * named(x)


by_jvp.defjvp(lambda primals, tangents: (by_jvp(*primals), tangents[0] * jax.jit(named)(*primals)))

RULES = {
    "forward rule": by_fwd(named),
    "jit in it": by_fwd(jax.jit(named)),
    "cond in it": by_fwd(lambda x: jax.lax.cond(x[0] > 9.0, jnp.sin, named, x)),
    "matrix product in it": by_fwd(lambda x: jnp.tanh((x @ jnp.eye(3, dtype=x.dtype)) * 1.0)),
    "JVP rule": by_jvp,
    "rule in a jit": jax.jit(lambda x: by_fwd(named)(named(x))),
    "rule in a scan": lambda x: jax.lax.scan(lambda x, _: (by_fwd(named)(named(x)), None), x, None, length=2)[0],
    "rule that was applied before": lambda x: jax.grad(lambda x: jnp.sum(by_fwd(named)(x)))(x),
}


@opens
@pytest.mark.parametrize("flag", ["jax_remat3", "jax_remat3 jax_custom_vjp3 jax_custom_jvp3"], indirect=True)
@pytest.mark.parametrize("policy", POLICIES[1:4], ids=range(3))
@pytest.mark.parametrize("rule", RULES)
def test_a_policy_is_asked_inside_a_custom_rule_where_jax_asks_it(flag, rule, policy):
    layer = jax.checkpoint(lambda w, x: RULES[rule](w @ x), policy=policy)
    loss = lambda x: jnp.sum(layer(W, layer(2.0 * W, x)))
    check = jaxviz.derive(loss, X).check()
    assert check, check
    np.testing.assert_allclose(jaxviz.grad(loss)(X), jax.grad(loss)(X), rtol=1e-5)


@pytest.mark.skipif(OPENS, reason="since JAX 0.12 they are opened")
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
def test_checkpoints_that_are_not_opened_are_not_denied(flag):
    found = jaxviz.policies(checkpointed(None), X)
    assert ": 3 checkpoints are not opened: jaxviz does not look at what they save; it saves" in found.summary
    assert found.notes[0].startswith("not opened: 2 times RematTraced (test_unopened.py:")
    assert not any("has no checkpoint" in note for note in found.notes)
    assert "; not opened: 2 times RematTraced" in jaxviz.derive(checkpointed(None), X).check().summary


# --- rules that decide what a checkpoint saves ------------------------------------------------------------------------


def by_remat_rules():
    """tanh(x) · sin(x), whose rules save one factor in a checkpoint and compute the other again."""
    f = jax.custom_vjp(lambda x: jnp.tanh(x) * jnp.sin(x))

    def fwd(x):
        t = jnp.tanh(x)
        return t * jnp.sin(x), t

    def again(t, x):
        s = jnp.sin(x)
        return t * s, (t, s, jnp.cos(x))

    f.defremat(fwd, again, lambda saved, ct: (ct * ((1.0 - saved[0] ** 2) * saved[1] + saved[0] * saved[2]),))
    return f


def keeps_all():
    """The same, whose rules save an operand, a result and what the backward rule reads."""
    f = jax.custom_vjp(lambda x: jnp.tanh(x) * jnp.sin(x))

    def fwd(x):
        out = jnp.tanh(x) * jnp.sin(x)
        return out, (x, out, jnp.cos(x))

    f.defremat(fwd, lambda saved, x: (saved[1], saved), lambda saved, ct: (ct * (saved[1] + saved[0] * saved[2]),))
    return f


def of_several():
    """A function of two arguments and with two results."""
    f = jax.custom_vjp(lambda x, y: (jnp.sin(x) * y, jnp.cos(y)))

    def fwd(x, y):
        return (jnp.sin(x) * y, jnp.cos(y)), {"sin": jnp.sin(x), "numbers": np.arange(3.0, dtype=np.float32)}

    def again(saved, x, y):
        return (saved["sin"] * y, jnp.cos(y)), (saved["sin"], jnp.cos(x), y, jnp.sin(y), saved["numbers"])

    def bwd(saved, cts):
        sin_x, cos_x, y, sin_y, numbers = saved
        return cts[0] * cos_x * y, cts[0] * sin_x - cts[1] * sin_y + numbers

    f.defremat(fwd, again, bwd)
    return lambda x: sum(f(x, 2.0 * x))


class OfUser:
    """A hi-primitive of a user's whose own method says what a checkpoint saves: x · |x|, of which it saves the sign."""

    def __init__(self):
        from jax.experimental import hijax

        class Squared(hijax.HiPrim):
            def __init__(self, aval):
                self.in_avals, self.out_aval, self.params = (aval,), aval, {}
                super().__init__()

            def expand(self, x):
                return x * jnp.abs(x)

            def vjp_fwd(self, nonzeros, x):
                return self(x), jnp.abs(x)

            def vjp_bwd_retval(self, saved, ct):
                return (2.0 * ct * saved,)

            def batch(self, axis, args, dims):
                (x,), (d,) = args, dims
                return Squared(jax.typeof(x))(x), d

            def remat(self, trace, x):
                return self(x), jnp.sign(x), lambda sign, x: sign * x * x

        self.primitive = Squared

    def __call__(self, x):
        return self.primitive(jax.typeof(x))(x)


def decides_nothing():
    """Such a hi-primitive that has rules for reverse mode alone."""
    squared = OfUser()
    del squared.primitive.remat
    return squared


def after_a_name(f):
    return lambda x: checkpoint_name(f(checkpoint_name(jnp.sin(x), "h")), "g")


AROUND = {
    "checkpoint": lambda layer, x: layer(W, x),
    "two": lambda layer, x: layer(W, layer(2.0 * W, x)),
    "scan": lambda layer, x: jax.lax.scan(lambda x, _: (layer(W, x), None), x, None, length=3)[0],
    "cond": lambda layer, x: jax.lax.cond(x[0] > 0.0, layer, lambda w, x: x, W, x),
    "vmap": lambda layer, x: jax.vmap(layer, (None, 0))(W, jnp.stack([x, 2.0 * x])),
    "jit": lambda layer, x: jax.jit(layer)(W, x),
    "nested": lambda layer, x: jax.checkpoint(lambda x: jnp.sin(layer(W, x)))(x),
}
INSIDE = {
    "as it is": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "scan": lambda f, x: jax.lax.scan(lambda x, _: (f(x), f(2.0 * x)), x, None, length=3)[0],
    "cond": lambda f, x: jax.lax.cond(x[0] > 9.0, jnp.sin, f, x),
    "no tangent": lambda f, x: x + f(jax.lax.stop_gradient(x)),
    "vmap": lambda f, x: jax.vmap(f)(x[:, None])[:, 0],
}
DECIDING = {
    "defremat": by_remat_rules, "saved results": keeps_all, "several": of_several, "class": OfUser,
    "nothing": decides_nothing,
    "names": lambda: after_a_name(by_remat_rules()),
}  # fmt: skip
CROSSED = [
    *(("checkpoint", "as it is", rule) for rule in DECIDING),
    *((around, "as it is", "defremat") for around in AROUND if around != "checkpoint"),
    *(("checkpoint", inside, "defremat") for inside in INSIDE if inside != "as it is"),
    *(("two", inside, rule) for inside in ("jit", "scan", "cond") for rule in ("names", "several", "class")),
]


@opens
@pytest.mark.parametrize("flag", ["jax_remat3 jax_custom_vjp3"], indirect=True)
@pytest.mark.parametrize("policy", [None, policies.dots_saveable, policies.save_only_these_names("h")], ids=range(3))
@pytest.mark.parametrize(("around", "inside", "rule"), CROSSED, ids=str)
def test_in_a_checkpoint_a_rule_saves_what_it_saves_in_jax(flag, around, inside, rule, policy):
    f = DECIDING[rule]()
    layer = jax.checkpoint(lambda w, x: INSIDE[inside](f, w @ x), policy=policy)
    loss = lambda x: jnp.sum(AROUND[around](layer, x))
    derivation = jaxviz.derive(loss, X)
    assert derivation.check(), derivation.check()
    assert derivation.unopened == ()
    np.testing.assert_array_equal(jax.jit(jaxviz.grad(loss))(X), jax.jit(jax.grad(loss))(X))


@opens
@pytest.mark.parametrize("flag", ["jax_remat3 jax_custom_vjp3"], indirect=True)
def test_what_such_a_rule_saves_and_computes_again_is_shown_on_its_lines(flag):
    f = by_remat_rules()
    loss = lambda x: jnp.sum(jax.checkpoint(lambda w, x: f(w @ x))(W, x))
    derivation = jaxviz.derive(loss, X)
    (again,) = (e for e in derivation.backward.equations if e.primitive is compat.remat_p)
    names = [e.primitive.name for _, program in again.programs for e in program.equations]
    forward = [e.primitive.name for e in derivation.forward.equations]
    assert "tanh" in forward
    assert "reduce_precision" not in forward
    assert "sin" in names
    assert "tanh" not in names
    before = lambda text: inspect.getsource(by_remat_rules).split(text)[0].count("\n")
    at = lambda text: f"test_unopened.py:{inspect.getsourcelines(by_remat_rules)[1] + before(text)}"
    (saved,) = (r for r in jaxviz.residuals(loss, X) if r.label == "t = jnp.tanh(x)")
    assert f"{saved.location.file.rpartition('/')[2]}:{saved.location.line}" == at("t = jnp.tanh(x)")
    report = str(jaxviz.policies(loss, X))
    for row in (f"saved f32[3] 12 B {at('t = jnp.tanh(x)')}", f"recomputed f32[3] 12 B {at('jnp.cos(x)')}"):
        assert row in " ".join(report.split())
    assert "policy nothing_saveable, the default" in " ".join(report.split())
    assert "Traced" not in report + str(jaxviz.residuals(loss, X)) + str(jaxviz.memory(loss, X))


@opens
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
def test_a_scan_in_a_checkpoint_stacks_what_all_iterations_share(flag):
    def body(w, x):
        factor = lambda: checkpoint_name(jnp.sin(w @ X), "h")
        return jax.lax.scan(lambda c, _: (factor() * checkpoint_name(jnp.cos(c), "h"), None), x, None, length=3)[0]

    policy = policies.save_only_these_names("h")
    check = jaxviz.derive(lambda x: jnp.sum(jax.checkpoint(body, policy=policy)(jnp.outer(x, x), x)), X).check()
    assert check, check
