"""`Derivation`: the linked programs of one function, each derived on first access."""

from __future__ import annotations

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from jaxviz import higher_order
from jaxviz.arguments import Argnums, flat_arguments, in_bounds, is_mixed, placed_at, positions
from jaxviz.displays import display
from jaxviz.higher_order import is_loop, is_scan
from jaxviz.higher_order.typecheck import check_if_asked
from jaxviz.higher_order.unbounded import advice_on
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import EquationError, ReverseModeError
from jaxviz.ir.expressions import shows_source
from jaxviz.ir.leaks import without_leaks
from jaxviz.ir.origin import ancestors
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.sharing import clear_shared
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.ir.trace import are_concrete, trace_call, with_fixed
from jaxviz.progress import counting
from jaxviz.report.tables import counted, together
from jaxviz.runtime.as_jax import in_active, may_differ, wrong_values
from jaxviz.runtime.cache import clear_compiled
from jaxviz.runtime.evaluate import evaluate
from jaxviz.runtime.references import restored
from jaxviz.transforms.driver import select
from jaxviz.transforms.in_place import with_references
from jaxviz.transforms.jvp import Jvp, jvp_program
from jaxviz.transforms.linearize import CondResiduals, Linearized, linearize_program, mode_of, with_each_once
from jaxviz.transforms.transpose import Transposed, TransposeOptions, transpose_program
from jaxviz.transforms.unopened import Unopened, find_unopened, unopened_text

STAGES = ("primal", "jvp", "forward", "linear", "backward")
"""Names of a Derivation's programs, in the order of the work."""


@dataclass(frozen=True, slots=True, repr=False)
class Check:
    """How a derivation compares with JAX's own derivation of the same function.

    >>> check = jaxviz.derive(loss, params, x).check()
    >>> check.agrees, check.differences
    (True, ())

    Args:
      agrees: whether both have the same residuals, as a multiset of types, and, if compared, the same values.
      summary: one line, such as 'residuals as in JAX 0.10.2: 433 of 433', with what is not opened: equal residuals do
        not mean that jaxviz shows what is inside.
      differences: one line for each type of which the two save a different number, and for each value that differs.
    """

    agrees: bool
    summary: str
    differences: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.agrees

    def __str__(self) -> str:
        return "\n  ".join([self.summary, *self.differences])

    __repr__ = __str__


