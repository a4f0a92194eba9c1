"""From a text, an exception or a dump, and maybe the program, to the report."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from jaxviz.analysis.donation import could_donate
from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.analysis.training_step import subject_of
from jaxviz.analysis.unreported import NOTHING, Unreported
from jaxviz.arguments import Argnums
from jaxviz.derivation import Derivation
from jaxviz.features.memory.timeline import memory
from jaxviz.features.remat.planning import plan_remat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import message_of
from jaxviz.progress import counting
from jaxviz.report.sizes import read_size
from jaxviz.report.tables import format_bytes, short_location
from jaxviz.xla.compiled_memory.dumps import read_dump
from jaxviz.xla.compiled_memory.op_names import OpName, computed_last
from jaxviz.xla.compiled_memory.reading import compiled_memory
from jaxviz.xla.compiled_memory.report import CompiledMemory
from jaxviz.xla.out_of_memory.reading import OomBuffer, OomText, read_oom
from jaxviz.xla.out_of_memory.report import OomChange, OomRow, OutOfMemory, When

_MUCH = 0.1
"""The share of what is needed from which a cause is worth a sentence."""


@api_boundary
@counting("out of memory")
def oom(
    error: str | BaseException | os.PathLike[str], f: Any = None, *args: Any, argnums: Argnums = 0,
    limit: str | int | None = None, module: str = "", **kwargs: Any,
) -> OutOfMemory:  # fmt: skip
    """Explains an error of running out of memory: which lines hold the bytes, why, and what would make it fit.

    >>> try:
    ...     train_step(params, batch)
    ... except jax.errors.JaxRuntimeError as error:
    ...     print(jaxviz.oom(error))

    Without the program, only what the text says is known: sizes, lines, shapes, padding, and from JAX's names which
    pass computes a value. With it, values have their reasons, and up to two changes are tried, each compiled on this
    machine: checkpoints as `plan_remat` finds them, and donation.

    Args:
      error: the exception, its text, or a folder to which XLA dumped the program (`--xla_dump_to`).
      f: the program, as for `derive`.
      *args, **kwargs: its arguments, which may be types.
      argnums: the positional arguments to differentiate with respect to.
      limit: the bytes that there are, such as '16GiB', if the text does not say.
      module: a part of the name of a program in a folder, such as 'jit_train_step'; without it the program of `f` is
        read, or else the one with the most memory.

    Raises:
      ValueError: the text is no such error; or the folder has no dump; or `module` is given without a folder.
      the errors of `derive`.
    """
    room = None if limit is None else int(read_size(limit, "limit"))
    subject = None if f is None else subject_of(f, args, kwargs, argnums)
    name = "" if subject is None else subject.primal.name if subject.step is None else subject.step.name
    if not isinstance(error, BaseException) and os.path.isdir(error):
        held = read_dump(error, module, name)
        found = _of_dump(held if f is None else held.explain(f, *args, argnums=argnums, **kwargs), room)
    elif module:
        raise ValueError(f"module={module!r} selects a program in a folder that XLA wrote, and this is no folder")
    else:
        read = read_oom(text_of(error) if isinstance(error, BaseException) else os.fspath(error))
        read = read if room is None else replace(read, limit=room)
        found = explained(read, name, None if subject is None else _of_model(subject))
    if subject is None or (not found.ran_out and found.is_within_limit):
        return found
    changes = tuple(_changes(f, args, kwargs, argnums, found.limit, subject))
    unknown = () if found.limit is not None else (
        f"{'The text does not say' if found.ran_out else 'A dump does not say'} how much memory there is: give limit, "
        "such as limit='16GiB'.",
    )  # fmt: skip
    return replace(found, changes=changes, notes=(*found.notes, *unknown))


def explained(read: OomText, program: str = "", saved: Sequence[OomRow] | None = None) -> OutOfMemory:
    """The report of what a text says.

    Args:
      read: the text.
      program: the name of the function, if the text has none.
      saved: what its gradient saves, as rows, of which those of the text have the reasons; they are the rows if it
        lists no buffers. None if that is not known.
    """
    rows, name = tuple(_rows(read)), function_of(read.buffers) or program
    advice = tuple(_advice(read, rows, saved is not None))
    notes = () if rows or saved is not None else (
        "The text lists no buffers: give the program to see which lines hold them.",
    )  # fmt: skip
    is_modelled = saved is not None and not rows
    rows = _with_reasons(rows, saved or ()) or tuple(saved or ())
    return OutOfMemory(
        name, read.asked, read.limit, read.used, read.space, read.sums, rows, read.location, advice, (), is_modelled,
        notes,
    )  # fmt: skip


def text_of(error: BaseException) -> str:
    """An error with its traceback."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{frames}\n{message_of(error)}"


# --- rows -------------------------------------------------------------------------------------------------------------


