"""The results of a session: what is counted, and that a file of them is checked."""

import codeop
import json
import linecache
import sys
from dataclasses import replace
from types import ModuleType
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import pytest

from jaxviz import teach
from jaxviz.teach import sessions
from jaxviz.teach.outcomes import Results

CELL = """def cube(x):
    return x**3


cubed.answer(cube)
"""


@pytest.fixture(autouse=True)
def new_session(monkeypatch):
    monkeypatch.setattr(sessions, "progress", {})


def product(x):
    return jnp.sin(x) * x


def cubed():
    return teach.rule("Write the cube.", teach.computes(lambda x: x**3, (2.0,), (-1.0,)), hints=("What is 2³?",))


def answered_in_a_cell(exercise, cell=CELL, name="<cell of a student>"):
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), {"cubed": exercise, "jnp": jnp})


def everything():
    """Answers of each kind; the exercises, which the caller has to keep."""
    size = teach.predict("How many bytes?", truth=lambda: 12, hints=("Three numbers.",))
    which = teach.predict("Which?", ["a", "b"], truth=lambda: "b")
    kept = teach.saved(product, 2.0)
    code = cubed()
    size.answer(11)
    size.answer(11)  # its cell is run again
    size.hint()
    size.answer("12 B")
    size.answer(13)
    which.reveal()
    which.answer("b")
    kept.answer(["x"])
    kept.answer(next(iter(kept.wrong())))
    code.answer(...)
    answered_in_a_cell(code)
    return size, which, kept, code


def test_tries_hints_and_reveals_count_until_the_first_right_answer():
    exercises = everything()
    exercises[0].hint()
    exercises[0].reveal()
    assert exercises[0].answer(12)  # right too, written otherwise
    size, which, kept, code = teach.results().answered
    assert (size.tries, size.hints, size.is_revealed, size.is_right) == (2, 1, False, True)
    assert json.loads(size.answer) == 12
    assert (which.tries, which.is_revealed, which.is_right) == (1, True, True)
    assert (kept.kind, kept.tries, kept.is_right) == ("marks", 2, False)
    assert (code.kind, code.tries, code.is_right) == ("code", 1, True)
    assert code.source.split() == "def cube(x): return x**3 answer = cube".split()
    assert teach.results().summary == "4 exercises: 3 right, 1 with hints, 1 revealed"


def test_the_solution_of_a_notebook_and_the_page_of_an_exercise_are_no_answers():
    code = cubed()
    code.solution(lambda x: x**3)
    teach.static_form(code)
    assert teach.results().answered == ()


def test_a_file_is_read_and_its_right_answers_are_checked_again(tmp_path, monkeypatch):
    exercises = everything()
    assert exercises
    path = teach.results().save(tmp_path / "results.json")
    read = teach.read_results(path)
    assert read.problems == ()
    assert read.again == 3
    assert read.answered == teach.results().answered
    assert read.to_dict() == teach.results().to_dict() == json.loads(path.read_text())
    monkeypatch.setattr(sessions, "exercises", WeakValueDictionary())
    assert teach.read_results(path).again == 0


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda data: data["answered"][2].update(is_right=True), "'Which of these"),
        (lambda data: data["answered"][3].update(source="answer = lambda x: x"), "'Write the cube.' does not count"),
        (lambda data: data["answered"][3].update(source="answer = elsewhere"), "NameError"),
        (lambda data: data["answered"][0].update(answer="13"), "13 is too large."),
        (lambda data: data["answered"][0].update(tries=1), ""),
        (lambda data: data.update(seed="another"), ""),
    ],
)
def test_an_edited_file_is_found(tmp_path, edit, problem):
    exercises = everything()
    assert exercises
    path = teach.results().save(tmp_path / "results.json")
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    read = teach.read_results(path)
    assert "The checksum does not fit" in read.problems[0]
    assert problem in " ".join(read.problems)
    assert ("does not count" in " ".join(read.problems)) == bool(problem)


def test_answers_to_puzzles_are_checked_again_in_any_session(tmp_path):
    order = teach.puzzles.show("order", tmp_path / "mine.py")
    cell = "order.answer(lambda a, b, c, v: a @ (b @ (c @ v)))"
    linecache.cache["<cell of order>"] = (len(cell), None, [cell], "<cell of order>")
    exec(compile(cell, "<cell of order>", "exec"), {"order": order})
    path = teach.results().save(tmp_path / "results.json")
    assert teach.read_results(path).again == 1
    text = path.read_text().replace("a @ (b @ (c @ v))", "a @ b @ c @ v")
    path.write_text(text)
    read = teach.read_results(path)
    assert "does not count: It takes 537.4 MFLOP; par is 1.6 MFLOP." in read.problems[1]


