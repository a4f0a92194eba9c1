# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · Can 150 lines of Python differentiate a transformer as JAX does?
#
# Build your own autodiff, hold its gradient against JAX's, and look at where JAX is better. Four of the pieces are left to you: under each
# exercise is a cell with a function to fill in, and under that, folded, a solution. The rest of the notebook goes on with the solution.
#
# It takes 25 minutes. You should know what linearizing and transposing do: [2 · JVP and linearize](02_jvp_and_linearize.ipynb),
# [4 · transposition](04_transposition.ipynb).
#
# One idea carries it: *the derivative rule of an operation is itself a small program, and to differentiate a program
# is to splice such small programs together.* jaxviz's own engine is built on it.

# %%
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

import jaxviz
from jaxviz import teach

# %% [markdown]
# ## 1. A program is a list of equations
#
# Four small types. A variable is an object: two variables are the same only if they are the same object.


# %%
class Var:
    def __init__(self, like):
        self.shape, self.dtype = like.shape, like.dtype


class Const:
    def __init__(self, value):
        self.value, self.shape, self.dtype = value, np.shape(value), jnp.result_type(value)


class Equation(NamedTuple):
    operation: tuple[Any, dict]  # a primitive of JAX, and its params
    inputs: tuple[Any, ...]  # each a Var or a Const
    outputs: tuple[Any, ...]


class Program(NamedTuple):
    inputs: tuple[Any, ...]
    equations: list[Equation]
    outputs: tuple[Any, ...]


# %% [markdown]
# JAX traces; we copy what it saw. The program of a jitted function is copied in where it is called, and so is that of a function with
# a rule of its own, so that there is one flat list.

# %%
CALLS = {"jit", "pjit", "custom_jvp_call", "custom_vjp_call"}


def trace(f, *args):
    env, equations = {}, []
    read = lambda atom: Const(atom.val) if isinstance(atom, Literal) else env[atom]

    def copy(closed, inputs):
        env.update(zip(closed.jaxpr.constvars, map(Const, closed.consts)))
        env.update(zip(closed.jaxpr.invars, inputs))
        for e in closed.jaxpr.eqns:
            if e.primitive.name in CALLS:
                outputs = copy(e.params.get("jaxpr") or e.params["call_jaxpr"], [read(a) for a in e.invars])
            else:
                outputs = [Var(v.aval) for v in e.outvars]
                equations.append(Equation((e.primitive, e.params), tuple(map(read, e.invars)), tuple(outputs)))
            env.update(zip(e.outvars, outputs))
        return [read(a) for a in closed.jaxpr.outvars]

    closed = jax.make_jaxpr(f)(*args)
    inputs = tuple(Var(v.aval) for v in closed.jaxpr.invars)
    return Program(inputs, equations, tuple(copy(closed, inputs)))


# %% [markdown]
# To evaluate a program is to walk the list. What walks it may be JAX's tracer too, so `show` gives back a jaxpr, and a program
# of ours can be jitted.


# %%
def apply(operation, args):
    primitive, params = operation
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return out if primitive.multiple_results else [out]


def evaluate(program, *args):
    env = dict(zip(program.inputs, args))
    read = lambda a: a.value if isinstance(a, Const) else env[a]
    for e in program.equations:
        env.update(zip(e.outputs, apply(e.operation, map(read, e.inputs))))
    return [read(a) for a in program.outputs]


def spec(a):
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


def show(program):
    return jax.make_jaxpr(lambda *args: evaluate(program, *args))(*map(spec, program.inputs))


f = lambda x: jnp.sin(x) * x
print(show(trace(f, 2.0)))
print(evaluate(trace(f, 2.0), 2.0), f(2.0))

# %% [markdown]
# ## 2. A rule is a program
#
# The JVP rule of one operation takes its inputs and their tangents, and gives its outputs and theirs. JAX knows one for
# each of its operations. We ask for it, and trace it: then it is a `Program` as any other.
# An input that does not move has no tangent.


# %%
def jvp_rule(e, moves):
    """(inputs, tangents of those that move) -> (outputs, their tangents)"""

    def rule(inputs, tangents):
        def of_moving(*moving):
            moving = iter(moving)
            return apply(e.operation, [next(moving) if m else x for x, m in zip(inputs, moves)])

        return jax.jvp(of_moving, [x for x, m in zip(inputs, moves) if m], tangents)

    specs = [spec(a) for a in e.inputs]
    return trace(rule, specs, [s for s, m in zip(specs, moves) if m])


