"""The matrix of JAX's flags: under each, residuals and gradients as in JAX, lines and reasons as without it.

With the newest JAX: before 0.11, what is made under these flags is not opened.
"""

from functools import cache

import hi_primitives
import jax
import jax.numpy as jnp
import laws
import nested_programs  # noqa: F401
import numpy as np
import pytest
from programs import CASES, Case

import jaxviz
from benchmarks import models
from jaxviz.higher_order import of
from jaxviz.higher_order.custom_jvp import CUSTOM_JVP
from jaxviz.higher_order.custom_vjp import CUSTOM_VJP
from jaxviz.ir import compat
from jaxviz.runtime.flags import under_flags

FLAGS = ("jax_remat3", "jax_custom_vjp3", "jax_custom_jvp3", "jax_remat_barrier_no_cotangents")
"""All upgrades of JAX's derivatives but `jax_scan3`, under which it differentiates no loop. The last one is read by the
first."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FLAGS[2] not in jax.config.values, reason="this JAX does not have these flags"),
]

# --- programs ---------------------------------------------------------------------------------------------------------


def in_a_row(policy=None):
    """Two functions with checkpoints that use a weight more than once: their cotangents are added one by one."""

    def block(w, x):
        return x + jnp.tanh(x @ w) @ w

    def loss(w, x):
        for _ in range(2):
            x = jax.checkpoint(block, policy=policy)(w, x)
        return jnp.mean(jnp.sin(x) ** 2)

    return loss, (jnp.linspace(-1.0, 1.0, 36).reshape(6, 6), jnp.linspace(0.0, 1.0, 18).reshape(3, 6))


WORDS = ("remat", "custom", "closure", "convolution", "activations", "composite", "special_functions", "everything")
"""In the names of the programs with checkpoints, names or custom rules, of their own or of `jax.nn`."""
PROGRAMS = [
    *(c for c in CASES if any(word in c.name for word in WORDS)),
    Case("remat_transformer", *models.remat_transformer(2)),
    Case("remats_in_a_row", *in_a_row()),
    Case("remats_in_a_row_that_save_everything", *in_a_row(jax.checkpoint_policies.everything_saveable)),
    *hi_primitives.CASES,
]


def programs_of_libraries():
    """Those with a gradient, if JAX has the flags and all of the libraries are installed beside it."""
    if FLAGS[2] not in jax.config.values:
        return []
    try:
        from library_programs import LIBRARY_CASES
    except ImportError:
        return []
    return [case for case in LIBRARY_CASES.values() if case.reverse]


IN_LIBRARIES = programs_of_libraries()
SHORT = ("linen_decoder_with_named_policy", "equinox_layers_scanned_and_checkpointed", "optax_losses")
"""The programs of libraries that the short run has."""


@cache
def changed_by(case):
    """The flags that change what a program is traced to."""
    with case.where():
        equations = [e for _, e in jaxviz.trace(case.fun)(*case.args).walk()]
    return {
        flag
        for flag, is_made in (
            ("jax_remat3", lambda e: of(e).is_checkpoint or e.primitive is compat.name_p),
            ("jax_custom_vjp3", lambda e: of(e) is CUSTOM_VJP),
            ("jax_custom_jvp3", lambda e: of(e) is CUSTOM_JVP),
        )
        if any(map(is_made, equations))
    }


def test_no_flag_changes_other_programs():
    assert [str(c) for c in CASES if c not in PROGRAMS and changed_by(c)] == []


# --- cells ------------------------------------------------------------------------------------------------------------

SETTINGS = {**{flag.removeprefix("jax_"): {flag: True} for flag in FLAGS[:-1]}, "all": dict.fromkeys(FLAGS, True)}
LINES_OF_THE_RULE = pytest.mark.xfail(
    jax.__version_info__ >= (0, 12),
    strict=True,
    reason="without the flag the forward rule is in remat_opt, which is not opened; with it the rule has its lines",
)
DIFFERENT = {
    "diffrax_backsolve_of_a_neural_ode": (
        "JAX opens the derivative of a custom JVP rule in the backward pass alone, and so saves a factor of a tangent "
        "that the rule does not read"
    ),
}
"""Programs of libraries whose residuals are not JAX's under jax_custom_jvp3, and why."""


def difference(name, case, compared):
    reason = DIFFERENT.get(str(case)) if compared and name in ("custom_jvp3", "all") else None
    return reason and pytest.mark.xfail(strict=True, reason=reason)


def cells(marks, compared):
    for case in (*PROGRAMS, *IN_LIBRARIES):
        is_library = case in IN_LIBRARIES
        sweep = pytest.mark.slow(sweep=True) if is_library and str(case) not in SHORT else None
        for name, flags in SETTINGS.items():
            mark = difference(name, case, compared) if is_library else marks(name, case)
            yield pytest.param(flags, case, id=f"{name}-{case}", marks=[m for m in (mark, sweep) if m])


def each(marks=lambda *_: None, compared=False):
    return pytest.mark.parametrize(("flags", "case"), [*cells(marks, compared)])


@cache
def refused_by_jax(case, flags):
    """Whether JAX cannot differentiate a program under some flags, as some of a library's."""
    with case.where(), under_flags(dict.fromkeys(flags, True)):
        try:
            jax.eval_shape(lambda *args: jax.vjp(case.fun, *args)[0], *case.args)
        except Exception:
            return True
    return False


@pytest.fixture(autouse=True)
def skips(request):
    if "case" in request.fixturenames:
        case, flags = (request.getfixturevalue(name) for name in ("case", "flags"))
        if case not in hi_primitives.CASES and not changed_by(case) & {*flags}:
            pytest.skip("no flag changes what it is traced to")
        if "jax_remat3" in changed_by(case) & {*flags} and jax.__version_info__ < (0, 12):
            pytest.skip("before JAX 0.12 checkpoints under jax_remat3 are not opened")
        if case in IN_LIBRARIES and refused_by_jax(case, tuple(flags)):
            pytest.skip("JAX does not differentiate it under these flags")


def derived(case):
    return jaxviz.derive(case.fun, *case.args, argnums=laws.everything(case))


@each(compared=True)
def test_residuals_and_cotangents_are_jaxs(flags, case):
    """The cotangents bit by bit, compiled by XLA."""
    with case.where(), under_flags(flags):
        check = derived(case).check(values=False)
        assert check.agrees, check
        ct = laws.seeds(jax.eval_shape(case.fun, *case.args), tangent=False)
        gradient = lambda m: jax.jit(lambda *args: m.vjp(case.fun, *args)[1](ct))(*case.args)
        for x, y in zip(jax.tree.leaves(gradient(jaxviz)), jax.tree.leaves(gradient(jax)), strict=True):
            np.testing.assert_array_equal(x, y)


@each(lambda name, case: str(case) == "custom_vjp_optimize_remat" and name != "remat3" and LINES_OF_THE_RULE)
def test_lines_and_reasons_are_those_without_flags(flags, case):
    """Except where a policy has an effect only without them."""
    with case.where():
        both = {"argnums": laws.everything(case), "flags": ({}, flags)}
        found = jaxviz.compare(case.fun, case.fun, *case.args, **both)
    assert found.same_lines >= 0.98 or found.effects, str(found)


@each()
def test_no_report_names_what_jax_wraps_a_program_in(flags, case):
    with case.where(), under_flags(flags):
        d = derived(case)
        reports = [report(d) for report in (jaxviz.residuals, jaxviz.policies, jaxviz.memory, jaxviz.cost, jaxviz.lint)]
        assert not [r.summary for r in reports if "call_hi_primitive" in str(r)]
