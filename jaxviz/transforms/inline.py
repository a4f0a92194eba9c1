"""Inlining: replaces calls of certain primitives by what they call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

from jaxviz.ir.convert import with_programs
from jaxviz.ir.origin import locate, own_line
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Origin, Program, Var
from jaxviz.transforms.primitive import Body, of


def inlined(program: Program, primitives: Collection[Any], copies: dict[Var, Var] | None = None) -> Program:
    """The program with all calls of these primitives, see `called_program`, inlined.

    Nested programs are included. A program without such calls is returned unchanged, and so is one whose constants are
    stored elsewhere (libraries keep such jaxprs in the params of their primitives), since it has no place for the
    constants of a call.

    Args:
      copies: is filled with the variable of a called program that each new variable is a copy of.
    """
    return _Inliner(lambda e: e.primitive in primitives, {} if copies is None else copies).program(program)


def inlined_where(program: Program, is_opened: Callable[[Equation], bool], own_sources: bool = False) -> Program:
    """The program with some calls, see `called_program`, inlined. See `inlined`.

    Args:
      own_sources: whether the called equations keep their sources, without adding those of the calls.
    """
    return _Inliner(is_opened, {}, own_sources).program(program)


Made = tuple[Equation, tuple[Equation, ...]]
"""An equation, and the equations that contain its program, outermost first."""


def originals(program: Program, opened: Program, is_opened: Callable[[Equation], bool]) -> dict[Equation, Made]:
    """The equation of a program as written for each equation of the same program with its calls inlined.

    Args:
      program: as written.
      opened: with the calls inlined.
      is_opened: which calls are.
    """
    origin_of: dict[Equation, Made] = {}

    def walk(p: Program, within: tuple[Equation, ...]) -> Iterator[Made]:
        for e in p.equations:
            if is_opened(e):
                yield from walk(called_program(e.operation), (*within, e))
            else:
                yield e, within

    def note(p: Program, now: Program, within: tuple[Equation, ...]) -> None:
        is_left = len(p.consts) < len(p.constvars)
        for (e, holders), copied in zip(
            [(e, within) for e in p.equations] if is_left else walk(p, within), now.equations, strict=True
        ):
            if copied not in origin_of:
                origin_of[copied] = e, holders
                for (_, inside), (_, inside_now) in zip(e.programs, copied.programs, strict=True):
                    note(inside, inside_now, (*holders, e))

    note(program, opened, ())
    return origin_of


def called_program(operation: Operation) -> Program:
    """The program that a call calls, such as a jit or a function with custom rules."""
    return called(operation).program


def called(operation: Operation) -> Body:
    """The same, with the operands that it gets."""
    (body,) = of(operation).bodies(operation)
    return body


class _Inliner:
    def __init__(self, is_opened: Callable[[Equation], bool], copies: dict[Var, Var], own_sources: bool = False):
        self.is_opened = is_opened
        self.own_sources = own_sources
        self.copies = copies
        self.done: dict[Program, Program] = {}
        self.operations: dict[Operation, Operation] = {}

    def program(self, program: Program) -> Program:
        if len(program.consts) < len(program.constvars):
            return program
        if program not in self.done:
            equations: list[Equation] = []
            env: dict[Atom, Atom] = {}
            constants = {id(x): (v, x) for v, x in zip(program.constvars, program.consts, strict=True)}
            self.copy(program, env, equations, constants, renames=False)
            if len(equations) == len(program.equations) and all(
                a is b for a, b in zip(equations, program.equations, strict=True)
            ):
                self.done[program] = program
            else:
                self.done[program] = replace(
                    program,
                    constvars=tuple(v for v, _ in constants.values()),
                    consts=tuple(x for _, x in constants.values()),
                    equations=tuple(equations),
                    outvars=tuple(env.get(a, a) for a in program.outvars),
                )
        return self.done[program]

    def copy(
        self, program: Program, env: dict[Atom, Atom], equations: list[Equation], constants: dict[int, tuple[Var, Any]],
        renames: bool, source: Any = None, origin: Origin | None = None,
    ) -> None:  # fmt: skip
        """Copies a program's equations.

        Args:
          program: the program that contains them.
          env: the values of its inputs, and of the results of calls.
          equations, constants: receive the equations, and the constants that they read, by identity.
          renames: whether their results get new variables, since the program may be called more than once.
          source: the source of the call, for equations that are on no line of the user's own.
          origin: that of the call, if it computes cotangents, for equations that have none.
        """
        for e in program.equations:
            line = e.source if self.own_sources else _nearest(e.source, source)
            ins = tuple([env.get(a, a) for a in e.invars])
            if self.is_opened(e):
                taken = called(e.operation)
                body = taken.program
                inner: dict[Atom, Atom] = dict(zip(body.invars, [ins[i] for i in taken.operands], strict=True))
                for v, x in zip(body.constvars, body.consts, strict=True):
                    inner[v], _ = constants.setdefault(id(x), (v.renewed(), x))
                made_by = e.origin or origin
                is_backward = made_by is not None and made_by.role == "cotangent"
                self.copy(body, inner, equations, constants, True, line, made_by if is_backward else None)
                env.update((o, inner.get(r, r)) for o, r in zip(e.outvars, body.outvars, strict=True))
                continue
            operation = self.operation(e.operation)
            outvars = tuple([Var(v.aval) for v in e.outvars]) if renames else e.outvars
            if renames:
                env.update(zip(e.outvars, outvars, strict=True))
                self.copies.update(zip(outvars, e.outvars, strict=True))
            same = operation is e.operation and not renames and all(a is b for a, b in zip(ins, e.invars, strict=True))
            equations.append(e if same else Equation(operation, ins, outvars, line, e.origin or origin))

    def operation(self, operation: Operation) -> Operation:
        if operation not in self.operations:
            self.operations[operation] = with_programs(operation, self.program)
        return self.operations[operation]


def numbers_in_place(
    program: Program, keeps: Callable[[Equation], bool] = lambda e: False, done: dict[Program, Program] | None = None
) -> Program:
    """The program without numbers that JAX would keep as arrays, as in the jaxpr of a checkpoint or a jitted function.

    Args:
      program: the program.
      keeps: for which equations the numbers stay arrays.
      done: if given, what several equations hold stays one program, so that its rules are found once; it receives what
        each program has become. Otherwise each equation gets one of its own.
    """
    if done is not None and program in done:
        return done[program]
    atoms: dict[Atom, Atom] = {}

    def atom(a: Atom) -> Atom:
        return atoms.setdefault(a, Literal(a.val, a.aval)) if isinstance(a, Literal) and a.held else a

    equations = tuple([
        Equation(
            with_programs(e.operation, lambda p: numbers_in_place(p, keeps, done)),
            e.invars if keeps(e) else tuple(map(atom, e.invars)), e.outvars, e.source, e.origin,
        )
        for e in program.equations
    ])  # fmt: skip
    changed = replace(program, equations=equations, outvars=tuple([atom(a) for a in program.outvars]))
    if done is not None:
        done[program] = changed
    return changed


def with_own_variables(program: Program) -> Program:
    """The program with new variables for everything that it binds; nested programs keep theirs."""
    own: dict[Atom, Var] = {v: v.renewed() for v in (*program.constvars, *program.invars)}
    own |= {v: v.renewed() for e in program.equations for v in e.outvars}
    atoms = lambda group: tuple([own.get(a, a) for a in group])
    return replace(
        program,
        constvars=atoms(program.constvars),
        invars=atoms(program.invars),
        outvars=atoms(program.outvars),
        equations=tuple([replace(e, invars=atoms(e.invars), outvars=atoms(e.outvars)) for e in program.equations]),
    )


def _nearest(source: Any, call: Any) -> Any:
    """The source of an equation or of its call, whichever is on a line of the user's own."""
    if call is None or own_line(source) is not None:
        return source
    return source if own_line(call) is None and locate(source) is not None else call
