"""What checkpoints would save, estimated from a function without them, compared with what JAX saves with the checkpoints added."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import pytest
from jax import lax
from programs import CASES
from short_runs import short

import jaxviz
from benchmarks import models
from jaxviz.derivation import Derivation, _literals_as_constants
from jaxviz.features.lint.recompute import SavedValues, _line, _runs, candidates, is_cheap
from jaxviz.ir import compat
from jaxviz.ir.convert import map_programs
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.report.tables import nbytes
from jaxviz.transforms.inline import inlined

X = jnp.linspace(-1.0, 1.0, 12).reshape(4, 3)
REMAT = next(iter(jaxviz.trace(lambda x: jax.checkpoint(jnp.sin)(x))(1.0).equations)).operation


def flat(f, *args) -> Derivation:
    """A function derived with respect to all its floating inputs, with calls of jitted functions inlined."""
    program = inlined(jaxviz.trace(f)(*args), (compat.jit_p,))
    return jaxviz.derive(program, argnums=range(len(program.invars)))


def with_checkpoints(program: Program, runs: Sequence[Sequence[Equation]]) -> Program:
    """The program with each of these runs of equations in a checkpoint."""
    at = {run[0]: run for run in runs}
    inside = {e for run in runs for e in run}

    def checkpoint(run, of: Program) -> Equation:
        made = {v for e in run for v in e.outvars}
        ins = tuple(dict.fromkeys(a for e in run for a in e.invars if isinstance(a, Var) and a not in made))
        read = {a for e in of.equations if e not in set(run) for a in e.invars}.union(of.outvars)
        outs = tuple(v for e in run for v in e.outvars if v in read)
        body = Program(
            (), ins, outs, tuple(run), debug_info=compat.unknown_debug_info(len(ins), len(outs)), closed=False
        )
        params = {**REMAT.params, "jaxpr": body}
        op = make_operation(REMAT.primitive, params, body.in_avals, body.out_avals, frozenset(), REMAT.context)
        return Equation(op, ins, outs, run[0].source)

    def of(program: Program) -> Program:
        equations = []
        for e in program.equations:
            if e in at:
                equations.append(checkpoint(at[e], program))
            elif e not in inside:
                op = e.operation
                if e.primitive is compat.scan_p:
                    params = map_programs(op.params, of)
                    op = make_operation(op.primitive, params, op.in_avals, op.out_avals, op.effects, op.context)
                equations.append(replace(e, operation=op))
        return replace(program, equations=tuple(equations))

    return of(program)


def held_by_jax(program: Program, nonzeros) -> int:
    found = []

    def hold(*given):
        def f(*active):
            it = iter(active)
            return as_function(program)(*(next(it) if nz else x for nz, x in zip(nonzeros, given, strict=True)))

        _, pull = jax.vjp(f, *(x for nz, x in zip(nonzeros, given, strict=True) if nz))
        found.append(sum(nbytes(jax.typeof(x)) for x in {id(x): x for x in jax.tree.leaves(pull)}.values()))

    program = _literals_as_constants(program)
    jax.make_jaxpr(hold)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals))
    return found[0]


def check(d: Derivation, runs) -> int:
    """Compares the savings of checkpoints around some runs, separately and all together; returns the number of runs."""
    kept = SavedValues(d)
    before = held_by_jax(d.primal, d.nonzeros)
    read = [run for run in runs if kept.is_read_by(run)]
    for some in [*([run] for run in read), read]:
        after = held_by_jax(with_checkpoints(d.primal, some), d.nonzeros)
        assert before - after == kept.saving(some).nbytes, [[e.primitive.name for e in run] for run in some]
    return len(read)


# Its rule closes over a number, which is an array when JAX traces the rule, and a literal after converting the program back.
OWN_NUMBERS = ("custom_jvp_symbolic_zeros",)


@pytest.mark.parametrize("case", [c for c in CASES[::3] if c.name not in OWN_NUMBERS], ids=str)
def test_what_a_checkpoint_saves_is_what_jax_holds_less(case):
    d = flat(case.fun, *case.args)
    check(d, [run for _, run in _runs(d.primal, _line)][:4])


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    short(
        [models.mlp, models.transformer, models.scan_transformer, models.remat_transformer, models.lstm],
        [models.mlp, models.scan_transformer],
    ),
)
def test_of_models(model):
    f, args = model(2)
    d = flat(f, *args)
    kept = SavedValues(d)
    assert kept.nbytes == sum(nbytes(a.aval) for a in d.linearized.residuals)
    assert check(d, [run for _, run in _runs(d.primal, _line)])
    before = held_by_jax(d.primal, d.nonzeros)
    for c in candidates(kept):
        assert before - held_by_jax(with_checkpoints(d.primal, c.runs), d.nonzeros) == c.saving.nbytes


# --- the lines --------------------------------------------------------------------------------------------------------


def lines_of(f, *args):
    """The candidates: their lines relative to the function's first, how often they run, and whether each is a function."""
    start = f.__code__.co_firstlineno
    return [
        (c.first.line - start, c.last.line - start, len(c.runs), c.is_function)
        for c in candidates(SavedValues(flat(f, *args)))
    ]