def function_of(buffers: Sequence[OomBuffer]) -> str:
    """`train_step` of `jit(train_step)/jvp()/dot_general`; '' if no buffer has a name."""
    names = (re.match(r"p?jit\((\w+)\)|pmap\((\w+)\)", b.path) for b in buffers)
    return next((found[1] or found[2] for found in names if found), "")


def _rows(read: OomText) -> Iterator[OomRow]:
    """What the text lists, by line and operation, the most bytes first."""
    buffers = read.buffers
    is_kept = read.is_at_peak and any(_when(b) in ("backward", "recomputed") for b in buffers)
    rows = []
    for same in grouped(buffers, lambda b: (pattern(_what(b)), b.type, b.location, _when(b))):
        first, when, nbytes = same[0], _when(same[0]), sum(b.nbytes for b in same)
        padding = sum(b.nbytes - b.unpadded for b in same if b.unpadded is not None)
        why = "in memory while the backward pass runs: saved for it" if when == "forward" and is_kept else ""
        if padding > nbytes * _MUCH:
            why = f"{why}; " * bool(why) + f"{format_bytes(padding)} of it is padding"
        rows.append(
            OomRow(alike([_what(b) for b in same]), when, first.type, len(same), nbytes, padding, first.location, why)
        )
    return iter(sorted(rows, key=lambda r: -r.nbytes))


_SCOPES = re.compile(
    r"(?:p?jit|pmap|jvp|transpose|vmap|remat\d*|checkpoint)\(.*\)|main|while|body|cond|closed_call|core_call|checkpoint|rematted_computation|scan|shard_map"
)


def _path(b: OomBuffer) -> str:
    """JAX's name without the parameters that older versions add to the operation."""
    return re.sub(r"\[[^/]*[=].*$|\[\s.*$", "", b.path, flags=re.DOTALL)


def _what(b: OomBuffer) -> str:
    """`dot_general in encoder/layers_3/attention`."""
    if b.is_argument or not b.path:
        return "an argument" if b.is_argument else "a value without a name"
    *scopes, operation = _path(b).split("/")
    named = [s for s in scopes if not _SCOPES.fullmatch(s)]
    inside = re.findall(r"jvp\(([\w.]+)\)", b.path)
    return f"{operation} in {'/'.join([*inside, *named][-3:])}" if named or inside else operation


def _when(b: OomBuffer) -> When:
    if b.is_argument:
        return "argument"
    if not b.path:
        return ""
    name = OpName(_path(b), b.location)
    return "recomputed" if name.is_recomputed else name.stage


def _advice(read: OomText, rows: Sequence[OomRow], is_given: bool) -> Iterator[str]:
    needs = read.used or read.sums.get("in all") or 0
    padding = max(rows, key=lambda r: r.padding, default=None)
    if padding is not None and padding.padding > _MUCH * max(needs, 1):
        times = padding.nbytes / max(padding.nbytes - padding.padding, 1)
        yield (
            f"{padding.type} takes {times:.3g} times its elements, since a TPU pads the last two dimensions to tiles "
            "of 8 by 128: move a long dimension to the end, or merge short ones."
        )
    forward = [r for r in rows if r.when == "forward"]
    if forward and sum(r.nbytes for r in forward) > _MUCH * needs:
        r, kept = forward[0], any(r.why.startswith("in memory while") for r in forward)
        where = f" at {short_location(r.location)}" if r.location is not None else ""
        what = "is saved for the backward pass" if kept else "is computed in the forward pass"
        to_do = "put jax.checkpoint around the layer that computes it"
        yield (
            f"{format_bytes(sum(x.nbytes for x in forward))} of what is listed {what}, most of it `{r.what}`{where}: "
            f"{to_do if kept else f'if the backward pass needs it, {to_do}'}."
        )
    total = read.sums.get("in all", 0)
    if read.asked and total and read.limit and total < _MUCH * read.limit:
        yield f"The program takes {format_bytes(total)} of {format_bytes(read.limit)}; {_OTHERS}"
        return
    if read.asked and not rows and not read.sums and not is_given:
        yield (
            f"One allocation of {format_bytes(read.asked)} was asked for: give the program to see what it is, as in "
            "`jaxviz oom error.txt --of train.py:train_step --args …`, with all its arguments in order."
        )
        yield f"If the program needs less than there is, {_OTHERS}"
    results, arguments = read.sums.get("results", 0), read.sums.get("arguments", 0)
    if needs and results > _MUCH * needs and arguments > _MUCH * needs:
        yield (
            f"Results take {format_bytes(results)} beside {format_bytes(arguments)} of arguments: where a result "
            "replaces an argument, donate it, as in jax.jit(step, donate_argnames=('params', 'opt_state'))."
        )
    gaps = read.sums.get("unused gaps", 0)
    if needs and gaps > _MUCH * needs:
        yield f"{format_bytes(gaps)} are gaps between buffers, which are gone if less is in memory at the same time."


