"""The memory of compiled gradients: as jaxviz reports it, as XLA sums it up, and as the device counts it; values moved
to the host."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax

import jaxviz
from benchmarks.device.device import (
    MIB,
    alone,
    device,
    nbytes_in_use,
    peak_nbytes,
    seconds,
    stats,
    text_of_bytes,
    text_of_seconds,
    values,
)
from benchmarks.device.programs import OFFLOADED, SAVED, Subject, named, offload_args, subjects
from benchmarks.device.raw import keep
from benchmarks.device.rows import Row, guarded

ATTRIBUTED = 0.95
"""The share of the temporaries whose line should be known."""


def memory_of(name: str) -> Iterator[Row]:
    subject = subjects()[name]
    compiled = subject.jitted().lower(*subject.args).compile()
    keep(f"{name}.hlo.txt", compiled.as_text() or "")
    memory = compiled.memory_analysis()
    keep(f"{name}.buffers.pb", getattr(memory, "serialized_buffer_assignment_proto", b"") or b"")
    reports: list[Any] = []
    yield from guarded(name, "compiled memory", partial(_reported, name, subject, memory, reports))
    yield from guarded(name, "memory that the device counts", partial(_on_the_device, name, subject, compiled, memory))


def reserved(memory: Any) -> int:
    """Bytes that a run needs, from JAX's memory analysis."""
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return int(taken - memory.alias_size_in_bytes)


def as_counted(counted: int, expected: int) -> bool:
    """Whether the device counts as many bytes as XLA's sum; its allocator may give a program up to 128 MiB more than it
    asks for."""
    return -0.02 * expected <= counted - expected <= 0.02 * expected + 128 * MIB


def _reported(name: str, subject: Subject, memory: Any, reports: list[Any]) -> Iterator[Row]:
    found = jaxviz.compiled_memory(subject.fun, *subject.args)
    reports.append(found)
    keep(f"{name}.report.txt", str(found))
    held = sum(h.nbytes for h in found.at_peak)
    parts = found.argument_nbytes, found.result_nbytes, found.temp_nbytes
    theirs = (
        memory.argument_size_in_bytes, memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
    )  # fmt: skip
    # JAX pads no argument that jaxviz would not, so the sums are equal, not near.
    yield Row(
        name, "arguments, results, temporaries of the compiled gradient", " + ".join(map(text_of_bytes, theirs)),
        " + ".join(map(text_of_bytes, parts)), tuple(parts) == tuple(theirs), figures={"theirs": theirs, "ours": parts},
    )  # fmt: skip
    yield Row(
        name, "rows at the peak add up", text_of_bytes(found.reserved_nbytes), text_of_bytes(held),
        held == found.reserved_nbytes,
    )  # fmt: skip
    # Gaps between the buffers hold nothing.
    alive = [h for h in found.temporaries if h.kind != "unused"]
    share = sum(h.nbytes for h in alive if h.location is not None) / sum(h.nbytes for h in alive)
    yield Row(
        name, "share of the temporaries at the peak with a line", f"at least {ATTRIBUTED:.0%}", f"{share:.1%}",
        share >= ATTRIBUTED,
        note="; ".join(f"{h.kind} {h.what} {text_of_bytes(h.nbytes)}" for h in alive[:6] if h.location is None),
        figures={"summary": found.summary, "by kind": found.by_kind()},
    )  # fmt: skip


