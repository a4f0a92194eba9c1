"""The lines that lead to an equation."""

import jax
import jax.numpy as jnp

import jaxviz
from jaxviz.derivation import derive
from jaxviz.ir.origin import call_stack

LIBRARY = """
import jax.numpy as jnp

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
