"""The laws: what holds of every program, under every transform. `test_matrix.py` says which programs each is tried on.

A law takes a program and fails if the law does not hold of it. JAX is the oracle: values, derivatives, what is saved,
types and printed text are JAX's own.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core
from nestings import is_nested, total
from programs import Case, on_device

import jaxviz
from jaxviz.derivation import STAGES, type_name
from jaxviz.features.remat import left_out
from jaxviz.higher_order import is_scan, of
from jaxviz.higher_order.typecheck import check_program
from jaxviz.ir.convert import read_jaxpr, write_program
from jaxviz.ir.emit import as_function
from jaxviz.ir.origin import ancestors, own_line
from jaxviz.transforms.dce import dce_program

# --- what they compare ------------------------------------------------------------------------------------------------


def assert_same(got, want, rtol=2e-5):
    """Same structure, types (including weak ones) and values."""
    got_leaves, got_tree = jax.tree.flatten(got)
    want_leaves, want_tree = jax.tree.flatten(want)
    assert got_tree == want_tree
    for g, w in zip(got_leaves, want_leaves, strict=True):
        assert type_name(jax.typeof(g)) == type_name(jax.typeof(w))
        dtype = jax.typeof(w).dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jax.dtypes.float0:
            continue
        wide = np.complex128 if jnp.iscomplexobj(w) else np.float64
        tolerance = 0.05 if dtype == jnp.bfloat16 else rtol
        np.testing.assert_allclose(
            np.asarray(g, wide), np.asarray(w, wide), tolerance, 1e-6 if rtol <= 2e-5 else rtol / 10
        )


def side_by_side(of, *args, run=jax.jit, rtol=2e-5):
    """The results of a function with our transforms and with JAX's, in one program: compiling takes most time."""
    got, want = run(lambda *args: (of(jaxviz, *args), of(jax, *args)))(*args)
    assert_same(got, want, rtol)


def held(pull):
    """The types of the arrays that a returned function holds."""
    return Counter(type_name(jax.typeof(x)) for x in jax.tree.leaves(pull))


def seeds(tree, tangent):
    """A tangent (or cotangent) for every leaf: different numbers, float0 for integers, laid out as its type says."""

    def seed(i, x):
        aval = jax.typeof(x)
        dtype = (aval.to_tangent_aval() if tangent else aval.to_ct_aval()).dtype
        if dtype == jax.dtypes.float0:
            return np.zeros(aval.shape, dtype)
        made = on_device((np.arange(1, aval.size + 1, dtype=np.float32).reshape(aval.shape) / 7 + i).astype(dtype))
        is_explicit = jax.sharding.AxisType.Explicit in aval.sharding.mesh.axis_types
        return jax.device_put(made, aval.sharding.spec) if is_explicit else made

    leaves, tree = jax.tree.flatten(tree)
    return jax.tree.unflatten(tree, [seed(i, x) for i, x in enumerate(leaves)])


def everything(case: Case) -> tuple[int, ...]:
    return tuple(range(len(case.args)))


@lru_cache(8)
def pulled(m, case):
    """The result of `vjp` of one of the modules, outside jit, as users call it: computed once for several laws."""
    return m.vjp(case.fun, *case.args)


@lru_cache(4)
def derived(case):
    return jaxviz.derive(case.fun, *case.args, argnums=everything(case))


def scalar(case):
    """The program, returning the sum of its floating-point results."""
    return lambda *args: total(case, args)


def floats(case, kind=jnp.floating):
    """The arguments that are of real numbers only, or of another kind of numbers."""
    of_kind = lambda x: jnp.issubdtype(jnp.result_type(x), kind)
    return tuple(i for i, a in enumerate(case.args) if all(map(of_kind, jax.tree.leaves(a))))


def is_real(case):
    return 0 in floats(case) and case.name != "no_elements"


def stacked(args):
    """Two examples of the arguments, the second different from the first."""

    def pair(x):
        x = jnp.asarray(x)
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            return jnp.stack([x, x])
        return jnp.stack([x, x[..., ::-1] if x.ndim else 2 * x])

    return jax.tree.map(pair, args)