TWO_ANSWERS = """order.answer(lambda a, b, c, v: a @ (b @ (c @ v)))
cubed.answer(
    lambda x: x * x * x,
)


def forward(x):
    return 2 * x


def backward(x):
    return x / 2


def other(x):
    return 3 * x


halves.answer((forward, backward))
third.answer((other, lambda y: y / 3))
"""


def test_each_answer_of_a_cell_with_several_is_checked_again(tmp_path):
    order = teach.puzzles.show("order", tmp_path / "mine.py")
    there_and_back = teach.Check("comes back", lambda pair: "" if pair[1](pair[0](6.0)) == 6.0 else "It does not.")
    halves, third = (teach.rule(text, there_and_back) for text in ("Double and halve.", "Another such pair."))
    cell, name = TWO_ANSWERS, "<cell of several>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exercises = {"order": order, "cubed": cubed(), "halves": halves, "third": third}
    exec(compile(cell, name, "exec"), dict(exercises))
    assert teach.results().n_right == 4
    read = teach.read_results(teach.results().save(tmp_path / "results.json"))
    assert (read.problems, read.again) == ((), 4)
    assert teach.puzzles.card(tmp_path / "mine.py").solved == 1


def test_an_answer_may_use_what_the_notebook_defines(tmp_path, monkeypatch):
    notebook = ModuleType("__main__")
    notebook.squared = lambda x: x * x
    cell = "cubed.answer(lambda x: squared(x) * x)"
    linecache.cache["<cell of a helper>"] = (len(cell), None, [cell], "<cell of a helper>")
    code = cubed()
    exec(compile(cell, "<cell of a helper>", "exec"), {"cubed": code, **vars(notebook)})
    path = teach.results().save(tmp_path / "results.json")
    assert "NameError: name 'squared' is not defined" in teach.read_results(path).problems[0]
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    read = teach.read_results(path)
    assert (read.problems, read.again) == ((), 1)
    notebook.squared = lambda x: x
    assert "does not count: At 2." in teach.read_results(path).problems[0]  # and says why


WALK = """def evaluate(program, *inputs):
    env = dict(zip(program.inputs, inputs))
    for e in program.equations:
        env.update(zip(e.outputs, my.bind(e.op, *[my.read(env, a) for a in e.inputs], **e.params)))
    return [my.read(env, a) for a in program.outputs]


walking.answer(evaluate)
"""


@pytest.mark.slow
def test_answers_to_the_exercises_of_the_small_engine_are_checked_again(tmp_path, monkeypatch):
    notebook = ModuleType("__main__")
    notebook.my = my = teach.autodiff.engine(tmp_path / "answers" / "mine.py")
    notebook.walking = teach.autodiff.exercise(my, "evaluate")
    cell, name = WALK, "<cell of evaluate>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    path = teach.results().save(tmp_path / "results.json")
    read = teach.read_results(path)
    assert (read.n_right, read.again, read.problems) == (1, 1, ())
    path.write_text(path.read_text().replace("env.update", "env.copy().update"))
    assert "does not count" in teach.read_results(path).problems[1]


def test_a_function_of_the_notebook_under_a_checkpoint_is_checked_again_as_that(tmp_path, monkeypatch):
    """Also if another cell tests it, as one of nbgrader does."""
    notebook = ModuleType("__main__")
    cells = {
        "<cell of the model>": "def block(x):\n    return jnp.sin(jnp.sin(x))\n",
        "<cell of the answer>": "mine = jax.checkpoint(block)\nsaving.answer(mine)\n",
        "<cell of the test>": "verdict = saving.answer(mine)\n",
    }
    saving = teach.rule("Save nothing.", teach.keeps_at_most(0, 1.0))
    vars(notebook).update(jax=jax, jnp=jnp, saving=saving)
    for name, cell in cells.items():
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
        exec(compile(cell, name, "exec"), vars(notebook))
    path = teach.results().save(tmp_path / "results.json")
    notebook.mine = ...  # the teacher has another answer, or none
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    read = teach.read_results(path)
    assert (read.n_right, read.again, read.problems) == (1, 1, ())


