"""The cotangents of a program's variables during transposition, and the values that they belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxviz.ir import compat
from jaxviz.ir.convert import applied, read_traced, shared
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Atom, Equation, Origin, Program, Relations, Shared, Var
from jaxviz.transforms.driver import Builder, written_out


@shared
def _sum_of_hi_types(aval: Any) -> Program:
    return read_traced(compat.trace_to_jaxpr(lambda x, y: [aval.vspace_add(x, y)], (aval, aval)))


class CotangentSums:
    """The cotangent of each variable of a linear program: the sum of what the equations that read it add.

    Args:
      builder: of the backward program.
    """

    def __init__(self, builder: Builder):
        self.builder = builder
        self.sums: dict[Atom, Atom] = {}
        self.first: dict[Atom, Atom] = {}
        """For each sum that is formed, its first term."""
        self.reads: list[tuple[Atom, Equation | None, Atom]] = []
        """A variable, an equation that reads it, None for the program's results, and what that adds."""
        self.rule: Equation | None = None
        self.of_rule: dict[Atom, tuple[Atom, Equation]] = {}

    def enter(self, rule: Equation | None) -> None:
        """Begins with the equations of a rule that JAX transposes as a whole, or with others: what the previous rule
        adds to a cotangent is added in one."""
        if rule is not self.rule:
            self.rule, finished, self.of_rule = rule, self.of_rule, {}
            for to, (ct, equation) in finished.items():
                self.add(to, ct, equation)

    def add_in_rule(self, to: Atom, ct: Atom, equation: Equation) -> None:
        """Adds to the cotangent of a variable from outside of the rule."""
        before = self.of_rule.get(to)
        self.of_rule[to] = (ct if before is None else self._sum(before[0], ct, equation)), equation

    def add(self, to: Atom, ct: Atom, equation: Equation | None) -> None:
        self.reads.append((to, equation, ct))
        before = self.sums.get(to)
        self.sums[to] = ct if before is None else self._sum(before, ct, equation)

    def _sum(self, x: Atom, y: Atom, equation: Equation | None) -> Atom:
        """The sum of two cotangents, in the context of the second one's equation, as in JAX."""
        if getattr(x.aval, "dtype", None) != getattr(y.aval, "dtype", None):
            types = " and ".join(a.aval.str_short(short_dtypes=True) for a in (x, y))
            raise TypeError(
                f"Cotangents of one value have the types {types}, which JAX does not add: a backward rule must return "
                "cotangents of the type of the value."
            )
        origin = Origin(equation, "transpose", "sum of cotangents of a value used more than once", "accumulation")
        if compat.is_hi_type(x.aval):  # which says how its values are added
            (out,) = self.builder.splice(written_out(_sum_of_hi_types(x.aval), origin), (x, y))
            self.first[out] = x
            return out
        context = compat.current_context() if equation is None else equation.operation.context
        operation = applied(compat.add_any_p, {}, (x.aval, y.aval), context)
        out = Var(operation.out_avals[0])
        source = equation.source if equation is not None else None
        self.builder.equations.append(Equation(operation, (x, y), (out,), source, origin))
        self.first[out] = x
        return out

    def _readers(self) -> dict[Atom, list[tuple[Equation | None, Atom]]]:
        """For a variable, the equations that read it, and what each adds to its cotangent."""
        readers: dict[Atom, list[tuple[Equation | None, Atom]]] = {}
        for a, equation, ct in self.reads:
            readers.setdefault(a, []).append((equation, ct))
        return readers

    def summands(self, variables: Sequence[Var]) -> list[list[Atom]]:
        """What each of some variables' cotangent is the sum of, in the order of the additions."""
        readers = self._readers()
        return [[ct for _, ct in readers.get(v, ())] for v in variables]

    def _with_inputs(self, inputs: Sequence[Var], of_inputs: Sequence[Atom | None]) -> dict[Atom, Atom]:
        return {**self.sums, **{v: ct for v, ct in zip(inputs, of_inputs, strict=True) if ct is not None}}

    def relations(self, inputs: Sequence[Var], of_inputs: Sequence[Atom | None]) -> Relations:
        """See `Program.relations`; the terms of a sum are what each reader adds, and the partial sums.

        Args:
          inputs, of_inputs: as for `of_values`.
        """
        cts = self._with_inputs(inputs, of_inputs)
        for v, ct in cts.items():
            yield ct, "cotangent", v
        for v, parts in self._readers().items():
            if len(parts) < 2:
                continue
            for _, ct in parts:
                yield ct, "part", v
            so_far = cts[v]
            for _ in parts[2:]:
                so_far = self.first[so_far]
                yield so_far, "part", v
        yield from self.builder.relations()

    def of_values(
        self, program: Program, inputs: Sequence[Var], of_inputs: Sequence[Atom | None]
    ) -> Mapping[Atom, tuple[Atom, ...]]:
        """From the values that the variables of a linear program are the tangents of to the sums that are their
        cotangents.

        Args:
          program: the linear program.
          inputs, of_inputs: its linear inputs, and their cotangents, zeros that were written out among them.
        """
        cts, readers = self._with_inputs(inputs, of_inputs), self._readers()
        of_values: dict[Atom, tuple[Atom, ...]] = {}
        for t, sharing in program.tangents().items():
            if t not in cts:
                continue
            of_values.setdefault(sharing.values[0], (cts[t],))
            read = [_read_by(equation, sharing) for equation, _ in readers.get(t, ())]
            for i, value in enumerate(sharing.values[1:], 1):
                if any(not places or min(places) < i <= max(places) for places in read):
                    continue  # which parts of the sum come from this value, and which from an earlier one, is not known
                parts = (
                    [ct for places, (_, ct) in zip(read, readers[t], strict=True) if min(places) >= i] if read else []
                )
                if parts:
                    of_values.setdefault(value, (cts[t],) if len(parts) == len(read) else tuple(parts))
        return of_values


def _read_by(equation: Equation | None, shared: Shared) -> list[int]:
    """The variables, among those that share a tangent, that are read by the equation which one of its readers comes
    from."""
    if equation is None:
        return [shared.variables.index(a) for a in shared.results]
    for e in ancestors(equation):
        places = [shared.variables.index(a) for a in e.invars if a in shared.variables]
        if places:
            return places
    return []
