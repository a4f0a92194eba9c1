"""The passes of the gradients that a training step takes, each an equation of the step while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import compress, islice
from types import MappingProxyType
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxviz.analysis.walk import with_holders
from jaxviz.derivation import Derivation
from jaxviz.higher_order import Body, bodies, is_scan, of
from jaxviz.higher_order.jit import JIT, jit_operation
from jaxviz.higher_order.scan import ScanParams
from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr, with_programs
from jaxviz.ir.syntax import Atom, Equation, Operation, Program, Var
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import Mask, partition, program_effects, with_results
from jaxviz.transforms.inline import inlined_where
from jaxviz.transforms.vmap import Dim, vmap_program

pass_p: Any = Primitive("gradient_pass")
"""The forward or the backward pass of a gradient, while a step is traced."""
pass_p.multiple_results = True
pass_p.def_effectful_abstract_eval(lambda *_, out_avals, effects, **__: (list(out_avals), effects))


class NotAnEquation(Exception):
    """A backward pass is used in a way that is not one equation of the step.

    Args:
      mark: of which gradient.
      how: how it is used, such as "under jax.vmap".
    """

    def __init__(self, mark: int, how: str):
        super().__init__(mark, how)
        self.mark = mark
        self.how = how


def _pushed(*_: Any, mark: int, **__: Any) -> Any:
    """A gradient is differentiated, so its passes are not those of the function."""
    raise NotAnEquation(mark, "that is differentiated again")


def _mapped(
    axis: compat.Axis, operands: Sequence[Any], dims: Sequence[Dim], **params: Any
) -> tuple[Any, Sequence[Dim]]:
    """A pass under `jax.vmap`: with the residuals of one forward pass, as in `jax.jacrev`, still a backward pass."""
    types, n = params["out_avals"], len(operands) - params.get("n_cotangents", 0) - sum(params.get("in_place", ()))
    if all(d is None for d in dims):
        return pass_p.bind(*operands, **params), [None] * len(types)
    if any(d is not None for d in dims[:n]) or any(params.get("in_place", ())):
        raise NotAnEquation(params["mark"], "under jax.vmap")
    params["maps"] = (*params["maps"], (axis, tuple(dims[n:])))
    params["out_avals"] = tuple([compat.mapped_type(a, 0, axis) for a in types])
    return pass_p.bind(*operands, **params), [0] * len(types)


ad.primitive_jvps[pass_p] = _pushed
batching.fancy_primitive_batchers[pass_p] = _mapped


@dataclass(frozen=True, eq=False)
class Passes:
    """The two passes of a gradient.

    Args:
      forward: inputs → results, maybe more, residuals.
      backward: residuals, cotangents of the results → cotangents of the inputs, and maybe more.
      in_place: for each differentiated input, whether its cotangent is added to a reference → the backward pass that
        takes these references after its other inputs, and returns the other cotangents.
      n_more: how much more the forward pass returns.
    """

    forward: Program
    backward: Program
    in_place: Callable[[Mask], Program]
    n_more: int = 0

    @staticmethod
    def of(derivation: Derivation) -> Passes:
        return Passes(derivation.forward, derivation.backward, derivation.backward_in_place)


@dataclass(frozen=True, eq=False)
class OpenedStep:
    """A training step with the passes of its gradients as calls.

    Args:
      program: the step.
      forward, backward: the equations that call the passes of the gradient that it is about, with the results of the
        forward pass that are no residuals.
      calls: of each operation that calls a pass, of which gradient, and whether it is the forward pass.
    """

    program: Program
    forward: Mapping[Equation, int]
    backward: frozenset[Equation]
    calls: Mapping[Operation, tuple[int, bool]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slice:
    """What a scan reads in one iteration of a stacked value, or stacks; of this type."""

    of: Any
    aval: Any = field(compare=False)


_Value = Atom | Slice
_Key = tuple[_Value, ...]
_Available = Mapping[_Key, _Key]
"""For the residuals of each forward pass, the variables of a program that hold those of the pass in its place."""


class Opening:
    """Replaces each pass of a step by a call.

    Args:
      passes: of each gradient of the step.
      n_results: of the functions that these differentiate.
      mark: the gradient that the step is about.
    """

    def __init__(self, passes: Sequence[Passes], n_results: Sequence[int], mark: int):
        self.passes = passes
        self.n_results = n_results
        self.mark = mark
        self.done: dict[Program, Program] = {}
        self.residuals: dict[_Key, tuple[Var, ...]] = {}  # without references, which no scan stacks
        self.operands: dict[Atom, Atom] = {}
        """For residuals of the new passes that are operands, these."""
        self.forward: dict[Equation, int] = {}
        self.backward: set[Equation] = set()
        self.calls: dict[Operation, tuple[int, bool]] = {}

    def program(self, program: Program) -> Program:
        """A program whose backward passes read only residuals of its own."""
        if program not in self.done:
            self.done[program] = self._within(program, {}, {})
        return self.done[program]

    def _within(self, program: Program, outer: Mapping[Atom, _Value], available: _Available) -> Program:
        """A program in which backward passes may read residuals from outside.

        Args:
          outer: for its inputs that are the same in each run, the variables of the outermost program that these are.
          available: by these variables, the inputs that were added to the program.
        """
        available = dict(available)
        equations = []
        for e in program.equations:
            if e.primitive is not pass_p:
                stacks = _stacked_by(e, outer)
                e = self._holder(e, outer, available) if e.programs else e
                if stacks:
                    e, stacked = self._stacking(e, stacks, outer)
                    available.update(stacked)
            elif e.params["is_forward"]:
                replaced = e.outvars[e.params["n_results"] :]
                e, available[replaced] = self._forward(e)
                self.residuals[replaced] = tuple([a for a in available[replaced] if isinstance(a, Var)])
            else:
                residuals, cotangents = _split(e)
                read = map(_whole, available[_resolved(residuals, outer)])
                e = self._backward(e, (*read, *cotangents))
            equations.append(e)
        return replace(program, equations=tuple(equations))

    def _forward(self, e: Equation) -> tuple[Equation, tuple[Atom, ...]]:
        mark, n_results = e.params["mark"], self.n_results[e.params["mark"]]
        passed = self.passes[mark].forward
        _, more, saved = partition(passed.outvars, n_results, self.passes[mark].n_more)
        residuals = _new(saved)
        call = Equation(_call(passed), e.invars, (*e.outvars[:n_results], *_new(more), *residuals), e.source)
        self.calls[call.operation] = mark, True
        if mark == self.mark:
            self.forward[call] = n_results
        operands = dict(zip(passed.invars, e.invars, strict=True))
        pairs = tuple(zip(saved, residuals, strict=True))
        self.operands.update((v, operands[a]) for a, v in pairs if a in operands)
        return call, tuple(
            [operands[a] if compat.is_mutable(a.aval) else v for a, v in pairs]
        )  # a reference is no result

    def _backward(self, e: Equation, operands: tuple[Atom, ...]) -> Equation:
        passes, in_place = self.passes[e.params["mark"]], e.params["in_place"]
        backward = _wanted_of(passes.in_place(in_place) if any(in_place) else passes.backward, e.params["wanted"])
        n = len(backward.invars) - len(_split(e)[1])
        for axis, dims in e.params["maps"]:
            backward = vmap_program(backward, [None] * n + [*dims], axis, to=[0] * len(backward.outvars)).program
        outvars = (*e.outvars, *_new(backward.outvars[len(e.outvars) :]))
        call = Equation(_call(backward), operands, outvars, e.source)
        self.calls[call.operation] = e.params["mark"], False
        if e.params["mark"] == self.mark:
            self.backward.add(call)
        return call

    def _holder(self, e: Equation, outer: Mapping[Atom, _Value], available: _Available) -> Equation:
        """An equation with nested programs, whose operands are the new residuals that backward passes in them read: a
        scan over stacked ones reads a slice in each iteration."""
        read = {key: available[key] for key in _read_inside(e, outer) if key in available}
        if not read:
            operation = with_programs(e.operation, self.program)
            return e if operation is e.operation else replace(e, operation=operation)
        kind, running = of(e), [b for b in bodies(e) if b.has_results]
        others = {b.program for b in bodies(e)} - {b.program for b in running}
        n, first = kind.n_fixed(e.operation), running[0].operands[0]
        rows = set(_scanned_inputs(e, running[0], outer).values())
        of_rows = (a for key, atoms in read.items() if rows.intersection(key) for a in atoms)
        sliced = dict.fromkeys(a for a in of_rows if isinstance(a, Slice))
        added = [a for a in dict.fromkeys(a for atoms in read.values() for a in atoms) if a not in sliced]
        changed = []
        for body in running:
            whole = {a: Var(_whole(a).aval) for a in added}
            of_row = {a: Var(a.aval) for a in sliced}
            new = of_row | {a: Slice(v, a.aval) if isinstance(a, Slice) else v for a, v in whole.items()}
            of_body = {key: tuple([new[a] for a in atoms]) for key, atoms in read.items()}
            program = self._within(body.program, _same_inputs(e, body, outer), of_body)
            changed.append((program, whole.values(), of_row.values()))
        size = len(running[0].program.invars)
        last = sum(kind.carry(e.operation)) if sliced else size  # after which come the values that a scan slices
        is_read = lambda i: any(_reads(program, program.invars[i]) for program, _, _ in changed)
        keep = [n <= i < last or is_read(i) for i in range(size)]
        programs = [_with_inputs(p, (*whole, *compress(p.invars, keep), *rows)) for p, whole, rows in changed]
        operation = with_programs(e.operation, lambda p: self.program(p) if p in others else p)
        operation = kind.with_fixed(operation, programs, len(added) + sum(keep[:n]))
        before, own = partition(e.invars, first)
        operands = (*before, *map(_whole, added), *compress(own, keep), *map(_whole, sliced))
        return Equation(operation, operands, e.outvars, e.source, e.origin)

    def _stacking(
        self, e: Equation, stacks: Mapping[_Key, _Key], outer: Mapping[Atom, _Value]
    ) -> tuple[Equation, _Available]:
        """A scan that stacks the new residuals of the forward passes in it in place of those that it stacked. Arguments
        that it did not stack, since they are put back, are read where they are."""
        scan, replaced = ScanParams(e.operation), {a for key in stacks for a in key}
        same = _same_inputs(e, bodies(e)[0], outer)
        there: dict[Atom, _Value] = {}
        for key, stacked in stacks.items():
            put_back = {*stacked} - {Slice(v, v.aval) for v in e.outvars}
            for a in self.residuals[key]:
                argument = same.get(self.operands[a]) if a in self.operands else None
                there |= {a: argument} if argument is not None and argument in put_back else {}
        new = {a: scan.outer(a, True) for key in stacks for a in self.residuals[key] if a not in there}
        keep = [a not in replaced for a in scan.body.outvars]
        body = with_results(scan.body, (*compress(scan.body.outvars, keep), *new))
        operation = scan.like(body, scan.n_consts, scan.n_carry)
        there |= {a: Slice(v, a.aval) for a, v in new.items()}
        read = {stacked: tuple([there[a] for a in self.residuals[key]]) for key, stacked in stacks.items()}
        return replace(e, operation=operation, outvars=(*compress(e.outvars, keep), *new.values())), read


def _new(like: Sequence[Atom]) -> tuple[Var, ...]:
    return tuple([Var(a.aval) for a in like])


def _whole(a: _Value) -> Atom:
    whole: Atom = a.of if isinstance(a, Slice) else a
    return whole


def _stacked_by(e: Equation, outer: Mapping[Atom, _Value] = MappingProxyType({})) -> dict[_Key, _Key]:
    """For the residuals of each forward pass in the body of a scan that stacks them, these stacked ones. One that it
    does not stack, since it is an argument that is put back, is what the scan reads there."""
    if not is_scan(e):
        return {}
    scan = ScanParams(e.operation)
    ys = dict(zip(scan.body.outvars[scan.n_carry :], e.outvars[scan.n_carry :], strict=True))
    same = _same_inputs(e, bodies(e)[0], outer)
    stacked: dict[_Key, _Key] = {}
    for f in scan.body.equations:
        if not _is_pass(f, is_forward=True):
            continue
        key = f.outvars[f.params["n_results"] :]
        arguments = (None if i is None else same.get(f.invars[i]) for i in f.params["from_inputs"])
        values = [Slice(ys[a], a.aval) if a in ys else x for a, x in zip(key, arguments, strict=True)]
        if any(a in ys for a in key) and None not in values:
            stacked[key] = tuple([v for v in values if v is not None])
    return stacked


@dataclass(frozen=True, slots=True)
class Stacked:
    """That a scan stacks the residuals of a gradient in each iteration.

    Args:
      times: how often these are in memory at once; 1 if no scan stacks them.
      arguments, put_back: how many of them are arguments; and of those, how many it does not stack.
    """

    times: int
    arguments: int = 0
    put_back: int = 0


def stacked_by_scan(program: Program, mark: int) -> Stacked:
    """How a scan stacks the residuals of a gradient."""
    is_this = lambda e: _is_pass(e, is_forward=True) and e.params["mark"] == mark
    e, within = next((e, within) for e, within in with_holders(program) if is_this(e))
    residuals = e.outvars[e.params["n_results"] :]
    if not within or residuals not in (stacks := _stacked_by(within[-1])):
        return Stacked(1)
    own = {Slice(v, v.aval) for v in within[-1].outvars}
    read = [a for a, i in zip(stacks[residuals], e.params["from_inputs"], strict=True) if i is not None]
    times = of(within[-1]).trip_count(within[-1].operation) or 1
    return Stacked(times, len(read), sum(a not in own for a in read))


def _resolved(atoms: Sequence[Atom], outer: Mapping[Atom, _Value]) -> _Key:
    return tuple([outer.get(a, a) for a in atoms])


def _same_inputs(e: Equation, body: Body, outer: Mapping[Atom, _Value]) -> dict[Atom, _Value]:
    """For the inputs of a body that are the same in each run, the outermost variables that they are; for those of which
    a scan reads a slice in each iteration, these slices."""
    fixed = zip(body.program.invars, body.operands, strict=True)
    n = of(e).n_fixed(e.operation) if body.has_results else 0
    same = {v: outer.get(e.invars[i], e.invars[i]) for v, i in islice(fixed, n)}
    return same | _scanned_inputs(e, body, outer)


def _scanned_inputs(e: Equation, body: Body, outer: Mapping[Atom, _Value]) -> dict[Atom, _Value]:
    if not is_scan(e):
        return {}
    first = sum(of(e).carry(e.operation))
    pairs = zip(body.program.invars[first:], e.invars[first:], strict=True)
    return {v: Slice(outer.get(a, a), v.aval) for v, a in pairs}


def _read_inside(e: Equation, outer: Mapping[Atom, _Value]) -> Iterator[_Key]:
    """The residuals that backward passes read in the bodies of an equation."""
    for body in bodies(e):
        inner = _same_inputs(e, body, outer)
        for nested in body.program.equations:
            if _is_pass(nested, is_forward=False):
                yield _resolved(_split(nested)[0], inner)
            yield from _read_inside(nested, inner)


def _with_inputs(program: Program, invars: tuple[Var, ...]) -> Program:
    info = compat.derived_debug_info(program.debug_info, [""] * len(invars), len(program.outvars))
    return replace(program, invars=invars, effects=program_effects(program.equations, invars), debug_info=info)


def _reads(program: Program, v: Atom) -> bool:
    return any(v in e.invars for e in program.equations) or v in program.outvars


def _split(backward: Equation) -> tuple[tuple[Atom, ...], tuple[Atom, ...]]:
    """The residuals that a backward pass reads; the cotangents, and the references to which it adds others."""
    n = len(backward.invars) - backward.params["n_cotangents"] - sum(backward.params["in_place"])
    return backward.invars[:n], backward.invars[n:]


def _wanted_of(backward: Program, needed: Sequence[bool]) -> Program:
    """A backward pass with only these of its cotangents, and all other results, of the same inputs."""
    if all(needed):
        return backward
    others = [True] * (len(backward.outvars) - len(needed))
    return dce_program(backward, [*needed, *others], [True] * len(backward.invars))[0]


def _call(program: Program) -> Operation:
    return jit_operation(_jit(), program, [None] * len(program.invars), [None] * len(program.outvars))


@cache
def _jit() -> Operation:
    """A jit created by JAX, as a template for others."""
    program = read_jaxpr(jax.make_jaxpr(jax.jit(lambda x: x + 1))(1.0))
    return next(e.operation for e in program.equations if e.primitive is JIT.primitive)


def with_passes_together(program: Program) -> Program:
    """A step in which each backward pass is in the program of its forward pass, or in a branch or a loop there.

    What `jax.vjp` returns may be a result of a jitted function and an argument of another: these calls are inlined. So
    are checkpoints, which change nothing where they are not differentiated.

    Raises:
      NotAnEquation: a backward pass reads other values than the residuals of a forward pass.
    """
    program = _with_arguments_put_back(program)
    if any(_apart(program)):
        is_call = lambda e: of(e) is JIT or of(e).is_checkpoint
        inlined = inlined_where(program, lambda e: is_call(e) and any(_is_apart(p) for _, p in e.programs))
        program = _with_arguments_put_back(inlined)
    for e in _apart(program):
        raise NotAnEquation(e.params["mark"], "whose backward pass is apart from its forward pass")
    for mark in {v: mark for v, mark in _residuals_in(program, {}).items() if v in program.outvars}.values():
        raise _read_besides(mark)
    return program


def _read_besides(mark: int) -> NotAnEquation:
    return NotAnEquation(mark, "whose residuals are also read outside of its backward pass")


def _residuals_in(program: Program, handed_in: Mapping[Atom, int]) -> dict[Atom, int]:
    """The variables of a program that are residuals, with the marks of their gradients: of forward passes in it, of
    those that a scan in it stacks, and these inputs.

    Raises:
      NotAnEquation: one of them is read by something else than a backward pass; other passes may not have it.
    """
    residuals = dict(handed_in)
    for e in program.equations:
        read = {a: residuals[a] for a in e.invars if a in residuals}
        if _is_pass(e, is_forward=False):
            read = {a: mark for a, mark in read.items() if a in _split(e)[1]}
        for body in bodies(e):
            stacked = {a for key in _stacked_by(e) for a in key}
            inputs = {v: _whole(a) for v, a in _same_inputs(e, body, {}).items()}
            inner = _residuals_in(body.program, {v: residuals[a] for v, a in inputs.items() if a in residuals})
            read = {a: mark for a, mark in read.items() if a in _others(e, body, inputs)}
            for v, a in zip(e.outvars, body.program.outvars, strict=False):
                if a in inner and a in stacked:
                    residuals[v] = inner[a]
                elif a in inner:
                    raise _read_besides(inner[a])
        for mark in read.values():
            raise _read_besides(mark)
        if _is_pass(e, is_forward=True):
            residuals.update(dict.fromkeys(e.outvars[e.params["n_results"] :], e.params["mark"]))
    return residuals


def _others(e: Equation, body: Body, inputs: Mapping[Atom, Atom]) -> set[Atom]:
    """The operands that a body gets as inputs other than these, such as a loop's carry."""
    return {e.invars[i] for v, i in zip(body.program.invars, body.operands, strict=True) if v not in inputs}