@dataclass(frozen=True, eq=False, slots=True)
class DerivedCall:
    """A call of a function, and with respect to which arguments it is differentiated; see `flat_arguments`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    chosen: Sequence[int | str]


@dataclass(frozen=True, eq=False)
class Derivation:
    """The linked programs of one function.

    >>> derivation = jaxviz.derive(loss, params, x)
    >>> print(derivation.forward, derivation.backward)  # both are Programs
    >>> derivation.residuals.nbytes

    Args:
      primal: the function's program, from its flat inputs to its flat results.
      nonzeros: for each input, whether it is differentiated.
      cond_residuals: what conds save; see `vjp`.
      placed: for each input the sharding of the array that it was derived for; None without a committed array.
      out_tree: the structure of the function's results; None if it was given as a program.
      n_results: how many of its results are differentiated; None for all. The other results are an auxiliary output.
      step: the training step that takes this gradient, a `TrainingStep`; None if no function takes it.
      not_followed: the gradients that the function takes itself and that are differentiated with it, although it may be
        a training step: "the gradient of `loss` in `params` under jax.vmap"; or those that the step takes besides this
        one.
      refused: the arrays without a derivative for which `jax.grad` refuses the differentiated arguments.
      called: the call that it is of; None for a program.
      values: the values of its inputs; None if only their types are known.
    """

    primal: Program
    nonzeros: tuple[bool, ...]
    reference: Callable[[int | None], Counter[str]]
    """Counts, by type, what `jax.vjp` of the same function saves, given how many results are differentiated."""
    cond_residuals: CondResiduals = "jax"
    placed: tuple[Any, ...] = ()
    out_tree: Any = None
    n_results: int | None = None
    find_wrong_values: Callable[[Program], list[str]] | None = None
    """Runs a forward program and `jax.vjp` on the arguments, and says which values differ; None without values."""
    step: Any = None
    not_followed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    called: DerivedCall | None = None
    values: Sequence[Any] | None = None

    @cached_property
    def pushed(self) -> Jvp:
        pushed = jvp_program(self.primal, self.nonzeros)
        check_if_asked(pushed.program)
        return pushed

    @cached_property
    def linearized(self) -> Linearized:
        mode = mode_of(self.cond_residuals)
        parts = with_each_once(linearize_program(self.primal, self.nonzeros, self.n_results, mode=mode))
        check_if_asked(parts.forward)
        check_if_asked(parts.linear, [False] * len(parts.residuals) + [True] * sum(self.nonzeros))
        return parts

    @cached_property
    def transposed(self) -> Transposed:
        linear = [False] * self.n_residuals + [True] * sum(self.nonzeros)
        transpose = partial(transpose_program, self.linear, linear, [True] * len(self.linear.outvars))
        try:
            transposed = transpose()
        except ReverseModeError as error:
            error.advice = advice_on(self.primal, error.equation)
            raise
        except compat.ConcretizationTypeErrors as error:
            transposed = transpose(TransposeOptions(at=self._inputs_of_backward(error)))
        check_if_asked(transposed.backward)
        return transposed

    def backward_in_place(self, in_place: Sequence[bool]) -> Program:
        """Residuals, cotangents of results, references → cotangents of the other inputs.

        Args:
          in_place: for which of the differentiated inputs there is a reference, to which the program adds the
            cotangent.
        """
        linear = [False] * self.n_residuals + [True] * sum(self.nonzeros)
        program = with_references(self.linear, [False] * self.n_residuals + list(in_place))
        return transpose_program(program, linear, [True] * len(program.outvars)).backward

    def _inputs_of_backward(self, error: Exception) -> list[Any]:
        """The residuals at the arguments, and the cotangent of the result, 1, as `jax.grad` has them: for backward
        rules whose Python looks at values."""
        cts = self.linear.outvars
        if self.values is None or len(cts) != 1 or getattr(cts[0].aval, "shape", None) != ():
            error.add_note(
                "A backward rule looks at values, which are known where JAX runs the rule, and here if the function is "
                "given with arrays as arguments and returns one number, whose cotangent is 1."
            )
            raise error
        with restored(self.values):
            outs = evaluate(self.forward, self.values)
        return [*outs[len(outs) - self.n_residuals :], jax.numpy.ones((), cts[0].aval.dtype)]

    @cached_property
    def no_reverse_mode(self) -> ReverseModeError | None:
        """The error of a function that has no gradient in reverse mode because a loop has an unknown trip count."""
        if all(is_scan(e) or not is_loop(e) for _, e in self.primal.walk()):
            return None
        try:
            _ = self.transposed
        except ReverseModeError as error:
            return error
        except Exception:
            return None  # raised again when the program itself is accessed
        return None

    @property
    def reached(self) -> tuple[bool, ...]:
        """For each input, whether the backward program has a cotangent for it; otherwise its gradient is zero."""
        if not self.linear.outvars:
            return (False,) * len(self.nonzeros)
        of_differentiated = iter(self.transposed.nonzeros_out)
        return tuple(nz and next(of_differentiated) for nz in self.nonzeros)

    @property
    @api_boundary
    def jvp(self) -> Program:
        """Inputs, tangents → results, tangents of results."""
        return self.pushed.program

    @property
    @api_boundary
    def forward(self) -> Program:
        """Inputs → results, residuals."""
        return self.linearized.forward

    @cached_property
    def forward_names(self) -> Mapping[Var, str]:
        """The names of the forward program's variables in its listing, by which the other stages name the residuals."""
        return variable_names(self.linearized.forward)

    def names(self, stage: str) -> Mapping[Var, str]:
        """The names of a stage's variables in its listing; residuals have those of the forward program."""
        if stage == "forward":
            return self.forward_names
        program: Program = getattr(self, stage)
        if stage not in ("linear", "backward"):
            return variable_names(program)
        forward, pairs = self.forward_names, zip(self.linearized.residuals, program.invars, strict=False)
        return variable_names(program, {v: forward[a] for a, v in pairs if isinstance(a, Var) and a in forward})

    @property
    def differentiated_inputs(self) -> tuple[str, ...]:
        """The names of the differentiated inputs."""
        names = (name or f"input {i}" for i, name in enumerate(self.primal.arg_names))
        return tuple(name for name, nonzero in zip(names, self.nonzeros, strict=True) if nonzero)

    def input_labels(self, stage: str) -> tuple[str, ...]:
        """A description of each input of a stage: the path of an argument, or whose tangent or cotangent it is; '' for
        residuals."""
        if stage in ("primal", "forward"):
            return self.primal.arg_names
        tangents = tuple(f"tangent of {name}" for name in self.differentiated_inputs)
        if stage == "jvp":
            return (*self.primal.arg_names, *tangents)
        if stage == "backward":
            nonzeros = enumerate(self.linearized.nonzeros_out)
            tangents = tuple(f"cotangent of result {i}" for i, nonzero in nonzeros if nonzero)
        return (*[""] * self.n_residuals, *tangents)

    @property
    @api_boundary
    def linear(self) -> Program:
        """Residuals, tangents → tangents of results."""
        return self.linearized.linear

    @property
    @api_boundary
    def backward(self) -> Program:
        """Residuals, cotangents of results → cotangents of inputs."""
        return self.transposed.backward

    @cached_property
    def differentiated(self) -> tuple[str, ...]:
        """The names of the differentiated arguments: `params`, or `params['w']` if only that part is differentiated."""
        primal = self.primal
        names = variable_names(primal) if not all(primal.arg_names) else {}
        paths = [_KEY.findall(path or names[v]) for v, path in zip(primal.invars, primal.arg_names, strict=True)]
        inputs = list(zip(paths, self.nonzeros, map(_has_tangent, primal.in_avals), strict=True))
        heads = lambda path: ["".join(path[:k]) for k in range(1, len(path) + 1)]
        others = {head for path, active, has_tangent in inputs if has_tangent and not active for head in heads(path)}
        heads_of = (next((h for h in heads(p) if h not in others), "".join(p)) for p, active, _ in inputs if active)
        return tuple(dict.fromkeys(heads_of))

    @property
    def gradient(self) -> str:
        """ "gradient of `loss` in `params`", or "function `loss`" if nothing is differentiated, or nothing can be."""
        if self.no_reverse_mode is not None:
            return f"function `{self.primal.name}` (no reverse-mode gradient)"
        return gradient_text(self.primal.name, self.differentiated)

    @property
    def about(self) -> str:
        """What a report is about: the gradient, and the step that takes it: "training step `train_step`, which takes
        the gradient of `loss` in `params`"; or that the function takes one itself, so that this is another's."""
        if self.step is not None:
            return f"training step `{self.step.name}`, which takes the {self.gradient}"
        again = any(self.nonzeros) and self.not_followed and self.no_reverse_mode is None
        return f"{self.gradient}{', a second derivative' * bool(again)}"

    @property
    def title(self) -> str:
        """The same if only the gradient is shown: "gradient of `loss` in `params`, which `train_step` takes"."""
        return self.gradient if self.step is None else f"{self.gradient}, which `{self.step.name}` takes"

    def taken_by(self, step: Any) -> Derivation:
        """This derivation, with its programs so far, as the gradient that a training step takes; None for none."""
        if step is None and self.step is None:
            return self
        copied = copy.copy(self)
        object.__setattr__(copied, "step", step)
        object.__setattr__(copied, "not_followed", () if step is None else step.not_followed)
        return copied

    def again(self, other: Callable[[Any], Any]) -> Derivation:
        """Derives the same call again.

        Args:
          other: gives the function to call for the one that was called.

        Raises:
          the errors of `derive`.
        """
        if self.step is not None:
            return self.step.again(other).gradient  # type: ignore[no-any-return]
        assert self.called is not None
        called = self.called
        return derive_call(other(called.function), called.args, called.kwargs, called.chosen, self.cond_residuals)

    @property
    def derivable(self) -> Iterator[Program]:
        """The function's own program, and its forward and backward programs if they can be derived."""
        yield self.primal
        for stage in ("forward", "backward"):
            with contextlib.suppress(Exception):  # raised again when the program itself is accessed
                yield getattr(self, stage)

    @cached_property
    def unopened(self) -> tuple[Unopened, ...]:
        """What these programs contain that jaxviz does not look into, such as a kernel; every report lists it."""
        return find_unopened(self.derivable)

    @property
    def n_residuals(self) -> int:
        return len(self.linearized.residuals)

    @property
    def residuals(self) -> Any:
        """The values that the forward program saves for the backward program, each with its reason: a `ResidualSet`."""
        named_by_source = shows_source()
        if named_by_source not in self._residuals:
            self._residuals[named_by_source] = display("residuals of a derivation")(self)
        return self._residuals[named_by_source]

    @cached_property
    def _residuals(self) -> dict[bool, Any]:
        """With names from the user's source, and without."""
        return {}

    @cached_property
    def links(self) -> Mapping[Equation, tuple[Equation, ...]]:
        """For each equation, the equations of the other programs that were derived from it.

        A program that cannot be derived, such as the backward program of a while loop, is left out.
        """
        derived: dict[Equation, list[Equation]] = {}
        shown: set[Equation] = set()
        for stage in STAGES:
            try:
                program: Program = getattr(self, stage)
            except EquationError:
                continue
            equations = [equation for _, equation in program.walk()]
            for equation in equations:
                # Between two stages, equations may pass through programs that are not stages, such as a body's JVP.
                source = next((e for e in ancestors(equation) if e in shown), None)
                if source is not None:
                    derived.setdefault(source, []).append(equation)
            shown.update(equations)
        return MappingProxyType({e: tuple(dict.fromkeys(became)) for e, became in derived.items()})

    @api_boundary
    @counting("asking JAX")
    @deep_stack
    def check(self, values: bool = True) -> Check:
        """Compares the residuals with those of `jax.vjp` on the same function, and the values if they may differ.

        JAX traces and differentiates the function again for this. It is only run if the program is one recorded path,
        or to compare values.

        Args:
          values: whether to run a function that has custom rules of its own or uses mutable references, on its
            arguments, and to compare its results, and the references afterwards, with those of the forward program.
            Other programs compute the same by construction.
        """
        ours = Counter(type_name(a.aval) for a in self.linearized.residuals)
        try:
            theirs = self.reference(self.n_results)
        except Exception as error:
            error.add_note(f"Raised by jax.vjp of {self.primal.name}, which is compared with.")
            raise
        same = sum((ours & theirs).values())
        total = sum(theirs.values())
        compares = values and self.find_wrong_values is not None and any(map(may_differ, self.primal.equations))
        wrong = self.find_wrong_values(self.forward) if compares and self.find_wrong_values is not None else []
        agrees = ours == theirs and not wrong
        what = "residuals as in" if ours == theirs else "residuals differ from"
        aside = f"; {unopened_text(self.unopened, listed=2)}" if self.unopened else ""
        types = sorted(set(ours) | set(theirs))
        differing = [t for t in types if ours[t] != theirs[t]]
        differences = tuple(f"{t}: JAX holds {theirs[t]}, jaxviz derives {ours[t]}" for t in differing)
        but = "; its values differ" if wrong else ""
        return Check(agrees, f"{what} {compat.JAX}: {same} of {total}{but}{aside}", (*differences, *wrong))

    def draw(self, stage: str = "primal", depth: int | None = None, source: bool = True) -> Any:
        """Draws one program, or several side by side, such as 'forward+backward'; see `jaxviz.draw`."""
        return display("picture of a derivation")(self, stage=stage, depth=depth, source=source)

    def to_dot(self, stage: str = "primal", depth: int | None = None, source: bool = True) -> Any:
        """The same picture as a `graphviz.Source`; see `jaxviz.to_dot`."""
        return self.draw(stage, depth, source).to_dot()

    def __repr__(self) -> str:
        return f"Derivation({self.gradient}, {counted(len(self.primal.equations), 'equation')})"


