"""`Puzzle`: a function of at most five lines to rewrite, what is measured of the answer, and par, by the planner or by
a known answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_map

from jaxviz.arguments import Argnums
from jaxviz.derivation import derive
from jaxviz.features.cost.parts import parts
from jaxviz.features.cost.report import cost
from jaxviz.features.remat.forms import Form
from jaxviz.features.remat.planning import plan_remat
from jaxviz.features.remat.search import Search
from jaxviz.features.residuals.residual_set import residuals
from jaxviz.ir.trace import trace
from jaxviz.teach.checks import difference, shown_inputs
from jaxviz.teach.exercise import Exercise
from jaxviz.teach.puzzles.measures import PEAK, Function, Measure
from jaxviz.teach.rule import Check

SEEDS = (0, 1, 2)
"""The seeds of the random arguments on which an answer is compared."""

_NEAR = 0.01
"""The tolerance for par, as a share of par."""


@dataclass(frozen=True, eq=False)
class Puzzle:
    """A function to rewrite so that it computes the same values with a smaller amount.

    >>> mask = teach.puzzles.show("mask").puzzle
    >>> mask.given_amount, mask.par_amount
    (67108864, 16777216)

    Args:
      name: such as 'mask'.
      title: such as 'Only the sign'.
      task: one sentence, with code in backticks.
      function: the function as given, in at most five lines.
      measure: what is measured.
      types: the types of the arguments for which it is measured.
      tried: creates arguments on which answers are compared, from a random generator.
      hints: hints, each more helpful than the last.
      solution: an answer that reaches par.
      ask: a question whose answer can be predicted.
      par_is: what par is, in the solution; '' if it is what the planner finds with the extra work.
      how: how the best answer known does it, in a sentence.
      lesson: the notebook that teaches what is needed for par, by its file's name.
      better: an answer that beats par; None if none is known.
      record: the best answer known, if it is neither of these two.
      wrong: answers that must not be accepted, besides the function as given.
      argnums: the arguments to differentiate.
      right: computes what an answer should, if that is not the function as given.
      points: further arguments on which answers are compared, with the types of the random ones.
      extra_work: how many more FLOPs the gradient of an answer may take, as a share of those as given; 0 for any.
      checks: further checks of an answer, on the measured arguments.
      function_of: maps an answer to the function that is compared and measured.
      run: maps that function to the one that is run to compare it.
      run_with: maps random arguments of the measured types to those with which an answer is run.
      tol: the largest allowed difference, relative to the largest number of an array.
    """

    name: str
    title: str
    task: str
    function: Function
    measure: Measure
    types: tuple[Any, ...]
    tried: Callable[[np.random.Generator], tuple[Any, ...]]
    hints: tuple[str, ...]
    solution: Any
    ask: Callable[[], Exercise]
    par_is: str = field(default="", kw_only=True)
    how: str = field(kw_only=True)
    lesson: str = field(kw_only=True)
    better: Any = None
    record: Any = None
    wrong: tuple[Any, ...] = ()
    argnums: Argnums = 0
    right: Function | None = None
    points: tuple[tuple[Any, ...], ...] = ()
    extra_work: float = 0.0
    checks: tuple[Check, ...] = ()
    function_of: Callable[[Any], Function] = lambda answer: answer
    run: Callable[[Function], Function] = lambda function: function
    run_with: Callable[..., tuple[Any, ...]] = lambda *args: args
    tol: float = 1e-4

    @cached_property
    def given_amount(self) -> int:
        """The measure of the function as given."""
        return self.measured(self.function_of(self.function))

    @cached_property
    def par_amount(self) -> int:
        if self.par_is:
            return self.measured(self.function_of(self.solution))
        return least_peak(self) if self.measure is PEAK else fewest_kept(self)

    @property
    def source_of_par(self) -> str:
        """Where par comes from, as text."""
        if self.par_is:
            return self.par_is
        share = f"{100 * self.extra_work:g} %"
        if self.measure is PEAK:
            return f"the lowest peak that the planner finds for {share} more FLOPs"
        return f"what the planner saves, with checkpoints that recompute at most {share} of the FLOPs"

    @property
    def best(self) -> Any:
        """The best answer known."""
        return next(answer for answer in (self.record, self.better, self.solution) if answer is not None)

    @cached_property
    def record_amount(self) -> int:
        """The measure of the best answer known."""
        return self.measured(self.function_of(self.best))

    def measured(self, function: Function) -> int:
        return self.measure.of(function, self.types, self.argnums)

    def costs_more(self, function: Function) -> str:
        """A sentence on the FLOPs of a function's gradient if they are too many; '' if they are not."""
        given = self.right or self.function
        before, after = (cost(f, *self.types, argnums=self.argnums).total.flops for f in (given, function))
        return "" if after <= (1 + self.extra_work) * before else f"It takes {100 * (after / before - 1):.1f} % more."

    def uncounted(self, function: Function) -> str:
        """A sentence on an operation of a function whose work is not known: a `while` loop, whose iterations depend on
        values, or one whose cost is estimated, as that of a callback or a kernel; '' if there is none."""
        run = self.run(function)
        derived = derive(run, *self._measured_input, argnums=self.argnums)
        programs = (trace(run)(*self._measured_input), derived.forward, derived.backward)
        equations = [e for program in programs for e in program.equations]
        estimated = {p.equation.primitive.name for e in equations for p in parts(e) if p.is_estimated}
        loops = {e.primitive.name for program in programs for _, e in program.walk()} & {"while"}
        return f"It has `{min(estimated | loops)}`." if estimated | loops else ""

    def most_of(self, function: Function) -> str:
        """A sentence on the largest contribution to the measure."""
        return self.measure.most(self.measure.report(function, *self.types, argnums=self.argnums))

    @cached_property
    def _inputs(self) -> list[tuple[Any, ...]]:
        random = [self.tried(np.random.default_rng(seed)) for seed in SEEDS]
        return [tree_map(jnp.asarray, args) for args in (*random, *self.points)]

    @cached_property
    def _expected(self) -> list[Any]:
        run = _value_and_gradient(self.run(self.right or self.function), self.argnums)
        return [run(*args) for args in self._inputs]

    @cached_property
    def _measured_input(self) -> tuple[Any, ...]:
        """Arguments of the measured types, of numbers like those of the random ones."""
        rng = np.random.default_rng(len(SEEDS))

        def of_type(small: Any, measured: Any) -> jax.Array:
            shares = np.shape(small)[: np.ndim(small) - len(measured.shape)]  # of several devices
            return jnp.asarray(rng.choice(np.ravel(small), (*shares, *measured.shape)), measured.dtype)

        return self.run_with(*tree_map(of_type, self.tried(rng), self.types))

    @cached_property
    def _measured_result(self) -> Any:
        """By the known answer, since the function as given may take too much."""
        run = _value_and_gradient(self.run(self.function_of(self.solution)), self.argnums)
        return run(*self._measured_input)

    def difference_as_measured(self, function: Function) -> str:
        """A sentence on where a function is wrong for arguments of the measured types; '' if it is right."""
        return self._difference(function, [self._measured_input], [self._measured_result])

    def difference(self, function: Function, on_points: bool = False) -> str:
        """A sentence on where a function's values or gradients are wrong; '' if they are correct.

        Args:
          function: that was made from an answer.
          on_points: whether to compare on the further arguments; else on the random ones.
        """
        chosen = slice(len(SEEDS), None) if on_points else slice(len(SEEDS))
        return self._difference(function, self._inputs[chosen], self._expected[chosen])

    def _difference(self, function: Function, inputs: list[Any], expected: list[Any]) -> str:
        run = _value_and_gradient(self.run(function), self.argnums)
        names = list(inspect.signature(self.right or self.function).parameters)
        of_gradient = [f"gradient in `{names[i]}`" for i in _places(self.argnums)]
        for args, (value, _, gradient) in zip(inputs, expected, strict=True):
            our_value, differentiated, our_gradient = run(*args)
            pairs = [("value", our_value, value), ("value of the rule's forward function", differentiated, value)]
            pairs += zip(of_gradient, our_gradient, gradient, strict=True)
            for what, ours, theirs in pairs:
                mistake = difference(ours, theirs, self.tol, "the right answer")
                if mistake:
                    return f"In the {what} at {shown_inputs(args)}, {mistake}"
        return ""


