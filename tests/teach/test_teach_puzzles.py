"""Puzzles: par is the best known result, of the planner or known answers, only answers that compute the same count."""

import ast
import linecache
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from short_runs import short

import jaxviz
from jaxviz import teach
from jaxviz.teach import answers
from jaxviz.teach.puzzles import records, scores
from jaxviz.teach.puzzles.choices import answers_of
from jaxviz.teach.puzzles.game import GROUPS, PUZZLES, check
from jaxviz.teach.puzzles.puzzle import lesson_link, score_name
from jaxviz.teach.source import code_of, run_alone

ROOT = Path(__file__).parents[2]

each_puzzle = pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda p: p.name)
each_third_puzzle = pytest.mark.parametrize("puzzle", short(PUZZLES, 3), ids=lambda p: p.name)


def test_there_are_24_short_ones():
    assert len(PUZZLES) == 24
    assert len({p.name for p in PUZZLES}) == 24
    for p in PUZZLES:
        assert len(code_of(p.function, p.function).splitlines()) <= 5
        assert 2 <= len(p.hints) <= 3
        assert p.wrong


def test_the_site_and_the_notebooks_have_them_in_order():
    text = (ROOT / "docs" / "puzzles.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (\d+) · (.*)", text, re.MULTILINE) == [(str(i), p.title) for i, p in enumerate(PUZZLES, 1)]
    assert re.findall(r'puzzles\.show\("(\w+)"\), puzzles\.ask\("(\w+)"\)', text) == [(p.name, p.name) for p in PUZZLES]
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == list(GROUPS)
    notebooks = "".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "notebooks").glob("*_puzzles_*.py"))
    )
    assert re.findall(r'teach\.puzzles\.show\("(\w+)"\)', notebooks) == [p.name for p in PUZZLES]
    for puzzle in PUZZLES:  # the cell to edit contains the given function
        lines = [] if puzzle.name == "names" else code_of(puzzle.function, puzzle.function).splitlines()[1:]
        assert "\n".join(lines) in notebooks


@pytest.mark.slow
@pytest.mark.parametrize("puzzle", short(PUZZLES, 6), ids=lambda p: p.name)
def test_the_known_answers_reach_par_and_beat_it(puzzle):
    verdict = check(puzzle, puzzle.solution)
    assert verdict, verdict
    assert str(verdict).startswith("Right. Par. ")
    for answer in (a for a in (puzzle.better, puzzle.record) if a is not None):
        verdict = check(puzzle, answer)
        assert verdict, verdict
        assert str(verdict).startswith(BETTER), verdict
    assert verdict.headline.endswith("and that is the record.")


BETTER = ("Right. Birdie! ", "Right. Eagle! ", "Right. Albatross! ", "Right. Condor! ")


@each_puzzle
def test_the_record_is_the_lowest_amount_known(puzzle):
    known = [a for a in (puzzle.solution, puzzle.better) if a is not None]
    amounts = [puzzle.measured(puzzle.function_of(a)) for a in known]
    assert puzzle.record_amount <= min(amounts)
    assert (puzzle.record is not None) == (puzzle.record_amount < min(amounts))
    known_how = "It is the answer at par" in puzzle.how, "it is the answer that beats par" in puzzle.how
    assert any(known_how) == (puzzle.record is None) or puzzle.name == "softplus"
    assert not known_how[0] or puzzle.better is None


def test_there_are_words_for_every_distance_from_par():
    names = [score_name(n, 1_000) for n in (1_011, 1_010, 990, 989, 505, 101, 10, 0)]
    assert names == ["over par", "par", "par", "birdie", "eagle", "albatross", "condor", "condor"]
    reached = {score_name(p.record_amount, p.par_amount) for p in PUZZLES}
    assert reached == {"par", "birdie", "eagle", "albatross", "condor"}


@each_puzzle
def test_the_lesson_of_a_puzzle_is_a_notebook_of_the_course(puzzle):
    label, target = lesson_link(puzzle.lesson)
    assert (ROOT / "notebooks" / f"{puzzle.lesson}.py").exists()
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")
    assert f"[{label}]({puzzle.lesson}.py)" in index
    shown = teach.puzzles.show(puzzle.name)
    assert f'href="{target}"' in teach.static_form(shown)
    assert f'href="{target}"' in shown._repr_html_()
    over = check(puzzle, puzzle.function)
    if over.points and over.points[-1].mark == "right":
        assert f"What is needed for par: {label}" in str(over)
        assert f'href="{target}"' in over._repr_html_()


