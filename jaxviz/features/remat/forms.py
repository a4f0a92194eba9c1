"""Plans: the regions with checkpoints, what these save, and the resulting figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from jaxviz.analysis.naming import OwnName
from jaxviz.derivation import Derivation
from jaxviz.features.cost.counts import Cost
from jaxviz.features.cost.parts import parts, sum_of
from jaxviz.features.remat.choices import Choice, Part
from jaxviz.features.remat.regions import Region, Spot
from jaxviz.features.remat.tuning import ALTERNATIVES
from jaxviz.ir import compat
from jaxviz.ir.syntax import Equation, Program, Var
from jaxviz.report.tables import counted, format_flops

ON_HOST = "_on_host"
"""The suffix of names of offloaded values."""


@dataclass(frozen=True, slots=True)
class Trade:
    """The figures of a gradient.

    Args:
      peak_nbytes: the modelled peak of its memory, including arguments and results.
      nbytes: bytes of all residuals of JAX, including arguments and constants.
      flops: the FLOPs of both passes beyond those of the function without checkpoints, without the rounding that
        JAX adds for each saved value.
      offloaded: bytes of offloaded residuals, which the other bytes do not include.
      transfer: the FLOPs that the device could do during the transfers.
      saved_nbytes: bytes that it saves, without its arguments; see `SavedBytes`.
      transcendentals: the same as `flops` for values of exp, sin and the like, which XLA does not count as FLOPs.
    """

    peak_nbytes: int
    nbytes: int
    flops: int
    offloaded: int = 0
    transfer: int = 0
    saved_nbytes: int = 0
    transcendentals: int = 0

    @property
    def recomputes(self) -> str:
        """`3.1 MFLOP and 4,096 transcendentals`."""
        return work_text(self.flops, self.transcendentals)

    @property
    def work(self) -> int:
        """The cost beyond the function without checkpoints, in FLOPs."""
        return self.flops + self.transfer


@dataclass(frozen=True, eq=False, slots=True)
class Form:
    """Regions with a checkpoint, and what each part of them saves.

    Args:
      chunk: how many iterations of the scan whose body is the region also form a checkpoint; 1 for none.
      policy: the policy of JAX that chooses these values, by its name in `jax.checkpoint_policies`; '' if they are
        saved by name.
    """

    regions: tuple[Region, ...]
    choices: tuple[tuple[Part, Choice], ...]
    chunk: int = 1
    policy: str = ""

    @property
    def key(self) -> Hashable:
        """A key that is equal for equivalent forms."""
        choices = tuple((tuple(part.spots), choice) for part, choice in self.choices)
        return self.regions, choices, self.chunk, self.policy

    @property
    def nbytes(self) -> int:
        """Bytes that the backward pass is given for the regions."""
        return sum(choice.nbytes for _, choice in self.choices)

    @property
    def work(self) -> int:
        """What is recomputed, and what is moved to the host, in FLOPs."""
        return sum(choice.work for _, choice in self.choices)

    def within(self, spare: int) -> Form | None:
        """The form with less work, for at most this many more bytes: one choice after the other is replaced by the one
        that gains most, as long as the limit allows; None if there is none."""
        choices = list(self.choices)
        total = lambda some: (sum(c.work for _, c in some), sum(c.nbytes for _, c in some))
        while True:
            is_exact = len(choices) <= ALTERNATIVES
            candidates = ((i, p.more(c, spare, is_exact)) for i, (p, c) in enumerate(choices))
            steps = [(i, more) for i, more in candidates if more is not None]
            if not steps:
                break
            i, more = max(steps, key=lambda step: choices[step[0]][1].work - total(step[1])[0])
            spare -= total(more)[1] - choices[i][1].nbytes
            choices[i : i + 1] = more
        return replace(self, choices=tuple(choices), policy="") if tuple(choices) != self.choices else None

    def with_one_change(self) -> Iterator[Form]:
        """The forms that save one value more, of the most expensive ones, or one less, or move one to the host, or
        back."""
        for i, (part, choice) in enumerate(self.choices):
            names, moved = set(part.names_of(choice)), set(part.moved_of(choice))
            settings = [
                (names ^ {name}, moved - {name}) for name in dict.fromkeys([*part.products, *part.names_of(choice)])
            ]
            settings += [(names, moved ^ {key}) for key in part.movable if key in names or not isinstance(key, str)]
            for saved, offloaded in settings:
                changed = part, part.choice(saved, offloaded)
                yield replace(self, choices=(*self.choices[:i], changed, *self.choices[i + 1 :]), policy="")

    def names(self, name_of: Callable[[Part, Var], str]) -> dict[Var, str]:
        """A name for each saved value, the same for corresponding values of all spots."""
        names: dict[Var, str] = {}
        for part, choice in self.choices:
            for v in choice.saved:
                name = OwnName(name_of(part, v) + (ON_HOST if v in choice.offloaded else ""))
                names.update((same, name) for same in part.everywhere(v))
        return names

    def entering(self, name_of: Callable[[Part, Var], str]) -> dict[tuple[Spot, int], str]:
        """The same for offloaded inputs."""
        return {
            (spot, k): OwnName(name_of(part, part.body.invars[k]) + ON_HOST)
            for part, choice in self.choices
            for k in part.inputs_moved(choice)
            for spot in part.spots
        }


@dataclass(frozen=True, eq=False, slots=True)
class Trial:
    """A form, measured."""

    form: Form
    names: Mapping[Var, str]
    program: Program
    derivation: Derivation
    trade: Trade


def by_work(trial: Trial) -> tuple[int, int, int]:
    return trial.trade.work, trial.trade.peak_nbytes, trial.trade.nbytes


def by_peak(trial: Trial) -> tuple[int, int, int]:
    return trial.trade.peak_nbytes, trial.trade.work, trial.trade.nbytes


def work_of(derivation: Derivation) -> Cost:
    """The work of both passes, except for the rounding of saved values."""
    return sum_of([*_equations(derivation)], {}, free=compat.reduce_precision_p)


def transcendentals_of(derivation: Derivation) -> Counter[str]:
    """How often both passes compute each function that XLA counts apart from FLOPs, such as `tanh`."""
    counts: Counter[str] = Counter()
    for part in chain.from_iterable(map(parts, _equations(derivation))):
        counts[part.equation.primitive.name] += part.cost.transcendentals
    return counts


def _equations(derivation: Derivation) -> Iterator[Equation]:
    return chain(derivation.forward.equations, derivation.backward.equations)


def work_text(flops: int, transcendentals: int, share: str = "", functions: str = "") -> str:
    """`3.1 MFLOP (0.2 %) and 4,096 transcendentals (tanh)`: work that is recomputed.

    Args:
      share, functions: what is said of each in brackets, if anything.
    """
    said = lambda what, more: f"{what} ({more})" if more else what
    work = [said(format_flops(flops), share)] if flops else []
    work += [said(counted(transcendentals, "transcendental"), functions)] if transcendentals > 0 else []
    return " and ".join(work) or "nothing that is counted as FLOPs"
