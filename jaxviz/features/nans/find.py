"""Finds the first equation, forward or backward, in any iteration, that computes a NaN or an infinity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.naming import Naming
from jaxviz.analysis.on_values import (
    CLOSED_OVER,
    Contents,
    OriginsKept,
    contents,
    is_differentiated_on_values,
    without_references,
)
from jaxviz.analysis.phases import ValuePhases
from jaxviz.analysis.training_step import has_auxiliary, stores_gradient, takes_gradient
from jaxviz.arguments import Argnums, arrays_by_name, flat_arguments, positions
from jaxviz.derivation import Derivation, derive_call
from jaxviz.features.nans.addressing import AddressedWay, SearchAddresses
from jaxviz.features.nans.capture import (
    CompiledRun,
    RecordedRun,
    evaluate_equation,
    is_inexact,
    kinds_of,
    kinds_of_all,
    place_of_body,
    run_program,
    without_nans,
)
from jaxviz.features.nans.causes import operand
from jaxviz.features.nans.events import (
    SearchNames,
    chain_of,
    described,
    events_of,
    first_bad,
    harmless_in,
    of_other_expressions,
    with_values,
)
from jaxviz.features.nans.report import LATEST, NanReport, Passed, Ran
from jaxviz.features.nans.search import Birth, NanSearch, Place, ProgramLevel, operands_and_results
from jaxviz.higher_order import carried, is_call, is_choice, is_loop, of
from jaxviz.higher_order.hi_primitive import HI_PRIMITIVE
from jaxviz.higher_order.while_loop import with_one_predicate
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.emit import as_function
from jaxviz.ir.errors import NoArrayError, NoRuleError
from jaxviz.ir.options import flag
from jaxviz.ir.pretty import describe_equation
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.ir.usage import check_values
from jaxviz.page.texts import first_line
from jaxviz.progress import counting
from jaxviz.report.tables import type_text
from jaxviz.runtime.references import repeated_references, uses_mutable_types, uses_references
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import Builder, partition, select, with_results
from jaxviz.transforms.flags import INFINITE, NAN, Watching, flag_program
from jaxviz.transforms.inline import called, called_program, inlined_where, originals
from jaxviz.transforms.unopened import find_unopened, unopened_note

# --- the function -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is run: a function, or a loss and then its gradient.

    Args:
      names, results: the names of its inputs and of its results.
      title: the subject of a report; see `Derivation.gradient`.
      n_values: how many of the results are the function's own; the others are gradients.
      unsearched: what was not searched, and why.
      stepped: the inputs of the derivation, if they are others.
    """

    traced: Program
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    results: tuple[str, ...]
    function: str
    title: str
    derivation: Derivation
    n_values: int
    is_loss: bool
    has_gradient: bool = False
    unsearched: str = ""
    stepped: tuple[Any, ...] | None = None

    @cached_property
    def program(self) -> Program:
        """The program with its calls inlined."""
        return inlined_where(self._with_calls, _is_plain_call)

    @cached_property
    def _with_calls(self) -> Program:
        return with_one_predicate(self.traced)

    @cached_property
    def run(self) -> CompiledRun:
        """The program compiled as traced, with its calls and without flags, and run once."""
        return run_program(self.traced, self.inputs)

    @cached_property
    def called(self) -> SearchNames:
        """The names of its equations and values."""
        d, program = self.derivation, self.program
        naming = Naming(d.primal, d.forward) if self.has_gradient else Naming(program)
        inner = self.has_gradient or (self.is_loss and not _is_derived(d.primal))
        return SearchNames(naming, dict(zip(program.invars, self.names, strict=True)), self._addresses, inner)

    @cached_property
    def _addresses(self) -> SearchAddresses:
        d = self.derivation
        phases = ValuePhases(d.primal, [self._with_calls, *([d.linear] if self.has_gradient else [])])
        return SearchAddresses(phases, originals(self._with_calls, self.program, _is_plain_call))

    def recorded(self, program: Program, **values: Any) -> RecordedRun:
        """The run of its program, or of a part of that."""
        return RecordedRun(program, self.inputs, **values, jit=self.run.once)


