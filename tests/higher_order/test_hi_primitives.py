"""High-level primitives, named calls and other primitives with nested programs that are in no shared table."""

from functools import partial

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hi_primitives import HiPrim, squared
from jax import lax
from jax._src import hijax as types_of_jax
from jax.interpreters import ad, mlir

import jaxviz

X = jnp.linspace(0.5, 2.5, 3)


def test_linear_call_transposed_twice_is_itself():
    def f(x):
        return jax.custom_derivatives.linear_call(lambda r, x: r * x, lambda r, ct: 5.0 * r * ct, X, x)

    once = jaxviz.linear_transpose(f, X)
    twice = jaxviz.linear_transpose(lambda ct: once(ct)[0], X)
    np.testing.assert_allclose(once(X)[0], 5.0 * X * X)
    np.testing.assert_allclose(twice(X)[0], f(X))


def test_a_call_is_transposed_from_within():
    call = jax.extend.core.primitives.closed_call_p
    jaxpr = jax.make_jaxpr(lambda x: 3.0 * jnp.cumsum(x))(X)
    called = lambda x: call.bind(x, **call.get_bind_params({"call_jaxpr": jaxpr}))
    want = jax.linear_transpose(called, X)([X])[0]
    np.testing.assert_allclose(jaxviz.linear_transpose(called, X)([X])[0], want, rtol=1e-6)


# --- rules that return None -------------------------------------------------------------------------------------------

sine_and_cosine_p = jax.extend.core.Primitive("sine_and_cosine")
sine_and_cosine_p.multiple_results = True
sine_and_cosine_p.def_impl(lambda x: [jnp.sin(x), jnp.cos(x)])
sine_and_cosine_p.def_abstract_eval(lambda x: [x, x])
mlir.register_lowering(sine_and_cosine_p, mlir.lower_fun(sine_and_cosine_p.impl, multiple_results=True))


def without_tangent_of_the_cosine(primals, tangents):
    sine, cosine = sine_and_cosine_p.bind(*primals)
    return (sine, cosine), (tangents[0] * cosine, None)


ad.primitive_jvps[sine_and_cosine_p] = without_tangent_of_the_cosine


@pytest.mark.slow
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["plain", "jit"])
@pytest.mark.parametrize(
    "weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 2.0)], ids=["the sine", "the cosine", "both"]
)  # fmt: skip
def test_a_tangent_that_a_rule_leaves_out_is_zero_as_in_jax(weights, around):
    loss = around(lambda x: sum(w * jnp.sum(y) for w, y in zip(weights, sine_and_cosine_p.bind(x), strict=True) if w))
    np.testing.assert_array_equal(jaxviz.grad(loss)(X), jax.grad(loss)(X))
    np.testing.assert_array_equal(jaxviz.linearize(loss, X)[1](X), jax.linearize(loss, X)[1](X))
    derivation = jaxviz.derive(loss, X)
    assert derivation.check(), derivation.check()
    assert derivation.jvp.equations
    assert "saves" in jaxviz.residuals(loss, X).summary
    assert "peak" in jaxviz.memory(loss, X).summary


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_no_checkpoint_is_planned_around_a_rule_that_leaves_out_a_tangent(around):
    loss = around(lambda x: jnp.sum(sine_and_cosine_p.bind(jnp.exp(x))[0]))
    with pytest.raises(TypeError, match="None"):
        jax.grad(jax.checkpoint(loss))(X)
    why = "`sine_and_cosine`.* returns None for a tangent"
    with pytest.raises(ValueError, match=why):
        jaxviz.compare_policies(loss, X)
    with pytest.raises(ValueError, match=why):
        jaxviz.plan_remat(loss, X, residuals="50%")
    assert not jaxviz.plan_remat(loss, X).regions


# --- mutable hi types
# ---------------------------------------------------------------------------------------------------------


mutable = pytest.mark.skipif(not hasattr(types_of_jax, "Box"), reason="JAX has no mutable hi type since 0.11.1")


def counted(w, x, seen):
    """What is seen is in a value of a mutable hi type, which a scan reads and writes."""
    box = types_of_jax.new_box()
    types_of_jax.box_set(box, seen)

    def step(total, x):
        types_of_jax.box_set(box, 0.9 * types_of_jax.box_get(box) + 0.1 * lax.stop_gradient(jnp.log(x)))
        return total + jnp.sum((w * x - types_of_jax.box_get(box)) ** 2), None

    return lax.scan(step, 0.0, jnp.stack([x, x]))[0]


@pytest.mark.slow
@mutable
@pytest.mark.parametrize("given", ["seen", "x"])
def test_a_search_for_a_nan_follows_a_mutable_hi_type(given):
    args = {"w": jnp.ones(3), "x": jnp.arange(1.0, 4.0), "seen": jnp.zeros(3)}
    assert jaxviz.find_nan(counted, *args.values()) is None
    args[given] = args[given].at[1].set(jnp.nan if given == "seen" else -1.0)
    found = jaxviz.find_nan(counted, *args.values())
    assert found.results == ("the loss", "the gradient in w")
    assert "argument seen" in str(found) if given == "seen" else found.born.expression == "jnp.log(x)"


