"""Mutable references: read and written as often as in JAX, refused where jaxviz does not follow them, and left alone by reports."""

import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hi_primitives import OnlyReverse
from jax import lax

import jaxviz
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
        for inner, outer in itertools.product((in_scan, closed_over_by_jit, in_checkpoint, in_checkpoint_of_all), repeat=2)
    },
    "stateful_dropout": in_scan(stateful_dropout),
    "three-holders": in_checkpoint_of_all(in_scan(closed_over_by_jit(counting))),
}  # fmt: skip
programs = pytest.mark.parametrize("fun", PROGRAMS.values(), ids=list(PROGRAMS))


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


@pytest.mark.slow
@programs
@pytest.mark.parametrize("jits", [False, True], ids=["eager", "jit"])
def test_a_gradient_reads_and_writes_as_often_as_jax(fun, jits):
    maybe_jit = jax.jit if jits else lambda f: f
    of = lambda transform: lambda f: maybe_jit(transform(f))
    same(run(of(jaxviz.value_and_grad), fun), run(of(jax.value_and_grad), fun))


@pytest.mark.slow
@programs
def test_forward_mode_reads_and_writes_as_often_as_jax(fun):
    of = lambda jvp: lambda f: lambda x, r: jvp(lambda x: f(x, r), (x,), (jnp.ones_like(x),))
    same(run(of(jaxviz.jvp), fun), run(of(jax.jvp), fun))


@pytest.mark.slow
@pytest.mark.parametrize("holder", [h for h in HOLDERS if h is not in_checkpoint_of_all])  # which repeats an addition
def test_adding_to_a_reference_is_like_writing_the_sum(holder):
    """JAX 0.10.2 passes its own rule for `addupdate` a symbolic zero, which it does not take."""
    same(run(jaxviz.value_and_grad, holder(adding)), run(jax.value_and_grad, holder(counting)))


@programs
def test_residuals_are_those_of_jax(fun):
    count = fresh()
    derivation = jaxviz.derive(lambda x, r: fun(x, r).sum(), X, count)
    check = derivation.check(values=False)
    assert check, check
    assert "not opened" in str(check)
    assert float(count[...]) == float(GLOBAL[...]) == 0.0


@pytest.mark.slow
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
    """JAX 0.10.2 to 0.12 make one for the whole loop where the body makes it from constants, so their gradient is another function's."""
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


@pytest.mark.parametrize("holder", [lambda f: f, in_jit, in_scan, in_checkpoint])
def test_a_write_for_each_example_is_refused(holder):
    ref = fresh()
    writes = lambda x: holder(counting)(x, ref)
    with pytest.raises(Exception, match="unbatched array reference"):
        jax.vmap(writes)(X)
    with pytest.raises(jaxviz.NoRuleError, match=r"mutable reference.*test_references\.py:\d+"):
        jaxviz.vmap(writes)(X)
    assert float(ref[...]) == 0.0


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


# --- what is not supported --------------------------------------------------------------------------------------------


def made_of_a_tangent(x):
    ref = jax.new_ref(x)
    return jnp.sin(ref[...]).sum()


def written_with_a_tangent(x):
    ref = jax.new_ref(jnp.zeros(4))
    ref[...] = jnp.sin(x)
    return ref[...].sum()


def made_in_a_checkpoint(x):
    return jax.checkpoint(made_of_a_tangent)(x)


def made_in_a_scan(x):
    def body(h, _):
        ref = jax.new_ref(h)
        ref[...] = jnp.sin(ref[...])
        return jax.freeze(ref), None

    return lax.scan(body, x, None, length=2)[0].sum()


@pytest.mark.parametrize("fun", [made_of_a_tangent, written_with_a_tangent, made_in_a_checkpoint, made_in_a_scan])
@pytest.mark.parametrize("of", [jaxviz.grad, jaxviz.jacfwd, lambda f: lambda x: jaxviz.linearize(f, x)])
def test_what_carries_a_tangent_is_refused_at_its_line(fun, of):
    with pytest.raises(jaxviz.NoRuleError, match=r"mutable reference yet.*test_references\.py:(\d+)") as caught:
        of(fun)(X)
    first = inspect.getsourcelines(made_of_a_tangent)[1]
    line = int(str(caught.value).rpartition(":")[2].split(")")[0])
    assert first < line < first + 40


