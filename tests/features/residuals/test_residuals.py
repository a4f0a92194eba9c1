"""Residual reports: sizes, kinds, source lines, rules, readers and reasons."""

import importlib
import importlib.util
import linecache
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
import value_programs
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

import jaxviz
from jaxviz.report.tables import nbytes
from jaxviz.runtime.evaluate import evaluate

TABLE = jnp.arange(3.0)
X = jnp.ones(3)
N = jnp.arange(3)


def loss(params, x):
    h = jnp.tanh(x @ params["w"])
    scaled = h * TABLE
    return jnp.sum(scaled * 2.0)


def test_of_a_program_and_of_a_derivation():
    program = jaxviz.trace(loss)({"w": jnp.ones((4, 3))}, jnp.ones((5, 4)))
    of_program = jaxviz.residuals(program, argnums=None)
    of_derivation = jaxviz.residuals(jaxviz.derive(program, argnums=(0, 1)))
    assert [r.type for r in of_program] == [r.type for r in of_derivation]


@pytest.mark.slow
def test_every_report_differentiates_in_the_first_argument_by_default():
    """Like `jax.grad`, so that all reports are about the same gradient."""
    params, x = {"w": jnp.ones((4, 3))}, jnp.ones((5, 4))
    in_params = "gradient of `loss` in `params`"
    reports = [
        jaxviz.residuals, jaxviz.memory, jaxviz.cost, jaxviz.lint, jaxviz.policies, jaxviz.compare_policies,
        jaxviz.derive,
        jaxviz.step, partial(jaxviz.plan_remat, budget=1.0), partial(jaxviz.compare, loss),
        partial(jaxviz.draw, stage="backward"),
    ]  # fmt: skip
    for report in reports:
        for argnums, named in ((0, ["params"]), ((1,), ["x"]), (None, ["params", "x"])):
            said = " ".join(str(report(loss, params, x, **({"argnums": argnums} if argnums != 0 else {}))).split())
            text = said.replace("`", "")
            assert f"gradient of loss in {' and '.join(named)}" in text, said
    assert jaxviz.find_nan(loss, params, x * jnp.nan).summary.startswith(f"{in_params}: ")
    held = jax.tree.leaves(jax.vjp(lambda p: loss(p, x), params)[1])
    assert jaxviz.residuals(loss, params, x).nbytes == sum(a.nbytes for a in held)


def test_all_arrays_count_as_jax_counts_them(capsys):
    def f(w, x, n):
        return jnp.sum(jnp.sin(x * w) @ w * n)

    args = jnp.ones((3, 3)), X, 2.0
    print_saved_residuals(f, *args)
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(r.type for r in jaxviz.residuals(f, *args, argnums=None)) == sorted(printed)
    assert sorted(r.type for r in jaxviz.residuals(f, *args)) != sorted(printed)


@pytest.mark.parametrize(
    "report",
    [
        jaxviz.memory, jaxviz.cost, jaxviz.policies, jaxviz.compare_policies, jaxviz.lint,
        lambda *args: jaxviz.plan_remat(*args, budget=1.0),
    ],
)  # fmt: skip
def test_every_report_on_a_gradient_says_why_there_is_none(report):
    sin = lambda n: jnp.sum(jnp.sin(n))
    assert "There is no argument to differentiate: n is i32[3]." in " ".join(str(report(sin, N)).split())
    assert "There is no argument" not in str(report(sin, X))
    assert "There is no argument" not in str(jaxviz.residuals(sin, X, argnums=()))
    assert "argnums selects no argument that has a gradient" in str(jaxviz.residuals(sin, X, argnums=()))


SIZES = {24: jnp.ones((2, 3)), 3: jnp.ones(3, bool), 4: np.float64(1), 0: jnp.ones((0, 3)),
         6: jnp.ones(3, jnp.bfloat16), 8: jax.random.key(0)}  # fmt: skip


def test_bytes():
    assert [nbytes(jax.typeof(jnp.asarray(x))) for x in SIZES.values()] == list(SIZES)


_MODEL = """import jax.numpy as jnp
import layers_of_two_files as layers

def loss(w, x):
    h = x * w
    y = layers.dense(h, jnp.diag(w))
    return jnp.sum(layers.pick(y) * y)
"""
_LAYERS = (
    "\n" * 100
    + """import jax.numpy as jnp
from jax import lax

def dense(x, w):
    return jnp.tanh(x @ w)

def pick(x):
    return lax.cond(x[0] > 0, jnp.sin, lambda y: y, x)
"""
)


def test_a_reason_names_the_file_of_a_line_that_is_in_another_one(tmp_path, monkeypatch):
    """The lines of one file are below 100, those of the other above, so a number tells which file is meant."""
    (tmp_path / "model_of_two_files.py").write_text(_MODEL)
    (tmp_path / "layers_of_two_files.py").write_text(_LAYERS)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("model_of_two_files")
    seen = set()
    for r in jaxviz.residuals(model.loss, jnp.ones(3), jnp.ones(3), argnums=(0, 1)):
        own = Path(r.location.file).name
        places = [(own, n) for n in re.findall(r"\bline (\d+)", r.reason)]
        others = re.findall(r"(\w+\.py):(\d+)", r.reason)
        assert own not in [file for file, _ in others]
        for file, line in [*places, *others]:
            assert file == ("model_of_two_files.py" if int(line) < 100 else "layers_of_two_files.py"), r.reason
        seen |= {(own, file) for file, _ in others}
    assert len(seen) == 2  # from each of them to the other


