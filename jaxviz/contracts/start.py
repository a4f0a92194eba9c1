"""From a function to its contract, from a contract to what holds of it, and what is accepted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jaxviz.arguments import Argnums
from jaxviz.contracts.comparing import Comparing
from jaxviz.contracts.contract import (
    FOLDER,
    RELATED,
    Contract,
    OnBackend,
    PortableFacts,
    compiled_key,
    on_backend,
    portable_facts,
)
from jaxviz.contracts.report import CheckedContract, ContractCheck
from jaxviz.displays import display
from jaxviz.environments.facts import Facts
from jaxviz.environments.gather import gather_facts
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.errors import message_of
from jaxviz.progress import counting
from jaxviz.report.messages import short_message


@api_boundary
def lock(f: Any, *args: Any, argnums: Argnums = 0, compile: bool = False, **kwargs: Any) -> Contract:
    """Locks what holds of a function's gradient now, as a contract that a test or CI can check.

    It has what follows from the types of the arguments: the bytes that the gradient saves, by expression and dtype, the
    names that policies save, its work and what is recomputed, donations, collectives, parameters that the gradient does
    not reach, and what has no effect. Nothing is run.

    >>> contract = jaxviz.lock(loss, params, x)
    >>> print(contract.summary)
    contract of `loss`: residuals …
    >>> contract.save("contracts/loss.toml")

    Args:
      f: a function, or a training step.
      *args, **kwargs: its arguments, as for `derive`; types are enough.
      argnums: the positional arguments to differentiate with respect to.
      compile: whether to compile it too, and lock the peak, the temporaries and the collectives of this backend, device
        and version.

    Returns:
      the contract. `jaxviz lock` on the command line also stores how to call the function, so that `check_contracts`
      can derive it again.

    Raises:
      the errors of `derive`.
    """
    facts = gather_facts("", "", f, args, kwargs, argnums, compile=compile)
    return contract_of(facts, str(getattr(f, "__name__", "gradient")))


def contract_of(facts: Facts, name: str) -> Contract:
    """What is locked of facts."""
    compiled = {} if facts.compiled.memory is None else {compiled_key(facts): on_backend(facts)}
    with_jax, portable = facts.environment.jax, portable_facts(facts.program)
    return Contract(name, facts.target, facts.arguments, jax=with_jax, portable=portable, compiled=compiled)


def locked_again(known: Contract | None, facts: Facts, name: str, argnums: str) -> Contract:
    """A new contract, with what a file of this name has for other versions and with its bounds."""
    contract = replace(contract_of(facts, name), argnums=argnums)
    if known is None:
        return contract
    return replace(contract, within_percent=known.within_percent, compiled={**known.compiled, **contract.compiled})


def checked(contract: Contract, facts: Facts, **how: str) -> CheckedContract:
    """What no longer holds of a contract; `how` as for `Comparing`."""
    comparing = Comparing(contract, facts, **how)
    return CheckedContract(contract.name, tuple(comparing.broken()), "", tuple(comparing.notes()))


# --- files ------------------------------------------------------------------------------------------------------------


def check_contracts(*names: str, folder: str | os.PathLike[str] = FOLDER) -> ContractCheck:
    """Derives the gradients of contracts again, and says what no longer holds, and why.

    Figures may be at most as much larger as the contract says, by default 2%; names, dtypes and kinds of collectives
    have to be the same. What is compiled is only compared with what was locked with the same backend, device and
    versions. Less of anything breaks no contract.

    >>> _ = jaxviz.lock(loss, params, x).save("contracts/loss.toml")
    >>> print(jaxviz.check_contracts())
    1 contract holds

    Args:
      *names: the contracts, by name or as files; by default all in the folder.
      folder: where they are.

    Raises:
      OSError: there is no such contract, or no folder.
      ValueError: a file is no contract.
    """
    contracts = [Contract.load(path) for path in paths_of(names, folder)]
    with counting("contracts", len(contracts)) as done:
        return ContractCheck(tuple(_checked_again(contract, done) for contract in contracts))


def _checked_again(contract: Contract, done: Callable[[], None]) -> CheckedContract:
    try:
        if not contract.target:
            return CheckedContract(contract.name, (), "", ("It was locked by a test, which checks it.",))
        return checked(contract, facts_again(contract, compiled_key() in contract.compiled))
    except Exception as error:
        is_own = type(error).__module__.startswith("jaxviz.")
        said = message_of(error) if is_own else short_message(error, f"deriving {contract.target}", "")
        return CheckedContract(contract.name, (), said.strip())
    finally:
        done()


def paths_of(names: Iterable[str], folder: str | os.PathLike[str] = FOLDER) -> list[Path]:
    """The files of contracts: those with these names, or all of a folder.

    Raises:
      FileNotFoundError: there is none.
    """
    paths = [Path(name) if name.endswith(".toml") else Path(folder) / f"{name}.toml" for name in names]
    paths = paths or sorted(Path(folder).glob("*.toml"))
    if not paths:
        raise FileNotFoundError(f"there are no contracts in {os.fspath(folder)}; jaxviz lock writes one")
    return paths


def facts_again(contract: Contract, compile: bool) -> Facts:
    """The facts now, of the function that a contract names."""
    if not contract.target:
        raise ValueError("it does not say how to call the function, so only the test that locked it can check it")
    call, argnums = display("call of a contract")(contract.target, contract.args, contract.argnums)
    return gather_facts(contract.target, contract.args, call.fun, call.args, call.kwargs, argnums, compile=compile)


def selected(patterns: Sequence[str], folder: str | os.PathLike[str] = FOLDER) -> dict[Path, list[str]]:
    """The facts of contracts that patterns such as 'loss.residuals' or 'loss.*' select, by file.

    Raises:
      FileNotFoundError: there are no contracts.
      ValueError: a pattern selects no fact.
    """
    chosen = {
        path: [fact for fact in FACTS if any(fnmatchcase(f"{path.stem}.{fact}", p) for p in patterns)]
        for path in paths_of((), folder)
    }
    names = [f"{path.stem}.{fact}" for path, facts in chosen.items() for fact in facts]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            there_are = f"write 'loss.*' or one such as loss.residuals: there are {', '.join(FACTS)}"
            raise ValueError(f"{pattern!r} selects no fact of a contract; {there_are}")
    return {path: facts for path, facts in chosen.items() if facts}


def accept(contract: Contract, names: Sequence[str]) -> Contract:
    """Derives the gradient of a contract again, and locks these facts as they are now.

    Raises:
      the errors of loading the function, and of deriving.
    """
    compile = compiled_key() in contract.compiled and any(name in COMPILED for name in names)
    return accepted(contract, facts_again(contract, compile), names)


def accepted(contract: Contract, facts: Facts, names: Sequence[str] | None = None) -> Contract:
    """A contract with these of its facts, by default all, as they are now."""
    names = FACTS if names is None else names
    chosen = {f for name in names for f in (name, *(["work_in"] * (name == "work")), RELATED.get(name, name))}
    take = lambda kind, now: {f.name: getattr(now, f.name) for f in fields(kind) if f.name in chosen}
    now = portable_facts(facts.program)
    portable = replace(contract.portable, **take(PortableFacts, now))
    if "residuals" in chosen and portable.dtypes and now.dtypes:  # of dtypes that are locked
        portable = replace(portable, dtypes={d: now.dtypes.get(d, 0) for d in portable.dtypes})
    compiled = dict(contract.compiled)
    if facts.compiled.memory is not None:
        key = compiled_key(facts)
        compiled[key] = replace(compiled.get(key, OnBackend()), **take(OnBackend, on_backend(facts)))
    jax = facts.environment.jax if chosen.issuperset(FACTS) else contract.jax
    return replace(contract, jax=jax, portable=portable, compiled=compiled)


COMPILED = [f.name for f in fields(OnBackend) if f.name not in RELATED.values()]
FACTS = [*(f.name for f in fields(PortableFacts) if f.name not in RELATED.values()), *COMPILED]
"""The facts that can be accepted."""
