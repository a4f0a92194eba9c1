"""Calls of random functions, compared with those that Python makes: nested loops, conditions, errors, generators and
functions in lists."""

import functools
import random
import sys
from collections import defaultdict
from contextlib import nullcontext

import jax.numpy as jnp
import pytest
from jax import lax

import jaxviz
from jaxviz.analysis.bytecode import are_in_the_same_loops, flow, is_in_loop
from jaxviz.analysis.calls import calls_in_order
from jaxviz.ir import compat
from jaxviz.ir.origin import owners

FILE = "/random_calls/functions.py"
AROUND = """
def {f}_swapped(x, i): return {f}(i, x)
def each_{f}(i, x):
    for j in range(2):
        x = {f}(i + j, x)
        yield x
def all_of_{f}(i, x):
    for x in each_{f}(i, x): x = lax.log(x)
    return x
"""
CALLS = (
    "functools.reduce(lambda x, j: {f}(j, x), range({n}), {x})", "functools.reduce({f}_swapped, range(3), {x})",
    "[{f}, unchanged][i % 2](i, {x})", "all_of_{f}(i, {x})", "{f}(i + 1, {x})", "{f}(i, {x})",
)  # fmt: skip


class Source:
    """Functions that call those before them, with conditions on a number that they are given."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def condition(self):
        period = self.random.choice([2, 2, 3])
        return f"(i + {self.random.randrange(3)}) % {period} == {self.random.randrange(period)}"

    def value(self, k, x="x"):
        if k == 0 or self.random.random() < 0.3:
            return f"lax.{self.random.choice(['sin', 'cos', 'exp', 'neg'])}({x})"
        if self.random.random() < 0.15:
            x = self.value(k, x)
        return self.random.choice(CALLS).format(f=f"f{self.random.randrange(k)}", n=self.random.randrange(1, 4), x=x)

    def block(self, k, depth=0, in_loop=False):
        lines = []
        for _ in range(self.random.randrange(1, 4)):
            kind = self.random.randrange(10)
            inside = lambda: [f"    {line}" for line in self.block(k, depth + 1, in_loop or kind == 0)]
            if depth < 3 and kind == 0:
                lines += [f"for i{depth} in range({self.random.randrange(1, 4)}):", f"    i = i + i{depth}", *inside()]
            elif depth < 3 and kind == 1:
                lines += [f"if {self.condition()}:", *inside()]
            elif depth < 3 and kind == 2:
                lines += [f"if {self.condition()}:", *inside(), "else:", *inside()]
            elif depth < 3 and kind == 3:
                raises = f"    if {self.condition()}: raise ValueError"
                lines += ["try:", *inside(), raises, *inside(), "except ValueError:", *inside()]
            elif depth and kind == 4:
                lines.append(f"if {self.condition()}: return x")
            elif in_loop and kind == 5:
                lines.append(f"if {self.condition()}: {self.random.choice(['continue', 'break'])}")
            elif kind == 6 and self.random.random() < 0.3:
                lines.append(f"if {self.condition()}: raise ValueError")
            elif kind == 7:
                lines.append(f"with nullcontext(): x = {self.value(k)}")
            else:
                lines.append(f"x = {self.value(k)}")
        return lines

    def functions(self):
        source = "def unchanged(i, x): return x\n"
        n = self.random.randrange(2, 5)
        for k in range(n):
            source += "\n    ".join([f"def f{k}(i, x):", *self.block(k), "return x\n"]) + AROUND.format(f=f"f{k}")
        calls = [f"for i in range({self.random.randrange(2, 6)}): x = f{n - 1}(i, x)"]
        body = [f"    {line}" for line in [*self.block(n), *calls]]
        return source + "\n    ".join(
            ["def function(x):", "i = 0", "try:", *body, "except ValueError: pass", "return lax.abs(x)"]
        )


def made_by(f):
    """The program of a function, and for each equation the calls of Python that made it, outermost first, numbered."""
    found, numbers = [], {}

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == FILE:
            numbers.setdefault(frame, len(numbers))
        elif event == "call" and frame.f_code.co_name == "default_process_primitive":
            calls = []
            while (frame := frame.f_back) is not None:
                calls += [numbers[frame]] if frame.f_code.co_filename == FILE else []
            if calls:  # jaxviz also traces what it needs itself
                found.append(calls[::-1])

    sys.setprofile(note)
    try:
        program = jaxviz.trace(f)(jnp.ones(3))
    finally:
        sys.setprofile(None)
    return program, found


def check(seed):
    """Compares the calls; returns how many are certain, and how many there are."""
    functions = {"lax": lax, "functools": functools, "nullcontext": nullcontext}
    exec(compile(Source(seed).functions(), FILE, "exec"), functions)
    program, expected = made_by(functions["function"])
    stacks = []
    for e in program.equations:
        frames = compat.frames_of(e.source)
        stacks.append(frames[: owners([code for code, _ in frames]).index("jaxviz")][::-1])
    numbers_of, calls_of_number = defaultdict(set), defaultdict(set)
    for stack, calls, numbers in zip(stacks, calls_in_order(stacks, [True] * len(stacks)), expected, strict=True):
        own = [(code, call) for (code, _), call in zip(stack, calls, strict=True) if code.co_filename == FILE]
        for (code, call), number in zip(own, numbers, strict=True):
            if not code.co_name.startswith("each_"):  # a generator is called once, and goes on several times
                numbers_of[call].add(number)
                calls_of_number[number].add(call)
    assert all(len(calls) == 1 for calls in calls_of_number.values())
    assert all(len(numbers) == 1 for call, numbers in numbers_of.items() if call.is_certain)
    return sum(call.is_certain for call in numbers_of), len(calls_of_number)


def test_calls_are_those_of_python():
    certain, total = map(sum, zip(*map(check, range(12)), strict=True))
    assert certain > 0.4 * total > 0


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("seed", range(12, 400))
def test_calls_of_many_functions_are_those_of_python(seed):
    check(seed)


def in_loops(x, n):
    start = x
    for i in range(n):
        try:
            x = lax.sin(x)
        except ValueError:
            x = lax.cos(x)
            continue
        if i:
            return lax.tan(x)
    while n:
        n = lax.neg(n)
    return lax.exp(start)


def test_loops_include_handlers_and_loops_that_end_with_a_condition():
    code = in_loops.__code__
    at = {
        name: next(i.offset for i in flow(code).instructions if i.argval == name)
        for name in ("sin", "tan", "cos", "neg", "exp")
    }
    assert [name for name in at if is_in_loop(code, [at[name]])] == ["sin", "cos", "neg"]
    assert is_in_loop(code, [at["sin"], at["cos"]])
    assert not is_in_loop(code, [at["sin"], at["neg"]])


def nested_loops(x, n):
    x = lax.sin(x)
    for _ in range(n):
        x = lax.cos(x)
        x = lax.exp(x)
        for _ in range(n):
            x = lax.tan(x)
    return lax.neg(x)


@pytest.mark.parametrize(
    ("first", "second", "are"),
    [("cos", "exp", True), ("cos", "cos", True), ("sin", "neg", True), ("sin", "cos", False), ("exp", "tan", False)],
)
def test_loops_that_contain_only_one_of_two_instructions(first, second, are):
    code = nested_loops.__code__
    at = [next(i.offset for i in flow(code).instructions if i.argval == name) for name in (first, second)]
    assert are_in_the_same_loops(code, *at) is are_in_the_same_loops(code, *at[::-1]) is are
