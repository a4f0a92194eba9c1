"""What checkpoints would save, estimated from a function without them, compared with what JAX saves with the
checkpoints added.

The lines to put into a checkpoint are a transcript."""

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
    """Bytes of what JAX saves, without arguments, which are in memory anyway."""
    found = []

    def hold(*given):
        def f(*active):
            it = iter(active)
            return as_function(program)(*(next(it) if nz else x for nz, x in zip(nonzeros, given, strict=True)))

        _, pull = jax.vjp(f, *(x for nz, x in zip(nonzeros, given, strict=True) if nz))
        saved = {id(x): x for x in jax.tree.leaves(pull) if not any(x is argument for argument in given)}
        found.append(sum(nbytes(jax.typeof(x)) for x in saved.values()))

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


# Its rule closes over a number, which is an array when JAX traces the rule, and a literal after converting the program
# back.
OWN_NUMBERS = ("custom_jvp_symbolic_zeros",)
# Outside of `jit` a number that is converted to its own type is the argument itself, which is then not counted.
ITSELF = ("trees",)


@pytest.mark.parametrize("case", [c for c in CASES[::3] if c.name not in OWN_NUMBERS + ITSELF], ids=str)
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
    saved = [a for a in d.linearized.residuals if a not in d.primal.invars]
    assert kept.nbytes == sum(nbytes(a.aval) for a in saved)
    assert check(d, [run for _, run in _runs(d.primal, _line)])
    before = held_by_jax(d.primal, d.nonzeros)
    for c in candidates(kept):
        assert before - held_by_jax(with_checkpoints(d.primal, c.runs), d.nonzeros) == c.saving.nbytes


def test_nothing_costly_is_computed_again():
    for d in (flat(c.fun, *c.args) for c in CASES[1::4]):
        for c in candidates(SavedValues(d)):
            assert all(is_cheap(e) for run in c.runs for e in run)


PLACES = jnp.array([0, 1, 2, 1])


def _level(i, x):
    at = PLACES[i]
    return x.at[at].add(jnp.sin(x[at]))


def _twice(x, _=None):
    """Two loops with the same body, which JAX traces once."""
    x = lax.fori_loop(0, 4, _level, x)
    return lax.fori_loop(0, 4, _level, x), None


@pytest.mark.slow
@pytest.mark.parametrize(
    "f",
    [lambda x: _twice(x)[0].sum(), lambda x: lax.scan(_twice, x, None, length=3)[0].sum()],
    ids=["one after the other", "in a loop"],
)
def test_each_of_two_loops_with_the_same_body_keeps_values_of_its_own(f):
    d = flat(f, jnp.ones(4))
    assert SavedValues(d).nbytes == held_by_jax(d.primal, d.nonzeros)
    jaxviz.lint(d)  # it terminates


def energy(x):
    return jnp.sum(jnp.sin(x) * jnp.exp(x) ** 2)


@pytest.mark.parametrize(
    ("loss", "is_advised"),
    [(lambda x: jnp.sum(energy(x @ x) * x), True), (lambda x: jnp.sum(jax.grad(energy)(x) @ x), False)],
)
def test_lines_of_which_the_function_takes_a_gradient_get_no_advice(loss, is_advised):
    """A checkpoint on them changes the inner backward pass too, which no figure without it says."""
    rules = [a.rule for a in jaxviz.lint(loss, jnp.ones((3, 3)), min_nbytes=1)]
    assert ("cheap-recompute" in rules) is is_advised