@api_boundary
@counting("looking for NaNs")
def find_nan(
    f: Callable[..., Any], *args: Any, argnums: Argnums = 0, gradient: bool | None = None,
    harmless: bool = False, **kwargs: Any,
) -> NanReport | None:  # fmt: skip
    """Finds the first equation, forward or backward, that computes a NaN or an infinity which reaches a result.

    It compiles and runs the program once. Only if a result is not finite, it compiles the program once more with flags,
    which record where, in which iteration and branch; then it examines the equation on its operands.

    >>> print(jaxviz.find_nan(lambda x: jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0)), jnp.array([1.0, 0.0])))
    gradient of `<lambda>` in `x`: the gradient in x is not finite; the first infinity is born at ...

    Args:
      f: a loss, whose forward pass and gradient are searched; or any other function, such as `jax.grad(loss)` or a
        jitted training step.
      *args, **kwargs: its arguments.
      argnums: the arguments that a loss is differentiated with respect to, by position in its signature, however they
        are passed; None for all arrays.
      gradient: whether `f` is a loss; by default it is one if it returns a real number, or a pair of one and auxiliary
        results, and takes no gradient itself.
      harmless: whether to list also the values that are not finite but reach no result.

    Returns:
      the report; None if everything was searched, every result is finite, and there is nothing harmless to list. If the
      gradient of a loss cannot be searched, the report says why. What is in mutable references afterwards counts as
      results; they themselves are not written.

    Raises:
      TypeError: `gradient=True` is given, and `f` returns something else or is not differentiable in these arguments.
    """
    compat.check_callable(f)
    gradient = None if gradient is None else flag(gradient, "gradient")
    harmless = flag(harmless, "harmless")
    with compat.nan_checks_off():
        subject = _subject(f, args, kwargs, argnums, gradient)
    with compat.nan_checks_off(), jax.disable_jit(False):
        bad = [k for k, (infinite, _) in enumerate(subject.run.kinds) if infinite]
        others = _harmless(subject, bad) if harmless else ()
        if bad:
            report = replace(_find(subject, bad), harmless=others)
        elif others or subject.unsearched:
            report = NanReport(subject.function, (), None, (), None, (), harmless=others)
        else:
            return None
    ran = LATEST.keep(Ran(subject.derivation, subject.stepped or subject.inputs, subject.has_gradient))
    notes = filter(None, [report.note, *unopened_note(find_unopened([subject.program]))])
    return replace(report, title=subject.title, unsearched=subject.unsearched, note=" ".join(notes), ran=ran)


def _find(subject: _Subject, bad: Sequence[int]) -> NanReport:
    names = tuple(subject.results[k] for k in bad)
    report = _find_by_flags(subject, bad)
    if report is None:
        note = f"{_OTHERWISE} Run equation by equation, it gave finite results as well."
        report = _find_by_stepping(subject) or NanReport(subject.function, names, None, (), None, (), note=note)
    return replace(report, results=names)


_OTHERS = 8
"""How many operations are described besides the first that computed an infinity and a NaN."""


def _flagged_run(subject: _Subject, program: Program, watching: Watching = "finite") -> NanSearch:
    flagged = flag_program(program, watching, keeps=watching == "finite")
    n_results = len(program.outvars)
    outs = subject.run.once(lambda *xs: as_function(flagged.program)(*xs)[n_results:])(*subject.inputs)
    raised, rest = partition(outs, len(flagged.watches))
    reached = {}
    for e in flagged.loops:
        carry, rest = partition(rest, len(carried(e)))
        inside = [flags for w, flags in zip(flagged.watches, raised, strict=True) if w.path and w.path[0][0] is e]
        first = [int(step) for flags in inside for step in np.asarray(flags)[INFINITE, :, 0] if step >= 0]
        if first:
            reached[id(e)] = min(first), carry
    recorded = subject.recorded(program, known=dict(zip(flagged.known, rest, strict=True)), reached=reached)
    return NanSearch(recorded, flagged.watches, raised)


def _harmless(subject: _Subject, bad: Sequence[int]) -> tuple[Passed, ...]:
    search = _flagged_run(subject, subject.program, "decisions")
    return harmless_in(search, [k for k in bad if search.is_bad_result(k, INFINITE)])


