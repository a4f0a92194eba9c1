"""Every transform compared with jax's own, on every program of the shared table."""

import re
from collections import Counter
from functools import cache, partial

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from jax.extend import core as jex_core
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from programs import CASES, on_device, one_of_each

import jaxviz
from jaxviz.derivation import STAGES, type_name
from jaxviz.higher_order.typecheck import check_program
from jaxviz.ir.origin import ancestors

cases = pytest.mark.parametrize("case", CASES, ids=str)


ONE_OF_EACH = one_of_each(CASES)


def marked(cases, slow=None, third=None, each=1):
    """The quick tests compute with one program for each operation.

    Of the others, `slow` is the half that is also skipped with the newest JAX: the programs at even indices, or those at odd ones. `third`
    is the third that the short tests compute with, in addition to one for each operation; None means all.
    """
    others = [c for c in cases if c not in ONE_OF_EACH]
    left_out = [c for i, c in enumerate(c for c in cases if c in ONE_OF_EACH) if i % each]

    def marks(i, c):
        if c in others:
            yield pytest.mark.values
            if third is not None and c not in others[third::3]:
                yield pytest.mark.sweep
        if c in left_out:
            yield pytest.mark.sweep
        if i % 2 == slow:
            yield pytest.mark.slow

    return [pytest.param(c, marks=[*marks(i, c)]) for i, c in enumerate(cases)]


computed = pytest.mark.parametrize("case", marked(CASES), ids=str)


def assert_same(got, want):
    """Same structure, types (including weak ones) and values."""
    got_leaves, got_tree = jax.tree.flatten(got)
    want_leaves, want_tree = jax.tree.flatten(want)
    assert got_tree == want_tree
    for g, w in zip(got_leaves, want_leaves, strict=True):
        assert type_name(jax.typeof(g)) == type_name(jax.typeof(w))
        dtype = jax.typeof(w).dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jax.dtypes.float0:
            continue
        tolerance = 0.05 if dtype == jnp.bfloat16 else 2e-5
        np.testing.assert_allclose(np.asarray(g, dtype=_wide(w)), np.asarray(w, dtype=_wide(w)), tolerance, 1e-6)


both_ways = pytest.mark.parametrize(
    "run", [jax.jit, pytest.param(lambda f: f, marks=pytest.mark.sweep)], ids=["jit", "operation by operation"]
)


def side_by_side(of, *args, run=jax.jit):
    """The results of a function with our transforms and with JAX's, in one program, since compiling takes most of the time."""
    got, want = run(lambda *args: (of(jaxviz, *args), of(jax, *args)))(*args)
    assert_same(got, want)


def _wide(x):
    return np.complex128 if jnp.iscomplexobj(x) else np.float64


def seeds(tree, tangent):
    """A tangent (or cotangent) for every leaf: different numbers, float0 for integers."""

    def seed(i, x):
        aval = jax.typeof(x)
        dtype = (aval.to_tangent_aval() if tangent else aval.to_ct_aval()).dtype
        if dtype == jax.dtypes.float0:
            return np.zeros(aval.shape, dtype)
        return on_device((np.arange(1, aval.size + 1, dtype=np.float32).reshape(aval.shape) / 7 + i).astype(dtype))

    leaves, tree = jax.tree.flatten(tree)
    return jax.tree.unflatten(tree, [seed(i, x) for i, x in enumerate(leaves)])


@pytest.mark.parametrize("case", marked(CASES, 1, third=1), ids=str)
def test_jvp(case):
    tangents = seeds(case.args, tangent=True)
    if not case.forward:
        for jvp in (jax.jvp, jaxviz.jvp):
            with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
                jvp(case.fun, case.args, tangents)
        return
    assert_same(jaxviz.jvp(case.fun, case.args, tangents), jax.jvp(case.fun, case.args, tangents))


@pytest.mark.slow
# The vjp test below covers the rest.
@pytest.mark.parametrize("case", marked(CASES[::2], third=0), ids=str)
def test_linearize(case):
    tangents = seeds(case.args, tangent=True)
    y, lin = jaxviz.linearize(case.fun, *case.args)
    want, jax_lin = jax.linearize(case.fun, *case.args)
    assert_same(y, want)
    if case.forward:
        assert_same(lin(*tangents), jax_lin(*tangents))


@cache
def pulled(m, case):
    """The result of `vjp` of one of the modules, outside jit, as a user would call it: computed once for several tests."""
    return m.vjp(case.fun, *case.args)


def held(pull):
    """The types of the arrays that a returned function holds."""
    return Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull))


