"""`check_rule`: custom rules compared with numerical differences, and with the functions they replace."""

import _thread
import threading

import jax
import jax.numpy as jnp
import pytest
import transcripts
from jax.sharding import AxisType, PartitionSpec
from test_custom_rules import X, with_jvp, with_vjp

import jaxviz


@pytest.mark.slow
def test_an_interrupt_ends_the_wait_for_the_compiler(monkeypatch, nothing_from_disk):
    compile_, goes_on = jax.stages.Lowered.compile, threading.Event()

    def compile_slowly(*args, **kwargs):
        if not goes_on.is_set():
            _thread.interrupt_main()
            goes_on.wait()
        return compile_(*args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_slowly)
    try:
        with pytest.raises(KeyboardInterrupt):
            jaxviz.check_rule(jnp.tanh, X)
    finally:
        goes_on.set()
    assert jaxviz.check_rule(jnp.tanh, X)


@pytest.mark.slow
def test_the_function_is_traced_and_compiled_once_for_all_its_differences(nothing_from_disk):
    def calls(n):
        count = 0

        def f(x):
            nonlocal count
            count += 1
            return jnp.sum(x * jnp.roll(x, 1))

        wrong = with_jvp(f, lambda p, t: (f(p[0]), jnp.sum(t[0])))
        assert not jaxviz.check_rule(wrong, jnp.arange(1.0, n + 1))
        return count

    assert calls(2) == calls(30)


@pytest.mark.slow
def test_seeds_have_the_sharding_that_types_over_explicit_axes_require():
    """JAX checks it where nothing is compiled, as where its Python looks at values, and the rule may check it too."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    spec = PartitionSpec("a", "b")

    def rule(x, ct):
        assert jax.typeof(ct).sharding == jax.typeof(x).sharding
        return (ct * jnp.cos(x),)

    f = with_vjp(jnp.sin, lambda x: (jnp.sin(x), x), rule)
    wrong = with_vjp(jnp.sin, lambda x: (jnp.sin(x), x), lambda x, ct: (2 * rule(x, ct)[0],))
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.linspace(0.1, 1.0, 16).reshape(4, 4), spec)
        for choose in (lambda f: f, lambda f: lambda x: f(x) if x.sum() > 0 else x):
            assert jaxviz.check_rule(choose(f), x)
            found = jaxviz.check_rule(choose(wrong), x)
            assert [leaf.verdict for leaf in found.leaves] == ["wrong"]
            assert found.leaves[0].rule == pytest.approx(2 * found.leaves[0].numerical, rel=1e-4)


@pytest.mark.slow
@transcripts.of("rules")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def squared(conjugates):
    """The squared magnitude; JAX's cotangent of `x + iy` is that of `x` minus `i` times that of `y`."""

    @jax.custom_vjp
    def f(z):
        return jnp.abs(z) ** 2

    conj = jnp.conj if conjugates else lambda z: z
    f.defvjp(lambda z: (f(z), z), lambda z, ct: (2 * ct * conj(z),))
    return f


@pytest.mark.parametrize("conjugates", [True, False])
def test_a_rule_of_complex_numbers_is_checked_in_both_parts(conjugates):
    z = jnp.array([1 + 2j, 0.5 - 1j])
    report = jaxviz.check_rule(squared(conjugates), z)
    verdicts = {x.path: x.verdict for x in report.leaves if x.kind == "cotangent"}
    assert verdicts == {"z.real": "right", "z.imag": "right" if conjugates else "wrong"}
    assert report.agrees == conjugates
    gradient = jax.grad(lambda z: jnp.sum(jnp.abs(z) ** 2))(z)
    real, imag = (next(x for x in report.leaves if x.path == path) for path in ("z.real", "z.imag"))
    assert real.numerical == pytest.approx(float(jnp.sum(gradient.real)), rel=1e-6)
    if conjugates:  # in the other, the element with the largest error is shown
        assert imag.numerical == pytest.approx(-float(jnp.sum(gradient.imag)), rel=1e-6)
    assert any("minus 1j times" in note for note in report.notes)


def test_complex_results_are_checked_in_both_parts():
    @jax.custom_jvp
    def f(x):
        return jnp.exp(1j * x)

    f.defjvp(lambda at, t: (f(*at), 1j * f(*at) * t[0]))
    report = jaxviz.check_rule(f, 0.5)
    assert report.agrees
    assert {x.path for x in report.leaves} == {"x", "output.real", "output.imag"}
    f.defjvp(lambda at, t: (f(*at), -1j * f(*at) * t[0]))
    assert not jaxviz.check_rule(f, 0.5)
