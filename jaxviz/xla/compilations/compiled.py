"""How a jitted call was compiled: its devices, the layouts of values, and the effect of donation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxviz.analysis.devices import default_device
from jaxviz.analysis.donation import Donation, NameOf, match_donations, why_not
from jaxviz.analysis.grouping import alike, grouped, pattern
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr
from jaxviz.ir.stack import usual_stack
from jaxviz.ir.syntax import Atom, Program
from jaxviz.report.charts import Bars
from jaxviz.report.report import Report, Table
from jaxviz.report.tables import counted, device_names, device_text, format_bytes, more_rows, nbytes, repeated
from jaxviz.runtime.cache import function_name
from jaxviz.runtime.stoppable import compiled_by_jax


@dataclass(frozen=True, slots=True)
class Placed:
    """An argument or a result of a compiled call.

    Args:
      path: such as `params['w']`, or `result[0]`.
      type: such as `f32[8,4]`.
      nbytes: the bytes of the whole value.
      nbytes_per_device: the bytes on one device; None for an argument that the compiled program does not take.
      layout: the mesh axes over which each dimension is split, such as `P('i',)`; '' on one device.
      note: the effect of donation.
    """

    path: str
    type: str
    nbytes: int
    nbytes_per_device: int | None
    layout: str
    note: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class CompileReport(Report, schema="jit.report"):
    """How a jitted call was compiled: devices, layouts and donated arguments.

    >>> step = jaxviz.jit(loss)
    >>> step.report(params, x).temporary

    Args:
      function: the name of the function.
      devices: the devices that it runs on, such as 'cpu:0'.
      chosen_by: what determined the devices.
      arguments, results: see `Placed`.
      static: the values of static arguments, by name.
      donations: the effect of each donated argument, by its index among the flat arguments.
      temporary: bytes of XLA's temporary memory on one device; None if the backend does not report them.
    """

    function: str
    devices: tuple[str, ...]
    chosen_by: str
    arguments: tuple[Placed, ...]
    results: tuple[Placed, ...]
    static: dict[str, str]
    donations: tuple[Donation, ...]
    temporary: int | None

    @property
    def backend(self) -> str:
        """'cpu', 'gpu' or 'tpu'."""
        return self.devices[0].split(":")[0]

    @property
    def summary(self) -> str:
        """`update on 8 devices, cpu:0 to cpu:7, where its argument batch lies`."""
        n = len(self.devices)
        head = f"{self.function} on {device_text(self.devices)}, {self.chosen_by}"
        used = [d for d in self.donations if d.result is not None]
        if self.donations:
            reused = sum(self.arguments[d.argument].nbytes for d in used)
            head += (
                f"; {len(used)} of {counted(len(self.donations), 'donated argument')} reused, {format_bytes(reused)}"
            )
        if self.temporary is not None:
            head += f"; temporaries {format_bytes(self.temporary)}{' a device' if n > 1 else ''}"
        return head

    def _chart(self) -> Bars:
        taken = {self.results[d.result] for d in self.donations if d.result is not None}
        kind = lambda p: "argument" if p in self.arguments else "spared" if p in taken else "result"
        size = lambda g: sum(p.nbytes_per_device or 0 for p in g)
        rows = [(alike([p.path for p in g]), size(g), kind(g[0])) for g in self._groups]
        rows += [("temporaries", self.temporary or 0, "temporary")]
        return Bars(rows, f"bytes of a call of {self.function} on {'a' if len(self.devices) > 1 else 'the'} device")

    @property
    def _groups(self) -> list[tuple[Placed, ...]]:
        """The arguments, then the results, with those of repeated layers combined."""
        repeats = lambda p: (pattern(p.path), p.type, p.nbytes_per_device, p.layout, pattern(p.note))
        return [*grouped(self.arguments, repeats), *grouped(self.results, repeats)]

    def _parts(self) -> Iterator[Table]:
        several = len(self.devices) > 1
        size = lambda g: sum(p.nbytes for p in g)
        groups = sorted(self._groups, key=lambda g: -size(g))
        part = lambda g: format_bytes(sum(p.nbytes_per_device or 0 for p in g))
        on_one = lambda g: "" if g[0].nbytes_per_device is None else part(g)
        blank = ("", "") if several else ()
        static = [(name, "static", "", *blank, f"= {value}") for name, value in self.static.items()]
        rows = [
            (
                alike([p.path for p in g]), repeated(len(g), g[0].type), format_bytes(size(g)),
                *((on_one(g), g[0].layout) if several else ()), alike([p.note for p in g]),
            )
            for g in groups
        ]  # fmt: skip
        rest = lambda n: groups[max(0, n - len(static)) :]
        more = lambda n: more_rows(len(rest(n)), sum(map(len, rest(n))), "value", format_bytes(sum(map(size, rest(n)))))
        heads = ("name", "type", "bytes", *(("a device", "layout") if several else ()), "")
        yield Table(heads, [*static, *rows], "<<>><<" if several else "<<><", more=more)


@usual_stack
def report_compiled(
    fun: Callable[..., Any], traced: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> CompileReport:
    """The report of a call that `jax.jit` has traced; see `jaxviz.jit`."""
    compiled = compiled_by_jax(traced.lower())
    program = read_jaxpr(traced.jaxpr)
    donated = [i.donated for i in jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))]
    arguments, static = _arguments(fun, args, kwargs, options)
    names = [path for path, _ in arguments]
    in_shardings = input_shardings(compiled, program)
    out_shardings = _by_value(compat.output_shardings(compiled, len(_numbers(program.outvars))), program.outvars)
    taken = [s is not None for s in in_shardings]
    results = result_paths(traced)
    donations = as_compiled(program, donated, compiled, taken, results.__getitem__)
    unread = "not part of the compiled program: nothing reads it"
    notes = {i: "" if is_taken else unread for i, is_taken in enumerate(taken)}
    takes: dict[int, str] = {}
    for d in donations:
        if d.result is None:
            notes[d.argument] = f"donated, but {d.reason}"
        else:
            notes[d.argument] = f"donated: {results[d.result]} reuses its memory"
            takes[d.result] = f"in the memory of {names[d.argument]}"
    shardings = [s for s in (*in_shardings, *out_shardings) if s is not None]
    # A program that reads no argument and returns nothing has no shardings.
    placed = shardings or [x.sharding for _, x in arguments if isinstance(x, jax.Array) and x.committed]
    devices = device_names(d for s in placed for d in s.device_set) or device_names([default_device()])
    memory = compiled.memory_analysis()
    inputs = zip(names, program.invars, in_shardings, strict=True)
    outputs = zip(results, program.outvars, out_shardings, strict=True)
    return CompileReport(
        function_name(fun), devices, _chosen_by(options, arguments, len(devices)),
        tuple(_placed(*of_input, notes[i]) for i, of_input in enumerate(inputs)),
        tuple(_placed(*of_output, takes.get(k, "")) for k, of_output in enumerate(outputs)),
        static, donations, None if memory is None else int(memory.temp_size_in_bytes),
    )  # fmt: skip


def input_shardings(compiled: Any, program: Program) -> list[Any]:
    """The sharding of each input of a program, or of its first array; None if the compiled program leaves it out."""
    return _by_value(compiled.in_tree.flatten_up_to(compiled.input_shardings), program.invars)


def compiled_inputs(program: Program, taken: Sequence[bool]) -> list[int]:
    """For each input of a compiled program the number of the argument that it belongs to."""
    return [i for i in _numbers(program.invars) if taken[i]]


def _by_value(of_arrays: Sequence[Any], atoms: Sequence[Atom]) -> list[Any]:
    """For each value what is given for the first of its arrays."""
    by_value = dict(zip(reversed(_numbers(atoms)), reversed(of_arrays), strict=True))
    return [by_value.get(i) for i in range(len(atoms))]


def _numbers(atoms: Sequence[Atom]) -> list[int]:
    """For each array of a compiled program the number of the value that it belongs to."""
    return [i for i, a in enumerate(atoms) for _ in compat.array_types(a.type_with_state)]


def result_paths(traced: Any) -> list[str]:
    """`result[0]['w']` for each result of a call traced by `jax.jit`."""
    return [f"result{jax.tree_util.keystr(p)}" for p, _ in jax.tree_util.tree_leaves_with_path(traced.out_info)]


def _placed(path: str, atom: Atom, sharding: Any, note: str) -> Placed:
    kind, aval = atom.aval.str_short(short_dtypes=True), atom.type_with_state
    if sharding is None:
        return Placed(path, kind, nbytes(aval), None, "", note)
    return Placed(path, kind, nbytes(aval), bytes_on_one(aval, sharding), layout_of(sharding), note)


def bytes_on_one(aval: Any, sharding: Any) -> int:
    """The bytes of a value on one device."""
    return sum(math.prod(sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in compat.array_types(aval))


def layout_of(sharding: Any) -> str:
    """How a value is laid out over several devices: `P('i', None)`, `replicated`; '' on one."""
    if len(sharding.device_set) == 1:
        return ""
    if sharding.is_fully_replicated:
        return "replicated"
    spec = getattr(sharding, "spec", None)
    return f"P({', '.join(map(repr, spec.partitions))})" if spec is not None else str(sharding)


def as_compiled(
    program: Program, donated: Sequence[bool], compiled: Any, taken: Sequence[bool], name: NameOf
) -> tuple[Donation, ...]:
    """What JAX planned for donated arguments, corrected by what XLA reports.

    Args:
      program: the jitted function.
      donated: for each of its arguments whether it is donated.
      compiled: a `jax.stages.Compiled`, or what XLA has compiled, as JAX holds it.
      taken: for each argument whether it is part of the compiled program.
      name: of a result, in a sentence.
    """
    planned = match_donations(program, donated, name)
    pairs = aliases_of(compiled)
    place, results = compiled_inputs(program, taken), _numbers(program.outvars)
    if pairs is None or any(i >= len(place) or k >= len(results) for i, k in pairs.items()):
        return planned  # XLA does not say, or there are tokens among its inputs
    result_of = {place[i]: results[k] for i, k in pairs.items()}
    return tuple(_corrected(program, d, result_of, taken[d.argument], compiled, name) for d in planned)


def aliases_of(compiled: Any) -> dict[int, int] | None:
    """For inputs of a compiled program, the results that reuse their memory; None if the backend provides no text."""
    head = _head(compiled)
    if head is None:
        return None
    match = re.search(r"input_output_alias=\{(.*?)\}, \w+=", head)
    pairs = re.findall(r"\{(\d*)\}: \((\d+), ", match.group(1)) if match else []
    return {int(i): int(k or 0) for k, i in pairs}


def donated_inputs(compiled: Any) -> frozenset[int]:
    """The inputs whose memory a compiled program takes, reused or not; empty if the backend provides no text."""
    match = re.search(r"buffer_donor=\{(.*?)\}, \w+=", _head(compiled) or "")
    offered = re.findall(r"\((\d+), ", match.group(1)) if match else []
    return frozenset({*(aliases_of(compiled) or ()), *map(int, offered)})


def _head(compiled: Any) -> str | None:
    """The first line of the text of a compiled program; None if the backend provides no text."""
    try:
        text = compiled.as_text() if hasattr(compiled, "as_text") else compiled.hlo_modules()[0].to_string()
        return str(text).split("\n", 1)[0]
    except Exception:
        return None


def _corrected(
    program: Program, planned: Donation, result_of: dict[int, int], is_taken: bool, compiled: Any, name: NameOf
) -> Donation:
    i = planned.argument
    if i in result_of:
        return Donation(i, result_of[i])
    if planned.result is not None:
        other = _laid_out_otherwise(compiled, program, i, planned.result, name(planned.result))
        same = f"XLA did not reuse its memory for {name(planned.result)}, which has the same type"
        return Donation(i, None, other or same)
    reason = why_not(program, i, is_taken, set(result_of.values()), planned.offered, name, is_final=True)
    return Donation(i, None, reason, planned.offered)


def _laid_out_otherwise(compiled: Any, program: Program, i: int, k: int, result: str) -> str:
    """How the memory layouts of an argument and a result with equal types differ; '' if they do not, or if only what
    XLA has compiled is there."""
    if not hasattr(compiled, "input_formats"):
        return ""
    argument = _by_value(compiled.in_tree.flatten_up_to(compiled.input_formats), program.invars)[i]
    result_format = _by_value(jax.tree.leaves(compiled.output_formats), program.outvars)[k]
    if argument is None or argument.sharding is None or result_format.sharding is None:
        return ""
    kinds = argument.sharding.memory_kind, result_format.sharding.memory_kind
    if kinds[0] != kinds[1]:
        return f"{result} has its type but is in {kinds[1]} memory, and the argument is in {kinds[0]} memory"
    places = layout_of(argument.sharding), layout_of(result_format.sharding)
    if places[0] != places[1]:
        return (
            f"{result} has its type but the layout {places[1] or 'on one device'}, and the argument has "
            f"{places[0] or 'on one device'}"
        )
    if argument.layout != result_format.layout:
        return f"{result} has its type but a different order of dimensions in memory"
    return ""


def _arguments(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Each flat argument that is not static with its path; and the static ones, written out."""
    names, argnums, argnames = compat.parameters(fun, len(args), options)
    dynamic: list[tuple[str, Any]] = []
    static: dict[str, str] = {}
    for name, x in [*zip(names, args, strict=True), *sorted(kwargs.items())]:
        if name in argnames or any(names[i] == name for i in argnums if -len(names) <= i < len(names)):
            static[name] = repr(x)
        else:
            dynamic += [(name + jax.tree_util.keystr(p), leaf) for p, leaf in jax.tree_util.tree_leaves_with_path(x)]
    return dynamic, static


def _chosen_by(options: dict[str, Any], arguments: Sequence[tuple[str, Any]], n_devices: int) -> str:
    for name in ("device", "backend"):
        if options.get(name) is not None:
            return f"asked for by {name}={options[name]}"
    for path, x in arguments:
        if isinstance(x, jax.Array) and not compat.is_tracer(x) and x.committed:
            return f"where its argument {path} is"
    return "the mesh that it specifies" if n_devices > 1 else "the default device"
