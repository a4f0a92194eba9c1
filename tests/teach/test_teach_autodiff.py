"""Building one's own autodiff: other correct answers are accepted, wrong ones are not, and correct ones replace the
engine's functions."""

import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short

from jaxviz.teach import autodiff
from jaxviz.teach.autodiff.workbook import SLOTS


@pytest.fixture
def my(tmp_path):
    return autodiff.engine(tmp_path / "answers" / "mine.py")


def other_answers(my):
    """For each function a correct answer that differs from the notebooks' own."""

    def bind(op, *inputs, **params):
        tracers = [x for x in inputs if isinstance(x, my.Tracer)]
        if not tracers:
            return my.compute(op, list(inputs), dict(params))
        inner = sorted(tracers, key=lambda t: t.recording.number)[-1].recording
        made = [my.Tracer(inner, my.Var(s)) for s in my.shapes_of(op, inputs, params)]
        equation = my.Equation(op, tuple(inner.read(x) for x in inputs), params, tuple(t.var for t in made))
        inner.equations += [equation]
        return made

    def evaluate(program, *inputs):
        env = {}
        for v, x in zip(program.inputs, inputs, strict=True):
            env[v] = x
        for op, ins, params, outs in program.equations:
            for v, x in zip(outs, my.bind(op, *[my.read(env, a) for a in ins], **params), strict=True):
                env[v] = x
        return tuple(my.read(env, a) for a in program.outputs)

    def partial(op, i, dx, inputs, out, params):
        x = inputs[0]
        if op in ("sum", "spread", "swap", "neg"):
            return my.bind(op, dx, **params)[0]
        if op == "dot":
            return my.dot(*[dx if j == i else y for j, y in enumerate(inputs)])
        return {
            "add": lambda: dx, "mul": lambda: inputs[1 - i] * dx if i else dx * inputs[1],
            "sin": lambda: my.cos(x) * dx,
            "cos": lambda: -1.0 * my.sin(x) * dx, "exp": lambda: my.exp(x) * dx, "log": lambda: dx / x,
            "recip": lambda: -1.0 * dx / (x * x), "step": lambda: my.zeros(dx),
        }[op]()  # fmt: skip

    def jvp(program, inputs, tangents):
        pairs = dict(zip(program.inputs, zip(inputs, tangents, strict=True), strict=True))
        both = lambda a: (a.value, None) if isinstance(a, my.Const) else pairs[a]
        for e in program.equations:
            values, dots = zip(*map(both, e.inputs), strict=True)
            if all(d is None for d in dots):
                made = [(x, None) for x in my.bind(e.op, *values, **e.params)]
            else:
                made = zip(*my.push(e.op, list(values), list(dots), e.params), strict=True)
            pairs.update(zip(e.outputs, made, strict=True))
        return tuple(zip(*map(both, program.outputs), strict=True))

    def split(equations, unknown):
        waiting, is_late = list(unknown), []
        for e in equations:
            is_late.append(any(a is v for a in e.inputs for v in waiting))
            waiting += e.outputs if is_late[-1] else ()
        return tuple(
            [e for e, late in zip(equations, is_late, strict=True) if late == which] for which in (False, True)
        )

    def transposed(op, i, ct, inputs, shape, params):
        if op == "mul":
            return inputs[1 - i] * ct
        if op == "dot":
            return my.swap(my.dot(inputs[1], my.swap(ct))) if i == 0 else my.swap(my.dot(my.swap(ct), inputs[0]))
        if op == "sum":
            return my.spread(ct, size=shape[params["axis"]], axis=params["axis"])
        return {
            "neg": lambda: ct * -1.0,
            "add": lambda: ct,
            "spread": lambda: my.sum(ct, params["axis"]),
            "swap": lambda: my.swap(ct),
        }[op]()

    def transpose(program, inputs, cts):
        linear = [v for v, x in zip(program.inputs, inputs, strict=True) if x is None]
        now, later = my.split(program.equations, linear)
        env = {v: x for v, x in zip(program.inputs, inputs, strict=True) if x is not None}
        for e in now:
            env.update(zip(e.outputs, my.bind(e.op, *[my.read(env, a) for a in e.inputs], **e.params), strict=True))
        linear += [v for e in later for v in e.outputs]
        parts = {v: [] for v in linear}  # all parts, added up where they are read
        for v, ct in zip(program.outputs, cts, strict=True):
            if v in parts and ct is not None:
                parts[v].append(ct)

        def whole(v):
            found = None
            for part in parts[v]:
                found = part if found is None else my.add(part, found)
            return found

        for e in later[::-1]:
            given = [whole(v) for v in e.outputs]
            if any(ct is not None for ct in given):
                ins = [None if a in parts else my.read(env, a) for a in e.inputs]
                for a, ct in zip(
                    e.inputs, my.pull(e.op, ins, [a.shape for a in e.inputs], given, e.params), strict=True
                ):
                    if ct is not None:
                        parts[a].append(ct)
        return [whole(v) if x is None else None for v, x in zip(program.inputs, inputs, strict=True)]

    def batched(op, inputs, mapped, size, params):
        full = [x if m else my.spread(x, 0, size) for x, m in zip(inputs, mapped, strict=True)]
        return my.bind(op, *full, **{k: v + (k == "axis") for k, v in params.items()})

    def vmap_program(program, inputs, mapped, size):
        env = dict(zip(program.inputs, inputs, strict=True))
        along = {v for v, m in zip(program.inputs, mapped, strict=True) if m}
        for e in program.equations:
            ins, flags = [my.read(env, a) for a in e.inputs], [a in along for a in e.inputs]
            if any(flags):
                along |= set(e.outputs)
                env.update(zip(e.outputs, my.batched(e.op, ins, flags, size, e.params), strict=True))
            else:
                env.update(zip(e.outputs, my.bind(e.op, *ins, **e.params), strict=True))
        return tuple(my.read(env, a) for a in program.outputs), tuple(a in along for a in program.outputs)

    return {k: v for k, v in locals().items() if k in SLOTS}


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(SLOTS), 2))
def test_the_own_answer_is_right_and_the_wrong_ones_say_why(my, name):
    exercise = autodiff.exercise(my, name)
    assert exercise.check(my.original(name))
    tried = [exercise.answer(given) for given in exercise.wrong()]
    assert len(tried) >= 2
    for verdict in tried:
        assert verdict.is_right is False
        assert any(p.mark in ("wrong", "missed") and p.why for p in verdict.points)
    assert exercise.answer(...).is_right is None
    assert len(exercise.hints) >= 2
    assert "def " in exercise.reveal().note
    assert getattr(my, name) is my.original(name)  # nothing wrong is left in the engine