def operations(fun, *args):
    """How often each primitive occurs in a function's jaxpr, including nested ones."""
    return sorted(re.findall(r"= ([a-z_]+)[\[ ]", str(jax.make_jaxpr(fun)(*args))))


# --- values and derivatives, as a user calls them ---------------------------------------------------------------------


def forward_mode(case):
    tangents = seeds(case.args, tangent=True)
    if case.forward:
        of = lambda m: m.jvp(case.fun, case.args, tangents)
        return assert_same(of(jaxviz), of(jax), case.rtol)
    for m in (jax, jaxviz):
        with pytest.raises(TypeError, match="can't apply forward-mode autodiff"):
            m.jvp(case.fun, case.args, tangents)


def linearized(case):
    tangents = seeds(case.args, tangent=True)
    (y, lin), (want, jax_lin) = (m.linearize(case.fun, *case.args) for m in (jaxviz, jax))
    assert_same(y, want, case.rtol)
    if case.forward:
        assert_same(lin(*tangents), jax_lin(*tangents), case.rtol)


def value_and_cotangents(case):
    (y, pull), (want, jax_pull) = pulled(jaxviz, case), pulled(jax, case)
    assert_same(y, want, case.rtol)
    ct = seeds(want, tangent=False)
    assert_same(pull(ct), jax_pull(ct), case.rtol)


def no_reverse_mode(case):
    """A loop that JAX refuses to differentiate backwards is refused in its words."""
    said = []
    for m in (jax, jaxviz):
        with pytest.raises(ValueError, match="Reverse-mode differentiation does not work") as caught:
            m.vjp(case.fun, *case.args)[1](seeds(case.fun(*case.args), tangent=False))
        said.append(str(caught.value))
    assert said[0].splitlines()[0] in said[1]


# --- values and derivatives in one compiled program -------------------------------------------------------------------


def every_derivative(case, run=jax.jit):
    """Value, cotangents, tangents and the linear function, and what is held."""
    tangents = seeds(case.args, tangent=True)
    ct = seeds(jax.eval_shape(case.fun, *case.args), tangent=False)
    kept = []

    def of(m, args, tangents, ct):
        y, pull = m.vjp(case.fun, *args)
        kept.append(held(pull))
        found = [y, pull(ct)]
        if case.forward:
            found += [m.jvp(case.fun, args, tangents), m.linearize(case.fun, *args)[1](*tangents)]
        return found

    side_by_side(of, case.args, tangents, ct, run=run)
    assert kept[0] == kept[1]


def value_and_gradient(case, run=jax.jit):
    side_by_side(lambda m, *args: m.value_and_grad(scalar(case))(*args), *case.args, run=run, rtol=case.rtol)


def composed_with_jit_and_vmap(case, run=jax.jit):
    f = scalar(case)
    batch = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x), jnp.asarray(x) * 0.9]), case.args[0])
    in_axes = (0, *([None] * (len(case.args) - 1)))

    def of(m, batch, *args):
        plain = m.grad(f)(*args), jax.jit(m.grad(f))(*args), m.grad(jax.jit(f))(*args)
        return *plain, jax.vmap(m.grad(f), in_axes)(batch, *args[1:]) if case.vmaps else ()

    side_by_side(of, batch, *case.args, run=run)


def second_derivatives_every_way(case, run=jax.jit):
    f, point = scalar(case), case.args[0]
    tangent = seeds(point, tangent=True)
    # Ours of jax's and jax's of ours: the plain programs are enough.
    ways = ((jaxviz, jaxviz), (jax, jaxviz), (jaxviz, jax))[: 1 if is_nested(case) else 3]

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


def mapped(case, run=jax.jit):
    """Under `vmap`, with as many operations as JAX's."""
    args = stacked(case.args)
    side_by_side(lambda m, *args: m.vmap(case.fun)(*args), *args, run=run)
    assert operations(jaxviz.vmap(case.fun), *args) == operations(jax.vmap(case.fun), *args)


