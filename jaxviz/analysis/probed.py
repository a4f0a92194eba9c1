"""The names of probes as addresses. An unwatched probe leaves nothing in a program, so what one names is found by
tracing the function once more, with the probe named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from jaxviz.analysis.addressed import AddressedValue, addressed_values
from jaxviz.analysis.addresses import Address, AddressError, Meant, named_in, resolve
from jaxviz.derivation import Derivation, derive_call
from jaxviz.higher_order.observing import Place, walk_observed
from jaxviz.ir import compat
from jaxviz.ir.syntax import Program, Var
from jaxviz.runtime.probe_names import asking_for, have_run

T = TypeVar("T")


def also_in_probes(addresses: Sequence[Address], find: Callable[[], T]) -> T:
    """What a function finds that traces a program; if an address means nothing there, it may be that of a probe, and
    the function is traced once more with that named.

    Raises:
      AddressError: an address means nothing, or several values.
    """
    try:
        return find()
    except AddressError:
        names = [named_in(a) for a in addresses]
        if not have_run(names):
            raise
    with asking_for(names):
        return find()


def resolve_in(derivation: Derivation, given: Address) -> Meant:
    """What an address means in a derived function; the name of a probe means the value that the probe was given.

    Raises:
      AddressError: nothing; or several values, and the address does not ask for all of them.
    """
    try:
        return resolve(derivation.primal, given)
    except AddressError:
        called, names = derivation.called, [named_in(given)]
        if called is None or not have_run(names):
            raise
        with asking_for(names):
            named = derive_call(called.function, called.args, called.kwargs, called.chosen).primal
        unnamed = _unnamed(named, derivation.primal)
        if unnamed is None:
            raise
    meant = resolve(named, given)
    values = {v.place: v for v in addressed_values(derivation.primal)}
    found = [values.get(unnamed.get(v.place, v.place)) for v in meant.values]
    if None in found:
        raise AddressError(
            f"The probe {given.text!r} of {named.name} is given an argument, or what no address means, so that nothing "
            "computes it."
        )
    return Meant(tuple(dict.fromkeys(filter(None, found))), meant.iteration)


def meanings_in(derivation: Derivation, given: Address) -> tuple[AddressedValue, ...]:
    """The same, or if it may mean several values, all of these; nothing if it means none."""
    for text in (given.text, f"{given.text} #*"):
        with suppress(AddressError):
            return resolve_in(derivation, replace(given, text=text)).values
    return ()


def _unnamed(named: Program, plain: Program) -> dict[Place, Place] | None:
    """For the values of a program those of the same program without some names; None if it is another one."""
    found: dict[Place, Place] = {}
    for (path, program), (plain_path, without) in zip(walk_observed(named), walk_observed(plain), strict=False):
        same: dict[Var, Var] = {}
        rest = iter(without.equations)
        e = next(rest, None)
        for n in program.equations:
            is_name = n.primitive is compat.name_p
            if e is not None and n.primitive is e.primitive and (not is_name or n.params == e.params):
                same.update(zip(n.outvars, e.outvars, strict=False))
                e = next(rest, None)
            elif is_name:
                same.update((n.outvars[0], same[a]) for a in n.invars if isinstance(a, Var) and a in same)
            else:
                return None
        found.update(((path, v), (plain_path, of)) for v, of in same.items())
    return found
