"""`gradient_flow`: which parameters a gradient reaches, compared with JAX's gradients."""

import linecache
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcripts
from flow_programs import FLOW_CASES, V, W, X, frozen_step, masked_step, step_in_bfloat16
from programs import CASES
from short_runs import short

import jaxviz
from benchmarks import models
from jaxviz.analysis.training_step import has_auxiliary
from jaxviz.features.flow.structure import Reach

STRUCTURAL = [name for name, c in FLOW_CASES.items() if c.status in ("stopped", "on purpose")]
AT_VALUES = [name for name, c in FLOW_CASES.items() if c.status == "zero"]


def leaf_of(flow, name):
    return next(leaf for leaf in flow.leaves if leaf.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOW_CASES)
def test_the_kind_and_the_line(name):
    c = FLOW_CASES[name]
    flow = jaxviz.gradient_flow(c.loss, *c.args)
    leaf = leaf_of(flow, c.leaf)
    assert leaf.status == c.status
    assert [e.kind for e in leaf.endings[:1]] == [c.kind] * bool(c.kind)
    if c.line:
        at = leaf.endings[0].location
        assert c.line in linecache.getline(at.file, at.line)
    assert bool(flow) is (c.status in ("stopped", "zero"))
    if c.name != "unregistered_model":
        compare_with_jax(flow, c.loss, c.args)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_not_finite_is_said_and_counts_as_not_zero(dtype):
    loss = lambda p, x: jnp.sum(jnp.sqrt(p["root"] * x)) + jnp.sum(p["sound"] * x)
    p = {"root": jnp.array([0.0, 0.0, 1.0], dtype), "sound": jnp.ones(3, dtype)}
    flow = jaxviz.gradient_flow(loss, p, jnp.array([1.0, 0.0, 1.0], dtype))  # infinite, and NaN
    gradient = np.asarray(jax.grad(loss)(p, jnp.array([1.0, 0.0, 1.0], dtype))["root"], np.float32)
    assert (np.isinf(gradient).sum(), np.isnan(gradient).sum()) == (1, 1)
    said = "the gradient is not finite in 2 elements of `p['root']`: jaxviz.find_nan finds where that begins"
    assert flow.summary.endswith(f"reaches all 2 parameters; {said}")
    assert [(leaf.count.nonzero, leaf.count.not_finite) for leaf in flow.leaves] == [(3, 2), (2, 0)]
    cut = lambda p, x: loss({"root": p["root"], "sound": jax.nn.relu(-p["sound"])}, x)
    assert jaxviz.gradient_flow(cut, p, jnp.array([1.0, 0.0, 1.0], dtype)).summary.endswith(f" T{said[1:]}.")


@pytest.mark.parametrize("name", STRUCTURAL)
def test_types_are_enough_for_the_structure(name):
    c = FLOW_CASES[name]
    flow = jaxviz.gradient_flow(c.loss, *c.args, values=False)
    assert leaf_of(flow, c.leaf).status == c.status
    assert not flow.has_values


def gradients(fun, args, n_results=None):
    """JAX's gradient, with cotangents of one, in each leaf that has one."""

    def total(first):
        results = jax.tree.leaves(fun(first, *args[1:]))[:n_results]
        return sum(jnp.sum(r).astype(jnp.float32) for r in results if jnp.issubdtype(r.dtype, jnp.inexact))

    every = jax.tree.leaves(jax.grad(total, allow_int=True)(args[0]))
    return [g for g in every if g.dtype != jax.dtypes.float0]


def at_a_random_point(tree, seed):
    rng = np.random.default_rng(seed)
    moved = lambda x: (x + 0.1 * rng.normal(size=np.shape(x))).astype(x.dtype)
    return jax.tree.map(lambda x: moved(x) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x, tree)


def compare_with_jax(flow, fun, args):
    actual = gradients(fun, args)
    assert len(flow.leaves) == len(actual)
    for leaf, gradient in zip(flow.leaves, actual, strict=True):
        nonzero = int(np.sum(np.asarray(gradient) != 0))
        assert (nonzero > 0 or not gradient.size) == leaf.is_reached, leaf.name
        if leaf.count is not None and leaf.status == "zero":
            assert nonzero == 0
            assert leaf.endings, leaf.name