def mapped_gradient(case, run=jax.jit):
    """A gradient for each example, and the gradient of what is mapped."""
    f, argnums = scalar(case), floats(case, jnp.inexact)
    summed = lambda m: lambda *args: jnp.sum(m.vmap(f)(*args))
    of = lambda m, *args: (m.vmap(m.grad(f, argnums))(*args), m.grad(summed(m), argnums)(*args))
    side_by_side(of, *stacked(case.args), run=run)


def without_jit(law):
    """A law on functions that are called operation by operation."""

    def of_a_case(case):
        law(case, run=lambda f: f)

    of_a_case.__name__ = f"{law.__name__}_without_jit"
    return of_a_case


# --- what is saved ----------------------------------------------------------------------------------------------------


def residuals(case):
    """As JAX saves them, each with a line; the report has a row for each."""
    found = derived(case).residuals
    check = derived(case).check()
    assert check.agrees, check
    assert check.summary.startswith(f"residuals as in JAX {jax.__version__}: ")
    assert not found or len(found.table(limit=None).splitlines()) > len(found.groups)
    assert all(r.location.line > 0 for r in found)


def residuals_are_what_jax_vjp_holds(case):
    # A report on a function that takes a gradient itself is about that gradient; a derivation is of the function.
    assert Counter(type_name(r.aval) for r in derived(case).residuals) == held(pulled(jax, case)[1])


def the_returned_function_holds_what_jaxs_does(case):
    assert held(pulled(jaxviz, case)[1]) == held(pulled(jax, case)[1])


def a_checkpoint_is_given_to_xla_as_jax_gives_it(case):
    """Its saved values are rounded for both passes, and recomputation is kept apart from the forward pass."""

    def marks(m):
        def pulled(*args):
            y, pull = m.vjp(case.fun, *args)
            return pull(seeds(y, tangent=False))

        return Counter(re.findall(r"reduce_precision|differentiated=True", str(jax.make_jaxpr(pulled)(*case.args))))

    assert marks(jaxviz) == marks(jax)


def what_jax_derives(program, nonzeros):
    """The types that `jax.vjp` saves for a program, and the operations of the gradient that JAX makes of it, without
    names and the boundaries of checkpoints, which compute nothing."""
    fun = as_function(program)

    def of_active(*inputs):
        active = [x for x, nz in zip(inputs, nonzeros, strict=True) if nz]

        def called(*active):
            rest = iter(active)
            return fun(*(next(rest) if nz else x for x, nz in zip(inputs, nonzeros, strict=True)))

        y, pull = jax.vjp(called, *active)
        return jax.tree.leaves(pull), (y, pull(seeds(y, tangent=False)))

    saved = jax.make_jaxpr(lambda *inputs: of_active(*inputs)[0])(*program.in_avals).out_avals
    gradient = read_jaxpr(jax.make_jaxpr(lambda *inputs: of_active(*inputs)[1])(*program.in_avals))
    return Counter(map(type_name, saved)), Counter(_computed(dce_program(gradient)[0]))


def _computed(program, lengths=()):
    for e in program.equations:
        if not e.programs and e.primitive.name != "name":
            yield lengths, e.primitive.name, tuple(map(str, e.operation.out_avals))
        for _, inner in e.programs:
            yield from _computed(inner, (*lengths, e.params["length"]) if is_scan(e) else lengths)


def what_changes_nothing_changes_nothing_in_jax(case):
    """Each checkpoint, policy and name that can be left out here can be in JAX, and no other."""
    d = derived(case)
    checkpoints = dict.fromkeys(e for _, e in d.primal.walk() if of(e).is_checkpoint)
    names = dict.fromkeys(e.params["name"] for _, e in d.primal.walk() if e.primitive.name == "name")
    without = [left_out.without_checkpoints(d, [e]) for e in checkpoints]
    without += [left_out.without_policy(d, [e]) for e in checkpoints if e.params["policy"] is not None]
    without += [left_out.without_names(d, [name]) for name in names]
    parts, theirs = left_out.Derived(d).parts, without and what_jax_derives(d.primal, d.nonzeros)
    for w in without:
        assert (w.parts == parts) == (what_jax_derives(w.derivation.primal, d.nonzeros) == theirs)


