"""The lines that lead to an equation."""

import jax
import jax.numpy as jnp
from jax.example_libraries import stax
from jax.experimental.ode import odeint

import jaxviz
from jaxviz.derivation import derive
from jaxviz.ir.origin import call_stack, library_line

LIBRARY = """
import jax.numpy as jnp
from jax.example_libraries import stax
from jax.experimental.ode import odeint

def energy(x):
    return jnp.sum(jnp.where(x > 0, jnp.sin(x) * x, 0.0))
"""


def of_library(tmp_path):
    path = tmp_path / "simulator.py"
    path.write_text(LIBRARY)
    namespace = {}
    exec(compile(LIBRARY, path, "exec"), namespace)
    jaxviz.own_code(exclude=[str(path)])
    return namespace["energy"]


def functions(e):
    return [at.function for at in call_stack(e.source)]


def test_the_caller_of_jaxviz_is_no_part_of_a_function():
    def outer(x):
        return inner(x) + 1

    def inner(x):
        return jnp.sin(x)

    names = {tuple(name.rpartition(".")[2] for name in functions(e)) for e in derive(outer, 1.0).primal.equations}
    assert names == {("inner", "outer"), ("outer",)}


def test_advice_is_never_about_the_caller_of_jaxviz(tmp_path):
    try:
        energy = of_library(tmp_path)
        found = jaxviz.lint(energy, jax.ShapeDtypeStruct((4096,), "float32"))
        assert not [a for a in found if "test_advice" in f"{a.location} {a.text} {a.fix}"]
    finally:
        jaxviz.own_code()


def test_models_and_solvers_of_jax_are_a_library_s_and_its_functions_are_not():
    init, apply = stax.serial(stax.Dense(8), stax.Relu, stax.Dense(4), stax.LogSoftmax)
    _, params = init(jax.random.key(0), (-1, 6))

    def model(params, x):
        return jnp.sin(apply(params, x))

    primal = derive(model, params, jnp.ones((5, 6))).primal
    lines = {e.primitive.name: library_line(e.source) for e in primal.equations}
    assert lines["dot_general"].function.endswith("Dense.<locals>.apply_fun")
    assert lines["sin"] is None
    assert {functions(e)[0].rpartition(".")[2] for e in primal.equations} == {"model"}
    solved = lambda y: odeint(lambda y, t: jnp.sin(y), y, jnp.linspace(0.0, 1.0, 3))
    inside = [library_line(e.source) for e in derive(solved, jnp.ones(3)).primal.equations]
    assert "odeint" in {at.function for at in inside if at is not None}
