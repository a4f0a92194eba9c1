"""A small autodiff engine: the starting point of the notebooks on building your own, and their solutions.

`workbook.engine` runs this file in its own namespace, and replaces these functions with the learner's.
Values are NumPy arrays of float32, or JAX's. An operation is identified by its name; `bind` computes or records it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.teach.autodiff.places import placed, rule_for
from jaxviz.teach.autodiff.text import show


class Var:
    """A variable. Two are the same only if they are the same object."""

    def __init__(self, shape: Any):
        self.shape = tuple(shape)


class Const:
    """A value that was known when it was recorded."""

    def __init__(self, value: Any):
        self.value, self.shape = value, shape(value)


class _Equation(NamedTuple):
    op: str
    inputs: tuple[Any, ...]
    params: dict[str, Any]
    outputs: tuple[Var, ...]


class Equation(_Equation):
    """One operation: `outputs = op(inputs)`. An input is a Var or a Const. Its `op` also knows the line."""

    def __new__(cls, op: str, inputs: Any, params: Any, outputs: Any) -> Equation:
        return super().__new__(cls, placed(op), inputs, params, outputs)


class Program(NamedTuple):
    """Equations in order, from inputs to outputs."""

    inputs: tuple[Var, ...]
    equations: list[Equation]
    outputs: tuple[Any, ...]

    def __str__(self) -> str:
        return show(self)


class Recording:
    """The equations of one trace. The most recent recording is the innermost."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.number = next(self._numbers)

    def read(self, x: Any) -> Any:
        """The variable of a tracer of this recording; anything else, such as an array, becomes a constant."""
        return x.var if isinstance(x, Tracer) and x.recording is self else Const(x)


def read(env: dict[Any, Any], a: Any) -> Any:
    """The value of a Var or a Const."""
    return a.value if isinstance(a, Const) else env[a]


class Tracer:
    """Represents a value that is not known yet: every operation on it becomes an equation of its recording."""

    __array_ufunc__ = None  # leave array * tracer to the tracer

    def __init__(self, recording: Recording, var: Var):
        self.recording, self.var = recording, var

    shape = property(lambda self: self.var.shape)
    ndim = property(lambda self: len(self.var.shape))
    __add__ = __radd__ = lambda self, other: add(self, other)
    __mul__ = __rmul__ = lambda self, other: mul(self, other)
    __neg__ = lambda self: neg(self)
    __sub__ = lambda self, other: add(self, neg(other))
    __rsub__ = lambda self, other: add(neg(self), other)
    __truediv__ = lambda self, other: mul(self, recip(other))
    __rtruediv__ = lambda self, other: mul(recip(self), other)
    __matmul__ = lambda self, other: dot(self, other)
    __rmatmul__ = lambda self, other: dot(other, self)


IMPLEMENTATIONS: dict[str, Any] = {
    "neg": lambda np, x: -x,
    "add": lambda np, x, y: x + y,
    "mul": lambda np, x, y: x * y,
    "sin": lambda np, x: np.sin(x),
    "cos": lambda np, x: np.cos(x),
    "exp": lambda np, x: np.exp(x),
    "log": lambda np, x: np.log(x),
    "recip": lambda np, x: 1 / x,
    "step": lambda np, x: np.where(x > 0, 1.0, 0.0),
    "sum": lambda np, x, axis: np.sum(x, axis),
    "spread": lambda np, x, axis, size: np.repeat(np.expand_dims(x, axis), size, axis),
    "dot": lambda np, x, y: np.matmul(x, y),
    "swap": lambda np, x: np.swapaxes(x, -1, -2),
}
"""The implementation of each operation, with NumPy or, for JAX values, jax.numpy: a list of results, or one."""


def compute(op: str, inputs: Any, params: dict[str, Any]) -> list[Any]:
    """Computes an operation on values."""
    library = jnp if any(isinstance(x, jax.Array) for x in inputs) else np
    arrays = [library.asarray(x, np.float32) for x in inputs]
    out = IMPLEMENTATIONS[op](library, *arrays, **params)
    return [library.asarray(y, np.float32) for y in (out if isinstance(out, list) else [out])]


SHAPES_OF: dict[str, Any] = {}
"""For an operation that is added later: (inputs, params) -> the shapes of its results; that of input 0 if missing."""


