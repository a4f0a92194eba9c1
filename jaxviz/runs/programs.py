"""Analyses a function of a run, for the types that it was compiled for. Nothing is compiled or run."""

from __future__ import annotations

import base64
import gzip
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxviz.analysis.donation import could_donate, result_number
from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.analysis.training_step import TrainingStep, takes_gradient, trace_training_step
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation, derive
from jaxviz.environments.facts import ModelledPeak, NotKnown
from jaxviz.environments.gather import Gathering, program_facts
from jaxviz.features.explorer.explore import explore
from jaxviz.features.lint.report import lint
from jaxviz.features.memory.timeline import donated_by
from jaxviz.ir import compat
from jaxviz.ir.leaks import LeakedTracerWarning
from jaxviz.ir.origin import Location
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Program
from jaxviz.page.html import SavedWidget
from jaxviz.report.files import write_file
from jaxviz.report.tables import nbytes
from jaxviz.runs.facts import (
    EXPLORER,
    MEMORY,
    PROGRAM,
    PROGRAMS,
    AdviceFound,
    DonatedArguments,
    GradientTaken,
    RunProgram,
)
from jaxviz.runtime.cache import function_name
from jaxviz.runtime.compilations import Compilation, definition_of, is_of_user
from jaxviz.transforms.dce import dce_program
from jaxviz.xla.collectives.exchanges import MovedByLine, moved_by_line
from jaxviz.xla.compilations.compiled import as_compiled
from jaxviz.xla.compiled_memory.compiled_program import module_of, reported_by
from jaxviz.xla.compiled_memory.reading import memory_as_named

_ADVISED = 3_000
"""Up to this many equations, the explorer of a program has the advice on the peak: all programs share 30 s."""


@dataclass(frozen=True, eq=False)
class AbstractCall:
    """A call without its arrays.

    Args:
      function: the function; jitted if it was, so that static arguments stay so.
      args, kwargs: types in place of arrays.
      argnums: the positions of the arguments that it is differentiated in; None if it is called, and may take gradients
        itself.
      is_jitted: whether it is a call of a jitted function.
      may_donate: whether it is one of the user's own, which donates none of its arguments.
      user: the user's function, which names it.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    argnums: Argnums
    is_jitted: bool
    may_donate: bool
    user: Any

    @staticmethod
    def of(call: compat.JitCall) -> AbstractCall:
        """A call under way."""
        info, fun = call.info, call.fun
        args, kwargs = jax.tree.map(_type_of, (call.args, call.kwargs))
        if call.kind == "gradient":
            return AbstractCall(fun, args, kwargs, info, False, False, fun)
        if call.kind == "loop":
            return AbstractCall(fun, args, kwargs, None, False, False, kwargs.get("body_fun") or kwargs["f"])
        args, kwargs = jax.tree.map(_traced_type, (call.args, call.kwargs))
        jitted = jax.jit(
            fun, static_argnums=info.static_argnums, static_argnames=info.static_argnames,
            donate_argnums=info.donate_argnums, donate_argnames=info.donate_argnames,
        )  # fmt: skip
        args = tuple(call.args[i] if i in info.static_argnums else x for i, x in enumerate(args))
        kwargs = {name: call.kwargs[name] if name in info.static_argnames else x for name, x in kwargs.items()}
        may_donate = is_of_user(fun) and not compat.donates(info)
        return AbstractCall(jitted, args, kwargs, None, True, may_donate, fun)


def _type_of(x: Any) -> Any:
    """The type of an argument, with how it is laid out over devices; other values as they are."""
    if not isinstance(x, (jax.Array, np.ndarray, np.generic)):
        return x
    return _struct(x)


def _traced_type(x: Any) -> Any:
    """The same for an argument of a jitted function, where Python numbers are traced too."""
    return _struct(x) if isinstance(x, (bool, int, float, complex)) else _type_of(x)


def _struct(x: Any) -> jax.ShapeDtypeStruct:
    aval = compat.argument_type(x)
    place = x.sharding if isinstance(x, jax.Array) and not compat.is_tracer(x) and x.committed else None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=place, weak_type=aval.weak_type)


def name_of(c: Compilation, call: AbstractCall) -> tuple[str, Location | None]:
    """The name of the function of a call, and where it is defined."""
    if call.is_jitted:
        return c.name, c.definition
    return function_name(call.user), definition_of(call.user)


def analyse(number: int, c: Compilation, call: AbstractCall, executable: Any, folder: Path, source: bool) -> None:
    """Writes the file of a program, and then what the page shows of the largest gradient that it takes.

    What cannot be found out is said in the file.
    """
    parts = Gathering()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        derived = parts.known("the function", lambda: _derived(call))
    # "`step` stores `jnp.sin(w)` in `model.last` at …"; what follows is about this trace alone.
    told = (str(w.message).partition(". ")[0] for w in warned if issubclass(w.category, LeakedTracerWarning))
    leaks = tuple(dict.fromkeys(told))
    found = derived and parts.known("the function", lambda: _analysed(number, call, derived, executable, parts, source))
    name, at = name_of(c, call)
    found = found or RunProgram(number, name, at)
    compiled = parts.known(
        "the compiled program", lambda: _compiled(executable, folder / PROGRAMS / f"{number}{MEMORY}")
    )
    if compiled:
        found = replace(found, compiled=compiled[0], exchanged=compiled[1])
    not_known = (*found.not_known, *parts.not_known)
    found = replace(found, function=name, location=at, leaks=leaks, not_known=not_known)
    PROGRAM.write(found, folder / PROGRAMS / f"{number}.json")
    if derived and found.gradients:
        write_explorer(derived[1], folder / PROGRAMS / f"{number}{EXPLORER}", source)


def _compiled(executable: Any, path: Path) -> tuple[ModelledPeak | None, tuple[MovedByLine, ...]]:
    """The peak of a compiled program, and what devices exchange in it; its memory is written to a file."""
    if executable is None:
        return None, ()
    n_devices = len(executable.local_devices())
    exchanged = moved_by_line(module_of(executable), n_devices) if n_devices > 1 else ()
    if (program := reported_by(executable)) is None:
        return None, exchanged
    memory = memory_as_named(program, n_devices)
    memory.save(path)
    return ModelledPeak(memory.peak_nbytes, memory.peak_at, memory.location), exchanged


def write_explorer(d: Derivation, path: Path, source: bool) -> None:
    """Writes what the page needs for the explorer of a derivation."""
    import comm

    create, comm.create_comm = comm.create_comm, comm.DummyComm  # a forked notebook kernel must not send messages
    try:
        title, saved = explore(d).saved(source, _ADVISED)
    finally:
        comm.create_comm = create
    data = {"title": title, "payload": base64.b64encode(gzip.compress(saved.payload)).decode(), "state": saved.state}
    write_file(path, json.dumps(data))


def read_explorer(path: Path) -> tuple[str, SavedWidget]:
    """The title and the widget that `write_explorer` wrote."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["title"], SavedWidget(gzip.decompress(base64.b64decode(data["payload"])), data["state"])