@computed
def test_vjp(case):
    y, pull = pulled(jaxviz, case)
    want, jax_pull = pulled(jax, case)
    assert_same(y, want)
    ct = seeds(want, tangent=False)
    assert_same(pull(ct), jax_pull(ct))


@computed
def test_residuals_are_what_jax_vjp_holds(case):
    # A report on a function that takes a gradient itself is about that gradient; a derivation is of the function.
    found = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args)))).residuals
    assert Counter(type_name(r.aval) for r in found) == held(pulled(jax, case)[1])


def test_weak_types_are_those_of_jaxs_tracing():
    """For a Python number to a traced integer power, JAX saves a weak type outside jit, and a strong one inside."""

    def power(x, n):
        return x**n

    derivation = jaxviz.derive(power, 3.0, 2, argnums=(0, 1))
    assert derivation.check().agrees
    _, pull = jax.vjp(power, 3.0, 2)
    assert [x.shape for x in jax.tree.leaves(pull)] == [r.aval.shape for r in derivation.residuals]


@pytest.mark.parametrize("case", marked(CASES, third=1), ids=str)
def test_the_returned_function_holds_what_jaxs_does(case):
    assert held(pulled(jaxviz, case)[1]) == held(pulled(jax, case)[1])


REMATS = [case for case in CASES if "remat" in case.name or "checkpoint" in case.name]


@pytest.mark.parametrize("case", REMATS, ids=str)
def test_a_checkpoint_is_given_to_xla_as_jax_gives_it(case):
    """Its saved values are rounded for both passes, and recomputation is kept apart from the forward pass."""

    def marks(m):
        def pulled(*args):
            y, pull = m.vjp(case.fun, *args)
            return pull(seeds(y, tangent=False))

        text = str(jax.make_jaxpr(pulled)(*case.args))
        return Counter(re.findall(r"reduce_precision|differentiated=True", text))

    assert marks(jaxviz) == marks(jax)


@cases
def test_check_agrees(case):
    derivation = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
    check = derivation.check()
    assert check.agrees, check
    assert check.summary.startswith(f"residuals as in JAX {jax.__version__}: ")


@cases
def test_derived_programs_are_well_typed_and_linear_where_they_should_be(case):
    d = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
    for stage in STAGES:
        check_program(getattr(d, stage))
        jex_core.check_jaxpr(getattr(d, stage).jaxpr.jaxpr)
    check_program(d.linear, [False] * d.n_residuals + [True] * sum(d.nonzeros))
    check_program(d.backward, [False] * d.n_residuals + [True] * len(d.linear.outvars))


@cases
def test_every_derived_equation_leads_back_to_the_function(case):
    d = jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args))))
    own = {e for _, e in d.primal.walk()}
    shown = {e for stage in STAGES for _, e in getattr(d, stage).walk()}

    def leads_back(equation):
        for ancestor in ancestors(equation):
            if ancestor in shown:  # between two stages an equation may have been in other programs
                assert equation in d.links[ancestor]
                equation = ancestor
        # Cotangents of a value that is returned more than once are summed at the start, for no equation; a zero or dummy is emitted because
        # there is no equation for the value.
        of_none = ("accumulation", "zero", "dummy")
        return equation in own or (equation.origin is not None and equation.origin.role in of_none)

    def check(program, of_an_equation_that_does):
        for equation in program.equations:
            back = leads_back(equation)
            # What a rule itself calls, such as the `where` in relu's, belongs to the rule's equation.
            assert back or of_an_equation_that_does
            for _, nested in equation.programs:
                check(nested, back or of_an_equation_that_does)

    for stage in STAGES[1:]:
        check(getattr(d, stage), False)


@cases
def test_a_program_reads_as_jax_prints_it(case):
    try:
        want = str(jax.make_jaxpr(case.fun)(*case.args))
    except TypeError:
        pytest.fail("every program of the table can be traced")
    assert str(jaxviz.trace(case.fun)(*case.args)) == want


@pytest.mark.parametrize("case", marked(CASES, third=2, each=2), ids=str)
def test_a_program_or_a_jaxpr_can_be_derived_itself(case):
    program = jaxviz.trace(case.fun)(*case.args)
    everything = tuple(range(len(program.invars)))
    d = jaxviz.derive(program, argnums=everything)
    assert d.check().agrees
    closed = jax.make_jaxpr(case.fun)(*case.args)
    assert isinstance(closed, ClosedJaxpr)
    of_jaxpr = jaxviz.derive(closed, argnums=everything)
    assert of_jaxpr.check().agrees
    _, pull = jax.vjp(jaxpr_as_fun(closed), *jax.tree.leaves(case.args))
    assert len(of_jaxpr.residuals) == len(jax.tree.leaves(pull))