sine, product = trace(f, 2.0).equations
print(show(jvp_rule(sine, [True])))

# %% [markdown]
# `product` multiplies `sin(x)` by `x`, and both move.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: sizes
sizes = teach.predict(
    "How many equations has the JVP rule of a product whose two factors move?",
    truth=lambda: len(jvp_rule(product, [True, True]).equations),
    because="The product, each tangent times the other factor, and the sum of the two: the product rule.",
    hints=["Write `d(a b)` down. Then count what computes, the product itself too."],
)
sizes

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
sizes.solution(4)

# %%
print(show(jvp_rule(product, [True, True])))

# %% [markdown]
# ## 3. Splicing
#
# To put a rule into a larger program, copy its equations, with its inputs replaced by what it is applied to. The same rule is put in many
# times, so each copy needs output variables of its own.


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: splicing
def spliced_twice(splice, point=0.7):
    """sin(sin(x)), made by splicing one program into another twice."""
    sine = trace(jnp.sin, point)
    x, equations = Var(sine.inputs[0]), []
    once = splice(equations, sine, [x])
    return Program((x,), equations, tuple(splice(equations, sine, once)))


def value_is_off(splice):
    got, want = evaluate(spliced_twice(splice), 0.7)[0], jnp.sin(jnp.sin(0.7))
    return (
        "" if np.isclose(got, want) else f"Spliced twice, sin gives {got:.4f} at 0.7, and sin(sin(0.7)) is {want:.4f}."
    )


def shares_variables(splice):
    outputs = [v for e in spliced_twice(splice).equations for v in e.outputs]
    return (
        "" if len(set(outputs)) == len(outputs) else "Two copies name the same variable: each needs a Var of its own."
    )


splicing = teach.rule(
    "Write `splice`: a copy of the rule's equations, applied to `inputs`, goes to the end of the list.",
    teach.Check("two copies have variables of their own", shares_variables),
    teach.Check("the program computes the composition", value_is_off),
    hints=[
        "Keep a dict from the rule's variables to those of the larger program; it starts with the rule's inputs.",
        "For each equation, first give each of its outputs a new `Var` in that dict, then append the equation with all its variables looked up. "
        "A `Const` is in no dict: it stays.",
    ],
    wrong=[lambda equations, rule, inputs: equations.extend(rule.equations) or list(rule.outputs)],
)
splicing


# %% tags=["answer"]
def splice(equations, rule, inputs):
    """Appends a copy of the rule's equations, applied to `inputs`; returns what its outputs became."""
    ...


splicing.answer(splice)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def splice(equations, rule, inputs):
    now = dict(zip(rule.inputs, inputs))
    read = lambda a: now.get(a, a)
    for e in rule.equations:
        now.update((v, Var(v)) for v in e.outputs)
        equations.append(Equation(e.operation, tuple(map(read, e.inputs)), tuple(map(read, e.outputs))))
    return [read(a) for a in rule.outputs]


splicing.solution(splice)

# %% [markdown]
# ## 4. Forward mode
#
# Walk the program. Where nothing moves, copy the equation; else splice the rule in. What has no tangent is never computed with: that is
# what JAX calls a *symbolic zero*. Comparisons and integers do not move.


# %%
def zero(a):
    return Const(jnp.zeros(a.shape, a.dtype))


def jvp(program):
    """(inputs, tangents) -> (outputs, tangents)"""
    equations, now = [], {}
    tangents = {v: Var(v) for v in program.inputs}
    inputs = (*program.inputs, *tangents.values())
    for e in program.equations:
        e = e._replace(inputs=tuple(now.get(a, a) for a in e.inputs))
        moves = [a in tangents for a in e.inputs]
        if not any(moves) or not all(jnp.issubdtype(v.dtype, jnp.floating) for v in e.outputs):
            equations.append(e)
            continue
        outs = splice(equations, jvp_rule(e, moves), [*e.inputs, *(tangents[a] for a in e.inputs if a in tangents)])
        values, moved = outs[: len(e.outputs)], outs[len(e.outputs) :]
        now.update(zip(e.outputs, values))
        tangents.update(zip(values, moved))
    outputs = [now.get(a, a) for a in program.outputs]
    return Program(inputs, equations, (*outputs, *(tangents.get(a, zero(a)) for a in outputs)))


