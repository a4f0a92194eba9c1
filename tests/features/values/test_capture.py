"""Captured values are those that a model edited by hand returns, and putting them back changes nothing."""

import collections
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from device_programs import CASES as ON_DEVICES
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from programs import CASES
from short_runs import short, short_rows

import jaxviz
from jaxviz.analysis.addressed import addressed_values
from jaxviz.analysis.addresses import resolve
from jaxviz.analysis.written import address_of

RNG = np.random.default_rng(0)
WS = jnp.asarray(0.3 * RNG.normal(size=(5, 4, 4)), jnp.float32)
X = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)
ZEROS = {
    5: np.zeros((5, 1, 1), np.float32),
    8: np.zeros((8, 1), np.float32),
    (2, 5): np.zeros((2, 5, 1, 1), np.float32),
}


@transcripts.of("values")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


# --- by hand: each program takes what is added to two of its values, and returns these values -------------------------


def plain(ws, x, of_a=0.0, of_b=0.0):
    a = jnp.tanh(x @ ws[0]) + of_a
    b = a * a + of_b
    return jnp.sum(b * jnp.sin(a)), (a, b)


def layer(h, inputs):
    w, of_a, of_b = inputs
    a = jnp.tanh(h @ w) + of_a
    b = h + a + of_b
    return b, (a, b)


def loop(ws, x, of_a=ZEROS[5], of_b=ZEROS[5]):
    h, values = lax.scan(layer, x, (ws, of_a, of_b))
    return jnp.sum(h**2), values


def backwards(ws, x, of_a=ZEROS[5], of_b=ZEROS[5]):
    h, values = lax.scan(layer, x, (ws, of_a, of_b), reverse=True)
    return jnp.sum(h**2), values


def in_checkpoints(ws, x, of_a=ZEROS[5], of_b=ZEROS[5]):
    h, values = lax.scan(jax.checkpoint(layer), x, (ws, of_a, of_b))
    return jnp.sum(h**2), values


def in_a_branch(ws, x, of_a=0.0, of_b=0.0):
    def taken(x):
        a = jnp.tanh(x @ ws[0]) + of_a
        b = a * x + of_b
        return jnp.sum(b), (a, b)

    other = lambda x: (jnp.sum(x), (jnp.zeros_like(x), jnp.zeros_like(x)))
    return lax.cond(x[0, 0] > -100, taken, other, x)


def in_jit_and_loops(ws, x, of_a=ZEROS[2, 5], of_b=ZEROS[2, 5]):
    again = lambda h, added: lax.scan(jax.jit(layer), h, (ws, *added))
    h, values = lax.scan(again, x, (of_a, of_b))
    return jnp.sum(h**2), values


def mapped(ws, x, of_a=ZEROS[8], of_b=ZEROS[8]):
    def one(x, of_a, of_b):
        a = jnp.tanh(x @ ws[0]) + of_a
        b = a * x + of_b
        return jnp.sum(b), (a, b)

    ys, values = jax.vmap(one)(x, of_a, of_b)
    return jnp.sum(ys), values


def on_devices(ws, x, of_a=ZEROS[8], of_b=ZEROS[8]):
    def one(ws, x, of_a, of_b):
        a = jnp.tanh(x @ ws[0]) + of_a
        b = a * x + of_b
        return lax.psum(jnp.sum(b), "i"), (a, b)

    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (P(), P("i"), P("i"), P("i"))
    y, values = jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=(P(), (P("i"), P("i"))))(ws, x, of_a, of_b)
    return y, values


BY_HAND = [plain, loop, backwards, in_checkpoints, in_a_branch, in_jit_and_loops, mapped, on_devices]
OUTSIDE = {
    "as it is": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda ws, x: jax.vmap(f, (None, 0))(ws, jnp.stack([x, x + 1])),
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda ws, x: lax.scan(lambda c, x: (c, f(ws, x)), 0.0, jnp.stack([x, x + 1]))[1],
}