@mutable
def test_a_rule_beside_a_mutable_hi_type_is_not_lowered_away():
    def loss(x, seen):
        return counted(squared(x), x, seen)

    found = jaxviz.find_nan(loss, X, jnp.full(3, jnp.nan))
    assert "has a rule of its own" in " ".join(str(found).split())
    assert found.results == ("the result",)


def centred(seen, w, x):
    types_of_jax.box_set(seen, 0.9 * types_of_jax.box_get(seen) + 0.1 * lax.stop_gradient(x))
    return jnp.sum((w * x - types_of_jax.box_get(seen)) ** 2)


def of_reports(names):
    return {name: partial(getattr(jaxviz, name), argnums=1) for name in names.split()}


BOXED = {
    "check": lambda f, *args: jaxviz.derive(f, *args, argnums=1).check(),
    "trace": lambda f, *args: jaxviz.trace(f)(*args),
    "step": lambda f, *args: jaxviz.step(f, *args, argnums=1).run(),
    "jit": lambda f, *args: jaxviz.jit(f).report(*args),
    "profile": lambda f, *args: jaxviz.profile(f, *args, repeat=2),
    **of_reports("residuals memory explore lint cost policies plan_remat compiled_memory collectives compile_cost"),
    **of_reports("find_nan draw"),
}


@mutable
@pytest.mark.slow
@pytest.mark.parametrize("report", BOXED.values(), ids=list(BOXED))
def test_an_argument_of_a_mutable_hi_type_is_left_as_it_was(report):
    seen = types_of_jax.Box(jnp.zeros(3))
    str(report(centred, seen, jnp.ones(3), X))
    np.testing.assert_array_equal(seen.get(), jnp.zeros(3))


@mutable
@pytest.mark.slow
@pytest.mark.parametrize("jits", [False, True], ids=["eager", "jit"])
def test_an_argument_of_a_mutable_hi_type_is_written_as_by_jax(jits):
    found = []
    for transforms in (jax, jaxviz):
        seen, of_loss = types_of_jax.Box(jnp.zeros(3)), transforms.value_and_grad(centred, argnums=1)
        found.append(((jax.jit(of_loss) if jits else of_loss)(seen, jnp.ones(3), X), seen.get()))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), *found)


@mutable
@pytest.mark.parametrize("holder", ["argument", "reference that is closed over"])
def test_a_nan_that_came_in_through_a_mutable_hi_type(holder):
    seen = types_of_jax.Box(jnp.array([0.0, jnp.nan, 0.0]))
    if holder == "argument":
        found = jaxviz.find_nan(centred, seen, jnp.ones(3), X, argnums=1)
    else:
        found = jaxviz.find_nan(lambda w, x: centred(seen, w, x), jnp.ones(3), X)
    assert f"came in through {'the' if holder == 'argument' else 'a'} {holder}" in " ".join(str(found).split())
    assert "gradient in w" in str(found)
    np.testing.assert_array_equal(seen.get(), jnp.array([0.0, jnp.nan, 0.0]))


@mutable
def test_an_argument_of_a_mutable_hi_type_weighs_what_it_holds():
    args = types_of_jax.Box((jnp.zeros(3), jnp.zeros(5, jnp.int8))), jnp.ones(3)
    loss = lambda seen, w: jnp.sum(w * types_of_jax.box_get(seen)[0])
    memory = jaxviz.memory(loss, *args, argnums=1)
    assert {row.what: row.nbytes for row in memory.alive if row.kind == "argument"} == {"seen": 17, "w": 12}
    report = jaxviz.jit(loss).report(*args)
    assert [(a.path, a.nbytes_per_device) for a in report.arguments] == [("seen", 17), ("w", 12)]


def counted_in_each_iteration(read, write, count):
    """A function whose loop writes what is not differentiated."""

    def step(h, _):
        write(count, read(count) + 1.0)
        return jnp.sin(h * read(count)), None

    return lambda x: jnp.sum(lax.scan(step, x, None, length=3)[0])


@mutable
@pytest.mark.slow
def test_each_iteration_writes_a_value_of_a_mutable_hi_type():
    """JAX 0.10.2 writes it once and computes another gradient, so this compares with JAX's on a reference."""
    ref, box = jax.new_ref(jnp.zeros(())), types_of_jax.Box(jnp.zeros(()))
    of_ref = counted_in_each_iteration(lambda r: r[...], lambda r, x: r.__setitem__(..., x), ref)
    of_box = counted_in_each_iteration(types_of_jax.box_get, types_of_jax.box_set, box)
    np.testing.assert_allclose(jaxviz.grad(of_box)(X), jax.grad(of_ref)(X), rtol=1e-6)
    assert float(box.get()) == float(ref[...]) == 3.0