print(show(jvp(trace(f, 2.0))))
print(evaluate(jvp(trace(f, 2.0)), 2.0, 1.0))
print(jax.jvp(f, (2.0,), (1.0,)))

# %% [markdown]
# That is half of autodiff, in a loop of ten lines.
#
# ## 5. Linearize: sort the equations in two
#
# The JVP program mixes two kinds of equations: those that compute with values, and those that a tangent goes into.
# The first can run before any tangent is known. So sort them. What the second kind reads of the first has to be kept: *the residuals*.
# Nobody chooses them. They are the variables that are cut when the list is cut in two.


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: sorting
def sorted_wrongly(split):
    both = jvp(trace(f, 2.0))
    known, linear = split(both.equations, both.inputs[1:])
    if [*known, *linear] != sorted(both.equations, key=lambda e: e in linear):
        return "Each equation should be in one of the two lists, and each list in the order of the program."
    try:
        evaluate(Program(both.inputs[:1], known, both.outputs[:1]), 2.0)
    except KeyError:
        return "The first list reads something that is in the second: a tangent went into it through another equation."
    late = [e.operation[0].name for e in linear if e.operation[0].name in ("sin", "cos")]
    return f"{late[0]} is in the second list, and no tangent goes into it." if late else ""


sorting = teach.rule(
    "Write `split`: sort the equations by whether a tangent goes into them.",
    teach.Check("each equation is in the list where it belongs", sorted_wrongly),
    hints=[
        "Keep a set of what has moved. It starts with the tangents.",
        "If any input of an equation is in the set, then its outputs are too.",
    ],
    wrong=[
        lambda equations, tangents: (equations, []),
        lambda equations, tangents: (
            [e for e in equations if set(tangents).isdisjoint(e.inputs)],
            [e for e in equations if not set(tangents).isdisjoint(e.inputs)],
        ),
        lambda equations, tangents: ([], equations),
    ],
)
sorting


# %% tags=["answer"]
def split(equations, tangents):
    """Two lists: the equations that no tangent goes into, and those that one goes into, at once or through others."""
    ...


sorting.answer(split)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def split(equations, tangents):
    moving, known, linear = set(tangents), [], []
    for e in equations:
        if moving.isdisjoint(e.inputs):
            known.append(e)
        else:
            linear.append(e)
            moving.update(e.outputs)
    return known, linear


sorting.solution(split)


# %%
def needed(equations, outputs):
    """The equations that the outputs come from."""
    wanted, kept = set(outputs), []
    for e in reversed(equations):
        if not wanted.isdisjoint(e.outputs):
            wanted.update(e.inputs)
            kept.insert(0, e)
    return kept


def linearize(program):
    """inputs -> (outputs, residuals), and (residuals, tangents) -> tangents"""
    both, n, m = jvp(program), len(program.inputs), len(program.outputs)
    known, linear = split(both.equations, both.inputs[n:])
    linear = needed(linear, both.outputs[m:])
    inside = {*both.inputs[n:], *(v for e in linear for v in e.outputs)}
    reads = [a for e in linear for a in e.inputs if isinstance(a, Var) and a not in inside]
    residuals = tuple(dict.fromkeys(reads))
    outputs = (*both.outputs[:m], *residuals)
    forward = Program(both.inputs[:n], needed(known, outputs), outputs)
    return forward, Program((*residuals, *both.inputs[n:]), linear, both.outputs[m:])


forward, linear = linearize(trace(f, 2.0))
print(show(forward))
print(show(linear))

# %% [markdown]
# jaxviz's engine, and JAX, split `f` in the same way:

# %%
print(jaxviz.residuals(f, 2.0))

# %% [markdown]
# ## 6. Transpose: walk the linear program backwards
#
# The linear program takes tangents to tangents, and every equation in it is linear in what moves. For each there is a transposed
# program, which takes cotangents of the outputs to cotangents of the inputs. JAX knows those too:


