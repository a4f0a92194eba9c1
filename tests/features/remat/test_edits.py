"""Combined edits of source files."""

import linecache

from jaxviz.features.remat.edits import around, edited

SOURCE = "import jax\ny = model(x)\n"


def written(tmp_path, *edits, imports=()):
    file = tmp_path / "edits.py"
    file.write_text(SOURCE)
    linecache.checkcache(str(file))
    made = edited([e for pair in edits for e in pair(str(file))], {}, [], imports)
    compile(made[str(file)], str(file), "exec")
    return made[str(file)]


def test_two_pairs_around_one_expression_are_two_though_they_open_alike(tmp_path):
    pair = lambda kind: lambda file: around(file, (2, 4), (2, 9), "select(", f").at({kind}).apply(checkpoint)")
    text = written(tmp_path, pair("Attention"), pair("Block"))
    assert text.splitlines()[-1] == (
        "y = select(select(model).at(Attention).apply(checkpoint)).at(Block).apply(checkpoint)(x)"
    )


def test_of_two_pairs_around_one_expression_the_first_is_inside(tmp_path):
    inner = lambda file: around(file, (2, 4), (2, 12), "named(", ', "model")')
    outer = lambda file: around(file, (2, 4), (2, 12), "jax.checkpoint(", ", policy=SAVED)")
    text = written(tmp_path, inner, outer)
    assert text.splitlines()[-1] == 'y = jax.checkpoint(named(model(x), "model"), policy=SAVED)'


def test_one_pair_given_twice_is_one(tmp_path):
    pair = lambda file: around(file, (2, 4), (2, 9), "jax.checkpoint(", ")")
    assert written(tmp_path, pair, pair).splitlines()[-1] == "y = jax.checkpoint(model)(x)"


def test_what_two_edits_import_is_imported_once(tmp_path):
    pair = lambda kind: lambda file: around(file, (2, 4), (2, 9), "pz.select(", f").at({kind})")
    text = written(tmp_path, pair("A"), pair("B"), imports=[("pz", "from penzai import pz")] * 2)
    assert text.count("from penzai import pz\n") == 1
