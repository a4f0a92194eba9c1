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
    assert "2 of 5 donated arguments save 60 B; 88 B donated without effect" in str(report)
    assert "result[0][&#x27;b&#x27;]" in report._repr_html_()
    assert report.to_dict()["donated"][0]["result"] == "result[0]['b']"


FUNCTIONS = {
    "each its own": lambda x, y: (x + 1, y * 2),
    "crossed": lambda x, y: (y + x.sum(), x * y),
    "one result": lambda x, y: x + y,
    "a loop that reads what it starts from": lambda x, y: jax.lax.fori_loop(0, 5, lambda i, c: c @ x, x),
    "a scan's carry": lambda x, y: jax.lax.scan(lambda c, _: (c * 2, None), x, None, length=3)[0],
    "none": lambda x, y: (x.sum(), y.T @ jnp.ones((30, 2))),
}


@pytest.mark.parametrize("fun", FUNCTIONS.values(), ids=FUNCTIONS)
def test_what_is_reused_is_what_xla_says_and_what_is_deleted(fun):
    f = jax.jit(fun, donate_argnums=(0, 1))
    given = [jnp.ones((30, 30)), jnp.ones((30, 30)) * 2]
    report = jaxviz.donation(f, *given)
    compiled = f.lower(*given).compile()
    assert sum(d.nbytes for d in report.donated if d.result) == compiled.memory_analysis().alias_size_in_bytes
    f(*given)
    assert [bool(d.result) for d in report.donated if "nothing reads" not in d.reason] == [
        x.is_deleted() for x, d in zip(given, report.donated, strict=True) if "nothing reads" not in d.reason
    ]


def test_a_copy_that_undoes_what_is_spared():
    """XLA's temporary memory is the oracle: with donation it grows by the size of the copy."""
    crossed = FUNCTIONS["crossed"]
    x = jnp.ones((100, 100))
    report = jaxviz.donation(jax.jit(crossed, donate_argnums=(0, 1)), x, x + 1)
    memory = [
        jax.jit(crossed, donate_argnums=donated).lower(x, x).compile().memory_analysis() for donated in ((0, 1), ())
    ]
    assert memory[0].temp_size_in_bytes - memory[1].temp_size_in_bytes == 2 * x.nbytes
    assert [d.is_copied for d in report.donated] == [True, True]
    assert report.spared == 0
    assert "XLA copies it first" in str(report)
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
    x = jnp.ones(3)
    assert "x is donated and is the same array as y" in str(jaxviz.donation(f, x, x))
    with pytest.raises(Exception, match="donated in the same call"):
        f(x, x)


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