def shapes_of(op: str, inputs: Any, params: dict[str, Any]) -> list[tuple[int, ...]]:
    """The shapes of an operation's results, without computing them."""
    if op in SHAPES_OF:
        return list(SHAPES_OF[op](inputs, params))
    first, axis = shape(inputs[0]), params.get("axis", 0)
    match op:
        case "sum":
            return [(*first[:axis], *first[axis + 1 :])]
        case "spread":
            return [(*first[:axis], params["size"], *first[axis:])]
        case "dot":
            return [(*first[:-1], shape(inputs[1])[-1])]
        case "swap":
            return [(*first[:-2], first[-1], first[-2])]
    return [first]


def shape(x: Any) -> tuple[int, ...]:
    return tuple(x.shape) if hasattr(x, "shape") else np.shape(x)


def aligned(x: Any, y: Any) -> tuple[Any, Any]:
    """Broadcasts both to the larger number of axes: a bias is spread over the rows that it is added to."""
    while len(shape(x)) < len(shape(y)):
        x = spread(x, 0, shape(y)[-len(shape(x)) - 1])
    while len(shape(y)) < len(shape(x)):
        y = spread(y, 0, shape(x)[-len(shape(y)) - 1])
    return x, y


neg: Any = lambda x: bind("neg", x)[0]
add: Any = lambda x, y: bind("add", *aligned(x, y))[0]
mul: Any = lambda x, y: bind("mul", *aligned(x, y))[0]
sin: Any = lambda x: bind("sin", x)[0]
cos: Any = lambda x: bind("cos", x)[0]
exp: Any = lambda x: bind("exp", x)[0]
log: Any = lambda x: bind("log", x)[0]
recip: Any = lambda x: bind("recip", x)[0]
dot: Any = lambda x, y: bind("dot", x, y)[0]  # of two matrices, or two equally long stacks of them
swap: Any = lambda x: bind("swap", x)[0]  # swaps the last two axes
step: Any = lambda x: bind("step", x)[0]  # 1 where x is positive, else 0


def sum(x: Any, axis: int) -> Any:
    return bind("sum", x, axis=axis % len(shape(x)))[0]


def spread(x: Any, axis: int, size: int) -> Any:
    """Copies of x along a new axis."""
    return bind("spread", x, axis=axis, size=size)[0]


def total(x: Any) -> Any:
    """The sum of all elements."""
    while shape(x):
        x = sum(x, 0)
    return x


def mean(x: Any) -> Any:
    return total(x) * (1.0 / math.prod(shape(x)))


def tanh(x: Any) -> Any:
    return 1.0 - 2.0 * recip(1.0 + exp(2.0 * x))


def zeros(like: Any) -> Any:
    return np.zeros(shape(like), np.float32)


def instantiate_zeros(tangents: Any, like: Any) -> list[Any]:
    """Zeros in place of the tangents that are None, with the shapes of `like`."""
    return [zeros(x) if d is None else d for d, x in zip(tangents, like, strict=True)]


# --- 1. tracing and tangents ------------------------------------------------------------------------------------------


def innermost(inputs: Any) -> Recording | None:
    """The innermost recording among those of the inputs' tracers; None if there is no tracer."""
    recordings = sorted((x.recording for x in inputs if isinstance(x, Tracer)), key=lambda r: r.number)
    return recordings[-1] if recordings else None


def bind(op: str, *inputs: Any, **params: Any) -> list[Any]:
    """Computes an operation, or records it if an input is a tracer; returns the list of its results."""
    recording = innermost(inputs)
    if recording is None:
        return compute(op, inputs, params)
    outputs = tuple(Var(s) for s in shapes_of(op, inputs, params))
    recording.equations.append(Equation(op, tuple(recording.read(x) for x in inputs), params, outputs))
    return [Tracer(recording, v) for v in outputs]


def trace(f: Any, *like: Any) -> Program:
    """The program of a function, for arguments of these shapes."""
    recording = Recording()
    inputs = [Tracer(recording, Var(shape(x))) for x in like]
    out = f(*inputs)
    outputs = out if isinstance(out, (list, tuple)) else [out]
    return Program(tuple(t.var for t in inputs), recording.equations, tuple(recording.read(x) for x in outputs))


