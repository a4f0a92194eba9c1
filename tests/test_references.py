"""Mutable references: read and written as often as in JAX, refused where not followed, left alone by reports."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from short_runs import short, short_rows

import jaxviz
from jaxviz.ir import compat
from jaxviz.transforms.dce import dce_program

X = jnp.linspace(0.5, 2.5, 4)
GLOBAL = jax.new_ref(jnp.float32(0.0))
everything = jax.checkpoint_policies.everything_saveable


def counting(x, count):
    """Adds one to the reference and computes with what is then in it."""
    count[...] += 1.0
    return jnp.sin(x * count[...])


def counting_globally(x, _):
    return counting(x, GLOBAL)


def adding(x, count):
    jax.ref.addupdate(count, (), 1.0)
    return jnp.sin(x * count[...])


def only_writing(x, count):
    count[...] += 1.0
    return jnp.sin(x)


def stateful_dropout(x, count):
    count[...] += 1.0
    key = jax.random.fold_in(jax.random.key(0), count[...].astype(int))
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jnp.tanh(x), 0.0) + x


def using_a_rule_that_closes_over_a_value(x, ref):
    scale = jnp.sin(2.0) + 1.0
    last = lax.scan(lambda h, _: (h * counting(1.0, ref), None), 1.0, None, length=3)[0]
    count = ref[...]

    @jax.custom_jvp
    def scaled(x):
        return x * scale * count

    @scaled.defjvp
    def _(primals, tangents):
        return primals[0] * scale * count, tangents[0] * scale * count

    return scaled(x) * last


@jax.custom_jvp
def logged(x):
    return jnp.sin(x)


@logged.defjvp
def _logged_jvp(primals, tangents):
    GLOBAL[...] += 1.0
    return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0] * GLOBAL[...]


def in_scan(f):
    return lambda x, r: lax.scan(lambda h, _: (f(h, r), None), x, None, length=3)[0]


def in_fori(f):
    return lambda x, r: lax.fori_loop(0, 3, lambda _, h: f(h, r), x)


def in_jit(f):
    return lambda x, r: jax.jit(f)(x, r)


def closed_over_by_jit(f):
    return lambda x, r: jax.jit(lambda x: f(x, r))(x)


def in_checkpoint(f):
    return lambda x, r: jax.checkpoint(f)(x, r)


def in_checkpoint_of_all(f):
    return lambda x, r: jax.checkpoint(f, policy=everything)(x, r)


def in_cond(f):
    return lambda x, r: lax.cond(x[0] > 0, lambda x: f(x, r), lambda x: x, x)


HOLDERS = (in_scan, in_fori, in_jit, closed_over_by_jit, in_checkpoint, in_checkpoint_of_all, in_cond)
PROGRAMS = {
    **{f"{f.__name__}-{h.__name__}": h(f) for f in (counting, counting_globally, only_writing) for h in HOLDERS},
    **{
        f"counting-{inner.__name__}-{outer.__name__}": outer(inner(counting))
        for inner, outer in itertools.product((in_scan, closed_over_by_jit, in_checkpoint, in_checkpoint_of_all),
                                              repeat=2)
    },
    "using_a_rule_that_closes_over_a_value": using_a_rule_that_closes_over_a_value,
    "stateful_dropout": in_scan(stateful_dropout),
    "three-holders": in_checkpoint_of_all(in_scan(closed_over_by_jit(counting))),
}  # fmt: skip
WRITTEN_BY_A_RULE = {
    "logged": lambda x, _: logged(x),
    **{f"logged-{h.__name__}": h(lambda x, _: logged(x)) for h in (in_jit, in_checkpoint)},
    "logged-in_jit-in_jit": in_jit(in_jit(lambda x, _: logged(x))),
    "logged-in_jit-in_checkpoint": in_checkpoint(in_jit(lambda x, _: logged(x))),
}


def fresh():
    GLOBAL[...] = 0.0
    return jax.new_ref(jnp.float32(0.0))


def run(transform, fun):
    """The results of a transformed function, and what is then in the references."""
    count = fresh()
    results = jax.tree.map(np.asarray, transform(lambda x, r: fun(x, r).sum())(X, count))
    return results, float(count[...]), float(GLOBAL[...])


def same(a, b):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b)


MODES = {
    "eager": lambda m: m.value_and_grad,
    "jit": lambda m: lambda f: jax.jit(m.value_and_grad(f)),
    "forward": lambda m: lambda f: lambda x, r: m.jvp(lambda x: f(x, r), (x,), (jnp.ones_like(x),)),
}
NEEDS_VALUES = ("jit", "using_a_rule_that_closes_over_a_value")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "name"),
    short_rows(
        [(mode, name) for name in (*PROGRAMS, *WRITTEN_BY_A_RULE) for mode in MODES if (mode, name) != NEEDS_VALUES], 2
    ),
)
def test_a_derivative_reads_and_writes_as_often_as_jax(mode, name):
    fun = {**PROGRAMS, **WRITTEN_BY_A_RULE}[name]
    same(run(MODES[mode](jaxviz), fun), run(MODES[mode](jax), fun))


@pytest.mark.slow
@pytest.mark.parametrize("holder", [h for h in HOLDERS if h is not in_checkpoint_of_all])  # which repeats an addition
def test_adding_to_a_reference_is_like_writing_the_sum(holder):
    """JAX 0.10.2 passes its own rule for `addupdate` a symbolic zero, which it does not take."""
    same(run(jaxviz.value_and_grad, holder(adding)), run(jax.value_and_grad, holder(counting)))


@pytest.mark.slow
@pytest.mark.parametrize("fun", PROGRAMS.values(), ids=list(PROGRAMS))
def test_residuals_are_those_of_jax(fun):
    count = fresh()
    derivation = jaxviz.derive(lambda x, r: fun(x, r).sum(), X, count)
    check = derivation.check(values=False)
    assert check, check
    assert "not opened" not in str(check)
    assert float(count[...]) == float(GLOBAL[...]) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("start", [lambda x: 2.0 * x, jnp.ones_like])
def test_a_sum_in_a_while_loop_whose_tangent_needs_no_value(start):
    """JAX 0.12 leaves the sum out of the loop of tangents, and do not save what it reads."""

    def f(x):
        own = jax.new_ref(start(x))
        add = lambda carry: (carry[0] + 1, carry[1] + own[...])
        return jnp.sum(jnp.sin(x) * lax.while_loop(lambda carry: carry[0] < 3, add, (0, jnp.zeros_like(x)))[1])

    derivation = jaxviz.derive(f, X)
    check = derivation.check(values=False)
    assert check, check
    assert len([v for v in derivation.linear.invars if compat.is_ref(v.aval)]) == (not compat.SHRINKS_WHILE)


@pytest.mark.slow
def test_an_index_is_an_array_without_any_jit():
    def f(x):
        h = jax.new_ref(jnp.stack([x, jnp.sin(x)]))
        h[0] = h[1] * 2.0
        return jnp.sum(h[...] ** 2)

    kept = jaxviz.residuals(f, X)
    assert sorted(float(r.atom.val) for r in kept if r.kind == "literal") == [0, 1, 2]
    assert [float(r.atom.val) for found in kept.forced for r in found.residuals] == [2]  # that of jnp.multiply


def test_check_compares_what_is_in_the_references():
    count = fresh()
    written = jaxviz.derive(lambda x, r: in_scan(only_writing)(x, r).sum(), X, count)
    assert written.check()
    only_read = jaxviz.derive(lambda x, r: jnp.sin(jnp.sin(jnp.sin(x))).sum() + 0 * r[...], X, count)
    assert written.find_wrong_values(only_read.forward) == [
        "a reference of type float32[]: JAX computes 3, the forward program 0"
    ]


# --- references that a loop's body makes ------------------------------------------------------------------------------


def made_in_body(h, i):
    total = jax.new_ref(jnp.float32(2.0))
    total[...] += i
    return jnp.sin(h * total[...])


def made_in_jit(h, i):
    return jax.jit(made_in_body)(h, i)


def used_in_jit(h, i):
    total = jax.new_ref(jnp.float32(2.0))

    @jax.jit
    def inner(h):
        total[...] += i
        return jnp.sin(h * total[...])

    return inner(h)


def two_of_them(h, i):
    one = jax.new_ref(jnp.float32(1.0))
    other = jax.new_ref(jnp.float32(0.0))
    one[...] += 1.0
    other[...] += one[...] + i
    return jnp.sin(h * other[...])


def made_in_checkpoint(h, i):
    return jax.checkpoint(made_in_body)(h, i)


@pytest.mark.slow
@pytest.mark.parametrize("body", [made_in_body, made_in_jit, used_in_jit, two_of_them, made_in_checkpoint])
def test_each_iteration_makes_its_own_reference(body):
    """JAX 0.10.2 to 0.12 make one for the whole loop where the body makes it from constants: another gradient."""
    loop = lambda x: lax.scan(lambda h, i: (body(h, i), None), x, jnp.arange(3.0))[0].sum()

    def without_reference(x):
        for i in range(3):
            x = jnp.sin(x * (2.0 + i))
        return x.sum()

    same(jaxviz.value_and_grad(loop)(X), jax.value_and_grad(without_reference)(X))
    same(loop(X), without_reference(X))


# --- checkpoints, branches, vmap --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reference_that_is_not_read_again_is_saved():
    """JAX's types of both kinds are equal, and so are the operations on them but for the kind."""
    results = []
    for kind in (None, "no_grad_no_remat", None):
        for grad in (jax.grad, jaxviz.grad):
            ref = jax.new_ref(jnp.float32(1.0), kind=kind)
            results.append((grad(jax.checkpoint(lambda x, r: counting(x, r).sum()))(X, ref), ref[...]))
    same(results[1::2], results[::2])
    assert float(results[1][1]) == 3.0
    assert float(results[3][1]) == 2.0