def same(got, want, rtol=0.0):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if rtol:
            np.testing.assert_allclose(a.reshape(b.shape), b, rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(a.reshape(b.shape), b)


@pytest.mark.slow
@pytest.mark.parametrize(("f", "outside"), short_rows(list(itertools.product(BY_HAND, OUTSIDE)), 2))
def test_values_and_cotangents_are_those_of_a_model_edited_by_hand(f, outside):
    def by_hand(ws, x):
        _, values = jax.eval_shape(f, ws, x)
        zeros = [jnp.zeros(v.shape) for v in values]
        (loss, values), cotangents = jax.value_and_grad(f, (2, 3), has_aux=True)(ws, x, *zeros)
        return loss, values, cotangents

    def captured(ws, x):
        run = jaxviz.capture(f, "a #1", "b #1", cotangents=True, has_aux=True)
        (loss, _), seen = run(ws, x)
        return loss, (seen["a #1"], seen["b #1"]), (seen.cotangents["a #1"], seen.cotangents["b #1"])

    assert not f.__name__.startswith("test")
    if f is on_devices and outside in ("vmap", "scan"):
        pytest.skip("a mesh over all devices inside of loops is tried with `jit`")
    same(OUTSIDE[outside](captured)(WS, X), OUTSIDE[outside](by_hand)(WS, X), 1e-5)


@pytest.mark.parametrize("f", short(BY_HAND, [loop, in_checkpoints]), ids=lambda f: f.__name__)
def test_a_gradient_saves_what_it_saved(f):
    def residuals(g):
        _, pull = jax.vjp(lambda ws: g(ws, X), WS)
        return collections.Counter(str(jax.typeof(x)) for x in jax.tree.leaves(pull))

    loss = lambda ws, x: f(ws, x)[0]
    run = jaxviz.capture(loss, "a #1", "b #1")
    assert residuals(lambda ws, x: run(ws, x)[0]) == residuals(loss)
    held = jax.vjp(run, WS, X, has_aux=True)[1]
    assert collections.Counter(str(jax.typeof(x)) for x in jax.tree.leaves(held)) == collections.Counter(
        str(jax.typeof(x)) for x in jax.tree.leaves(jax.vjp(loss, WS, X)[1])
    )


def test_nothing_addressed_changes_nothing():
    loss = lambda ws, x: loop(ws, x)[0]
    text = jax.jit(loss).lower(WS, X).as_text()
    assert jax.jit(lambda ws, x: jaxviz.capture(loss)(ws, x)[0]).lower(WS, X).as_text() == text
    assert jax.jit(lambda ws, x: jaxviz.replace(loss, {})(ws, x)).lower(WS, X).as_text() == text


# --- replacing --------------------------------------------------------------------------------------------------------


def clipped_by_hand(ws, x):
    @jax.custom_vjp
    def clipped(a):
        return a

    clipped.defvjp(lambda a: (a, None), lambda _, ct: (jnp.clip(ct, -0.1, 0.1),))

    def layer(h, w):
        a = clipped(jnp.tanh(h @ w))
        return h + a, None

    return jnp.sum(lax.scan(layer, x, ws)[0] ** 2)


def test_a_cotangent_is_clipped_as_by_a_custom_rule():
    loss = lambda ws, x: loop(ws, x)[0]
    hooked = jaxviz.replace(loss, cotangents={"jnp.tanh(h @ w)": lambda ct: jnp.clip(ct, -0.1, 0.1)})
    same(jax.jit(jax.grad(hooked))(WS, X), jax.jit(jax.grad(clipped_by_hand))(WS, X), 1e-6)
    same(jaxviz.grad(hooked)(WS, X), jax.grad(clipped_by_hand)(WS, X), 1e-6)
    assert not np.allclose(jax.grad(hooked)(WS, X), jax.grad(loss)(WS, X))


def test_a_replacement_may_close_over_what_is_traced_and_knows_its_iteration():
    loss = lambda ws, x: loop(ws, x)[0]

    def patched(ws, x, other):
        clean = jaxviz.capture(loss, "jnp.tanh(h @ w)")(ws, other)[1]["jnp.tanh(h @ w)"]
        return jaxviz.replace(loss, {"jnp.tanh(h @ w)": lambda v, at: clean[at.iteration]}, iterations=[2, 3])(ws, x)

    def by_hand(ws, x, other):
        _, (clean, _) = loop(ws, other)

        def layer(h, inputs):
            i, w = inputs
            a = jnp.where((i == 2) | (i == 3), clean[i], jnp.tanh(h @ w))
            return h + a, None

        return jnp.sum(lax.scan(layer, x, (jnp.arange(5), ws))[0] ** 2)

    same(jax.jit(patched)(WS, X, X + 1), jax.jit(by_hand)(WS, X, X + 1), 1e-6)
    same(jax.grad(patched, 2)(WS, X, X + 1), jax.grad(by_hand, 2)(WS, X, X + 1), 1e-5)
    batch = jnp.stack([X, X + 1, X + 2])
    same(jax.vmap(patched, (None, 0, None))(WS, batch, X), jax.vmap(by_hand, (None, 0, None))(WS, batch, X), 1e-5)


def test_a_value_in_one_of_two_calls_of_a_jitted_function():
    @jax.jit
    def half(x):
        y = jnp.sin(x)
        return y / 2

    f = lambda x: half(half(x))
    assert jaxviz.replace(f, {"y #1": jnp.zeros_like})(1.0) == f(0.0)
    assert jaxviz.replace(f, {"y #2": jnp.zeros_like})(1.0) == 0
    assert [float(y) for y in jaxviz.capture(f, "y #*")(1.0)[1]["y #*"]] == [
        float(jnp.sin(1.0)),
        float(jnp.sin(half(1.0))),
    ]


# --- every program ----------------------------------------------------------------------------------------------------

ROUNDS_OTHERWISE = {"cross_entropy", "switch_of_four", "scan_inside", "scan_inside_untyped", "data_parallel_loss"}
"""A jitted function in them, with more results, is compiled to other last bits."""
NOT_PUT_BACK = {"explicit_axes_in_shard_map"}
"""JAX closes over nothing that is sharded over explicit axes in a shard_map."""


@pytest.mark.parametrize("case", short([*CASES, *ON_DEVICES], 9), ids=str)
def test_what_is_captured_and_put_back_changes_nothing(case):
    with case.where():
        program = jaxviz.trace(case.fun)(*case.args)
        addresses = [address_of(program, v) for v in addressed_values(program)]
        for value, address in zip(addressed_values(program), addresses, strict=True):
            assert resolve(program, address).values == (value,)
        texts = list(dict.fromkeys(a.text for a in addresses))
        want = jax.tree.map(compared, case.fun(*case.args))
        rtol = 1e-6 if case.name in ROUNDS_OTHERWISE else 0.0
        out, seen = jaxviz.capture(case.fun, *texts)(*case.args)
        same(jax.tree.map(compared, out), want, rtol)
        if case.name not in NOT_PUT_BACK:
            back = jaxviz.replace(case.fun, {text: seen[text] for text in texts})
            same(jax.tree.map(compared, back(*case.args)), want, rtol)


def compared(x):
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.extended)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def test_a_checkpoint_name_is_an_address():
    @jax.checkpoint
    def f(x):
        return jnp.sum(jnp.cos(checkpoint_name(jnp.sin(x), "sine")))

    value, seen = jaxviz.capture(f, "sine", cotangents=True)(X)
    same((value, seen["sine"], seen.cotangents["sine"]), (f(X), jnp.sin(X), -jnp.sin(jnp.sin(X))), 1e-6)