ASKED = """import jax
import jax.numpy as jnp
from jaxviz import teach
cubed = teach.rule("Write the cube.", teach.computes(lambda x: x**3, (2.0,), (-1.0,)))
"""


@pytest.fixture
def notebook(monkeypatch):
    """Runs cells in a new session, each with the `__future__` of those before, as IPython does; returns what they
    define."""

    def run(*cells):
        names = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", names)
        compiled = codeop.Compile()
        for cell in cells:
            file = f"<cell {hash(cell)}>"
            linecache.cache[file] = (len(cell), None, cell.splitlines(True), file)
            exec(compiled(f"{cell}\n", file, "exec"), vars(names))
        return vars(names)

    return run


def read_again(path, right=True):
    """What is wrong with the answers of this session in another one, right or not."""
    answered = tuple(replace(a, is_right=right) for a in teach.results().answered)
    return teach.read_results(Results(answered).save(path))


FUTURE = "from __future__ import annotations\n"
ANNOTATED = {
    "of a name that is nowhere": f"{FUTURE}def cube(x: Absent, n: int = 3) -> Absent:\n    return x**n\n",
    "after another cell with annotations": f"{FUTURE}\n---\ndef cube(x: Absent) -> Absent:\n    return x**3\n",
    "in a nested function": f"""{FUTURE}
---
def cube(x):
    def power(n: Absent):
        return x**n

    return power(3)
""",
    "in a cell that only answers": f"def cube(x):\n    return x**3\n---\n{FUTURE}size: Absent = 3\n",
    "in a dataclass": """import dataclasses
from typing import ClassVar

@dataclasses.dataclass
class Power:
    n: ClassVar[int] = 3
    x: jax.Array

    def value(self) -> jax.Array:
        return self.x**self.n

def cube(x):
    return Power(x).value()
""",
    "in a named tuple": """from typing import NamedTuple, get_type_hints

class Power(NamedTuple):
    x: float
    n: int = 3

def cube(x):
    assert get_type_hints(Power) == {"x": float, "n": int}
    return Power(x).x ** Power(x).n
""",
    "read by a dispatch": """import functools

@functools.singledispatch
def power(n, x):
    return x

@power.register
def _(n: int, x):
    return x**n

def cube(x):
    return power(3, x)
""",
    "of a node that is registered": """class Power:
    base: jax.Array

    def __init__(self, base):
        self.base = base

jax.tree_util.register_pytree_node(Power, lambda p: ((p.base,), None), lambda _, x: Power(*x))

def cube(x):
    return jax.jit(lambda p: p.base**3)(Power(x))
""",
    "of what the cell changes then": """class Power:
    n: int = 2

EXPONENTS: dict = {}
EXPONENTS.update(cube=1)
setattr(Power, "n", 3)

def cube(x):
    return x ** (Power.n * EXPONENTS["cube"])
""",
}


@pytest.mark.parametrize("cell", ANNOTATED.values(), ids=ANNOTATED.keys())
def test_annotations_and_what_reads_them_are_as_in_the_cell(cell, notebook, tmp_path):
    notebook(ASKED, *f"{cell}\nassert cubed.answer(cube)".split("---\n"))
    path = teach.results().save(tmp_path / "results.json")
    assert notebook(ASKED)
    read = teach.read_results(path)
    assert (read.problems, read.again) == ((), 1)


def test_an_answer_with_a_helper_of_another_cell_counts_by_that_helper_alone(notebook, tmp_path):
    """Not by what the session of a teacher has with that name."""
    helpers = """from functools import partial
import jax.numpy as numbers
EXPONENT = {n}
def factor(x, n=EXPONENT - 1): return numbers.power(x, n)
@jax.custom_jvp
def power(x): return factor(x) * x
@power.defjvp
def _(primals, tangents): return power(*primals), tangents[0]
mine = jax.jit(partial(lambda f, x: f(x), power))
"""
    answered = "def cube(x):\n    return mine(x)\n\ncubed.answer(cube)"
    for own, other in ((3, 2), (2, 3)):
        sessions.progress.clear()
        notebook(ASKED, helpers.format(n=own), answered)
        assert teach.results().n_right == (own == 3)
        assert notebook(ASKED, helpers.format(n=other))
        read = read_again(tmp_path / "results.json")
        assert read.again == 1
        assert bool(read.problems) == (own == 2), read.problems


