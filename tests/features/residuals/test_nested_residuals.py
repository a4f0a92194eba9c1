"""Residuals inside loops, branches, checkpoints and custom rules."""

import inspect

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from programs import CASES

import jaxviz
from jaxviz.analysis.checkpoints import looks_through, report_checkpoints
from jaxviz.analysis.walk import Tracer
from jaxviz.derivation import derive
from jaxviz.ir import compat
from jaxviz.ir.origin import locate
from jaxviz.report.tables import nbytes

X = jnp.linspace(0.5, 1.5, 3)
XS = jnp.linspace(0.1, 1.0, 12).reshape(4, 3)


def line_of(fun, text):
    """The line of this file on which a function's source contains some text."""
    lines, start = inspect.getsourcelines(fun)
    return start + next(i for i, line in enumerate(lines) if text in line)


def only(residuals, **attributes):
    (found,) = [r for r in residuals if all(getattr(r, k) == v for k, v in attributes.items())]
    return found


# --- loops ------------------------------------------------------------------------------------------------------------


def rnn(w, h, xs):
    def cell(h, x):
        gain = jnp.exp(w[0])
        return jnp.tanh(w @ h + x) * gain, None

    return lax.scan(cell, h, xs)[0].sum()


def test_what_a_scan_stacks_is_counted_by_its_iterations():
    found = jaxviz.residuals(rnn, jnp.eye(3), X, XS)
    tanh = only(found, expression="jnp.tanh(w @ h + x)")
    assert (tanh.type, tanh.nbytes, tanh.lengths) == ("4 × f32[3]", 48, (4,))
    assert tanh.location.line == line_of(rnn, "tanh")
    assert tanh.producer.primitive.name == "tanh"
    assert "once for each of 4 iterations" in tanh.reason
    assert {e.primitive.name for e in tanh.consumers} == {"mul"}


def test_what_is_the_same_in_each_iteration_is_not():
    found = jaxviz.residuals(rnn, jnp.eye(3), X, XS)
    gain = next(r for r in found if r.expression == "jnp.exp(w[0])")
    assert (gain.type, gain.lengths, gain.place) == ("f32[3]", (), "")
    assert gain.location.line == line_of(rnn, "exp")


def test_the_carry_is_said_to_be_carried():
    found = jaxviz.residuals(rnn, jnp.eye(3), X, XS)
    carried = next(r for r in found if "carried" in r.expression)
    assert carried.type == "4 × f32[3]"
    assert carried.location.line == line_of(rnn, "tanh")


def test_scans_in_scans_multiply():
    def inner(c, _):
        return jnp.sin(c), None

    def outer(c, _):
        return lax.scan(inner, c, None, length=5)[0], None

    found = jaxviz.residuals(lambda x: lax.scan(outer, x, None, length=7)[0], X)
    (cos,) = [r for r in found if "cos" in r.expression]
    assert (cos.type, cos.lengths, cos.nbytes) == ("7 × 5 × f32[3]", (7, 5), 7 * 5 * 12)
    assert cos.place == "scan"
    assert cos.location.line == line_of(inner, "sin")


# --- branches ---------------------------------------------------------------------------------------------------------


def branching(x):
    return lax.cond(x.sum() > 0, lambda x: jnp.sin(x) * 2.0, lambda x: x * 3.0, x)


def test_a_branch_that_saves_nothing_fills_in_dummies():
    found = jaxviz.residuals(branching, X)
    cos = only(found, expression="cos in the derivative of jnp.sin(x)")
    assert cos.place == "branch 1 of cond"
    line = line_of(branching, "cond")
    assert [(d.branch, d.nbytes, d.location.line) for d in cos.dummies] == [
        (f"branch 0 of the cond at line {line}", 12, line)
    ]
    assert f"branch 0 of the cond at line {line} fills its place with a dummy" in cos.reason
    assert found.dummy_nbytes == sum(r.nbytes for r in found if r.dummies) > 0
    (note,) = found.notes
    assert "cond_residuals='recompute'" in note
    assert "jax.checkpoint" in note


