"""Plans beside JAX's policies: the memory that a gradient takes on the device, its time, and whether XLA follows.

Each program is compiled in all its variants, then these run in the order of the memory that XLA says they take: the
device counts only the largest peak so far, so each variant has to exceed those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

import jax

import jaxviz
from benchmarks.device.compiled import as_counted, reserved
from benchmarks.device.device import (
    alone,
    is_accelerator,
    out_of_time,
    peak_nbytes,
    seconds,
    size,
    text_of_bytes,
    text_of_seconds,
    values,
)
from benchmarks.device.raw import keep
from benchmarks.device.rows import Row, guarded
from benchmarks.remat_programs import BUILT_IN, SMALL, Case, llama, mixture_of_experts, neural_ode, recurrent, unet

FULL: dict[str, Callable[[], Case]] = {
    "transformer, scanned": lambda: llama(8, True, 2048, 5504),
    "transformer, unrolled": lambda: llama(6, False, 2048, 5504),
    "MoE transformer, scanned": lambda: mixture_of_experts(6, True, 1024, 2048),
    "MoE transformer, unrolled": lambda: mixture_of_experts(4, False, 1024, 2048),
    "U-Net": lambda: unet(batch=4),
    "RNN": recurrent,
    "neural ODE": neural_ode,
}
SHARES = size((0.6,), (0.8, 0.6, 0.4))
"""Of the peak as written."""
_TO_RUN = 60.0
"""Seconds that are left for running what is compiled."""
FOLLOWS = 0.9
"""A plan lowers the device's peak as promised if at least this share of the promised bytes is gone."""


def case_of(name: str) -> Case:
    return (FULL if is_accelerator() else SMALL)[name]()


Variants = dict[str, Callable[..., Any]]


def plans_of(name: str) -> Iterator[Row]:
    case = case_of(name)
    variants: Variants = {"as written": case.plain}
    plans: dict[str, Any] = {}
    modelled = {"as written": jaxviz.memory(case.plain, *case.args).peak_nbytes}
    for share in SHARES:
        yield from guarded(name, f"plan at {share:.0%}",
        partial(_planned, case, share, modelled["as written"], plans, variants))  # fmt: skip
    modelled |= {label: plan.after.peak_nbytes for label, plan in plans.items()}
    for policy in list(BUILT_IN)[: size(1, None)]:
        variants[policy] = case.make(BUILT_IN[policy])
        modelled[policy] = jaxviz.memory(variants[policy], *case.args).peak_nbytes
    compiled = _compiled(variants, case.args)
    for how in [k for k, v in compiled.items() if isinstance(v, Exception)]:
        yield Row(name, f"compiling, {how}", "", f"{compiled.pop(how)}"[:200], False)
    compared = [] if out_of_time(_TO_RUN) else list(plans.items())[-1:]
    for label, plan in compared:
        yield from guarded(name, f"`verify()`, {label}", partial(_verified, name, label, plan, compiled))
    yield from guarded(
        name, "time and memory of the variants", partial(_run, name, compiled, plans, modelled, case.args)
    )


def _planned(case: Case, share: float, written: int, plans: dict[str, Any], variants: Variants) -> Iterator[Row]:
    label = f"plan at {share:.0%}"
    try:
        plan = jaxviz.plan_remat(case.plain, *case.args, memory=int(share * written))
    except ValueError:  # the message says which bound can be met; the lowest one is tried once
        if any(k.startswith("lowest") for k in plans):
            return
        label, plan = "lowest plan", jaxviz.plan_remat(case.plain, *case.args)
    plans[label] = plan
    variants[label] = plan.apply(case.plain)
    yield from ()


def _compiled(variants: Variants, args: Any) -> dict[str, Any]:
    """The compiled gradients, or the error of each that cannot be compiled; XLA uses several cores."""

    def compile(f: Callable[..., Any]) -> Any:
        if out_of_time(_TO_RUN):
            return TimeoutError("no time was left to compile it")
        try:
            return jax.jit(jax.value_and_grad(f)).lower(*args).compile()
        except Exception as error:
            return error

    first, *others = variants  # by itself: XLA remembers how it tuned the kernels that the others have too
    compiled = {first: compile(variants[first])}
    with ThreadPoolExecutor(size(1, 4)) as pool:
        return compiled | dict(zip(others, pool.map(compile, (variants[how] for how in others)), strict=True))


