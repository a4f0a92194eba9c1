"""The page beside JAX's courses sends readers to notebooks that teach what it says of them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "beside_jax.md"
JAX_301 = [
    "cookbook",
    "vjp-objects",
    "sharding-ad",
    "custom-derivatives",
    "custom-jvp-vjp",
    "refs",
    "remat",
    "hijax-types",
]
JAX_201 = [
    "jit", "aot", "control-flow", "placement", "sharding", "shard-map", "callbacks", "profiling", "debugging",
    "slow-compilation", "precision", "controlling-xla", "gpu-memory",
]  # fmt: skip
"""The pages of JAX's courses, in the order of their indices, at the revision that the page beside them names."""

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


def test_the_page_beside_jax_has_a_row_for_each_of_its_pages_and_links_to_notebooks_that_there_are():
    text = PAGE.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    pages = [
        re.match(r"\| \[[^]]+\]\(https://docs\.jax\.dev/en/latest/(\d01)/([a-z-]+)\.html\) \|", row) for row in rows
    ]
    assert [page.groups() for page in pages] == [("301", p) for p in JAX_301] + [("201", p) for p in JAX_201]
    names = {p.stem for p in (ROOT / "notebooks").glob("*.py")}
    for label, name in re.findall(r"\[([^\]]+)\]\((\d\w+)\.py\)", text):
        assert name in names
        assert label == str(int(name[:2]))
    for row in rows:
        *_, better, ours, beside, _ = row.split(" |")
        assert better.strip()
        assert bool(re.search(r"\]\(\d", beside)) == (bool(ours.strip()) and "no notebook" not in ours), row
    assert re.search(r"revision \[`([0-9a-f]{7})`\]\(https://github\.com/jax-ml/jax/tree/\1[0-9a-f]{33}/", text)
    assert re.search(r"were read on \d+ [A-Z]\w+ 20\d\d, as they are in revision .* of \d+ [A-Z]\w+ 20\d\d", text)


def test_each_notebook_to_be_read_beside_a_page_has_a_word_to_look_for():
    text = PAGE.read_text("utf-8")
    beside = {page: list(map(int, re.findall(r"\[(\d+)\]\(", cell))) for page, cell in ROW.findall(text)}
    assert {page: numbers for page, numbers in beside.items() if numbers} == {p: list(n) for p, n in TAUGHT.items()}


@pytest.mark.parametrize("page", TAUGHT)
def test_the_notebooks_beside_a_page_teach_what_it_says(page):
    for number, word in TAUGHT[page].items():
        (path,) = (ROOT / "notebooks").glob(f"{number:02}_*.py")
        text = path.read_text("utf-8")
        assert re.search(rf"(?<!\w){re.escape(word)}", text, re.IGNORECASE), f"{path.stem} does not mention {word}"
