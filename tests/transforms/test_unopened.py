"""Checkpoints and custom rules under JAX's flags for their upcoming forms. What reports say is in a transcript."""

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
    assert "no checkpoint is found" in found.summary
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


@opens
@pytest.mark.parametrize("flag", ["jax_remat3 jax_custom_vjp3"], indirect=True)
@pytest.mark.parametrize("around", ["checkpoint", "jit in it", "scan", "none"])
def test_a_checkpoint_that_a_rule_takes_part_in_saves_what_jax_saves(flag, around):
    f = by_remat_rules()
    inner = jax.jit(f) if around == "jit in it" else f
    layer = jax.checkpoint(lambda w, x: inner(w @ x)) if around != "none" else lambda w, x: f(w @ x)

    def loss(x):
        if around == "scan":
            return jnp.sum(jax.lax.scan(lambda x, _: (layer(W, x), None), x, None, length=3)[0])
        return jnp.sum(layer(W, x))

    derivation = jaxviz.derive(loss, X)
    assert derivation.check(), derivation.check()
    assert [u.name for u in derivation.unopened] == ["RematTraced"] * (around != "none")
    np.testing.assert_array_equal(jax.jit(jaxviz.grad(loss))(X), jax.jit(jax.grad(loss))(X))
    if around == "checkpoint":  # its three programs: what runs forward, what is computed again, and what is transposed
        again = [e for e in derivation.backward.equations if e.primitive is compat.remat_p]
        names = [e.primitive.name for _, program in again[0].programs for e in program.equations]
        assert "tanh" in [e.primitive.name for e in derivation.forward.equations]
        assert "sin" in names
        assert "tanh" not in names
