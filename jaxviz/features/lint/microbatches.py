"""Loops over microbatches that add up a gradient, and the same loops with the gradient accumulated in place.

A loop that carries the sum holds each microbatch's gradient beside it. The backward pass can add to references instead,
by `pull.with_refs(refs)` of what `jax.vjp` returns: then only what one operation computes is beside the sum. That makes
a difference for what a loop of the backward pass computes, such as the gradient in stacked layers, which is there as a
whole when the loop ends; XLA adds any other cotangent to the sum as soon as it is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import jax

from jaxviz.analysis.passes import pass_p
from jaxviz.analysis.training_step import TrainingStep
from jaxviz.analysis.walk import location_of
from jaxviz.derivation import Derivation
from jaxviz.features.memory.fusions import is_elementwise
from jaxviz.features.memory.timeline import memory
from jaxviz.higher_order import is_loop, is_scan
from jaxviz.higher_order.jit import JIT
from jaxviz.higher_order.scan import ScanParams
from jaxviz.ir import compat
from jaxviz.ir.convert import operation, trace_rule, with_programs
from jaxviz.ir.origin import Location
from jaxviz.ir.primitives import is_view
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.transforms.dce import live_equations
from jaxviz.transforms.driver import Builder, program_effects, select
from jaxviz.transforms.inline import inlined


@dataclass(frozen=True, eq=False)
class Accumulation:
    """A loop that adds up the cotangents of a backward pass in what it carries.

    Args:
      loop: the scan.
      backward: the pass, in its body.
      added: by the place in the carry, the equation that adds, and the differentiated input whose cotangent it adds.
      scale: what the cotangents are multiplied by, such as " / 4.0"; '' for nothing.
    """

    loop: Equation
    backward: Equation
    added: Mapping[int, tuple[Equation, int]]
    scale: str = ""

    @property
    def mark(self) -> int:
        """Which of the step's gradients it is."""
        return int(self.backward.params["mark"])

    @property
    def adds(self) -> Equation:
        """The equation that adds the largest cotangent."""
        return max((e for e, _ in self.added.values()), key=lambda e: e.outvars[0].aval.size)


def accumulations(step: TrainingStep) -> tuple[TrainingStep, list[Accumulation]]:
    """The loops of a step that add up a gradient, and the step with calls inlined, of which they are."""
    flat = replace(step, traced=inlined(step.traced, (JIT.primitive,)))
    scans = (e for _, e in flat.traced.walk() if is_scan(e))
    return flat, [found for e in scans if (found := _accumulation(e, flat.gradients)) is not None]


def static_slice(d: Derivation) -> Location | None:
    """Where an input of a gradient is read at fixed places, as by `w[:n]`; None if nowhere."""
    made = {v for _, e in d.linear.walk() for v in e.outvars}
    slices = (e for _, e in d.linear.walk() if e.primitive is jax.lax.slice_p and e.params["strides"] is None)
    return next((location_of(e) for e in slices if e.invars[0] not in made), None)


def nbytes_beside(step: TrainingStep, loops: Sequence[Accumulation]) -> int:
    """By how many bytes the modelled peak of a step falls if loops of backward passes add to references, too."""
    at_once = [replace(a, added=dict(_of_no_loop(a, step.gradients[a.mark]))) for a in loops]
    peaks = (memory(step.gradient.taken_by(in_place(step, found))).peak_nbytes for found in (at_once, loops))
    return next(peaks) - next(peaks)


def _of_no_loop(found: Accumulation, d: Derivation) -> Iterator[tuple[int, tuple[Equation, int]]]:
    """What is added in a loop, but for what a loop of the backward pass computes."""
    backward = inlined(d.backward, (JIT.primitive,))
    made: dict[Atom, Equation] = {v: e for e in backward.equations for v in e.outvars}
    reached = (i for i, r in enumerate(select(d.nonzeros, d.reached)) if r)
    cotangents = dict(zip(reached, backward.outvars, strict=True))
    for place, (e, i) in found.added.items():
        maker = made.get(cotangents[i])
        while maker is not None and not is_loop(maker) and (is_view(maker) or is_elementwise(maker)):
            maker = made.get(maker.invars[0])
        if maker is None or not is_loop(maker):
            yield place, (e, i)


def in_place(step: TrainingStep, loops: Collection[Accumulation]) -> TrainingStep:
    """The step with these loops, whose backward passes add to references instead."""
    return replace(step, traced=_rewritten(step.traced, {a.loop: a for a in loops}, step.gradients))


def _accumulation(loop: Equation, gradients: tuple[Derivation, ...]) -> Accumulation | None:
    """What a scan adds up; None unless it is all of one gradient."""
    scan = ScanParams(loop.operation)
    body = scan.body
    made: dict[Atom, Equation] = {v: e for e in body.equations for v in e.outvars}
    reads = Counter[Atom](a for e in body.equations for a in e.invars)
    reads.update(body.outvars)
    carried = body.invars[scan.n_consts : scan.n_consts + scan.n_carry]
    added: dict[int, tuple[Equation, int]] = {}
    passes, scales = set(), set()
    for place, (held, total) in enumerate(zip(carried, body.outvars, strict=False)):
        e = made.get(total)
        if e is None or e.primitive.name not in ("add", "add_any") or held not in e.invars:
            continue
        of_pass = [_cotangent(a, made, reads) for a in e.invars if a is not held]
        if len(of_pass) != 1 or of_pass[0] is None or reads[held] != 1 or reads[total] != 1:
            continue
        backward, k, scale = of_pass[0]
        if backward.outvars[k].aval.str_short() != held.aval.str_short():
            continue
        passes.add(backward)
        scales.add(scale)
        added[place] = e, _differentiated(backward, gradients)[k]
    if len(passes) != 1 or len(scales) != 1:
        return None
    (backward,), (scale,) = passes, scales
    return Accumulation(loop, backward, added, scale) if len(added) == len(backward.outvars) else None