_KEY = re.compile(r"^[^.\[]+|\.[^.\[]+|\[[^\]]*\]|.", re.DOTALL)
"""The parts of an argument's path, such as `params`, `['w']` and `.bias`."""


def gradient_text(function: str, names: Sequence[str]) -> str:
    """ "gradient of `loss` in `params`", or "function `loss`" without names of differentiated arguments."""
    if not names:
        return f"function `{function}`"
    few = together(f"`{name}`" for name in names) if len(names) <= 3 else f"{len(names):,} arguments"
    return f"gradient of `{function}` in {few}"


def type_name(aval: Any) -> str:
    """A type as text, with weak ones marked: `~float32[3]`."""
    return ("~" if getattr(aval, "weak_type", False) else "") + str(aval.str_short())


@api_boundary
@counting("tracing")
@deep_stack
def derive(
    f: Any, *args: Any, argnums: Argnums = 0, cond_residuals: CondResiduals = "jax", **kwargs: Any
) -> Derivation:
    """Derives the JVP, forward, linear and backward programs of a function, linked equation by equation.

    >>> d = jaxviz.derive(lambda x: jnp.sin(x) * 2.0, 1.0)
    >>> print(d.backward)
    { lambda ; a:f32[] b:f32[] c:f32[]. let d:f32[] = mul c b; e:f32[] = mul d a in (e,) }

    Args:
      f: a function; or a Program or ClosedJaxpr, without further arguments.
      *args, **kwargs: its arguments: arrays, or pytrees of arrays or ShapeDtypeStructs. An argument that is not
        differentiated may be anything; one that is may contain what is no array, as a model of Equinox does.
      argnums: the positional argument or arguments to differentiate with respect to (for a Program: its flat inputs);
        None for all arrays, as in `jax.ad_checkpoint.print_saved_residuals`, but no integers or static arguments.
      cond_residuals: what conds save; see `vjp`.

    Raises:
      TypeError, ValueError: a differentiated argument is missing or is not an array.
      EquationError: when you read a program that cannot be derived, because an equation has no rule or no reverse mode;
        the message names the equation and your line.
    """
    mode_of(cond_residuals)  # raises an error for another one
    if isinstance(f, Derivation):
        return f
    if isinstance(f, (Program, ClosedJaxpr)):
        if args or kwargs:
            raise TypeError(
                f"derive takes no arguments with a {type(f).__name__}, which has its own types; got {len(args)}"
            )
        program = f if isinstance(f, Program) else read_jaxpr(f)
        n = len(program.invars)
        chosen = tuple(range(n)) if argnums is None else in_bounds(argnums, n)
        nonzeros = tuple(i in chosen and _has_tangent(v.aval) for i, v in enumerate(program.invars))
        reference = lambda n_results: _jax_residuals_of_program(program, nonzeros, n_results)
        return Derivation(program, nonzeros, reference, cond_residuals, (None,) * len(nonzeros))
    compat.check_callable(f)
    derivation = derive_call(f, args, kwargs, positions(f, args, argnums), cond_residuals)
    refuses = argnums is not None and not any(map(is_mixed, args))  # as `jax.grad`, not as Equinox's `filter_grad`
    return derivation if refuses or not derivation.refused else replace(derivation, refused=())


