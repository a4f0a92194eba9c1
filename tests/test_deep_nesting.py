"""Programs nested two hundred levels deep, at Python's recursion limit: what JAX can do with them can be done here."""

import json
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from short_runs import short

import jaxviz
from jaxviz.features.explorer.columns import ViewMaker
from jaxviz.features.explorer.still import stage_text
from jaxviz.ir.stack import FRAMES, deep_stack
from jaxviz.page.html import fit_to_show
from jaxviz.page.schema import decode, encode

pytestmark = pytest.mark.slow
DEPTH = 200

WRAPPERS = {
    "jit": lambda f: jax.jit(lambda x: f(x) * 1.25),
    "checkpoint": lambda f: jax.checkpoint(lambda x: f(x) * 1.25),
    "cond": lambda f: lambda x: lax.cond(x > 0, f, jnp.cos, x),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
}


def nested(kind, n=DEPTH):
    f = jnp.sin
    for _ in range(n):
        f = WRAPPERS[kind](f)
    return f


def traceable(kind, n=DEPTH):
    """The function, if JAX itself can trace it: Python 3.12 and later have a separate limit for calls through C."""
    f = nested(kind, n)
    try:
        with deep_stack:
            jax.make_jaxpr(f)(1.0)
    except RecursionError:
        pytest.skip("JAX itself cannot trace it here")
    return f


@pytest.fixture(
    scope="module",
    params=short(["jit", "cond", "checkpoint", "scan"], ["jit"]),
)
def deep(request):
    assert sys.getrecursionlimit() < FRAMES
    return jaxviz.derive(traceable(request.param), 1.0)


def holders(program):
    """The primitive of each equation with nested programs."""
    return [e.primitive.name for _, e in program.walk() if e.programs]


def test_every_stage_is_derived_and_printed(deep):
    (name,) = set(holders(deep.primal))
    assert holders(deep.primal) == [name] * DEPTH
    for stage in ("primal", "jvp", "forward", "backward"):
        program = getattr(deep, stage)
        # The outermost checkpoint is not an equation of the forward program any more.
        assert max(depth for depth, _ in program.walk()) >= DEPTH - 1
        assert str(program).count(f" {name}[") >= DEPTH - 1


@pytest.mark.slow(sweep=True)
def test_every_report_is_made(deep):
    residuals = jaxviz.residuals(deep)
    assert residuals.summary.startswith("the gradient of `<lambda>` in `x` saves ")
    assert isinstance(residuals.notes, tuple)
    assert "modelled peak" in str(jaxviz.memory(deep))
    assert str(jaxviz.cost(deep))
    assert str(jaxviz.lint(deep))
    assert str(jaxviz.policies(deep))
    assert str(jaxviz.compare(deep, deep))
    assert jaxviz.to_dot(deep, stage="forward+backward").source.startswith("digraph")


@pytest.mark.slow(sweep=True)
def test_the_explorer_shows_all_of_it(deep):
    view = decode(encode(fit_to_show(ViewMaker(deep).first)))
    assert [stage.error for stage in view.stages] == [""] * len(view.stages)
    first, last = view.stage("primal").equations
    shown = [view.strings[i] for i in view.columns["equation_primitive"][first:last]]
    assert shown == [e.primitive.name for _, e in deep.primal.walk()]
    assert stage_text(view, "primal").count(f"= {holders(deep.primal)[0]}") == DEPTH


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("kind", ["jit", "cond", "checkpoint", "scan"])
def test_a_page_is_saved_and_agrees_with_jax(kind, tmp_path):
    """JAX takes half a minute for the gradient of two hundred conds; half of them also exceed Python's limit."""
    f = traceable(kind, DEPTH // 2 if kind in ("cond", "scan") else DEPTH)
    explorer = jaxviz.explore(f, 1.0)
    if explorer.view.check.status == "unknown":
        with (
            deep_stack,
            pytest.raises(RecursionError),
        ):  # as in `traceable`: JAX may be unable to differentiate what it can trace
            jax.vjp(f, 1.0)
    else:
        assert explorer.view.check.status == "agrees"
    assert explorer.view.no_memory == ""
    explorer._fill_what_if()
    assert "error" not in json.loads(explorer.what_if)
    assert explorer.save_html(tmp_path / "page.html").stat().st_size > 10_000


def on_values(x):
    return nested("jit")(x) if x > 0 else x


@pytest.mark.parametrize("run", [lambda: jaxviz.grad(nested("jit"))(0.5), lambda: jaxviz.derive(on_values, 0.5)])
def test_what_xla_runs_has_no_more_room_than_in_jax(run):
    """Otherwise XLA, which compiles the calls in C++, crashes the process."""
    with pytest.raises(RecursionError):
        run()
    assert sys.getrecursionlimit() < FRAMES


def test_one_that_is_too_deep_fails_as_in_jax_and_is_told_what_to_do():
    with pytest.raises(RecursionError, match="maximum recursion depth exceeded") as caught:
        jaxviz.derive(nested("jit", 10 * DEPTH), 1.0)
    assert any("sys.setrecursionlimit" in note for note in caught.value.__notes__)
    assert sys.getrecursionlimit() < FRAMES
