"""The address of where a NaN is born means that value: for `capture`, and for a run of the debugger."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz


def plain(x):
    shifted = x - 1.0
    logs = jnp.log(shifted)
    return jnp.sum(logs * 2.0)


def in_iteration_2(x):
    def body(h, w):
        a = h - w
        return a, jnp.log(a)

    return jnp.sum(lax.scan(body, x, jnp.arange(4.0))[1])


def from_the_last(x):
    """A reverse scan reads the slices from the last one on."""

    def body(h, w):
        a = h - w
        return a, jnp.sqrt(a)

    return jnp.sum(lax.scan(body, x, jnp.array([9.0, 1.0, 1.0]), reverse=True)[1])


def backward(x):
    y = x * 2.0
    return jnp.sum(jnp.sqrt(y))


def backward_in_scan(x):
    def body(h, w):
        d = h * w
        return h, jnp.sqrt(d)

    return jnp.sum(lax.scan(body, x, jnp.array([3.0, 0.0, 1.0]))[1])


def recomputed(x):
    @jax.checkpoint
    def layer(h, w):
        r = jnp.sqrt(h - w)
        return jnp.sin(r) * 3.0, None

    return jnp.sum(lax.scan(layer, x, jnp.arange(3.0))[0])


def called_twice(x):
    @jax.jit
    def inverse(y):
        z = y - 1.0
        return 1.0 / z

    return jnp.sum(inverse(inverse(x)))


def in_a_library(x):
    masked = jnp.where(x > 1e3, x, -jnp.inf)
    return jnp.sum(jax.nn.softmax(masked) * x)


def came_in(x):
    h = jnp.sin(x)
    return jnp.sum(h)


CASES = {
    plain: (jnp.array([2.0, 0.5]), "logs", None, "forward"),
    in_iteration_2: (jnp.float32(2.5), "jnp.log(a)", 2, "forward"),
    from_the_last: (jnp.float32(3.0), "jnp.sqrt(a)", 0, "forward"),
    backward: (jnp.array([0.0, 1.0]), "y", None, "cotangent"),
    backward_in_scan: (jnp.float32(1.0), "d", 1, "cotangent"),
    recomputed: (jnp.array([2.0, 7.0]), "r", 2, "forward"),
    called_twice: (jnp.array([2.0, 3.0]), "1.0 / z #2", None, "forward"),
    in_a_library: (jnp.ones(3), "jax.nn.softmax(masked)", None, "forward"),
    came_in: (jnp.array([jnp.nan, 1.0]), "h", None, "forward"),
}


@pytest.mark.parametrize("f", CASES)
def test_the_address_means_the_value_that_is_not_finite(f):
    x, text, iteration, phase = CASES[f]
    address = jaxviz.find_nan(f, x).address
    assert repr(address) == repr(jaxviz.at(text, iteration=iteration, phase=phase))
    (seen,) = jaxviz.capture(f, address)(x)[1].values()
    assert not np.isfinite(seen).all()
    stepper = jaxviz.step(f, x).run(at=address)
    assert stepper.stage == ("backward" if phase == "cotangent" else "forward")
    results = [stepper.machine.value(stepper.position, v) for v in stepper.equation.outvars]
    assert any(np.shape(r) == seen.shape and np.array_equal(r, seen, equal_nan=True) for r in results)
    before = [i for i in range(iteration or 0) if f is not from_the_last]
    for i in before if phase == "forward" else ():
        (earlier,) = jaxviz.capture(f, jaxviz.at(text, iteration=i))(x)[1].values()
        assert np.isfinite(earlier).all()


def test_it_is_the_address_of_the_birth_unless_that_is_inside_of_something():
    assert (found := jaxviz.find_nan(plain, CASES[plain][0])).born.address == found.address
    inside = jaxviz.find_nan(in_a_library, CASES[in_a_library][0])
    assert inside.born.address is None
    assert inside.to_dict()["address"] == {"text": "jax.nn.softmax(masked)", "iteration": None, "phase": "forward"}
    assert repr(jaxviz.find_nan(backward_in_scan, 1.0).address) == "at('d', iteration=1, phase='cotangent')"


def test_what_no_address_means_has_none():
    """The cotangent of an argument."""
    assert jaxviz.find_nan(lambda x: jnp.sum(jnp.sqrt(x)), jnp.zeros(2)).address is None


def test_the_address_is_found_again_after_an_edit():
    def edited(x):
        moved = x - 1.0
        renamed = jnp.log(moved)
        return 2.0 * jnp.sum(renamed * 2.0)

    x = CASES[plain][0]
    (seen,) = jaxviz.capture(edited, jaxviz.find_nan(plain, x).address)(x)[1].values()
    assert np.isnan(seen).tolist() == [False, True]


def test_a_training_step_has_addresses_of_its_own_values():
    def step(x):
        scaled = jnp.log(x) * 2.0
        return x - 0.1 * jax.grad(lambda v: jnp.sum(v * v))(scaled)

    x = jnp.array([1.0, -1.0])
    address = jaxviz.find_nan(step, x).address
    assert address.text == "jnp.log(x)"


def test_certain_values_alone_are_asked_about():
    def f(x):
        return jaxviz.capture(in_iteration_2, "a")(x)[1]

    assert jaxviz.find_nan(f, jnp.float32(2.5)) is None
    found = jaxviz.find_nan(f, jnp.float32(jnp.inf))
    assert found.results == ("the result['a']",)


def with_a_cond(x):
    def inside(y):
        low = y - 2.0
        return jnp.log(low)

    chosen = lax.cond(x[0] > 0, inside, jnp.sin, x)
    moved = chosen + 1.0
    return jnp.sum(moved)


def with_jit(x):
    @jax.jit
    def inner(y):
        r = jnp.sqrt(y)
        s = r * 2.0
        return s

    a = inner(x)
    b = a @ a
    return b


def nested_scans(x):
    def outer(h, v):
        def inner(g, w):
            t = g - w
            return jnp.sqrt(t), t

        k = lax.scan(inner, h, v)[0]
        m = k + 0.5
        return m, None

    last = lax.scan(outer, x, jnp.array([[0.5, 0.1], [0.1, 2.0], [0.1, 0.1]]))[0]
    return last * 2.0


def in_while(x):
    def body(c):
        i, h = c
        h = jnp.log(h)
        k = h * 1.5
        return i + 1, k

    end = lax.while_loop(lambda c: c[0] < 4, body, (0, x))[1]
    return end + 0.0


def through_a_scan(x):
    """Backward, through layers that are recomputed."""

    @jax.checkpoint
    def layer(h, w):
        q = h * w
        s = jnp.sin(q)
        return s * s, None

    h, _ = lax.scan(layer, x * 1.0, jnp.arange(1.0, 4.0))
    return jnp.sum(jnp.sqrt(h))


def through_nested_scans(x):
    def outer(h, v):
        g = h * v
        k = lax.scan(lambda c, w: (jnp.sin(c) * w, None), g, jnp.arange(1.0, 3.0))[0]
        return k * v, None

    last = lax.scan(outer, x, jnp.arange(1.0, 4.0))[0]
    return jnp.sum(jnp.sqrt(last))


def of_layers(x):
    def layer(h, w):
        u = h * w
        return jnp.log(u)

    for w in (1.0, 2.0, 3.0):
        x = layer(x, w)
    return jnp.sum(x)


def at(text, iteration=None, phase="forward"):
    return repr(jaxviz.at(text, iteration=iteration, phase=phase))


SCANNED = "lax.scan(outer, x, jnp.array([[0.5, 0.1], [0.1, 2.0], [0.1, 0.1]]))"
INNER = "lax.scan(lambda c, w: (jnp.sin(c) * w, None), g, jnp.arange(1.0, 3.0))"
CHAINS = {
    plain: (CASES[plain][0], [at("jnp.sum(logs * 2.0)")]),
    with_jit: (jnp.array([1.0, -1.0]), [at("b")]),
    with_a_cond: (jnp.array([3.0, 1.0]), [at("jnp.log(low)"), at("chosen"), at("jnp.sum(moved)")]),
    nested_scans: (
        jnp.float32(2.0),
        [at("jnp.sqrt(t)", 1), at("lax.scan(inner, h, v)", 1), at("m", 1), at(SCANNED), at("last * 2.0")],
    ),
    from_the_last: (
        CASES[from_the_last][0],
        [at("jnp.sqrt(a)", 0), at("jnp.sum(lax.scan(body, x, jnp.array([9.0, 1.0, 1.0]), reverse=True)[1])")],
    ),
    recomputed: (
        CASES[recomputed][0],
        [at("jnp.sin(r) * 3.0", 2), at("jnp.sum(lax.scan(layer, x, jnp.arange(3.0))[0])")],
    ),
    of_layers: (jnp.array([3.0, 1.0]), [at("jnp.sum(x)")]),
    called_twice: (CASES[called_twice][0], [at("1.0 / z #2"), at("jnp.sum(inverse(inverse(x)))")]),
    backward: (CASES[backward][0], [None, None]),
    through_a_scan: (jnp.array([0.0, 1.0]), [None, at("h #1", phase="cotangent"), None, None]),
    through_nested_scans: (
        jnp.array([0.0, 1.0]),
        [
            None,
            at("lax.scan(outer, x, jnp.arange(1.0, 4.0))", None, "cotangent"),
            at(INNER, 2, "cotangent"),
            None,
            at("g", 2, "cotangent"),
            None,
            None,
        ],
    ),
}


@pytest.mark.parametrize("f", CHAINS)
def test_the_addresses_of_a_way_mean_its_values(f):
    x, written = CHAINS[f]
    chain = jaxviz.find_nan(f, x).chain
    assert [p.address and repr(p.address) for p in chain] == written
    for p in chain:
        if p.address is not None:
            (seen,) = jaxviz.capture(f, p.address)(x)[1].values()
            # Of nested loops, the address has the iteration of the inner one.
            there = seen if f is not nested_scans or seen.ndim == 0 else seen[~np.isfinite(seen)][:1]
            assert (np.isnan(there).sum(), np.isinf(there).sum()) == (p.value.n_nan, p.value.n_inf)
            of_later = f in (from_the_last, nested_scans) or p.address.phase == "cotangent"
            for i in () if of_later else range(p.address.iteration or 0):
                (earlier,) = jaxviz.capture(f, jaxviz.at(p.address.text, iteration=i))(x)[1].values()
                assert np.isfinite(earlier).all()


def test_the_way_through_a_while_loop_leads_a_run_of_the_debugger():
    """A capture has only the last iteration of one."""
    *_, looped, end, last = jaxviz.find_nan(in_while, jnp.float32(3.0)).chain
    assert [repr(p.address) for p in (looped, last)] == [at("k", 3), at("end + 0.0")]
    stepper = jaxviz.step(in_while, jnp.float32(3.0)).run(at=looped.address)
    assert all(not np.isfinite(stepper.machine.value(stepper.position, v)) for v in stepper.equation.outvars)
    (seen,) = jaxviz.capture(in_while, end.address)(jnp.float32(3.0))[1].values()
    assert np.isnan(seen)


def test_a_way_says_an_address_that_its_lines_do_not():
    text = " ".join(str(jaxviz.find_nan(with_a_cond, CHAINS[with_a_cond][0])).split())
    assert "`return jnp.log(low)`: log, forward test_nan" in text
    text = " ".join(str(found := jaxviz.find_nan(in_iteration_2, CASES[in_iteration_2][0])).split())
    assert "`return a, jnp.log(a)`: log, forward, at('jnp.log(a)', iteration=2) test_nan" in text
    assert found.to_dict()["chain"][0]["address"] == {"text": "jnp.log(a)", "iteration": 2, "phase": "forward"}
    assert "jnp.log(a), in iteration 2" in found._repr_html_()