def _places(argnums: Argnums) -> tuple[int, ...]:
    return (argnums,) if isinstance(argnums, int) else tuple(argnums or ())


def _value_and_gradient(function: Function, argnums: Argnums) -> Function:
    """Compiled: the results; the results where it is differentiated, which a custom rule computes itself; and the
    cotangents of the arguments for cotangents of the results that differ from element to element."""

    def computed(*args: Any) -> Any:
        places = _places(argnums)

        def of_some(*some: Any) -> Any:
            values = dict(zip(places, some, strict=True))
            return function(*(values.get(i, x) for i, x in enumerate(args)))

        out, pull_back = jax.vjp(of_some, *(args[i] for i in places))
        cotangents = tree_map(lambda y: jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(y.dtype), out)
        return function(*args), out, pull_back(cotangents)

    compiled: Function = jax.jit(computed)
    return compiled


def typed(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def least_peak(puzzle: Puzzle) -> int:
    """The lowest peak that the planner finds for the extra work."""
    plan = plan_remat(puzzle.function, *puzzle.types, argnums=puzzle.argnums, work=puzzle.extra_work)
    return plan.peak_nbytes


def fewest_kept(puzzle: Puzzle) -> int:
    """The fewest bytes that the planner saves with a checkpoint for the extra work."""
    search = Search(derive(puzzle.function, *puzzle.types, argnums=puzzle.argnums), False)
    part = search.whole
    choice = search.counted.lightest(puzzle.extra_work * search.plain_flops)
    planned = search.trial(Form((search.root,), ((part, part.choice(part.names_of(choice))),)))
    return residuals(planned.derivation).nbytes_without_arguments


SCORES = {"par": 1, "birdie": 1, "eagle": 2, "albatross": 10, "condor": 100}
"""The golf terms, and how many times smaller than par an amount is at least."""


def score_name(amount: int, par: int) -> str:
    """The golf term: 'over par', 'par', 'birdie' for less than par, and the others of `SCORES`."""
    if amount > par * (1 + _NEAR):
        return "over par"
    if amount >= par * (1 - _NEAR):
        return "par"
    return [name for name, times in SCORES.items() if amount * times <= par * (1 + _NEAR)][-1]


LESSONS = {
    "01_reading_jaxprs": "1 · reading jaxprs",
    "03_jvp_and_linearize": "3 · JVP and linearize",
    "04_partial_evaluation_and_residuals": "4 · partial evaluation and residuals",
    "05_transposition": "5 · transposition",
    "06_checkpoints": "6 · checkpoints",
    "07_policies_and_plans": "7 · policies and plans",
    "08_control_flow_gradients": "8 · gradients of control flow",
    "09_custom_rules": "9 · custom rules",
    "10_named_axes": "10 · named axes",
    "13_finding_a_nan": "13 · finding a NaN",
}
"""The notebooks that teach what a puzzle needs, and their titles in links."""


def lesson_link(lesson: str) -> tuple[str, str]:
    """The title of a notebook, and its file."""
    return LESSONS[lesson], f"{lesson}.ipynb"