def test_an_address_may_be_of_a_cotangent_and_not_of_an_iteration_of_a_while_loop():
    def f(x):
        h = jnp.sin(x)
        return jnp.sum(h * h)

    x = jnp.arange(3.0)
    cotangent = jaxviz.at("h", phase="cotangent")
    both = jaxviz.capture(f, cotangent, "h", cotangents=True)(x)[1]
    (alone,) = jaxviz.capture(f, cotangent)(x)[1].values()
    np.testing.assert_array_equal(alone, 2 * jnp.sin(x))
    np.testing.assert_array_equal(both[cotangent], both.cotangents["h"])

    def g(x):
        def body(y):
            z = y * 2.0
            return z

        return lax.while_loop(lambda y: y < 10.0, body, x)

    with pytest.raises(jaxviz.AddressError, match="in a while loop"):
        jaxviz.capture(g, jaxviz.at("z", iteration=1))(1.0)


# --- iterations and phases that are not there -------------------------------------------------------------------------


def in_scan(ws, x):
    def layer(h, w):
        pre = h @ w
        return jnp.tanh(pre), None

    return jnp.sum(lax.scan(layer, x, ws)[0])


@pytest.mark.parametrize("iteration", [5, -1])
def test_an_iteration_that_is_not_there(iteration):
    with pytest.raises(jaxviz.AddressError, match=f"iterations from 0 to 4, and no iteration {iteration}"):
        jaxviz.capture(in_scan, jaxviz.at("pre", iteration=iteration))(WS, X)
    with pytest.raises(jaxviz.AddressError, match=f"no iteration {iteration}"):
        jaxviz.replace(in_scan, {"pre": jnp.zeros_like}, iterations=[1, iteration])(WS, X)


