"""The facts of one program in one environment, as plain data: what they are, and how they are stored.

Those of `ProgramFacts` follow from the types of the arguments and the version of JAX alone; those of `CompiledFacts`
also from the backend and its compiler; `ValueFacts` has what a run computes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxviz.analysis.checkpoints import NoEffect
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.stored import Format, from_plain
from jaxviz.xla.collectives.report import Collective
from jaxviz.xla.compile_cost.stages import Phases
from jaxviz.xla.compiled_memory.report import CompiledMemory
from jaxviz.xla.compiled_memory.saved import order_kinds

FORMAT = Format("facts of jaxviz", 1, "facts", "facts of a program", "jaxviz upgrade writes such files for itself")


@dataclass(frozen=True, slots=True)
class Environment(Data):
    """The versions and flags of an environment.

    Args:
      python, jax, jaxlib: the versions; '' if it is not installed.
      libraries: the versions of the other packages that the program imports, by name.
      flags: the flags of JAX, each with its value as text.
    """

    python: str
    jax: str
    jaxlib: str
    libraries: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)


# --- of the program ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedRow(Data):
    """The values that the gradient saves for one expression, in repeated layers, calls and iterations.

    Args:
      label: the expression, such as `h = jnp.tanh(x @ w)`.
      type: of each.
      count: how many there are.
      nbytes: the bytes of all of them; on one device if the program runs on several.
      why: which lines need them again.
      library: where in a library they are computed; '' if in none.
      location: the user's line.
    """

    label: str
    type: str
    count: int
    nbytes: int
    why: str
    library: str
    location: Location | None


@dataclass(frozen=True, slots=True)
class LineWork(Data):
    """The FLOPs of one of the user's lines.

    Args:
      text: the line.
      location: where it is.
      forward, backward: FLOPs of each pass.
      recomputed: those of the backward pass that a checkpoint recomputes.
      operations: those of both passes, by primitive.
      dtypes: those of both passes, by the dtype that they compute in.
    """

    text: str
    location: Location | None
    forward: int
    backward: int
    recomputed: int
    operations: dict[str, int]
    dtypes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyDecisions(Data):
    """What the policy of a checkpointed function decides.

    Args:
      function: the name of the function.
      policy: the name of the policy.
      location: where the function is defined.
      saved, offloaded, recomputed: how many of its values.
    """

    function: str
    policy: str
    location: Location | None
    saved: int
    offloaded: int
    recomputed: int


@dataclass(frozen=True, slots=True)
class ModelledPeak(Data):
    """The peak of the modelled memory.

    Args:
      nbytes: its bytes, on one device.
      what: the expression that is computed then.
      location: the user's line.
    """

    nbytes: int
    what: str
    location: Location | None


@dataclass(frozen=True, slots=True)
class ProgramFacts(Data):
    """What holds of a gradient for the types of its arguments.

    Args:
      about: what the facts are about, such as "gradient of `loss` in `params`".
      saved: what it saves, without arguments and what nothing reads, by expression.
      argument_nbytes: bytes of its arguments that the backward pass reads.
      peak: the modelled peak; None if it is not known.
      work: its FLOPs by line; None if they are not known.
      decisions: of the policies of checkpoints.
      without_effect: checkpoints, policies, names, offloads and donations without effect; None if they are not known.
      not_opened: what jaxviz does not look into.
      names: those given by `checkpoint_name` under which policies save or offload values.
      implied: what devices exchange, as the types imply; None if it is not known.
      inputs: the names of its inputs; of a training step, those of the step.
      parameters: the names of the inputs of what is differentiated.
      donated: those of them that it donates.
      dead: for each parameter in which the gradient is zero for any values, where it ends; None if they are not known.
      equations: how many equations both passes have, each body of a loop or a call once.
    """

    about: str
    saved: tuple[SavedRow, ...]
    argument_nbytes: int
    peak: ModelledPeak | None
    work: tuple[LineWork, ...] | None
    decisions: tuple[PolicyDecisions, ...]
    without_effect: tuple[NoEffect, ...] | None
    not_opened: tuple[str, ...]
    names: tuple[str, ...] = ()
    implied: tuple[Collective, ...] | None = None
    inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    donated: tuple[str, ...] = ()
    dead: dict[str, str] | None = None
    equations: int = 0


# --- as compiled, and as run ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompiledFacts(Data):
    """What holds of the compiled gradient.

    Args:
      backend: such as 'cpu'.
      device: its kind, as the backend names it.
      n_devices: how many it runs on.
      memory: what is in memory at its peak; None if it is not known.
      collectives: what devices exchange; None if it is not known.
      compilations: the seconds of each time that it was compiled, without JAX's caches.
    """

    backend: str
    device: str
    n_devices: int
    memory: CompiledMemory | None
    collectives: tuple[Collective, ...] | None
    compilations: tuple[Phases, ...]


@dataclass(frozen=True, slots=True)
class LeafValues(Data):
    """An array that the gradient computes.

    Args:
      kind: 'result' of the function, or 'gradient'.
      name: of the result, or of the argument that the gradient is in.
      type: its type.
      norm: the square root of the sum of the squares of its finite elements.
      noise: how far it moves, in this norm, if the last digits of each argument are others, those of the coarsest type
        that the program computes in; at least the rounding of its own elements.
      nans, infinities: how many elements are not finite.
    """

    kind: Literal["result", "gradient"]
    name: str
    type: str
    norm: float
    noise: float
    nans: int
    infinities: int


@dataclass(frozen=True, slots=True)
class ValueFacts(Data):
    """What a run computes. The arrays themselves are in a file beside the facts (`values.py`).

    Args:
      leaves: what it computes.
      replaced: the names of the arguments that are not the program's own here, but those of the other environment.
      constants: a digest of the arrays that the function closes over; '' if there are none.
    """

    leaves: tuple[LeafValues, ...]
    replaced: tuple[str, ...]
    constants: str


@dataclass(frozen=True, slots=True)
class NotKnown(Data):
    """A part of the facts that there is not.

    Args:
      what: such as 'compiled memory'.
      why: the error, or what it would take.
    """

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Facts(Data):
    """The facts of one program in one environment.

    Args:
      target: the function, as `module:function`.
      arguments: as written in a call.
      environment: its versions and flags.
      program, compiled, values: the facts; `values` is None if nothing was run.
      not_known: the parts that are not there, each with the reason.
    """

    target: str
    arguments: str
    environment: Environment
    program: ProgramFacts
    compiled: CompiledFacts
    values: ValueFacts | None
    not_known: tuple[NotKnown, ...]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes them to a file."""
        return FORMAT.write(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Facts:
        """Reads a file that `save` wrote.

        Raises:
          OSError: it cannot be read.
          ValueError: it is not such a file, is damaged, or was written by another version of jaxviz.
        """
        return FORMAT.read(path, _facts)


def _facts(data: Any) -> Facts:
    if data["compiled"]["memory"] is not None:
        order_kinds(data["compiled"]["memory"])
    facts: Facts = from_plain(Facts, data)
    return facts
