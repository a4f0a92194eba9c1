"""The layers of the model with 7 billion parameters: how many fit on the device as written, and with a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax

import jaxviz
from benchmarks.device.compiled import reserved
from benchmarks.device.device import (
    alone,
    is_accelerator,
    peak_nbytes,
    seconds,
    size,
    stats,
    text_of_bytes,
    text_of_seconds,
    values,
)
from benchmarks.device.rows import Row, guarded
from benchmarks.remat_programs import llama


def largest_model() -> Iterator[Row]:
    """The model with 7 billion parameters: the most layers whose gradient fits on the device as written, and with a
    plan for it."""
    total = stats().get("bytes_limit", 0)
    name = "transformer with layers of the 7B model"
    sizes = size({"width": 64, "hidden": 128, "length": 128, "words": 100}, {"batch": 2})
    room = int(0.9 * total) if total else 32 * 2**20
    written, planned = (_deepest(sizes, room, with_plan) for with_plan in (False, True))
    if not written or not planned:
        yield Row(name, "layers that fit", "", f"as written {written}, with a plan {planned}", None)
        return
    yield Row(
        name, f"layers whose gradient the model says fits in {text_of_bytes(room)}", str(written), str(planned),
        planned > written,
        note="expected: as written; jaxviz: with a plan",
    )  # fmt: skip
    for how, n in (("as written", written), ("with a plan", planned)):
        yield from guarded(name, f"{n} layers {how}", partial(_deep, name, how, n, sizes, room))


def _deepest(sizes: dict[str, Any], room: int, with_plan: bool) -> int:
    """The largest of some depths that fits, by the model."""
    found = 0
    for n in size((4, 16), (8, 16, 24, 32, 48, 64)):
        case = llama(n, True, **sizes)
        try:
            if with_plan:
                jaxviz.plan_remat(case.plain, *case.args, memory=room)
            elif jaxviz.memory(case.plain, *case.args).peak_nbytes > room:
                break
        except ValueError:
            break
        found = n
    return found


def _deep(name: str, how: str, n: int, sizes: dict[str, Any], room: int) -> Iterator[Row]:
    case = llama(n, True, **sizes)
    f, modelled = case.plain, jaxviz.memory(case.plain, *case.args).peak_nbytes
    if how == "with a plan":
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=room)
        f, modelled = plan.apply(case.plain), plan.after.peak_nbytes
    compiled = jax.jit(jax.value_and_grad(f)).lower(*case.args).compile()
    expected = reserved(compiled.memory_analysis())
    with alone():
        before = peak_nbytes()
        given = jax.block_until_ready(values(case.args))
        s = seconds(partial(compiled, *given), times=2)
        peak = peak_nbytes()
        del given
    counted = text_of_bytes(peak) if peak > before else "not counted"
    yield Row(
        name, f"peak on the device, {n} layers {how}", f"{text_of_bytes(expected)} by XLA's own sum",
        f"{text_of_bytes(modelled)} by the model",
        _within(modelled, peak or expected) if is_accelerator() else None, note=f"the device counts {counted}",
        figures={"peak": peak, "xla": expected, "modelled": modelled},
    )  # fmt: skip
    yield Row(name, f"time of a gradient, {n} layers {how}", "", text_of_seconds(s), is_timed=True,
    figures={"seconds": s})  # fmt: skip


def _within(modelled: int, real: int) -> bool:
    """Whether the model is right to a tenth."""
    return abs(modelled - real) <= 0.1 * real


PARTS = {"the 7B model": largest_model}
