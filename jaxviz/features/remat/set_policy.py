"""A function under another checkpoint policy: what JAX derives if that policy is written, also as a plan."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax

from jaxviz.analysis.checkpoints import policy_name
from jaxviz.derivation import Derivation
from jaxviz.features.remat.checkpointing import refused_in_checkpoint, remat_template
from jaxviz.features.remat.forms import Form, Trial
from jaxviz.features.remat.graph import derive_like, exchanges
from jaxviz.features.remat.left_out import with_policies
from jaxviz.features.remat.regions import Region
from jaxviz.higher_order import of
from jaxviz.higher_order.checkpoint import CHECKPOINT, apply_remat
from jaxviz.ir import compat
from jaxviz.ir.errors import JaxvizError
from jaxviz.ir.syntax import Program
from jaxviz.transforms.inline import inlined, numbers_in_place
from jaxviz.transforms.policy import decide

if TYPE_CHECKING:
    from jaxviz.features.remat.choices import Part
    from jaxviz.features.remat.search import Search

AS_IT_IS = "as it is"
NO_CHECKPOINTS = "everything"
NOTHING = "nothing_saveable"
"""The policy of a checkpoint without one."""
_DOTS = ("dots_saveable", "dots_with_no_batch_dims_saveable")
_POLICIES = (*_DOTS, NOTHING)
"""The policies that take no arguments; JAX has two of them under a second name, and one that saves everything."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The checkpoints with which a function is derived.

    Args:
      name: the name of the policy, or 'as it is' for the function's own, or 'everything' for no checkpoints.
      policy: a policy for `jax.checkpoint`; None for its default, and for the two others.
    """

    name: str
    policy: Callable[..., Any] | None = None

    @property
    def sets_policy(self) -> bool:
        return self.name not in (AS_IT_IS, NO_CHECKPOINTS)


def setting(policy: Any) -> Setting:
    """Reads a policy: a name in `jax.checkpoint_policies`, a policy, 'as it is', or 'everything'; or a Setting.

    Raises:
      ValueError: no policy has that name, or the function with that name makes policies; the message says what to
        write.
      TypeError: it is not a policy.
    """
    if isinstance(policy, Setting):
        return policy
    if policy in (AS_IT_IS, NO_CHECKPOINTS):
        return Setting(policy)
    if policy is None:
        return Setting(policy_name(None))
    if isinstance(policy, str):
        named = vars(jax.checkpoint_policies).get(policy)
        if named is None:
            raise ValueError(_no_such_policy(policy))
        return Setting(policy, _checked(named))
    if not callable(policy):
        raise TypeError(f"a policy must be a name in jax.checkpoint_policies or a function; got {policy!r}")
    return Setting(policy_name(_checked(policy)), policy)


def _checked(policy: Callable[..., Any]) -> Callable[..., Any]:
    for name, maker in vars(jax.checkpoint_policies).items():
        if maker is policy and not _takes_params(maker):
            params = ", ".join(p.name if p.kind != p.VAR_POSITIONAL else "'a', 'b'" for p in _parameters(maker))
            raise ValueError(
                f"{name} returns a policy and is not one itself: write jax.checkpoint_policies.{name}({params})"
            )
    return policy


def _parameters(f: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(f).parameters.values())


def _takes_params(f: Callable[..., Any]) -> bool:
    """Whether a function accepts the params of any primitive, as policies have to."""
    return any(p.kind == p.VAR_KEYWORD for p in _parameters(f))


def _no_such_policy(name: str) -> str:
    known = [n for n, p in vars(jax.checkpoint_policies).items() if callable(p) and not isinstance(p, type)]
    close = difflib.get_close_matches(name, [*known, AS_IT_IS, NO_CHECKPOINTS], n=3, cutoff=0.5)
    if close:
        return f"jax.checkpoint_policies has no {name!r}; did you mean {' or '.join(map(repr, close))}?"
    return f"jax.checkpoint_policies has no {name!r}; it has {', '.join(known)}"


def derive_under(derivation: Derivation, to: Setting) -> Derivation:
    """The function derived as if each of its checkpoints, including nested ones, had been written with this policy.

    If it has none, one is added around the whole function. Without checkpoints ('everything'), numbers that JAX would
    keep as arrays because of a checkpoint stay literals, a few bytes each.

    Raises:
      ValueError: there is no checkpoint, and JAX would not accept one around the function; the message says why.
    """
    primal = derivation.primal
    if to.name == AS_IT_IS or (not to.sets_policy and not has_checkpoints(primal)):
        return derivation
    if not to.sets_policy:
        program = inlined(primal, (CHECKPOINT.primitive,))
    elif has_checkpoints(primal):
        checkpoints = [e for _, e in primal.walk() if of(e).is_checkpoint]
        program = with_policies(primal, dict.fromkeys(checkpoints, to.policy))
    else:
        program = _checkpointed(primal, to.policy)
    return derive_like(program, derivation)


def has_checkpoints(program: Program) -> bool:
    return any(of(e).is_checkpoint for _, e in program.walk())


def _checkpointed(program: Program, policy: Any) -> Program:
    """The program in one checkpoint, like tracing `jax.checkpoint(f, policy=policy)`."""
    if program.is_path:
        at = next((b.location for b in program.branches if b.location is not None), None)
        raise ValueError(
            f"{program.name} has no checkpoint, and JAX does not allow one around it, because Python reads a "
            f"value{f' at {at}' if at else ''}. Put jax.checkpoint around the other parts."
        )
    why = refused_in_checkpoint(program.equations)
    if why:
        raise ValueError(
            f"{program.name} has no checkpoint, and none can be put around it: {why}. Put jax.checkpoint around the "
            "other parts."
        )
    checkpoint = apply_remat(remat_template(), numbers_in_place(program, done={}), True, policy=policy)
    return replace(checkpoint, debug_info=program.debug_info)


def trials_under_policies(search: Search) -> Iterator[Trial]:
    """The function under each policy, derived and measured as `compare_policies` does; those that JAX refuses are left
    out."""
    if _would_exchange_again(search):
        return
    places: list[tuple[Derivation, tuple[Region, ...]]] = []
    if not search.refused:
        places.append((search.plain, (search.root,)))
    if search.context.written and all(map(search.parts, search.context.written)):
        places.append((search.derivation, tuple(search.context.written)))
    for derivation, regions in places:
        for policy in _POLICIES:
            try:
                yield _trial(search, policy, derivation, regions)
            except (compat.PolicyRefused, JaxvizError, ValueError):
                continue


def _trial(search: Search, policy: str, derivation: Derivation, regions: Sequence[Region]) -> Trial:
    under = derive_under(derivation, setting(policy))
    parts = [part for region in regions for part in search.parts(region) or ()]
    form = replace(_form(search, regions, parts, policy), policy=policy)
    return Trial(form, form.names(search.name), under.primal, under, search.measured(under))


def as_policies_save(search: Search, regions: tuple[Region, ...]) -> list[Form]:
    """The plans that save at some regions what JAX's policies would save there."""
    if _would_exchange_again(search):
        return []
    return [_form(search, regions, search.outer_parts(regions), policy) for policy in _DOTS]


def _would_exchange_again(search: Search) -> bool:
    """Whether devices would exchange values again under any policy, since none saves these."""
    return not search.recompute_collectives and any(map(exchanges, search.flat.equations))


def _form(search: Search, regions: Sequence[Region], parts: Sequence[Part], policy: str) -> Form:
    decides = getattr(jax.checkpoint_policies, policy)
    is_saved = lambda v: decide(decides, search.makers[v]) == "saved"
    names_in = lambda part: [name for name, values in part.graph.candidates.items() if any(map(is_saved, values))]
    return Form(tuple(regions), tuple((part, part.choice(names_in(part))) for part in parts))