@pytest.mark.slow
def test_a_recomputed_branch_does_not_write_again():
    fun = in_cond(counting)
    recomputes = lambda f: jaxviz.value_and_grad(f, cond_residuals="recompute")
    same(run(recomputes, fun), run(jax.value_and_grad, fun))


@pytest.mark.slow
def test_what_only_reads_can_be_mapped():
    ref = jax.new_ref(jnp.float32(3.0))
    reads = lambda x: lax.scan(lambda h, _: (jnp.sin(h * ref[...]), None), x, None, length=3)[0]
    same(jaxviz.vmap(reads)(X), jax.vmap(reads)(X))
    same(jaxviz.vmap(jaxviz.grad(reads))(X), jax.vmap(jax.grad(reads))(X))


@pytest.mark.slow
def test_a_reference_in_a_mapped_function_can_be_its_own():
    def own(x):
        ref = jax.new_ref(jnp.float32(1.0))
        ref[...] += 1.0
        return x * ref[...]

    same(jaxviz.vmap(own)(X), jax.vmap(own)(X))


def test_effects_follow_their_operands():
    program = jaxviz.trace(lambda unused, x, r: counting(x, r))(X, X, fresh())
    smaller, kept = dce_program(program, keep_inputs=[False] * 3)
    assert kept == (False, True, True)
    assert {e.input for e in program.effects} == {2}
    assert {e.input for e in smaller.effects} == {1}


