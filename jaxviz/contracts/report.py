"""The report of which contracts hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxviz.contracts.comparing import BrokenFact
from jaxviz.report.data import Data
from jaxviz.report.report import Drawn, Part, Report
from jaxviz.report.tables import counted, listed, printable


@dataclass(frozen=True, slots=True)
class CheckedContract(Data):
    """What was found of one contract.

    Args:
      name: of the contract.
      broken: the facts that no longer hold, causes first.
      error: why the gradient could not be derived; '' if it could.
      notes: what is not locked here, and which bounds could be tighter.
    """

    name: str
    broken: tuple[BrokenFact, ...]
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether all of it holds."""
        return not self.broken and not self.error


@dataclass(frozen=True, eq=False, repr=False)
class ContractCheck(Report, schema="check_contracts"):
    """Which contracts hold, and what of the others does not. See `jaxviz.check_contracts`.

    >>> _ = jaxviz.lock(loss, params, x).save("contracts/loss.toml")
    >>> found = jaxviz.check_contracts("loss")
    >>> found.holds, [broken.text for broken in found.broken]

    Args:
      contracts: each, with what was found.
    """

    contracts: tuple[CheckedContract, ...]

    @property
    def holds(self) -> bool:
        """Whether all contracts hold."""
        return all(c.holds for c in self.contracts)

    @property
    def broken(self) -> tuple[BrokenFact, ...]:
        """The facts that no longer hold, of all contracts."""
        return tuple(b for c in self.contracts for b in c.broken)

    @property
    def summary(self) -> str:
        """`2 contracts hold`, or ``the contract of `loss` is broken, 2 contracts hold``."""
        names = [f"`{c.name}`" for c in self.contracts if not c.holds]
        n = len(self.contracts) - len(names)
        hold = f"{counted(n, 'contract')} {'holds' if n == 1 else 'hold'}"
        if not names:
            return hold
        broken = f"the contract{'s' * (len(names) > 1)} of {listed(names)} {'are' if len(names) > 1 else 'is'} broken"
        return f"{broken}, {hold}" if n else broken

    def _parts(self) -> Iterator[Part]:
        for c in self.contracts:
            if c.error:
                yield f"contract of `{c.name}`: its gradient cannot be derived:"
                yield Drawn("\n".join(f"  {printable(line)}" for line in c.error.splitlines()))
            yield from (b.text for b in c.broken)
            yield from (f"{c.name}: {note}" for note in c.notes)

    _data = ("holds", "contracts")
