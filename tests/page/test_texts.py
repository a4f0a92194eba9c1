"""The display of program texts, and of paths in errors."""

import pytest

from jaxviz.page.sources import without_folders
from jaxviz.page.texts import first_line, fit


def test_all_texts_of_a_value_are_fit():
    value = {"a\u202e": ["b\x1b[0m", {"c": "d\ud800"}], "e": (1, None, "f\ng\th")}
    assert fit(value) == {"a\u202e": ["b<U+001B>[0m", {"c": "d<U+D800>"}], "e": (1, None, "f\ng\th")}


def test_a_long_line_is_cut_and_the_others_stay():
    assert fit("a\n" + "n" * 10**6 + "\nb", 10) == "a\nnnnnnnnnn…\nb"
    assert len(fit(["n" * 10**6])[0]) < 10_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at /nowhere/me/model.py:12", "at model.py:12"),
        ("(equation 3, ~/me/model.py:12), and '/nowhere/b.py'", "(equation 3, model.py:12), and 'b.py'"),
        ("see https://docs.jax.dev/en/latest/errors.html", "see https://docs.jax.dev/en/latest/errors.html"),
        ("jvp(a)/transpose(b) and a / b, x /y", "jvp(a)/transpose(b) and a / b, x /y"),
        ("`</script><img/src=x>` at /nowhere/a.py", "`</script><img/src=x>` at a.py"),
    ],
)
def test_files_go_by_their_names_alone(text, shown):
    assert without_folders(text) == shown


def test_a_folder_with_spaces_goes_too(tmp_path):
    folder = tmp_path / "my own folder"
    folder.mkdir()
    assert without_folders(f"at {folder}/model.py:3.") == "at model.py:3."


def test_an_error_is_one_line_that_says_what_to_do():
    assert first_line(ValueError("a\nb /nowhere/c.py\u202e\n\nmore")) == "ValueError: a b c.py<U+202E>"
    assert "sys.setrecursionlimit" in first_line(RecursionError("maximum recursion depth exceeded"))