_OTHERS = (
    "something else may hold the memory: arrays that the process keeps (jax.live_arrays), compiled programs, or "
    "another process, such as a notebook, on the device."
)


def _of_dump(held: CompiledMemory, limit: int | None) -> OutOfMemory:
    """The report of a program that XLA dumped."""
    rows = tuple(
        OomRow(h.what, _OF_KIND.get(h.kind, ""), h.type, h.count, h.nbytes, 0, h.location, h.why) for h in held.at_peak
    )
    read = OomText(limit=limit, used=held.peak_nbytes)
    kept = sum(r.nbytes for r in rows if r.when == "forward")
    advice = (
        f"{format_bytes(kept)} at the peak are saved for the backward pass: put jax.checkpoint around the layers.",
    )
    return OutOfMemory(
        held.function,
        None,
        limit,
        read.used,
        "",
        {str(kind): n for kind, n in held.by_kind().items()},
        rows,
        None,
        advice if kept else (),
        notes=(*held.unreported.notes(held.peak_nbytes), *held.notes),
        ran_out=False,
    )


_OF_KIND: dict[str, When] = {"residual": "forward", "cotangent": "backward", "argument": "argument"}


# --- with the program -------------------------------------------------------------------------------------------------


def _with_reasons(rows: Sequence[OomRow], saved: Sequence[OomRow]) -> tuple[OomRow, ...]:
    """Rows of the forward pass with the name and the reason of the residual that they are: the only one of that type on
    that line, or the only one of these that the same operation computes."""
    place = lambda r: (r.location.file.rpartition("/")[2], r.location.line) if r.location is not None else None
    found = []
    for row in rows:
        same = [r for r in saved if r.location is not None and place(r) == place(row) and stacked(r.type) == row.type]
        operation = row.what.partition(" in ")[0]
        computes = lambda text, op=operation: text.partition(" in ")[0] == op or op in computed_last(text)
        one = same if len(same) == 1 else [r for r in same if computes(re.sub(r"^[\w, ]+ = ", "", r.what))]
        if row.when == "forward" and len(one) == 1:
            row = replace(row, what=one[0].what, why=one[0].why)
        found.append(row)
    return tuple(found)


def stacked(kind: str) -> str:
    """`f32[1000,8]` for `1,000 × f32[8]`, the values of a loop, which are one buffer."""
    n, times, of_each = kind.rpartition(" × ")
    lengths = n.replace(",", "").replace(" × ", ",")
    return (
        re.sub(r"\[(?=(.))", lambda m: f"[{lengths}{'' if m[1] == ']' else ','}", of_each, count=1) if times else kind
    )


def _of_model(d: Derivation) -> tuple[OomRow, ...]:
    """What the gradient saves, where the text lists nothing."""
    return tuple(
        OomRow(g.label, "forward", g.residuals[0].type, g.count, g.nbytes, 0, g.location, g.why)
        for g in d.residuals.groups if g.residuals[0].is_saved
    )  # fmt: skip


def _changes(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums, limit: int | None, d: Derivation
) -> Iterator[OomChange]:
    """Checkpoints, and for a training step donation."""
    try:
        plan = plan_remat(f, *args, argnums=argnums, memory=limit, of="compiled", **kwargs) if limit else None
        plan = plan or plan_remat(f, *args, argnums=argnums, **kwargs)
    except ValueError:  # nothing fits: the lowest peak
        plan = plan_remat(f, *args, argnums=argnums, **kwargs)
    if plan.regions:
        text, code, now = f"Checkpoints, {plan.around}", str(plan.code()), plan.coded
        if plan.compiled is not None and now is not None:
            yield _change(limit, text, plan.compiled[0].peak_nbytes, now.peak_nbytes, code, now.unreported)
        else:
            trade = plan.written.trade or plan.after
            yield _change(limit, text, memory(d).peak_nbytes, trade.peak_nbytes, code)
    if d.step is not None and not any(memory(d).donated):
        donated = tuple(could_donate(d.step.traced))
        before, after = (_compiled(f, args, kwargs, names) for names in ((), donated))
        if after.peak_nbytes < 0.99 * before.peak_nbytes:
            text = f"Donate what results replace, jax.jit({d.step.name}, donate_argnames={donated!r})"
            yield _change(limit, text, before.peak_nbytes, after.peak_nbytes, "", after.unreported)


def _change(
    limit: int | None, text: str, before: int, after: int, code: str, besides: Unreported | None = None
) -> OomChange:
    """A change; without `besides` its peaks are modelled."""
    most = after if besides is None else after + besides.most
    return OomChange(
        text, before, after, limit is not None and most <= limit, besides is not None, code, besides or NOTHING
    )


def _compiled(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]
) -> CompiledMemory:
    types = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x, (args, kwargs))
    lowered = jax.jit(f, donate_argnames=tuple(names)).lower(*types[0], **types[1])
    found: CompiledMemory = compiled_memory(lowered)
    return found
