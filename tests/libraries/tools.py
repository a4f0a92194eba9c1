"""Runs every tool on one program, and prints the results: `python tests/libraries/tools.py penzai_llama_7b`.

One line of JSON per tool: its name, whether everything was right (or the error), seconds, and the peak memory of the
process.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from registry import LibraryProgram, load

import jaxviz
from jaxviz.derivation import type_name

LIMIT = 180
"""The limit of a tool in seconds of CPU time, so that other load on the machine does not count."""


@dataclass
class Subject:
    """A loss or a training step and its arguments, with JAX's gradient of a loss, None for abstract ones."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    program: LibraryProgram
    gradient: Any = None

    @property
    def is_abstract(self) -> bool:
        return self.program.is_abstract


def for_jax_grad(f: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments as `jax.grad` takes them: what is no array in the first one, a model, is fixed."""
    model, *rest = args
    leaves, structure = jax.tree.flatten(model)
    if all(map(is_differentiable, leaves)):
        return f, args

    def of_arrays(arrays: list[Any], *rest: Any) -> Any:
        given = iter(arrays)
        return f(structure.unflatten([next(given) if is_differentiable(x) else x for x in leaves]), *rest)

    return of_arrays, (arrays_of(model), *rest)


def is_differentiable(x: Any) -> bool:
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def arrays_of(tree: Any) -> list[Any]:
    return [x for x in jax.tree.leaves(tree) if is_differentiable(x)]


Tool = Callable[[Subject], dict[str, Any] | None]
TOOLS: dict[str, Tool] = {}
"""By name, in the order in which they run. A tool raises if something is wrong, and returns the text of its column."""

NEED_VALUES: set[str] = set()
"""The tools that run the program."""

KINDS: dict[str, set[str]] = {}
"""The kinds of programs that a tool is for."""


def tool(use: Tool | None = None, *, on_values: bool = False, kinds: str = "loss") -> Any:
    def enter(use: Tool) -> Tool:
        TOOLS[use.__name__], KINDS[use.__name__] = use, set(kinds.split())
        if on_values:
            NEED_VALUES.add(use.__name__)
        return use

    return enter if use is None else enter(use)


def tools_for(program: LibraryProgram) -> list[str]:
    return [n for n in TOOLS if program.kind in KINDS[n] and not (program.is_abstract and n in NEED_VALUES)]


# --- the gradient -----------------------------------------------------------------------------------------------------


@tool
def jax_grad(subject: Subject) -> dict[str, Any] | None:
    """The reference for everything else: the gradient by JAX alone, traced, compiled and run."""
    loss, args = for_jax_grad(subject.loss, subject.args)
    if subject.is_abstract:
        return {"equations": count(jax.make_jaxpr(jax.grad(loss))(*args).jaxpr)}
    traced = jax.jit(jax.grad(loss)).trace(*args)
    subject.gradient = jax.block_until_ready(traced.lower().compile()(*args))
    return {"equations": count(traced.jaxpr.jaxpr)}


def count(jaxpr: Any) -> int:
    """The number of equations, including nested programs."""
    return len(jaxpr.eqns) + sum(count(sub) for e in jaxpr.eqns for sub in jaxprs_in_params(e.params))


@tool
def grad(subject: Subject) -> dict[str, Any] | None:
    loss, args = for_jax_grad(subject.loss, subject.args)
    gradient = jaxviz.grad(loss)
    if subject.is_abstract:
        want, got = (jax.eval_shape(g, *args) for g in (jax.grad(loss), gradient))
        assert_same_types(got, want)
        return {"gradient": "types"}
    got = jax.block_until_ready(jax.jit(gradient)(*args))
    return {"gradient": compared(got, subject.gradient)}


def assert_same_types(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for path_and_want, g in zip(jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True):
        path, w = path_and_want
        assert type_name(jax.typeof(g)) == type_name(jax.typeof(w)), (
            f"{jax.tree_util.keystr(path)} is {type_name(jax.typeof(g))}, and {type_name(jax.typeof(w))} by JAX"
        )


def compared(got: Any, want: Any) -> str:
    """'bitwise', or the largest difference relative to the largest gradient of an array; an error if it is more than
    rounding.

    An array whose gradient is tiny compared to the others', such as the bias of attention keys, is zero up to rounding.
    """
    assert_same_types(got, want)
    if all(same_bits(g, w) for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)):
        return "bitwise"
    pairs = [(g, w) for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True) if np.size(g)]
    least = 0.01 * max(float(np.max(np.abs(w))) for _, w in pairs)
    worst = max(difference(g, w, least) for g, w in pairs)
    assert worst < 1e-3, f"the gradient differs from JAX's by {worst:.1e} of its largest element"
    return f"{worst:.0e}"


def same_bits(got: Any, want: Any) -> bool:
    return np.asarray(got).tobytes() == np.asarray(want).tobytes()


def difference(got: Any, want: Any, least: float) -> float:
    got, want = (np.asarray(x).astype(np.promote_types(x.dtype, np.float64)) for x in (got, want))
    return float(np.max(np.abs(got - want)) / max(np.max(np.abs(want)), least, 1e-30))


# --- reports ----------------------------------------------------------------------------------------------------------


@tool
def check(subject: Subject) -> dict[str, Any] | None:
    """Compares the residuals, as a multiset of types, with those of `jax.vjp`."""
    found = jaxviz.derive(subject.loss, *subject.args).check()
    assert found.agrees, str(found)
    return {"residuals": re.findall(r"[\d,]+ of [\d,]+", found.summary)[0]}


@tool
def residuals(subject: Subject) -> None:
    """Each residual has a line and a reason."""
    found = jaxviz.residuals(subject.loss, *subject.args)
    readable(found)
    assert all(r.location.line > 0 and r.reason for r in found)


@tool
def own_lines(subject: Subject) -> dict[str, Any] | None:
    """Each residual is on a line of the file with the loss and its model, whichever library computes it."""
    found = jaxviz.residuals(subject.loss, *subject.args)
    elsewhere = [r for r in found if Path(r.location.file).parent != Path(__file__).parent]
    share = 1 - sum(r.nbytes for r in elsewhere) / max(found.nbytes, 1)
    assert not elsewhere, f"{share:.1%} of the bytes are on own lines; elsewhere: {[str(r) for r in elsewhere[:5]]}"
    return {"own": share}


@tool
def modules(subject: Subject) -> dict[str, Any] | None:
    """What is saved, without weights, is grouped by the network's modules, with repeated layers combined."""
    found = [t.name for t in jaxviz.residuals(subject.loss, *subject.args).by_module()]
    assert set(subject.program.modules) <= set(found), (
        f"{sorted(set(subject.program.modules) - set(found))} are not among {found}"
    )
    return {"modules": len(found)}


def readable(report: Any) -> None:
    """Whether a report can be printed, displayed and written as JSON."""
    assert str(report).strip()
    assert report._repr_html_().strip()
    json.dumps(report.to_dict())


@tool
def memory(subject: Subject) -> None:
    found = jaxviz.memory(subject.loss, *subject.args)
    readable(found)
    assert found.peak_nbytes >= sum(x.size * x.dtype.itemsize for x in map(jax.typeof, arrays_of(subject.args[0])))


def report(name: str) -> None:
    """Adds a report as a tool: it can be shown."""

    def use(subject: Subject) -> None:
        readable(getattr(jaxviz, name)(subject.loss, *subject.args))

    use.__name__ = name
    tool(use)


for name in "cost lint policies compare_policies".split():
    report(name)


def planned(subject: Subject) -> tuple[Any, int]:
    """A plan that saves half of what is saved in addition to the arguments, or more if necessary; and that budget.

    If that increases the peak, the plan has no bound.
    """
    found = jaxviz.residuals(subject.loss, *subject.args)
    for share in (2, 4, 8):
        budget = found.nbytes - found.nbytes_without_arguments // share
        try:
            return jaxviz.plan_remat(subject.loss, *subject.args, budget=budget), budget
        except ValueError as error:
            if "cannot be met" not in str(error) and "would raise the peak" not in str(error):
                raise
    unbounded = jaxviz.plan_remat(subject.loss, *subject.args)
    return unbounded, max(found.nbytes, unbounded.nbytes)


def written(plan: Any) -> None:
    """A plan can be shown, and its files are Python."""
    readable(plan)
    assert plan.code().strip()
    for file, text in plan.written.files.items():
        compile(text, file, "exec")


@tool
def plan(subject: Subject) -> None:
    """The plan keeps to its budget, its function saves what the plan says, and the gradient is the same."""
    found, budget = planned(subject)
    written(found)
    assert found.nbytes <= budget
    applied = found.apply(subject.loss)
    saved = jaxviz.residuals(applied, *subject.args).nbytes
    assert saved == found.nbytes, f"{saved:,} bytes are saved where the plan says {found.nbytes:,}"
    if not subject.is_abstract:
        applied, args = for_jax_grad(applied, subject.args)
        compared(jax.jit(jax.grad(applied))(*args), subject.gradient)


@tool
def plan_peak(subject: Subject) -> dict[str, Any] | None:
    """The plan's peak is that of its function, and no higher than that of the function as written."""
    return {"peaks": peaks_of(subject, jaxviz.plan_remat(subject.loss, *subject.args))}


def peaks_of(subject: Subject, plan: Any) -> list[int]:
    peaks = [jaxviz.memory(f, *subject.args).peak_nbytes for f in (subject.loss, plan.apply(subject.loss))]
    assert [plan.before.peak_nbytes, plan.peak_nbytes] == peaks
    assert peaks[1] <= peaks[0], f"the modelled peak rises from {peaks[0]:,} to {peaks[1]:,} bytes"
    return peaks


@tool(kinds="loss step")
def explore(subject: Subject) -> dict[str, Any] | None:
    """The explorer as a page that works without a kernel."""
    explorer = jaxviz.explore(subject.loss, *subject.args)
    with tempfile.TemporaryDirectory() as folder:
        return {"page": explorer.save_html(Path(folder) / "page.html").stat().st_size}


@tool(on_values=True, kinds="loss step")
def compile_cost(subject: Subject) -> None:
    found = jaxviz.compile_cost(subject.loss, *subject.args)
    readable(found)
    assert f"`{subject.loss.__name__}`" in found.summary


# --- NaNs -------------------------------------------------------------------------------------------------------------


@tool(on_values=True, kinds="loss step")
def find_nan(subject: Subject) -> None:
    found = jaxviz.find_nan(subject.loss, *subject.args)
    assert found is None, str(found)


@tool(on_values=True)
def find_nan_line(subject: Subject) -> None:
    """Adds a term with an infinite slope to the loss; its line has to be found."""

    def faulty(params: Any, *rest: Any) -> Any:
        return subject.loss(params, *rest) + jnp.sqrt(jnp.real(jnp.sum(leaf_of(params)[1] * 0)))

    is_born_in(faulty, 1, found_as_by_jax(faulty, subject.args))


def is_born_in(faulty: Callable[..., Any], line: int, found: Any) -> None:
    """The report names this line of a function, counted from its first."""
    assert found is not None
    assert found.born is not None, str(found)
    at = found.born.location
    assert (at.file, at.line) == (__file__, faulty.__code__.co_firstlineno + line), str(found)


@tool(on_values=True)
def find_nan_argument(subject: Subject) -> None:
    """Puts a NaN into one array of the first argument; its name has to be found."""
    params, *rest = subject.args
    path, leaf = leaf_of(params)
    bad = leaf.at[(0,) * leaf.ndim].set(jnp.nan)
    args = (jax.tree_util.tree_map_with_path(lambda p, x: bad if p == path else x, params), *rest)
    found = found_as_by_jax(subject.loss, args)
    if found is None:
        return  # the NaN reaches no result of JAX's either
    assert found.born is None, str(found)
    name = re.sub(r"<flat index (\d+)>", r"\1", jax.tree_util.keystr(path))  # JAX's argument names have the index alone
    assert any(name in g for g in found.given), str(found)


def leaf_of(params: Any) -> tuple[Any, Any]:
    """The middle one of an argument's non-empty arrays, and its path."""
    leaves = [
        (path, x) for path, x in jax.tree_util.tree_leaves_with_path(params) if is_differentiable(x) and jnp.size(x)
    ]
    path, leaf = leaves[len(leaves) // 2]
    return path, jnp.asarray(leaf)


def found_as_by_jax(loss: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The report of `find_nan`, which has as many results as JAX has non-finite ones."""
    plain, arrays = for_jax_grad(loss, args)
    return as_many_as(jax.jit(jax.value_and_grad(plain))(*arrays), jaxviz.find_nan(loss, *args))


def as_many_as(results: Any, found: Any) -> Any:
    n = sum(not np.all(np.isfinite(x)) for x in jax.tree.leaves(results))
    if found is None:
        assert n == 0, f"nothing is found, and {n} results are not finite"
        return None
    readable(found)
    returned = [r for r in found.results if not r.startswith("what is then in ")]
    assert len(returned) == n, f"{len(returned)} results are named, and {n} are not finite: {found.results}"
    return found


@tool(on_values=True)
def find_nan_otherwise(subject: Subject) -> None:
    """The loss has an auxiliary result, and has keywords: nothing is found in it, and the line of a planted slope."""
    params, *rest = subject.args
    by_name = {f"given_{k}": x for k, x in enumerate(rest)}

    def healthy(params: Any, **given: Any) -> Any:
        value = subject.loss(params, *given.values())
        return value, {"doubled": 2.0 * value}

    def faulty(params: Any, **given: Any) -> Any:
        value = subject.loss(params, *given.values())
        return value + jnp.sqrt(jnp.real(jnp.sum(leaf_of(params)[1] * 0))), {"doubled": 2.0 * value}

    found = jaxviz.find_nan(healthy, params=params, **by_name)
    assert found is None, str(found)
    plain, args = for_jax_grad(
        lambda params, *rest: faulty(params, **dict(zip(by_name, rest, strict=True))), subject.args
    )
    found = as_many_as(
        jax.jit(jax.value_and_grad(plain, has_aux=True))(*args), jaxviz.find_nan(faulty, params=params, **by_name)
    )
    is_born_in(faulty, 2, found)


# --- training steps ---------------------------------------------------------------------------------------------------


def loss_of(subject: Subject) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return load()[subject.program.step_of].make()


def title_of(subject: Subject) -> str:
    """What reports call the gradient of a step: by the name of the loss, and that of its first argument."""
    loss = loss_of(subject)[0]
    return f"the gradient of `{loss.__name__}` in `{next(iter(inspect.signature(loss).parameters))}`"


@tool(kinds="step")
def one_subject(subject: Subject) -> None:
    """Every report is about the gradient that the step takes, which is that of its loss."""
    loss, args = loss_of(subject)
    title = title_of(subject)
    for report in "residuals lint policies compare_policies memory plan_remat".split():
        found = getattr(jaxviz, report)(subject.loss, *subject.args)
        readable(found)
        assert f"training step `{subject.loss.__name__}`, which takes {title}" in found.summary, found.summary
    cost = jaxviz.cost(subject.loss, *subject.args)
    readable(cost)
    assert f"training step `{subject.loss.__name__}`" in cost.summary, cost.summary
    explorer = jaxviz.explore(subject.loss, *subject.args)
    assert explorer.view.title == f"{title.removeprefix('the ')}, which `{subject.loss.__name__}` takes"
    check = explorer.derivation.check(values=False)
    assert check.agrees, str(check)
    of_step, alone = jaxviz.residuals(subject.loss, *subject.args), jaxviz.residuals(loss, *args)
    assert sorted(r.type for r in of_step) == sorted(r.type for r in alone)
    assert of_step.nbytes == alone.nbytes
    kept = lambda f, *args: [(o.name, o.nbytes) for o in jaxviz.compare_policies(f, *args).outcomes]
    assert kept(subject.loss, *subject.args) == kept(loss, *args)


@tool(kinds="step")
def plan_step(subject: Subject) -> dict[str, Any] | None:
    """The planned step has the residuals and peak that the plan says, no higher than before, and the same results."""
    for bound in ({}, {"residuals": "70%"}):
        found = jaxviz.plan_remat(subject.loss, *subject.args, **bound)
        written(found)
        peaks = peaks_of(subject, found)
        applied = found.apply(subject.loss)
        assert jaxviz.residuals(applied, *subject.args).nbytes == found.nbytes
        if not subject.is_abstract:
            results = lambda step: arrays_of(jax.block_until_ready(step(*subject.args)))
            compared(results(applied), results(subject.loss))
    return {"peaks": peaks}


# --- losses without a gradient in reverse mode ------------------------------------------------------------------------


@tool(kinds="unbounded")
def no_reverse_mode(subject: Subject) -> None:
    """JAX refuses the gradient; every report says so, with the line of the loop, and forward mode works."""
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.jit(jax.grad(subject.loss)).trace(*subject.args)
    lines, first = inspect.getsourcelines(subject.loss)
    (line,) = [first + k for k, text in enumerate(lines) if subject.program.unbounded in text]
    reports = "residuals lint policies cost explore find_nan memory plan_remat compare_policies compile_cost"
    for report in reports.split():
        try:
            said = getattr(jaxviz, report)(subject.loss, *subject.args)
            said = said.view.title if report == "explore" else str(said)
        except jaxviz.ReverseModeError as error:
            said = str(error)
        assert re.search("reverse[- ]mode", said, re.IGNORECASE), f"{report} says:\n{said}"
        assert report == "explore" or f"{Path(inspect.getfile(subject.loss)).name}:{line}" in said, (
            f"{report} says:\n{said}"
        )
    tangents = jax.tree.map(
        lambda x: jnp.ones_like(x) if is_differentiable(x) else np.zeros(x.shape, jax.dtypes.float0), subject.args
    )
    forward = lambda jvp: jax.jit(lambda args: jvp(subject.loss, args, tangents))(subject.args)
    compared(forward(jaxviz.jvp), forward(jax.jvp))


# --- the run ----------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """A tool exceeded its limit; not caught by `except Exception` in a library."""


def ring(*_: Any) -> None:
    raise TooLong(f"not done after {LIMIT} s")


def run(program: LibraryProgram) -> None:
    """Runs the tools in sequence and prints a line of JSON for each, even if one fails."""
    signal.signal(signal.SIGPROF, ring)
    subject = Subject(*program.make(), program)
    for name in tools_for(program):
        print(json.dumps({"tool": name} | measured(TOOLS[name], subject)), flush=True)
    os._exit(0)  # some libraries take seconds at exit


def measured(use: Tool, subject: Subject) -> dict[str, Any]:
    """The result or the error of a tool, its seconds of CPU time, and the peak memory of the process."""
    jax.clear_caches()
    jaxviz.clear_caches()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    faulthandler.dump_traceback_later(4 * LIMIT, exit=True)  # where no signal is handled, as in the compiler
    start = time.process_time()
    try:
        found = use(subject) or {}
    except (Exception, TooLong) as error:
        found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    return {"seconds": time.process_time() - start, "peak": peak_nbytes()} | found


def peak_nbytes() -> int:
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    run(load()[sys.argv[1]])
