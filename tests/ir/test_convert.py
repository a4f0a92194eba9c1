"""Converting a jaxpr to a program and back loses nothing."""

import warnings
from dataclasses import replace

import device_programs
import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex_core
from programs import CASES

import jaxviz
from jaxviz.ir import compat, convert
from jaxviz.ir.convert import read_jaxpr, write_program
from jaxviz.ir.syntax import Program

X = jnp.arange(1.0, 4.0)


def assert_same_jaxpr(got, want):
    """Compares equations, including nested programs, up to a bijection of variables."""
    if isinstance(want, jex_core.ClosedJaxpr):
        assert isinstance(got, jex_core.ClosedJaxpr)
        assert all(g is w for g, w in zip(got.consts, want.consts, strict=True))
        got, want = got.jaxpr, want.jaxpr
    names = {}

    def same_atom(g, w):
        assert type(g) is type(w)
        assert g.aval == w.aval
        assert getattr(g.aval, "weak_type", None) == getattr(w.aval, "weak_type", None)
        assert getattr(g.aval, "sharding", None) == getattr(w.aval, "sharding", None)
        if isinstance(w, jex_core.Literal):
            assert g.val is w.val
        else:
            assert names.setdefault(w, g) is g

    def same_effects(g, w):
        assert {type(e) for e in g} == {type(e) for e in w}
        inputs = lambda effects: {e.input for e in effects if hasattr(e, "input")}
        assert inputs(g) == {names[v] for v in inputs(w)}

    for kind in ("constvars", "invars"):
        for g, w in zip(getattr(got, kind), getattr(want, kind), strict=True):
            same_atom(g, w)
    for g, w in zip(got.eqns, want.eqns, strict=True):
        assert g.primitive == w.primitive
        for a, b in zip(g.invars, w.invars, strict=True):
            same_atom(a, b)
        for a, b in zip(g.outvars, w.outvars, strict=True):
            same_atom(a, b)
        assert g.source_info is w.source_info
        assert g.ctx is w.ctx
        same_effects(g.effects, w.effects)
        assert g.params.keys() == w.params.keys()
        for name, value in w.params.items():
            same_param(g.params[name], value)
    for g, w in zip(got.outvars, want.outvars, strict=True):
        same_atom(g, w)
    same_effects(got.effects, want.effects)
    assert got.debug_info == want.debug_info


def same_param(got, want):
    if isinstance(want, (jex_core.ClosedJaxpr, jex_core.Jaxpr)):
        assert_same_jaxpr(got, want)
    elif isinstance(want, (tuple, list)):
        assert type(got) is type(want)
        for g, w in zip(got, want, strict=True):
            same_param(g, w)
    else:
        assert got is want or got == want


def written_anew(jaxpr):
    """Converted to a program and back, without reusing the original jaxprs."""
    program = read_jaxpr(jaxpr)
    forget(program, set())
    return write_program(program)


def forget(program, seen):
    if program in seen:
        return
    seen.add(program)
    convert._programs.pop(id(program.__dict__.pop("jaxpr", None)), None)  # another jaxpr may get this id
    for equation in program.equations:
        for label, nested in equation.programs:
            if label != compat.BODY:  # with another one it is another hi-primitive
                forget(nested, seen)


@pytest.mark.parametrize("case", [*CASES, *device_programs.CASES], ids=str)
def test_programs_of_the_table(case):
    with case.where():
        jaxpr = jax.make_jaxpr(case.fun)(*case.args)
        assert_same_jaxpr(written_anew(jaxpr), jaxpr)


def by_reference(x):
    ref = jax.new_ref(jnp.zeros(3))
    ref[0] = x[1]
    ref[...] += x
    return jax.freeze(ref)


PROGRAMS = {
    "references": by_reference,
    "debug_callback": lambda x: (jax.debug.print("x is {}", x), x * 2)[1],
    "ordered effect": lambda x: (jax.debug.print("x is {}", x, ordered=True), x * 2)[1],
    "keys": lambda x: x + jax.random.normal(jax.random.key(0), (3,)),
    "jit with options": jax.jit(lambda x, y: (x, jnp.sin(y)), keep_unused=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_are_in_no_table(name):
    args = (X, X + 1) if name == "jit with options" else (X,)
    jaxpr = jax.make_jaxpr(PROGRAMS[name])(*args)
    made = written_anew(jaxpr)
    assert_same_jaxpr(made, jaxpr)
    assert str(made) == str(jaxpr)
    jex_core.check_jaxpr(made.jaxpr)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = jex_core.jaxpr_as_fun(jaxpr)(*args)
        got = jex_core.jaxpr_as_fun(made)(*args)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def test_a_program_gives_back_the_jaxpr_it_was_read_from():
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) * 7)(1.0)
    program = read_jaxpr(jaxpr)
    assert program.jaxpr is jaxpr
    assert read_jaxpr(jaxpr) is program


def test_a_program_that_two_threads_write_has_one_jaxpr(monkeypatch):
    program = read_jaxpr(jax.make_jaxpr(jnp.sin)(X))
    fresh = replace(program)
    written = []

    def write_while_another_does(p):
        if not written:
            written.append(None)
            written.append(convert.kept_jaxpr(p))
        return write_program(p)

    monkeypatch.setattr(convert, "write_program", write_while_another_does)
    jaxpr = convert.kept_jaxpr(fresh)
    assert jaxpr is written[1] is fresh.jaxpr
    assert read_jaxpr(jaxpr) is fresh
    assert [id(jaxpr)] == [k for k, p in convert._programs.items() if p is fresh]


def test_nested_programs_are_programs():
    program = jaxviz.trace(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x))(1.0)
    (cond,) = [e for e in program.equations if e.primitive.name == "cond"]
    assert [label for label, _ in cond.programs] == ["branches[0]", "branches[1]"]
    assert all(isinstance(p, Program) for _, p in cond.programs)
    assert [depth for depth, _ in program.walk()].count(1) == 2


def test_equations_of_one_kind_share_an_operation():
    program = jaxviz.trace(lambda x: jnp.sin(jnp.sin(x)))(X)
    first, second = program.equations
    assert first.operation is second.operation
    assert first is not second


def test_a_literal_is_held_where_linearize_keeps_it():
    mul = jaxviz.trace(lambda x: x * 2.0)(X).equations[0]
    assert mul.invars[1].held
    plain = jaxviz.trace(lambda x: lax.mul(x, np.float32(2)))(jnp.float32(1))
    assert not any(getattr(a, "held", False) for e in plain.equations for a in e.invars)