# --- reports ----------------------------------------------------------------------------------------------------------


def branching(x, count):
    count[...] += 1.0
    GLOBAL[...] += 1.0
    if count[...] > 0.5 and x[0] > 0:  # Python reads a value
        return jnp.sin(x * count[...] * GLOBAL[...]).sum()
    return x.sum()


def straight(x, count):
    return (counting(x, count) * counting(x, GLOBAL)).sum()


def stepped(f, *args):
    stepped_through(jaxviz.step(f, *args))


def program_stepped(f, *args):
    """References are inputs of a program, but constants of a function that is not differentiated in them."""
    stepped_through(jaxviz.step(jaxviz.trace(f)(*args), *args))


def stepped_through(stepper):
    stepper.run()
    stepper.back()
    stepper.next()
    stepper.run()


REPORTS = {
    "residuals": jaxviz.residuals, "memory": jaxviz.memory, "lint": jaxviz.lint, "draw": jaxviz.draw,
    "explore": jaxviz.explore,
    "compiled_memory": jaxviz.compiled_memory, "policies": jaxviz.policies, "plan_remat": jaxviz.plan_remat,
    "trace": lambda f, *args: jaxviz.trace(f)(*args),
    "step": stepped, "step of a program": program_stepped, "check": lambda f, *args: jaxviz.derive(f, *args).check(),
    "profile": lambda f, *args: jaxviz.profile(f, *args, repeat=2),
    "measure": lambda f, *args: jaxviz.cost(f, *args).measure(repeat=2),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("report", short(list(REPORTS.values()), 2), ids=list(REPORTS))
@pytest.mark.parametrize("fun", [straight, branching, jax.jit(straight)], ids=["straight", "branching", "jitted"])
def test_a_report_leaves_the_references_as_they_were(fun, report):
    count = fresh()
    if fun is branching and report is jaxviz.plan_remat:
        with pytest.raises(ValueError, match="its Python code reads values"):
            str(report(fun, X, count))
    else:
        str(report(fun, X, count))
    assert float(count[...]) == float(GLOBAL[...]) == 0.0


@pytest.mark.slow
def test_checking_a_rule_leaves_the_references_as_they_were():
    fresh()

    @jax.custom_vjp
    def counted(x):
        return jnp.sin(x)

    def forward(x):
        GLOBAL[...] += 1.0
        return jnp.sin(x), x

    counted.defvjp(forward, lambda x, ct: (jnp.cos(x) * ct,))
    assert jaxviz.check_rule(counted, 1.0)
    assert float(GLOBAL[...]) == 0.0


@pytest.mark.slow
def test_a_gradient_on_one_path_writes_once():
    results = []
    for module in (jax, jaxviz):
        count = fresh()
        results.append((module.value_and_grad(branching)(X, count), count[...], GLOBAL[...]))
    same(results[1], results[0])
    assert float(count[...]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("inner", [False, True], ids=["around the loop", "around its body too"])
def test_a_checkpoint_around_a_loop_that_writes_a_reference_of_its_own(inner):
    """What the loop does to the reference depends on known values alone, and is not part of its linear half."""

    def loss(w, xs):
        ref = jax.new_ref(jnp.zeros(4))

        def body(h, x):
            ref[...] = 0.9 * ref[...] + jax.lax.stop_gradient(h + x)
            act = lambda h, mean: h + jnp.tanh((h + x - mean) * w)
            return (jax.checkpoint(act) if inner else act)(h, ref[...]), None

        return jnp.sum(jax.lax.scan(body, jnp.zeros_like(xs[0]), xs)[0])

    args = jnp.ones(4), jnp.linspace(0.0, 1.0, 12).reshape(3, 4)
    f = jax.checkpoint(loss)
    np.testing.assert_array_equal(jax.jit(jaxviz.grad(f))(*args), jax.jit(jax.grad(f))(*args))
    assert jaxviz.derive(f, *args).check()