def test_iterations_may_be_traced():
    without = lambda i: jaxviz.replace(in_scan, {"pre": jnp.zeros_like}, iterations=[i])(WS, X)
    each = np.array([without(i) for i in range(5)])
    same(jax.vmap(without)(jnp.arange(5)), each, 1e-6)
    same(jax.jit(without)(3), each[3], 1e-6)


def test_an_address_of_an_unknown_phase():
    with pytest.raises(ValueError, match="'backward'; it must be one of 'forward', 'recomputed', 'cotangent'"):
        jaxviz.at("pre", phase="backward")
    with pytest.raises(TypeError):
        jaxviz.at("pre", iteration="2")


def checkpointed(ws, x):
    def block(x, w):
        pre = x @ w
        is_large = pre > 0
        return jnp.tanh(pre) * is_large

    return jnp.sum(jax.checkpoint(block)(x, ws[0]) ** 2)


def test_a_phase_that_the_value_does_not_have():
    with pytest.raises(jaxviz.AddressError, match=r"no jax\.checkpoint, so its phases are 'forward' and 'cotangent', "
                       "not 'recomputed'; capture also returns cotangents with cotangents=True"):  # fmt: skip
        jaxviz.capture(in_scan, jaxviz.at("pre", phase="recomputed"))(WS, X)
    with pytest.raises(jaxviz.AddressError, match=r"bool\[8,4\], so its phases are 'forward' and 'recomputed', not"):
        jaxviz.capture(checkpointed, jaxviz.at("is_large", phase="cotangent")).where(WS, X)
    recomputed = jaxviz.at("pre", phase="recomputed")
    np.testing.assert_array_equal(jaxviz.capture(checkpointed, recomputed)(WS, X)[1][recomputed], X @ WS[0])


def test_what_a_checkpoint_in_a_gradient_holds_has_no_address():
    for f in (jax.grad(checkpointed), jax.grad(in_scan)):
        for phase in ("forward", "recomputed", "cotangent"):
            with pytest.raises(jaxviz.AddressError, match=r"no value at 'pre'\. `.*` takes a gradient itself"):
                jaxviz.capture(f, jaxviz.at("pre", phase=phase))(WS, X)


def test_there_is_no_value_number_0():
    with pytest.raises(jaxviz.AddressError, match="and no #0"):
        jaxviz.capture(in_scan, "pre #0")(WS, X)


