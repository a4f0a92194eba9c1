"""`× n` in the explorer is a number of calls, counted here as the function is traced; the same in both passes."""

import contextlib
import functools
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from short_runs import short

import jaxviz
from benchmarks import remat_programs
from jaxviz.derivation import derive
from jaxviz.features.explorer.columns import view_of
from jaxviz.page.schema import SCOPES

X = jnp.ones((2, 4))
W = jnp.ones((4, 4))
WS = [W] * 3


def layer(w, x):
    return jnp.tanh(x @ w) + 1.0


def narrow(w, x):
    return jnp.sin(x @ w) * x.shape[0]


def mlp(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


def stack(ws, x):
    for w in ws:
        x = layer(w, x)
    return x


def two_lines(ws, x):
    x = layer(ws[0], x)
    x = layer(ws[1], x)
    return jnp.sum(x)


def nested(ws, x):
    x = stack(ws, x)
    return jnp.sum(stack(ws, x * 2.0))


def stacks_in_a_loop(ws, x):
    """Whether `stack` or its loop goes on is not to be told from its instructions."""
    for _ in range(2):
        x = stack(ws, x)
    return jnp.sum(x)


def unequal(ws, x):
    for i in range(3):
        x = narrow(ws[i], x[:, :4])
        x = x if i % 2 else jnp.concatenate([x, x])
    return jnp.sum(x)


def recursive(ws, x):
    return jnp.sum(x) if not ws else recursive(ws[1:], layer(ws[0], x))


def of_a_comprehension(ws, x):
    return jnp.sum(sum([layer(w, x) for w in ws]))


def reduced(ws, x):
    return jnp.sum(functools.reduce(lambda x, w: layer(w, x), ws, x))


def partial(ws, x):
    apply = functools.partial(layer, ws[0])
    return jnp.sum(apply(apply(apply(x))))


def mapped(ws, x):
    for w in ws:
        x = jax.vmap(layer, (None, 0))(w, x)
    return jnp.sum(x)


def jitted(ws, x):
    f = jax.jit(layer)
    for w in ws:
        x = f(w, x)
    return jnp.sum(x)


def checkpointed(ws, x):
    f = jax.checkpoint(layer)
    for w in ws:
        x = f(w, x)
    return jnp.sum(x)


def doubled(f):
    @functools.wraps(f)
    def twice(w, x):
        return f(w, f(w, x) * 2.0)

    return twice


def decorated(ws, x):
    for w in ws:
        x = doubled(layer)(w, x)
    return jnp.sum(x)


def while_loop(ws, x):
    i = 0
    while i < len(ws):
        x = layer(ws[i], x)
        i += 1
    return jnp.sum(x)


def branching(ws, x):
    """One of two lines of `either`, in turn: the second is further down, but belongs to another call."""

    def either(i, w, x):
        if i % 2:
            return jnp.sin(x @ w)
        return jnp.cos(x @ w) + x

    for i, w in enumerate(ws):
        x = either(i + 1, w, x)
    return jnp.sum(x)


def by_number(ws, x):
    """Six calls of `numbered`, each with another line, further down than the one before."""

    def numbered(i, x):
        if i == 0:
            return jnp.sin(x)
        if i == 1:
            return jnp.cos(x)
        if i == 2:
            return jnp.tan(x)
        return layer(ws[0], x)

    for i in range(6):
        x = numbered(i, x)
    return jnp.sum(x)


def sometimes_two_lines(ws, x):
    def longer(i, w, x):
        if i % 2:
            x = x * 2.0
        return layer(w, x)

    for i, w in enumerate(ws):
        x = longer(i, w, x)
    return jnp.sum(x)


def handled(ws, x):
    """A loop with `continue` in a handler, which nothing else leads to."""

    def fails(x):
        raise ValueError

    def instead(x):
        return jnp.cos(x) + 1.0

    for _ in ws:
        try:
            x = fails(x)
        except ValueError:
            x = instead(jnp.sin(x))
            continue
        x = x + 1.0
    return jnp.sum(x)


def reduced_by_steps(ws, x):
    def step(x, w):
        return layer(w, x)

    return jnp.sum(functools.reduce(step, ws, x))


def generated(ws, x):
    def each(x):
        for w in ws:
            x = layer(w, x)
            yield x

    return sum(jnp.sum(y) for y in each(x))


def stacks_twice(ws, x):
    for _ in range(2):
        x = stack(ws[:2], x)
    for _ in range(2):
        x = stack(ws[:2], x)
    return jnp.sum(x)


def one_or_the_other(ws, x):
    """Whether `either` does both in one call is not to be told from its instructions."""

    def either(i, x):
        if i % 2 == 0:
            x = layer(ws[0], layer(ws[1], x))
        if i % 2 == 1:
            x = layer(ws[0], x)
        return x

    for i in range(6):
        x = either(i, x)
    return jnp.sum(x)


def helped(ws, x):
    """The same, with one of the conditions in a function that it calls."""

    def either(i, x):
        x = shifted(i % 2 == 0, x)
        if i % 2 == 1:
            x = jnp.cos(x)
        return x

    for i in range(4):
        x = either(i, x)
    return jnp.sum(x)


def shifted(is_so, x):
    return x + 2.0 if is_so else x


def failing(ws, x):
    """The same, with an error between the two."""

    def either(i, x):
        if i % 2 == 0:
            x = jnp.sin(x)
            if i < len(ws) * 2:
                raise ValueError
        return jnp.cos(x)

    for i in range(6):
        with contextlib.suppress(ValueError):
            x = either(i, x)
    return jnp.sum(x)


def inner_gradient(ws, x):
    return jnp.sum(layer(ws[0], jax.grad(lambda x: jnp.sum(layer(ws[1], x)))(x)))


def scanned(ws, x):
    return jnp.sum(jax.lax.scan(lambda x, w: (layer(w, x), None), x, jnp.stack(ws))[0])


EXACT = {
    "layer": (
        two_lines, nested, recursive, of_a_comprehension, reduced, partial, mapped, while_loop, decorated,
        inner_gradient,
        stacks_in_a_loop, scanned, by_number, sometimes_two_lines, reduced_by_steps, generated, stacks_twice,
        one_or_the_other,
    ),
    "narrow": (unequal,), "either": (branching,), "stack": (nested,), "twice": (decorated,), "recursive": (recursive,),
    "numbered": (by_number,), "longer": (sometimes_two_lines,), "instead": (handled,), "step": (reduced_by_steps,),
}  # fmt: skip
"""The functions of which each call is known."""
UNCERTAIN = {
    "stack": (stacks_in_a_loop, stacks_twice), "either": (one_or_the_other, failing, helped),
}  # fmt: skip
"""Those of which it is not, and which have no numbers, nor has what they call."""


def called(f, *args):
    """How often each function is called while `f` is traced."""
    found = Counter()

    def note(frame, event, _):
        if event == "call":
            found[frame.f_code.co_qualname.split("<locals>.")[-1]] += 1

    sys.setprofile(note)
    try:
        jaxviz.trace(f)(*args)
    finally:
        sys.setprofile(None)
    return found


def shown(view, is_backward):
    """How often each function is called in a pass according to its boxes, and the boxes by path, with their counts."""
    c, total, paths = view.columns, Counter(), Counter()
    times, path = {-1: 1}, {-1: ()}
    columns = (c[f"scope_{name}"].tolist() for name in ("parent", "backward", "kind", "count"))
    for i, (parent, backward, kind, count) in enumerate(zip(*columns, strict=True)):
        name = view.strings[c["scope_name"][i]]
        times[i] = times[parent] * (1 if SCOPES[kind] == "loop" else count)
        path[i] = (*path[parent], (name, SCOPES[kind], count))
        if SCOPES[kind] in ("rest", "line"):
            assert count == 1
        elif backward == is_backward:
            paths[path[i]] += 1
            total[name] += times[i] * (SCOPES[kind] == "scope")
    return total, paths


def both(f, *args):
    view = view_of(derive(f, *args))
    (forward, boxes), (_, mirrored) = shown(view, 0), shown(view, 1)
    assert set(boxes) == set(mirrored)  # one that is small in one pass may be left out there
    return forward, boxes


@pytest.mark.slow
@pytest.mark.parametrize(
    "f", short(list(dict.fromkeys(f for of_name in EXACT.values() for f in of_name)), 2), ids=lambda f: f.__name__
)
def test_boxes_count_calls(f):
    jax.clear_caches()
    counted = called(f, WS, X)
    forward, _ = shown(view_of(derive(f, WS, X)), 0)
    for name, functions in EXACT.items():
        if f in functions and name != f.__name__:
            assert forward[name] == counted[name] > 0
    assert all(n <= counted[name] for name, n in forward.items() if name in counted)


@pytest.mark.parametrize("f", [jitted, checkpointed])
def test_what_jax_traces_once_is_called_several_times(f):
    assert both(f, WS, X)[0] == {"layer": 3}


def test_a_loop_over_lines_is_no_call():
    forward, boxes = both(lambda ws, x: mlp(ws, x) * 2.0, WS, X)
    assert (forward, boxes) == ({"mlp": 1}, {(("mlp", "scope", 1),): 1})


@pytest.mark.parametrize(
    ("f", "name"),
    [(f, name) for name, of_name in UNCERTAIN.items() for f in of_name],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_what_is_not_certain_has_no_number(f, name):
    _, boxes = shown(view_of(derive(f, WS, X)), 0)
    inside = [path for path in boxes if name in [box[0] for box in path]]
    assert {count for path in inside for _, _, count in path} == {1}


def test_calls_in_what_is_not_certain_are_not_folded():
    _, boxes = both(stacks_twice, WS, X)
    assert boxes == {(("stack", "scope", 1),): 2, (("stack", "scope", 1), ("layer", "scope", 1)): 8}


def test_a_generator_is_not_called_when_it_goes_on():
    _, boxes = both(generated, WS, X)
    assert boxes == {(("", "repeated", 3),): 1, (("", "repeated", 3), ("layer", "scope", 1)): 1}


def test_calls_that_do_the_same_one_after_the_other_are_one_box():
    _, boxes = both(unequal, WS, X)
    assert boxes == {(("narrow", "scope", 1),): 1, (("narrow", "scope", 2),): 1}


@pytest.mark.slow
def test_modules_are_counted_by_their_calls():
    nn = pytest.importorskip("flax.linen", reason="the engine's tests with the newest JAX go without the libraries")
    nnx = pytest.importorskip("flax.nnx")

    class LinenBlock(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + nn.Dense(4)(nn.relu(nn.Dense(8)(x)))

    class Linen(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(3):
                x = LinenBlock(name=f"block_{i}")(x)
            return x

    class NnxBlock(nnx.Module):
        def __init__(self, rngs):
            self.up, self.down = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 4, rngs=rngs)

        def __call__(self, x):
            return x + self.down(jnp.sin(self.up(x)))

    linen = Linen()
    params = jax.eval_shape(linen.init, jax.random.key(0), X)
    forward, boxes = both(lambda params, x: jnp.sum(linen.apply(params, x) ** 2), params, X)
    assert (("Linen", "scope", 1), ("block_0…2", "scope", 3), ("Dense_0", "scope", 1)) in boxes
    blocks = [NnxBlock(nnx.Rngs(0)) for _ in range(3)]

    def loss(states, x):
        for (graph, _), state in zip(map(nnx.split, blocks), states, strict=True):
            x = nnx.merge(graph, state)(x)
        return jnp.sum(x)

    forward, _ = both(loss, [nnx.split(block)[1] for block in blocks], X)
    assert (forward["NnxBlock"], forward["Linear"]) == (3, 6)


@pytest.mark.slow
def test_a_u_net_has_the_shape_of_a_u():
    case = remat_programs.SMALL["U-Net"]()
    _, boxes = both(case.plain, *case.args)
    assert {path[0][0]: n for path, n in boxes.items() if len(path) == 1} == {"conv": 2, "level": 5}


def test_a_scan_is_said_alike_in_both_passes():
    case = remat_programs.SMALL["RNN"]()
    _, boxes = both(case.plain, *case.args)
    assert (("scan", "loop", 6), ("chunk", "scope", 1), ("scan", "loop", 8), ("cell", "scope", 1)) in boxes