@deep_stack
def derive_call(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Sequence[int | str],
    cond_residuals: CondResiduals = "jax",
) -> Derivation:  # fmt: skip
    """The derivation of a call with respect to some of its arguments; see `flat_arguments`."""
    _, _, differentiated, is_input = flat_arguments(args, kwargs, chosen)
    call, inputs, info = with_fixed(f, args, kwargs, is_input)
    active = select(is_input, differentiated)
    placed = tuple(map(placed_at, inputs))

    def derivation(on_values: bool = False) -> Derivation:
        traced = trace_call(call, inputs, active=active, debug_info=info, on_values=on_values)
        program = traced.program
        nonzeros = tuple(a and _has_tangent(v.aval) for a, v in zip(active, program.invars, strict=True))
        reference = lambda n_results: _jax_residuals_of_call(
            call, inputs, active, program.is_path, program.consts, n_results
        )
        wrong = partial(wrong_values, call, inputs, active, program) if are_concrete(inputs) else None
        named = zip(active, program.invars, program.arg_names, strict=True)
        refused = tuple(name or "an argument" for a, v, name in named if a and not _has_tangent(v.aval))
        return Derivation(
            program,
            nonzeros,
            reference,
            cond_residuals,
            placed,
            traced.out_tree,
            find_wrong_values=wrong,
            refused=refused,
            called=DerivedCall(f, args, kwargs, chosen),
            values=inputs if are_concrete(inputs) else None,
        )

    result = derivation()
    has_rules = any(higher_order.of(e).has_custom_rule for e in result.primal.equations)
    if result.primal.is_path or not are_concrete(inputs) or not has_rules:
        return result
    try:
        _ = result.linearized
    except compat.ConcretizationTypeErrors:
        return derivation(on_values=True)
    except Exception:
        return result  # raises it again when it is accessed
    return result