OF_BENCHMARKS = {
    "transformer": lambda: models.transformer(1), "scanned": lambda: models.scan_transformer(2),
    "checkpointed": lambda: models.remat_transformer(1), "lstm": lambda: models.lstm(1), "mlp": lambda: models.mlp(2),
    "custom JVP": lambda: models.ruled_transformer(1, True), "custom VJP": lambda: models.ruled_transformer(1, False),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", short(range(3), [0]))
@pytest.mark.parametrize("name", short(list(OF_BENCHMARKS), ["lstm"]))
def test_models_are_reached_where_jax_s_gradient_is_not_zero(name, seed):
    fun, (params, *rest) = OF_BENCHMARKS[name]()
    args = (at_a_random_point(params, seed), *rest)
    flow = jaxviz.gradient_flow(fun, *args)
    assert not flow
    compare_with_jax(flow, fun, args)


def test_structure_agrees_with_the_transposition_of_every_program():
    """One pass forward finds what the backward pass has a cotangent for, or less where JAX writes out a zero."""
    differing = {}
    for c in CASES:
        try:
            reached = jaxviz.derive(c.fun, *c.args).reached
        except Exception:  # not differentiable in its first argument
            continue
        flow = Reach(jaxviz.derive(c.fun, *c.args))
        mine = tuple(bool(flow.reached >> k & 1) for k in range(len(reached)))
        if mine != reached:
            differing[c.name] = mine, reached
    assert differing == {}


def test_a_derivative_that_needs_several_iterations():
    def delayed(params, n):
        shift = lambda carry, _: ((carry[1], carry[2], params["w"] * 2.0), None)
        return jax.lax.scan(shift, (0.0, 0.0, 0.0), None, length=n)[0][0]

    assert not jaxviz.gradient_flow(lambda params: delayed(params, 3), {"w": 1.0})
    flow = jaxviz.gradient_flow(lambda params: delayed(params, 2), {"w": 1.0})
    assert [(leaf.status, leaf.endings[0].kind) for leaf in flow.leaves] == [("zero", "iterations")]


def test_paths_are_found_by_name():
    c = FLOW_CASES["index_of_the_largest"]
    paths = jaxviz.gradient_flow(c.loss, *c.args, values=False).paths
    first, last = paths["params.prior"]
    assert first.code.strip() == 'logits = h @ params["prior"]'
    assert "jnp.argmax(logits, -1)" in last.code
    assert [line.code for line in paths["prior"]] == [line.code for line in paths["params['prior']"]]
    assert any("jnp.tanh" in line.code for line in paths["w"])
    with pytest.raises(KeyError, match="no parameter is named 'nothing'"):
        paths["nothing"]
    both = jaxviz.gradient_flow(lambda p: jnp.sum(p["a"]["w"] * p["b"]["w"]), {n: {"w": X} for n in "ab"}, values=False)
    with pytest.raises(KeyError, match="several parameters are named 'w'"):
        both.paths["w"]


@pytest.mark.slow
def test_updates_that_do_not_change_a_parameter():
    flow = jaxviz.gradient_flow(step_in_bfloat16, {"w": jnp.ones((8, 8), jnp.bfloat16)}, jnp.ones((2, 8)))
    (leaf,) = flow.not_updated
    assert flow
    assert leaf.update.text == "the update is below half a step of bfloat16 in 64 of 64 elements"
    flow = jaxviz.gradient_flow(masked_step, {"w": W}, X)
    assert [leaf.update.text for leaf in flow.not_updated] == ["its update is zero in all elements"]
    flow = jaxviz.gradient_flow(frozen_step, {"w": W, "frozen": V}, X)
    assert not flow
    assert leaf_of(flow, "params['frozen']").update.is_frozen
    assert leaf_of(flow, "params['w']").update.changed == W.size


@pytest.mark.slow
def test_rows_are_counted():
    c = FLOW_CASES["rows_of_an_embedding_that_do_not_occur"]
    leaf = leaf_of(jaxviz.gradient_flow(c.loss, *c.args), c.leaf)
    assert (leaf.count.nonzero_rows, leaf.count.rows) == (3, 50)
    assert leaf.nonzero == "12 of 200, in 3 of 50 rows"


def test_types_as_arguments():
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), ({"w": W, "v": V}, X))
    flow = jaxviz.gradient_flow(lambda p, x: jnp.sum(x @ p["w"]), *types)
    assert [leaf.name for leaf in flow.stopped] == ["p['v']"]
    assert flow.notes == ("The arguments are types, so only what holds for any values was found.",)


