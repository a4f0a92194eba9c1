"""What a process holds between calls, and who holds it.

The process is a new one: Python's collector looks at all that a process has to find who refers to an array, which is
millions of objects after other tests.
"""

import json
import subprocess
import sys

import jsonschema
import pytest

import jaxviz

pytestmark = pytest.mark.slow

TRAIN = """
import json
import jax, jax.numpy as jnp, jaxviz

HISTORY = []

class Model:
    def __init__(self):
        self.cache, self.weights = {}, jnp.ones((3, 17))

MODEL = Model()

def closing_over(x):
    return lambda: x

CLOSURE = closing_over(jnp.ones((7, 13)))

def holds():
    HISTORY.extend(jnp.full((11, 19), i) for i in range(4))
    MODEL.cache["last"] = jnp.ones((5, 23))
    here = jnp.ones((2, 29))
    return jaxviz.live().to_dict()

def loops(history):
    step = jax.jit(lambda x: x.sum())
    x = jnp.ones((4, 31))
    before = jaxviz.live()
    for _ in range(25):
        history.append(step(x))
    after = jaxviz.live()
    found = after.since(before)
    more = [(a.type, a.more, a.holder) for a in found.arrays]
    return more, found.summary, [p.name for p in found.programs], len(after.since(after).arrays)

def compiles():
    kept = []
    for n in range(1, 23):
        many_programs = jax.jit(lambda x: x + 1)
        many_programs.__wrapped__.__name__ = "many_times"
        many_programs(jnp.ones(n))
        kept.append(many_programs)
    return jaxviz.live().advice

print(json.dumps([holds(), HISTORY.clear() or loops(HISTORY), compiles()]))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    (folder / "train.py").write_text(TRAIN)
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_arrays_are_named_by_who_holds_them(said):
    found, _, _ = said
    holder = {a["type"]: a["holder"] for a in found["arrays"]}
    assert holder["f32[5,23]"] == "`MODEL.cache['last']`, in train.py"
    assert holder["f32[3,17]"] == "`MODEL.weights`, in train.py"
    assert holder["i32[11,19]"] == "`HISTORY`, a list of 4, in train.py"
    assert holder["f32[7,13]"] == "`CLOSURE.__closure__[…]`, in train.py"
    assert holder["f32[2,29]"].startswith("`here`, in holds")
    jsonschema.validate(found, jaxviz.schema("live"))


def test_what_a_loop_leaves_behind(said):
    _, (arrays, summary, programs, n_of_itself), _ = said
    assert arrays == [["f32[]", 25, "`HISTORY`, a list of 25, in train.py"]]
    assert "25 arrays more, 100 B" in summary
    assert "_lambda" in programs
    assert n_of_itself == 0


def test_many_programs_of_one_function_are_told(said):
    assert any("`many_times`" in sentence or "22 programs" in sentence for sentence in said[2])
