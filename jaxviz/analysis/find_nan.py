"""Where a NaN or an infinity is born: the first equation, forward or backward, in whatever iteration, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.analysis.nan_causes import operand
from jaxviz.analysis.nan_events import chain_of, described, events_of, harmless_in, kinds_of, run_once
from jaxviz.analysis.nan_report import NanReport
from jaxviz.analysis.nan_search import Birth, Level, Search, Steps
from jaxviz.analysis.tables import type_text
from jaxviz.derivation import Derivation, derive, flat_arguments, in_bounds
from jaxviz.emit import as_function
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import EquationError, NoArrayError
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.progress import counting
from jaxviz.rules.mapped_loops import with_one_predicate
from jaxviz.runtime.capture import evaluate_equation, steps_of, values_at
from jaxviz.transforms.driver import Builder
from jaxviz.transforms.flags import INFINITE, NAN, flag_program
from jaxviz.transforms.inline import inlined
from jaxviz.transforms.unopened import find_unopened, unopened_note

_CALLS = (compat.jit_p, compat.closed_call_p, compat.custom_jvp_call_p, compat.custom_vjp_call_p)


# --- the function ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is run: a function, or a loss and then its gradient.

    Args:
      traced: as it was traced.
      program: with its calls written out.
      inputs: its inputs.
      names: of its inputs.
      results: names of its results.
      function: its name.
      note: what was left out.
    """

    traced: Program
    program: Program
    inputs: tuple[Any, ...]
    names: tuple[str, ...]
    results: tuple[str, ...]
    function: str
    note: str = ""

    @cached_property
    def values(self) -> dict[Var, Any]:
        """Of its inputs and constants."""
        program = self.program
        return dict(zip((*program.invars, *program.constvars), (*self.inputs, *program.consts), strict=True))


@api_boundary
@counting("looking for NaNs")
def find_nan(
    f: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0, gradient: bool | None = None,
    harmless: bool = False, **kwargs: Any,
) -> NanReport | None:  # fmt: skip
    """The first equation, forward or backward, that makes a NaN or an infinity which reaches a result.

    One program with flags is compiled and run once; it tells where, in which iteration of which loops and in which branch. Then the
    equation found is looked at closely, on the values that it read.

    >>> print(jaxviz.find_nan(lambda x: jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0)), jnp.array([1.0, 0.0])))
    <lambda>: the gradient in x is not finite; the first infinity is born at ...

    Args:
      f: a loss, of which its forward pass and then its gradient are searched; or any other function, such as `jax.grad(loss)` or a
        jitted training step.
      *args, **kwargs: what to call it with.
      argnums: what a loss is differentiated in.
      gradient: whether `f` is a loss; by default it is one if it gives one real number and is no gradient itself.
      harmless: whether to list what is not finite and reaches no result too.

    Returns:
      the report; None where every result is finite, and nothing harmless is to be listed.

    Raises:
      TypeError: an argument is not an array, or `gradient=True` and `f` gives no real number.
    """
    compat.check_callable(f)
    subject = _subject(f, args, kwargs, argnums, gradient)
    with compat.nan_checks_off():
        found = _find(subject, harmless)
        if not found and (bad := _bad_as_compiled(subject)):
            others = found.harmless if found is not None else ()
            note = f"{_OTHERWISE} Run equation by equation it gave finite results too."
            found = _find_by_stepping(subject) or NanReport(subject.function, bad, None, (), None, (), note=note)
            found = replace(found, harmless=others)
    if found is not None:
        found = replace(
            found, note=" ".join([*filter(None, [found.note]), *unopened_note(find_unopened([subject.program]))])
        )
    return found


def _find(subject: _Subject, harmless: bool) -> NanReport | None:
    program = subject.program
    flagged = flag_program(program, deciding=harmless)
    n_results = len(program.outvars)
    raised = run_once(program, lambda *xs: as_function(flagged.program)(*xs)[n_results:])(*subject.inputs)
    search = Search(
        program,
        flagged.watches,
        raised,
        partial(_is_bad_input, subject, {}),
        partial(_kinds_in, subject),
        partial(_branch_in, subject),
    )
    bad = [k for k in range(n_results) if search.is_bad_result(k, INFINITE)]
    others = harmless_in(search, bad) if harmless else ()
    if not bad:
        return NanReport(subject.function, (), None, (), None, (), others, subject.note) if others else None
    births = [search.earliest(bad, kind) for kind in (INFINITE, NAN)]
    first, nan = births
    assert first is not None
    if not first.equations and nan is not None and nan.equations:
        first = nan  # an infinity that was put there on purpose, as a mask is, and becomes a NaN
    events = events_of(
        program, subject.inputs, [b for b in dict.fromkeys((first, nan)) if b is not None and b.equations]
    )
    born = events.get(first)
    became = events.get(nan) if nan is not None and nan is not first else None
    if born is not None and became is not None and (born.made == "NaN" or born.equation_is(became)):
        became = None
    given = () if first.equations else (_given(subject, first),)
    results = tuple(subject.results[k] for k in bad)
    return NanReport(subject.function, results, born, given, became, chain_of(first), others, subject.note)