@pytest.mark.slow
def test_other_answers_are_right_and_do_the_work(my):
    written = other_answers(my)
    calls = []
    for name, function in written.items():
        counted = lambda *args, _f=function, _n=name, **kwargs: (calls.append(_n), _f(*args, **kwargs))[1]
        verdict = autodiff.exercise(my, name).answer(counted)
        assert verdict, (name, str(verdict))
        assert getattr(my, name) is counted
    calls.clear()

    def loss(w, x):
        return my.total(my.tanh(x @ w))

    w, xs = np.ones((3, 1), np.float32), np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 2, 3)
    found = my.vmap(my.grad(loss), (False, True))(w, xs)
    wanted = jax.vmap(jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w))), (None, 0))(w, xs)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert set(calls) == set(written)


def test_right_answers_are_kept_for_the_next_notebook(my, tmp_path):
    namespace = {"my": my}
    source = (
        "def mine(equations, unknown):\n    return helper(equations, set(unknown))\n\n\n"
        "def helper(equations, unknown):\n"
    )
    source += "    now, later = [], []\n    for e in equations:\n        waits = bool(unknown & set(e.inputs))\n"
    source += (
        "        (later if waits else now).append(e)\n        unknown |= set(e.outputs) if waits else set()\n"
        "    return now, later\n"
    )
    file = tmp_path / "cell.py"  # represents the cell
    linecache.cache["<a cell>"] = (len(source), None, source.splitlines(True), "<a cell>")
    exec(compile(source, "<a cell>", "exec"), namespace)
    assert not file.exists()
    verdict = autodiff.exercise(my, "split").answer(namespace["mine"])
    assert verdict.note == "From here on, `my.split` is yours."
    assert "yours: split" in repr(my)

    later = autodiff.engine(tmp_path / "answers" / "mine.py")
    assert "yours: split" in repr(later)
    assert later.split.__name__ == "mine"
    np.testing.assert_allclose(
        later.grad(lambda x: later.sin(x) * x)(2.0), jax.grad(lambda x: jnp.sin(x) * x)(2.0), rtol=1e-5
    )

    path = tmp_path / "answers" / "mine.py"
    path.write_text(path.read_text() + "\n# --- jvp\ndef jvp(:\n")
    broken = autodiff.engine(path)
    assert "Your jvp" in repr(broken)
    assert "SyntaxError" in repr(broken)
    assert broken.jvp is broken.original("jvp")


def run_cell(source, namespace):
    linecache.cache["<cell 2>"] = (len(source), None, source.splitlines(True), "<cell 2>")
    exec(compile(source, "<cell 2>", "exec"), namespace)


def test_what_another_cell_defines_is_missed(my):
    namespace = {"elsewhere": my.split}
    run_cell("def split(equations, unknown):\n    return elsewhere(equations, unknown)\n", namespace)
    assert "reads elsewhere from another cell" in autodiff.exercise(my, "split").answer(namespace["split"]).note