def test_a_reference_that_is_passed_twice_is_refused():
    ref = fresh()
    with pytest.raises(ValueError, match="only one reference to a mutable array"):
        jaxviz.trace(lambda x, a, b: counting(x, a) * b[...])(X, ref, ref)


# --- custom rules -----------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_a_rule_that_closes_over_a_value():
    """jaxviz traces such a function with constants folded, and what is done to references must not be."""
    fun = using_a_rule_that_closes_over_a_value
    same(run(jaxviz.value_and_grad, fun), run(jax.value_and_grad, fun))
    count = fresh()
    assert jaxviz.derive(lambda x, r: fun(x, r).sum(), X, count).check()
    assert float(count[...]) == 0.0
    with pytest.raises(NotImplementedError, match="A custom rule closes over a value"):
        jaxviz.residuals(fun, jax.ShapeDtypeStruct((4,), jnp.float32), count)


@jax.custom_jvp
def logged(x):
    return jnp.sin(x)


@logged.defjvp
def _logged_jvp(primals, tangents):
    GLOBAL[...] += 1.0
    return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0] * GLOBAL[...]


@pytest.mark.slow
@pytest.mark.parametrize("nested", [
    lambda f: f, jax.jit, lambda f: jax.jit(jax.jit(f)), jax.checkpoint, lambda f: jax.checkpoint(jax.jit(f)),
])  # fmt: skip
@pytest.mark.parametrize("jits", [False, True], ids=["eager", "jit"])
def test_a_rule_that_writes_a_reference(nested, jits):
    maybe_jit = jax.jit if jits else lambda f: f
    of = lambda transform: lambda f: maybe_jit(transform(f))
    fun = lambda x, _: nested(logged)(x)
    same(run(of(jaxviz.value_and_grad), fun), run(of(jax.value_and_grad), fun))


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
    """The references are inputs of a program, where they are constants of a function that is not differentiated in them."""
    stepped_through(jaxviz.step(jaxviz.trace(f)(*args), *args))


def stepped_through(stepper):
    stepper.run()
    stepper.back()
    stepper.next()
    stepper.run()


