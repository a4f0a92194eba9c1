"""Losses whose gradient is zero in a parameter, each with the line where it ends, and some that look alike and are
right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True)
class FlowCase:
    """A loss.

    Args:
      name: what is zero in it.
      loss, args: the call.
      leaf: the parameter in question.
      status: what its gradient is.
      kind: of the ending; '' if it has none.
      line: what stands on the line where it ends; '' if it ends on none.
    """

    name: str
    loss: Callable[..., Any]
    args: tuple[Any, ...]
    leaf: str
    status: str
    kind: str = ""
    line: str = ""


FLOW_CASES: dict[str, FlowCase] = {}


def array(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


X = array(0, 5, 3)
W, V = array(1, 3, 4), array(2, 4, 2)


def case(leaf: str, status: str, kind: str = "", line: str = "", **params: Any) -> Callable[..., Any]:
    def enter(loss: Callable[..., Any]) -> Callable[..., Any]:
        FLOW_CASES[loss.__name__] = FlowCase(loss.__name__, loss, (params, X), leaf, status, kind, line)
        return loss

    return enter


# --- by structure -----------------------------------------------------------------------------------------------------


@case("params['prior']", "stopped", "integer", "jnp.argmax(logits", w=W, prior=array(3, 4, 6), table=array(4, 6, 4))
def index_of_the_largest(params, x):
    h = jnp.tanh(x @ params["w"])
    logits = h @ params["prior"]
    codes = params["table"][jnp.argmax(logits, -1)]
    return jnp.sum((h - codes) ** 2)


@case("params['position']", "stopped", "integer", "astype(jnp.int32)", w=W, position=array(5, 5))
def cast_to_an_integer(params, x):
    rows = jnp.clip(jnp.abs(params["position"]) * 2, 0, 4).astype(jnp.int32)
    return jnp.sum(jnp.tanh(x[rows] @ params["w"]))


@case("params['threshold']", "stopped", "boolean", 'params["threshold"]', w=W, threshold=jnp.float32(0.1))
def threshold_in_a_where(params, x):
    h = x @ params["w"]
    return jnp.sum(jnp.where(h > params["threshold"], h, 0.1 * h))


@case("params['scale']", "stopped", "flat", "jnp.round(x", w=W, scale=jnp.float32(3.0))
def rounded_without_straight_through(params, x):
    q = jnp.round(x * params["scale"])
    return jnp.sum(jnp.tanh(q @ params["w"]))


@case("params['gate']", "stopped", "flat", "jnp.sign", w=W, gate=array(6, 4))
def sign_of_a_gate_in_a_scan(params, x):
    def step(h, row):
        gate = jnp.sign(params["gate"])
        return jnp.tanh(h + row @ params["w"]) * gate, None

    return jnp.sum(lax.scan(step, jnp.zeros(4), x)[0])


@case("params['head']", "stopped", "unread", w=W, head=V)
def head_that_is_not_read(params, x):
    h = jnp.tanh(x @ params["w"])
    _ = h @ params["head"]
    return jnp.mean(h**2)


CLOSED_OVER = array(7, 3, 4)


@case("params['w']", "stopped", "unread", w=CLOSED_OVER, v=V)
def closed_over_instead_of_passed(params, x):
    return jnp.sum(jnp.tanh(x @ CLOSED_OVER) @ params["v"])


class Model:
    def __init__(self):
        self.w = W


@case("Model.w", "stopped", "static", model=Model(), v=V)
def unregistered_model(params, x):
    return jnp.sum(jnp.tanh(x @ params["model"].w) @ params["v"])


@jax.custom_vjp
def scaled(x, by):
    return x * by


scaled.defvjp(lambda x, by: (x * by, by), lambda by, ct: (ct * by, None))


@case("params['by']", "stopped", "rule", "scaled(h", w=W, by=jnp.float32(2.0))
def custom_rule_without_an_argument(params, x):
    h = x @ params["w"]
    return jnp.sum(jnp.tanh(scaled(h, params["by"])))


@case("params['score']", "stopped", "integer", "jnp.argsort", w=W, score=array(8, 5))
def order_of_scores_under_checkpoint(params, x):
    @jax.checkpoint
    def ranked(score, x):
        order = jnp.argsort(score)
        return jnp.cumsum(x[order], 0)

    return jnp.sum(jnp.tanh(ranked(params["score"], x) @ params["w"]))


@case("params['router']", "stopped", "integer", "jnp.argmax", w=W, router=array(9, 3, 2), v=array(10, 3, 4))
def router_that_chooses_a_branch(params, x):
    which = jnp.argmax(jnp.sum(x @ params["router"], 0))
    h = lax.switch(which, [lambda: x @ params["w"], lambda: x @ params["v"]])
    return jnp.sum(jnp.tanh(h))


@case("params['temperature']", "stopped", "boolean", "jax.random.bernoulli", w=W, temperature=jnp.float32(0.3))
def sampled_from_a_probability(params, x):
    kept = jax.random.bernoulli(jax.random.key(0), jax.nn.sigmoid(params["temperature"]), (5, 1))
    return jnp.sum(jnp.tanh(x @ params["w"]) * kept)


def through(hard: Callable[[Any], Any]) -> Callable[..., Any]:
    """A loss in which a gate is a function of logits."""
    return lambda params, x: jnp.sum((hard(x @ params["gate"]) * jnp.tanh(x @ params["w"])) ** 2)


def of_softmax(leaf, kind, line, hard):
    FLOW_CASES[line] = FlowCase(
        line, through(hard), ({"w": W, "gate": array(15, 3, 4)}, X), leaf, "stopped", kind, line
    )


# A softmax stops the gradient in its maximum, beside the path that ends.
_GATE = "params['gate']"
of_softmax(_GATE, "flat", "jnp.round(jax.nn.softmax(l))", lambda l: jnp.round(jax.nn.softmax(l)))
of_softmax(
    _GATE, "integer", "jnp.argmax(jax.nn.softmax(l), -1)",
    lambda l: jax.nn.one_hot(jnp.argmax(jax.nn.softmax(l), -1), 4),
)  # fmt: skip
of_softmax(_GATE, "boolean", "jax.nn.softmax(l) > 0.5", lambda l: (jax.nn.softmax(l) > 0.5).astype(jnp.float32))
of_softmax(_GATE, "boolean", "jax.nn.log_softmax(l) > -1", lambda l: (jax.nn.log_softmax(l) > -1).astype(jnp.float32))
of_softmax(
    _GATE, "boolean", "jax.nn.logsumexp(l, -1, keepdims=True)",
    lambda l: (jax.nn.logsumexp(l, -1, keepdims=True) > 1).astype(jnp.float32),
)  # fmt: skip
of_softmax(
    _GATE, "integer", "lax.top_k(jax.nn.softmax(l), 1)",
    lambda l: jax.nn.one_hot(lax.top_k(jax.nn.softmax(l), 1)[1][:, 0], 4),
)  # fmt: skip


@case("params['gate']", "stopped", "flat", "jnp.round(jnp.exp(", w=W, gate=array(15, 3, 4))
def rounded_beside_a_shift_of_the_users(params, x):
    logits = x @ params["gate"]
    shift = lax.stop_gradient(jnp.max(logits))
    return jnp.sum(jnp.round(jnp.exp(logits - shift)) * jnp.tanh(x @ params["w"]))


@case("params['limit']", "stopped", "boolean", 'total < params["limit"]', w=W, limit=jnp.float32(3.0))
def limit_of_a_loop(params, x):
    limit = lax.stop_gradient(params["limit"])
    n = lax.while_loop(lambda total: total < params["limit"], lambda total: total + limit, 0.0)
    return jnp.sum(jnp.tanh(x @ params["w"])) * n


# --- at these values --------------------------------------------------------------------------------------------------


@case("params['w']", "zero", "slope", "jax.nn.relu", w=W, v=V)
def dead_relu(params, x):
    h = x @ params["w"] - 100.0
    h = jax.nn.relu(h)
    return jnp.sum(h @ params["v"] + 1.0)


@case("params['w']", "zero", "branch", "jnp.where", w=W, v=array(11, 3, 4))
def branch_of_a_where_never_taken(params, x):
    first, second = x @ params["w"], x @ params["v"]
    return jnp.sum(jnp.where(jnp.abs(x[:, :1]) > 50.0, first, second))


@case("params['w']", "zero", "zero factor", "* mask", w=W, v=V)
def mask_that_is_zero(params, x):
    mask = (jnp.arange(5) > 7).astype(jnp.float32)[:, None]
    h = jnp.tanh(x @ params["w"]) * mask
    return jnp.sum((h @ params["v"] - 1.0) ** 2)


@case("params['a']", "zero", "zero factor", 'params["b"]', w=W, a=array(12, 3, 2), b=jnp.zeros((2, 4)))
def low_rank_update_at_its_start(params, x):
    h = x @ params["w"] + x @ params["a"] @ params["b"]
    return jnp.sum(jnp.tanh(h))


@case("params['w']", "zero", "underflow", "jnp.float16(1e-4)", w=W.astype(jnp.float16))
def underflow_of_half_precision(params, x):
    h = jnp.sin(x.astype(jnp.float16) @ params["w"])
    small = h * jnp.float16(1e-4)
    return jnp.sum(small * jnp.float16(1e-4)).astype(jnp.float32)


@case("params['w']", "zero", "slope", "jnp.tanh", w=W, v=V)
def saturated_in_each_iteration(params, x):
    def step(h, row):
        h = jnp.tanh(row @ params["w"] + jnp.float32(50.0))
        return h, h

    return jnp.sum(lax.scan(step, jnp.zeros(4), x)[1] @ params["v"])


@case("params['rate']", "zero", "cancellation", "grown**2", rate=jnp.full(3, 1e-9, jnp.float32))
def difference_that_is_lost(params, x):
    grown = jnp.exp(params["rate"]) - 1.0
    return jnp.sum(grown**2)


@case("params['second']", "zero", "branch", "lax.cond", first=W, second=V)
def branch_of_a_cond_never_taken(params, x):
    return lax.cond(jnp.sum(x) > 1e6, lambda: jnp.sum(params["second"]), lambda: jnp.sum(params["first"] ** 2))


@case("params['query']", "zero", "zero factor", "jax.nn.softmax(s)", query=array(16, 3, 3), w=array(17, 3, 3))
def attention_to_nothing_else(params, x):
    s = (x @ params["query"]) @ x.T
    s = jnp.where(jnp.eye(5, dtype=bool), s, -1e9)
    return jnp.sum(jnp.tanh(jax.nn.softmax(s) @ (x @ params["w"])))


@case("params['w']", "zero", "zero factor", "* odd", w=W, v=V)
def factors_that_are_zero_in_turns(params, x):
    odd = (jnp.arange(5) % 2).astype(jnp.float32)[:, None]
    h = jnp.tanh(x @ params["w"]) * odd
    return jnp.sum((h * (1.0 - odd)) @ params["v"])


MASK = jnp.zeros(4)


@case("params['w']", "zero", "zero factor", "h**2", w=W)
def square_of_what_a_mask_removes(params, x):
    h = jnp.tanh(x @ params["w"]) * MASK
    return jnp.sum(h**2)


@case("params['a']", "zero", "zero factor", "out**2", a=array(12, 3, 2), b=jnp.zeros((2, 4)))
def square_of_a_low_rank_product(params, x):
    out = x @ params["a"] @ params["b"]
    return jnp.sum(out**2)


@case("params['w']", "zero", "branch", "h**2", w=W)
def square_of_what_a_where_removes(params, x):
    h = jnp.where(x[:, :1] > 50.0, x @ params["w"], 0.0)
    return jnp.sum(h**2)


@case("params['rate']", "zero", "cancellation", "(grown * x) ** 2", rate=jnp.full(3, 1e-9, jnp.float32))
def multiple_of_a_difference_that_is_lost(params, x):
    grown = jnp.exp(params["rate"]) - 1.0
    return jnp.sum((grown * x) ** 2)


@jax.custom_vjp
def first_of(a, b):
    return a * b


first_of.defvjp(lambda a, b: (a * b, b), lambda b, g: (g * b, jnp.zeros_like(b)))


@case("params['b']", "zero", "rule", "first_of(", a=W, b=array(13, 3, 4))
def rule_that_returns_zeros(params, x):
    second = x @ params["b"]
    return jnp.sum(first_of(x @ params["a"], second))


# --- right, although they look alike ----------------------------------------------------------------------------------


@case("params['scale']", "reached", "asked", "lax.stop_gradient", w=W, scale=jnp.float32(3.0))
def straight_through(params, x):
    q = x * params["scale"]
    q = q + lax.stop_gradient(jnp.round(q) - q)
    return jnp.sum(jnp.tanh(q @ params["w"]))


@case("params['target']", "on purpose", "asked", "lax.stop_gradient", w=W, target=W + 0.1)
def moving_average_as_a_target(params, x):
    predicted = jnp.tanh(x @ params["w"])
    target = lax.stop_gradient(jnp.tanh(x @ params["target"]))
    return jnp.mean((predicted - target) ** 2)


@case("params['table']", "reached", table=array(13, 50, 4), w=array(14, 4, 2))
def rows_of_an_embedding_that_do_not_occur(params, x):
    return jnp.sum(jnp.tanh(params["table"][jnp.array([3, 1, 4, 1])] @ params["w"]))


@case("params['w']", "reached", w=W, v=V)
def softmax_and_a_relu_that_is_partly_active(params, x):
    h = jax.nn.relu(x @ params["w"])
    return -jnp.sum(jax.nn.log_softmax(h @ params["v"])[:, 0])


@case("params['target']", "on purpose", "asked", "lax.stop_gradient(jax.nn.softmax", w=W, target=W + 0.1)
def softmax_that_is_stopped(params, x):
    target = lax.stop_gradient(jax.nn.softmax(x @ params["target"]))
    return -jnp.sum(target * jax.nn.log_softmax(x @ params["w"]))


@case("params['target']", "on purpose", "asked", "lax.stop_gradient(values", w=W, target=W + 0.1)
def best_value_of_a_target(params, x):
    values = x @ params["target"]
    best = lax.stop_gradient(values[jnp.arange(5), jnp.argmax(values, -1)])
    return jnp.mean((x @ params["w"] - best[:, None]) ** 2)


@case("params['target']", "on purpose", "asked", "jax.tree.map(", w=W, target=W + 0.1)
def tree_that_is_stopped(params, x):
    fixed = jax.tree.map(lax.stop_gradient, {"target": params["target"]})
    return jnp.mean((x @ params["w"] - jnp.round(x @ fixed["target"])) ** 2)


@case("params['target']", "on purpose", "asked", "lax.stop_gradient(c", w=W, target=W + 0.1)
def stopped_in_each_iteration(params, x):
    def step(c, row):
        return lax.stop_gradient(c + jnp.sum(row @ params["target"])), None

    return jnp.sum(jnp.tanh(x @ params["w"])) * lax.scan(step, 0.0, x)[0]


# --- training steps ---------------------------------------------------------------------------------------------------


def regression(params, x):
    return jnp.mean((x @ params["w"]) ** 2)


def step_in_bfloat16(params, x):
    gradient = jax.grad(regression)(params, x)
    return jax.tree.map(lambda p, g: p - (1e-4 * g).astype(p.dtype), params, gradient)


@partial(jax.jit, static_argnames="rate")
def masked_step(params, x, rate=0.1):
    value, gradient = jax.value_and_grad(regression)(params, x)
    masked = jax.tree.map(lambda g: g * 0.0, gradient)
    return jax.tree.map(lambda p, g: p - rate * g, params, masked), value


def frozen_step(params, x):
    gradient = jax.grad(lambda params: regression(params, x) + jnp.sum(params["frozen"] ** 2))(params)
    updates = {"w": -0.1 * gradient["w"], "frozen": jnp.zeros_like(params["frozen"])}
    return jax.tree.map(jnp.add, params, updates)