def trace_nested(f: Any, tree: Any, like: Any) -> tuple[Program, Any]:
    """The same for nested arguments, of this structure, and nested results; and the structure of the results."""
    structures: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        leaves, structure = jax.tree.flatten(f(*tree.unflatten(xs)))
        structures.append(structure)
        return list(leaves)

    return trace(flat, *like), structures[0]


def evaluate(program: Program, *inputs: Any) -> list[Any]:
    """Evaluates a program's operations, in order."""
    env = dict(zip(program.inputs, inputs, strict=True))
    for e in program.equations:
        env.update(zip(e.outputs, bind(e.op, *(read(env, a) for a in e.inputs), **e.params), strict=True))
    return [read(env, a) for a in program.outputs]


def partial(op: str, i: int, dx: Any, inputs: Any, out: Any, params: dict[str, Any]) -> Any:
    """The tangent of the result if input number i moves by dx and the others do not; None if the result does not."""
    match op:
        case "add":
            return dx
        case "mul":
            return mul(dx, inputs[1 - i])
        case "sin":
            return mul(dx, cos(inputs[0]))
        case "cos":
            return -mul(dx, sin(inputs[0]))
        case "exp":
            return mul(dx, out)
        case "log":
            return mul(dx, recip(inputs[0]))
        case "recip":
            return -mul(dx, mul(out, out))
        case "step":
            return None
        case "dot":
            return dot(dx, inputs[1]) if i == 0 else dot(inputs[0], dx)
        case "neg" | "sum" | "spread" | "swap":  # linear: the same operation applies to dx
            return bind(op, dx, **params)[0]
    raise NotImplementedError(f"no rule for {op}")


JVP_OF: dict[str, Any] = {}
"""For an operation that is added later, such as a loop: (inputs, tangents, params) -> (outputs, tangents)."""