@pytest.mark.slow
@transcripts.of("flow")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def library_cases():
    pytest.importorskip("flax.linen", reason="the engine's tests with the newest JAX go without the libraries")
    from library_programs import LIBRARY_CASES

    return LIBRARY_CASES.values()


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("seed", range(3))
def test_library_programs_are_reached_where_jax_s_gradient_is_not_zero(seed):
    for c in library_cases():
        args = (at_a_random_point(c.args[0], seed), *c.args[1:])
        # Of a pair of a loss and something else, as with `has_aux`, the loss is differentiated.
        n_results = 1 if has_auxiliary(jaxviz.derive(c.fun, *args)) else None
        try:
            actual = gradients(c.fun, args, n_results)
        except Exception:  # it has no gradient in reverse mode
            continue
        flow = jaxviz.gradient_flow(c.fun, *args)
        reached = [leaf.is_reached for leaf in flow.leaves]
        nonzero = [bool(np.any(np.asarray(g) != 0)) for g in actual]
        if flow.has_values and len(reached) == len(nonzero):
            largest = [float(np.max(np.abs(np.asarray(g, np.float64)), initial=0.0)) for g in actual]
            differing = [k for k, pair in enumerate(zip(reached, nonzero, strict=True)) if pair[0] != pair[1]]
            # Where terms cancel, one program rounds to zero and another does not.
            assert all(largest[k] <= 1e-6 * max(largest) for k in differing), c.name
            assert all(leaf.endings for leaf in flow.leaves if not leaf.is_reached), c.name