@each_puzzle
def test_hints_begin_with_a_question_and_contain_no_code_of_a_known_answer(puzzle):
    assert "?" in puzzle.hints[0] or "jaxviz." in puzzle.hints[0]
    known = [code_of(a, puzzle.function) for a in (puzzle.solution, puzzle.better) if a is not None]
    known += [code_of(puzzle.record, puzzle.record)] if puzzle.record is not None else []
    given = expressions(code_of(puzzle.function, puzzle.function))
    secret = set().union(*map(expressions, known)) - given
    assert secret
    for text in (*re.findall(r"`([^`]*)`", " ".join(puzzle.hints)), *(h.rstrip(".") for h in puzzle.hints)):
        assert not expressions(text) & secret, text


def expressions(code):
    """The calls, operations and lookups in a text, in one notation; none if it is not Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return set()
    kinds = (ast.Call, ast.BinOp, ast.Compare, ast.Subscript, ast.Lambda)
    return {ast.unparse(e) for e in ast.walk(tree) if isinstance(e, kinds)}


def test_a_lower_amount_than_the_record_is_said_to_be_one(monkeypatch):
    mask = teach.puzzles.show("mask").puzzle
    monkeypatch.setitem(mask.__dict__, "record_amount", 10 * mask.par_amount)
    assert str(check(mask, mask.solution)).startswith("Right. A new record! ")


@pytest.mark.slow
@each_third_puzzle
def test_a_question_has_one_answer_and_says_why_others_are_wrong(puzzle):
    question = puzzle.ask()
    wrong = list(question.wrong())
    for given in wrong:
        verdict = question.answer(given)
        assert verdict.is_right is False
        assert verdict.note, given
    assert question.reveal().note
    choices = [key for _, options in question.form.groups for key, _ in options]
    assert len(wrong) == len(choices) - 1 or not choices


@pytest.mark.slow
@each_third_puzzle
def test_the_code_that_is_shown_runs_and_is_measured_alike(puzzle):
    names = {id(value): name.lstrip("_") for name, value in vars(sys.modules[puzzle.function.__module__]).items()}
    names |= {id(value): name.lstrip("_") for name, value in reversed(vars(records).items())}
    for answer in filter(None, (puzzle.function, puzzle.solution, puzzle.better, puzzle.record)):
        cell = {"jax": jax, "jnp": jnp, "checkpoint_name": checkpoint_name}
        exec(code_of(puzzle.function, puzzle.function), cell)
        exec(code_of(answer, answer if answer is puzzle.record else puzzle.function), cell)
        shown = cell[names[id(answer)]]
        if answer is not puzzle.function:
            assert puzzle.measured(puzzle.function_of(shown)) == puzzle.measured(puzzle.function_of(answer))


@pytest.mark.slow
def test_par_is_what_the_planner_finds():
    """Using public functions: no plan with par's residuals recomputes more than allowed, or saves less with that."""
    width = teach.puzzles.show("width").puzzle
    arguments = sum(r.nbytes for r in jaxviz.residuals(width.function, *width.types) if r.kind == "argument")
    most = 0.1 * jaxviz.cost(width.function, *width.types).total.flops
    planned = lambda nbytes: jaxviz.plan_remat(width.function, *width.types, residuals=arguments + nbytes).flops
    assert planned(width.par_amount) <= most < planned(width.par_amount - 1)
    body = teach.puzzles.show("body").puzzle
    plan = jaxviz.plan_remat(body.function, *body.types, argnums=(0, 1), work=0.1)
    assert body.par_amount == plan.peak_nbytes < body.given_amount


CELL = """import jax

@jax.custom_vjp
def relu(h):
    return jnp.maximum(h, 0)

relu.defvjp(lambda h: (relu(h), h > 0), lambda is_positive, ct: (ct * is_positive,))

def my_rectified(w, x):
    return relu(x @ w)

mask.answer(my_rectified)
"""


