"""What a process holds between calls, and who holds it."""

import gc

import jax
import jax.numpy as jnp
import jsonschema
import pytest

import jaxviz

HISTORY = []


class Model:
    def __init__(self):
        self.cache, self.weights = {}, jnp.ones((3, 17))


MODEL = Model()


def closing_over(x):
    return lambda: x


CLOSURE = closing_over(jnp.ones((7, 13)))


@pytest.fixture
def history():
    yield HISTORY
    HISTORY.clear()
    MODEL.cache.clear()


def live():
    gc.unfreeze()  # Python does not find those who refer to an object among what is frozen, as the tests' modules are
    return jaxviz.live()


def holder(found, kind):
    return next(a.holder for a in found.arrays if a.type == kind)


def test_arrays_are_named_by_who_holds_them(history):
    history += [jnp.full((11, 19), i) for i in range(4)]
    MODEL.cache["last"] = jnp.ones((5, 23))
    here = jnp.ones((2, 29))
    found = live()
    assert holder(found, "f32[5,23]") == "`MODEL.cache['last']`, in test_live_memory.py"
    assert holder(found, "f32[3,17]") == "`MODEL.weights`, in test_live_memory.py"
    assert holder(found, "i32[11,19]") == "`HISTORY`, a list of 4, in test_live_memory.py"
    assert holder(found, "f32[7,13]") == "`CLOSURE.__closure__[…]`, in test_live_memory.py"
    assert holder(found, here.aval.str_short(short_dtypes=True)).startswith("`here`, in test_arrays_are_named")
    jsonschema.validate(found.to_dict(), jaxviz.schema("live"))


def test_what_a_loop_leaves_behind(history):
    step = jax.jit(lambda x: x.sum())
    x = jnp.ones((4, 31))
    before = live()
    for _ in range(25):
        history.append(step(x))
    after = live()
    found = after.since(before)
    (scalars,) = found.arrays
    assert (scalars.type, scalars.more, scalars.holder) == (
        "f32[]",
        25,
        "`HISTORY`, a list of 25, in test_live_memory.py",
    )
    assert "25 arrays more, 100 B" in found.summary
    assert "_lambda" in [p.name for p in found.programs]
    assert after.since(after).arrays == ()


def test_many_programs_of_one_function_are_told():
    kept = []
    for n in range(1, 23):
        many_programs = jax.jit(lambda x: x + 1)
        many_programs.__wrapped__.__name__ = "many_times"
        many_programs(jnp.ones(n))
        kept.append(many_programs)
    assert any("`many_times`" in sentence or "22 programs" in sentence for sentence in live().advice)