def _cotangent(a: Atom, made: Mapping[Atom, Equation], reads: Mapping[Atom, int]) -> tuple[Equation, int, str] | None:
    """The backward pass that computes a value, which result it is, and what it is multiplied by, if nothing else reads
    it."""
    scale = ""
    while reads[a] == 1 and (e := made.get(a)) is not None:
        if e.primitive is pass_p:
            is_plain = not (e.params["is_forward"] or e.params["maps"] or any(e.params["in_place"]))
            return (e, e.outvars.index(a), scale) if is_plain else None
        if e.primitive.name not in ("mul", "div") or not isinstance(e.invars[1], Literal):
            return None
        scale = f" {'*' if e.primitive.name == 'mul' else '/'} {e.invars[1].val}{scale}"
        a = e.invars[0]
    return None


def _differentiated(backward: Equation, gradients: tuple[Derivation, ...]) -> list[int]:
    """Which of the differentiated inputs each result of a backward pass is the cotangent of."""
    d = gradients[backward.params["mark"]]
    reached = (i for i, r in enumerate(select(d.nonzeros, d.reached)) if r)
    return list(compress(reached, backward.params["wanted"]))


def _rewritten(program: Program, loops: Mapping[Equation, Accumulation], gradients: tuple[Derivation, ...]) -> Program:
    builder = Builder(program.constvars, program.consts)
    for e in program.equations:
        if e in loops:
            _add_in_place(builder, loops[e], gradients)
            continue
        new = with_programs(e.operation, lambda p: _rewritten(p, loops, gradients)) if e.programs else e.operation
        builder.equations.append(e if new is e.operation else replace(e, operation=new))
    equations = tuple(builder.equations)
    if all(new is old for new, old in zip(equations, program.equations, strict=False)):
        return program
    return replace(program, equations=equations, effects=program.effects | program_effects(equations, program.invars))


def _add_in_place(builder: Builder, found: Accumulation, gradients: tuple[Derivation, ...]) -> None:
    """Adds the loop with references that it closes over, in place of the sums that it carries."""
    loop, scan = found.loop, ScanParams(found.loop.operation)
    body, n, n_carry = scan.body, scan.n_consts, scan.n_carry
    stays = [place not in found.added for place in range(n_carry)]
    starts = [loop.invars[n + place] for place in found.added]
    sums = [builder.inline(trace_rule(lambda x: [jax.new_ref(x)], [a.aval]), [a])[0] for a in starts]
    refs = {place: Var(ref.aval) for place, ref in zip(found.added, sums, strict=True)}

    def with_refs(atoms: tuple[Atom, ...], added: Sequence[Atom]) -> tuple[Any, ...]:
        return (*atoms[:n], *added, *compress(atoms[n : n + n_carry], stays), *atoms[n + n_carry :])

    outs = (*compress(body.outvars[:n_carry], stays), *body.outvars[n_carry:])
    inputs = with_refs(body.invars, list(refs.values()))
    new = _adding(found, refs, gradients[found.mark])
    live = live_equations([new if e is found.backward else e for e in body.equations], set(outs))
    body = replace(
        body, invars=inputs, outvars=outs, equations=tuple(live), effects=program_effects(live, inputs),
        debug_info=compat.derived_debug_info(body.debug_info, [""] * len(inputs), len(outs)),
    )  # fmt: skip
    operation = scan.like(body, n + len(sums), sum(stays))
    results = (*compress(loop.outvars[:n_carry], stays), *loop.outvars[n_carry:])
    builder.equations.append(Equation(operation, with_refs(loop.invars, sums), results, loop.source, loop.origin))
    for place, ref in zip(found.added, sums, strict=True):
        (freeze,) = trace_rule(lambda r: [jax.freeze(r)], [ref.aval]).equations
        builder.equations.append(Equation(freeze.operation, (ref,), (loop.outvars[place],), loop.source))


def _adding(found: Accumulation, refs: Mapping[int, Var], d: Derivation) -> Equation:
    """The backward pass of a loop that adds to references.

    Args:
      refs: by the place in the carry.
      d: the derivation of the gradient.
    """
    old, params = found.backward, dict(found.backward.params)
    of_input = {i: refs[place] for place, (_, i) in found.added.items()}
    reached = [i for i, r in enumerate(select(d.nonzeros, d.reached)) if r]
    stays = [i not in of_input for i in compress(reached, params["wanted"])]
    params["in_place"] = tuple([i in of_input for i in range(sum(d.nonzeros))])
    params["wanted"] = tuple([w for i, w in zip(reached, params["wanted"], strict=True) if i not in of_input])
    params["out_avals"] = tuple(compress(params["out_avals"], stays))
    params["effects"] = d.backward_in_place(params["in_place"]).effects
    invars = (*old.invars, *(of_input[i] for i in sorted(of_input)))
    types = tuple([a.aval for a in invars])
    op = operation(pass_p, params, types, params["out_avals"], params["effects"], old.operation.context)
    return Equation(op, invars, tuple(compress(old.outvars, stays)), old.source)
