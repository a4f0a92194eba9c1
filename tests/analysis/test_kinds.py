"""What is found once for a kind of equations is what would be found for each of them."""

import jax
import jax.numpy as jnp
import pytest
from programs import CASES

import jaxviz
from jaxviz.analysis.grouping import repetition
from jaxviz.analysis.kinds import Kinds, kinds_of
from jaxviz.analysis.modules import call_path, module_of
from jaxviz.analysis.naming import Naming, naming_of
from jaxviz.analysis.walk import Reader, library_location_of, location_of, with_holders
from jaxviz.derivation import STAGES


def layer(x, p):
    h = jnp.tanh(x @ p["w1"])
    with jax.named_scope("second"):
        return x + jnp.where(h > 0, h, jax.nn.gelu(h)) @ p["w2"]


def loss(params, x):
    for p in params:
        x = layer(x, p)
    return (layer(x, params[0]) ** 2).sum()


PARAMS = [{"w1": jnp.ones((3, 4)), "w2": jnp.ones((4, 3))}] * 3
LAYERS = jaxviz.derive(loss, PARAMS, jnp.ones((2, 3)))


def equations_of(derivation):
    return [pair for stage in STAGES for pair in with_holders(getattr(derivation, stage))]


def told(equation, within):
    """What reports say of an equation from itself and those around it."""
    reader = Reader(equation, within)
    return (
        equation.operation, reader.operation, reader.location, reader.roles, reader.computes_again,
        location_of(equation, within), library_location_of(equation, within), module_of(equation, within),
        call_path(equation), repetition(equation, within),
    )  # fmt: skip


def test_layers_are_of_the_same_kinds():
    kinds = Kinds()
    *layers, elsewhere = [kinds(e) for e in LAYERS.primal.equations if e.programs]
    assert len(layers) >= 3
    assert len(set(layers)) == len(layers) // 3
    assert elsewhere != layers[0]  # called on another line
    assert len({kinds(e) for e, _ in equations_of(LAYERS)}) < len(equations_of(LAYERS)) / 2


def test_equations_of_different_rules_are_of_different_kinds():
    derivation, kinds = jaxviz.derive(lambda x, y: x * y + x, 1.0, 2.0, argnums=(0, 1)), Kinds()
    (product, total), jvp = derivation.primal.equations, derivation.jvp.equations
    derived = {e.origin.role: kinds(e) for e in jvp if e.origin.equation is product}
    assert derived.keys() == {"primal", "tangent"}
    assert len({kinds(product), *derived.values()}) == 3
    assert kinds(total) not in {kinds(e) for e in jvp}


@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.name)
def test_equations_of_one_kind_are_described_alike(case):
    derivation = jaxviz.derive(case.fun, *case.args)
    check(derivation, [s for s in STAGES if can_be_derived(derivation, s)])


def test_layers_are_described_alike():
    check(LAYERS, STAGES)


def can_be_derived(derivation, stage):
    try:
        return getattr(derivation, stage) is not None
    except Exception:
        return False


def check(derivation, stages):
    kinds, first = kinds_of(derivation), {}
    for stage in stages:
        for e, within in with_holders(getattr(derivation, stage)):
            known = first.setdefault(kinds.place(e, within), (e, within))
            assert told(e, within) == told(*known)


def test_names_are_those_of_each_value_alone():
    """Whether a value is that of a whole expression depends on its readers, which the kind does not tell."""
    shared = naming_of(LAYERS)
    for e, within in equations_of(LAYERS):
        for place in range(len(e.outvars)):
            alone = Naming(LAYERS.primal, LAYERS.forward)
            assert shared.name(e, within, place) == alone.name(e, within, place)
