"""Tracers that a function stores in objects which outlive its trace."""

import dataclasses
import functools
import threading
import types
import warnings
from collections import deque
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.ir import compat, leaks

X = jnp.ones(3)


@pytest.fixture(autouse=True)
def warned_again(monkeypatch):
    """Python shows a warning once for each line."""
    monkeypatch.setattr(leaks, "_said", {})


class Model:
    shared = None

    def __init__(self):
        self.w = jnp.ones(3)
        self.parts = {"h": jnp.zeros(3), "log": []}


class Slotted:
    __slots__ = ("w",)

    def __init__(self):
        self.w = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    w: object = 1.0


last = 1.0
module = types.ModuleType("settings")
module.__file__, module.last = __file__, 1.0


def attribute(model):
    def loss(x):
        model.w = model.w - 0.1 * x
        return jnp.sum(model.w)

    return loss, "`model.w`", "model.w - 0.1 * x"


def new_attribute(model):
    def loss(x):
        model.last = x * 2
        return jnp.sum(model.last)

    return loss, "`model.last`", "x * 2"


def in_jit(model):
    def loss(x):
        model.w = jnp.sin(x)
        return jnp.sum(model.w)

    return jax.jit(loss), "`model.w`", "jnp.sin(x)"


def of_self(model):
    class Step(Model):
        def __call__(self, x):
            self.w = x + 1
            return jnp.sum(self.w)

    model.step = Step()
    return model.step.__call__, "`self.w`", "x + 1"


def nested_item(model):
    def loss(x):
        model.parts["h"] = jnp.tanh(x)
        return jnp.sum(x)

    return loss, "`model.parts['h']`", "jnp.tanh(x)"


def appended(model):
    def loss(x):
        model.parts["log"].append(jnp.sinh(x))
        return jnp.sum(x)

    return loss, "`model.parts['log'][0]`", "jnp.sinh(x)"


def inside_a_value(model):
    def loss(x):
        model.parts["h"] = {"at": (1, [jnp.cos(x)])}
        return jnp.sum(x)

    return loss, "`model.parts['h']`", "jnp.cos(x)"


def enclosing_variable(model):
    count = 0.0

    def loss(x):
        nonlocal count
        count = count + x.sum()
        return jnp.sum(x)

    model.read = lambda: count
    return loss, "`count`", "count + x.sum()"


def global_variable(model):
    def loss(x):
        global last
        last = x * 3
        return jnp.sum(x)

    model.read = lambda: last
    return loss, "`last`", "x * 3"


def of_a_module(model):
    def loss(x):
        module.last = x * 4
        return jnp.sum(x)

    model.read = lambda: module.last
    return loss, "`module.last`", "x * 4"


def of_a_class(model):
    def loss(x):
        Model.shared = x * 5
        return jnp.sum(x)

    return loss, "`Model.shared`", "x * 5"


def of_a_function(model):
    def loss(x):
        loss.last = x * 6
        return jnp.sum(x)

    model.read = lambda: vars(loss)
    return loss, "`loss.last`", "x * 6"


def default_value(model):
    def loss(x, seen=deque()):  # noqa: B006
        seen.append(x * 7)
        return jnp.sum(x)

    model.read = lambda: list(loss.__defaults__[0])
    return loss, "`seen[0]`", "x * 7"


def of_a_partial_application(model):
    def loss(seen, x):
        seen["h"] = x * 8
        return jnp.sum(x)

    model.seen = {}
    return functools.partial(loss, model.seen), "`seen['h']`", "x * 8"


def slot(model):
    model.slotted = Slotted()

    def loss(x):
        model.slotted.w = x * 9
        return jnp.sum(x)

    model.read = lambda: model.slotted.w
    return loss, "`model.slotted.w`", "x * 9"


def frozen(model):
    model.frozen = Frozen()

    def loss(x):
        object.__setattr__(model.frozen, "w", x * 10)
        return jnp.sum(x)

    return loss, "`model.frozen.w`", "x * 10"


def per_thread(model):
    model.local = threading.local()

    def loss(x):
        model.local.last = x * 11
        return jnp.sum(x)

    model.read = lambda: dict(model.local.__dict__)
    return loss, "`model.local.last`", "x * 11"


def called_function(model):
    def forward(x):
        model.h = jnp.exp(x)
        return model.h

    def loss(x):
        return jnp.sum(jax.checkpoint(forward)(x))

    return loss, "`model.h`", "jnp.exp(x)"


def forward_rule(model):
    @jax.custom_vjp
    def square(x):
        return x * x

    def forward(x):
        model.h = x * 12
        return x * x, x

    square.defvjp(forward, lambda x, ct: (2 * x * ct,))
    return lambda x: jnp.sum(square(x)), "`model.h`", "x * 12"


def backward_rule(model):
    @jax.custom_vjp
    def square(x):
        return x * x

    def backward(x, ct):
        model.h = ct * 13
        return (2 * x * ct,)

    square.defvjp(lambda x: (x * x, x), backward)
    return lambda x: jnp.sum(square(x)), "`model.h`", "ct * 13"


