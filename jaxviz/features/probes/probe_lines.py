"""Adds probes to a program from outside: on the values at addresses, and with the iterations of loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from jaxviz.analysis.addresses import Address, address, resolve
from jaxviz.features.probes.probes import ProbeSite, Spec, link_p, next_place, report_p
from jaxviz.higher_order.observing import Observer, PassedIn, Place, joined, observed_program
from jaxviz.ir import compat
from jaxviz.ir.convert import operation as make_operation
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.transforms.driver import Builder


def watched_address(given: Any) -> Address:
    """The address of what is watched: an int is a line of the function's own file."""
    return address(f"line:{given}" if isinstance(given, int) and not isinstance(given, bool) else given)


def with_probes(program: Program, addresses: Sequence[Address], spec: Spec) -> Program:
    """The program with the values at these addresses reported, each with its position in loops; see `observed_program`.

    Raises:
      AddressError: an address means no value, or several; the message lists what could be meant.
    """
    chosen: dict[Place, str] = {}
    for a in addresses:
        values = resolve(program, a).values
        kinds = [str(v.equation.params.get("name") or v.equation.primitive.name) for v in values]
        several = len(set(kinds)) > 1
        chosen.update((v.place, f"{a} {kind}" if several else str(a)) for v, kind in zip(values, kinds, strict=True))
    places = {place: next_place() for place in chosen}

    def observe(builder: Builder, place: Place, e: Equation, passed: PassedIn) -> tuple[Atom, None]:
        v, loop = place[1], passed.iterations
        site = ProbeSite(chosen[place], "value", spec, places[place])
        params = {"site": site, "axes": 0, "has_step": True}
        avals, context = (v.aval, loop.aval), e.operation.context
        report = make_operation(report_p, params, avals, (), frozenset([compat.report_effect]), context)
        builder.equations.append(Equation(report, (v, loop), (), e.source))
        if not spec.cotangents or not jnp.issubdtype(v.aval.dtype, jnp.inexact):
            return v, None
        params = {**params, "site": replace(site, kind="cotangent")}
        linked = Var(v.aval)
        link = make_operation(link_p, params, avals, (v.aval,), frozenset(), context)
        builder.equations.append(Equation(link, (v, loop), (linked,), e.source))
        return linked, None

    def has_use(e: Equation) -> bool:
        return e.primitive in (report_p, link_p) and e.params["site"].spec == spec and not e.params["has_step"]

    def extend(builder: Builder, e: Equation, loop: Atom) -> None:
        x, *index = e.invars
        if index and len(index[0].aval.shape) > 1:  # one per example
            builder.equations.append(e)
            return
        where = joined(builder, loop, index[0]) if index else loop
        op = e.operation
        extended = make_operation(
            op.primitive, {**op.params, "has_step": True}, (x.aval, where.aval), op.out_avals, op.effects, op.context
        )
        builder.equations.append(Equation(extended, (x, where), e.outvars, e.source, e.origin))

    return observed_program(program, Observer(chosen.__contains__, observe, has_use, extend))[0]