REPORTS = {
    "residuals": jaxviz.residuals, "memory": jaxviz.memory, "lint": jaxviz.lint, "draw": jaxviz.draw, "explore": jaxviz.explore,
    "compiled_memory": jaxviz.compiled_memory, "policies": jaxviz.policies, "plan_remat": jaxviz.plan_remat, "trace": lambda f, *args: jaxviz.trace(f)(*args),
    "step": stepped, "step of a program": program_stepped, "check": lambda f, *args: jaxviz.derive(f, *args).check(), "profile": lambda f, *args: jaxviz.profile(f, *args, repeat=2),
    "measure": lambda f, *args: jaxviz.cost(f, *args).measure(repeat=2),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("report", REPORTS.values(), ids=list(REPORTS))
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
def test_a_stepper_goes_back_to_what_was_read():
    count = fresh()
    loss = lambda x, r: counting(counting(x, r), r).sum()
    stepper = jaxviz.step(loss, X, count)
    reads = [e for e in stepper.derivation.forward.equations if e.primitive.name == "get"]
    for _ in range(2):
        stepper.restart()
        read = []
        while not stepper.is_done:
            stepper.next()
            if stepper.equation in reads:
                read.append(float(stepper.value))
        assert read == [0.0, 1.0, 1.0, 2.0]
        same(stepper.result, loss(X, fresh()))
    stepper.restart()
    name = stepper.derivation.forward_names[stepper.derivation.forward.invars[1]]
    with pytest.raises(jaxviz.SteppingError, match="is a mutable reference, with another value after each write"):
        stepper.summary(name)
    assert float(count[...]) == 0.0


@pytest.mark.slow
def test_a_gradient_on_one_path_writes_once():
    results = []
    for module in (jax, jaxviz):
        count = fresh()
        results.append((module.value_and_grad(branching)(X, count), count[...], GLOBAL[...]))
    same(results[1], results[0])
    assert float(count[...]) == 1.0


# --- plans ------------------------------------------------------------------------------------------------------------


def with_tanh(x, _):
    return jnp.sin(OnlyReverse(jax.typeof(x))(jnp.sin(x) * 2)).sum()


def with_own_reference(x, _):
    y = jnp.sin(x)
    ref = jax.new_ref(lax.stop_gradient(y))
    ref[...] += 1.0
    return (jnp.exp(y) * ref[...]).sum()


UNPLANNED = {straight: "takes a mutable reference", with_tanh: "no forward mode"}


@pytest.mark.parametrize("fun", UNPLANNED)
def test_no_plan_puts_a_checkpoint_there(fun):
    with pytest.raises(ValueError, match=rf"{UNPLANNED[fun]}.*nothing around it can be planned"):
        jaxviz.plan_remat(fun, X, fresh(), work="50%")
    plan = jaxviz.plan_remat(fun, X, fresh())
    assert "no changes" in plan.summary
    assert UNPLANNED[fun] in " ".join(plan.notes)


def block(w, h):
    return h + 0.1 * jnp.exp(-(jnp.sin(jnp.tanh(h * w)) ** 2)) * jnp.cos(h * w)


def counted_block(w, h, count):
    count[...] += 1.0
    return h + 0.1 * jnp.exp(-(jnp.sin(jnp.tanh(h * w)) ** 2)) * jnp.cos(h * w / count[...])


def counted_outside(x, count):
    count[...] += 1.0
    for w in range(1, 6):
        x = block(w, x)
    return jnp.sum(x**2) * count[...]


def counted_globally(x, count):
    GLOBAL[...] += 1.0
    return counted_outside(x, count)


def counted_in_some_calls(x, count):
    for w in range(1, 4):
        x = block(w, x)
    for w in range(4, 7):
        x = counted_block(w, x, count)
    return jnp.sum(x**2)


def counted_in_a_loop(x, count):
    def body(h, w):
        count[...] += 1.0
        return block(w, h), None

    return jnp.sum(lax.scan(body, x, jnp.arange(1.0, 7.0))[0] ** 2)


def counted_before_a_loop(x, count):
    count[...] += 1.0
    return jnp.sum(lax.scan(lambda h, w: (block(w, h), None), x, jnp.arange(1.0, 7.0))[0] ** 2) * count[...]


def counted_in_each_call(x, count):
    for w in range(1, 6):
        x = counted_block(w, x, count)
    return jnp.sum(x**2)


def counting_for_itself(x, _):
    def body(h, w):
        own = jax.new_ref(jnp.float32(0.0))
        own[...] += w
        return block(own[...], h), own[...]

    return jnp.sum(lax.scan(body, x, jnp.arange(1.0, 7.0))[0] ** 2)


PLANNED = {
    counted_outside: ("5 calls of block", "40%"),
    counted_globally: ("5 calls of block", "40%"),
    counted_in_some_calls: ("3 calls of block", "70%"),  # the other calls keep what they save
    counted_in_a_loop: ("call of block", "40%"),
    counted_before_a_loop: ("", "40%"),
    counting_for_itself: ("", "40%"),
    with_own_reference: ("", "50%"),
}


def gradient_and_references(loss, x):
    count, before = fresh(), GLOBAL[...]
    try:
        return [*jax.value_and_grad(loss)(x, count), count[...], GLOBAL[...]]
    finally:
        GLOBAL[...] = before


@pytest.mark.slow
@pytest.mark.parametrize("fun", PLANNED)
def test_checkpoints_are_planned_around_what_uses_no_reference_from_outside(fun):
    """JAX would write such a reference in both passes. One that is made inside is made again."""
    x, count = jnp.linspace(0.5, 2.5, 256), fresh()
    where, share = PLANNED[fun]
    plan = jaxviz.plan_remat(fun, x, count, residuals=share)
    assert float(count[...]) == 0.0
    assert "no changes" not in plan.summary
    assert where in plan.summary
    planned = plan.apply(fun)
    same(gradient_and_references(planned, x), gradient_and_references(fun, x))
    kept = sum(r.nbytes for r in jaxviz.residuals(planned, x, fresh()))
    assert kept < sum(r.nbytes for r in jaxviz.residuals(fun, x, fresh()))
    outside = [note for note in plan.notes if "No checkpoint of the plan contains this" in note]
    assert bool(outside) == (fun not in (counting_for_itself, with_own_reference))


def test_a_checkpoint_that_writes_to_a_reference_is_not_removed():
    """JAX writes in both passes, so without the checkpoint something else would be in the reference."""
    plan = jaxviz.plan_remat(in_checkpoint(counted_outside), jnp.linspace(0.5, 2.5, 256), fresh())
    assert "no changes" in plan.summary
    with pytest.raises(ValueError, match=r"uses a mutable reference.*nothing around it can be planned"):
        jaxviz.plan_remat(in_checkpoint(counted_outside), jnp.linspace(0.5, 2.5, 256), fresh(), memory="1GiB")


def test_where_every_region_uses_one_from_outside_nothing_is_planned():
    x = jnp.linspace(0.5, 2.5, 256)
    assert "no changes" in jaxviz.plan_remat(counted_in_each_call, x, fresh()).summary
    with pytest.raises(ValueError, match=r"test_references.py:\d+\) takes a mutable reference.*nothing around it"):
        jaxviz.plan_remat(counted_in_each_call, x, fresh(), residuals="30%")


@pytest.mark.parametrize("fun", [straight, with_tanh])
def test_no_policy_is_tried_around_it(fun):
    with pytest.raises(ValueError, match=rf"none can be put around it: .*{UNPLANNED[fun]}"):
        str(jaxviz.compare_policies(fun, X, fresh()))


def layers(x, ws, count):
    def layer(h, w):
        count[...] += 1.0
        return jnp.tanh(jnp.sin(h * w) * jnp.cos(h)), None

    return lax.scan(layer, x, ws)[0].sum()


def test_no_report_advises_a_checkpoint_around_a_body_that_writes():
    args = jnp.linspace(0.0, 1.0, 4096), jnp.ones((8, 4096)), fresh()
    assert "jax.checkpoint around the body" not in str(jaxviz.residuals(layers, *args))
    assert not [a for a in jaxviz.lint(layers, *args) if a.rule == "layer-checkpoint"]
    without = lambda x, ws: lax.scan(lambda h, w: (jnp.tanh(jnp.sin(h * w) * jnp.cos(h)), None), x, ws)[0].sum()
    assert "jax.checkpoint around the body" in str(jaxviz.residuals(without, *args[:2]))


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


def scaled_in_a_scan(x, is_own):
    def body(h, _):
        return jnp.sin(h * scale[...]), None

    scale = jax.new_ref(jnp.full(4, 2.0)) if is_own else SCALE
    return jnp.sum(lax.scan(body, x, None, length=3)[0])


SCALE = jax.new_ref(jnp.full(4, 2.0))


def test_what_jax_saves_for_the_zero_tangent_of_a_reference_is_said():
    """It gives one to a reference that the function makes, and none to one from outside."""
    for is_own in (True, False):
        derivation = jaxviz.derive(scaled_in_a_scan, X, is_own)
        notes = [note for note in jaxviz.residuals(derivation).notes if "a tangent, which is zero here" in note]
        assert len(notes) == is_own
        assert derivation.check().agrees is not is_own
        assert not notes or f"test_references.py:{scaled_in_a_scan.__code__.co_firstlineno + 4}" in notes[0]


def read_in_a_checkpoint(x):
    scale = jax.new_ref(jnp.full(4, 2.0))
    return jax.checkpoint(lambda x: jnp.sin(x * scale[...]))(x)


@pytest.mark.parametrize(
    "holder", [jax.jit, lambda f: lambda x: lax.cond(x[0] > 0, f, jnp.sin, x)], ids=["jit", "cond"]
)
def test_a_reference_that_would_have_to_be_returned_is_refused(holder):
    """JAX fails as well."""
    loss = lambda x: jnp.sum(holder(read_in_a_checkpoint)(x))
    with pytest.raises((ValueError, KeyError)):
        jax.grad(loss)(X)
    with pytest.raises(NotImplementedError, match="makes a mutable reference that is read again in the backward pass"):
        jaxviz.grad(loss)(X)