@pytest.mark.slow
def test_the_best_answer_is_kept_with_its_cell(tmp_path):
    path = tmp_path / "answers" / "mine.py"
    mask = teach.puzzles.show("mask", path)
    cell = {"jnp": jnp, "mask": mask}
    linecache.cache["<cell of the test>"] = (len(CELL), None, CELL.splitlines(True), "<cell of the test>")
    exec(compile(CELL, "<cell of the test>", "exec"), cell)
    (kept,) = scores.read(path).values()
    lines = [line for line in CELL.splitlines() if line]
    assert [line for line in kept.source.splitlines() if line] == [*lines[:-1], "answer = my_rectified"]
    assert kept.amount == kept.par == mask.puzzle.par_amount
    better = f"{code_of(mask.puzzle.better, mask.puzzle.function)}\n\nverdict = mask.answer(in_bits)\n"
    linecache.cache["<cell of bits>"] = (len(better), None, better.splitlines(True), "<cell of bits>")
    exec(compile(better, "<cell of bits>", "exec"), bits := {"jax": jax, "jnp": jnp, "mask": mask})
    assert "1 of 24 stored" in bits["verdict"].note
    assert scores.read(path)["mask"].amount < kept.amount
    assert "is as good" in mask.answer(cell["my_rectified"]).note
    assert scores.read(path)["mask"].amount < kept.amount
    names = teach.puzzles.show("names", path)
    assert names.answer(names.puzzle.solution)
    assert scores.read(path)["names"].source == "answer = jax.checkpoint_policies.save_only_these_names('scores')"
    card = teach.puzzles.card(path)
    assert card.solved == 2
    assert str(card).startswith("2 of 24 puzzles solved: 1 at par, 1 eagle")
    assert card.share().splitlines() == [
        "jaxviz puzzles: 2 of 24 solved: 1 at par, 1 eagle",
        " 5 Only the sign: 2.0 MiB, par 16.0 MiB, record 2.0 MiB: eagle (the record)",
        " 7 By name: 64.0 MiB, par 64.0 MiB, record 64.0 MiB: par (the record)",
    ]
    assert card._repr_html_().count("Copy the result</button>") == 1
    assert "Copy" not in teach.puzzles.card(tmp_path / "none.py")._repr_html_()
    assert "Only the sign" in str(card)
    assert card._repr_html_().count("<span title=") == 24


@pytest.mark.parametrize("offset", [0.0, 1_000.0, -30_000.0])
def test_a_variance_of_one_collective_is_accurate_far_from_zero(offset):
    puzzle = teach.puzzles.show("collective").puzzle
    x = (offset + np.random.default_rng(0).normal(size=(8, 50))).astype(np.float32)
    found = jax.vmap(puzzle.solution, axis_name="devices")(x)
    np.testing.assert_allclose(found, np.full(8, np.var(x.astype(np.float64))), rtol=1e-3)


def test_the_mean_of_squares_less_the_square_of_the_mean_is_no_variance():
    puzzle = teach.puzzles.show("collective").puzzle

    def of_moments(x):
        mean, square = jax.lax.pmean(jnp.stack([jnp.mean(x), jnp.mean(x**2)]), "devices")
        return square - mean**2

    assert puzzle.difference(of_moments) == ""
    assert "In the value" in puzzle.difference(of_moments, on_points=True)
    assert check(puzzle, of_moments).is_right is False


def test_the_card_is_computed_again_from_the_sources(tmp_path):
    path = tmp_path / "forged.py"
    of_order = "answer = lambda a, b, c, v: a @ (b @ (c @ v))"
    forged = {"order: 1, par 9": of_order, "mode: 0, par 9": "", "row: 1, par 9": "answer = lambda *args: 0"}
    answers.write(path, "# forged\n", {**forged, "trace: 1, par 9": "answer = elsewhere", "unknown: 1, par 2": "1"})
    card = teach.puzzles.card(path)
    assert card.solved == 1
    assert str(card).startswith("1 of 24 puzzles solved: 1 at par")
    assert card.best["order"].amount == card.best["order"].par == teach.puzzles.show("order").puzzle.par_amount
    assert card.problems.keys() == {"mode", "row", "trace"}
    assert "The stored answer to 'trace' does not count: It raises NameError" in str(card)
    assert "does not count" in card._repr_html_()