def _subject(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Any, gradient: bool | None
) -> _Subject:
    argnums = compat.index_or_indices(argnums)
    by_default = argnums == 0 and not args and not gradient  # called with keywords alone, or with nothing
    wanted = () if by_default else in_bounds((argnums,) if isinstance(argnums, int) else argnums, len(args))
    try:
        d = derive(f, *args, argnums=wanted, **kwargs)
    except NoArrayError:
        return _subject(_arrays_of(f), args, kwargs, argnums, gradient)
    except TypeError:
        if gradient:
            raise
        wanted = ()
        try:
            d = derive(f, *args, argnums=wanted, **kwargs)
        except NoArrayError:
            return _subject(_arrays_of(f), args, kwargs, argnums, gradient)
    leaves, _, _, is_input = flat_arguments(args, kwargs, wanted)
    inputs = tuple(x for x, given in zip(leaves, is_input, strict=True) if given)
    primal = d.primal
    names = tuple(name or f"argument {k}" for k, name in enumerate(primal.arg_names))
    is_loss = _is_real_number(primal) and any(d.nonzeros)
    if gradient and not is_loss:
        raise TypeError(
            f"find_nan(gradient=True) needs a function that gives one real number; {primal.name} gives "
            f"{', '.join(type_text(a) for a in primal.out_avals) or 'nothing'}"
        )
    note = ""
    if by_default and kwargs and _is_real_number(primal):
        note = "Its gradient was not searched: give what it is differentiated in by position."
    if is_loss and (gradient or (gradient is None and not any(_is_derived(e) for _, e in primal.walk()))):
        try:
            program = _with_gradient(d)
        except (EquationError, NotImplementedError, TypeError, ValueError) as error:  # ours, and what jax's rules raise
            if gradient:
                raise
            note = f"Its gradient was not searched: {error}"
        else:
            differentiated = [name for name, nz in zip(names, d.nonzeros, strict=True) if nz]
            results = ("the loss", *(f"the gradient in {name}" for name in differentiated))
            return _Subject(program, _written_out(program), inputs, names, results, primal.name)
    results = tuple(f"the result{path}" for path in _result_paths(d.out_tree, len(primal.outvars)))
    return _Subject(primal, _written_out(primal), inputs, names, results, primal.name, note)


