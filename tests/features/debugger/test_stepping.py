"""Stepping through a program, in any way, has the same results as running it at once."""

import random

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from jax import lax
from programs import CASES, Case, M, X, arange
from short_runs import short
from test_matrix import marked

import jaxviz
from jaxviz.features.debugger.positions import Level, Position, StepperStage
from jaxviz.features.debugger.stepping import Machine
from jaxviz.runtime.evaluate import evaluate

QUICK = """mlp with_a_key trees nested_jit scan_rnn scan_reverse scan_of_length_zero cond_in_cond scan_in_cond four_deep
    remat
    custom_jvp custom_vjp while_beside linear_solve""".split()


def machine(fun, *args, budget=1 << 30):
    program = jaxviz.trace(fun)(*args)
    leaves = jax.tree.leaves(args)
    return Machine([StepperStage("primal", program, lambda _: leaves)], budget)


def numbers(x):
    if jax.dtypes.issubdtype(jax.typeof(x).dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x, np.complex128)


def assert_close(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(numbers(a), numbers(b), rtol=2e-5, atol=1e-5)


def walk(m, seed, limit=120):
    """Random moves, then out of everything."""
    rng = random.Random(seed)
    for n in range(limit):
        if m.is_done:
            break
        p = m.position
        move = rng.choice(["next", "next", "into", "into", "out", "back", "goto"])
        if move == "goto":
            m.goto(Position(p.stage, p.path, rng.randrange(len(m.program_at(p).equations) + 1)))
        elif move == "out" and not p.path and n < limit / 2:
            m.into()
        else:
            getattr(m, move)()
    while not m.is_done:
        m.out()


def check_walk(case, seed, budget):
    wanted = evaluate(jaxviz.trace(case.fun)(*case.args), jax.tree.leaves(case.args))
    m = machine(case.fun, *case.args, budget=budget)
    walk(m, seed)
    assert_close(m.results("primal"), wanted)
    assert not m.notes


def mapped_while(x):
    """Its predicate differs between examples: those that have finished keep their values."""

    def until(x):
        step = lambda s: (s[0] + 1.0, jnp.sin(s[1] - s[0]), ~s[2])
        return lax.while_loop(lambda s: s[0] < x, step, (0.0, 2.0 * x, x > 1))

    return jax.vmap(until)(x)


MAPPED = Case("mapped_while", mapped_while, (jnp.array([1.0, 4.5, -1.0]),))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["kept", "nothing kept"])
@pytest.mark.parametrize("case", [*(c for c in CASES if c.name in QUICK), *[MAPPED] * 4], ids=str)
def test_any_walk_comes_to_the_same_results(case, budget, request):
    check_walk(case, len(request.node.name), budget)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*marked(CASES[::2], 2, of=6), *short(CASES[1::2], ())], ids=str)
def test_many_walks_come_to_the_same_results(case):
    for seed, budget in enumerate((1 << 30, 0, 64, 1000)):
        check_walk(case, seed, budget)


def test_equation_by_equation_is_bitwise_what_jax_gives_outside_jit():
    f = lambda w, x: jnp.sum(jnp.tanh(x @ w) / (1 + jnp.exp(x @ w)))
    w, x = arange(3, 5), M
    m = machine(f, w, x)
    while not m.is_done:
        m.next()
    (got,) = m.results("primal")
    (wanted,) = evaluate(jaxviz.trace(f)(w, x), [w, x])
    assert np.asarray(got).tobytes() == np.asarray(wanted).tobytes()


# --- loops ------------------------------------------------------------------------------------------------------------


