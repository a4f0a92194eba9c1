"""JAX's checkpoint policies as plans: around the whole function, and on the checkpoints that it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxviz.analysis.walk import primal_equation
from jaxviz.derivation import Derivation
from jaxviz.features.remat.forms import Form, Trial
from jaxviz.features.remat.graph import exchanges
from jaxviz.features.remat.regions import Region
from jaxviz.features.remat.set_policy import derive_under, setting
from jaxviz.ir import compat
from jaxviz.ir.errors import JaxvizError

if TYPE_CHECKING:
    from jaxviz.features.remat.search import Search

NOTHING = "nothing_saveable"
"""The policy of a checkpoint without one."""
_POLICIES = ("dots_saveable", "dots_with_no_batch_dims_saveable", NOTHING)
"""The policies that take no arguments; JAX has two of them under a second name, and one that saves everything."""


def trials_under_policies(search: Search) -> Iterator[Trial]:
    """The function under each policy, derived and measured as `compare_policies` does; those that JAX refuses are left out."""
    if not search.recompute_collectives and any(map(exchanges, search.flat.equations)):
        return  # no policy of JAX saves what devices exchange
    places: list[tuple[Derivation, tuple[Region, ...]]] = []
    if not search.refused:
        places.append((search.plain, (search.whole,)))
    if search.context.written and all(map(search.parts, search.context.written)):
        places.append((search.derivation, tuple(search.context.written)))
    for derivation, regions in places:
        for policy in _POLICIES:
            try:
                yield _trial(search, policy, derivation, regions)
            except (compat.PolicyRefused, JaxvizError, ValueError):
                continue


def _trial(search: Search, policy: str, derivation: Derivation, regions: Sequence[Region]) -> Trial:
    made = derive_under(derivation, setting(policy))
    saved = {
        v
        for checkpoint in made.linearized.checkpoints
        for decision in checkpoint.decisions
        if decision.verdict == "saved"
        for v in primal_equation(decision.equation).outvars
    }
    is_saved = lambda v: v in saved or search.context.copies.get(v) in saved
    parts = [part for region in regions for part in search.parts(region) or ()]
    names_in = lambda part: [name for name, values in part.graph.candidates.items() if any(map(is_saved, values))]
    form = Form(tuple(regions), tuple((part, part.choice(names_in(part))) for part in parts), policy=policy)
    return Trial(form, form.names(search.name), made.primal, made, search.measured(made))
