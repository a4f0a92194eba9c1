"""Programs that jaxviz does not open are reported, with their line, in every affected report."""

import re

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  they enter themselves into CASES
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad
from programs import CASES

import jaxviz
from jaxviz.features.explorer.columns import view_of
from jaxviz.features.explorer.still import summary
from jaxviz.ir import compat
from jaxviz.ir.origin import Location
from jaxviz.transforms.unopened import Unopened, unopened_text

X = np.linspace(0.1, 1.0, 3, dtype=np.float32)


def line_of(function, after=1):
    return f"test_unopened.py:{function.__code__.co_firstlineno + after}"


def kernel(x, y):
    y[...] = jnp.log(x[...])


def in_kernel(x):
    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@jax.custom_vjp
def log(x):
    return jnp.log(x)  # only the forward rule calls the kernel


log.defvjp(lambda x: (in_kernel(x), x), lambda x, ct: (ct / x,))


def with_kernel(x):
    return jnp.sum(jnp.sin(log(x)))


def counts(x):
    calls = jax.new_ref(jnp.zeros((), jnp.int32))
    calls[...] = 1
    return jnp.sum(jnp.sin(x))


def accumulates(x):
    total = jax.new_ref(jnp.zeros(()))
    total[...] = jnp.sum(x)
    return jnp.sin(total[...])


hold_p = Primitive("hold")
hold_p.multiple_results = True
hold_p.def_abstract_eval(lambda *xs, jaxpr: jaxpr.out_avals)
ad.primitive_jvps[hold_p] = lambda primals, tangents, jaxpr: jax.jvp(jaxpr_as_fun(jaxpr), primals, tangents)


def held(f, x):
    return hold_p.bind(x, jaxpr=jax.make_jaxpr(f)(x))[0]


def holds(x):
    for _ in range(3):
        x = held(jnp.sin, x)
    return jnp.sum(x)


def calls_back(x):
    y = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), jax.lax.stop_gradient(x))
    return jnp.sum(x * y)


def calls_foreign(x):
    y = jax.ffi.ffi_call("foreign", jax.ShapeDtypeStruct(x.shape, x.dtype))(jax.lax.stop_gradient(x))
    return jnp.sum(x * y)


KERNEL = f"pallas_call ({line_of(in_kernel)})"

FOUND = {
    with_kernel: KERNEL,
    counts: f"new_ref ({line_of(counts)}), swap of a ref ({line_of(counts, 2)})",
    accumulates: f"new_ref ({line_of(accumulates)}), swap of a ref ({line_of(accumulates, 2)}), get of a ref ({line_of(accumulates, 3)})",
    holds: f"3 times hold ({line_of(held)})",
    calls_back: f"pure_callback ({line_of(calls_back)})",
    calls_foreign: f"ffi_call ({line_of(calls_foreign)})",
}  # fmt: skip


@pytest.mark.parametrize("f", FOUND, ids=lambda f: f.__name__)
def test_each_is_found_once_with_its_line(f):
    assert unopened_text(jaxviz.derive(f, X).unopened) == f"not opened: {FOUND[f]}"


def opened(x):
    jax.debug.print("{}", x[0])
    step = jax.checkpoint(lambda c, x: (jnp.sin(c) * x, jax.nn.relu(x)), policy=jax.checkpoint_policies.dots_saveable)
    y, ys = jax.lax.scan(step, jnp.float32(1), x)
    y = jax.lax.cond(y > 0, jax.jit(jnp.sin), jnp.cos, y)
    y = jax.lax.while_loop(lambda y: y > 9, lambda y: y * 2, jax.lax.stop_gradient(y)) + y
    return (
        y
        + jnp.sum(ys.at[0].add(1.0))
        + jax.lax.reduce(jax.random.normal(jax.random.key(0), (3,)), 0.0, jax.lax.max, (0,))
    )


def test_what_is_opened_is_not_named():
    derivation = jaxviz.derive(opened, X)
    assert derivation.unopened == ()
    assert "not opened" not in "".join(
        map(str, (derivation.residuals, derivation.check(), jaxviz.policies(derivation)))
    )


REPORTS = {
    "residuals": jaxviz.residuals,
    "policies": jaxviz.policies,
    "compare_policies": lambda d: jaxviz.compare_policies(d, policies="nothing_saveable"),
    "memory": jaxviz.memory,
    "cost": jaxviz.cost,
    "lint": jaxviz.lint,
    "compare": lambda d: jaxviz.compare(d, jaxviz.derive(opened, X)),
}