Derived = tuple[tuple[Derivation, ...], Derivation, Program, tuple[NotKnown, ...]]


@deep_stack
def _analysed(
    number: int, call: AbstractCall, derived: Derived, executable: Any, parts: Gathering, source: bool
) -> RunProgram:
    gradients, about, whole, not_followed = derived
    facts = program_facts(about, parts)
    if not source and facts.work is not None:
        facts = replace(facts, work=tuple(replace(line, text="") for line in facts.work))
    could = parts.known("donations", lambda: could_donate(whole)) if call.may_donate else None
    donated = parts.known("donations", lambda: tuple(_donated(whole, executable)))
    found = RunProgram(
        number, "", None, (), facts, donated=donated or (), could_donate=could or {}, not_known=not_followed
    )
    if not gradients:
        return found
    advice = parts.known("advice", lambda: lint(about)) or ()
    found_advice = tuple(AdviceFound(a.rule, a.text, a.fix, a.location, a.nbytes) for a in advice)
    return replace(found, gradients=tuple(map(_gradient, gradients)), advice=found_advice)


def _donated(program: Program, executable: Any) -> Iterator[DonatedArguments]:
    """What XLA has made of donated arguments, those of repeated layers together."""
    donated = donated_by(program)
    if not any(donated):
        return
    _, read = dce_program(program, keep_inputs=[False] * len(program.invars))
    found = as_compiled(program, donated, executable, read, result_number)
    name = lambda d: program.arg_names[d.argument]
    for same in grouped(found, lambda d: (d.result is not None, pattern(name(d)), pattern(d.reason))):
        size = sum(nbytes(program.invars[d.argument].aval) for d in same)
        why = alike([d.reason for d in same])
        yield DonatedArguments(alike([name(d) for d in same]), len(same), size, same[0].result is not None, why)


@deep_stack
def _derived(call: AbstractCall) -> Derived:
    """The gradients of a call, the largest first; what the facts are about; the whole that is called; and gradients
    that are not followed."""
    f, args, kwargs = call.function, call.args, call.kwargs
    if call.argnums is not None:
        d = derive(f, *args, argnums=call.argnums, **kwargs)
        return (d,), d, d.primal, ()
    step = trace_training_step(f, args, kwargs)
    left = step.not_followed if isinstance(step, TrainingStep) else step
    not_known = tuple(NotKnown(text, "jaxviz does not follow it") for text in left)
    if not isinstance(step, TrainingStep):
        d = derive(f, *args, argnums=(), **kwargs)
        if not left and takes_gradient(d.primal):
            not_known = (NotKnown("the gradient that it takes", "it is taken by other means than jax.vjp or jax.grad"),)
        return (), d, d.primal, not_known
    others = [d for mark, d in enumerate(step.gradients) if mark != step.mark]
    return (step.gradient, *others), step.gradient, step.traced, not_known


def _gradient(d: Derivation) -> GradientTaken:
    types = Counter(v.aval.str_short(short_dtypes=True) for v, n in zip(d.primal.invars, d.nonzeros, strict=True) if n)
    return GradientTaken(d.gradient, d.residuals.saved.nbytes, dict(types))