def test_a_right_answer_takes_the_place_of_a_forged_one(tmp_path):
    path = tmp_path / "forged.py"
    answers.write(path, "# forged\n", {"order: 1, par 9": "answer = lambda *args: 0"})
    cell = "order.answer(lambda a, b, c, v: a @ (b @ (c @ v)))"
    linecache.cache["<cell of order>"] = (len(cell), None, [cell], "<cell of order>")
    exec(compile(cell, "<cell of order>", "exec"), {"order": teach.puzzles.show("order", path)})
    assert teach.puzzles.card(path).solved == 1


def test_an_answer_with_annotations_is_stored(tmp_path):
    cell = """import dataclasses
from typing import ClassVar

@dataclasses.dataclass
class Chain:
    n: ClassVar[int] = 3
    factors: tuple[Absent, ...]

    def times(self, v: Absent) -> Absent:
        a, b, c = self.factors[: self.n]
        return a @ (b @ (c @ v))

def mine(a, b, c, v) -> Absent:
    return Chain((a, b, c)).times(v)

order.answer(mine)
"""
    names = {"order": teach.puzzles.show("order", tmp_path / "mine.py")}
    run_alone(cell, "<cell of mine>", names)
    assert teach.puzzles.card(tmp_path / "mine.py").solved == 1


def test_an_answer_that_another_cell_is_needed_for_is_not_stored(tmp_path):
    path = tmp_path / "mine.py"
    cell = "def mine(a, b, c, v):\n    return product(a, b, c, v)\n"
    linecache.cache["<cell of mine>"] = (len(cell), None, cell.splitlines(True), "<cell of mine>")
    exec(compile(cell, "<cell of mine>", "exec"), names := {"product": lambda a, b, c, v: a @ (b @ (c @ v))})
    verdict = teach.puzzles.show("order", path).answer(names["mine"])
    assert verdict
    assert "its cell alone is not right: It raises NameError: name 'product' is not defined." in verdict.note
    assert not path.exists()


def of_while(a, b, c, v):
    return jax.lax.while_loop(lambda s: s[0] < 1, lambda s: (1, a @ b @ c @ v), (0, jnp.zeros(len(a))))[1]


def by_callback(a, b, c, v):
    return jax.pure_callback(
        lambda a, b, c, v: a @ (b @ (c @ v)), jax.ShapeDtypeStruct(v.shape[:0] + a.shape[:1], v.dtype), a, b, c, v
    )


def with_gradient(function):
    """With the gradient of the function as given, since JAX has none of these."""
    given = teach.puzzles.show("order").puzzle.function
    own = jax.custom_vjp(function)
    own.defvjp(lambda *args: (function(*args), args), lambda args, ct: jax.vjp(given, *args)[1](ct))
    return own


def by_kernel(a, b, c, v):
    def kernel(a, b, c, v, out):
        out[...] = a[...] @ b[...] @ c[...] @ v[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(a.shape[:1], v.dtype), interpret=True)(a, b, c, v)


CHEATS = {
    "order": [
        (lambda a, b, c, v: a @ b @ c @ v if len(a) < 100 else v, "In the value at f32[512,512]"),
        (with_gradient(of_while), "It has `while`."),
        (with_gradient(by_callback), "It has `pure_callback`."),
        (with_gradient(by_kernel), "It has `pallas_call`."),
    ],
    "softmax": [
        (
            lambda w, x, labels: (
                -jnp.mean(jnp.log(jax.nn.softmax(x @ w))[jnp.arange(len(x)), labels]) if len(x) < 100 else 0 * w[0, 0]
            ),
            "In the value at f32[256,8192]",
        )
    ],
    "gather": [
        (
            lambda x: jax.nn.logsumexp(jax.lax.all_gather(x, "devices", tiled=True)) if len(x) < 100 else jnp.sum(x),
            "In the value at f32[8,1000]",
        )
    ],
}


