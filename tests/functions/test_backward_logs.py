"""Logs of backward rules, which `with_logs` returns beside the cotangents since JAX 0.11.1, are the same as JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from laws import assert_same

import jaxviz
from jaxviz.notebook.reports import ProgramText
from jaxviz.transforms.transpose import logged_at

pytestmark = pytest.mark.skipif(not hasattr(jax.custom_vjp, "defvjp_with_logs"), reason="in this JAX no rule logs")

X, XS = 1.5, jnp.linspace(0.1, 1.0, 4)


def _logging(key):
    f = jax.custom_vjp(lambda x: jnp.sin(x))

    def bwd(x, g):
        return (g * jnp.cos(x),), {key: {"ct": g, "n": jnp.sum(x).astype(int), "x": x}}

    if hasattr(f, "defvjp_with_logs"):
        f.defvjp_with_logs(lambda x: (f(x), x), bwd)
    return f


@jax.custom_vjp
def none(x):
    """It has no cotangent."""
    return x


none.defvjp(lambda x: (x, None), lambda _, g: (None,))
a, b = _logging("a"), _logging("b")
stacked_b = lambda x: b(jnp.stack([x, x])).sum()


def over_devices(f, out_specs, **options):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=out_specs, **options)


def both_in_scan(reverse):
    return lambda xs: jax.lax.scan(lambda c, x: (c + a(x), b(c)), 0.0, xs, reverse=reverse)


PROGRAMS = {
    "two rules": (lambda x: b(a(x)) * 2.0, X),
    "no rule": (jnp.sin, X),
    "jit": (jax.jit(lambda x: b(a(x) * 2.0)), X),
    "call": (lambda x: jax.named_call(lambda x: a(x) * 2.0, name="call")(x), X),
    "scan": (both_in_scan(False), XS),
    "scan in reverse": (both_in_scan(True), XS),
    "other keys in each branch": (lambda x: jax.lax.cond(x > 1, a, stacked_b, x), X),
    "other types in each branch": (lambda x: jax.lax.cond(x > 2, b, stacked_b, x), X),
    "cond in a branch": (
        lambda x: jax.lax.switch(1, [a, lambda x: jax.lax.cond(x > 1, b, lambda x: 2.0 * x, x), jnp.cos], x), X
    ),
    "cond in a scan": (lambda xs: jax.lax.scan(lambda c, x: (jax.lax.cond(x > 0.5, a, jnp.cos, c + x), None), 0.3,
                                               xs)[0], XS),
    "checkpoint": (jax.checkpoint(lambda x: a(jnp.cos(x)) * 2.0), X),
    "checkpointed scan": (jax.checkpoint(both_in_scan(False)), XS),
    "vmap": (jax.vmap(a), XS),
    "each device": (lambda x: over_devices(lambda x: a(x).sum(keepdims=True) + x, P("i"))(x), XS),
    "scalar of each device": (lambda x: over_devices(lambda x: jax.lax.psum(a(x.sum()), "i"), P())(x), XS),
    "devices without types": (lambda x: over_devices(lambda x: jax.lax.psum(a(x.sum()), "i"), P(), check_vma=False)(x),
                              XS),
    "unused": (lambda x: (a(x), x)[1] * 2.0, X),
    "of a zero cotangent": (lambda x: none(a(x)) + b(x), X),
    "of a zero cotangent in a branch": (lambda x: jax.lax.cond(x > 1, lambda x: none(a(x)) + b(x),
                                                               lambda x: none(b(x)) * 1.0, x), X),
    "a jit of a zero cotangent": (lambda x: none(jax.jit(a)(x)) + b(x), X),
    "a cond of a zero cotangent": (lambda x: none(jax.lax.cond(x > 1, a, b, x)) + x, X),
    "a scan of a zero cotangent": (lambda xs: none(both_in_scan(False)(xs)[0]) + xs.sum(), XS),
}  # fmt: skip


def described(tree):
    return jax.tree.map(lambda x: (jax.typeof(x).str_short(), np.asarray(x).tolist()), tree)


@pytest.mark.parametrize("name", PROGRAMS)
def test_logs_are_those_of_jax(name):
    f, x = PROGRAMS[name]
    ct = jax.tree.map(lambda y: jnp.full_like(y, 1.25), f(x))
    alone = lambda m: m.vjp(f, x)[1].with_logs(ct)
    inside_jit = lambda m: jax.jit(lambda x: m.vjp(f, x)[1].with_logs(ct))(x)
    for of in (alone, inside_jit):
        assert_same(of(jaxviz), of(jax))


def test_a_key_that_is_logged_twice_is_what_it_is_in_jax():
    def outcome(m, **how):
        pull = m.vjp(lambda x: a(a(x)), X)[1]
        try:
            return described(pull.with_logs(1.0) if how else pull(1.0))
        except ValueError as error:
            return str(error).splitlines()[0]

    assert outcome(jaxviz) == outcome(jax)
    assert outcome(jaxviz, logs=True) == outcome(jax, logs=True)


def test_what_is_no_dict_is_refused_as_in_jax():
    f = jax.custom_vjp(lambda x: x)
    f.defvjp_with_logs(lambda x: (x, None), lambda _, g: ((g,), [g]))
    for m in (jax, jaxviz):
        with pytest.raises(TypeError, match="None or a dict"):
            m.vjp(f, X)[1](1.0)


def test_where_no_log_is_asked_for_the_programs_have_none():
    f, plain = (lambda x, g=g: jax.jit(lambda x: g(x) * 2.0)(x) for g in (a, jnp.sin))
    assert [v.aval for v in jaxviz.derive(f, X).backward.outvars] == [
        v.aval for v in jaxviz.derive(plain, X).backward.outvars
    ]
    np.testing.assert_allclose(jaxviz.grad(f)(X), jax.grad(f)(X))


def test_with_references_and_unwanted_cotangents():
    f = lambda x, y: a(x) * y
    for m in (jax, jaxviz):
        (x_ct, y_ct), logs = m.vjp(f, X, 2.0)[1].with_logs.with_refs(jax.ad.GradValue(), jax.ad.DontWant())(1.0)
        np.testing.assert_allclose(x_ct, jnp.cos(X) * 2.0)
        assert isinstance(y_ct, jax.ad.DidntWant)
        assert described(logs) == {"a": {"ct": ("float32[]", 2.0), "n": ("int32[]", 1), "x": ("float32[]", X)}}


def test_a_rule_that_looks_at_values_logs_too():
    f = jax.custom_vjp(lambda x: x * x)
    f.defvjp_with_logs(lambda x: (f(x), x), lambda x, g: ((2 * x * g,), {"positive" if x > 0 else "negative": g}))
    for x in (X, -X):
        assert described(jaxviz.vjp(f, x)[1].with_logs(1.0)) == described(jax.vjp(f, x)[1].with_logs(1.0))


@pytest.mark.parametrize("name", ["two rules", "scan", "cond in a branch", "checkpoint", "each device"])
def test_a_backward_program_says_what_it_logs_beside_the_equations(name):
    f, x = PROGRAMS[name]
    backward = jaxviz.derive(lambda x: sum(map(jnp.sum, jax.tree.leaves(f(x)))), x).backward
    logging = [e for _, e in backward.walk() if logged_at(e)]
    assert {logged_at(e) for e in logging} >= {"`a`"}
    assert all("custom backward rule, which logs `" in e.origin.rule for e in logging)
    remarks = repr(ProgramText((("", backward),))).partition("what backward rules log:\n- ")[2]
    assert "custom backward rule, which logs `a` (test_backward_logs.py:" in remarks


def test_a_program_that_logs_nothing_does_not_mention_it():
    assert "log" not in repr(ProgramText((("", jaxviz.derive(jnp.sin, X).backward),)))
