"""The facts of a program are what the reports say of it, and stay the same in a file."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts_of_programs import PROGRAMS, W, X, checkpointed, facts, gathered, give, loss
from jax.ad_checkpoint import checkpoint_name

import jaxviz
from jaxviz.environments.facts import Facts
from jaxviz.environments.gather import gather_facts
from jaxviz.environments.values import _restored, _stored, leaves_in, rounded, values_of
from jaxviz.xla.compile_cost.stages import subject_of


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loss", "checkpointed"])
def test_facts_are_those_of_the_reports(name):
    (found, _), (fun, args) = facts(name), PROGRAMS[name]
    program, compiled = found.program, found.compiled
    saved, timeline, cost = jaxviz.residuals(fun, *args), jaxviz.memory(fun, *args), jaxviz.cost(fun, *args)
    assert program.about == saved.gradient
    assert sum(r.nbytes for r in program.saved) == saved.saved.nbytes
    assert sum(r.count for r in program.saved) == saved.saved.count
    assert program.argument_nbytes == saved.saved.arguments
    assert [(r.location, r.why) for r in program.saved] == [
        (g.location, g.why) for g in saved.groups if g.residuals[0].is_saved
    ]
    assert program.peak.nbytes == timeline.peak_nbytes
    assert sum(w.forward for w in program.work) == cost.forward.flops
    assert sum(w.backward for w in program.work) == cost.backward.flops
    assert compiled.memory.to_dict() == jaxviz.compiled_memory(fun, *args).to_dict()
    assert program.without_effect == jaxviz.policies(fun, *args).without_effect
    assert found.not_known == ()


def test_what_a_checkpoint_recomputes_is_counted():
    of = lambda name: facts(name)[0].program
    assert sum(w.recomputed for w in of("loss").work) == 0
    (decided,) = of("checkpointed").decisions
    assert decided.recomputed == sum(
        v.fate == "recomputed" for c in jaxviz.policies(checkpointed, W, X).checkpoints for v in c.values
    )
    assert of("loss").decisions == ()


def test_facts_say_what_is_named_donated_and_not_reached(tmp_path):
    only = jax.checkpoint_policies.save_only_these_names("h", "not there")
    block = lambda w, x: jnp.sin(checkpoint_name(jnp.tanh(x @ w), "h")) * checkpoint_name(x[:, :3], "unlisted")

    def step(params, x):
        loss = lambda p: jnp.sum(jax.checkpoint(block, policy=only)(p["w"], x) * jnp.round(p["b"]))
        return jax.tree.map(jnp.subtract, params, jax.grad(loss)(params))

    args = ({"w": W, "b": W[0]}, X)
    found = gather_facts("m:step", "", jax.jit(step, donate_argnums=0), args, {}, 0, compile=False)
    program = found.program
    assert (program.names, program.implied) == (("h",), ())
    assert program.inputs == ("params['b']", "params['w']", "x")
    assert program.parameters == ("x", "p['b']", "p['w']")
    assert program.donated == ("params['b']", "params['w']")
    assert list(program.dead) == ["p['b']"]
    assert program.dead["p['b']"].startswith('`jnp.round(p["b"])` (test_facts.py:')
    assert (found.compiled.memory, found.values, found.environment.libraries) == (None, None, {})
    assert Facts.load(found.save(tmp_path / "facts.json")).program == program


def test_facts_count_equations_of_both_passes_once():
    of_loop = lambda n: lambda w, x: jax.lax.fori_loop(0, n, lambda _, y: jnp.tanh(y @ w @ w.T), x).sum()
    few, many = (gather_facts("m:f", "", of_loop(n), (W, X), {}, 0, compile=False).program.equations for n in (2, 20))
    assert few == many > 8


def test_facts_survive_a_file(tmp_path):
    for name in ("loss", "checkpointed"):
        found, _ = facts(name)
        path = found.save(tmp_path / "facts.json")
        again = Facts.load(path)
        assert again.to_dict() == found.to_dict()
        assert without_memory(again) == without_memory(found)  # which is compared by identity


def without_memory(found):
    return replace(found, compiled=replace(found.compiled, memory=None))


DAMAGED = [
    (lambda d: d.update(format="a letter"), "has no facts of a program; jaxviz upgrade writes such files"),
    (lambda d: d.update(version=99), "is of version 99 of these files"),
    (lambda d: d["facts"]["program"].pop("saved"), "is damaged: KeyError: 'saved'"),
    (lambda d: d["facts"]["program"]["saved"][0].update(nbytes="much"), r"program.saved\[0\].nbytes is 'much'"),
    (lambda d: d["facts"]["environment"]["flags"].update(jax_no=3), r"environment.flags\['jax_no'\] is 3"),
]


@pytest.mark.parametrize(("spoil", "message"), DAMAGED)
def test_a_damaged_file_is_refused(tmp_path, spoil, message):
    path = facts("loss")[0].save(tmp_path / "facts.json")
    data = json.loads(path.read_text())
    spoil(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=message):
        Facts.load(path)


def test_values_are_those_of_jax():
    found, folder = facts("loss")
    value, gradient = jax.value_and_grad(loss)(W, X)
    arrays = leaves_in(folder)
    assert [leaf.name for leaf in found.values.leaves] == ["the result", "w"]
    assert [leaf.kind for leaf in found.values.leaves] == ["result", "gradient"]
    np.testing.assert_allclose(arrays[0], value, rtol=1e-6)
    np.testing.assert_allclose(arrays[1], gradient, rtol=1e-5)
    assert found.values.leaves[1].norm == pytest.approx(float(jnp.linalg.norm(gradient)), rel=1e-5)


def test_the_noise_is_that_of_rounding():
    result, gradient = facts("loss")[0].values.leaves
    for leaf in (result, gradient):
        assert 0 < leaf.noise < 1e-5 * leaf.norm
        assert leaf.noise >= leaf.norm * float(jnp.finfo(jnp.float32).eps) / 2


def test_the_noise_is_that_of_the_coarsest_type(tmp_path):
    """Another XLA leaves out other roundings of it."""
    x = jax.random.normal(jax.random.key(0), (64,))
    f = lambda x: jnp.sum(jnp.sin(x.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)
    found = values_of(subject_of(f, (x,), {}, 0), tmp_path)
    value, gradient = (float(leaf.noise / leaf.norm) for leaf in found.leaves)
    assert 1e-4 < value < 1e-2
    assert 1e-3 < gradient < 1e-1


def test_what_a_function_closes_over_has_other_last_digits_too(tmp_path):
    w = jax.random.normal(jax.random.key(0), (8, 4))
    rounded = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
    (value,) = values_of(subject_of(lambda rows: rounded(w[rows]), (jnp.arange(6),), {}, 0), tmp_path).leaves
    _, gradient = values_of(subject_of(lambda x: jnp.sum(x @ rounded(w)), (jnp.ones((2, 8)),), {}, 0), tmp_path).leaves
    assert value.noise > 1e-3 * value.norm
    assert gradient.noise > 1e-3 * gradient.norm


def test_arguments_of_the_other_environment_are_used(tmp_path):
    _, folder = facts("loss")
    give(tmp_path, folder)
    found = values_of(subject_of(loss, (W + 1, X), {}, 0), tmp_path)
    assert found.replaced == ("w",)
    for ours, theirs in zip(leaves_in(tmp_path), leaves_in(folder), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    other = gathered("loss", tmp_path, (W, X[:1]))
    assert other.values is None
    assert [(n.what, n.why) for n in other.not_known] == [("values", "x has another type in the other environment")]


ARGUMENTS = {
    "bfloat16": (lambda x: jnp.sum(jnp.sin(x)), (X.astype(jnp.bfloat16),)),
    "complex": (lambda x: jnp.sum(jnp.abs(x) ** 2), (X + 1j * X,)),
    "key": (lambda x, key: jnp.sum(x * jax.random.normal(key, x.shape)), (X, jax.random.key(0))),
    "weak": (lambda x, n: jnp.sum(x) * n, (X, jnp.asarray(0.3))),
    "number": (lambda x, n: jnp.sum(x) * n, (X, 2.0)),
    "vector": (lambda x: jnp.sin(x), (X,)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_every_kind_arerounded_and_given_on(name, tmp_path):
    subject = subject_of(*ARGUMENTS[name], {}, 0)
    found = values_of(subject, tmp_path)
    assert all(leaf.noise > 0 for leaf in found.leaves if leaf.norm)
    again = tmp_path / "again"
    again.mkdir()
    give(again, tmp_path)
    moved = rounded(subject.inputs, 1, 0.0)
    assert values_of(replace(subject, inputs=tuple(moved)), again).replaced[0] == "x"
    for ours, theirs in zip(leaves_in(again), leaves_in(tmp_path), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_types_have_no_values(tmp_path):
    found, _ = facts("types")
    assert found.values is None
    assert [n.why for n in found.not_known] == ["x is given by its type; give arrays to compare them"]
    assert found.program.saved == facts("loss")[0].program.saved


def test_a_part_that_is_not_known_is_named(tmp_path, monkeypatch):
    from jaxviz.environments import gather

    def broken(*_):
        raise NotImplementedError("this backend does not say")

    monkeypatch.setattr(gather, "memory_of_subject", broken)
    found = gathered("loss", tmp_path)
    assert found.compiled.memory is None
    assert [(n.what, n.why) for n in found.not_known] == [
        ("compiled memory", "NotImplementedError: this backend does not say")
    ]


@pytest.mark.parametrize("x", [X, jnp.asarray(0.3), jax.device_put(X, jax.devices()[0]), np.ones(3, np.float32)])
def test_moved_arguments_do_not_compile_again(x):
    f = jax.jit(lambda x: x)
    for moved in (x, *rounded([x], 0, 0.0), _restored(x, _stored(x))):
        f(moved)
    assert f._cache_size() == 1


def test_zeros_and_what_is_not_finite_stay():
    largest = jnp.finfo(jnp.float32).max
    x = jnp.asarray([0.0, jnp.inf, -jnp.inf, jnp.nan, *[1.0] * 20, *[largest] * 20])
    for seed in range(4):
        (moved,) = rounded([x], seed, 0.0)
        np.testing.assert_array_equal(moved[:4], x[:4])
        assert 0 < jnp.sum(moved[4:24] != 1) < 20
        np.testing.assert_allclose(moved[4:], x[4:], rtol=2e-7)
