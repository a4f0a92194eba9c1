"""A program with a loop in place of repeated blocks, or with only one of the blocks, to lower and compile but not to run. With

a loop it computes the same from stacked arguments. With one block it computes something different, of the same types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxviz.ir import compat
from jaxviz.ir.convert import read_jaxpr, with_programs
from jaxviz.ir.emit import as_function
from jaxviz.ir.syntax import Atom, Equation, Literal, Program, Var
from jaxviz.xla.compile_cost.parts import Sum, rows_of, sums_of
from jaxviz.xla.compile_cost.repeats import Run, Slot


@dataclass(frozen=True, eq=False)
class Folded:
    """A function to be jitted, with its argument types.

    Args:
      function: takes flat arguments and returns flat results.
      types: the types of the arguments.
      inputs: for each argument the number of its input, or of the first of those stacked in it.
    """

    function: Callable[..., list[Any]]
    types: tuple[Any, ...]
    inputs: tuple[int, ...] = ()


def with_one_block(program: Program, runs: Iterable[Run], types: Sequence[Any]) -> Folded:
    """The program with only the first block of each run: readers of other blocks' values read those of the first."""
    return Folded(as_function(cut_to_one_block(program, runs)), tuple(types))


def cut_to_one_block(program: Program, runs: Iterable[Run]) -> Program:
    """See `with_one_block`."""
    return _changed(program, runs, _cut)


def with_loops(
    program: Program, runs: Iterable[Run], types: Sequence[Any], differentiated: Collection[int] | None = None
) -> Folded:
    """The program with a `jax.lax.scan` in place of each run, or a `jax.vmap` if no block reads from the previous one.

    If each block of an outermost run reads one of the arguments, these become one stacked argument, and results become one stacked result,
    as if the parameters of layers were stacked. In inner programs, and for arguments on several devices, values are stacked where they are
    read.

    Args:
      program: the program.
      runs: runs in it, or in its nested programs.
      types: the types of its inputs.
      differentiated: the inputs with respect to which it will be differentiated; these are not stacked together with others then, and
        results stay separate. None if it will not be differentiated.
    """
    runs = list(runs)
    outermost = [run for run in runs if run.program is program]
    inner = _changed(program, [run for run in runs if run.program is not program], _folded)
    moved = [replace(run, program=inner) for run in outermost]
    return _Loops(inner, moved, types).folded(differentiated)


def _changed(program: Program, runs: Iterable[Run], change: Callable[[Program, list[Run]], Program]) -> Program:
    """A program with the change applied to each nested program with runs, innermost first."""
    by_program: dict[Program, list[Run]] = {}
    for run in runs:
        by_program.setdefault(run.program, []).append(run)
    done: dict[Program, Program] = {}

    def changed(p: Program) -> Program:
        if p not in done:
            equations = tuple(
                e if (op := with_programs(e.operation, changed)) is e.operation else replace(e, operation=op)
                for e in p.equations
            )
            same = all(a is b for a, b in zip(equations, p.equations, strict=True))
            inner = p if same else replace(p, equations=equations)
            own = by_program.get(p, [])
            done[p] = change(inner, [replace(run, program=inner) for run in own]) if own else inner
        return done[p]

    return changed(program)


def _cut(program: Program, runs: list[Run]) -> Program:
    instead: dict[Atom, Atom] = {}
    left_out: set[int] = set()
    for run in runs:
        left_out.update(range(run.start + run.period, run.end))
        for k in range(1, run.count):
            for e, first in zip(run.block(k), run.block(0), strict=True):
                instead.update(zip(e.outvars, first.outvars, strict=True))
    read = lambda atoms: tuple([instead.get(a, a) for a in atoms])
    equations = tuple(replace(e, invars=read(e.invars)) for i, e in enumerate(program.equations) if i not in left_out)
    return replace(program, equations=equations, outvars=read(program.outvars))


def _folded(program: Program, runs: list[Run]) -> Program:
    """A nested program with loops, of the same types."""
    if len(program.consts) < len(program.constvars):
        return program  # its constants have moved
    loops = _Loops(program, runs, None)
    made = read_jaxpr(jax.make_jaxpr(lambda *xs: loops.evaluate(xs))(*map(compat.stand_in, program.in_avals)))
    fits = made.in_avals == program.in_avals and made.out_avals == program.out_avals
    return replace(made, closed=program.closed) if fits and (program.closed or not made.consts) else program