# %%
def transpose_rule(e, moves):
    """(inputs that do not move, cotangents of the outputs) -> cotangents of the inputs that move"""

    def rule(fixed, cts):
        def of_moving(*moving):
            moving, others = iter(moving), iter(fixed)
            return apply(e.operation, [next(moving) if m else next(others) for m in moves])

        return jax.linear_transpose(of_moving, *[s for s, m in zip(specs, moves) if m])(cts)

    specs = [spec(a) for a in e.inputs]
    return trace(rule, [s for s, m in zip(specs, moves) if not m], [spec(v) for v in e.outputs])


total = trace(lambda x: x.sum(), jnp.ones(3)).equations[0]
print(show(transpose_rule(total, [True])))

# %% [markdown]
# A variable that several equations read gets a part of its cotangent from each, and the parts are added up.


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: adding
def parts_are_lost(accumulate):
    equations, cts, v, parts = [], {}, Var(jnp.zeros(2)), [Var(jnp.zeros(2)) for _ in range(3)]
    for part in parts:
        accumulate(equations, cts, v, part)
    if v not in cts:
        return "Nothing is noted in `cts`."
    x = [jnp.array([1.0, 10.0]), jnp.array([2.0, 20.0]), jnp.array([3.0, 30.0])]
    got = evaluate(Program(tuple(parts), equations, (cts[v],)), *x)[0]
    return "" if np.array_equal(got, sum(x)) else f"The parts {', '.join(map(str, x))} come to {got}."


adding = teach.rule(
    "Write `accumulate`: the first part is noted, each further one is added to what is noted.",
    teach.Check("three parts come to their sum", parts_are_lost),
    hints=[
        "The first part is the cotangent so far.",
        "A sum is a rule too: `trace(jnp.add, spec(v), spec(v))`, to be spliced in.",
    ],
    wrong=[
        lambda equations, cts, v, ct: cts.update({v: ct}),
        lambda equations, cts, v, ct: cts.setdefault(v, ct),
    ],
)
adding


# %% tags=["answer"]
def accumulate(equations, cts, v, ct):
    """One more part of v's cotangent: notes in the dict `cts` what the cotangent is now; what has to be computed for it is appended."""
    ...


adding.answer(accumulate)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def accumulate(equations, cts, v, ct):
    if v in cts:
        (ct,) = splice(equations, trace(jnp.add, spec(v), spec(v)), [cts[v], ct])
    cts[v] = ct


adding.solution(accumulate)

# %% [markdown]
# Now walk the linear program from its end. When the walk comes to an equation, all that reads its outputs lies behind: their
# cotangents are complete. That is why the backward pass runs backwards. They are read here and nowhere else, so they are
# taken out.


# %%
def transpose(program, n_fixed):
    """Linear in all inputs but the first `n_fixed`: (those, cotangents of the outputs) -> cotangents of the other inputs"""
    equations, cts = [], {}
    fixed, moving = program.inputs[:n_fixed], program.inputs[n_fixed:]
    linear = {*moving, *(v for e in program.equations for v in e.outputs)}
    given = tuple(Var(a) for a in program.outputs)
    for a, ct in zip(program.outputs, given):
        if a in linear:
            accumulate(equations, cts, a, ct)
    for e in reversed(program.equations):
        if cts.keys().isdisjoint(e.outputs):
            continue
        moves = [a in linear for a in e.inputs]
        others = [a for a, m in zip(e.inputs, moves) if not m]
        parts = splice(equations, transpose_rule(e, moves), [*others, *(cts.pop(v, zero(v)) for v in e.outputs)])
        for a, part in zip([a for a, m in zip(e.inputs, moves) if m], parts):
            accumulate(equations, cts, a, part)
    return Program((*fixed, *given), equations, tuple(cts.get(v, zero(v)) for v in moving))


def three_readers(x):
    y = 5 * x
    return 2 * y + 3 * y + 4 * y


print(show(trace(three_readers, 1.0)))

# %% [markdown]
# `three_readers` is linear as it is: it can be transposed at once.

# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: products
products = teach.predict(
    "How many multiplications has its transpose?",
    truth=lambda: sum(e.operation[0].name == "mul" for e in transpose(trace(three_readers, 1.0), 0).equations),
    because="One for each reader of `y`, and one for `y` itself, which reads the sum of the three. Taking each path from the end to `x` by itself would "
    "take six; over many layers, the number of paths grows exponentially, and the number of equations does not.",
    hints=["When the walk comes to `y = 5 * x`, how many cotangents of `y` are there?"],
)
products

# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
products.solution(4)

# %%
print(show(transpose(trace(three_readers, 1.0), 0)))

# %% [markdown]
# ## 7. `grad`
#
# Forward, and the transpose of the linear program.


# %%
def grad(f):
    def gradient(x):
        leaves, tree = jax.tree.flatten(x)
        forward, linear = linearize(trace(lambda *leaves: f(tree.unflatten(leaves)), *leaves))
        value, *residuals = evaluate(forward, *leaves)
        backward = transpose(linear, len(residuals))
        return tree.unflatten(evaluate(backward, *residuals, jnp.ones_like(value)))

    return gradient


print(grad(f)(2.0), jax.grad(f)(2.0))

# %%
import inspect

engine = [
    trace,
    apply,
    evaluate,
    spec,
    jvp_rule,
    splice,
    zero,
    jvp,
    split,
    needed,
    linearize,
    transpose_rule,
    accumulate,
    transpose,
    grad,
]
lines = [line for part in engine for line in inspect.getsource(part).splitlines() if line.strip()]
print(len(lines), "lines")

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert len(lines) + 14 <= 150  # and those of the four types

# %% [markdown]
# A transformer: two layers of causal attention with layer norms and a GELU, and a cross entropy.

# %%
WIDTH, LENGTH, WORDS = 16, 8, 11
tokens = jnp.arange(LENGTH) % WORDS


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def layer(p, x):
    q, k, v = jnp.split(norm(x) @ p["qkv"], 3, axis=-1)
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), q @ k.T / WIDTH**0.5, -jnp.inf)
    x = x + jax.nn.softmax(scores) @ v @ p["out"]
    return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]


def loss(params):
    x = params["embedding"][tokens]
    for p in params["layers"]:
        x = layer(p, x)
    logits = jax.nn.log_softmax(norm(x) @ params["embedding"].T)
    return -jnp.mean(logits[jnp.arange(LENGTH - 1), tokens[1:]])


def random(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape) * shape[0] ** -0.5


shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 64), "down": (64, WIDTH)}
layers = [{name: random(10 * i + j, *s) for j, (name, s) in enumerate(shapes.items())} for i in range(2)]
params = {"embedding": random(99, WORDS, WIDTH), "layers": layers}

# %%
ours, theirs = jax.jit(grad(loss))(params), jax.jit(jax.grad(loss))(params)
off = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), ours, theirs)))
largest = max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(theirs))
print(f"the largest entry of JAX's gradient is {largest:.3g}, the largest difference from ours {off:.3g}")

# %% [markdown]
# JAX could jit it, since all it does is to call operations of JAX's. For the same reason it can be differentiated again, by itself or by JAX.
# With one layer, which is quicker to compile:


# %%
def steepness(params):
    return sum(jnp.sum(g**2) for g in jax.tree.leaves(grad(loss)(params)))


shallow = params | {"layers": layers[:1]}
twice, mixed = jax.jit(grad(steepness))(shallow), jax.jit(jax.grad(steepness))(shallow)
print("ours of ours: ", jnp.linalg.norm(twice["embedding"]))
print("JAX's of ours:", jnp.linalg.norm(mixed["embedding"]))

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert off <= 1e-6 * largest
for a, b in zip(jax.tree.leaves(twice), jax.tree.leaves(mixed)):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)

# %% [markdown]
# ## 8. A rule of your own
#
# Rounding has a derivative of zero, so what comes before it learns nothing. A *straight-through* rule takes the tangent on as if nothing had been
# rounded. In this engine a rule of your own is an entry in a dict:

# %%
own_rules = {}
rule_of_jax = jvp_rule


def jvp_rule(e, moves):
    own = own_rules.get(e.operation[0].name)
    if own is None or not all(moves):
        return rule_of_jax(e, moves)
    specs = [spec(a) for a in e.inputs]
    return trace(own, specs, specs)


def rounded(x):
    return jnp.sum(jnp.round(x) ** 2)


x = jnp.array([0.4, 1.2, -2.7])
print(grad(rounded)(x))


