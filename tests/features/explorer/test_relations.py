"""Which variables have the same value, and which are tangents and cotangents of which: compared with the values that
programs compute."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  which enters its programs into the table
import numpy as np
import pytest
from programs import CASES

import jaxviz
from jaxviz.derivation import STAGES
from jaxviz.features.explorer.columns import view_of
from jaxviz.features.explorer.relations import Variables
from jaxviz.ir import compat
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Literal, Var
from jaxviz.page.schema import KINS

NAMES = """layer_norm gelu scalars powers jitted_twice jitted_closing_over input_and_result used_often updates scan_rnn
    scan_results_that_are_residuals cond_branches_differ cond_in_cond remat remat_everything_saveable remat_in_remat
    cond_in_remat
    custom_jvp_nondiff""".split()
BY_NAME = {case.name: case for case in CASES}
SEVERAL = jax.jit(lambda x: jnp.sin(x) * x)


def numbered(derivation):
    """The variables of the stages that a derivation has, numbered in the order of their programs."""
    programs, stage_of, holders, stages = [], [], [], []
    count = itertools.count()
    for i, key in enumerate(STAGES):
        try:
            top = getattr(derivation, key)
        except Exception:  # for example a while loop's backward program
            continue
        numbers = {}
        todo = [(top, None)]
        while todo:
            program, holder = todo.pop()
            programs.append(program)
            stage_of.append(i)
            holders.append(holder)
            own = (*program.constvars, *program.invars, *(v for e in program.equations for v in e.outvars))
            for v in own:
                if v not in numbers:
                    numbers[v] = next(count)
            todo += [(p, e) for e in program.equations for _, p in e.programs]
        stages.append(numbers)
    return Variables(stages, programs, stage_of, holders)


class Known:
    """A derivation, its variables by number, and the values of those at the top level of its stages."""

    def __init__(self, case):
        self.derivation = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
        self.found = numbered(self.derivation)
        self.programs, self.stage_of, self.stages = self.found.programs, self.found.stage_of, self.found.stages
        self.columns = self.found.columns()
        self.values = self._run()

    def _run(self):
        """The values of the variables at the top level of a stage, by number."""
        d, random = self.derivation, np.random.default_rng(0)
        like = lambda aval: jnp.asarray(random.normal(size=aval.shape), aval.dtype)
        inputs = [
            jnp.abs(like(a)) + 0.1 if jnp.issubdtype(a.dtype, jnp.inexact) else jnp.ones(a.shape, a.dtype)
            for a in d.primal.in_avals
        ]
        tangents = [like(v.aval.to_tangent_aval()) for v, nz in zip(d.primal.invars, d.nonzeros, strict=True) if nz]
        found = {}
        self.env(found, 0, d.primal, inputs)
        self.env(found, 1, d.jvp, [*inputs, *tangents])
        forward = self.env(found, 2, d.forward, inputs)
        residuals = forward[len(forward) - d.n_residuals :]
        self.env(found, 3, d.linear, [*residuals, *tangents])
        cotangents = [like(a) for a in d.backward.in_avals[d.n_residuals :]]
        self.env(found, 4, d.backward, [*residuals, *cotangents])
        return found

    def env(self, found, stage, program, inputs):
        made = tuple(v for e in program.equations for v in e.outvars)
        results = as_function(replace(program, outvars=(*made, *program.outvars)))(*inputs)
        names = self.stages[stage]
        for v, x in zip((*program.invars, *made), (*inputs, *results), strict=False):
            found[names[v]] = x
        return results[len(made) :]


KNOWN = {}


@pytest.fixture(params=NAMES)
def known(request):
    if request.param not in KNOWN:
        KNOWN[request.param] = Known(BY_NAME[request.param])
    return KNOWN[request.param]


def groups(known):
    found = {}
    for i in known.values:
        found.setdefault(known.columns["variable_value"][i], []).append(i)
    return [g for g in found.values() if len(g) > 1]


def close(x, y):
    return x.shape == y.shape and x.dtype == y.dtype and np.allclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.slow
def test_variables_that_are_one_value_have_one_value(known):
    assert groups(known)
    for first, *others in groups(known):
        for other in others:
            assert close(known.values[first], known.values[other])


def test_every_input_of_a_stage_is_known(known):
    d = known.derivation
    value, kin, of = (known.columns[f"variable_{name}"] for name in ("value", "kin", "of"))
    number = known.stages
    for v, again in zip(d.primal.invars, d.jvp.invars, strict=False):
        assert value[number[1][again]] == number[0][v]
    for a, v in zip(d.linearized.residuals, d.linear.invars, strict=False):
        if isinstance(a, Var):
            assert value[number[3][v]] == value[number[2][a]]
    for stage, program, n in ((1, d.jvp, len(d.primal.invars)), (3, d.linear, d.n_residuals)):
        differentiated = [number[0][v] for v, nz in zip(d.primal.invars, d.nonzeros, strict=True) if nz]
        for v, i in zip(program.invars[n:], differentiated, strict=True):
            assert KINS[kin[number[stage][v]]] == "tangent"
            assert of[number[stage][v]] == i


def test_tangents_of_one_value_are_the_same_in_both_programs_that_have_them(known):
    kin, of, value = (known.columns[f"variable_{name}"] for name in ("kin", "of", "value"))
    tangents = {}
    for i in known.values:
        if KINS[kin[i]] == "tangent" and of[i] >= 0:
            tangents.setdefault(value[of[i]], []).append(i)
    assert tangents
    for first, *others in tangents.values():
        for other in others:
            assert close(known.values[first], known.values[other])


def test_cotangents_say_how_the_result_depends(known):
    """A variable's cotangent tells how much the linear program's result changes with the variable."""
    d, kin, of = known.derivation, known.columns["variable_kin"], known.columns["variable_of"]
    number = known.stages[3]
    by_number = {number[v]: v for v in number}
    inputs = [known.values[number[v]] for v in d.linear.invars]
    cotangents = [known.values[known.stages[4][v]] for v in d.backward.invars[d.n_residuals :]]
    cotangent_of = {}
    for i in known.values:
        if KINS[kin[i]] == "cotangent" and of[i] in known.values:
            cotangent_of.setdefault(of[i], known.values[i])
    tried = 0
    makers = {v: e for e in d.linear.equations for v in e.outvars}
    for j, ct in list(cotangent_of.items())[:6]:
        v = by_number[j]
        maker = makers.get(v)
        if maker is not None and len(maker.outvars) > 1:
            continue
        rest = tuple(e for e in d.linear.equations if e is not maker)
        given = [known.values[number[u]] for u in d.linear.invars]
        if maker is None:
            i = d.linear.invars.index(v)
            run = lambda t, i=i, given=given: as_function(d.linear)(*given[:i], t, *given[i + 1 :])
        else:
            changed = replace(d.linear, invars=(*d.linear.invars, v), equations=rest, debug_info=None)
            run = lambda t, changed=changed: as_function(changed)(*inputs, t)
        before = known.values[j]
        change = jnp.asarray(np.random.default_rng(1).normal(size=before.shape), before.dtype)
        results = [y - x for x, y in zip(run(before), run(before + change), strict=True)]
        through = sum(np.sum(np.asarray(r) * np.asarray(c)) for r, c in zip(results, cotangents, strict=True))
        assert np.allclose(through, np.sum(np.asarray(ct) * np.asarray(change)), rtol=1e-2, atol=1e-2)
        tried += 1
    assert tried


def test_a_literal_that_is_kept_is_no_variable_of_the_same_name():
    """JAX saves the 3.0 as an array; the listing calls this residual `a`, like the input."""
    view = jaxviz.explore(lambda x: 3.0 * x, 2.0).view
    stages = {stage.key: stage for stage in view.stages}
    binders = lambda key: view.columns["binder_vars"][view.columns["program_binders"][stages[key].programs[0]] :]
    value = view.columns["variable_value"]
    assert value[binders("linear")[0]] != value[binders("primal")[0]]


def test_calls_of_one_program_are_told_apart():
    known = Known(type(CASES[0])("twice", lambda x: SEVERAL(SEVERAL(x)), (jnp.ones(3),)))
    value = known.columns["variable_value"]
    results = [known.stages[0][v] for e in known.derivation.primal.equations for v in e.outvars]
    assert len({value[i] for i in results}) == len(results)


def test_literals_have_no_number():
    assert not any(isinstance(a, Literal) for numbers in Known(BY_NAME["scalars"]).stages for a in numbers)


def swapped_in_a_loop(x):
    r = jax.new_ref(x)
    first = r[...] * 2.0
    jax.lax.scan(lambda c, _: (c + jnp.sum(jax.ref.swap(r, ..., jnp.sin(r[...]))), None), 0.0, None, length=2)
    return jnp.sum(jax.freeze(r) * first)


def test_what_is_read_from_a_reference_belongs_to_it_in_all_its_versions():
    """In a loop too, and so do tangents of what is read: on the page they have one hue."""
    d = jaxviz.derive(swapped_in_a_loop, jnp.arange(3.0))
    found = numbered(d)
    stages, columns = found.stages, found.columns()
    value, of = columns["variable_value"], columns["variable_of"]

    def family(stage, v):
        i = value[stages[stage][v]]
        while of[i] >= 0:
            i = value[of[i]]
        return i

    made = next(e for e in d.primal.equations if e.primitive.name.endswith("new_ref"))
    reference = family(0, made.outvars[0])
    read = [
        (i, v) for i in (0, 1, 2) for _, e in getattr(d, STAGES[i]).walk()
        if e.primitive.name in ("get", "swap", "freeze") for v in e.outvars
    ]  # fmt: skip
    assert len(read) > 10
    assert {family(i, v) for i, v in read} == {reference}
    assert family(0, d.primal.invars[0]) != reference


def test_the_page_knows_references_by_their_types():
    """Those of all stages, in loops too, and nothing else: they have their hues in the graph and beside the source."""
    d = jaxviz.derive(swapped_in_a_loop, jnp.arange(3.0))
    view = view_of(d)
    written = [view.strings[i] for i in view.columns["type_text"]]
    shown = [written[i] for i in view.columns["variable_type"] if re.match("Ref[<{]", written[i])]
    found = numbered(d)
    made = [v for numbers in found.stages for v in numbers if compat.is_ref(v.aval)]
    assert len(shown) == len(made) > 5
    source = (Path(jaxviz.__file__).parents[1] / "widgets/src/model/references.ts").read_text(encoding="utf-8")
    assert "/^Ref[<{]/" in source