def _with_arguments_put_back(program: Program) -> Program:
    """A step whose backward passes read residuals where they read the arguments that these residuals are.

    An argument that `jax.vjp` may not save is put back by the user before the backward pass.
    """
    forward: list[Equation] = []
    equations: list[Equation] = []
    for e in program.equations:
        if e.primitive is not pass_p:
            operation = with_programs(e.operation, _with_arguments_put_back) if e.programs else e.operation
            e = e if operation is e.operation else replace(e, operation=operation)
        elif e.params["is_forward"]:
            forward.append(e)
        else:
            read, cotangents = _split(e)
            residuals = next((own for f in forward if (own := _residuals_of(f, e.params["mark"], read))), read)
            e = e if residuals == read else replace(e, invars=(*residuals, *cotangents))
        equations.append(e)
    same = all(a is b for a, b in zip(equations, program.equations, strict=True))
    return program if same else replace(program, equations=tuple(equations))


def _residuals_of(forward: Equation, mark: int, read: Sequence[Atom]) -> tuple[Atom, ...]:
    """The residuals of a forward pass, if a backward pass reads these, or the arguments that they are; else none."""
    if forward.params["mark"] != mark:
        return ()
    residuals = forward.outvars[forward.params["n_results"] :]
    arguments = (None if i is None else forward.invars[i] for i in forward.params["from_inputs"])
    matches = (g is r or g is a for g, r, a in zip(read, residuals, arguments, strict=True))
    return residuals if all(matches) else ()