def _has_tangent(aval: Any) -> bool:
    return not compat.is_float0(aval.to_tangent_aval())


def _jax_residuals_of_call(
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    active: Sequence[bool],
    on_values: bool,
    consts: Sequence[Any] = (),
    n_results: int | None = None,
) -> Counter[str]:
    """The types of what `jax.vjp` saves, if only the first results are differentiated or, with None, all. A function
    that branches on values is run, with references as they were afterwards; any other is only traced."""
    types: list[Any] = []

    def hold(*values: Any) -> None:
        fun, *primals = in_active(call, values, active)
        if n_results is not None:
            parts = lambda results: (results[:n_results], results[n_results:])
            _, pull_back, _ = compat.jax_vjp(lambda *xs: parts(jax.tree.leaves(fun(*xs))), *primals, has_aux=True)
        else:
            _, pull_back = compat.jax_vjp(fun, *primals)
        every = jax.tree.leaves(pull_back)
        n_opaque = len(every) - len(jax.tree.leaves(getattr(pull_back, "structured_residuals", ())))
        seen = set(map(id, every[:n_opaque]))
        types.extend(map(jax.typeof, every[:n_opaque]))
        for x in every[n_opaque:]:  # one value may be several leaves of a rule's tree
            if id(x) not in seen:
                seen.add(id(x))
                types.append(jax.typeof(x))

    if on_values:
        with restored([*inputs, *consts]):
            hold(*inputs)
    else:
        with without_leaks(call):
            compat.jax_make_jaxpr(hold)(*inputs)
    return Counter(type_name(aval) for aval in types)


