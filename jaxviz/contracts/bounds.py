"""The bounds that a test writes itself, as a contract; and the file of a contract that a test locks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxviz.arguments import Argnums
from jaxviz.contracts.comparing import Comparing
from jaxviz.contracts.contract import (
    FOLDER,
    UNITS,
    Contract,
    OnBackend,
    PortableFacts,
    compiled_key,
    exchange,
)
from jaxviz.contracts.start import contract_of, locked_again
from jaxviz.environments.facts import Facts
from jaxviz.environments.gather import gather_facts
from jaxviz.report.sizes import read_size
from jaxviz.report.stored import MOST
from jaxviz.report.tables import short_location
from jaxviz.xla.collectives.report import in_words

IN_TEST = "change the bound of {} in the test"


def checked_call(
    root: Path, is_update: bool, fun: Callable[..., Any], args: tuple[Any, ...], bounds: dict[str, Any]
) -> list[str]:
    """What does not hold of a gradient, in sentences; writes its file if that is asked for.

    Args:
      root: the folder that has the folder of contracts.
      is_update: whether to lock again what a file has.
      fun, args: the call.
      bounds: the options of the fixture.

    Raises:
      TypeError: there is no such bound.
      ValueError: a bound cannot be read.
      the errors of `derive`.
    """
    argnums: Argnums = bounds.pop("argnums", 0)
    name, compile, axes = bounds.pop("locked", None), bounds.pop("compile", False), bounds.pop("no_collectives", ())
    function = str(getattr(fun, "__name__", "gradient"))
    own = bounds_of(function, bounds)
    is_locked = name is not None or not (bounds or axes)
    path = root / FOLDER / f"{name or function}.toml"
    known = Contract.load(path) if is_locked and path.exists() else None
    needed = compile or own.compiled or (known is not None and compiled_key() in known.compiled)
    facts = gather_facts("", "", fun, args, {}, argnums, compile=bool(needed))
    said = [b.text for b in Comparing(own, facts, IN_TEST).broken()] + [*exchanged_over(axes, facts, function)]
    if is_locked and is_update:
        new = contract_of(facts, path.stem) if known is None else locked_again(known, facts, path.stem, known.argnums)
        (new if known is None else replace(new, target=known.target, args=known.args)).save(path)
    elif is_locked and known is None:
        said.append(f"there is no {FOLDER}/{path.name}; pytest --jaxviz-update writes it")
    elif known is not None:
        said += [b.text for b in Comparing(known, facts, "pytest --jaxviz-update").broken()]
    return said


def bounds_of(name: str, bounds: dict[str, Any]) -> Contract:
    """The bounds of a test as a contract, which has to hold as it is.

    Raises:
      TypeError: there is no such bound.
      ValueError: one cannot be read.
    """
    own: dict[str, Any] = {}
    for key, value in bounds.items():
        if key in UNITS:
            own[key] = read_bound(key, value)
        elif key in ("dtypes", "collectives", "exchanged"):
            own[key] = dict.fromkeys(value, MOST)
        elif key in ("donated", "dead"):
            own[key] = dict.fromkeys(value, 1 if key == "donated" else MOST)
        elif key in ("names", "without_effect"):
            own[key] = tuple(value)
        else:
            there_are = ", ".join([*UNITS, "names", "dtypes", "collectives", "no_collectives", "donated", "dead"])
            raise TypeError(f"gradient_contract has no bound {key}; there are {there_are}")
    compiled = {k: own.pop(k) for k in ("peak", "temporaries", "exchanged") if k in own}
    on = {compiled_key(): OnBackend(**compiled)} if compiled else {}
    return Contract(name, within_percent=0, portable=PortableFacts(**own), compiled=on)


def read_bound(name: str, bound: Any) -> int:
    """`"<=18.3GiB"`, `"1.2TFLOP"`, or a number.

    Raises:
      ValueError: it is something else.
    """
    if not isinstance(bound, str):
        return int(bound)
    text = bound.strip().removeprefix("<=").strip()
    if UNITS[name] == "bytes":
        return int(read_size(text, name))
    match = re.fullmatch(r"([\d_.]+(?:e\d+)?) ?([kMGTPE]?)(?:FLOPs?)?", text)
    if match is None:
        raise ValueError(f"{name} must be a number, such as 1200000 or '1.2TFLOP'; got {bound!r}")
    return int(float(match[1]) * 1000 ** " kMGTPE".index(match[2] or " "))


def exchanged_over(axes: Any, facts: Facts, name: str) -> Iterator[str]:
    """What devices exchange over axes over which they should exchange nothing."""
    rows = [*(facts.program.implied or ()), *(facts.compiled.collectives or ())]
    for c in rows:
        if set(c.axes) & set(axes):
            where = f" at {short_location(c.location)}" if c.location is not None else ""
            cause = f", since {c.cause}" if c.cause else ""
            yield f"contract of `{name}`: {exchange(c)}: for {in_words(c.what)}{where}{cause}"
