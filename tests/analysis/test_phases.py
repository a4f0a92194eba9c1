"""Which values of a function, or their cotangents, the equations of derived programs compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz
from jaxviz.analysis.addresses import resolve
from jaxviz.analysis.phases import phases_of
from jaxviz.analysis.walk import with_holders

X = jnp.linspace(0.5, 2.0, 4)


def plain(x):
    h = jnp.sin(x) * 2.0
    return jnp.sum(h * jnp.exp(h))


def in_scan(x):
    def body(h, w):
        a = jnp.tanh(h * w)
        return a, jnp.sum(a)

    h, sums = lax.scan(body, x, jnp.stack([x, x + 1.0, x * x]))
    return jnp.sum(h) + jnp.sum(sums)


def twice(x):
    @jax.jit
    def squared(y):
        z = jnp.cos(y) * y
        return z * z

    return jnp.sum(squared(squared(x) + 1.0))


def recomputing(x):
    @jax.checkpoint
    def layer(h, w):
        a = jnp.tanh(h * w)
        return jnp.sin(a) + h, None

    return jnp.sum(lax.scan(layer, x, jnp.stack([x, x * x]))[0])


def recomputing_layers(x):
    @jax.checkpoint
    def layer(h, w):
        a = jnp.tanh(h * w)
        b = jnp.exp(a)
        return b * a

    for w in (x, x + 1.0, 2.0 * x):
        x = layer(x, w)
    return jnp.sum(x)


PROGRAMS = (plain, in_scan, twice, recomputing, recomputing_layers)


def stages(derivation):
    return [getattr(derivation, stage) for stage in ("primal", "jvp", "forward", "backward")]


@pytest.mark.parametrize("f", PROGRAMS)
def test_each_address_means_the_value_again(f):
    d = jaxviz.derive(f, X)
    phases = phases_of(d)
    found = [
        (phases.address(e, within, i), phases.of(e, within, i))
        for program in stages(d)
        for e, within in with_holders(program)
        for i in range(len(e.outvars))
    ]
    again = {"recomputed"} if f in (recomputing, recomputing_layers) else set()
    assert {what.phase for _, what in found if what} == {"forward", "cotangent", *again}
    for address, what in found:
        if what is not None:
            assert resolve(d.primal, address).values == (what.value,)
            assert address.phase == what.phase


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("phase", ["forward", "cotangent"])
def test_a_run_stops_at_the_value_that_jax_computes(f, phase):
    """Each address of an equation of the forward or backward program, in each iteration."""
    d = jaxviz.derive(f, X)
    phases = phases_of(d)
    program = d.forward if phase == "forward" else d.backward
    addresses = {
        phases.address(e, within, i).text: phases.address(e, within, i)
        for e, within in with_holders(program)
        for i in range(len(e.outvars))
        if (what := phases.of(e, within, i)) and what.phase == phase
    }
    assert addresses
    seen = jaxviz.capture(f, *addresses, cotangents=True)(X)[1]
    for text in addresses:
        (value,) = resolve(d.primal, jaxviz.at(text)).values
        iterations = range(value.runs) if value.loops else [None]
        for i in iterations:
            address = jaxviz.at(text, iteration=i, phase=phase)
            s = jaxviz.step(f, X).run(at=address)
            assert s.hit is not None, address
            of = seen.cotangents if phase == "cotangent" else seen
            expected = of[text] if i is None else of[text][i]
            results = [s.machine.value(s.position, v) for v in s.equation.outvars]
            assert any(r.shape == expected.shape and np.allclose(r, expected, rtol=1e-5, atol=1e-6) for r in results), (
                address
            )


def test_a_run_stops_in_a_checkpoint_alone_and_in_one_iteration():
    s = jaxviz.step(recomputing, X)
    stops = []
    while s.run(at=jaxviz.at("a", phase="recomputed")).hit is not None:
        stops.append((s.position.stage, s.position.path[0].iteration))
    assert stops == [("backward", 1), ("backward", 0)]
    s = jaxviz.step(recomputing, X)
    stops = []
    while s.run(at=jaxviz.at("a", iteration=1)).hit is not None:
        stops.append((s.position.stage, s.position.path[0].iteration))
    assert stops == [("forward", 1), ("backward", 1)]
    s = jaxviz.step(twice, X).run(at="z #2")
    assert s.position.path[0].index > jaxviz.step(twice, X).run(at="z #1").position.path[0].index