@pytest.mark.parametrize(
    ("name", "cheat", "why"),
    [(name, *case) for name, cases in CHEATS.items() for case in cases],
    ids=lambda x: x if isinstance(x, str) else "by",
)
def test_an_answer_that_is_right_only_where_it_is_compared_does_not_count(name, cheat, why):
    puzzle = teach.puzzles.show(name).puzzle
    assert puzzle.difference(cheat) == ""
    verdict = check(puzzle, cheat)
    assert verdict.is_right is False
    assert why in verdict.points[-1].why


@pytest.mark.parametrize("is_given", [True, False], ids=["the rule computes it", "the function computes it"])
def test_a_function_and_its_custom_rule_have_to_compute_the_same(is_given):
    """The function alone is measured, and where it is differentiated JAX runs the rule alone."""
    order = teach.puzzles.show("order").puzzle
    zeros = lambda a, b, c, v: jnp.zeros(len(a))
    answer = jax.custom_vjp(zeros if is_given else order.solution)
    forward = order.function if is_given else zeros
    answer.defvjp(lambda *args: (forward(*args), args), lambda args, ct: jax.vjp(order.function, *args)[1](ct))
    verdict = check(order, answer)
    assert verdict.is_right is False
    assert verdict.points[0].why.startswith("In the value ")


def test_values_are_compared_with_jax_at_random_and_at_hard_points():
    norm = teach.puzzles.show("norm").puzzle
    wrong_gradient_at_zero = lambda a, b: jnp.sqrt(jnp.sum((a - b) ** 2 + 1e-14 * (a - b), -1) + 1e-30)
    assert norm.difference(wrong_gradient_at_zero) == ""
    assert "In the gradient" in norm.difference(wrong_gradient_at_zero, on_points=True)
    a, b = norm.points[0]
    gradients = jax.grad(lambda a: jnp.sum(norm.better(a, b)))(a)
    assert np.isfinite(gradients).all()


@pytest.mark.slow
@pytest.mark.parametrize("puzzle", short(PUZZLES, 6), ids=lambda p: p.name)
def test_one_of_the_answers_to_choose_from_is_right_and_lowest(puzzle):
    exercise = teach.puzzles.choose(puzzle.name)
    verdicts = {letter: exercise.answer(letter) for letter in answers_of(puzzle)}
    (right,) = (letter for letter, verdict in verdicts.items() if verdict)
    assert 3 <= len(verdicts) <= 7
    assert answers_of(puzzle)[right][1] is (puzzle.better if puzzle.better is not None else puzzle.solution)
    for verdict in verdicts.values():
        assert verdict.note.startswith(("It computes the same. ", "It fails a check ("))
        assert ".py:" not in verdict.note, "it shows a place of this machine"
    assert len(verdicts) == len(puzzle.wrong) + 1 + (puzzle.better is not None)


@each_puzzle
def test_the_code_of_each_choice_is_the_answer_that_is_measured(puzzle):
    for code, answer in answers_of(puzzle).values():
        cell = {"jax": jax, "jnp": jnp, "checkpoint_name": checkpoint_name}
        exec(code_of(puzzle.function, puzzle.function), cell)
        exec(code, cell)
        assert "'" not in code, "the quotes say which answers are known"
        assert puzzle.measured(puzzle.function_of(cell["answer"])) == puzzle.measured(puzzle.function_of(answer))


def test_the_page_to_play_has_them_in_order():
    text = (ROOT / "docs" / "play.md").read_text(encoding="utf-8")
    assert re.findall(r'teach\.puzzles\.choose\("(\w+)"\)', text) == [p.name for p in PUZZLES]
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [*GROUPS, "Your result"]


def test_a_choice_shows_the_answers_and_the_lesson_in_a_notebook_and_on_a_page():
    from jaxviz.teach.widget import exercise_form

    exercise = teach.puzzles.choose("order")
    form = exercise_form(exercise)
    shown = "".join(str(getattr(part, "value", "")) for part in form.children)
    for text in (shown, teach.static_form(exercise), exercise._repr_html_()):
        assert "# As given\ndef pushed(a, b, c, v)" in text
        assert text.count("def answer(") == 3
        assert 'href="03_jvp_and_linearize.ipynb"' in text
    assert "What is needed: 3 · JVP and linearize" in str(exercise)