def test_rows_that_say_the_same_are_one(tmp_path):
    """On one of the user's lines, a library function has two values of one kind, from two of its expressions."""
    path = tmp_path / "twice.py"
    path.write_text("import jax.numpy as jnp\ndef twice(x):\n    return jnp.sin(x) + jnp.sin(x)\n")
    spec = importlib.util.spec_from_file_location("twice", path)
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    jaxviz.own_code(exclude=[str(path)])
    try:
        found = jaxviz.residuals(lambda x: library.twice(x), jnp.ones(8))
        timeline = jaxviz.memory(lambda x: library.twice(x), jnp.ones(8))
        assert [g.count for g in found.groups] == [2]
        rows = [line for line in str(found).splitlines() if "f32[8]" in line]
        assert len(rows) == 1
        assert rows[0].startswith("2 × f32[8]")
        assert [a.count for a in timeline.alive if a.kind == "residual"] == [2]
    finally:
        jaxviz.own_code()


@transcripts.of("residuals")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def test_values_of_one_expression_are_said_to_be_offloaded_only_where_they_are():
    moved = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"],
        offload_src="device", offload_dst="pinned_host",
    )  # fmt: skip

    def layer(x):
        h = checkpoint_name(jnp.sin(x), "h")
        return h * h

    saved = jaxviz.residuals(lambda x: jnp.sum(layer(jax.checkpoint(layer, policy=moved)(x))), X)
    both = next(e for e in saved.expressions if len(e.residuals) > 1)
    assert {r.decision for r in both.residuals} == {"offloaded", "saved"}
    rest = r"partly offloaded by .*; the rest is needed again in line \d+'s gradient \(product\)."
    assert re.fullmatch(rest, both.reason)


def with_a_rule(f):
    ruled = jax.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (f(*primals), jnp.cos(primals[0]) * tangents[0]))
    return ruled


OPERATIONS = [
    (lambda x: jnp.vdot(x, TABLE), "inner product"),
    (lambda x: jnp.einsum("bi,bi->b", jnp.outer(x, x), jnp.ones((3, 3)) * TABLE), "inner product"),
    (lambda x: jnp.outer(TABLE, TABLE) @ x, "matrix product"),
    (lambda x: jnp.einsum("i,j->ij", x, TABLE), "product"),
    (with_a_rule(lambda x: jnp.sin(x)), "the lambda's custom rule"),
    (with_a_rule(partial(jnp.multiply, 2.0)), "a function's custom rule"),
]


@pytest.mark.parametrize(("f", "named"), OPERATIONS, ids=[f"{i} {named}" for i, (_, named) in enumerate(OPERATIONS)])
def test_a_reason_calls_an_operation_as_people_do(f, named):
    saved = jaxviz.residuals(lambda x: jnp.sum(f(x)), X)
    assert any(f"({named})" in r.why for r in saved), [r.why for r in saved]


@pytest.mark.slow
@pytest.mark.parametrize("case", value_programs.LOOK_AT_VALUES, ids=str)
def test_a_backward_rule_that_looks_at_values_has_those_of_the_gradient(case):
    derivation = jaxviz.derive(case.fun, *case.args)
    outs = evaluate(derivation.forward, case.args)
    (slope,) = evaluate(derivation.backward, [*outs[1:], jnp.float32(1.0)])
    np.testing.assert_allclose(slope, jax.grad(case.fun)(*case.args), 1e-6)
    assert len(jaxviz.residuals(case.fun, *case.args)) == len(outs) - 1


@pytest.mark.parametrize("args", [(jax.ShapeDtypeStruct((), jnp.float32),), (jnp.ones(2),)], ids=["a type", "a vector"])
def test_a_backward_rule_that_looks_at_values_without_any(args):
    f = jax.custom_vjp(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct if x.sum() > 0 else -ct,))
    with pytest.raises(jax.errors.TracerBoolConversionError) as raised:
        jaxviz.residuals(f, *args)
    assert any("A backward rule looks at values, which" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("n", [4, 5, 9])
def test_all_lines_that_need_a_value_are_counted(n):
    """Those that are not named too. The sine's own rule saves its cosine."""
    lines = "".join(f"    total += jnp.sum(h * jnp.tanh({i} * x))\n" for i in range(n))
    made = {"jnp": jnp}
    path = Path("lines_of_one_value.py")
    text = f"def loss(x):\n    h = jnp.sin(x)\n    total = 0.0\n{lines}    return total\n"
    linecache.cache[str(path)] = (len(text), None, text.splitlines(True), str(path))
    exec(compile(text, str(path), "exec"), made)
    why = next(r.why for r in jaxviz.residuals(made["loss"], X) if r.expression == "jnp.sin(x)")
    assert why == f"needed again in line 4's and line 5's gradients (product) and in {n - 2} more places"