@pytest.fixture(scope="module")
def derivation():
    return jaxviz.derive(with_kernel, X)


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_says_so(name, derivation):
    report = REPORTS[name](derivation)
    (note,) = (note for note in report.to_dict()["notes"] if note.startswith("not opened"))
    assert note.startswith(f"not opened: {KERNEL}. ")
    assert f"not opened: {KERNEL}. " in " ".join(str(report).split())
    assert f"not opened: {KERNEL}. " in re.sub(r"<[^>]+>", "", report._repr_html_())


def test_so_do_check_plans_pictures_and_the_explorer(derivation):
    assert derivation.check().agrees
    assert str(derivation.check()).endswith(f"; not opened: {KERNEL}")
    plan = jaxviz.plan_remat(with_kernel, X, budget=1.0)
    assert f"not opened: {KERNEL}. " in " ".join(str(plan).split())
    assert f"not opened: {KERNEL}. " in plan._repr_html_()
    assert f"not opened: {KERNEL}. " in str(jaxviz.draw(derivation, stage="forward"))
    shown = summary(view_of(derivation))
    assert f"not opened: {KERNEL}. " in shown
    assert "saves " in shown


@pytest.mark.slow
def test_so_do_find_nan_and_profile():
    found = jaxviz.find_nan(with_kernel, np.zeros(3, np.float32))
    assert found.born.primitive == "pallas_call"
    assert found.note.startswith(f"not opened: {KERNEL}. ")
    profile = jaxviz.profile(jax.jit(with_kernel), X, repeat=3)
    assert not any(note.startswith("not opened") for note in profile.notes)  # undifferentiated, it calls no kernel
    profile = jaxviz.profile(jax.jit(in_kernel), X, repeat=3)
    assert any(note.startswith(f"not opened: {KERNEL}. ") for note in profile.notes)


def test_the_explorer_says_so_of_what_cannot_be_derived():
    view = view_of(jaxviz.derive(accumulates, X))
    assert view.notes[0].startswith("no residuals: ")
    assert view.notes[1].startswith(f"not opened: {FOUND[accumulates]}. ")


def test_what_a_report_looks_into_is_not_named_in_it():
    def scaled(x):
        return jnp.sum(jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, ct: r * ct, 2.0, x))

    assert jaxviz.derive(scaled, X).unopened
    assert not any("not opened" in note for note in jaxviz.cost(scaled, X).notes)


def test_of_many_a_few_are_named():
    found = [Unopened("hold", Location("many.py", line, "many"), False) for line in range(2, 14)]
    assert unopened_text(found) == f"not opened: {', '.join(f'hold (many.py:{n})' for n in range(2, 7))}, 7 more"


# --- upcoming changes of JAX -------------------------------------------------------------------------------------------


@pytest.fixture
def flag(request):
    before = getattr(jax.config, request.param)
    jax.config.update(request.param, True)
    yield request.param
    jax.config.update(request.param, before)
    jaxviz.clear_caches()


W = np.linspace(-1.0, 1.0, 9, dtype=np.float32).reshape(3, 3)

OPENS = jax.__version_info__ >= (0, 12)


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


@pytest.mark.skipif(not OPENS, reason="before JAX 0.12 they are not opened")
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


CHECKPOINTED = [c for c in CASES if ("remat" in c.name or "checkpoint" in c.name) and "optimize" not in c.name]


@pytest.mark.skipif(not OPENS, reason="before JAX 0.12 they are not opened")
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
@pytest.mark.parametrize("case", CHECKPOINTED, ids=str)
def test_so_are_those_of_the_table_of_programs(flag, case):
    derivation = jaxviz.derive(case.fun, *case.args, argnums=range(len(case.args)))
    assert any(e.primitive is compat.remat_p for _, e in derivation.primal.walk())
    check = derivation.check()
    assert check, check


@pytest.mark.skipif(not OPENS, reason="before JAX 0.12 they are not opened")
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


@pytest.mark.skipif(not OPENS, reason="before JAX 0.12 they are not opened")
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


@pytest.mark.skipif(not OPENS, reason="before JAX 0.12 they are not opened")
@pytest.mark.parametrize("flag", ["jax_remat3"], indirect=True)
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


@pytest.mark.parametrize("flag", ["jax_custom_vjp3"], indirect=True)
def test_custom_rules_that_are_hi_primitives_are_named(flag):
    @jax.custom_vjp
    def double(x):
        return 2.0 * x

    double.defvjp(lambda x: (2.0 * x, None), lambda _, ct: (2.0 * ct,))
    loss = lambda x: jnp.sum(jnp.sin(double(x)))
    derivation = jaxviz.derive(loss, X)
    assert "not opened: CustomVJPTraced" in derivation.check().summary
    assert derivation.check()
    np.testing.assert_array_equal(jaxviz.grad(loss)(X), jax.grad(loss)(X))
    assert "no checkpoint is found" in jaxviz.policies(derivation).summary
