"""Programs of functions whose Python looks at values: one path, with its branch points. The laws hold of them in
`test_matrix.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short
from value_programs import LOOK_AT_VALUES, LOOPS, PATHS, branching_backward, loop, piecewise, with_jvp

import jaxviz
from jaxviz.derivation import STAGES


@pytest.mark.parametrize("case", PATHS, ids=str)
def test_the_program_says_that_it_is_one_path(case):
    program = jaxviz.trace(case.fun)(*case.args)
    assert program.is_path
    assert program.branches
    assert str(program).startswith("# one path, recorded on concrete values:")
    derivation = jaxviz.derive(case.fun, *case.args)
    assert all(getattr(derivation, stage).is_path for stage in STAGES)


@pytest.mark.parametrize("fun", dict.fromkeys(c.fun for c in LOOK_AT_VALUES if c.fun is not branching_backward))
def test_a_rule_that_looks_at_values_is_on_the_path(fun):
    derivation = jaxviz.derive(fun, jnp.float32(0.7))
    assert derivation.primal.is_path
    assert derivation.check().agrees, derivation.check()


@pytest.mark.parametrize("side", [True, False])
def test_a_branch_point_has_its_line_and_the_side_taken(side):
    (branch,) = jaxviz.trace(piecewise)(3.0 if side else -3.0).branches
    assert (branch.kind, branch.value, branch.location.function) == ("bool", side, "piecewise")
    assert branch.location.file == piecewise.__code__.co_filename
    assert branch.location.line == piecewise.__code__.co_firstlineno + 2


def test_every_turn_of_a_loop_is_a_branch_point_and_nothing_else_is():
    branches = jaxviz.trace(loop)(1.0).branches
    assert [b.value for b in branches] == [True] * (len(branches) - 1) + [False]
    assert len(branches) > 1
    assert not jaxviz.trace(jnp.sin)(1.0).is_path
    assert jaxviz.trace(jnp.sin)(1.0).branches == ()


def test_a_loop_around_jitted_pieces_compiles_each_once():
    calls = []

    @jax.jit
    def counted(x):
        calls.append(1)
        return jnp.sin(x) + x

    def f(x):
        while x < 3:
            x = counted(x)
        return x

    jaxviz.grad(f)(1.0)
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", short(LOOPS[::2], 2), ids=str)
def test_a_loop_keeps_the_variable_that_its_rules_close_over(case):
    """What is changed while a rule is traced is put back."""
    assert jaxviz.derive(case.fun, *case.args).check()
    np.testing.assert_allclose(case.fun(*case.args), jax.value_and_grad(case.fun)(*case.args)[0], rtol=1e-5)


@pytest.mark.slow
def test_check_compares_the_values():
    def with_an_attribute(x):
        """What changes is not a variable, so jaxviz cannot know what it was."""

        class State:
            s = 1.0

        for s in (1.0, 2.0):
            State.s = s
            x = with_jvp(lambda: State.s)(x)
        return x

    check = jaxviz.derive(with_an_attribute, 0.7).check()
    assert not check
    assert "residuals as in" in check.summary
    assert "its values differ" in check.summary
    (difference,) = check.differences
    assert difference.startswith("result 0: JAX computes 1.20")
    assert jaxviz.derive(with_an_attribute, 0.7).check(values=False)
    assert jaxviz.derive(with_an_attribute, jax.ShapeDtypeStruct((), jnp.float32)).check()