def test_a_stack_of_another_length_is_not_put_back():
    with pytest.raises(TypeError, match=r"type f32\[3,8,4\], and must have a first axis of 5"):
        jaxviz.replace(in_scan, {"pre": jnp.zeros((3, 8, 4))})(WS, X)


@pytest.mark.parametrize(("f", "written"), [(in_scan, "h @ w"), (plain, "x @ ws[0]")])
def test_what_is_no_array(f, written):
    name, line = re.escape(written), r"\(at test_capture.py:\d+\)"
    for given in (lambda x: (x, x), lambda x: {"x": x}, lambda x: None, lambda x: "x"):
        kind = "None" if given(0) is None else f"of type {type(given(0)).__name__}"
        with pytest.raises(TypeError, match=rf"reduce= returns of {name} {line} is {kind}, and must be one array"):
            jaxviz.capture(f, written, reduce=given)(WS, X)
    for given in (None, {"x": 1}, lambda x: None, [1, [2]]):
        for values, cotangents, of in (({written: given}, None, ""), (None, {written: given}, " of the cotangent")):
            with pytest.raises(TypeError, match=rf"The replacement{of} of {name} {line} is .*, and must be one array"):
                jaxviz.replace(f, values, cotangents=cotangents)(WS, X)
    for given in (0.0, jnp.float32(0), lambda x: 0.0):
        with pytest.raises(TypeError, match=rf"{name} {line} has type f32\[\].* `lambda v: jnp.full_like\("):
            jaxviz.replace(f, {written: given})(WS, X)
    jaxviz.replace(f, {written: lambda v: jnp.full_like(v, 0.0)})(WS, X)


def test_a_number_is_captured_in_place_of_a_value():
    seen = jaxviz.capture(in_scan, "h @ w", reduce=lambda x: 3.0, cotangents=True)(WS, X)[1]
    np.testing.assert_array_equal([seen["h @ w"], seen.cotangents["h @ w"]], 3 * np.ones((2, 5)))


def score(x):
    scores = jnp.sin(x)
    return scores


@pytest.mark.parametrize(("n", "names"), [(1, ["scores"]), (3, ["scores #1 of 3", "scores #2 of 3", "scores #3 of 3"])])
def test_what_is_captured_is_told_apart(n, names):
    def loss(x):
        for _ in range(n):
            x = score(x)
        return jnp.sum(x)

    names = [name.replace("scores", "jnp.sin(x)") for name in names]
    assert [v.expression for v in jaxviz.capture(loss, "scores #*").where(X).values] == names


def test_what_is_captured_in_modules_is_told_apart():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = jnp.sin(x)
            return h + jnp.sin(h)

    model = nn.Sequential([Block(), Block()])
    loss = lambda x: jnp.sum(model.apply({}, x))
    values = jaxviz.capture(loss, "h #*").where(X).values
    assert [v.expression for v in values] == [f"Sequential/layers_{i} › jnp.sin(x)" for i in range(2)]
    assert [resolve(jaxviz.trace(loss)(X), jaxviz.at(v.expression)).values[0].assigned for v in values] == ["h", "h"]


def test_a_place_says_where_it_is():
    places = []
    zeros = lambda v, at: places.append(repr(at)) or jnp.zeros_like(v)
    jaxviz.replace(in_scan, {"pre": zeros})(WS, X)
    jaxviz.replace(checkpointed, {"pre": zeros})(WS, X)
    assert places == ["At('pre', iterations=(JitTracer(int32[]),))", "At('pre')"]


def test_one_iteration():
    whole, one = jaxviz.capture(in_scan, "pre"), jaxviz.capture(in_scan, at := jaxviz.at("pre", iteration=2))
    pre, of_one = whole(WS, X)[1]["pre"], one(WS, X)[1][str(at)]
    np.testing.assert_array_equal(of_one, pre[2])
    assert (one.nbytes(WS, X), one.where(WS, X).values[0].type) == (of_one.nbytes, "f32[8,4]")
    np.testing.assert_allclose(jaxviz.replace(in_scan, {at: of_one})(WS, X), in_scan(WS, X), rtol=1e-6)
    norm = jaxviz.capture(in_scan, at, reduce=jnp.linalg.norm)(WS, X)[1][str(at)]
    np.testing.assert_allclose(norm, jnp.linalg.norm(pre[2]), rtol=1e-6)