def push(op: str, inputs: Any, tangents: Any, params: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The results of an operation and their tangents: the sum over all inputs that move. None is a zero tangent."""
    if all(dx is None for dx in tangents):
        outs = bind(op, *inputs, **params)
        return outs, [None for _ in outs]
    with rule_for(op):
        if op in JVP_OF:
            return tuple(JVP_OF[op](inputs, tangents, params))  # type: ignore[return-value]
        (out,) = bind(op, *inputs, **params)
        moved = None
        for i, dx in enumerate(tangents):
            part = None if dx is None else partial(op, i, dx, inputs, out, params)
            moved = part if moved is None else moved if part is None else add(moved, part)
        return [out], [moved]


def jvp(program: Program, inputs: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
    """The program's outputs and their tangents; None is a zero tangent, in the arguments too."""
    value, moved = dict(zip(program.inputs, inputs, strict=True)), dict(zip(program.inputs, tangents, strict=True))
    for e in program.equations:
        ins, dots = [read(value, a) for a in e.inputs], [moved.get(a) for a in e.inputs]
        outs, out_dots = push(e.op, ins, dots, e.params)
        value.update(zip(e.outputs, outs, strict=True))
        moved.update(zip(e.outputs, out_dots, strict=True))
    return [read(value, a) for a in program.outputs], [moved.get(a) for a in program.outputs]


# --- 2. linearize and transpose ---------------------------------------------------------------------------------------


def split(equations: Any, unknown: Any) -> tuple[list[Equation], list[Equation]]:
    """The equations that can be computed now, and those that depend on an unknown variable, directly or indirectly."""
    waiting, now, later = set(unknown), [], []
    for e in equations:
        if waiting.isdisjoint(e.inputs):
            now.append(e)
        else:
            later.append(e)
            waiting.update(e.outputs)
    return now, later


def partial_eval(program: Program, n_known: int) -> tuple[Program, Program]:
    """The program split in two, with its first n_known inputs known.

    The first half maps the known inputs to the residuals and the known outputs, the second
    half the residuals and the other inputs to the remaining outputs.
    """
    known, unknown = program.inputs[:n_known], program.inputs[n_known:]
    now, later = split(program.equations, unknown)
    early_values = {*known, *(v for e in now for v in e.outputs)}
    read_later = [a for e in later for a in e.inputs] + [a for a in program.outputs if a in unknown]
    residuals = tuple(dict.fromkeys(a for a in read_later if a in early_values))
    late = {*unknown, *(v for e in later for v in e.outputs)}
    early = tuple(a for a in program.outputs if a not in late)
    first = Program(known, now, (*residuals, *early))
    return first, Program((*residuals, *unknown), later, tuple(a for a in program.outputs if a in late))


def linearize_program(program: Program) -> tuple[Program, Program, list[int]]:
    """inputs -> (residuals, outputs), and (residuals, tangents) -> tangents of the outputs that move; their numbers."""
    n = len(program.inputs)
    moving: list[int] = []

    def both(*xs: Any) -> list[Any]:
        outs, dots = jvp(program, xs[:n], xs[n:])
        moving[:] = [i for i, d in enumerate(dots) if d is not None]
        return [*outs, *(dots[i] for i in moving)]

    traced = trace(both, *program.inputs, *program.inputs)
    forward, linear = partial_eval(traced, n)
    dots = traced.outputs[len(program.outputs) :]
    # What depends on no tangent is zero, even if a rule computed it.
    return forward, linear, [i for i, d in zip(moving, dots, strict=True) if d in linear.outputs]


def linearize(f: Any, *inputs: Any) -> tuple[list[Any], Any]:
    """The outputs of f, and the function from tangents of its inputs to tangents of its outputs."""
    program = trace(f, *inputs)
    forward, linear, moving = linearize_program(program)
    n_residuals = len(linear.inputs) - len(inputs)
    results = evaluate(forward, *inputs)
    residuals, outs = results[:n_residuals], results[n_residuals:][: len(program.outputs)]

    def pushed(*tangents: Any) -> list[Any]:
        tangent_of = dict(zip(moving, evaluate(linear, *residuals, *tangents), strict=True))
        return [tangent_of.get(i, zeros(out)) for i, out in enumerate(outs)]

    return outs, pushed


def transposed(op: str, i: int, ct: Any, inputs: Any, shape: Any, params: dict[str, Any]) -> Any:
    """The cotangent of input number i, of this shape, in which the operation is linear; the others have values."""
    match op:
        case "add":
            return ct
        case "mul":
            return mul(ct, inputs[1 - i])
        case "sum":
            return spread(ct, params["axis"], shape[params["axis"]])
        case "spread":
            return sum(ct, params["axis"])
        case "dot":
            return dot(ct, swap(inputs[1])) if i == 0 else dot(swap(inputs[0]), ct)
        case "neg" | "swap":
            return bind(op, ct)[0]
    raise NotImplementedError(f"{op} is not linear")


TRANSPOSE_OF: dict[str, Any] = {}
"""For an operation that is added later: (inputs, None where linear; shapes; cotangents; params) -> cotangents."""


def pull(op: str, inputs: Any, shapes: Any, cts: Any, params: dict[str, Any]) -> list[Any]:
    """Cotangents for the inputs that are None, in which the operation is linear; None for the others."""
    with rule_for(op):
        if op in TRANSPOSE_OF:
            return list(TRANSPOSE_OF[op](inputs, shapes, cts, params))
        (ct,) = cts
        return [transposed(op, i, ct, inputs, shapes[i], params) if x is None else None for i, x in enumerate(inputs)]


def transpose(program: Program, inputs: Any, cts: Any) -> list[Any]:
    """From cotangents of the outputs to those of the inputs that are None; None for the others, and for zero."""
    linear_inputs = [v for v, x in zip(program.inputs, inputs, strict=True) if x is None]
    now, later = split(program.equations, linear_inputs)
    value = {v: x for v, x in zip(program.inputs, inputs, strict=True) if x is not None}
    for e in now:
        value.update(zip(e.outputs, bind(e.op, *(read(value, a) for a in e.inputs), **e.params), strict=True))
    linear = {*linear_inputs, *(v for e in later for v in e.outputs)}
    cotangent_of: dict[Var, Any] = {}

    def collect(v: Any, ct: Any) -> None:
        if ct is not None and v in linear:
            cotangent_of[v] = add(cotangent_of[v], ct) if v in cotangent_of else ct

    for v, ct in zip(program.outputs, cts, strict=True):
        collect(v, ct)
    for e in reversed(later):
        out_cts = [cotangent_of.pop(v, None) for v in e.outputs]
        if all(ct is None for ct in out_cts):
            continue
        ins = [None if a in linear else read(value, a) for a in e.inputs]
        parts = pull(e.op, ins, [shape(a) for a in e.inputs], out_cts, e.params)
        for a, ct in zip(e.inputs, parts, strict=True):
            collect(a, ct)
    return [cotangent_of.get(v) if x is None else None for v, x in zip(program.inputs, inputs, strict=True)]


def value_and_grad(f: Any) -> Any:
    """The gradient of a function with a scalar result, with respect to its first argument, which may be nested."""

    def both(x: Any, *others: Any) -> Any:
        leaves, tree = jax.tree.flatten(x)
        program = trace(lambda *xs: f(tree.unflatten(xs), *others), *leaves)
        forward, linear, moving = linearize_program(program)
        n_residuals = len(linear.inputs) - len(leaves)
        results = evaluate(forward, *leaves)
        cts = [np.float32(1) for _ in moving]
        gradients = transpose(linear, [*results[:n_residuals], *(None for _ in leaves)], cts)[n_residuals:]
        return results[n_residuals], tree.unflatten(instantiate_zeros(gradients, leaves))

    return both


def grad(f: Any) -> Any:
    return lambda *args: value_and_grad(f)(*args)[1]


# --- 3. vmap ----------------------------------------------------------------------------------------------------------


def batched(op: str, inputs: Any, mapped: Any, size: int, params: dict[str, Any]) -> list[Any]:
    """The operation for all examples at once. Mapped inputs and the results have the examples along axis 0."""
    if op in ("sum", "spread"):
        return bind(op, *inputs, **{**params, "axis": params["axis"] + 1})
    return bind(op, *(x if m else spread(x, 0, size) for x, m in zip(inputs, mapped, strict=True)), **params)


BATCHED_OF: dict[str, Any] = {}
"""For an operation that is added later: (inputs, mapped, size, params) -> results, which are all mapped."""


def batch(op: str, inputs: Any, mapped: Any, size: int, params: dict[str, Any]) -> list[Any]:
    """The operation for all examples at once, by its own rule if it has one."""
    with rule_for(op):
        if op in BATCHED_OF:
            return list(BATCHED_OF[op](inputs, mapped, size, params))
        return list(batched(op, inputs, mapped, size, params))


def vmap_program(program: Program, inputs: Any, mapped: Any, size: int) -> tuple[list[Any], list[bool]]:
    """The outputs for all examples, and which are mapped. What does not depend on the example is computed once."""
    value, along = dict(zip(program.inputs, inputs, strict=True)), dict(zip(program.inputs, mapped, strict=True))
    for e in program.equations:
        ins, maps = [read(value, a) for a in e.inputs], [along.get(a, False) for a in e.inputs]
        outs = batch(e.op, ins, maps, size, e.params) if any(maps) else bind(e.op, *ins, **e.params)
        value.update(zip(e.outputs, outs, strict=True))
        along.update((v, any(maps)) for v in e.outputs)
    return [read(value, a) for a in program.outputs], [along.get(a, False) for a in program.outputs]


def all_mapped(program: Program, inputs: Any, mapped: Any, size: int) -> list[Any]:
    """The outputs for all examples; copies of those that are the same for all of them."""
    outs, along = vmap_program(program, inputs, mapped, size)
    return [x if m else spread(x, 0, size) for x, m in zip(outs, along, strict=True)]


def vmap(f: Any, mapped: Any) -> Any:
    """f for all examples along axis 0 of the arguments where `mapped` is True; arguments and results may be nested."""

    def mapped_f(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        flags = jax.tree.leaves([jax.tree.map(lambda _, m=m: m, a) for a, m in zip(args, mapped, strict=True)])
        size = next(shape(x)[0] for x, m in zip(leaves, flags, strict=True) if m)
        like = [Var(shape(x)[1:]) if m else x for x, m in zip(leaves, flags, strict=True)]
        program, results = trace_nested(f, tree, like)
        return results.unflatten(all_mapped(program, leaves, flags, size))

    return mapped_f