def _find_by_flags(subject: _Subject, bad: Sequence[int]) -> NanReport | None:
    """Finds it by a run with flags; None if these show nothing."""
    program = _loss_alone(subject.program) if _loss_explains(subject, bad) else subject.program
    search = _flagged_run(subject, program)
    shown = [k for k in bad if k < len(program.outvars) and search.is_bad_result(k, INFINITE)]
    if not shown:
        return None
    infinite, nans = search.origins(shown, (INFINITE, NAN))
    first, nan = infinite[0], next(iter(nans), None)
    with_nans = search.inputs_with_nans(shown)
    blamed = _argument_to_blame(subject, search, with_nans, bad)
    if blamed is not None:
        first = blamed
    elif isinstance(first.value, Literal) and not first.equations and nan is not None and nan.equations:
        first = nan  # an intentional infinity, as in a mask, that becomes a NaN
    births = [b for b in dict.fromkeys((first, nan)) if b is not None and b.equations]
    # A NaN that comes of an infinity does not explain the infinity, which may be born in the same expression.
    own = {b.equations for b in infinite}
    explained = [b for b in births if b is first or b.equations in own]
    others = [] if blamed else of_other_expressions(infinite, explained)
    n_others, others = len(others), others[:_OTHERS]
    way = chain_of(first)
    places = [(level, search.first(level, v, first.kind) or first.steps[: len(level.devices)]) for _, level, v in way]
    requests: dict[Place, list[Atom]] = operands_and_results([*births, *others])
    for place, (_, _, v) in zip(places, way, strict=True):
        requests.setdefault(place, []).append(v)
    addresses = subject.called.addresses
    addressed = AddressedWay.of(search, first, addresses)
    values, kinds = search.values_and_kinds(requests, addressed.places)
    events = events_of(births, values, _may_hide(subject, bad), subject.called)
    born = events.get(first)
    became = events.get(nan) if nan is not None and nan is not first else None
    if born is not None and became is not None and (born.made == "NaN" or born.equation_is(became)):
        became = None
    came_in = [b for b in infinite if not b.equations and not isinstance(b.value, Literal)]
    sources = with_nans if first.equations else (first, *came_in)
    given = tuple(dict.fromkeys(_source_text(subject, b) for b in sources))
    passed = [values[place][v] for place, (_, _, v) in zip(places, way, strict=True)]
    chain = with_values(way, [steps for _, steps in places], passed, addresses)
    of_both = lambda b: [b, *(n for n in births if b.feeds(n))]
    also = tuple(events_of(of_both(b), values, _may_hide(subject, bad), subject.called)[b] for b in others)
    address = addressed.first(kinds, addresses)
    return NanReport(
        subject.function, (), born, given, became, chain, also=also, unlisted=n_others - len(others), address=address
    )


def _argument_to_blame(
    subject: _Subject, search: NanSearch, candidates: Sequence[Birth], bad: Sequence[int]
) -> Birth | None:
    """The argument that contains NaNs, if all results are finite with other numbers in their place.

    Otherwise the first non-finite value counts: a NaN in an argument may mean a missing value, and reach no result.
    """
    if not candidates:
        return None
    inputs = list(subject.inputs)
    for birth in candidates:
        k = search.top.program.invars.index(birth.value)  # type: ignore[arg-type]
        inputs[k] = without_nans(inputs[k])
    kinds = kinds_of_all(subject.run.compiled(*inputs))
    return None if any(kinds[k][INFINITE] for k in bad) else candidates[0]


def _loss_explains(subject: _Subject, bad: Sequence[int]) -> bool:
    """Whether searching the forward pass is enough: the loss is as bad as its gradient."""
    kinds = subject.run.kinds
    return (
        subject.n_values < len(subject.results)
        and bad[0] == 0
        and (kinds[0][NAN] or not any(kinds[k][NAN] for k in bad))
    )


def _may_hide(subject: _Subject, bad: Sequence[int]) -> bool:
    """Whether a non-finite value of the forward pass, as a `where` drops it, may affect only the gradient."""
    if subject.has_gradient:
        return bad[0] >= subject.n_values
    return any(e.origin is not None or compat.is_differentiated(e.source) for _, e in subject.traced.walk())


def _loss_alone(program: Program) -> Program:
    loss = replace(program, outvars=program.outvars[:1], debug_info=None, closed=True)
    return dce_program(loss, keep_inputs=[True] * len(program.invars))[0]


