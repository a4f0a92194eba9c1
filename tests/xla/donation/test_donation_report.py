"""The effects of donation, compared with what XLA compiled and what happens to the arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


def step(params, grads, n, k=2):
    return {name: p - k * grads[name] for name, p in params.items()}, grads["w"].sum()


def params():
    return {"w": jnp.ones((4, 3)), "b": jnp.ones(3)}


def test_paths_bytes_and_reasons():
    f = jax.jit(step, donate_argnums=(0, 1, 2), static_argnames="k")
    report = jaxviz.donation(f, params(), params(), jnp.ones(7), k=3)
    assert [(d.path, d.result, d.nbytes) for d in report.donated] == [
        ("params['b']", "result[0]['b']", 12), ("params['w']", "result[0]['w']", 48),
        ("grads['b']", "", 12), ("grads['w']", "", 48), ("n", "", 28),
    ]  # fmt: skip
    assert "the only result of type f32[3], result[0]['b'], reuses" in report.donated[2].reason
    assert "nothing reads it" in report.donated[4].reason
    assert (report.spared, report.unused) == (60, 88)
    assert report.summary.endswith(
        "results reuse 2 of 5 donated arguments, which saves 60 B (208 B → 148 B); 88 B donated without effect"
    )
    assert "result[0][&#x27;b&#x27;]" in report._repr_html_()
    assert report.to_dict()["donated"][0]["result"] == "result[0]['b']"


def copied_early(p, m):
    new = m + p
    p = jax.lax.cond(m.sum() > 0, lambda p: p - m, lambda p: p, p)
    return p, new, jnp.sum(jnp.sort(jnp.concatenate([p] * 8) @ new))


FUNCTIONS = {
    "each its own": lambda x, y: (x + 1, y * 2),
    "crossed": lambda x, y: (y + x.sum(), x * y),
    "one result": lambda x, y: x + y,
    "a loop that reads what it starts from": lambda x, y: jax.lax.fori_loop(0, 5, lambda i, c: c @ x, x),
    "a scan's carry": lambda x, y: jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0],
    "copies that are gone before the peak": copied_early,
    "none": lambda x, y: (x.sum(), y.T @ jnp.ones((30, 2))),
}


def taken(fun, donated, *args):
    """The bytes that a call takes by XLA's figures."""
    m = jax.jit(fun, donate_argnums=donated).lower(*args).compile().memory_analysis()
    return m.argument_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes


@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_is_reused_is_what_xla_says_and_what_is_deleted(fun):
    f = jax.jit(fun, donate_argnums=(0, 1))
    given = [jnp.ones((30, 30)), jnp.ones((30, 30)) * 2]
    report = jaxviz.donation(f, *given)
    compiled = f.lower(*given).compile()
    assert sum(d.nbytes for d in report.donated if d.result) == compiled.memory_analysis().alias_size_in_bytes
    assert report.spared == taken(fun, (), *given) - taken(fun, (0, 1), *given)
    f(*given)
    assert [bool(d.result) for d in report.donated if "nothing reads" not in d.reason] == [
        x.is_deleted() for x, d in zip(given, report.donated, strict=True) if "nothing reads" not in d.reason
    ]


def test_a_copy_may_undo_what_is_spared():
    """XLA's temporary memory is the oracle: with donation it grows by the size of the copy, if the copy is there at the peak."""
    crossed = FUNCTIONS["crossed"]
    x = jnp.ones((100, 100))
    report = jaxviz.donation(jax.jit(crossed, donate_argnums=(0, 1)), x, x + 1)
    assert [d.is_copied for d in report.donated] == [True, True]
    assert report.memory == (taken(crossed, (0, 1), x, x), taken(crossed, (), x, x))
    assert (report.spared, report.unused) == (0, 0)
    assert "which saves nothing: the call takes 156.3 KiB without it, too" in " ".join(str(report).split())
    assert "XLA copies it first" in str(report)
    early = jaxviz.donation(jax.jit(copied_early, donate_argnums=(0, 1)), x, x + 1)
    assert [d.is_copied for d in early.donated] == [True, True]
    assert early.spared == 2 * x.nbytes
    plain = jaxviz.donation(jax.jit(FUNCTIONS["each its own"], donate_argnums=(0, 1)), x, x + 1)
    assert (plain.spared, plain.unused) == (2 * x.nbytes, 0)