def test_an_answer_is_checked_again_as_when_its_exercise_was_created(notebook, tmp_path):
    """Whatever later cells define anew, and nothing of it stays."""
    given = "EXPONENT = 3\ndef power(x): return x**EXPONENT\n"
    asked = ASKED.replace("lambda x: x**3", "lambda x: power(x)")
    notebook(given, asked, "def cube(x):\n    return x * x * x\n\nassert cubed.answer(cube)")
    path = teach.results().save(tmp_path / "results.json")
    assert "power" not in teach.results().answered[0].source
    names = notebook(given, asked, "EXPONENT = 5\ndef cube(x): return x\nanswer = 42\n")
    before = dict(names)
    read = teach.read_results(path)
    assert (read.problems, read.again) == ((), 1)
    assert names == before


def test_a_check_that_replaces_what_an_answer_calls_sees_its_calls_again(notebook, tmp_path):
    asked = """from jaxviz import teach
calls = []
def power(x): return x**3
def twice(written):
    global power
    own = power
    power = lambda x: (calls.append(x), own(x))[1]
    calls.clear()
    written(2.0)
    power = own
    return "" if len(calls) == 1 else f"It calls it {len(calls)} times."
once = teach.rule("Call `power` once.", teach.Check("once", twice))
"""
    for n in (1, 2):
        notebook(asked, f"once.answer(lambda x: {' + '.join(['power(x)'] * n)})")
        assert notebook(asked)
        assert len(read_again(tmp_path / "results.json").problems) == n - 1
        sessions.progress.clear()


def test_what_is_created_anew_is_not_stored_if_it_is_of_the_session(notebook, tmp_path):
    """An engine, which is a module that nobody can import, and an array."""
    asked = """import jax.numpy as jnp
from jaxviz import teach
def session(): return teach.autodiff.engine({path!r}), jnp.arange(4.0)
my, powers = session()
cubed = teach.rule("Write the cube.", teach.computes(lambda x: my.exp(my.log(x) * powers[3]), (2.0,)))
"""
    notebook(asked.format(path=str(tmp_path / "mine.py")), "my, powers = session()\nLARGE = float('inf')", """
assert cubed.answer(lambda x: my.exp(powers[3] * my.log(x)) + 1 / LARGE)
""")  # fmt: skip
    path = teach.results().save(tmp_path / "results.json")
    assert notebook(asked.format(path=str(tmp_path / "other.py")), "LARGE = float('inf')")
    read = teach.read_results(path)
    assert (read.problems, read.again) == ((), 1)


def test_a_function_of_the_small_engine_is_a_right_answer_again(notebook, tmp_path):
    asked = """from jaxviz import teach
my = teach.autodiff.engine("{path}")
exercises = [teach.autodiff.exercise(my, name) for name in ("evaluate", "split", "transpose")]
"""
    given = (
        "for asked, name in zip(exercises, ('evaluate', 'split', 'transpose')): assert asked.answer(my.original(name))"
    )
    notebook(asked.format(path=tmp_path / "mine.py"), given)
    path = teach.results().save(tmp_path / "results.json")
    assert notebook(asked.format(path=tmp_path / "other.py"))
    read = teach.read_results(path)
    assert (read.problems, read.again) == ((), 3)


def test_the_known_answer_to_a_puzzle_is_right_again(notebook, tmp_path):
    asked = f"from jaxviz import teach\norder = teach.puzzles.show('order', {str(tmp_path / 'mine.py')!r})"
    notebook(asked, "assert order.answer(order.puzzle.solution)")
    read = teach.read_results(teach.results().save(tmp_path / "results.json"))
    assert (read.problems, read.again) == ((), 1)


def test_an_answer_whose_source_is_not_found_is_right_and_cannot_be_checked_again(tmp_path):
    order = teach.puzzles.show("order", tmp_path / "mine.py")
    verdict = order.answer(lambda a, b, c, v: a @ (b @ (c @ v)))  # of a module, which does more than that
    assert verdict
    assert verdict.note.startswith("It is not stored, since its source was not found")
    assert not (tmp_path / "mine.py").exists()
    read = teach.read_results(teach.results().save(tmp_path / "results.json"))
    assert "does not count: its source was not found" in read.problems[0]


def test_a_file_that_has_no_results_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(ValueError, match="has no results"):
        teach.read_results(tmp_path / "other.json")
    with pytest.raises(FileNotFoundError, match="no file"):
        teach.read_results(tmp_path / "none.json")