def _arrays_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function without those of its results that are no arrays, such as the functions in a model of equinox."""

    @wraps(f)
    def arrays(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.map(lambda x: x if compat.is_array_like(x) else None, f(*args, **kwargs))

    return arrays


def _written_out(program: Program) -> Program:
    return with_one_predicate(inlined(program, _CALLS))


def _is_real_number(program: Program) -> bool:
    avals = program.out_avals
    return len(avals) == 1 and avals[0].shape == () and jnp.issubdtype(avals[0].dtype, jnp.floating)


def _is_derived(e: Equation) -> bool:
    return e.origin is not None or compat.is_differentiated(e.source)


def _with_gradient(d: Derivation) -> Program:
    """Inputs → the loss, its gradient."""
    builder = Builder()
    invars = [Var(a) for a in d.forward.in_avals]
    loss, *residuals = builder.inline(d.forward, invars)
    one = Literal(np.ones((), loss.aval.dtype), compat.cotangent_type(loss.aval))
    gradient = builder.inline(d.backward, [*residuals, one])
    return builder.program(invars, [loss, *gradient], like=d.primal)


def _result_paths(tree: Any, n: int) -> list[str]:
    if tree is None:
        return [f" {k}" for k in range(n)]
    leaves = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(tree, range(n)))
    return [jax.tree_util.keystr(path) for path, _ in leaves]


def _is_bad_input(subject: _Subject, known: dict[Var, tuple[bool, bool]], v: Var, kind: int) -> bool:
    if v not in known:
        known[v] = kinds_of(subject.values[v]) if v in subject.values else (False, False)
    return known[v][kind]


def _kinds_in(subject: _Subject, level: Level, steps: Steps, atoms: Sequence[Atom]) -> list[tuple[bool, bool]]:
    """Whether values are not finite, and hold a NaN, in one step: the program is run once more, up to there."""
    return [kinds_of(x) for x in _values_in(subject, level, steps, atoms)]


def _branch_in(subject: _Subject, level: Level, cond: Equation, steps: Steps) -> int:
    index = cond.invars[0]
    (value,) = [index.val] if isinstance(index, Literal) else _values_in(subject, level, steps, [index])
    return int(np.clip(value, 0, len(cond.programs) - 1))


def _values_in(subject: _Subject, level: Level, steps: Steps, atoms: Sequence[Atom]) -> list[Any]:
    program = subject.program
    values: list[Any] = run_once(program, lambda *xs: values_at(program, xs, level.path, steps, atoms))(*subject.inputs)
    return values


def _given(subject: _Subject, birth: Birth) -> str:
    value = birth.value
    if isinstance(value, Literal):
        return f"the number {np.asarray(value.val)[()]}"
    names = dict(zip(subject.program.invars, subject.names, strict=True))
    what = subject.values.get(value)
    text = f" ({operand(what)})" if what is not None else ""
    return (f"the argument {names[value]}" if value in names else "a constant that is closed over") + text


# --- where the flags show nothing --------------------------------------------------------------------------------------


_OTHERWISE = (
    "The compiled program gave this, and with flags in it it did not: XLA then fuses, and so rounds, otherwise."
)


def _bad_as_compiled(subject: _Subject) -> tuple[str, ...]:
    """The results that are not finite where the program runs as it was traced, with its calls and without flags."""
    outs = jax.jit(as_function(subject.traced))(*subject.inputs)
    return tuple(name for name, x in zip(subject.results, outs, strict=True) if kinds_of(x)[INFINITE])


def _find_by_stepping(subject: _Subject) -> NanReport | None:
    """The same, equation by equation: exact, and slow."""
    tries = (_step_through(Level(subject.program), subject.inputs, (), kind) for kind in (INFINITE, NAN))
    found = next((t for t in tries if t is not None), None)
    if found is None:
        return None
    birth, ins, outs, results = found
    note = f"{_OTHERWISE} It was found by running equation by equation."
    names = tuple(subject.results[k] for k in results)
    if not birth.equations:
        return NanReport(subject.function, names, None, (_given(subject, birth),), None, (), note=note)
    born = described(birth, birth.equations[0], ins, outs, None, True)
    return NanReport(subject.function, names, born, (), None, chain_of(birth), note=note)


def _step_through(
    level: Level, inputs: Sequence[Any], steps: tuple[int, ...], kind: int
) -> tuple[Birth, list[Any], list[Any], list[int]] | None:
    """Runs a program equation by equation, and goes into the first that makes what is not finite and reaches a result."""
    program = level.program
    env: dict[Atom, Any] = dict(zip((*program.constvars, *program.invars), (*program.consts, *inputs), strict=True))
    read = lambda atoms: [a.val if isinstance(a, Literal) else env[a] for a in atoms]
    bad = lambda x: kinds_of(x)[kind]
    for e in program.equations:
        env.update(zip(e.outvars, evaluate_equation(e, read(e.invars)), strict=True))
    last = read(program.outvars)
    results = [k for k, x in enumerate(last) if kinds_of(x)[INFINITE]]
    reaching = {a for a, x in zip(program.outvars, last, strict=True) if bad(x)}
    found: Equation | None = None
    for e in reversed(program.equations):
        if reaching.intersection(e.outvars) and any(bad(x) for x in read(e.outvars)):
            reaching.update(a for a in e.invars if isinstance(a, Var) and bad(env[a]))
            found = e if not any(bad(x) for x in read(e.invars)) else found
    if found is None:
        given = next((v for v in (*program.invars, *program.constvars) if v in reaching), None)
        return None if given is None else (Birth(level, steps, (), given, kind, ()), [], [], results)
    ins, outs = read(found.invars), read(found.outvars)
    for place, step, operands in _runs_of(found, ins, bad):
        deeper = _step_through(level.within(found, place), operands, (*steps, *step), kind)
        if deeper is not None:
            return *deeper[:3], results
    value = next(v for v, x in zip(found.outvars, outs, strict=True) if bad(x))
    return Birth(level, steps, (found,), value, kind, ((level, value),)), ins, outs, results


def _runs_of(
    e: Equation, ins: Sequence[Any], bad: Callable[[Any], bool]
) -> Iterator[tuple[int, tuple[int, ...], list[Any]]]:
    """The runs of the programs in an equation that give what is not finite: place of the program, step of a loop, inputs."""
    if e.primitive is compat.cond_p:
        place = int(np.clip(ins[0], 0, len(e.programs) - 1))
        yield place, (), list(ins[1:])
    elif e.primitive is compat.remat_p:
        yield 0, (), list(ins)
    elif e.primitive in (compat.scan_p, compat.while_p):
        for step, place, operands, outs in steps_of(e, ins):
            if any(map(bad, outs)):
                yield place, (step,), operands