@mutable
def test_a_loop_that_jax_cannot_differentiate_has_a_gradient_of_ours():
    """In JAX 0.10.2, a value of a mutable hi type loses its state where a loop writes what it carries."""

    def of_carry(seen, x):
        def step(h, _):
            types_of_jax.box_set(seen, 0.9 * types_of_jax.box_get(seen) + 0.1 * lax.stop_gradient(h))
            return jnp.tanh(h - types_of_jax.box_get(seen)), None

        return jnp.sum(lax.scan(step, x, None, length=3)[0])

    def of_value(x):
        h, seen = x, jnp.zeros(3)
        for _ in range(3):
            seen = 0.9 * seen + 0.1 * lax.stop_gradient(h)
            h = jnp.tanh(h - seen)
        return jnp.sum(h)

    found = jaxviz.grad(of_carry, argnums=1)(types_of_jax.Box(jnp.zeros(3)), X)
    np.testing.assert_allclose(found, jax.grad(of_value)(X), rtol=1e-6)
    with pytest.raises(Exception, match="mutable_qdd") as caught:
        jaxviz.derive(of_carry, types_of_jax.Box(jnp.zeros(3)), X, argnums=1).check()
    assert "Raised by jax.vjp of of_carry" in " ".join(caught.value.__notes__)


class Writing(HiPrim):
    """Its rule writes the box, or has an error of its own."""

    def __init__(self, box, aval, fails):
        self.in_avals, self.out_aval, self.params = (box, aval), aval, {"fails": fails}
        super().__init__()

    def expand(self, box, x):
        return x * types_of_jax.box_get(box)

    def vjp_fwd(self, nonzeros, box, x):
        types_of_jax.box_set(box, x.missing if self.fails else x)
        return self(box, x), None

    def vjp_bwd_retval(self, _, ct):
        return None, ct


@jax.custom_vjp
def of_box(box, x):
    return x * types_of_jax.box_get(box)


of_box.defvjp(lambda box, x: (of_box(box, x), None), lambda _, ct: (None, ct))


@mutable
def test_a_rule_that_takes_a_mutable_hi_type_is_refused_and_its_own_errors_are_not():
    def of(call):
        def loss(x):
            box = types_of_jax.new_box()
            types_of_jax.box_set(box, X)
            return jnp.sum(call(box, x))

        return jaxviz.grad(loss)

    writing = lambda fails: lambda box, x: Writing(jax.typeof(box), jax.typeof(x), fails)(box, x)
    for call in (writing(False), of_box):
        with pytest.raises(jaxviz.NoRuleError, match=r"a value of a mutable hi type.*test_hi_primitives.py"):
            of(call)(X)
    with pytest.raises(AttributeError, match="missing"):
        of(writing(True))(X)


@mutable
@pytest.mark.parametrize("report", [jaxviz.compiled_memory, jaxviz.compile_cost, jaxviz.collectives])
def test_what_jax_cannot_lower_is_refused(report):
    box = types_of_jax.Box(jnp.zeros(3))
    with pytest.raises(ValueError, match="Too many leaves"):
        jax.jit(lambda x: jnp.sum(x * types_of_jax.box_get(box))).lower(X)
    with pytest.raises(NotImplementedError, match=r"closes over a value of a mutable hi type.*Pass it as an argument"):
        report(lambda x: jnp.sum(x * types_of_jax.box_get(box)), X)


@pytest.mark.slow
def test_variables_of_flax_of_mutable_hi_types():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not in every environment of `make test-latest`")

    def loss(w, x):
        mean = nnx.Variable(jnp.zeros(3), hijax=True)
        for _ in range(2):
            mean[...] = 0.9 * mean[...] + 0.1 * jax.lax.stop_gradient(x)
            x = jnp.tanh((x - mean[...]) * w)
        return jnp.sum(x)

    args = jnp.ones(3), X
    np.testing.assert_array_equal(jaxviz.grad(loss)(*args), jax.grad(loss)(*args))
    assert jaxviz.derive(loss, *args).check()
    assert jaxviz.memory(loss, *args).peak_nbytes > 0
    assert "new_variable" in str(jaxviz.explore(loss, *args))
    assert jaxviz.find_nan(loss, *args) is None


@pytest.mark.parametrize("ad_metadata", ["same", "drop", {"tag": "derivative"}])
def test_metadata_of_a_derivative(ad_metadata):
    """Each call in the gradient carries what JAX gives it."""
    if jax.__version_info__ < (0, 11):
        pytest.skip("before JAX 0.11 there is no such call")
    from jax.experimental.xla_metadata import xla_metadata_call2

    f = xla_metadata_call2(lambda x: jnp.sin(x) * x, {"tag": "function"}, ad_metadata=ad_metadata)
    carried = lambda grad: [
        (e.params["xla_metadata"], e.params["ad_metadata"])
        for _, e in jaxviz.trace(grad(lambda x: jnp.sum(f(x))))(X).walk()
        if e.primitive.name == "xla_metadata_call"
    ]
    assert carried(jaxviz.grad) == carried(jax.grad) != []