TABLE_OF_RULES = """
RULES = {}


def rule_for(op):
    def register(rule):
        RULES[op] = rule
        return rule

    return register


@rule_for("sin")
def sine(dx, x):
    return my.cos(x) * dx


@rule_for("mul")
def product(dx, x, y):
    return y * dx


RULES.update(exp=lambda dx, x: my.exp(x) * dx, log=lambda dx, x: dx / x, step=lambda dx, x: my.zeros(dx))
RULES.setdefault("recip", lambda dx, x: -1.0 * dx / (x * x))


def partial(op, i, dx, inputs, out, params):
    if op in ("sum", "spread", "swap", "neg"):
        return my.bind(op, dx, **params)[0]
    if op == "dot":
        return my.dot(*[dx if j == i else y for j, y in enumerate(inputs)])
    return dx if op == "add" else RULES[op](dx, inputs[i], *[y for j, y in enumerate(inputs) if j != i])
"""
ANOTHER_CELL = """
@rule_for("cos")
def cosine(dx, x):
    return -1.0 * my.sin(x) * dx
"""


@pytest.mark.slow
def test_a_table_of_rules_is_kept_with_its_decorators_and_checked_in_a_new_engine(my, tmp_path):
    namespace = {"my": my, "rules": autodiff.exercise(my, "partial")}
    run_cell(f"{TABLE_OF_RULES}{ANOTHER_CELL}rules.answer(partial)\n", namespace)
    assert "yours: partial" in repr(my)
    later = autodiff.engine(tmp_path / "answers" / "mine.py")
    assert later.partial is not later.original("partial")
    assert autodiff.exercise(later, "partial").check(later.partial)


@pytest.mark.slow
def test_an_answer_that_is_right_only_with_another_cell_is_not_kept_for_the_next_notebook(my, tmp_path):
    namespace = {"my": my}
    run_cell(TABLE_OF_RULES, namespace)
    exec(ANOTHER_CELL, namespace)
    verdict = autodiff.exercise(my, "partial").answer(namespace["partial"])
    assert verdict
    assert "Only this notebook can use it: of its cell alone, the check says `cos`: It raises KeyError" in verdict.note
    assert my.partial is namespace["partial"]
    later = autodiff.engine(tmp_path / "answers" / "mine.py")
    assert later.partial is later.original("partial")


def scanned(sin, scan):
    def loss(k, c, xs):
        def body(c, x, k):
            n = sin(c * k) + x * k
            return n, n * n

        last, ys = scan(body, c, xs, k)
        return last, ys

    return loss


@pytest.mark.slow
def test_gradients_of_loops_and_checkpoints_are_those_of_jax(my):
    k, c, xs = (np.array(v, np.float32) for v in ([0.5, 1.0], [0.1, 0.2], [[0.3, 1.0], [-0.2, 0.4], [0.7, 0.1]]))
    mine = scanned(my.sin, lambda body, c, xs, k: my.scan(body, c, xs, (k,)))
    theirs = scanned(jnp.sin, lambda body, c, xs, k: jax.lax.scan(lambda c, x: body(c, x, k), c, xs))
    for i in range(3):
        at = lambda f, total, i=i: (
            lambda z: sum(total(y) for y in f(*(z if j == i else v for j, v in enumerate((k, c, xs)))))
        )
        found = my.grad(at(mine, my.total))((k, c, xs)[i])
        np.testing.assert_allclose(found, jax.grad(at(theirs, jnp.sum))((k, c, xs)[i]), rtol=1e-4, atol=1e-5)
    twice = my.grad(lambda z: my.total(my.grad(lambda k: my.total(mine(k, c, xs)[1]))(z)))(k)
    wanted = jax.grad(lambda z: jnp.sum(jax.grad(lambda k: jnp.sum(theirs(k, c, xs)[1]))(z)))(k)
    np.testing.assert_allclose(twice, wanted, rtol=1e-3)
    f = lambda sin: lambda x: sin(x * sin(x))
    found = my.grad(lambda x: my.total(my.checkpoint(f(my.sin))(x)))(k)
    np.testing.assert_allclose(found, jax.grad(lambda x: jnp.sum(f(jnp.sin)(x)))(k), rtol=1e-4)
    jitted = jax.jit(my.grad(lambda k: my.total(mine(k, c, xs)[1])))(k)
    np.testing.assert_allclose(jitted, jax.grad(lambda k: jnp.sum(theirs(k, c, xs)[1]))(k), rtol=1e-4)


def test_a_trace_within_a_trace_is_kept_apart(my):
    assert my.grad(lambda x: x * my.grad(lambda y: x * y * y)(3.0))(2.0) == 24.0
