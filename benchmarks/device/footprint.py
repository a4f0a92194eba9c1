"""What looking costs a device: the memory that each report takes there, and whether deriving is slower with a device's
arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

import jaxviz
from benchmarks.device.device import (
    MIB,
    alone,
    nbytes_in_use,
    peak_nbytes,
    seconds,
    size,
    stats,
    text_of_bytes,
    text_of_seconds,
    values,
)
from benchmarks.device.rows import Row, guarded
from benchmarks.models import transformer
from benchmarks.remat_programs import llama

MOST = MIB
"""The device memory that a report may take, unless it says that it compiles or runs the function."""

COMPILES = ("compiled_memory", "collectives", "donation")
"""The reports that say so: XLA tunes its kernels on the device while it compiles."""


def _reports(loss: Any, args: Any) -> dict[str, Callable[[], Any]]:
    def explored() -> Any:
        from jaxviz.features.explorer.columns import view_of
        from jaxviz.features.explorer.picture import overview_png
        from jaxviz.page.schema import encode

        view = view_of(jaxviz.derive(loss, *args))
        return encode(view), overview_png(view)

    found = {
        "derive": lambda: jaxviz.derive(loss, *args).backward, "explore, and its picture": explored,
        "residuals": lambda: str(jaxviz.residuals(loss, *args)), "memory": lambda: str(jaxviz.memory(loss, *args)),
        "cost": lambda: str(jaxviz.cost(loss, *args)), "lint": lambda: str(jaxviz.lint(loss, *args)),
        "policies": lambda: str(jaxviz.policies(loss, *args)),
        "plan_remat": lambda: str(jaxviz.plan_remat(loss, *args)),
        "compare": lambda: str(jaxviz.compare(loss, lambda *xs: 2 * loss(*xs), *args)),
        "draw": lambda: jaxviz.draw(loss, *args).svg, "check": lambda: str(jaxviz.derive(loss, *args).check()),
        "compiled_memory": lambda: str(jaxviz.compiled_memory(loss, *args)),
        "collectives": lambda: str(jaxviz.collectives(loss, *args)),
        "donation": lambda: str(jaxviz.donation(jax.jit(jax.grad(loss), donate_argnums=0), *args)),
    }  # fmt: skip
    # It is not among what such a machine has.
    return found if find_spec("graphviz") else {name: report for name, report in found.items() if name != "draw"}


def memory_of_reports() -> Iterator[Row]:
    case = llama(*size((4, True, 64, 128), (8, True, 1024, 2816)), length=size(64, 1024), words=size(100, 8000))
    args = jax.block_until_ready(values(case.args))
    given = sum(x.nbytes for x in jax.tree.leaves(args))
    filling: list[Any] = []
    for name, report in _reports(case.plain, args).items():
        yield from guarded(name, "memory of the device", partial(_memory_of, name, report, given, filling))


def _memory_of(name: str, report: Callable[[], Any], given: int, filling: list[Any]) -> Iterator[Row]:
    # The device counts only the largest peak so far: what is allocated first fills up to it.
    gap = peak_nbytes() - nbytes_in_use()
    if gap > MIB // 8:
        filling.append(jax.block_until_ready(jax.jit(partial(jnp.zeros, gap // 4))()))
    before, in_use = peak_nbytes(), nbytes_in_use()
    report()
    taken, left = peak_nbytes() - before, nbytes_in_use() - in_use
    question = "memory that it takes on the device"
    compiles = name in COMPILES
    allowed = "it says that it compiles" if compiles else f"at most {text_of_bytes(MOST)}"
    if not stats():
        yield Row(name, question, allowed, "not reported by this device", note=f"arguments of {text_of_bytes(given)}")
        return
    yield Row(
        name, question, allowed, text_of_bytes(taken), None if compiles else taken <= MOST,
        note=f"beside arguments of {text_of_bytes(given)}{f'; keeps {text_of_bytes(left)}' if left > 2**16 else ''}",
        figures={"taken": taken, "left": left, "gap": before - in_use},
    )  # fmt: skip


def speed() -> Iterator[Row]:
    """Deriving, with the arguments and the default device on the CPU and on the device."""
    f, args = transformer(size(4, 12))
    taken: dict[str, list[float]] = {"cpu": [], "device": []}
    try:
        host = jax.devices("cpu")[0]
    except RuntimeError:
        yield Row("transformer", "time of deriving on the CPU", "", "there is no CPU backend")
        return
    there = {"cpu": jax.device_put(args, host), "device": jax.device_put(args, jax.devices()[0])}

    def derive(where: str) -> float:
        with jax.default_device(host if where == "cpu" else None):
            return seconds(lambda: jaxviz.derive(lambda *xs: f(*xs), *there[where]).backward, times=1, before=0)

    with alone():
        for k in range(size(4, 8)):
            for where in taken:
                s = derive(where)
                if k:
                    taken[where].append(s)
    cpu, device = min(taken["cpu"]), min(taken["device"])
    yield Row(
        "transformer", "time of deriving, with arguments on the CPU and on the device", text_of_seconds(cpu),
        text_of_seconds(device),
        device <= 1.15 * cpu if size(False, True) else None, True, f"{device / cpu:.2f} ×",
        figures={"ratio": device / cpu},
    )  # fmt: skip


PARTS = {"memory of the reports": memory_of_reports, "speed of deriving": speed}