W = jnp.ones((3, 3))


def test_lines_between_costly_ones():
    def f(w, x):
        x = x @ w
        y = jnp.sin(x)
        y = y * y * jnp.cos(x)
        return jnp.sum(y @ w)

    assert lines_of(f, W, X) == [(2, 3, 1, False)]


def test_a_loop_in_python_is_gone_through_more_than_once():
    def f(x):
        for _ in range(4):
            y = jnp.exp(x) * x
            x = jax.nn.gelu(y) * y
        return jnp.sum(x @ W)

    assert lines_of(f, X) == [(2, 3, 4, False)]


def test_a_loop_in_a_function_is_part_of_it():
    def act(x):
        for _ in range(4):
            x = jax.nn.gelu(jnp.exp(x) * x)
        return x * 2.0

    def f(x):
        return jnp.sum(act(x @ W) @ W)

    (c,) = candidates(SavedValues(flat(f, X)))
    assert (len(c.runs), c.is_function) == (1, True)


def test_a_loop_of_one_instruction():
    def f(x):
        for _ in range(4):
            x = jax.nn.gelu(x)
        return jnp.sum(x @ W)

    assert lines_of(f, X) == [(2, 2, 4, False)]


def test_operations_that_repeat_in_a_library_are_no_loop():
    def noise(x):
        keep = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
        return jnp.where(keep, x / 0.5, 0.0)

    def f(x):
        return jnp.sum(noise(x @ W) @ W)

    (c,) = candidates(SavedValues(flat(f, X)))
    assert c.is_function
    assert len(c.runs) == 1
    assert c.first.line == noise.__code__.co_firstlineno + 1


def test_each_call_of_a_function_is_a_time_of_its_own():
    def act(x):
        return jnp.sin(jnp.cos(jnp.exp(x)))

    def f(x):
        return jnp.sum(act(act(x)) @ W)

    (c,) = candidates(SavedValues(flat(f, X)))
    assert (len(c.runs), c.is_function) == (2, True)
    assert [len(run) for run in c.runs] == [3, 3]


def test_of_a_function_that_calls_a_costly_one_only_lines():
    def product(x):
        return x @ W

    def f(x):
        y = jnp.sin(jnp.cos(jnp.exp(x)))
        return jnp.sum(jnp.sin(product(y)))

    assert [c.is_function for c in candidates(SavedValues(flat(f, X)))] == [False]


def test_nothing_costly_is_computed_again():
    for d in (flat(c.fun, *c.args) for c in CASES[1::4]):
        for c in candidates(SavedValues(d)):
            assert all(is_cheap(e) for run in c.runs for e in run)


@pytest.mark.parametrize(
    ("f", "cheap"),
    [
        (jnp.tanh, True),
        (jax.nn.relu, True),
        (lambda x: x.sum(0), True),
        (lambda x: jax.random.bits(jax.random.key(0), x.shape), True),
        (lambda x: x @ W, False),
        (lambda x: jnp.sort(x), False),
        (jax.checkpoint(jnp.tanh), False),
        (lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0], False),
        (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), False),
        (jax.jit(lambda x: jnp.sin(x) @ W), False),
        (jax.jit(lambda x: jnp.sin(x) * 2.0), True),
        (lambda x: jax.pure_callback(lambda x: x, x, x), False),
        (lambda x: jax.lax.lgamma(x), True),
        (lambda x: jax.scipy.special.gammainc(x, x), False),
    ],
)
def test_what_is_cheap(f, cheap):
    program = jaxviz.trace(f)(X)
    assert all(map(is_cheap, program.equations)) == cheap


PLACES = jnp.array([0, 1, 2, 1])


def _level(i, x):
    at = PLACES[i]
    return x.at[at].add(jnp.sin(x[at]))


def _twice(x, _=None):
    """Two loops with the same body, which JAX traces once."""
    x = lax.fori_loop(0, 4, _level, x)
    return lax.fori_loop(0, 4, _level, x), None


@pytest.mark.parametrize(
    "f",
    [lambda x: _twice(x)[0].sum(), lambda x: lax.scan(_twice, x, None, length=3)[0].sum()],
    ids=["one after the other", "in a loop"],
)
def test_each_of_two_loops_with_the_same_body_keeps_values_of_its_own(f):
    d = flat(f, jnp.ones(4))
    assert SavedValues(d).nbytes == held_by_jax(d.primal, d.nonzeros)
    jaxviz.lint(d)  # it terminates
