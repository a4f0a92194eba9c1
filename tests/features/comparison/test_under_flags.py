"""What flags of JAX change of a gradient."""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxviz

W, X = jnp.full((8, 8), 0.1), jnp.ones((4, 8))
EARLY = "__new__" in vars(jax.custom_vjp)
"""Whether this JAX reads the flags when `jax.checkpoint` is applied; under `jax_remat3` its checkpoints are not
opened."""
OPENED = pytest.mark.skipif(EARLY, reason="a checkpoint under jax_remat3 is opened from JAX 0.11 on")
COMPARED = partial(jaxviz.compare, flags=({}, {"jax_remat3": True}))


def loss(policy, w, x):
    """A checkpoint applied while it is traced, which every JAX makes as the flag says."""
    h = jax.checkpoint(lambda w, x: jnp.sin(checkpoint_name(jnp.exp(x @ w), "h") @ w), policy=policy)(w, x)
    return jnp.sum(h)


exp_only = partial(loss, lambda primitive, *_, **__: primitive.name == "exp")
by_name = partial(loss, jax.checkpoint_policies.save_only_these_names("h"))


def saved_by_jax(f, flag):
    jax.config.update("jax_remat3", flag)
    try:
        return sum(x.nbytes for x in jax.tree.leaves(jax.vjp(f, W, X)[1]) if x is not W and x is not X)
    finally:
        jax.config.update("jax_remat3", False)


@OPENED
@pytest.mark.parametrize("f", [exp_only, by_name])
def test_saved_bytes_are_those_of_jax_under_each_flag(f):
    found = COMPARED(f, f, W, X)
    (saved,) = (figure for figure in found.figures if figure.name == "saved bytes")
    assert (saved.before, saved.after) == (saved_by_jax(f, False), saved_by_jax(f, True))


@OPENED
def test_a_policy_that_is_not_asked_has_no_effect_with_the_flag():
    found = COMPARED(exp_only, exp_only, W, X)
    assert "JAX does not ask the policy of `<lambda>` about exp" in found.summary
    assert [d.change for d in found.effects] == [1]
    assert not found.is_same
    assert found.same_lines < 1
    back = jaxviz.compare(exp_only, exp_only, W, X, flags=({"jax_remat3": True}, {}))
    assert "no longer: JAX does not ask the policy of `<lambda>` about exp" in back.summary
    assert [d.change for d in back.effects] == [-1]


@OPENED
def test_a_policy_of_names_is_the_same_with_the_flag():
    found = COMPARED(by_name, by_name, W, X)
    assert found.summary.endswith("with jax_remat3 is the same program")
    assert found.same_lines == 1


def test_flags_are_as_before_afterwards():
    def broken(w):
        raise KeyError(w.shape)

    COMPARED(by_name, by_name, W, X)
    assert not jax.config.jax_remat3
    with pytest.raises(KeyError) as found:
        jaxviz.compare(jnp.sum, broken, W, flags=({"jax_remat3": False}, {"jax_remat3": True}))
    assert not jax.config.jax_remat3
    assert "Raised with jax_remat3." in found.value.__notes__


def test_all_programs_are_derived_under_the_flags():
    """The backward rule is traced when its program is needed, and looks at the flag then."""

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, x), lambda x, ct: (jnp.cos(ct) if jax.config.jax_enable_custom_prng else jnp.sin(ct),))
    loss = lambda x: f(x).sum()
    found = jaxviz.compare(loss, loss, X, flags=({}, {"jax_enable_custom_prng": True}))
    names = [{e.primitive.name for _, e in d.backward.walk()} for d in (found.before, found.after)]
    assert [n & {"sin", "cos"} for n in names] == [{"sin"}, {"cos"}]


def test_mistakes():
    with pytest.raises(ValueError, match="has no flag 'jax_remat4'; did you mean 'jax_remat3'"):
        jaxviz.compare(by_name, by_name, W, X, flags=({}, {"jax_remat4": True}))
    with pytest.raises(ValueError, match=r"flags takes the flags of both functions, such as \(\{\}, \{'jax_remat3'"):
        jaxviz.compare(by_name, by_name, W, X, flags=({"jax_remat3": True},))
    d = jaxviz.derive(by_name, W, X)
    with pytest.raises(ValueError, match="a Derivation is traced already"):
        jaxviz.compare(d, d, flags=({}, {"jax_remat3": True}))


def test_what_was_decorated_before_keeps_its_checkpoint():
    """Where JAX reads the flag when the checkpoint is applied, which a note says."""
    block = jax.checkpoint(lambda w, x: jnp.exp(x @ w), policy=lambda primitive, *_, **__: primitive.name == "exp")
    f = lambda w, x: jnp.sum(block(w, x))
    found = COMPARED(f, f, W, X)
    assert found.is_same == EARLY
    said = f"JAX {jax.__version__} reads the flag when jax.checkpoint is applied"
    assert any(note.startswith(said) for note in found.notes) == EARLY


def test_a_loop_that_jax_does_not_differentiate_is_refused_in_its_words():
    f = lambda w, x: jnp.sum(jax.lax.scan(lambda x, _: (jnp.sin(x @ w), None), x, length=3)[0])
    jax.config.update("jax_scan3", True)
    try:
        jax.vjp(f, W, X)
    except NotImplementedError as error:
        refused = str(error)
        with pytest.raises(NotImplementedError) as alone:
            jaxviz.vjp(f, W, X)
        with pytest.raises(NotImplementedError, match="switch off what makes it"):
            jaxviz.jvp(f, (W, X), (W, X))
        for run in (jaxviz.step, jaxviz.find_nan):
            with pytest.raises(jaxviz.NoRuleError, match=r"in place of the mutable references in `Scan3` \(.*flags.py"):
                run(f, W, X)
        assert refused in str(alone.value)
        assert "test_under_flags.py" in str(alone.value)
    else:
        pytest.skip("JAX differentiates it")
    finally:
        jax.config.update("jax_scan3", False)
    with pytest.raises(NotImplementedError) as found:
        jaxviz.compare(f, f, W, X, flags=({}, {"jax_scan3": True}))
    assert str(found.value) == refused
    assert "Raised with jax_scan3." in found.value.__notes__


PAGE = Path(__file__).parents[3] / "docs" / "howto" / "remat3.md"
CELL = re.compile(r"```\{code-cell\}\n(?::tags:.*\n)?(.*?)```", re.DOTALL)


@pytest.mark.skipif(jax.__version_info__[:2] != (0, 12), reason="the page shows what JAX 0.12 does")
def test_the_page_shows_what_the_reports_say():
    text = PAGE.read_text(encoding="utf-8")
    page: dict = {}
    for cell in CELL.findall(text):
        exec(cell, page)
    shown = [" ".join(block.split()) for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL)]
    loss, named, params, x = (page[name] for name in ("loss", "named", "params", "x"))
    jax.config.update("jax_remat3", True)
    try:
        (idle,) = jaxviz.policies(loss, params, x).without_effect
    finally:
        jax.config.update("jax_remat3", False)
    assert shown == [COMPARED(loss, loss, params, x).summary, idle.short, COMPARED(named, named, params, x).summary]
