"""Work that is interrupted anywhere leaves nothing half done: the next request has the same result."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from short_runs import short

import jaxviz
from jaxviz.derivation import STAGES
from jaxviz.ir import compat

OWN = str(Path(jaxviz.__file__).parent)
SPOTS = 8


@jax.checkpoint
def block(w, x):
    return jnp.tanh(x @ w)


@jax.jit
def activation(x):
    return jnp.sin(x) * x


def loss(w, xs):
    def step(h, x):
        return activation(block(w, h)) + x, jnp.cos(h)

    h, ys = jax.lax.scan(step, jnp.zeros(3), xs)
    return jnp.sum(jax.lax.cond(h[0] > 0, jnp.sin, jnp.cos, h)) + jnp.mean(ys)


ARGS = jnp.ones((3, 3)), jnp.ones((4, 3))


def shown(explorer):
    explorer._fill()
    explorer.complete()
    explorer._fill_what_if()
    return explorer.payload, explorer.rest, explorer.what_if, str(explorer)


def first_view(explorer):
    explorer._fill()
    return explorer.payload


def planned(derivation, explorer):
    plan = jaxviz.plan_remat(loss, *ARGS, budget=0.9)
    return str(plan), plan.front


WORK = {
    "stages": lambda d, e: [str(getattr(d, s)) for s in STAGES],
    "residuals": lambda d, e: (str(d.residuals), d.residuals.notes, str(d.check())),
    "first view": lambda d, e: first_view(e),
    "explorer": lambda d, e: shown(e),
    "memory": lambda d, e: jaxviz.memory(d).to_dict(),
    "cost": lambda d, e: jaxviz.cost(d).to_dict(),
    "lint": lambda d, e: str(jaxviz.lint(loss, *ARGS)),
    "plans": planned,
    "policies": lambda d, e: str(jaxviz.compare_policies(loss, *ARGS)),
    "text": lambda d, e: e.text("backward"),
    "batch": lambda d, e: str(jaxviz.trace(jaxviz.vmap(jaxviz.grad(loss), (None, 0)))(ARGS[0], jnp.ones((2, 4, 3)))),
}


def subject():
    """A new derivation and explorer, without cached rules."""
    jax.clear_caches()
    jaxviz.clear_caches()
    derivation = jaxviz.derive(loss, *ARGS)
    return derivation, jaxviz.explore(derivation)


def calls(work, interrupted_at=0):
    """The number of functions of the package that the work calls; an interrupt occurs in one of these calls."""
    n = 0

    def count(frame, event, _):
        nonlocal n
        code = frame.f_code
        # An exception in a generator that is not read to its end is lost. No Python code can handle an interrupt just
        # as a context begins or ends: the stack limit would remain, for this process's other tests as well.
        is_a_context_s = code.co_filename.endswith("stack.py")
        if event == "call" and code.co_filename.startswith(OWN) and not code.co_flags & 0x20 and not is_a_context_s:
            n += 1
            if n == interrupted_at:
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n


@pytest.mark.slow
@pytest.mark.parametrize(
    "spots",
    [(1, 4, 7), pytest.param((2, 3, 5, 6), marks=pytest.mark.slow(sweep=True))],
    ids=["early, midway, late", "between"],
)
@pytest.mark.parametrize("name", short(list(WORK), ["stages", "first view"]))
def test_interrupted_work_is_done_anew(name, spots):
    work = WORK[name]
    expected = work(*subject())
    pair = subject()
    total = calls(lambda: work(*pair))
    for spot in spots:
        pair = subject()
        with pytest.raises(KeyboardInterrupt):
            calls(lambda pair=pair: work(*pair), interrupted_at=total * spot // SPOTS)
        assert work(*pair) == expected, spot
        pair[1].close()


def test_an_interrupt_is_one_also_where_mlir_calls_back():
    lowered = jax.jit(activation).lower(1.0)
    work = lambda: compat.told_of(lowered)
    for i in range(calls(work)):
        with pytest.raises(KeyboardInterrupt):
            calls(work, interrupted_at=i + 1)