def scalar(case):
    """The case's function, returning the sum of its floating-point results."""

    def f(*args):
        leaves = [x for x in jax.tree.leaves(case.fun(*args)) if jnp.issubdtype(jnp.result_type(x), jnp.inexact)]
        return sum(jnp.sum(jnp.real(x) * 0.5).astype(jnp.float32) for x in leaves)

    return f


FLOAT_CASES = [
    c
    for c in CASES
    if all(jnp.issubdtype(jnp.result_type(x), jnp.floating) for x in jax.tree.leaves(c.args[0]))
    and c.name != "no_elements"
]


@both_ways
@pytest.mark.parametrize("case", marked(FLOAT_CASES, 0, third=0), ids=str)  # the operations of `test_vjp`, and a sum
def test_grad_and_value(case, run):
    side_by_side(lambda m, *args: m.value_and_grad(scalar(case))(*args), *case.args, run=run)


# Compiling takes most of the time of the next two tests: every program is in one of them.
@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("case", marked(FLOAT_CASES[::2], third=1, each=2), ids=str)
def test_composed_with_jit_and_vmap(case, run):
    f = scalar(case)
    batch = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x), jnp.asarray(x) * 0.9]), case.args[0])
    in_axes = (0, *([None] * (len(case.args) - 1)))

    def of(m, batch, *args):
        plain = m.grad(f)(*args), jax.jit(m.grad(f))(*args), m.grad(jax.jit(f))(*args)
        return *plain, jax.vmap(m.grad(f), in_axes)(batch, *args[1:]) if case.vmaps else ()

    side_by_side(of, batch, *case.args, run=run)


@pytest.mark.slow
@both_ways
@pytest.mark.parametrize("case", marked(FLOAT_CASES[1::2], third=2, each=2), ids=str)
def test_second_derivatives_every_way(case, run):
    f = scalar(case)
    point = case.args[0]
    tangent = seeds(point, tangent=True)
    mixed = case.fun.__module__ != "nested_programs"  # ours of jax's and jax's of ours: the plain programs are enough
    ways = ((jaxviz, jaxviz), (jax, jaxviz), (jaxviz, jax))[: 3 if mixed else 1]

    def gradient(m, rest):
        return m.grad(lambda y: f(y, *rest))

    def forward_over_reverse(outer, inner, x, *rest):
        return outer.jvp(gradient(inner, rest), (x,), (tangent,))[1]

    def reverse_over_reverse(outer, inner, x, *rest):
        def along(x):
            found = jax.tree.leaves(gradient(inner, rest)(x))
            return sum(jnp.vdot(a, b) for a, b in zip(found, jax.tree.leaves(tangent), strict=True))

        return outer.grad(along)(x)

    for derivative in (forward_over_reverse, reverse_over_reverse):
        every_way = lambda *args: [derivative(*way, *args) for way in ((jax, jax), *ways)]
        try:
            want, *found = run(every_way)(*case.args)
        except Exception as error:  # JAX has no second derivative for offloading and for an optimized remat
            assert derivative is reverse_over_reverse
            for m in (jax, jaxviz):
                with pytest.raises(type(error)):
                    jax.eval_shape(partial(derivative, m, m), *case.args)
            continue
        for got in found:
            jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, 2e-4, 1e-4), got, want)


def closing_over(kind, depth):
    """A function whose custom rule closes over a value computed from constants, directly or through another function."""

    def f(x):
        y = jnp.sin(2.0) * jnp.ones(3)
        times_y = (lambda v: v * y) if depth == 0 else (lambda v: (lambda w: w * y)(v))
        if kind == "jvp":
            g = jax.custom_jvp(lambda x: times_y(jnp.sin(x)))
            g.defjvp(lambda p, t: (g(p[0]), times_y(3.0 * t[0])))
        else:
            g = jax.custom_vjp(lambda x: times_y(jnp.sin(x)))
            g.defvjp(lambda x: (g(x), x), lambda x, ct: (times_y(ct) * 3.0 * x,))
        return g(x) * x

    return f


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_custom_rule_may_close_over_what_depends_on_constants_alone(kind, depth):
    f = closing_over(kind, depth)
    x = jnp.linspace(0.5, 1.5, 3)
    want, jax_pull = jax.vjp(f, x)
    got, pull = jaxviz.vjp(f, x)
    assert_same(got, want)
    assert_same(pull(want), jax_pull(want))
    assert len(jax.tree.leaves(pull)) == len(jax.tree.leaves(jax_pull))
    scalar = lambda x: f(x).sum()
    assert_same(jax.jit(jaxviz.grad(scalar))(x), jax.jit(jax.grad(scalar))(x))
    assert jaxviz.derive(f, x).check().agrees