def test_branches_that_save_the_same_type_share_a_place():
    found = jaxviz.residuals(lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.exp(x), x), X)
    shared = only(found, type="f32[3]")
    assert shared.expression == (
        "jnp.exp(x) or cos in the derivative of lax.cond(x[0] > 0, jnp.sin, lambda x: jnp.exp(x), x)"
    )
    assert not shared.dummies


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


@pytest.mark.values
def test_the_dummies_of_a_bounded_loop_grow_with_its_bound_unless_recomputed():
    def loop(bound):
        return lambda x: bounded((0, x), bound)[1]

    small, large = (jaxviz.residuals(loop(b), X).dummy_nbytes for b in (8, 64))
    assert large > 5 * small > 0
    kept = [derive(loop(b), X, cond_residuals="recompute").residuals for b in (8, 64)]
    assert [r.dummy_nbytes for r in kept] == [0, 0]
    assert kept[0].nbytes == kept[1].nbytes
    for transform in (jax.grad, jax.jacfwd):
        want = transform(lambda x: loop(64)(x).sum())(X)
        assert jnp.allclose(jaxviz.grad(lambda x: loop(64)(x).sum(), cond_residuals="recompute")(X), want, rtol=1e-5)


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


def fates(f, *args):
    (report,) = jaxviz.residuals(f, *args).checkpoints
    return report, {(v.expression, v.location.line): v.fate for v in report.values}


def test_each_value_of_a_checkpointed_function_has_a_fate():
    f = jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names("hidden"))
    report, fate = fates(f, jnp.eye(3), X)
    first, second = line_of(block, "sin"), line_of(block, "tanh")
    assert report.policy == "save_only_these_names('hidden')"
    assert fate[("checkpoint_name 'hidden'", first)] == "saved"
    assert fate[("dot_general", first)] == "recomputed"
    assert fate[("sin", first)] == "not needed"
    assert fate[("tanh", second)] == "recomputed"
    assert fate[("mul", second)] == "not needed"
    assert {v.expression for v in report.values if v.fate == "already an input"} == {"w", "x"}
    assert all(v.equation is None or v.equation.origin is None for v in report.values)  # of the user's program


def test_values_inside_a_scan_in_a_checkpoint_have_fates_of_all_iterations():
    def f(w, x):
        def cell(c, _):
            return jnp.tanh(jnp.exp(w).sum() * c), jnp.sin(c)

        return lax.scan(cell, x, None, length=5)

    _, (everything,) = _with_checkpoints(f, jax.checkpoint_policies.everything_saveable)
    sizes = {(v.expression, v.type): (v.fate, v.nbytes) for v in everything.values}
    assert sizes["tanh", "5 × f32[3]"] == ("saved", 60)
    assert sizes["cos", "5 × f32[3]"] == ("saved", 60)
    assert sizes["sin", "5 × f32[3]"] == ("not needed", 60)
    assert sizes["exp", "f32[3,3]"] == ("saved", 36)  # the same in each iteration, so it is hoisted out of the scan
    _, (nothing,) = _with_checkpoints(f, None)
    assert {v.fate for v in nothing.values if v.expression in ("tanh", "exp", "cos")} == {"recomputed"}


def _with_checkpoints(f, policy):
    found = jaxviz.residuals(jax.checkpoint(f, policy=policy), jnp.eye(3), X)
    return found, found.checkpoints


def test_a_function_called_twice_in_a_checkpoint_is_told_apart_by_call():
    @jax.jit
    def sine(x):
        return jnp.sin(x)

    f = jax.checkpoint(lambda x: sine(sine(x)) * x, policy=jax.checkpoint_policies.everything_saveable)
    (report,) = jaxviz.residuals(f, X).checkpoints
    assert [(v.expression, v.fate) for v in report.values if v.equation is not None] == [
        ("sin", "not needed"),
        ("cos", "saved"),
        ("sin", "saved"),
        ("cos", "saved"),
        ("mul", "not needed"),
    ]
    assert all(v.location is not None for v in report.values)


def test_a_checkpoint_in_a_scan_says_how_often_it_runs():
    cell = jax.checkpoint(lambda c, _: (jnp.tanh(jnp.sin(c)), None))
    f = lambda x: lax.scan(lambda c, _: (lax.scan(cell, c, None, length=4)[0], None), x, None, length=3)[0]
    (report,) = jaxviz.residuals(f, X).checkpoints
    assert (report.lengths, report.runs) == ((3, 4), 12)
    assert "12 times in a scan" in report.summary
    assert next(v for v in report.values if v.expression == "sin").nbytes == 12