def test_one_iteration_around_devices():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def loss(ws, x):
        def layer(h, w):
            pre = jax.shard_map(lambda h: jnp.sin(h), mesh=mesh, in_specs=P("d"), out_specs=P("d"))(h @ w)
            return pre, None

        return jnp.sum(lax.scan(layer, x, ws)[0])

    whole = jaxviz.capture(loss, "jnp.sin(h)")(WS, X)[1]["jnp.sin(h)"]
    at = jaxviz.at("jnp.sin(h)", iteration=4)
    np.testing.assert_array_equal(jaxviz.capture(loss, at)(WS, X)[1][str(at)], whole[4])


def test_what_reduces_is_a_function():
    with pytest.raises(TypeError, match="reduce=3 must be a function of a value, such as"):
        jaxviz.capture(in_scan, "h @ w", reduce=3)


def test_the_name_of_a_probe_is_an_address():
    """A probe leaves nothing in a program, unless its name is asked for."""

    def loss(w, x):
        def layer(h, w):
            return jaxviz.probe(jnp.tanh(h @ w), "hidden"), None

        h, _ = jax.jit(lambda x: jax.lax.scan(layer, x, w))(x)
        return jnp.sum(jaxviz.probe({"h": h * 2.0}, "doubled")["h"])

    w, x = jnp.linspace(-1.0, 1.0, 48).reshape(3, 4, 4), jnp.linspace(0.0, 1.0, 8).reshape(2, 4)
    hidden = [x]
    for each in w:
        hidden.append(jnp.tanh(hidden[-1] @ each))
    value, seen = jaxviz.capture(loss, "hidden", "doubled.h", cotangents=True)(w, x)
    np.testing.assert_allclose(seen["hidden"], hidden[1:], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(seen["doubled.h"], 2 * hidden[-1], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(seen.cotangents["hidden"][-1], 2 * jnp.ones_like(x))
    np.testing.assert_allclose(value, loss(w, x), rtol=1e-6)
    zero = jaxviz.replace(loss, {"hidden": jnp.zeros_like}, iterations=[2])
    assert zero(w, x) == 0
    assert {v.address for v in jaxviz.record(loss, w, x, at=["hidden"]).values} == {"hidden"}
    assert "name[" not in str(jaxviz.trace(loss)(w, x))
    with pytest.raises(jaxviz.AddressError, match="'hiden'"):
        jaxviz.capture(loss, "hiden")(w, x)


def test_an_iteration_and_a_phase_are_of_every_value():
    """Of two loops the shorter one does not have the iteration; of two values one has no cotangent."""

    def loss(w, x):
        def layer(h, _):
            pre = h @ w
            return jnp.tanh(pre), None

        h, _ = jax.lax.scan(layer, x, None, length=3)
        h, _ = jax.lax.scan(layer, h, None, length=6)
        return jnp.sum(h)

    w, x = WS[0], X
    values = jaxviz.capture(loss, jaxviz.at("pre #*", iteration=2))(w, x)[1]
    assert len(values["pre #*, iteration 2"]) == 2 if "pre #*, iteration 2" in values else values
    with pytest.raises(jaxviz.AddressError, match="iterations from 0 to 2, and no iteration 5"):
        jaxviz.capture(loss, jaxviz.at("pre #*", iteration=5))(w, x)

    def masked(w, x):
        pre = x @ w
        first = jnp.tanh(pre)
        pre = first > 0
        return jnp.sum(first * pre)

    with pytest.raises(jaxviz.AddressError, match=r"bool\[8,4\], so its phases are 'forward'"):
        jaxviz.capture(masked, jaxviz.at("pre #*", phase="cotangent"))(w, x)