def jvp_rule(model):
    @jax.custom_jvp
    def square(x):
        return x * x

    @square.defjvp
    def _(primals, tangents):
        model.h = primals[0] * 14
        return square(*primals), 2 * primals[0] * tangents[0]

    return lambda x: jnp.sum(square(x)), "`model.h`", "primals[0] * 14"


CASES = [
    attribute, new_attribute, in_jit, of_self, nested_item, appended, inside_a_value, enclosing_variable, global_variable,
    of_a_module, of_a_class, of_a_function, default_value, of_a_partial_application, slot, frozen, per_thread, called_function, forward_rule, backward_rule, jvp_rule,
]  # fmt: skip


def content(x):
    """What a model holds, at any depth, by identity where that is all there is."""
    if isinstance(x, (Model, dict)):
        inside = vars(x) if isinstance(x, Model) else x
        return {k: content(y() if k == "read" else y) for k, y in inside.items()}
    return [content(y) for y in x] if isinstance(x, (list, tuple)) else vars(x) if isinstance(x, Frozen) else x


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_a_function_stores_is_put_back_and_named_with_its_line(case):
    model = Model()
    loss, place, expression = case(model)
    before = content(model)
    with pytest.warns(UserWarning, match="stores") as warned:
        jaxviz.memory(loss, X)
    (message,) = {str(w.message) for w in warned}
    assert place in message
    assert f"`{expression}`" in message
    line = next(
        i
        for i, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if expression in text and f'"{expression}"' not in text
    )
    assert f"{__file__}:{line}" in message
    assert {(w.filename, w.lineno) for w in warned} == {(__file__, line)}
    after = content(model)
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert all(a is b or a == b for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True))
    assert not any(map(compat.is_tracer, jax.tree.leaves(after)))
    assert Model.shared is None


@pytest.mark.parametrize("maxsize", [None, 4])
def test_a_cache_with_tracers_is_emptied(maxsize):
    @functools.lru_cache(maxsize=maxsize)
    def table(n):
        return jnp.arange(n) * 2.0

    def loss(x):
        return jnp.sum(table(3) * x)

    with pytest.warns(UserWarning, match="`the cache of table`"):
        jaxviz.residuals(loss, X)
    assert loss(X) == 6.0


def test_other_side_effects_stay_and_are_not_mentioned():
    seen, counts = [], {"calls": 0}

    def loss(x):
        counts["calls"] += 1
        seen.append(x.shape)
        return jnp.sum(x**2)

    jaxviz.residuals(loss, X)
    assert counts["calls"] == len(seen) > 0


def test_a_value_of_a_trace_that_goes_on_stays():
    kept = {}

    @jax.jit
    def step(x):
        y = x * 2

        def loss(w):
            kept["y"] = y
            return jnp.sum(w * y)

        g = jaxviz.grad(loss)(x)
        return g + kept.pop("y")

    assert jnp.array_equal(step(X), 4 * X)


def test_a_function_that_fails_leaves_no_tracer():
    model = Model()

    def loss(x):
        model.w = x * 2
        raise ValueError("stop")

    w = model.w
    with pytest.raises(ValueError, match="stop"):
        jaxviz.residuals(loss, X)
    assert model.w is w


def test_the_second_trace_of_a_function_that_looks_at_values_finds_no_tracer_of_the_first():
    model = Model()
    model.total = 0.0

    def loss(x):
        model.total = model.total + x.sum()
        return jnp.sum(x) if model.total > 0 else -jnp.sum(x)

    with pytest.warns(UserWarning, match=r"`model\.total`"):
        assert jaxviz.trace(loss)(X).is_path
    assert model.total == 0.0


def test_a_leak_is_an_error_if_jax_checks_for_leaks():
    model = Model()
    loss, place, _ = attribute(model)
    with jax.checking_leaks(), pytest.raises(jax.errors.UnexpectedTracerError, match=place):
        jaxviz.residuals(loss, X)
    assert not compat.is_tracer(model.w)


def test_a_warning_is_shown_once_for_a_line():
    loss, _, _ = attribute(Model())
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        jaxviz.residuals(loss, X)
        jaxviz.memory(loss, X)
    assert len(shown) == 1


def test_an_argument_that_is_not_differentiated_is_left_as_it_was():
    state = {"h": 0.0}

    def loss(w, state):
        state["h"] = w * 2
        return jnp.sum(w)

    with pytest.warns(UserWarning, match=r"stores `w \* 2` in `args\[1\]\['h'\]`"):
        jaxviz.grad(loss)(X, state)
    assert state == {"h": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "report", [jaxviz.compile_cost, jaxviz.donation, jaxviz.profile, lambda f, x: jaxviz.jit(f).report(x)]
)
def test_reports_that_let_jax_trace_leave_no_tracer(report):
    model = Model()
    loss, place, _ = attribute(model)
    with pytest.warns(UserWarning, match=place):
        report(jax.jit(loss), X)
    assert not compat.is_tracer(model.w)


def test_the_comparison_with_jax_leaves_no_tracer():
    model = Model()
    loss, place, _ = attribute(model)
    with pytest.warns(UserWarning, match=place):
        derivation = jaxviz.derive(loss, X)
    model.w = jnp.ones(3)
    leaks._said.clear()
    with pytest.warns(UserWarning, match=place):
        assert derivation.check()
    assert not compat.is_tracer(model.w)