_BRANCHING = ("switch_of_four", "four_deep", "everything_at_once")


_CASES = [c for c in CASES if "cond" not in c.name and c.name not in _BRANCHING]
_COMPLEX = ("complex_numbers", "real_to_complex")
"""JAX cannot save their values, which it would have to round."""


@pytest.mark.parametrize(
    ("case", "policy"),
    [(c, "dots_saveable") for c in _CASES] + [(c, "everything_saveable") for c in _CASES if c.name not in _COMPLEX],
    ids=str,
)
def test_what_is_said_to_be_saved_is_what_the_forward_pass_keeps(case, policy):
    """Bytes of a checkpoint around the function, except when values of several branches share a residual."""
    f = jax.checkpoint(case.fun, policy=getattr(jax.checkpoint_policies, policy))
    derivation = derive(f, *case.args, argnums=tuple(range(len(case.args))))
    (checkpoint,) = derivation.linearized.checkpoints
    (report,) = report_checkpoints(derivation)
    trace = Tracer(checkpoint.forward, looks_through)
    kept = {}
    for a in checkpoint.forward.outvars[len(checkpoint.forward.outvars) - checkpoint.n_residuals :]:
        (source,) = trace(a)
        if source.equation is not None:
            kept[source.atom, source.within] = nbytes(a.aval)
    assert sum(v.nbytes for v in report.values if v.fate == "saved") == sum(kept.values())


def test_offloaded_values_are_moved_and_brought_back():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    f = jax.checkpoint(block, policy=policy)
    _, fate = fates(f, jnp.eye(3), X)
    assert fate[("checkpoint_name 'hidden'", line_of(block, "sin"))] == "offloaded"
    kept = only(jaxviz.residuals(f, jnp.eye(3), X), decision="offloaded")
    assert kept.expression == "checkpoint_name 'hidden'"
    assert "brought back from pinned_host" in kept.reason


@pytest.mark.parametrize("maker", ["save_only_these_names", "save_any_names_but_these"])
def test_a_name_that_matches_nothing_is_reported(maker):
    policy = getattr(jax.checkpoint_policies, maker)("hidden", "hiden")
    found = jaxviz.residuals(jax.checkpoint(block, policy=policy), jnp.eye(3), X)
    (report,) = found.checkpoints
    assert (report.unmatched, report.names) == (("hiden",), ("hidden",))
    (note,) = found.notes
    assert "lists 'hiden', which no checkpoint_name in it defines" in note
    assert note in " ".join(str(found).split())


def test_names_inside_a_combined_policy_and_inside_bodies():
    policies = jax.checkpoint_policies
    both = policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names("inner", "outer"))

    def f(x):
        step = lambda c, _: (checkpoint_name(jnp.sin(c), "inner"), None)
        return lax.scan(step, x, None, length=2)[0]

    (report,) = jaxviz.residuals(jax.checkpoint(f, policy=both), X).checkpoints
    assert report.unmatched == ("outer",)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (None, "nothing_saveable, the default"),
        (jax.checkpoint_policies.dots_saveable, "dots_saveable"),
        (jax.checkpoint_policies.everything_saveable, "everything_saveable"),
    ],
)
def test_policies_have_names(policy, name):
    (report,) = jaxviz.residuals(jax.checkpoint(block, policy=policy), jnp.eye(3), X).checkpoints
    assert report.policy == name
    assert report.summary.startswith(
        f"checkpoint of block (test_nested_residuals.py:{line_of(block, 'def')}), policy {name}: "
    )


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


def test_the_reports_are_plain_data_and_fit_the_page():
    f = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    found = jaxviz.residuals(lambda w, x: branching(f(w, x)), jnp.eye(3), X)
    assert all(len(line) <= 100 for line in str(found).splitlines())
    data = found.to_dict()
    assert {"dummy_nbytes", "notes", "checkpoints"} <= set(data)
    assert data["checkpoints"][0]["policy"] == "dots_saveable"
    assert "<table" in found._repr_html_()
    assert "<table" in found.checkpoints[0]._repr_html_()