def rnn(w, h, xs):
    def cell(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h * 2.0

    return lax.scan(cell, h, xs)


LONG = arange(50, 3)
W = arange(3, 3) * 0.3


def at_scan(reverse=False):
    """A machine whose next equation is a scan."""
    f = rnn if not reverse else lambda w, h, xs: lax.scan(lambda h, x: (jnp.tanh(w @ h + x), h), h, xs, reverse=True)
    m = machine(f, W, X, LONG)
    while m.next_equation().primitive.name != "scan":
        m.next()
    return m


def into(m, body, iteration=None):
    """Goes to the beginning of a body of the next equation."""
    m.goto(Position("primal", (*m.position.path, Level(m.position.index, body, iteration)), 0))
    return m.program_at(m.position)


def carries(reverse=False):
    """The carry at the start of each iteration, in execution order."""
    h, found = X, []
    for x in LONG[::-1] if reverse else LONG:
        found.append(h)
        h = jnp.tanh(W @ h + x)
    return found


@pytest.mark.parametrize("k", [0, 1, 6, 7, 8, 33, 49])
@pytest.mark.parametrize("reverse", [False, True])
def test_an_iteration_of_a_scan_reads_what_the_ones_before_made(k, reverse):
    m = at_scan(reverse)
    _, h, x = into(m, "jaxpr", k).invars
    np.testing.assert_allclose(m.value(m.position, h), carries(reverse)[49 - k if reverse else k], rtol=1e-5)
    np.testing.assert_array_equal(m.value(m.position, x), LONG[k])


@pytest.mark.parametrize("reverse", [False, True])
def test_from_the_end_of_an_iteration_to_the_next_and_back(reverse):
    first, second = (49, 48) if reverse else (0, 1)
    m = at_scan(reverse)
    m.into()
    n = len(m.program_at(m.position).equations)
    for _ in range(n):
        m.next()
    places = [(m.position.path[-1].iteration, m.position.index)]
    for move in (m.next, m.back):
        move()
        places.append((m.position.path[-1].iteration, m.position.index))
    assert places == [(first, n), (second, 0), (first, n)]


def test_iterations_are_run_in_one_compiled_loop_whatever_their_number():
    m = at_scan()
    i = m.position.index
    operation = m.next_equation().operation
    for k in (3, 20, 49, 11):
        m.goto(Position("primal", (Level(i, "jaxpr", k),), 0))
    m.out()
    (run,) = [r for r in operation.rules.values() if hasattr(r, "_cache_size")]
    assert run._cache_size() == 1


# --- memory -----------------------------------------------------------------------------------------------------------


def deep(x):
    for _ in range(60):
        x = jnp.sin(x) + x
    return x


def test_values_beyond_the_budget_are_computed_again():
    x = arange(1000)
    every = machine(deep, x)
    every.out()
    budget = 20 * x.nbytes
    m = machine(deep, x, budget=budget)
    m.out()
    assert m.history.nbytes <= budget < every.history.nbytes
    pairs = zip(m.program_at(m.position).equations, every.program_at(every.position).equations, strict=True)
    for i, (e, same) in enumerate(pairs):
        p = Position("primal", (), i + 1)
        np.testing.assert_array_equal(m.value(p, e.outvars[0]), every.value(p, same.outvars[0]))
    m.back()
    assert m.history.nbytes <= budget
    assert not m.notes


def test_going_back_runs_no_more_than_the_equations_since_a_checkpoint():
    x = arange(1000)
    m = machine(deep, x, budget=30 * x.nbytes)
    m.out()
    ran = []
    execute = m._execute
    m._execute = lambda e, operands: ran.append(e) or execute(e, operands)
    equations = m.program_at(m.position).equations
    for i in range(0, len(equations), 17):
        ran.clear()
        m.value(Position("primal", (), i + 1), equations[i].outvars[0])
        assert len(ran) <= 4 * 11 + 1  # 120 equations, 11 between checkpoints, or up to 44 with little memory


def test_where_memory_runs_out_history_is_freed_and_the_run_goes_on():
    m = machine(deep, X)
    for _ in range(40):
        m.next()
    kept, execute = m.history.nbytes, m._functions
    fails = iter([True])

    class Full(dict):
        def get(self, key):
            found = execute.get(key)

            def run(*operands):
                if next(fails, False):
                    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 12 bytes.")
                return found(*operands)

            return run

    m._functions = Full()
    m.next()
    assert m.history.nbytes < kept / 4
    m.out()
    np.testing.assert_allclose(m.results("primal")[0], deep(X), rtol=1e-6)
    assert "Memory ran out at `sin` (" in m.notes[0]
    m.goto(Position("primal", (), 3))
    assert len(m.notes) == 1


def test_a_jitted_function_that_takes_its_argument_s_memory_leaves_it_here():
    f = jax.jit(lambda x: x * 2.0, donate_argnums=0)
    m = machine(lambda x: f(jnp.sin(x)), X)
    m.out()
    (_, e) = m.program_at(m.position).equations
    p = Position("primal", (), 2)
    np.testing.assert_allclose(m.value(p, e.invars[0]), jnp.sin(X))