def _is_apart(program: Program) -> bool:
    """Whether a forward pass in a program has no backward pass in it, or the reverse."""
    backward = {e.params["mark"] for e, _ in with_holders(program) if _is_pass(e, is_forward=False)}
    forward = {e.params["mark"] for e, _ in with_holders(program) if _is_pass(e, is_forward=True)}
    return backward != forward or any(_apart(program))


def _apart(
    program: Program, outer: Mapping[Atom, _Value] = MappingProxyType({}), residuals: Collection[_Key] = ()
) -> Iterator[Equation]:
    """The backward passes whose residuals come from no forward pass in the program, or in one that passes them in.

    Args:
      outer: for the inputs that are the same in each run of the program, the variables of the outermost one.
      residuals: of the forward passes before it in programs around it.
    """
    known = set(residuals)
    for e in program.equations:
        if _is_pass(e, is_forward=True):
            known.add(e.outvars[e.params["n_results"] :])
        elif _is_pass(e, is_forward=False) and _resolved(_split(e)[0], outer) not in known:
            yield e
        handed_on = known if of(e).n_fixed(e.operation) or is_scan(e) else ()
        for body in bodies(e):
            yield from _apart(body.program, _same_inputs(e, body, outer), handed_on)
        known.update(_stacked_by(e).values())


def _is_pass(e: Equation, is_forward: bool) -> bool:
    return e.primitive is pass_p and e.params["is_forward"] is is_forward
