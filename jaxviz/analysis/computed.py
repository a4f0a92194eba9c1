"""What computes a value, as a short text that is the same in another process, and after most edits of the source.

    text = hash(primitive, params, types, the texts of the operands)

It begins at the arguments of the function, and so says nothing about names, lines, functions or modules, nor about
`jit`, checkpoints and other calls, which are looked through. Two values with the same text are equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxviz.higher_order import Body, bodies, is_choice, is_loop, of
from jaxviz.higher_order.observing import Path, Place
from jaxviz.ir import compat
from jaxviz.ir.primitives import plain
from jaxviz.ir.sharing import kept_with
from jaxviz.ir.syntax import Atom, Equation, Literal, Operation, Program

LARGEST_CONSTANT = 2**24
"""Bytes of a captured array that are read; what larger ones compute is not known."""
_OF_LAYOUT = ("sharding", "out_sharding", "name", "ctx_mesh")
"""Params that do not change the numbers."""


@dataclass(frozen=True)
class Computed:
    """What computes each value of a program.

    Args:
      texts: by place.
      readers: by place, the texts of what is computed from it next.
    """

    texts: Mapping[Place, str]
    readers: Mapping[Place, frozenset[str]]


@kept_with
def computed(program: Program) -> tuple[Computed, Computed]:
    """What computes the values of a program, in two ways: with its arguments known by their names, such as
    `params['w']`, and by their positions."""
    return _computed(program, _names(program)), _computed(program, range(len(program.invars)))


@kept_with
def forms(program: Program) -> Mapping[Place, tuple[str, str]]:
    """The same for any other constants in place of those of the program, so that several values may be alike; those
    that a result is computed from are never like those that are only logged."""
    labels = _names(program), range(len(program.invars))
    by_name, by_position = (_computed(program, ways, any_constants=True).texts for ways in labels)
    is_used = lambda place: place in used(program)
    return {p: (_hash(by_name[p], is_used(p)), _hash(by_position[p], is_used(p))) for p in by_name}


def _names(program: Program) -> list[str]:
    return [name or str(i) for i, name in enumerate(program.arg_names)]


@kept_with
def used(program: Program) -> frozenset[Place]:
    """The values that a result of the program is computed from; not what is only logged."""
    found: set[Place] = set()
    _use(program, (), [True] * len(program.outvars), found)
    return frozenset(found)


def _use(program: Program, path: Path, results: Sequence[bool], found: set[Place]) -> None:
    """Adds what the results are computed from that are used, and the inputs that are."""
    add = lambda atoms: found.update((path, a) for a in atoms if not isinstance(a, Literal))
    add(a for a, is_used in zip(program.outvars, results, strict=True) if is_used)
    for e in reversed(program.equations):
        is_used = [(path, v) in found for v in e.outvars]
        if not any(is_used):
            continue
        operands: set[int] = set() if bodies(e) else set(range(len(e.invars)))
        for body in bodies(e):
            is_exact = not is_loop(e) and body.has_results and len(is_used) == len(body.program.outvars)
            _use(body.program, (*path, e), is_used if is_exact else [True] * len(body.program.outvars), found)
            inner = zip(body.program.invars, body.operands, strict=True)
            operands |= {i for v, i in inner if ((*path, e), v) in found or is_loop(e)}
        operands |= set(range(len(e.invars))) - {i for body in bodies(e) for i in body.operands}
        add(e.invars[i] for i in operands)


def _computed(program: Program, labels: Sequence[Any], any_constants: bool = False) -> Computed:
    walk = _Texts(any_constants)
    inputs = zip(labels, program.invars, strict=True)
    walk.results(program, (), [_hash("argument", label, _type(v.aval)) for label, v in inputs])
    return Computed(walk.texts, {place: frozenset(texts) for place, texts in walk.readers.items()})


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _type(aval: Any) -> str:
    return f"{getattr(aval, 'dtype', aval)}{getattr(aval, 'shape', '')}"


@dataclass
class _Texts:
    """The texts found so far.

    Args:
      any_constants: whether constants of the same type are the same.
    """

    any_constants: bool
    texts: dict[Place, str] = field(default_factory=dict)
    readers: dict[Place, list[str]] = field(default_factory=dict)
    _operations: dict[Operation, str] = field(default_factory=dict)

    def results(self, program: Program, path: Path, inputs: Sequence[str]) -> list[str]:
        """The texts of a program's results, given those of its inputs."""
        env: dict[Atom, str] = dict(zip(program.invars, inputs, strict=True))
        # Libraries keep programs in params whose constants are stored elsewhere.
        env.update((v, _hash("constant", i, _type(v.aval))) for i, v in enumerate(program.constvars))
        env.update((v, self._constant(c)) for v, c in zip(program.constvars, program.consts, strict=False))
        read = lambda a: self._constant(a.val) if isinstance(a, Literal) else env[a]
        for e in program.equations:
            operands = [read(a) for a in e.invars]
            results = self._equation(e, path, operands)
            env.update(zip(e.outvars, results, strict=True))
            self.texts.update(((path, v), text) for v, text in zip(e.outvars, results, strict=True))
            for a in e.invars:
                if not isinstance(a, Literal):
                    self.readers.setdefault((path, a), []).extend(results)
                    if compat.is_ref(a.aval):  # what is in it may now be something else
                        env[a] = _hash("after", e.primitive.name, operands)
        for a in program.outvars:
            if not isinstance(a, Literal):
                self.readers.setdefault((path, a), []).append("result")
        return [read(a) for a in program.outvars]

    def _equation(self, e: Equation, path: Path, operands: list[str]) -> list[str]:
        if _passes_on(e):
            return operands[: len(e.outvars)]
        inside = [b for b in bodies(e) if b.has_results]
        if is_loop(e):
            return self._loop(e, path, operands)
        if is_choice(e):
            each = [self._body(b, e, path, operands) for b in inside]
            return [_hash("choice", operands[0], *texts) for texts in zip(*each, strict=True)]
        if len(inside) == 1:
            return self._body(inside[0], e, path, operands)
        text = _hash(self._operation(e.operation), *operands)
        return [_hash(text, i) for i in range(len(e.outvars))]

    def _body(self, body: Body, e: Equation, path: Path, operands: Sequence[str]) -> list[str]:
        return self.results(body.program, (*path, e), [operands[i] for i in body.operands])

    def _loop(self, e: Equation, path: Path, operands: list[str]) -> list[str]:
        """A value of a loop is computed from the carry before it and from all that changes the carry."""
        (body,) = (b for b in bodies(e) if b.has_results)
        before, n = of(e).carry(e.operation)
        taken = [operands[i] for i in body.operands]
        rows = [_hash("row", text) for text in taken[before + n :]]
        start = [_hash("start", i, text) for i, text in enumerate(taken[before : before + n])]
        first = _Texts(self.any_constants, _operations=self._operations)
        step: list[Any] = [first.results(body.program, (), [*taken[:before], *start, *rows])[:n]]
        for b in bodies(e):
            if not b.has_results:
                fixed = [operands[i] for i in b.operands][: len(b.operands) - n]
                step.append(first.results(b.program, (), [*fixed, *start]))
        params = {k: v for k, v in e.params.items() if k in ("length", "reverse")}
        carry = [_hash("carry", i, step, params) for i in range(n)]
        results = self.results(body.program, (*path, e), [*taken[:before], *carry, *rows])
        return [*(_hash("last", text) for text in results[:n]), *(_hash("rows", params, text) for text in results[n:])]

    def _operation(self, operation: Operation) -> str:
        """What an operation does, whatever its operands are."""
        if operation not in self._operations:
            params = [(k, self._param(v)) for k, v in sorted(operation.params.items()) if k not in _OF_LAYOUT]
            types = [*map(_type, operation.in_avals)], [*map(_type, operation.out_avals)]
            name = operation.primitive.name
            is_known = "callback" not in name
            self._operations[operation] = _hash(name, params, types, "" if is_known else os.urandom(8))
        return self._operations[operation]

    def _param(self, x: Any) -> str:
        if isinstance(x, Program):
            inputs = [_hash("input", i, _type(v.aval)) for i, v in enumerate(x.invars)]
            return str(_Texts(self.any_constants).results(x, (), inputs))
        if isinstance(x, (tuple, list)):
            return str([self._param(part) for part in x])
        if isinstance(x, Mapping):
            return str([(str(k), self._param(v)) for k, v in x.items()])
        if callable(x):
            return f"{getattr(x, '__module__', '')}.{getattr(x, '__qualname__', type(x).__qualname__)}"
        if dataclasses.is_dataclass(x):
            return str([type(x).__qualname__, *(self._param(getattr(x, f.name)) for f in dataclasses.fields(x))])
        text = str(x)
        return type(x).__qualname__ if " at 0x" in text else text

    def _constant(self, x: Any) -> str:
        """The text of a constant: its numbers. One that cannot be read equals no other."""
        aval = compat.aval_of(x)
        if self.any_constants:
            return _hash("constant", _type(aval))
        try:
            if isinstance(x, jax.core.Tracer) or getattr(x, "nbytes", 0) > LARGEST_CONSTANT:
                raise TypeError("unknown numbers")
            numbers = jax.random.key_data(x) if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended) else x
            return _hash("constant", _type(aval), np.asarray(numbers).astype(compat.aval_of(numbers).dtype).tobytes())
        except (TypeError, ValueError, RuntimeError, AttributeError):
            return _hash("unknown", os.urandom(8))


def _passes_on(e: Equation) -> bool:
    """Whether its results have the numbers of its operands, with or without it."""
    does = plain(e.primitive.name)
    if len(e.outvars) > len(e.invars):
        return False
    if e.primitive.name == "convert_element_type":
        return bool(e.operation.in_avals[0].dtype == e.operation.out_avals[0].dtype)
    return does.kind == "nothing" and does.same in ("operand", "layout") and not compat.is_ref(e.invars[0].aval)
