"""The effects of donation, compared with what XLA compiled and what happens to the arrays."""

import jax
import jax.numpy as jnp
import pytest
import transcripts

import jaxviz

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


@transcripts.of("donation")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


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
    """XLA's temporary memory is the oracle: donated, it grows by the size of the copy, if it is there at the peak."""
    x = jnp.ones((100, 100))

    def found(fun):
        report = jaxviz.donation(jax.jit(fun, donate_argnums=(0, 1)), x, x + 1)
        assert report.memory == (taken(fun, (0, 1), x, x), taken(fun, (), x, x))
        return [d.is_copied for d in report.donated], report.spared, report.unused

    assert found(FUNCTIONS["crossed"]) == ([True, True], 0, 0)
    assert found(copied_early)[:2] == ([True, True], 2 * x.nbytes)
    assert found(FUNCTIONS["each its own"]) == ([False, False], 2 * x.nbytes, 0)


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


def test_what_holds_no_array_is_no_argument():
    """Neither None, nor what nothing reads, has a buffer: JAX's args_info says which arguments do."""
    f = jax.jit(lambda p, mask, x: ({"w": p["w"] * 2, "m": None}, x + 1), donate_argnums=(0, 1, 2))
    args = {"w": jnp.ones(3), "m": None, "rest": (), "unread": jnp.ones(2)}, None, jnp.ones(4)
    report = jaxviz.donation(f, *args)
    infos = jax.tree.leaves(f.trace(*args).args_info, is_leaf=lambda x: hasattr(x, "donated"))
    assert len(report.donated) == sum(i.donated for i in infos)
    shown = jaxviz.jit(f, donate_argnums=(0, 1, 2)).report(*args)
    taken = f.lower(*args).compile().memory_analysis().argument_size_in_bytes
    assert sum(p.nbytes_per_device or 0 for p in shown.arguments) == taken
    assert "; 1 of 1 donated argument reused, 16 B" in jaxviz.jit(jnp.sin, donate_argnums=0).report(args[2]).summary