def _jax_residuals_of_program(program: Program, nonzeros: Sequence[bool], n_results: int | None) -> Counter[str]:
    fun = as_function(_literals_as_constants(program))
    return _jax_residuals_of_call(
        fun, tuple(map(compat.stand_in, program.in_avals)), nonzeros, False, n_results=n_results
    )


def _literals_as_constants(program: Program) -> Program:
    """The program with the literals that JAX would save as arrays as constants, so that they count as saved."""
    constants: dict[Atom, Var] = {}

    def atom(a: Atom) -> Atom:
        return constants.setdefault(a, Var(a.aval)) if isinstance(a, Literal) and a.held else a

    equations = tuple(replace(e, invars=tuple(atom(a) for a in e.invars)) for e in program.equations)
    if not constants:
        return program
    arrays = {a: jax.numpy.asarray(a.val, a.aval.dtype) for a in constants if isinstance(a, Literal)}
    values = tuple(compat.as_type(x, a.aval) for a, x in arrays.items())
    variables = (*program.constvars, *constants.values())
    return replace(program, equations=equations, constvars=variables, consts=(*program.consts, *values))


def clear_caches() -> None:
    """Clears all cached rules and operations, and all that `jit` has compiled; they are computed again when needed.

    >>> jaxviz.clear_caches()  # before a measurement of cold times, or to free memory
    """
    clear_compiled()
    clear_shared()