def _subject(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums, gradient: bool | None
) -> _Subject:
    chosen = _differentiated(f, args, kwargs, argnums)
    refused = ""
    try:
        d = _derived(f, args, kwargs, chosen)
    except TypeError as error:  # an argument that cannot be differentiated
        if gradient or not chosen:
            raise
        chosen, refused = (), _reason(error)
        d = _derived(f, args, kwargs, ())
    primal = d.primal
    check_values("find_nan", (args, kwargs))
    leaves, _, _, is_input = flat_arguments(args, kwargs, chosen)
    inputs = select(is_input, leaves)
    names = tuple(name or f"argument {k}" for k, name in enumerate(primal.arg_names))
    results = tuple(f"the result{path}" for path in _result_paths(d.out_tree, len(primal.outvars)))
    alone = _Subject(
        primal, inputs, names, results, primal.name, f"function `{primal.name}`", d, len(primal.outvars), _is_loss(d)
    )  # fmt: skip
    with_refs, alone = alone, _on_values(alone) if uses_references(primal) else alone
    if gradient and not _is_loss(d):
        raise TypeError(
            "find_nan(gradient=True) needs a function that returns one real number, or a pair of one and auxiliary "
            f"results; {primal.name} returns {', '.join(type_text(a) for a in primal.out_avals) or 'nothing'}"
        )
    if not gradient and (gradient is not None or argnums == () or not _is_loss(d) or _is_derived(primal)):
        return alone
    if not any(d.nonzeros) and not refused:
        if not gradient and not any(compat.is_array_like(x) and is_inexact(x) for x in leaves):
            return alone
        refused = "The differentiated arguments have no floating-point numbers; choose others with `argnums`."
    if gradient and refused:
        raise TypeError(f"The gradient of {primal.name} cannot be searched: {refused}")
    if not refused:
        try:
            if not _has_gradient_as_on_values(d):
                return _gradient_on_values(with_refs)
            return _with_gradient(alone)
        except Exception as error:  # ours, and those of anybody's rules
            if gradient:
                raise
            refused = _reason(error)
    return replace(alone, unsearched=f"Its gradient was not searched: {refused}")


def _reason(error: Exception) -> str:
    """An error on one line, with the equation that it was raised for."""
    raised_for = (note for note in getattr(error, "__notes__", ()) if note.startswith("Raised while"))
    return ". ".join((first_line(error).removesuffix("."), *raised_for)).removesuffix(".") + "."


def _differentiated(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums
) -> tuple[int | str, ...]:
    """The arguments that `argnums` chooses: by position, or unlike in `jax.grad` by name if passed by keyword."""
    indices = () if argnums is None else compat.index_or_indices(argnums)
    chosen = (indices,) if isinstance(indices, int) else indices
    parameters = compat.parameters(f, max(chosen, default=-1) + 1, {})[0]
    names = [parameters[i] for i in chosen if i >= len(args) and parameters[i] in kwargs]
    if argnums is None or (argnums == 0 and not args and not names):
        return (*positions(f, args, None), *arrays_by_name(f, kwargs))
    return (*positions(f, args, [i for i in chosen if i < len(args) or parameters[i] not in kwargs]), *names)


def _derived(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], chosen: Sequence[int | str]
) -> Derivation:
    """The derivation of a call, without results that are not arrays; an auxiliary result is not differentiated."""
    try:
        d = derive_call(f, args, kwargs, chosen)
    except NoArrayError:
        d = derive_call(_arrays_of(f), args, kwargs, chosen)
    return replace(d, n_results=1) if has_auxiliary(d) else d


def _is_plain_call(equation: Equation) -> bool:
    """Whether it is a call that is inlined before the search; a checkpoint is searched as one."""
    return is_call(equation) and not of(equation).is_checkpoint


def _on_values(alone: _Subject) -> _Subject:
    """The same function without mutable references."""
    derivation, taken = without_references(alone.derivation, alone.inputs, alone.names)
    program = derivation.primal
    return replace(
        alone, traced=program, inputs=taken.inputs, names=taken.names, results=(*alone.results, *_written(taken)),
        derivation=derivation, n_values=len(program.outvars),
    )  # fmt: skip


def _written(taken: Contents) -> Iterator[str]:
    return (f"what is then in {name}" for name in taken.written)


def _has_own_rule(e: Equation) -> bool:
    """Whether it calls a hi-primitive, which JAX differentiates by a rule of its own."""
    return of(e) is HI_PRIMITIVE and not compat.touches_mutable(e.operation)


