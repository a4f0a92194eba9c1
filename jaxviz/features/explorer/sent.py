"""What the explorer sends: its view in one or several messages, and other texts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from jaxviz.analysis.devices import default_device
from jaxviz.derivation import Derivation
from jaxviz.features.cost.parts import cost_of
from jaxviz.features.explorer.columns import ViewMaker, compared_with_jax
from jaxviz.features.explorer.messages import DeviceSpeed
from jaxviz.ir.primitives import plain
from jaxviz.page.html import fit_to_show
from jaxviz.page.schema import View, encode, pack
from jaxviz.page.texts import first_line, fit
from jaxviz.runtime.speed import measured_speed

if TYPE_CHECKING:
    from jaxviz.features.explorer.whatif import Switches

_AT_ONCE = 10_000
"""Above this many equations, over all stages, their groups, the memory and the details are sent after the rest is
displayed."""

_COMPARED_AT_ONCE = 1_000
"""Above this many, the comparison with JAX comes after everything is displayed, since JAX takes as long as everything
else."""


def first_payload(maker: ViewMaker) -> tuple[bytes, View | None]:
    """What is sent first, and the corresponding view if more follows."""
    n = maker.first.n_equations
    shown = fit_to_show(maker.first if n > _AT_ONCE else maker.complete)
    if n <= _COMPARED_AT_ONCE:
        shown = replace(shown, check=fit(compared_with_jax(maker.derivation)))
    return pack(encode(shown)), None if shown.is_whole else shown


def outline_payload(maker: ViewMaker) -> bytes:
    """What the overview begins with, before the programs are derived; nothing if there is no gradient."""
    try:
        return pack(encode(fit_to_show(maker.outline())))
    except Exception:  # the view that follows says why
        return b""


def added_payload(view: View, sent: View) -> tuple[bytes, View]:
    """What a view adds to the one that was sent, as a message, and that view."""
    shown = fit_to_show(view)
    return pack(encode(shown, known=sent)), shown


def as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def code_of(switches: Switches, key: str) -> str:
    """The code for a setting, or why there is none."""
    try:
        code: str = fit(switches.written(key).text)
        return code
    except Exception as error:
        return f"# {first_line(error)}"


def speed_of(derivation: Derivation) -> str:
    """What the default device does in a second, in products of the type that most FLOPs of a function have."""
    flops: dict[str, int] = {}
    for _, e in derivation.primal.walk():
        if plain(e.primitive.name).kind in ("product", "convolution"):
            dtype = e.operation.in_avals[0].dtype.name
            flops[dtype] = flops.get(dtype, 0) + cost_of(e).flops
    try:
        speed = measured_speed(default_device(), max(flops, key=flops.__getitem__, default="float32"))
        return as_json(asdict(speed))
    except Exception as error:  # such as a type that the device lacks
        return as_json(DeviceSpeed(device="", dtype="", flops=0, bandwidth=0, error=first_line(error)))


def without_memory(compiled: str) -> str:
    """A compiled program without everything that contains source expressions: the memory, the collectives, and the
    description of equal blocks."""
    message = json.loads(compiled)
    notes = message.get("notes", [])[1 if message.get("isBlock") else 0 :]
    return as_json({**message, "memory": None, "exchanges": None, "block": "", "notes": notes})


_NOT_IN_THE_PAGE = "It was not compiled when this page was saved; `save_html(path, compiled=True)` compiles it."


def saved_compiled(compiled: str, source: bool) -> str:
    """The compiled program for a page without a kernel, or a text that says that it is not there.

    Args:
      compiled: the program as it was sent; '' if it was not compiled.
      source: whether to include expressions of the user's source.
    """
    return (compiled if source or not compiled else without_memory(compiled)) or as_json({"error": _NOT_IN_THE_PAGE})


_SAVED = 2.0
"""Seconds of CPU time for the settings of a saved page: those next to the current one, and then others."""


def saved_switches(switches: Switches, key: str, source: bool) -> dict[str, str]:
    """The switches for a page without a kernel; computes the figures of settings one or two switches away.

    Args:
      switches: the switches.
      key: the current setting.
      source: whether to include expressions and code of the user's source.
    """
    switches.trade(key)
    if key:
        switches.fill([switches.flipped(key, i) for i in range(len(switches.regions))], _SAVED)
    switches.fill([*switches.first_keys, *switches.next_keys], _SAVED)
    state = {"what_if": as_json(switches.table(source)), "switches": key}
    if key:
        state["drawn"] = as_json(switches.drawn(key, source))
    if source:
        state["written"] = as_json({"key": key, "text": code_of(switches, key)})
    return state