# --- custom rules -----------------------------------------------------------------------------------------------------


@jax.custom_vjp
def wasteful(x, y):
    return jnp.sin(x) * y


def wasteful_fwd(x, y):
    return jnp.sin(x) * y, (jnp.cos(x), jnp.exp(y))


def wasteful_bwd(saved, ct):
    return saved[0] * ct, None


wasteful.defvjp(wasteful_fwd, wasteful_bwd)


def test_what_a_backward_rule_never_reads_is_reported():
    found = jaxviz.residuals(lambda x, y: wasteful(x, y), X, X)
    unread = only(found, is_read=False)
    assert unread.expression == "jnp.exp(y)"
    assert unread.location.line == line_of(wasteful_fwd, "exp")
    assert "the custom VJP rule of wasteful passes it to its backward function" in unread.reason
    assert found.notes == (
        f"JAX saves 12 B that the backward program never reads: `jnp.exp(y)` (test_nested_residuals.py:{unread.location.line}). "
        "A compiled gradient keeps nothing for that.",
    )


def test_it_is_reported_inside_a_scan_too():
    found = jaxviz.residuals(lambda x, y: lax.scan(lambda c, _: (wasteful(c, c * y), None), x, None, length=3)[0], X, X)
    unread = only(found, expression="jnp.exp(y)")
    assert (unread.type, unread.is_read) == ("3 × f32[3]", False)
    assert unread.location.line == line_of(wasteful_fwd, "exp")
    assert only(found, expression="jnp.cos(x)").is_read


def test_the_rules_own_programs_have_their_own_lines():
    d = derive(lambda x: wasteful(x, x), X)
    cos = next(e for _, e in d.forward.walk() if e.primitive.name == "cos")
    mul = next(e for _, e in d.backward.walk() if e.primitive.name == "mul")
    assert f":{line_of(wasteful_fwd, 'cos')}" in str(locate(cos.source))
    assert f":{line_of(wasteful_bwd, 'ct')}" not in str(locate(mul.source))
    assert f":{line_of(wasteful_bwd, 'saved[0]')}" in str(locate(mul.source))


# --- no reverse mode --------------------------------------------------------------------------------------------------


def test_what_has_no_reverse_mode_has_residuals_of_its_linear_program():
    def f(x):
        return lax.while_loop(lambda c: c[0] < 9.0, lambda c: c * 2.0, jnp.sin(x))

    found = jaxviz.residuals(f, X)
    assert found
    assert all(r.is_read and not r.consumers for r in found)
    (note,) = found.notes
    assert note.startswith("There is no backward program")
    assert "there is no backward program to read it" in found[0].reason


def test_a_residual_of_a_scan_in_a_scan_has_both_trip_counts():
    def inner(x, _):
        return jnp.sin(x), None

    def outer(x, _):
        return lax.scan(inner, x, None, length=3)[0], None

    found = jaxviz.residuals(lambda x: jnp.sum(lax.scan(outer, x, None, length=5)[0]), jnp.ones(2))
    (one,) = [r for r in found if "once for each of" in r.reason]
    assert "once for each of 5 × 3 iterations" in one.reason


# --- linear solves ----------------------------------------------------------------------------------------------------


def preconditioned(a, b):
    matrix = jnp.sin(a)
    x = lax.custom_linear_solve(lambda x: matrix @ x, b, lambda _, b: b, lambda _, b: matrix.T @ b)
    return jnp.sum(jnp.sin(x))


def test_what_only_the_other_programs_of_a_solve_read_is_no_copy_and_is_read_by_the_solve():
    found = jaxviz.residuals(preconditioned, jnp.eye(3), X, argnums=(0, 1))
    assert "copies" not in str(found)
    assert "custom_linear_solve's derivative" in only(found, expression="jnp.sin(a)").reason


def test_what_no_program_of_a_solve_that_runs_reads_is_not_kept():
    def f(a, b):
        return jnp.sum(lax.custom_linear_solve(lambda x: jnp.sin(a) * x, b, lambda _, b: b, lambda _, b: b))

    found = jaxviz.residuals(f, X, X, argnums=1)
    assert [r.kind for r in found] == ["argument", "unread"]