def _has_gradient_as_on_values(d: Derivation) -> bool:
    """Whether JAX computes the same gradient of a function as of the same function on values.

    Raises:
      NoRuleError: that is not known.
    """
    if uses_mutable_types(d.primal):
        for e in repeated_references(d.primal):
            raise NoRuleError(
                f"{describe_equation(e)} uses a mutable reference, which JAX may read and write again in the backward "
                "pass, beside a value of a mutable type."
            )
        for e in (e for _, e in d.primal.walk() if _has_own_rule(e)):
            raise NoRuleError(
                f"{describe_equation(e)} has a rule of its own, which find_nan does not follow beside a value of "
                "a mutable type."
            )
    return is_differentiated_on_values(d)


def _arrays_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function without the results that are not arrays, such as the functions in an equinox model."""

    @wraps(f)
    def arrays(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.map(lambda x: x if compat.is_array_like(x) else None, f(*args, **kwargs))

    return arrays


def _is_loss(d: Derivation) -> bool:
    """Whether a function returns a real number, or a pair of one and auxiliary results, as with `has_aux`."""
    avals = d.primal.out_avals
    is_number = bool(avals) and avals[0].shape == () and jnp.issubdtype(avals[0].dtype, jnp.floating)
    return is_number and (len(avals) == 1 or has_auxiliary(d))


def _is_derived(program: Program) -> bool:
    """Whether a program has taken its gradient itself: its first result comes from differentiation, or only its other
    results are computed from a backward pass, as in a training step, or what it writes to a reference."""
    if _is_gradient(program) or stores_gradient(program):
        return True
    return len(program.outvars) > 1 and takes_gradient(program) and not takes_gradient(_loss_alone(program))


def _is_gradient(program: Program) -> bool:
    """Whether the first result of a program comes from differentiation, and is not a loss that uses a gradient."""
    result = program.outvars[0]
    for e in program.equations:
        if result in e.outvars:
            if _is_plain_call(e):
                called = called_program(e.operation)
                return _is_gradient(with_results(called, [called.outvars[e.outvars.index(result)]]))
            return e.origin is not None or compat.is_differentiated(e.source)
    return False


def _with_gradient(alone: _Subject) -> _Subject:
    """Maps inputs also to the gradient of the first result with respect to the inputs that it depends on."""
    d = alone.derivation
    results = (
        "the loss",
        *(name.replace("the result[1]", "the auxiliary result", 1) for name in alone.results[1:]),
        *(f"the gradient in {name}" for name in select(d.reached, alone.names)),
    )
    program = _joined(d, alone.n_values)
    return replace(alone, traced=program, results=results, title=d.gradient, has_gradient=True)


def _joined(d: Derivation, n_values: int) -> Program:
    """Inputs → results, gradient."""
    builder = Builder()
    invars = [Var(a) for a in d.forward.in_avals]
    values, residuals = partition(builder.inline(d.forward, invars), n_values)
    gradient: Sequence[Atom] = ()
    if d.linear.outvars:
        one = Literal(np.ones((), values[0].aval.dtype), compat.cotangent_type(values[0].aval))
        gradient = builder.inline(d.backward, [*residuals, one])
    return builder.program(invars, [*values, *gradient], like=d.primal)


def _gradient_on_values(alone: _Subject) -> _Subject:
    """The same of a function whose gradient uses references otherwise than the function on values would: both passes
    are derived with the references, and these replaced afterwards, so that the backward pass reads what is in them
    then."""
    gradient = _with_gradient(alone)
    program, closed_over = OriginsKept().without_references(gradient.traced)
    taken = contents(closed_over, alone.inputs, alone.names, alone.derivation.nonzeros, is_high=False)
    n, n_own = alone.n_values, len(gradient.results)
    in_order = (*range(n), *range(n_own, len(program.outvars)), *range(n, n_own))
    names = (*gradient.results, *_written(taken))
    return replace(
        gradient, traced=with_results(program, [program.outvars[i] for i in in_order]), inputs=taken.inputs,
        names=taken.names, results=tuple(names[i] for i in in_order), n_values=n + len(taken.written),
        stepped=alone.inputs,
    )  # fmt: skip


def _result_paths(tree: Any, n: int) -> list[str]:
    if tree is None:
        return [f" {k}" for k in range(n)]
    leaves = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(tree, range(n)))
    return [jax.tree_util.keystr(path) for path, _ in leaves]


def _source_text(subject: _Subject, birth: Birth) -> str:
    value = birth.value
    if isinstance(value, Literal):
        return f"the number {np.asarray(value.val)[()]}"
    names = subject.called.arguments
    name = names.get(value, "a constant that is closed over")
    label = f"the argument {name}" if value in names and name != CLOSED_OVER else name
    x = subject.recorded(subject.program).arguments.get(value)
    if x is None:
        return label
    what = "infinity" if birth.kind == INFINITE and not kinds_of(x)[NAN] else "NaN"
    index = first_bad(x, INFINITE if what == "infinity" else NAN)
    return f"{label} ({operand(x)}" + (f", the first {what} at {list(index)})" if index else ")")


# --- when the flags show nothing --------------------------------------------------------------------------------------


_OTHERWISE = (
    "The compiled program gave this, but not once flags were added: XLA then fuses differently, and so rounds "
    "differently."
)


def _find_by_stepping(subject: _Subject) -> NanReport | None:
    """The same, equation by equation: exact, but slow."""
    tries = (_step_through(ProgramLevel(subject.program), subject.inputs, (), kind) for kind in (INFINITE, NAN))
    occurrence = next((t for t in tries if t is not None), None)
    if occurrence is None:
        return None
    birth, ins, outs, results = occurrence
    note = f"{_OTHERWISE} It was found by running equation by equation."
    names = tuple(subject.results[k] for k in results)
    if not birth.equations:
        return NanReport(subject.function, names, None, (_source_text(subject, birth),), None, (), note=note)
    born = described(birth, birth.equations[0], ins, outs, None, _may_hide(subject, results), subject.called)
    computed: dict[Atom, Any] = dict(zip(birth.equations[0].outvars, outs, strict=True))
    way = chain_of(birth)
    chain = with_values(way, [birth.steps] * len(way), [computed.get(v) for _, _, v in way], subject.called.addresses)
    return NanReport(subject.function, names, born, (), None, chain, note=note, address=born.address)


def _step_through(
    level: ProgramLevel, inputs: Sequence[Any], steps: tuple[int, ...], kind: int
) -> tuple[Birth, list[Any], list[Any], list[int]] | None:
    """Runs a program equation by equation, and opens the first one with a non-finite value that reaches a result."""
    program = level.program
    env: dict[Atom, Any] = dict(zip((*program.constvars, *program.invars), (*program.consts, *inputs), strict=True))
    read = lambda atoms: [a.val if isinstance(a, Literal) else env[a] for a in atoms]
    bad = lambda x: kinds_of(x)[kind]
    for e in program.equations:
        env.update(zip(e.outvars, evaluate_equation(e, read(e.invars)), strict=True))
    last = read(program.outvars)
    results = [k for k, x in enumerate(last) if kinds_of(x)[INFINITE]]
    reaching = {a for a, x in zip(program.outvars, last, strict=True) if bad(x)}
    first: Equation | None = None
    for e in reversed(program.equations):
        if reaching.intersection(e.outvars) and any(bad(x) for x in read(e.outvars)):
            reaching.update(a for a in e.invars if isinstance(a, Var) and bad(env[a]))
            first = e if not any(bad(x) for x in read(e.invars)) else first
    if first is None:
        source = next((v for v in (*program.invars, *program.constvars) if v in reaching), None)
        return None if source is None else (Birth(level, steps, (), source, kind, ()), [], [], results)
    ins, outs = read(first.invars), read(first.outvars)
    for place, step, operands in _runs_of(first, ins, bad):
        deeper = _step_through(level.within(first, place), operands, (*steps, *step), kind)
        if deeper is not None:
            return *deeper[:3], results
    value = next(v for v, x in zip(first.outvars, outs, strict=True) if bad(x))
    return Birth(level, steps, (first,), value, kind, ((level, value),)), ins, outs, results


def _runs_of(
    e: Equation, ins: Sequence[Any], bad: Callable[[Any], bool]
) -> Iterator[tuple[int, tuple[int, ...], list[Any]]]:
    """The runs of nested programs with non-finite results: index of the program, step of a loop, inputs."""
    if is_choice(e):
        place = int(np.clip(ins[0], 0, len(e.programs) - 1))
        yield place, (), list(ins[1:])
    elif is_call(e):
        yield place_of_body(e), (), [ins[i] for i in called(e.operation).operands]
    elif is_loop(e):
        place, kind = place_of_body(e), of(e)
        for step, (operands, outs) in enumerate(kind.steps(e.operation, ins)):
            if any(map(bad, outs)):
                yield place, (step,), operands
