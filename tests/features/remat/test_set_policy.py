"""A function with another policy: what it saves, compared with what jax saves if the user writes that policy."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from programs import CASES
from short_runs import short

import jaxviz
from jaxviz.derivation import derive, type_name
from jaxviz.features.remat.set_policy import derive_under, has_checkpoints, setting
from jaxviz.higher_order.typecheck import check_program
from jaxviz.ir.emit import as_function

BY_NAME = {case.name: case for case in CASES}
JAX_CHECKPOINT = jax.checkpoint
POLICIES = ["nothing_saveable", "dots_saveable", "everything_saveable", "save_only_hidden"]
WITH_CHECKPOINTS = [
    c for c in CASES if "remat" in c.name.removeprefix("custom_vjp_optimize_remat") or c.name == "everything_at_once"
]
WITHOUT = [
    BY_NAME[n]
    for n in (
        "mlp", "layer_norm", "attention", "nested_jit", "jitted_twice", "scan_rnn", "scan_in_scan",
        "cond_branches_differ",
        "cond_in_scan", "custom_jvp", "custom_jvp_in_scan", "custom_vjp_in_scan", "four_deep", "closes_over",
    )
    if n in BY_NAME
]  # fmt: skip


def test_what_equal_layers_call_stays_one_program():
    """Its rules are then found once, and not for each layer."""
    layer = jax.jit(lambda x: jnp.sin(x * 2.0) * x)
    under = derive_under(derive(lambda x: layer(layer(layer(x))), 1.0), setting("nothing_saveable"))
    for stage in (under.primal, under.forward):
        calls = [e.operation for _, e in stage.walk() if e.primitive.name == "jit"]
        assert len(calls) == 3
        assert len(set(calls)) == 1


def policy_of(name):
    if name == "save_only_hidden":
        return jax.checkpoint_policies.save_only_these_names("hidden")
    return getattr(jax.checkpoint_policies, name)


def written_with(policy):
    """`jax.checkpoint` with this policy instead of the user's."""

    def checkpoint(f=None, **options):
        return partial(checkpoint, **options) if f is None else JAX_CHECKPOINT(f, **{**options, "policy": policy})

    return checkpoint


def kept_by_jax(f, args):
    """The types of what `jax.vjp` saves, traced: an array that is passed twice may else be counted once or twice."""
    found = Counter()

    def hold(*args):
        _, pull = jax.vjp(f, *args)
        found.update(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull))

    jax.make_jaxpr(hold)(*args)
    return found


def kept(derivation):
    return Counter(type_name(a.aval) for a in derivation.linearized.residuals)


def derived(case):
    return derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("case", short(WITH_CHECKPOINTS, 2), ids=str)
def test_a_policy_replaced_keeps_what_jax_keeps_with_it_written(case, name, monkeypatch):
    derivation = derived(case)
    under = derive_under(derivation, setting(policy_of(name)))
    monkeypatch.setattr(jax, "checkpoint", written_with(policy_of(name)))
    assert kept(under) == kept_by_jax(case.fun, case.args)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("case", short(WITHOUT, 2), ids=str)
def test_a_policy_around_the_whole_function_keeps_what_jax_keeps(case, name):
    derivation = derived(case)
    assert not has_checkpoints(derivation.primal)
    under = derive_under(derivation, setting(policy_of(name)))
    assert kept(under) == kept_by_jax(JAX_CHECKPOINT(case.fun, policy=policy_of(name)), case.args)
    assert under.primal.arg_names == derivation.primal.arg_names
    assert under.primal.name == derivation.primal.name


@pytest.mark.slow
@pytest.mark.parametrize("case", WITH_CHECKPOINTS, ids=str)
def test_without_checkpoints_it_keeps_what_jax_keeps_without_them(case, monkeypatch):
    """Except scalars, which a checkpoint turns into arrays."""
    derivation = derived(case)
    under = derive_under(derivation, setting("everything"))
    assert not has_checkpoints(under.primal)

    def no_checkpoint(f=None, static_argnums=(), **options):
        return partial(no_checkpoint, static_argnums=static_argnums, **options) if f is None else f

    monkeypatch.setattr(jax, "checkpoint", no_checkpoint)
    want, got = kept_by_jax(case.fun, case.args), kept(under)
    assert all(t.endswith("[]") for t in want - got)
    assert not got - want


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_the_gradient_is_the_same(name):
    case = BY_NAME["remat_in_scan"]
    under = derive_under(derived(case), setting(policy_of(name)))
    check_program(under.forward)
    check_program(under.backward)
    ones = [jnp.ones(v.aval.shape, v.aval.dtype) for v in under.backward.invars[under.n_residuals :]]

    def gradient(*args):
        outs = as_function(under.forward)(*args)
        return as_function(under.backward)(*outs[len(outs) - under.n_residuals :], *ones)

    want = jax.vjp(case.fun, *case.args)[1](jax.tree.map(jnp.ones_like, case.fun(*case.args)))
    for a, b in zip(gradient(*case.args), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_a_policy_that_is_there_already_changes_nothing():
    f = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)), policy=jax.checkpoint_policies.dots_saveable)
    derivation = derive(f, jnp.ones(3))
    assert derive_under(derivation, setting("as it is")) is derivation
    plain = derive(jnp.sin, jnp.ones(3))
    assert derive_under(plain, setting("everything")) is plain
    assert derive_under(plain, setting("as it is")) is plain


def test_all_policies_are_named_where_none_is_alike():
    with pytest.raises(ValueError, match="has no 'xyz'; it has everything_saveable, nothing_saveable, dots_saveable"):
        setting("xyz")


def test_where_jax_would_not_take_a_checkpoint():
    def branches(x):
        return jnp.sin(x) * (2.0 if x > 0 else 3.0)

    with pytest.raises(
        ValueError, match=r"branches has no checkpoint, and JAX .* reads a value at .*test_set_policy.py:\d+"
    ):
        derive_under(derive(branches, 1.0), setting("dots_saveable"))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.grad(jax.checkpoint(branches))(1.0)

    def tells(x):
        jax.experimental.io_callback(lambda x: None, None, jax.lax.stop_gradient(x), ordered=True)
        return jnp.sin(x)

    with pytest.raises(
        ValueError, match=r"none can be put around it: `io_callback` \(equation \d+, .*test_set_policy.py:\d+\)"
    ):
        derive_under(derive(tells, 1.0), setting("dots_saveable"))
    with pytest.raises(NotImplementedError, match="Effects not supported"):
        jax.grad(jax.checkpoint(tells))(1.0)


def test_a_function_that_branches_outside_of_its_checkpoints():
    def f(x):
        return jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x) * (2.0 if x > 0 else 3.0)

    under = derive_under(derive(f, 1.0), setting("everything_saveable"))
    assert len(under.residuals) > len(jaxviz.residuals(f, 1.0))
