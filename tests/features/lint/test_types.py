"""Types lost on the way, and sums in narrow types: the advice followed to the letter, and what JAX computes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from short_runs import short

import jaxviz
from benchmarks.remat_programs import SMALL

F32, BF16 = jnp.float32, jnp.bfloat16
N, D = 512, 64


def array(*shape, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


WS, X, SCALE, POSITIONS = array(3, D, D), array(N, D), array(D, dtype=F32), array(N, D, dtype=F32)
same = lambda y: y
back = lambda y: y.astype(BF16)
mean_square = lambda h: jnp.mean(h.astype(F32) ** 2)


def norm(h):
    wide = h.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)).astype(h.dtype)


def scaled(fix, p, x):
    h = jax.nn.gelu(fix(norm(x @ p["w"][0]) * p["scale"]))
    return mean_square(h @ p["w"][1] @ p["w"][2])


def by_numpy(number, fix, w, x):
    h = fix((x @ w[0]) / number)
    return mean_square(jnp.tanh(h) @ w[1])


def masked(fix, w, x, mask):
    h = fix(jnp.tanh(x @ w[0]) * mask)
    return mean_square(h @ w[1])


def with_positions(fix, w, x, positions):
    h = fix(x @ w[0] + positions)
    for i in (1, 2):
        h = h + jnp.tanh(h @ w[i])
    return mean_square(h @ w[0])


def embedded(fix, p, ids):
    h = fix(p["table"][ids])
    for i in range(3):
        h = jnp.tanh(h @ p["w"][i])
    return mean_square(h @ p["w"][0])


def converted(fix, w, x):
    h = jax.nn.gelu((x @ w[0]).astype(F32))
    return mean_square(fix(h) @ w[1])


def attended(fix, w, x):
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    weights = jax.nn.softmax(jnp.einsum("id,jd->ij", q, k, preferred_element_type=F32))
    return mean_square(fix(weights) @ v)


def scored(fix, w, x):
    q, k, v = x @ w[0], x @ w[1], x @ w[2]
    scores = (q @ k.T).astype(F32) if fix is back else q.astype(F32) @ k.astype(F32).T
    return mean_square(jax.nn.softmax(scores).astype(BF16) @ v)


def scanned(fix, w, x, scale):
    def layer(h, w):
        return (h + jnp.tanh(fix(norm(h) * scale) @ w)).astype(BF16), None

    return mean_square(lax.scan(layer, x, w)[0])


def recurrent(fix, w, xs):
    step = lambda h, x: (jnp.tanh(h @ w[0] + x @ w[1]), None)
    return mean_square(lax.scan(step, fix(jnp.zeros((8, D))), xs)[0])


def kernel(fix, w, image):
    conv = lambda x, w: lax.conv(x, w.astype(x.dtype), (1, 1), "SAME")
    h = fix(conv(image, w[0]) * np.float32(0.5))
    return mean_square(conv(jnp.tanh(h), w[1]))


WIDENED = {
    "a scale": (scaled, ({"w": WS, "scale": SCALE}, X), "since `p['scale']` is"),
    "a root of NumPy": (partial(by_numpy, np.sqrt(64)), (WS, X), "since the NumPy number 8 is"),
    "a NumPy number": (partial(by_numpy, np.float32(3)), (WS, X), "since the NumPy number 3 is"),
    "a mask": (masked, (WS, X, POSITIONS), "`jnp.tanh(x @ w[0]) * mask` is float32, since `mask` is"),
    "positions": (with_positions, (WS, X, POSITIONS), "as far as `h @ w[0]`"),
    "an embedding": (embedded, ({"table": array(100, D, dtype=F32), "w": WS}, array(N, dtype=jnp.int32)),
                     "since `p[\"table\"][ids]` is"),
    "a conversion": (converted, (WS, X), "computed from bfloat16"),
    "attention": (attended, (WS, X), "is float32, computed from bfloat16"),
    "scores": (scored, (WS, X), "multiply the values in jnp.bfloat16"),
    "layers in a scan": (scanned, (WS, X, SCALE), "since `scale` is"),
    "a carry": (recurrent, (WS, array(20, 8, D)), "start what the loop carries in jnp.bfloat16"),
    "an image": (kernel, (array(2, 4, 4, 3, 3), array(2, 4, 8, 8)), "since the NumPy number 0.5 is"),
}  # fmt: skip


def advice(rule, f, *args):
    return [a for a in jaxviz.lint(f, *args) if a.rule == rule]


def in_float32(f, args):
    """For both passes the FLOPs of products that read float32, and half the bytes of float32 results, without
    conversions; and the bytes that the gradient saves."""
    is_wide = lambda v: getattr(v.aval, "dtype", None) == F32
    d = jaxviz.derive(f, *args)
    flops, size = {"forward": 0, "backward": 0}, {"forward": 0, "backward": 0}
    for r in jaxviz.cost(d).rows:
        if r.primitive in ("dot_general", "conv_general_dilated") and any(map(is_wide, r.equation.invars)):
            flops[r.stage] += r.cost.flops
        if r.primitive != "convert_element_type":
            size[r.stage] += r.part.times * sum(2 * v.aval.size for v in r.equation.outvars if is_wide(v))
    return np.array([*flops.values(), *size.values(), d.residuals.saved.nbytes])


@pytest.mark.parametrize("name", WIDENED)
def test_the_advice_followed_to_the_letter(name):
    f, args, words = WIDENED[name]
    before, after = (partial(f, fix) for fix in (same, back))
    (a,) = advice("type-widened", before, *args)
    assert words in f"{a.text} {a.fix}", str(a)
    assert not advice("type-widened", after, *args)
    less = in_float32(before, args) - in_float32(after, args)
    forward, backward = (jaxviz.report.tables.format_flops(n) for n in less[:2])
    assert f"Products of {forward} forward and {backward} backward read float32" in a.text
    promised = [p.split(" less")[0] for p in a.text.split("takes ")[1].split("forward and ")]
    for n, text in zip(less[2:4], promised, strict=True):
        value, unit = text.split()
        assert n == pytest.approx(float(value) * {"KiB": 2**10, "MiB": 2**20}[unit], rel=0.02)
    assert a.nbytes == pytest.approx(less[4], rel=0.2)


def stream(fix, p, x):
    h = fix(x @ p["w"][0] + p["positions"])
    for i in (1, 2):
        h = h + jnp.tanh(back(h) @ p["w"][i])
    return mean_square(h)


def test_a_stream_between_products_of_16_bits():
    args = {"w": WS, "positions": POSITIONS}, X
    (a,) = advice("type-widened", partial(stream, same), *args)
    assert "since `p['positions']` is" in a.text
    assert "Products" not in a.text
    assert not advice("type-widened", partial(stream, back), *args)


def router(w, x):
    gates = jax.nn.softmax(x.astype(F32) @ w["router"]).astype(BF16)
    return mean_square((x @ w["up"]) * gates)


def of_normal_precision(w, x):
    h = jnp.tanh(x @ w[0])
    scores = h @ h.T
    return jnp.mean((jax.nn.softmax(scores) @ h @ w[1]) ** 2)


def with_weights_converted(w, x):
    for i in range(3):
        x = jnp.tanh(x @ w[i].astype(BF16))
    return mean_square(x)


def kept_sum(w, x):
    h, total = lax.scan(lambda c, w: ((back(jnp.tanh(c[0] @ w)), c[1] + jnp.sum(c[0].astype(F32))), None),
                        (x, jnp.zeros(())), w)[0]  # fmt: skip
    return mean_square(h) + total


WIDE_WS = array(3, D, D, dtype=F32)
NOT_WIDENED = {
    "norms": (lambda w, x: mean_square(norm(norm(x @ w[0]) @ w[1])), (WS, X)),
    "Python's numbers": (lambda w, x: mean_square(jnp.tanh((x @ w[0]) / 8.0 * 2) @ w[1]), (WS, X)),
    "softmax converted back": (lambda w, x: attended(back, w, x), (WS, X)),
    "sums of products in float32": (
        lambda w, x: mean_square(back(jnp.matmul(x, w[0], preferred_element_type=F32)) @ w[1]), (WS, X)),
    "a loss": (lambda w, x: -jnp.mean(jax.nn.log_softmax((x @ w[0]).astype(F32))[:, 0]), (WS, X)),
    "a loss of targets in float32": (lambda w, x, y: jnp.mean((x @ w[0] - y) ** 2), (WS, X, POSITIONS)),
    "data of 16 bits": (of_normal_precision, (WIDE_WS, X)),
    "parameters converted": (with_weights_converted, (WIDE_WS, X)),
    "a router": (router, ({"router": array(D, D, dtype=F32), "up": array(D, D)}, X)),
    "weights stored in 16 bits": (lambda w, x: mean_square(jnp.tanh(x @ w[0].astype(F32)) @ w[1].astype(F32)),
                                  (WS, POSITIONS)),
    "weight decay": (lambda w, x: mean_square(x @ w[0]) + jnp.sum(w.astype(F32) ** 2), (WS, X)),
    "a head in float32": (lambda p, x: mean_square(jnp.tanh((x @ p[0][0]).astype(F32) @ p[1][0]) @ p[1][1]),
                          ((WS, WIDE_WS), X)),
    "a sum in a loop": (kept_sum, (WS, X)),
    "a scale converted back": (lambda p, x: scaled(back, p, x), ({"w": WS, "scale": SCALE}, X)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_WIDENED)
def test_what_is_wide_on_purpose(name):
    f, args = NOT_WIDENED[name]
    assert not advice("type-widened", f, *args)


# --- sums -------------------------------------------------------------------------------------------------------------

ROWS = jnp.full((4096, 4), 0.1, BF16)
ROW, IDS = jnp.zeros(4, BF16), jnp.zeros(4096, int)
total = lambda h: jnp.sum(h.astype(F32))


def in_loop(w, xs):
    return total(lax.scan(lambda h, x: (h + (w.astype(BF16) * x).astype(F32), None), jnp.zeros(4), xs)[0])


SUMS = {
    "sum": (lambda x: total(jnp.sum(x, 0, dtype=BF16)), lambda x: total(jnp.sum(x, 0)), (ROWS,), "forward"),
    "einsum": (lambda x: total(jnp.einsum("ij->j", x)), lambda x: total(jnp.sum(x, 0)), (ROWS,), "forward"),
    "cumsum": (lambda x: total(jnp.cumsum(x, 0)[-1]), lambda x: total(back(jnp.cumsum(x, 0, dtype=F32))[-1]), (ROWS,),
               "forward"),
    "carry": (lambda x: total(lax.scan(lambda c, r: (c + r, None), jnp.zeros(4, BF16), x)[0]),
              lambda x: total(lax.scan(lambda c, r: (c + r, None), jnp.zeros(4, F32), x)[0]), (ROWS,), "forward"),
    "running sum": (lambda x: total(lax.scan(lambda c, r: (y := c + r, y), jnp.zeros(4, BF16), x)[1][-1]),
                    lambda x: total(lax.scan(lambda c, r: (y := c + r, y), jnp.zeros(4, F32), x)[1][-1]), (ROWS,),
                    "forward"),
    "window": (lambda x: total(lax.reduce_window(x, np.array(0, BF16), lax.add, (4096, 1), (1, 1), "VALID")),
               lambda x: total(jnp.sum(x, 0)), (ROWS,), "forward"),
    "segments": (lambda x: total(jax.ops.segment_sum(x, IDS, 2)),
                 lambda x: total(back(jnp.zeros((2, 4), F32).at[IDS].add(x))), (ROWS,), "forward"),
    "bias": (lambda b, x: total((b + x) * 0.1), lambda b, x: total(back(b.astype(F32) + x.astype(F32)) * 0.1),
             (ROW, ROWS), "backward"),
    "embedding": (lambda t, x: total(t[IDS] * x), lambda t, x: total(back(t.astype(F32)[IDS]) * x),
                  (jnp.zeros((3, 4), BF16), ROWS), "backward"),
    "weights of a loop": (
        lambda w, xs: total(lax.scan(lambda h, x: (h + (w * x).astype(F32), None), jnp.zeros(4), xs)[0]),
        lambda w, xs: in_loop(w.astype(F32), xs), (ROW, ROWS), "backward"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_a_narrow_sum_is_as_wrong_as_it_says_and_a_wide_one_is_not(name):
    before, after, args, phase = SUMS[name]
    found = [a for a in advice("narrow-sum", before, *args) if f"The {phase} pass sums" in a.text]
    assert len(found) == 1
    assert " 4,096 terms in bfloat16" in found[0].text
    assert not [a for a in advice("narrow-sum", after, *args) if f"The {phase} pass sums" in a.text]
    exact = 4 * 4096 * float(BF16(0.1))
    if phase == "forward":
        values = [float(jax.jit(f)(*args)) for f in (before, after)]
    else:
        values = [float(jnp.sum(jax.jit(jax.grad(f))(*args).astype(F32))) for f in (before, after)]
    wrong = [abs(v / exact - 1) for v in values]
    assert wrong[1] < 2**-8
    assert wrong[0] > 2 * 2**-8
    if "Added one by one" in found[0].text and "in pairs" not in found[0].text:
        assert 256 <= values[0] / 4 / float(BF16(0.1)) <= 512


REDUCED = {
    "lax.add": lambda x: lax.reduce(x, jnp.bfloat16(0), lax.add, (0,)),
    "a function": lambda x: lax.reduce(x, jnp.bfloat16(0), lambda a, b: a + b, (0,)),
    "two sums": lambda x: lax.reduce((x, -x), (jnp.bfloat16(0),) * 2, lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,))[0],
    "windows": lambda x: lax.reduce_window(
        lax.stop_gradient(x), jnp.bfloat16(0), lax.add, (4096, 1), (1, 1), "VALID")[0],
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCED)
def test_a_sum_by_a_function_that_adds(name):
    f = lambda x: total(x[0] * REDUCED[name](x))
    (a,) = advice("narrow-sum", f, ROWS)
    assert a.text.startswith("The function sums 4,096 terms in bfloat16 for `lax.reduce")
    sums = jax.jit(REDUCED[name])(ROWS).astype(F32)
    assert np.all(np.abs(sums / (4096 * float(BF16(0.1))) - 1) > 2 * 2**-8)


NOT_LOSSY = {
    "a maximum by a function": (lambda x: total(lax.reduce(x, jnp.bfloat16(0), lax.max, (0,))), (ROWS,)),
    "few by a function": (lambda x: total(lax.reduce(x, jnp.bfloat16(0), lax.add, (1,))), (ROWS,)),
    "a product in bfloat16": (lambda x: total(lax.dot_general(x, x, (((0,), (0,)), ((), ())),
                                                              preferred_element_type=BF16)), (ROWS,)),
    "jnp.sum": (lambda x: total(jnp.sum(x, 0) + jnp.mean(x, 0)), (ROWS,)),
    "a product": (lambda w, x: total(x.T @ x @ w), (jnp.ones((4, 4), BF16), ROWS)),
    "one element of each row": (lambda x: total(jnp.take_along_axis(x, IDS[:, None], -1)), (ROWS,)),
    "one element of each row, by numbers": (lambda x: total(x[jnp.arange(4096), IDS]), (ROWS,)),
    "distinct rows": (lambda x: total(x.at[jnp.arange(4096)].get(unique_indices=True)), (ROWS,)),
    "a maximum": (lambda x: total(x.max(0)), (ROWS,)),
    "few": (lambda b, x: total(b + x[:200]), (ROW, ROWS)),
    "float16": (lambda b, x: total(b + x), (ROW.astype(jnp.float16), ROWS[:2000].astype(jnp.float16))),
    "float32": (lambda b, x: total(b + x), (ROW.astype(F32), ROWS.astype(F32))),
    "a residual stream": (lambda w, x: total(lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), x, w)[0]),
                          (array(300, 4, 4), array(2, 4))),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_LOSSY)
def test_a_sum_that_loses_nothing(name):
    f, args = NOT_LOSSY[name]
    assert not advice("narrow-sum", f, *args)


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(SMALL), 3))
def test_models_of_mixed_precision_keep_their_types(name):
    case = SMALL[name]()
    assert not advice("type-widened", case.plain, *case.args)


COUNTED = {
    "from one": lambda n: jnp.arange(1, n + 1),
    "by twos": lambda n: jnp.arange(n) * 2,
    "backwards": lambda n: jnp.flip(n - jnp.arange(n)),
    "of a mask": lambda n: jnp.cumsum(jnp.arange(n) >= 0) - 1,
    "in two dimensions": lambda n: jnp.arange(n)[None, :] + jnp.zeros((3, 1), jnp.int32),
    "some of them": lambda n: jnp.where(jnp.arange(n) > 5, jnp.arange(n), 0)[::2],
    "in blocks": lambda n: jnp.arange(n // 4 * 4).reshape(-1, 4) + 7,
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", COUNTED)
def test_positions_are_advised_on_where_neighbours_become_equal(name, dtype):
    count, limit = COUNTED[name], 2 ** (jnp.finfo(dtype).nmant + 1)
    for n in (20, limit // 2 - 8, 2 * limit + 100):
        f = lambda x, n=n: jnp.sum(x * jnp.sin(count(n).astype(dtype)))
        integers = np.asarray(count(n))
        is_lost = bool((integers.astype(dtype).astype(np.int64) != integers).any())
        assert bool(advice("narrow-integers", f, jnp.ones((), dtype))) == is_lost
    (found,) = advice("narrow-integers", f, jnp.ones((), dtype))
    assert f"up to {integers.max():,} " in found.text or name in ("backwards", "of a mask", "some of them")


def test_a_count_of_positions_in_a_narrow_type_is_found_without_a_conversion():
    assert advice("narrow-integers", lambda x: jnp.sum(x * jnp.arange(300, dtype=x.dtype)), jnp.ones((), jnp.bfloat16))


@pytest.mark.parametrize("f", [
    lambda x: x * jnp.sum(jnp.arange(4096) >= 0).astype(x.dtype),  # one number, off by a digit
    lambda x: x * jnp.arange(4096)[4001].astype(x.dtype),
    lambda x: jnp.sum(x * jnp.sin(jnp.arange(4096) * 0.01).astype(x.dtype)),
    lambda x: jnp.sum(x * (jnp.arange(4096) % 7 == 0).astype(x.dtype)),
])  # fmt: skip
def test_other_integers_in_a_narrow_type_are_fine(f):
    assert not advice("narrow-integers", f, jnp.ones((), jnp.bfloat16))


def test_long_chains_of_integers_take_no_time():
    def f(x):
        n = jnp.arange(300)
        for _ in range(2000):
            n = n * n + n
        return jnp.sum(x * n.astype(x.dtype))

    (found,) = advice("narrow-integers", f, jnp.ones((), jnp.bfloat16))
    assert "up to 2,147,483,647 in bfloat16" in found.text