def test_the_structure_inside_of_a_shard_map_leaves_its_rules_as_they_are():
    """Rules are found once, with the types that they have where devices differ."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def one(w, x):
        return jax.lax.psum(jnp.sum(jnp.tanh(jnp.sinh(x @ w)) ** 2), "d")

    x = jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)
    loss = jax.shard_map(one, mesh=mesh, in_specs=(jax.P(), jax.P("d")), out_specs=jax.P())
    assert not jaxviz.gradient_flow(loss, jnp.full((4, 3), 0.1), x)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "square_of_what_a_mask_removes",
            'since `jnp.tanh(x @ params["w"]) * MASK` has a constant factor that is zero',
        ),
        ("square_of_a_low_rank_product", "has the factor `params['b']`, which is zero"),
        ("square_of_what_a_where_removes", "selects zeros"),
        ("multiple_of_a_difference_that_is_lost", "is a difference of numbers that are equal as rounded"),
    ],
)
def test_why_a_slope_is_zero(name, why):
    """Followed back through products: it is the slope of a square where that is zero."""
    c = FLOW_CASES[name]
    (leaf,) = [leaf for leaf in jaxviz.gradient_flow(c.loss, *c.args).leaves if leaf.name == c.leaf]
    (ending,) = leaf.endings
    assert "whose slope is zero" in ending.text
    assert why in ending.text


def test_a_path_that_is_stopped_on_purpose_is_not_forgotten_where_the_others_are_zero():
    def f(w):
        return jnp.sum(jax.nn.softmax(w[:, None], axis=-1)) + jnp.sum(jax.lax.stop_gradient(w))

    (leaf,) = jaxviz.gradient_flow(f, jnp.arange(3.0)).leaves
    assert (leaf.status, leaf.endings[-1].kind, len(leaf.endings)) == ("zero", "asked", 2)
    assert "its paths to the loss end at " in jaxviz.gradient_flow(f, jnp.arange(3.0)).summary


def test_what_a_library_stops_is_not_on_purpose(tmp_path):
    """Unless the user passes `stop_gradient` to it."""
    path = tmp_path / "library_that_stops.py"
    path.write_text(
        "from jax import lax\n\ndef shifted(x):\n    return x - x + lax.stop_gradient(x)\n\n"
        "def fixed(x):\n    return lax.stop_gradient(x)\n\ndef applied(f, x):\n    return f(x)\n"
    )
    library = runpy.run_path(str(path))
    jaxviz.own_code(exclude=[str(path)])
    try:
        flows = [
            jaxviz.gradient_flow(f, jnp.ones(3), values=False)
            for f in (
                lambda x: jnp.sum(library["fixed"](x)),
                lambda x: jnp.sum(library["applied"](jax.lax.stop_gradient, x)),
                lambda x: jnp.sum(jnp.round(library["fixed"](x) + x)),
            )
        ]
    finally:
        jaxviz.own_code()
    leaves = [flow.leaves[0] for flow in flows]
    assert [leaf.status for leaf in leaves] == ["stopped", "on purpose", "stopped"]
    assert [[e.kind for e in leaf.endings] for leaf in leaves] == [["library"], ["asked"], ["flat"]]
    assert leaves[0].endings[0].text == "where the code of a library stops it"
    assert "library" in flows[0].summary


@pytest.mark.parametrize("name", [name for name, c in FLOW_CASES.items() if c.leaf == "params['gate']"])
def test_lint_names_what_ends_beside_a_softmax(name):
    """Where its maximum is stopped by JAX, and not by the user."""
    c = FLOW_CASES[name]
    assert jaxviz.gradient_flow(c.loss, *c.args, values=False).on_purpose == ()
    (advice,) = [a for a in jaxviz.lint(c.loss, *c.args) if a.rule == "dead-gradient"]
    assert c.line in linecache.getline(advice.location.file, advice.location.line)


def test_a_factor_that_is_zero_in_each_element_that_arrives():
    """With the selection before a softmax that makes it zero, and only if it does."""
    (ending,) = leaf_of(flow_of("attention_to_nothing_else"), "params['query']").endings
    arrives = "where the gradient that arrives is not zero in 20 of 25 elements, and its own value is zero in these"
    assert ending.text.startswith(f"{arrives}, since `jnp.where(jnp.eye(5, dtype=bool), s, -1e9)` (")
    assert ending.text.endswith(") selects -1e+09 there")
    (ending,) = leaf_of(flow_of("factors_that_are_zero_in_turns"), "params['w']").endings
    turns = "where the gradient that arrives is not zero in 12 of 20 elements, and `jnp.arange(5) % 2` is zero in these"
    assert ending.text == turns


@pytest.mark.parametrize(("loss", "kind", "text"), [
    (lambda w: jnp.sum(w.at[:].set(jnp.ones(4))), "other elements", "where other values are written over it"),
    (lambda w: jnp.sum(jax.lax.dynamic_update_slice(w, jnp.ones(4), (0,))), "other elements", "are written over it"),
    (lambda w: jnp.sum(jnp.zeros(4).at[jnp.arange(4, 8)].set(w, mode="drop")), "other elements", "reads no element"),
    (lambda w: jnp.sum(jnp.clip(w, -0.1, 0.1)), "zero factor", "is not zero in 2 of 4 elements, and its slope is zero"),
])  # fmt: skip
def test_what_is_not_zero_itself_is_not_said_to_be(loss, kind, text):
    """All that these read and compute is other than zero, and so is each cotangent but that of the argument."""
    w = jnp.array([-2.0, -1.0, 1.0, 2.0])
    assert not jnp.any(jax.grad(loss)(w))
    (ending,) = jaxviz.gradient_flow(loss, w).leaves[0].endings
    assert ending.kind == kind
    assert text in ending.text


def flow_of(name):
    c = FLOW_CASES[name]
    return jaxviz.gradient_flow(c.loss, *c.args)


def test_the_summary_ends_with_what_else_there_is():
    def loss(p):
        dead = jax.nn.relu(p["a"] - 100.0) + jax.nn.relu(p["b"] - 200.0)
        return jnp.sum(dead + p["c"]) + jnp.sum(jnp.round(p["d"]))

    def step(p):
        return jax.tree.map(lambda p, g: p - 1e-12 * g, p, jax.grad(loss)(p))

    def summary(f, names):
        return jaxviz.gradient_flow(f, {name: jnp.ones(2) for name in names}).summary

    zero = "2 more gradients are zero at these values"
    assert summary(loss, "abcd").endswith(f"wherever it has one; {zero}.")
    assert summary(loss, "abcde").endswith(f"; 1 more gradient is zero for any values and {zero}.")
    every = f"; 1 more gradient is zero for any values, {zero} and 1 parameter is not updated."
    assert summary(step, "abcde").endswith(every)


def test_a_reason_that_parameters_share_is_written_once():
    def loss(p):
        return jnp.sum(jax.nn.relu(p["a"] + p["c"] - 100.0) + jnp.tanh(p["b"]))

    text = str(jaxviz.gradient_flow(loss, {name: jnp.ones(2) for name in "abc"})).partition("by parameter")[2]
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("p[")]
    assert rows == ["p['a']", "p['c']", "p['b']"]
    assert [line.startswith("p['c']") for line in text.splitlines() if line.endswith("the same")] == [True]
