"""The page beside JAX's courses sends readers to notebooks that teach what it says of them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAUGHT = {
    "cookbook": {
        3: "jax.linearize", 4: "two halves", 5: "linear_transpose", 16: "gradient_flow", 18: "Wirtinger",
    },
    "vjp-objects": {20: "args_res"},
    "sharding-ad": {21: "unreduced", 11: "eight times too large"},
    "custom-derivatives": {9: "check_rule"},
    "custom-jvp-vjp": {9: "custom_jvp", 34: 'show("straight")'},
    "refs": {19: "with_refs"},
    "remat": {6: "xla.temporaries", 7: "plan_remat", 12: "xla.temporaries", 22: "jax_remat3", 31: 'show("body")'},
    "jit": {1: "tracers", 2: "A leaked tracer"},
    "control-flow": {8: "while_loop", 28: "scan_transpose"},
    "sharding": {21: "collectives"},
    "shard-map": {10: "The transpose of `psum`", 11: "check_vma"},
    "profiling": {23: "ridge"},
    "debugging": {13: "find_nan", 14: "capture", 15: "replace", 17: "divergence", 33: 'show("softplus")'},
    "precision": {17: "bfloat16"},
    "gpu-memory": {12: "which rules save it"},
}  # fmt: skip
"""For each of JAX's pages, the notebooks to read beside it, and a word of what each teaches."""

ROW = re.compile(
    r"^\| \[[^]]+\]\(https://docs\.jax\.dev/en/latest/\d01/([a-z-]+)\.html\) \|.*\| (.*?) *\|$", re.MULTILINE
)


def test_each_notebook_to_be_read_beside_a_page_has_a_word_to_look_for():
    text = (ROOT / "docs" / "tutorials" / "beside_jax.md").read_text("utf-8")
    beside = {page: list(map(int, re.findall(r"\[(\d+)\]\(", cell))) for page, cell in ROW.findall(text)}
    assert {page: numbers for page, numbers in beside.items() if numbers} == {p: list(n) for p, n in TAUGHT.items()}


@pytest.mark.parametrize("page", TAUGHT)
def test_the_notebooks_beside_a_page_teach_what_it_says(page):
    for number, word in TAUGHT[page].items():
        (path,) = (ROOT / "notebooks").glob(f"{number:02}_*.py")
        text = path.read_text("utf-8")
        assert re.search(rf"(?<!\w){re.escape(word)}", text, re.IGNORECASE), f"{path.stem} does not mention {word}"