# %% tags=["exercise"] jupyter={"source_hidden": true}
# Exercise: through
def goes_through(rule):
    own_rules["round"] = rule
    try:
        got = grad(rounded)(x)
    finally:
        del own_rules["round"]
    want = 2 * jnp.round(x)
    return (
        ""
        if jnp.array_equal(got, want)
        else f"The gradient of sum(round(x)²) is {got}; with the tangent taken on it is 2·round(x) = {want}."
    )


def still_rounds(rule):
    (value,), _ = rule([x], [jnp.ones(3)])
    return "" if jnp.array_equal(value, jnp.round(x)) else f"Of {x} it makes {value}, which is not rounded."


through = teach.rule(
    "Write the straight-through rule of `round`.",
    teach.Check("its value is rounded", still_rounds),
    teach.Check("its tangent goes through", goes_through),
    hints=[
        "`inputs` is a list of one, and so is `tangents`.",
        "The value is `jnp.round(inputs[0])`. The tangent needs nothing done to it.",
    ],
    wrong=[
        lambda inputs, tangents: ([jnp.round(inputs[0])], [jnp.zeros_like(inputs[0])]),
        lambda inputs, tangents: (inputs, tangents),
    ],
)
through


# %% tags=["answer"]
def straight_through(inputs, tangents):
    """(inputs, their tangents) -> (outputs, their tangents), each a list"""
    ...


through.answer(straight_through)


# %% tags=["solution"] jupyter={"source_hidden": true}
# Solution
def straight_through(inputs, tangents):
    return [jnp.round(inputs[0])], [tangents[0]]


through.solution(straight_through)

# %% [markdown]
# `jax.custom_jvp` is this dict, with one entry for each function in the place of one for each operation.

# %%
own_rules["round"] = straight_through
print(grad(rounded)(x))


@jax.custom_jvp
def round_through(x):
    return jnp.round(x)


round_through.defjvp(lambda inputs, tangents: (jnp.round(inputs[0]), tangents[0]))
print(jax.grad(lambda x: jnp.sum(round_through(x) ** 2))(x))

# %% [markdown]
# ## 9. Where JAX does better
#
# The residuals of the transformer, as this engine finds them, beside those that JAX keeps:

# %%
leaves, tree = jax.tree.flatten(params)
forward, _ = linearize(trace(lambda *leaves: loss(tree.unflatten(leaves)), *leaves))
kept = forward.outputs[1:]
print(f"here: {len(kept)} residuals, {sum(np.prod(v.shape, dtype=int) * v.dtype.itemsize for v in kept):,} B")
found = jaxviz.residuals(loss, params)
print(f"JAX:  {len(found)} residuals, {found.nbytes:,} B")

# %% [markdown]
# Nearly the same, and nobody told it what to keep. The differences lie where jitted functions begin and end, which this engine forgets.
#
# What it does not have at all are rules for programs *in* programs. A loop is one operation here, and the JVP rule of a loop is a loop that
# does both kinds of work at once:


# %%
def compounded(rate):
    return jax.lax.scan(lambda total, _: (total * rate, None), 1.0, length=5)[0]


both = jvp(trace(compounded, 1.1))
known, linear = split(both.equations, both.inputs[1:])
print("first list:", [e.operation[0].name for e in known], " second list:", [e.operation[0].name for e in linear])

# %% tags=["check"] jupyter={"source_hidden": true}
# What the text says, asserted
assert not any(e.operation[0].name == "scan" for e in known)

# %% [markdown]
# The loop is in the second list, and its value with it: nothing is left to run forward. JAX splits the *body* of the loop, into a loop
# that runs forward and stacks what it keeps, and a linear loop that reads it. So does jaxviz:

# %%
print(jaxviz.residuals(compounded, 1.1))

# %% [markdown]
# And the transformer in jaxviz: one stage beside the other, and for each equation of the backward pass the equation and the rule that it came from.
# Press `r` in it to play a transform equation by equation; it is the walk that you have written.

# %%
jaxviz.explore(loss, params)

# %% [markdown]
# ## What to keep of this
#
# - Say what a rule is: a program. And what a transform is: a walk over a list, that splices rules in.
# - Say what a residual is: a variable that is cut when the list is cut in two.
# - Say why the backward pass runs backwards, and why each cotangent is read once.
#
# The rules that are missing here are read best in jaxviz's own `rules/`, one file for loops, one for branches, one for checkpoints.
# That is the end of the series. It began with [0 · a first look](00_first_look.ipynb).