def _verified(name: str, label: str, plan: Any, compiled: dict[str, Any]) -> Iterator[Row]:
    found = plan.verify()
    keep(f"verify {name} {label}.txt", f"{plan}\n\n{found}")
    before, after = (reserved(compiled[how].memory_analysis()) for how in ("as written", label))
    falls = after < before
    yield Row(
        name, f"`verify()` of the {label}: peak in XLA's own figures",
        f"{text_of_bytes(before)} → {text_of_bytes(after)}",
        f"{text_of_bytes(found.before.peak_nbytes)} → {text_of_bytes(found.after.peak_nbytes)}",
        _near(found.before.peak_nbytes, before) and _near(found.after.peak_nbytes, after),
        note=found.summary.split(":")[0], figures={"happened": found.happened, "falls": falls},
    )  # fmt: skip


def _near(a: int, b: int) -> bool:
    return abs(a - b) <= 0.02 * max(a, b)


def _run(
    name: str, compiled: dict[str, Any], plans: dict[str, Any], modelled: dict[str, int], args: Any
) -> Iterator[Row]:
    sizes = {how: reserved(c.memory_analysis()) for how, c in compiled.items()}
    taken: dict[str, float] = {}
    peaks: dict[str, int] = {}
    with alone():
        given = jax.block_until_ready(values(args))
        for how in sorted(compiled, key=lambda h: sizes[h]):
            before = peak_nbytes()
            try:
                taken[how] = seconds(partial(compiled[how], *given), times=size(2, 5))
            except Exception as error:
                yield Row(name, f"running, {how}", "", f"{type(error).__name__}: {str(error).splitlines()[0][:160]}",
                False)  # fmt: skip
                continue
            if peak_nbytes() > before:
                peaks[how] = peak_nbytes()
        del given
    for how, s in taken.items():
        model = modelled.get(how, 0)
        counted = (
            f"{text_of_bytes(peaks[how])} counted" if how in peaks else f"{text_of_bytes(sizes[how])} by XLA's sum"
        )
        measured = peaks.get(how) or sizes[how]
        yield Row(
            name, f"peak, {how}", counted, f"{text_of_bytes(model)} modelled" if model else "",
            note=f"the model says {model / measured:.2f} of it" if model and is_accelerator() else "",
            figures={"peak": peaks.get(how), "xla": sizes[how], "modelled": model, "seconds": s},
        )  # fmt: skip
        yield Row(name, f"time of a gradient, {how}", text_of_seconds(s), "", is_timed=True, figures={"seconds": s})
    unlike = [how for how, peak in peaks.items() if not as_counted(peak, sizes[how])]
    yield Row(
        name, "peaks counted by the device as in XLA's sum", f"{len(peaks)} of {len(peaks)}",
        f"{len(peaks) - len(unlike)} of {len(peaks)}",
        not unlike if peaks else None, note=", ".join(f"{how}: {text_of_bytes(peaks[how])}, not "
                                                      f"{text_of_bytes(sizes[how])}" for how in unlike),
    )  # fmt: skip
    yield from _judged(name, sizes, plans, modelled)


def _judged(name: str, sizes: dict[str, int], plans: dict[str, Any], modelled: dict[str, int]) -> Iterator[Row]:
    """Whether XLA frees what the model promises, for plans and for JAX's policies, and a lower plan takes less."""
    written = sizes["as written"]
    for how in [h for h in sizes if h in modelled and h != "as written"]:
        promised, gone = modelled["as written"] - modelled[how], written - sizes[how]
        follows = gone >= FOLLOWS * promised
        yield Row(
            name, f"bytes that {how} frees", text_of_bytes(gone) if gone >= 0 else f"−{text_of_bytes(-gone)}",
            text_of_bytes(promised) if promised >= 0 else f"−{text_of_bytes(-promised)}",
            follows if is_accelerator() else None,
            note="" if follows else "XLA keeps more than the model says", figures={"promised": promised, "gone": gone},
        )  # fmt: skip
    order = [sizes[label] for label in plans if label in sizes]
    falls = all(a >= b * 0.99 for a, b in pairwise(order))
    yield Row(
        name, "a lower plan takes no more memory than a higher one", "yes", "yes" if falls else "no",
        falls if is_accelerator() else None,
        note=" ≥ ".join(map(text_of_bytes, order)),
    )  # fmt: skip


NAMES = size(("transformer, scanned", "MoE transformer, unrolled", "RNN"), tuple(FULL))
PARTS = {f"plans, {name}": partial(plans_of, name) for name in NAMES}
