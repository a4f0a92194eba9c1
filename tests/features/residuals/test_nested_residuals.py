"""Residuals inside loops, branches, checkpoints and custom rules."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from programs import CASES
from short_runs import short, short_rows

import jaxviz
from jaxviz.analysis.checkpoints import looks_through, report_checkpoints
from jaxviz.analysis.walk import SourceTracer
from jaxviz.derivation import derive
from jaxviz.features.residuals import residual
from jaxviz.ir import compat
from jaxviz.report.tables import nbytes

X = jnp.linspace(0.5, 1.5, 3)


def test_a_body_with_a_checkpoint_is_not_advised_to_have_one():
    def advised(wrap):
        f = lambda h, ws: lax.scan(wrap(lambda h, w: (jnp.tanh(w @ h), h)), h, ws)[1].sum()
        return "jax.checkpoint around the body" in str(jaxviz.residuals(f, X, jnp.ones((2, 3, 3)), argnums=(0, 1)))

    assert (advised(lambda body: body), advised(jax.checkpoint)) == (True, False)


# --- branches ---------------------------------------------------------------------------------------------------------


def branching(x):
    return lax.cond(x.sum() > 0, lambda x: jnp.sin(x) * 2.0, lambda x: x * 3.0, x)


def test_recomputing_conds_have_no_dummies_and_the_same_gradient():
    found = derive(branching, X, cond_residuals="recompute").residuals
    assert found.dummy_nbytes == 0
    assert {r.kind for r in found} <= {"argument", "intermediate"}
    want = jax.grad(lambda x: branching(x).sum())(X)
    got = jaxviz.grad(lambda x: branching(x).sum(), cond_residuals="recompute")(X)
    assert jnp.allclose(got, want)
    again = [
        e for _, e in derive(branching, X, cond_residuals="recompute").linear.walk() if e.origin.role == "recomputation"
    ]
    assert again


def bounded(x, bound, limit=8):
    """A while loop with a bound, as a binary tree of conds in scans."""
    if bound == 1:
        return x[0] + 1, jnp.sin(x[1])
    step = lambda x, _: (lax.cond(x[0] < limit, lambda x: bounded(x, bound // 2, limit), lambda x: x, x), None)
    return lax.scan(step, x, None, length=2)[0]


@pytest.mark.slow
def test_the_dummies_of_a_bounded_loop_grow_with_its_bound_unless_recomputed():
    def loop(bound):
        return lambda x: bounded((0, x), bound)[1]

    small, large = (jaxviz.residuals(loop(b), X).dummy_nbytes for b in (4, 32))
    assert large > 5 * small > 0
    kept = [derive(loop(b), X, cond_residuals="recompute").residuals for b in (4, 32)]
    assert [r.dummy_nbytes for r in kept] == [0, 0]
    assert kept[0].nbytes == kept[1].nbytes
    for transform in (jax.grad, jax.jacfwd):
        want = transform(lambda x: loop(32)(x).sum())(X)
        assert jnp.allclose(jaxviz.grad(lambda x: loop(32)(x).sum(), cond_residuals="recompute")(X), want, rtol=1e-5)


def test_what_a_branch_only_passes_on_is_called_a_copy():
    found = jaxviz.residuals(
        lambda x, y: lax.cond(x[0] > 0, lambda x, y: x * y, lambda x, y: x, x, y), X, X + 1, argnums=(0, 1)
    )
    copies = set() if compat.COND_PASSES_OPERANDS_ON else {"x, copied by cond", "y, copied by cond"}
    assert {r.expression for r in found if r.kind == "intermediate" and "copied" in r.expression} == copies


# --- checkpoint -------------------------------------------------------------------------------------------------------


def block(w, x):
    h = checkpoint_name(jnp.sin(w @ x), "hidden")
    return jnp.tanh(w @ h) * 2.0


_BRANCHING = ("switch_of_four", "four_deep", "everything_at_once")


_CASES = [c for c in CASES if "cond" not in c.name and c.name not in _BRANCHING]
_COMPLEX = ("complex_numbers", "real_to_complex")
"""JAX cannot save their values, which it would have to round."""


@pytest.mark.parametrize(
    ("case", "policy"),
    short_rows(
        [(c, "dots_saveable") for c in _CASES] + [(c, "everything_saveable") for c in _CASES if c.name not in _COMPLEX],
        3,
    ),
    ids=str,
)
def test_what_is_said_to_be_saved_is_what_the_forward_pass_keeps(case, policy):
    """Bytes of a checkpoint around the function, except when values of several branches share a residual."""
    f = jax.checkpoint(case.fun, policy=getattr(jax.checkpoint_policies, policy))
    derivation = derive(f, *case.args, argnums=tuple(range(len(case.args))))
    (checkpoint,) = derivation.linearized.checkpoints
    (report,) = report_checkpoints(derivation)
    trace = SourceTracer(checkpoint.forward, looks_through)
    kept = {}
    for a in checkpoint.forward.outvars[len(checkpoint.forward.outvars) - checkpoint.n_residuals :]:
        (source,) = trace(a)
        if source.equation is not None:
            kept[source.atom, source.within] = nbytes(a.aval)
    assert sum(v.nbytes for v in report.values if v.fate == "saved") == sum(kept.values())


def test_a_recomputed_equation_leads_to_the_one_it_repeats():
    d = derive(jax.checkpoint(block), jnp.eye(3), X, argnums=(0, 1))
    (call,) = [e for e in d.backward.equations if e.primitive.name in ("remat2", "checkpoint")]
    ((_, body),) = call.programs
    roles = [e.origin.role for e in body.equations]
    n = roles.count("recomputation")
    assert roles[:n] == ["recomputation"] * n  # recomputation comes first, and only the linear part is transposed
    assert n >= 4
    originals = {e for _, e in d.primal.walk()}
    for equation in body.equations[:n]:
        assert any(equation in d.links.get(e, ()) for e in d.links)
        ancestor = equation
        while ancestor.origin is not None and ancestor.origin.equation is not None:
            ancestor = ancestor.origin.equation
        assert ancestor in originals


def test_a_value_is_said_to_be_of_the_previous_iteration_only_where_it_is():
    """The doubled carry and the carry itself share a position among the residuals of the two branches."""

    def loss(x):
        def body(h, n):
            return lax.cond(n > 0, lambda h: jnp.sin(h * x), lambda h: h * 2 * h, h), jnp.sum(h * h)

        last, sums = lax.scan(body, x, jnp.arange(4))
        return jnp.sum(last) + jnp.sum(sums)

    saved = jaxviz.residuals(loss, X)
    carried = ", from the previous iteration"
    either = next(r for r in saved if r.expression.startswith("h * 2 or "))
    assert not either.is_carried
    # Since JAX 0.12, the values of branches share positions in another order.
    is_shared = jax.__version_info__ < (0, 12)
    other = f"h * 2 * h{carried} or jnp.sin(h * x){carried}" if is_shared else "cos in the derivative of jnp.sin(h * x)"
    assert either.expression == f"h * 2 or {other}"
    both = next(r for r in saved if r.is_carried)
    assert (both.value, both.expression) == ("h * 2 * h or jnp.sin(h * x)", f"{both.value}{carried}")
    one = next(e for e in saved.expressions if both in e.residuals)
    assert [r.is_carried for r in one.residuals] == ([False, True] if is_shared else [True])
    assert one.label.endswith(carried) is not is_shared


# --- what is said once for many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", short(CASES, 5), ids=lambda case: case.name)
def test_what_is_said_of_residuals_that_are_alike_is_what_is_said_of_each_alone(case):
    with case.where():
        for r in derive(case.fun, *case.args).residuals:
            alone = replace(r, site=replace(r.site))
            assert (r.reason, r.why, r.scope, r.module) == (alone.reason, alone.why, alone.scope, alone.module)
            assert r.alike.location == r.location


def test_the_readers_of_repeated_layers_are_described_once(monkeypatch):
    def said(n_layers):
        described, read_again = [], residual.read_again
        monkeypatch.setattr(residual, "read_again", lambda some: described.append(some) or read_again(some))
        found = jaxviz.residuals(lambda ws: sum_of_layers(ws), [X] * n_layers)
        assert len({r.reason for r in found}) >= n_layers
        return len(described)

    assert said(3) == said(6)


def sum_of_layers(ws):
    h = X
    for w in ws:
        h = jnp.tanh(jnp.sin(h) * w)
    return h.sum()