# --- the programs -----------------------------------------------------------------------------------------------------


def well_typed_and_linear(case):
    d = derived(case)
    for stage in STAGES:
        check_program(getattr(d, stage))
        jex_core.check_jaxpr(getattr(d, stage).jaxpr.jaxpr)
    check_program(d.linear, [False] * d.n_residuals + [True] * sum(d.nonzeros))
    check_program(d.backward, [False] * d.n_residuals + [True] * len(d.linear.outvars))


def every_derived_equation_leads_back_to_the_function(case):
    d = derived(case)
    own = {e for _, e in d.primal.walk()}
    shown = {e for stage in STAGES for _, e in getattr(d, stage).walk()}

    def leads_back(equation):
        for ancestor in ancestors(equation):
            if ancestor in shown:  # between two stages an equation may have been in other programs
                assert equation in d.links[ancestor]
                equation = ancestor
        # Cotangents of a value that is returned more than once are summed at the start, for no equation; a zero or
        # dummy is emitted because there is no equation for the value.
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


def reasons_name_the_lines_that_read_a_value_again(case):
    """Those of the function's own equations from which the readers in the backward program come, and no others, with
    whether it is the operation that is computed again, or its derivative."""

    def roots(reader):
        return [[e, *ancestors(e)][-1] for e in (reader.equation, *reversed(reader.within))]

    def line_of(reader):
        """That of the function's equation, and not a rule's, nor what jit compiled for another line."""
        return next(at.line for e in roots(reader) if (at := own_line(e.source)) is not None)

    def is_again(reader):
        return any(e.origin is not None and e.origin.role == "recomputation" for e in (reader.equation, *reader.within))

    def uses(reader):
        """What may be said of it: a custom rule computes the function and its derivative."""
        root = roots(reader)[0]
        if not is_again(reader):
            return {"gradient"}
        if any(of(e).has_custom_rule for e in roots(reader)):
            return {"gradient", "recompute"}
        return {"recompute" if reader.equation.operation is root.operation or root.programs else "gradient"}

    for r in derived(case).residuals:
        assert r.why in r.reason
        assert ("nothing reads it again" in r.why) == (not r.backward)
        if r.decision == "saved" and r.backward:
            said = r.why.partition("; ")[0]  # without the dummies of other branches
            lines = {("gradient" if s else "recompute", int(n)) for n, s in re.findall(r"line (\d+)('s)?", said)}
            read = [{(use, line_of(reader)) for use in uses(reader)} for reader in r.backward]
            assert lines <= set().union(*read), said
            assert "more place" in said or all(lines & one for one in read), said
        for derivative, name in re.findall(r"([\w-]+)'s derivative [^;]*; read by the `([^`]+)` that forms", r.reason):
            readers = [b for b in r.backward if b.equation.primitive.name == name and not is_again(b)]
            assert any(derivative in {e.primitive.name for e in roots(b)} for b in readers), r.reason


def reads_as_jax_prints_it(case):
    assert str(jaxviz.trace(case.fun)(*case.args)) == str(jax.make_jaxpr(case.fun)(*case.args))


def written_losslessly(case):
    """Every stage, as a jaxpr that is read again."""
    for stage in STAGES:
        made = getattr(derived(case), stage)
        assert str(read_jaxpr(write_program(made))) == str(made)


def derived_from_a_program_or_a_jaxpr(case):
    program = jaxviz.trace(case.fun)(*case.args)
    argnums = tuple(range(len(program.invars)))
    assert jaxviz.derive(program, argnums=argnums).check().agrees
    closed = jax.make_jaxpr(case.fun)(*case.args)
    assert isinstance(closed, jex_core.ClosedJaxpr)
    of_jaxpr = jaxviz.derive(closed, argnums=argnums)
    assert of_jaxpr.check().agrees
    _, pull = jax.vjp(jex_core.jaxpr_as_fun(closed), *jax.tree.leaves(case.args))
    assert len(of_jaxpr.residuals) == len(jax.tree.leaves(pull))
