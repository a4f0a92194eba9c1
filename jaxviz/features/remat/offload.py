"""The cost of offloading values to the host and back: the bandwidth, and what the device could compute meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.report.sizes import read_size
from jaxviz.report.tables import format_bytes, format_seconds
from jaxviz.runtime.speed import least_seconds, product_speed

DEVICE, HOST = "device", "pinned_host"
"""Kinds of memory between which values are moved."""
_FORMS = "a bandwidth such as '50GB/s', or True to measure it; '50GB/s, 400TFLOP/s' also gives the speed of the device"
_SPEED = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?)flop(?:s|/s)", re.IGNORECASE)
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_USUAL_SPEED = 1e14
"""The default FLOP/s: the order of magnitude of an accelerator's matrix products."""
_MEASURED_NBYTES = 2**26


@dataclass(frozen=True, slots=True)
class Offload:
    """How values are moved between a device and its host.

    Args:
      bandwidth: bytes per second, one way.
      speed: FLOPs per second of the device, to weigh transfers against recomputation.
      is_measured: whether both were measured on the default device.
      speed_is_given: whether the user gave the speed.
    """

    bandwidth: float
    speed: float = _USUAL_SPEED
    is_measured: bool = False
    speed_is_given: bool = False

    @property
    def flops_per_byte(self) -> float:
        """The FLOPs that the device could do while a byte is moved there and back."""
        return 2 * self.speed / self.bandwidth

    def seconds(self, nbytes: int) -> float:
        """The seconds for moving this many bytes there and back."""
        return 2 * nbytes / self.bandwidth

    def described(self, nbytes: int) -> str:
        """`offloads 3.0 GiB to the host's memory, 129 ms there and back at 50 GB/s`."""
        how = "as measured here, " if self.is_measured else ""
        there_and_back = f"{format_seconds(self.seconds(nbytes))} there and back"
        return f"{offloads(nbytes)}, {there_and_back} at {how}{self.bandwidth / 1e9:.3g} GB/s"

    @property
    def note(self) -> str:
        """The assumptions."""
        speed = f"{self.speed / 1e12:.3g} TFLOP/s"
        if self.is_measured:
            speed = f"the {speed} measured here"
        elif not self.speed_is_given:
            speed += ", unless offload='50GB/s, 400TFLOP/s' gives another speed"
        return (
            f"Moving a byte to the host and back counts as the {_count(self.flops_per_byte)} FLOPs that the device "
            "could do meanwhile at "
            f"{speed}. The plan does not assume that the transfer overlaps with computation, which was not measured."
        )


@cache
def moves_on(platform: str) -> bool:
    """Whether a program that JAX lowers for a platform moves values to the host; it has none of these transfers on a
    CPU."""
    moved = jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Host))
    text = moved.trace(jax.ShapeDtypeStruct((8,), jnp.float32)).lower(lowering_platforms=(platform,)).as_text()
    return "annotate_device_placement" in text


def offloads(nbytes: int) -> str:
    """`offloads 3.0 GiB to the host's memory`."""
    return f"offloads {format_bytes(nbytes)} to the host's memory"


def read_offload(offload: Any) -> Offload | None:
    """Reads `offload=`; None if nothing is to be offloaded.

    Raises:
      ValueError: text that is not a bandwidth above 0.
      TypeError: neither a number nor text.
    """
    if offload is None or offload is False:
        return None
    if isinstance(offload, Offload):
        return offload
    if offload is True:
        return _measured()
    text, comma, rest = offload.partition(",") if isinstance(offload, str) else (offload, "", "")
    if isinstance(text, str):
        if not text.strip().lower().endswith("/s"):
            raise ValueError(f"offload must be {_FORMS}; got {offload!r}")
        text = text.strip()[:-2]
    try:
        bandwidth = read_size(text, "offload", _FORMS)
    except ValueError:
        raise ValueError(f"offload must be {_FORMS}; got {offload!r}") from None
    if not isinstance(offload, str) and bandwidth != int(bandwidth):
        raise ValueError(f"offload must be {_FORMS}, and a number must be whole; got {offload!r}")
    if not bandwidth:
        raise ValueError(f"offload must be {_FORMS}, above 0; got {offload!r}")
    if not comma:
        return Offload(bandwidth)
    match = _SPEED.fullmatch(rest.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"offload must be {_FORMS}; got {offload!r}")
    return Offload(bandwidth, float(match[1]) * _PREFIXES[match[2].lower()], speed_is_given=True)


def _measured() -> Offload:
    """The bandwidth between the default device and its host, and its speed of matrix products.

    Raises:
      ValueError: the device cannot use its host's memory.
    """
    device = jax.local_devices()[0]
    kinds = {m.kind for m in device.addressable_memories()}
    if HOST not in kinds:
        raise ValueError(
            f"the device {device} has no {HOST} memory: give the bandwidth of the device that you plan for, such as "
            "offload='50GB/s'"
        )
    there, here = (
        jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for kind in (HOST, device.default_memory().kind)
    )
    x = jax.device_put(jnp.zeros(_MEASURED_NBYTES // 4, jnp.float32), here)
    host = jax.device_put(x, there)
    out = least_seconds(lambda: jax.device_put(x, there))
    back = least_seconds(lambda: jax.device_put(host, here))
    speed = product_speed(device, jnp.bfloat16 if device.platform != "cpu" else jnp.float32)
    return Offload(2 * _MEASURED_NBYTES / (out + back), speed, is_measured=True)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
