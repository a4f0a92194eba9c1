"""Exercises on a page without a kernel: they respond like Python, and the page does not give away any answer."""

import json
import re

import pytest
from static_exercises import ANSWERS, EXERCISES, FIXTURE, fixture

from jaxviz import teach

HELD = re.compile(r' data-(?:sheet|content)="[^"]*"')


def test_the_fixture_is_what_is_made():
    """If it is not: `python tests/static_exercises.py` updates it."""
    assert json.loads(FIXTURE.read_text(encoding="utf-8")) == fixture()


def test_the_fixture_has_right_and_wrong_answers_of_each_kind():
    for name, exercise in EXERCISES.items():
        verdicts = {said["isRight"] for _, said in fixture()[name]["answers"]}
        assert verdicts == ({True, False} if exercise.form.kind != "code" else set()), name
    assert ANSWERS.keys() == EXERCISES.keys()


@pytest.mark.parametrize("name", EXERCISES)
def test_nothing_of_the_answer_can_be_read_in_the_page(name):
    exercise, page = EXERCISES[name], teach.static_form(EXERCISES[name])
    assert HELD.search(page)
    seen = HELD.sub("", page)
    options = [label for _, group in exercise.form.groups for _, label in group]
    secrets = [exercise.reveal().headline, exercise.reveal().note, *(p.why for p in exercise.reveal().points)]
    secrets += [text if isinstance(text, str) else text() for text in exercise.hints]
    assert not [s for s in secrets if s and s not in options and s in seen]
    assert not re.search(r"<[^>]* (checked|value|data-\w+)[=> ]", seen)


def test_a_form_for_code_does_not_say_where_on_the_page_to_write_it():
    """A page of the site may have no cell below it."""
    assert "below" not in teach.static_form(EXERCISES["code"])


def test_each_field_of_a_form_has_its_label():
    for name, exercise in EXERCISES.items():
        page = teach.static_form(exercise)
        fields = {"choice": 'type="radio"', "marks": 'type="checkbox"', "line": 'type="text"', "code": "<input"}
        count = sum(len(group) for _, group in exercise.form.groups) or (exercise.form.kind == "line")
        assert len(re.findall(rf"<label>[^<]*<input {fields[exercise.form.kind]}", page)) == (count or 0), name
        assert page.count("<legend>") == page.count("</fieldset>") == 1


def test_a_fold_keeps_its_content_until_it_is_opened():
    fold = teach.static_fold("A `solution` & more", "<pre>x**4</pre>")
    assert "x**4" not in fold
    assert "<summary>A <code>solution</code> &amp; more</summary>" in fold
