"""The results of a session: what is counted, and that a file of them is checked."""

import json
import linecache
import sys
from types import ModuleType
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import pytest

from jaxviz import teach
from jaxviz.teach import sessions

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
    size, which, kept, code = teach.results().answered
    assert (size.tries, size.hints, size.is_revealed, size.is_right) == (2, 1, False, True)
    assert json.loads(size.answer) == "12 B"
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