class _Loops:
    """Evaluates a program with its runs as loops.

    Args:
      program, runs: the program and its runs.
      types: the types of its inputs, where inputs that each belong to one block may be stacked; None to keep them separate.
    """

    def __init__(self, program: Program, runs: Sequence[Run], types: Sequence[Any] | None):
        self.program = program
        self.runs = sorted(runs, key=lambda run: run.start)
        self.types = types
        self.env: dict[Atom, Any] = {}
        self.stacks: list[Any] = []
        self.part: dict[Atom, tuple[int, int]] = {}
        """For a value that is a part of a stack: the stack, and its index in it."""
        self.rows = rows_of(program)
        self.sums = sums_of(program)
        self.of_array: dict[Atom, int] = {}
        """For each array whose rows are taken, the number of its stack."""

    # --- stacked arguments --------------------------------------------------------------------------------------------

    def folded(self, differentiated: Collection[int] | None) -> Folded:
        assert self.types is not None
        of_input = dict(zip(self.program.invars, self.types, strict=True))
        number: dict[Atom, int] = {v: i for i, v in enumerate(self.program.invars)}
        groups = self._stacked_inputs(of_input, {v for v in of_input if number[v] in (differentiated or ())})
        in_groups = {v for group in groups for v in group}
        alone = [v for v in self.program.invars if v not in in_groups]
        stacked = [_stacked_type(of_input[group[0]], len(group)) for group in groups]

        def function(*values: Any) -> list[Any]:
            self.env, self.stacks, self.part, self.of_array = {}, [], {}, {}
            for group, stack in zip(groups, values[: len(groups)], strict=True):
                self._add_stack(group, stack)
            self.env.update(zip(alone, values[len(groups) :], strict=True))
            self._run()
            return self._results() if differentiated is None else [self.read(a) for a in self.program.outvars]

        firsts = tuple(number[v] for v in (*(group[0] for group in groups), *alone))
        return Folded(function, (*stacked, *(of_input[v] for v in alone)), firsts)

    def _stacked_inputs(self, of_input: Mapping[Var, Any], differentiated: Collection[Var]) -> list[tuple[Var, ...]]:
        taken: set[Atom] = set()
        groups: list[tuple[Var, ...]] = []
        for run in self.runs:
            for atoms in run.stacked:
                inputs = [a for a in atoms if isinstance(a, Var) and a in of_input and a not in taken]
                whole = len(set(map(id, inputs))) == run.count and len({a in differentiated for a in inputs}) == 1
                if whole and all(getattr(of_input[a], "sharding", None) is None for a in inputs):
                    groups.append(tuple(inputs))
                    taken.update(inputs)
        return groups

    def _results(self) -> list[Any]:
        results: list[Any] = []
        shown: set[int] = set()
        for a in self.program.outvars:
            if a in self.part and a not in self.env and a not in self.rows:
                number, _ = self.part[a]
                if number not in shown:
                    shown.add(number)
                    results.append(self.stacks[number])
            else:
                results.append(self.read(a))
        return results

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, values: Sequence[Any]) -> list[Any]:
        self.env, self.stacks, self.part, self.of_array = (
            dict(zip(self.program.invars, values, strict=True)),
            [],
            {},
            {},
        )
        self._run()
        return [self.read(a) for a in self.program.outvars]

    def _run(self) -> None:
        self.env.update(zip(self.program.constvars, self.program.consts, strict=True))
        at = 0
        for run in self.runs:
            self._plain(at, run.start)
            self._loop(run)
            at = run.end
        self._plain(at, len(self.program.equations))

    def read(self, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return jnp.asarray(atom.val, atom.aval.dtype)
        if atom not in self.env:
            if atom in self.rows:
                row = self.rows[atom]
                self.env[atom] = jax.lax.index_in_dim(self.read(row.array), row.number, keepdims=row.keeps_dimension)
            elif atom in self.sums:
                self.env[atom] = self._added_up(self.sums[atom], atom.aval)
            else:
                number, place = self.part[atom]
                self.env[atom] = jax.lax.index_in_dim(self.stacks[number], place, keepdims=False)
        return self.env[atom]

    def _place(self, atom: Atom) -> tuple[int, int] | None:
        """The stack and the index of a value in it; None if it is not part of one."""
        row = self.rows.get(atom) if isinstance(atom, Var) else None
        if row is None or row.keeps_dimension:
            return self.part.get(atom)
        if row.array not in self.of_array:
            self.of_array[row.array] = len(self.stacks)
            self.stacks.append(self.read(row.array))
        return self.of_array[row.array], row.number

    def _added_up(self, total: Sum, aval: Any) -> Any:
        """A sum of rows; if these are the parts of one stack in order, they are scattered at once."""
        terms = [self.read(a) for a in total.others]
        rows = sorted(total.rows, key=lambda r: r[0])
        while rows:
            first = self.part.get(rows[0][1])
            n = 1
            if first is not None and len(rows) > 1:
                second = self.part.get(rows[1][1])
                step = second[1] - first[1] if second is not None and second[0] == first[0] else 0
                expected = lambda i: (first[0], first[1] + step * i)
                while (
                    step in (1, -1)
                    and n < len(rows)
                    and rows[n][0] == rows[0][0] + n
                    and self.part.get(rows[n][1]) == expected(n)
                ):
                    n += 1
            start = rows[0][0]
            if n > 1 and first is not None:
                low = min(first[1], first[1] + step * (n - 1))
                part = jax.lax.slice_in_dim(self.stacks[first[0]], low, low + n)
                part = (part if step == 1 else jnp.flip(part, 0)).reshape(n, *aval.shape[1:])
            else:
                part = self.read(rows[0][1])
            edges = [(start, aval.shape[0] - start - n, 0), *(len(aval.shape) - 1) * [(0, 0, 0)]]
            terms.append(
                jax.lax.pad(part, jnp.zeros((), aval.dtype), edges) if (start, n) != (0, aval.shape[0]) else part
            )
            rows = rows[n:]
        made = terms[0]
        for other in terms[1:]:
            made = made + other
        return made

    def _add_stack(self, atoms: Sequence[Atom], stack: Any) -> None:
        for place, a in enumerate(atoms):
            self.part[a] = len(self.stacks), place
        self.stacks.append(stack)

    def _plain(self, start: int, end: int) -> None:
        """Equations that are not in any run; those that read rows of a value come after those that compute it."""
        together: list[Equation] = []
        results: set[Atom] = set()
        for at in range(start, end):
            e = self.program.equations[at]
            if self._is_set_apart(e):
                continue
            if any(self._depends(a, results) for a in e.invars):
                self._at_once(together, at)
                together, results = [], set()
            together.append(e)
            results.update(e.outvars)
        self._at_once(together, end)

    def _depends(self, atom: Atom, results: Collection[Atom]) -> bool:
        """Whether a row, or a sum of rows, is computed from one of these values."""
        sources: list[Atom] = []
        if atom in self.rows:
            sources = [self.rows[atom].array]
        elif atom in self.sums:
            total = self.sums[atom]
            sources = [*total.others, *(a for _, a in total.rows)]
        return any(a in results or self._depends(a, results) for a in sources)

    def _at_once(self, equations: Sequence[Equation], end: int) -> None:
        """Equations before the one with number `end`, as one function."""
        if equations:
            read = self._read_after(end)
            made = [v for e in equations for v in e.outvars if v in read]
            given = _free(equations)
            outs = _function(equations, given, made)(*map(self.read, given))
            self.env.update(zip(made, outs, strict=True))

    def _is_set_apart(self, equation: Equation) -> bool:
        """Whether it takes a row or adds rows, which is done where its result is read."""
        return bool(equation.outvars) and (equation.outvars[0] in self.rows or equation.outvars[0] in self.sums)

    def _read_after(self, end: int) -> set[Atom]:
        if not hasattr(self, "_last"):
            self._last: dict[Atom, int] = {}
            n = len(self.program.equations)
            for i, e in enumerate(self.program.equations):
                at = n if self._is_set_apart(e) else i  # when it is needed
                self._last.update((a, max(at, self._last.get(a, 0))) for a in e.invars if isinstance(a, Var))
            self._last.update((a, n) for a in self.program.outvars)
        return {a for a, i in self._last.items() if i >= end}

    def _loop(self, run: Run) -> None:
        read_after = self._read_after(run.end)
        block = run.block(0)
        slots = [(j, o) for j, e in enumerate(block) for o in range(len(e.outvars))]
        of_last = {result for _, result in run.carry}
        stacked_results = [
            slot for slot in slots
            if any(run.result(k, slot) in read_after for k in range(run.count - 1))
            or (slot not in of_last and run.result(run.count - 1, slot) in read_after)
        ]  # fmt: skip
        xs_atoms = run.stacked
        reverse = sum(self._is_falling(atoms) for atoms in xs_atoms) * 2 > len(xs_atoms)
        xs = [self._stack(atoms, reverse) for atoms in xs_atoms]
        first = [run.operand(0, operand) for operand, _ in run.carry]
        # In place of the first block: what it reads from the previous one, and what differs, are inputs of the body.
        inner_carry = [Var(run.result(0, result).aval) for _, result in run.carry]
        inner_xs = [Var(atoms[0].aval) for atoms in xs_atoms]
        instead: dict[Slot, Atom] = {}
        place_of = {tuple(map(id, atoms)): i for i, atoms in enumerate(xs_atoms)}
        for slot in run.given:
            atoms = tuple(run.operand(k, slot) for k in range(run.count))
            instead[slot] = inner_xs[place_of[tuple(map(id, atoms))]]
        for operand, result in run.carried.items():
            instead[operand] = inner_carry[self._carry_place(run, operand, result)]
        equations = tuple(
            replace(e, invars=tuple([instead.get((j, o), a) for o, a in enumerate(e.invars)]))
            for j, e in enumerate(block)
        )
        outs = [run.result(0, slot) for _, slot in run.carry], [run.result(0, slot) for slot in stacked_results]
        own = {*inner_carry, *inner_xs}
        constants = [a for a in _free(equations) if a not in own]
        fixed = [self.read(a) for a in constants]
        body = _function(equations, (*constants, *inner_carry, *inner_xs), [*outs[0], *outs[1]])
        n = len(inner_carry)

        def step(carry: Any, x: Any) -> Any:
            results = body(*fixed, *carry, *x)
            return results[:n], results[n:]

        if n:
            begin = [
                jax.lax.convert_element_type(self.read(a), v.aval.dtype)
                for a, v in zip(first, inner_carry, strict=True)
            ]
            begin = [compat.as_type(x, v.aval) for x, v in zip(begin, inner_carry, strict=True)]
            carry, ys = jax.lax.scan(step, begin, xs, length=run.count, reverse=reverse)
        else:
            carry, ys = [], jax.vmap(lambda *x: step([], x)[1])(*xs)
        last = run.count - 1
        for slot, y in zip(stacked_results, ys, strict=True):
            variables = [run.result(k, slot) for k in range(run.count)]
            self._add_stack(variables[::-1] if reverse else variables, y)
        for (_, result), value in zip(run.carry, carry, strict=True):
            self.env[run.result(last, result)] = value

    def _carry_place(self, run: Run, operand: Slot, result: Slot) -> int:
        first = run.operand(0, operand)
        for i, (other, same) in enumerate(run.carry):
            begins = run.operand(0, other)
            both_written = isinstance(first, Literal) and isinstance(begins, Literal)
            if same == result and (begins is first or both_written):
                return i
        raise AssertionError("each operand that reads the block before is in the carry")

    def _is_falling(self, atoms: Sequence[Atom]) -> bool:
        a, b = self._place(atoms[0]), self._place(atoms[-1])
        return a is not None and b is not None and a[0] == b[0] and a[1] > b[1]

    def _stack(self, atoms: Sequence[Atom], reverse: bool) -> Any:
        """The values that a loop iterates over, stacked; if they are parts of a stack, that stack."""
        atoms = atoms[::-1] if reverse else atoms
        places = [self._place(a) for a in atoms]
        if all(p is not None for p in places) and len({p[0] for p in places if p is not None}) == 1:
            stack, numbers = self.stacks[places[0][0]], [p[1] for p in places if p is not None]  # type: ignore[index]
            step = numbers[1] - numbers[0]
            if step in (1, -1) and numbers == list(range(numbers[0], numbers[0] + step * len(numbers), step)):
                low = min(numbers)
                part = stack if len(numbers) == stack.shape[0] else stack[low : low + len(numbers)]
                return part if step == 1 else jnp.flip(part, 0)
        return jnp.stack([self.read(a) for a in atoms])


def _stacked_type(of_one: Any, n: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((n, *of_one.shape), of_one.dtype)


def _free(equations: Iterable[Equation]) -> tuple[Var, ...]:
    """The values that equations read and do not compute."""
    made: set[Atom] = set()
    found: dict[Var, None] = {}
    for e in equations:
        found.update((a, None) for a in e.invars if isinstance(a, Var) and a not in made)
        made.update(e.outvars)
    return tuple(found)


def _function(equations: Sequence[Equation], given: Sequence[Var], results: Sequence[Atom]) -> Callable[..., list[Any]]:
    effects = frozenset(f for e in equations for f in e.effects)
    info = compat.unknown_debug_info(len(given), len(results))
    return as_function(Program((), tuple(given), tuple(results), tuple(equations), (), effects, info))
