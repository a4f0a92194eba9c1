"""The values of a program that addresses can mean: those of whole expressions, with all their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxviz.analysis.modules import module_of
from jaxviz.analysis.naming import Naming, OwnName
from jaxviz.analysis.returned import WrittenValue, returned_values, variable_of
from jaxviz.analysis.walk import library_location_of, location_of, own_location_of, running
from jaxviz.higher_order import is_loop, is_scan, scan_length
from jaxviz.higher_order.observing import Path, Place, walk_observed
from jaxviz.ir import compat
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.sharing import kept_with
from jaxviz.ir.syntax import DropVar, Equation, Program


@dataclass(frozen=True, eq=False, kw_only=True)
class AddressedValue(WrittenValue):
    """A value of a program that addresses can mean, with the expression that computes it: the user's, or a library's if
    one of its modules computes it.

    Args:
      path, program, equation, index: where it is: the equations around its program, that, the equation that computes
        it, which of its results.
      label: its `checkpoint_name`, or the name of its probe if that is asked for; '' if it has none.
      returned_by: the modules that return it.
      returned: the calls of the user's own functions that return it, innermost first.
    """

    path: Path
    program: Program
    equation: Equation
    index: int
    label: str
    returned_by: tuple[str, ...]
    returned: tuple[WrittenValue, ...]

    @property
    def place(self) -> Place:
        return self.path, self.equation.outvars[self.index]

    @property
    def aval(self) -> Any:
        return self.equation.outvars[self.index].aval

    @property
    def loops(self) -> Path:
        """The loops around it, outermost first."""
        return tuple(e for e in self.path if is_loop(e))

    @property
    def runs(self) -> int:
        """How often it is computed: the product of the trip counts of the scans around it."""
        return math.prod(scan_length(e) for e in self.loops if is_scan(e))

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return self.label or self.text or self.equation.primitive.name


@kept_with
def addressed_values(program: Program) -> tuple[AddressedValue, ...]:
    """All values of a program that addresses can mean, in the order of the program.

    These are the values of whole expressions, not the operations that a library function consists of.
    """
    return tuple(_values(program, Naming(program)))


def _values(program: Program, naming: Naming) -> Iterator[AddressedValue]:
    for path, nested in walk_observed(program):
        if any(compat.is_differentiated(e.source) for e in path):  # equations inside are not marked as differentiated
            continue
        outer = path[-1] if path and not is_loop(path[-1]) else None
        results = set(nested.outvars)
        modules = [module_of(e, path) for e in nested.equations]
        by_modules = _returned(nested, modules, module_of(path[-1], path[:-1]) if path else "")
        by_calls = returned_values(nested, path, modules, naming)
        for e, module in zip(nested.equations, modules, strict=True):
            if compat.is_differentiated(e.source):
                continue
            for index, v in enumerate(e.outvars):
                if not is_array(v):
                    continue
                label, own = _label(e), own_location_of(e, path)
                text, where = "", own
                if own is not None and naming.is_whole(e, path, index):
                    # What is inside of a jitted library function is the value of the same expression again.
                    is_inner = outer is not None and v in results and own == own_location_of(outer, path[:-1])
                    text = "" if is_inner else expression_at(own)
                elif module and naming.is_whole(e, path, index, in_library=True):
                    where = library_location_of(e, path)
                    text = expression_at(where)
                returned_by, returned = by_modules.get(v, ()), by_calls.get(v, ())
                if not text and not label and not returned_by and not returned:
                    continue
                assigned = variable_of(naming, e, path, index)
                function = where.function if where is not None else ""
                line = own or location_of(e, path)
                yield AddressedValue(
                    path=path, program=nested, equation=e, index=index, text=text, assigned=assigned, label=label,
                    function=function, module=module, returned_by=returned_by, returned=returned, location=line,
                )  # fmt: skip


def takes_gradient(program: Program) -> bool:
    """Whether a function differentiates something itself, of which nothing has an address."""
    return any(compat.is_differentiated(e.source) for e in running(program))


def gradient_left_out(function: str) -> str:
    """That nothing of such a gradient has an address, for a report or an error."""
    return (
        f"`{function}` takes a gradient itself, and nothing in that gradient has an address; to see inside, give the "
        "function that it differentiates."
    )


def is_array(v: Any) -> bool:
    """Whether a variable is read by somebody and holds an array, not a random key or a reference."""
    dtype = getattr(v.aval, "dtype", None)
    is_value = isinstance(dtype, np.dtype) and not compat.is_float0(v.aval) and not compat.is_mutable(v.aval)
    return is_value and not isinstance(v, DropVar)


def _label(e: Equation) -> str:
    if e.primitive is compat.name_p and not isinstance(e.params["name"], OwnName):
        return str(e.params["name"])
    return ""


def _returned(program: Program, modules: Sequence[str], outer: str) -> dict[Any, tuple[str, ...]]:
    """For each value of a program the modules that return it: those around it that something outside of them reads.

    Args:
      program: the program.
      modules: the module of each of its equations.
      outer: the module of the equation that contains the program.
    """
    made_in = {v: m for e, m in zip(program.equations, modules, strict=True) for v in e.outvars if m}
    read_in: dict[Any, list[str]] = {a: [outer] for a in program.outvars if a in made_in}
    for e, module in zip(program.equations, modules, strict=True):
        for a in e.invars:
            if a in made_in:
                read_in.setdefault(a, []).append(module)
    returned: dict[Any, tuple[str, ...]] = {}
    for v, readers in read_in.items():
        parts = made_in[v].split("/")
        around = ["/".join(parts[:n]) for n in range(len(parts), 0, -1)]
        left = tuple(m for m in around if any(not f"{reader}/".startswith(f"{m}/") for reader in readers))
        if left:
            returned[v] = left
    return returned