def test_what_could_be_donated():
    report = jaxviz.donation(jax.jit(step), params(), params(), jnp.ones(7))
    assert report.others == (("params['b']", 12, "result[0]['b']"), ("params['w']", 48, "result[0]['w']"))
    assert "it donates no argument" in report.summary
    assert "could save 60 B" in report.advice[0]
    assert "Donating params['w'] (to result[0]['w'], 48 B), params['b'] (to " in " ".join(str(report).split())
    whole = jaxviz.donation(jax.jit(step, donate_argnums=0), params(), params(), jnp.ones(7))
    assert whole.others == ()
    assert whole.spared == sum(n for _, n, _ in report.others)


def test_notes_on_the_arguments():
    f = jax.jit(lambda x, y: (x + 1, y * 2), donate_argnums=0)
    assert "x: not on a device" in str(jaxviz.donation(f, np.ones(3), jnp.ones(3)))


def both(p, q):
    return jax.tree.map(jnp.sin, p), jax.tree.map(jnp.cos, q)


TWICE = {
    "two pairs": (both, (0, 1), lambda x: ({"w": x, "b": x + 1},) * 2, "p['b'] and q['b']; p['w'] and q['w']"),
    "only one of them donated": (both, 0, lambda x: (x, x), "p and q"),
    "three times": (lambda x, y, z: (x + y, z), 2, lambda x: (x, x, x), "x, y and z"),
    "two arrays with one buffer": (both, (0, 1), lambda x: (x, jax.device_put(x, x.device)), "p and q"),
    "layers": (both, 0, lambda x: ([x, x + 1],) * 2, "p[0…1] and q[0…1]"),
    "keys": (lambda x, y: (x, y), 0, lambda x: (jax.random.key(0),) * 2, "x and y"),
    "an empty one": (both, (0, 1), lambda x: (x[:0],) * 2, "p and q"),
    "two empty ones": (both, (0, 1), lambda x: (x[:0], x[:0]), ""),
    "copied": (both, (0, 1), lambda x: (x, jnp.copy(x)), ""),
    "a donation that has no effect": (lambda x, y: jnp.sum(x + y), 0, lambda x: (x, x), ""),
    "one that nothing reads": (lambda x, y: x + 1, 0, lambda x: (x, x), ""),
}


@pytest.mark.parametrize(("fun", "donated", "args", "same"), TWICE.values(), ids=TWICE)
def test_an_array_that_is_passed_twice_and_donated_makes_the_call_fail(fun, donated, args, same):
    f, args = jax.jit(fun, donate_argnums=donated), args(jnp.ones(3))
    report = jaxviz.donation(f, *args)
    assert bool(report.twice) == bool(same)
    if same:
        assert report.summary.endswith(f": the call fails, because a donated array is passed twice: {same}")
        assert "Copy all but one of them" in report.advice[0]
        with pytest.raises(Exception, match="buffer"):
            f(*args)
    else:
        f(*args)


def test_a_result_that_is_laid_out_otherwise():
    mesh = jax.make_mesh((2,), ("i",), devices=jax.devices()[:2])
    rows, whole = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
    x = jax.device_put(jnp.ones((4, 4)), rows)
    f = jax.jit(lambda x: x * 2, donate_argnums=0, out_shardings=whole)
    (found,) = jaxviz.donation(f, x).donated
    assert "has its type but the layout replicated, and the argument has P('i')" in found.reason
    f(x)
    assert found.result == ""


def test_functions_of_jaxviz_and_functions_that_are_not_jitted():
    f = jaxviz.jit(step, donate_argnums=0)
    assert jaxviz.donation(f, params(), params(), 1.0).spared == 60
    with pytest.raises(TypeError, match=r"step is not jitted: pass jax\.jit\(step"):
        jaxviz.donation(step, params(), params(), 1.0)