def _on_the_device(name: str, subject: Subject, compiled: Any, memory: Any) -> Iterator[Row]:
    """Runs the compiled program; the device's own peak is above what was allocated before only if the run takes more
    than tuning did."""
    with alone():
        args = jax.block_until_ready(values(subject.args))
        before, tuned = nbytes_in_use(), peak_nbytes()
        result = jax.block_until_ready(compiled(*args))
        peak = peak_nbytes()
        del result
    expected = reserved(memory) + before - int(memory.argument_size_in_bytes)
    if not stats():
        yield Row(name, "peak that the device counts", "", "not reported by this device")
        return
    if peak <= tuned:
        yield Row(
            name, "peak that the device counts", f"at most {text_of_bytes(tuned)}", text_of_bytes(expected),
            expected <= tuned + MIB,
            note="tuning while compiling took as much",
        )  # fmt: skip
        return
    yield Row(
        name, "peak that the device counts", text_of_bytes(peak), text_of_bytes(expected), as_counted(peak, expected),
        figures={"peak": peak, "expected": expected, "stats": stats()},
    )  # fmt: skip


def offload() -> Iterator[Row]:
    """Whether values are moved to the host, how long that takes, and how much of it is hidden behind computation."""
    args = offload_args()
    losses = {"offloaded": named(OFFLOADED), "saved": named(SAVED), "recomputed": named(None)}
    compiled = {how: jax.jit(jax.value_and_grad(f)).lower(*args).compile() for how, f in losses.items()}
    keep("offload.hlo.txt", compiled["offloaded"].as_text() or "")
    checkpoints = jaxviz.residuals(losses["offloaded"], *args).checkpoints
    moved = sum(c.runs * v.nbytes for c in checkpoints for v in c.values if v.fate == "offloaded")
    memory = compiled["offloaded"].memory_analysis()
    on_host = int(memory.host_temp_size_in_bytes)
    yield Row(
        "scan", "bytes moved to the host's memory", text_of_bytes(on_host), text_of_bytes(moved),
        on_host == moved if on_host else None,
        note="" if on_host else "XLA keeps them on the device",
    )  # fmt: skip
    plan = jaxviz.plan_remat(
        losses["saved"], *args, offload="50GB/s, 100TFLOP/s", memory=_enough(losses["saved"], args)
    )
    found = plan.verify()
    keep("offload.plan.txt", f"{plan}\n\n{found}")
    yield Row(
        "scan", "`plan_remat(offload=…)` moves values, and `verify()` says so", "", found.summary, None,
        figures={"offloads": found.offloads, "offloaded": plan.offloaded, "on host": found.after.on_host},
    )  # fmt: skip
    with alone():
        given = values(args)
        taken = {how: seconds(partial(run, *given), times=3) for how, run in compiled.items()}
        across = _transfer(moved or 4 * MIB)
    for how, s in taken.items():
        yield Row("scan", f"time of a gradient, {how}", "", text_of_seconds(s), is_timed=True, figures={"seconds": s})
    if across is not None and on_host:
        extra = taken["offloaded"] - taken["saved"]
        hidden = 1 - extra / across
        yield Row(
            "scan", "time of the transfers there and back", text_of_seconds(across), text_of_seconds(max(extra, 0.0)),
            None, True,
            note=f"{min(max(hidden, 0.0), 1.0):.0%} of it overlaps with computation; {2 * moved / across / 1e9:.1f} "
                 "GB/s",
            figures={"transfer": across, "extra": extra},
        )  # fmt: skip


def _enough(loss: Any, args: Any) -> int:
    """A bound that needs a plan."""
    return int(0.7 * jaxviz.memory(loss, *args).peak_nbytes)


def _transfer(nbytes: int) -> float | None:
    """Seconds to move this much to the host's pinned memory and back; None if the device has no such memory."""
    kinds = {m.kind for m in device().addressable_memories()}
    if "pinned_host" not in kinds:
        return None
    here = jax.sharding.SingleDeviceSharding(device(), memory_kind="device")
    there = jax.sharding.SingleDeviceSharding(device(), memory_kind="pinned_host")
    x = jax.block_until_ready(jax.numpy.ones(nbytes // 4))
    return seconds(lambda: jax.device_put(jax.block_until_ready(jax.device_put(x, there)), here), times=3)


NAMES = tuple(subjects())
PARTS = {f"compiled memory, {name}": partial(memory_of, name) for name in NAMES} | {"offload": offload}
