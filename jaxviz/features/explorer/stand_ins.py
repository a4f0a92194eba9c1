"""The values that a checkpoint saves in place of each residual."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jaxviz.analysis.walk import SourceTracer, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.features.remat.graph import Graph
from jaxviz.ir import compat
from jaxviz.ir.syntax import Atom, Equation, Var


def stand_ins(derivation: Derivation, graph: Graph, copies: Mapping[Var, Var]) -> list[list[str]]:
    """For each residual that JAX saves now, the names that a checkpoint saves in its place.

    They belong to the values it is computed from, as close to it as a name is possible: for `cos(x)`, which the rule of
    `sin` computes, it
      is the name of `x`. There are none for an argument, or for values computed from arguments for free.

    Args:
      derivation: the function as written.
      graph: everything that could be saved in the whole function.
      copies: for a value in the graph's program, the one of the function as written.
    """
    places = _Places(derivation, graph, copies)
    residuals, all_made = defaultdict[Any, list[Atom]](list), defaultdict[Any, list[Atom]](list)
    for atom, key in places.made_at(graph.whole):
        residuals[key].append(atom)
    for node in graph.nodes:
        for v in node.equation.outvars:
            all_made[places.of(node.equation, v)].append(v)
    now = [key for _, key in places.made_at(derivation)]
    count, turn, found = Counter(now), Counter[Any](), []
    for key in now:
        same = [] if key is None else residuals.get(key) or all_made[key]
        # The calls of a function that is called several times are matched in order.
        mine = same[turn[key] : turn[key] + 1] if count[key] == len(same) else same
        turn[key] += 1
        found.append(_nearest(graph, mine))
    return found


class _Places:
    def __init__(self, derivation: Derivation, graph: Graph, copies: Mapping[Var, Var]):
        self.graph = graph
        self.copies = copies
        self.rows: dict[Atom, int] = {}
        for i, (_, e) in enumerate(derivation.primal.walk()):
            for v in e.outvars:
                self.rows.setdefault(v, i)

    def made_at(self, derivation: Derivation) -> list[tuple[Atom, Any]]:
        """The residuals of a derivation, each with the place where it is computed; None for an argument."""
        trace, made = SourceTracer(derivation.forward), []
        for atom in derivation.linearized.residuals:
            source = trace(atom)[0]
            made.append((atom, self.of(source.equation, source.atom) if source.equation is not None else None))
        return made

    def of(self, equation: Equation, atom: Atom) -> Any:
        """What identifies a value: the original equation of the function as written, the operation, and its type."""
        written = primal_equation(equation)
        operation = equation.primitive
        if operation is compat.name_p and isinstance(written.invars[0], Var):
            maker = self.graph.makers.get(written.invars[0])
            operation = maker.primitive if maker is not None else operation
        if operation is compat.reduce_precision_p:
            # A checkpoint rounds the values that it saves.
            operation = written.primitive
        return self._row(written), operation, atom.aval.str_short()

    def _row(self, written: Equation) -> int:
        named = written.invars if written.primitive is compat.name_p else written.outvars
        originals = (self.copies.get(v, v) if isinstance(v, Var) else v for v in named)
        return next((self.rows[v] for v in originals if v in self.rows), -1)


def _nearest(graph: Graph, atoms: Sequence[Atom]) -> list[str]:
    """The first names on the way from some values back to what they are computed from."""
    found: dict[str, None] = {}
    seen: set[Atom] = set()
    pending = [*atoms]
    while pending:
        a = graph.resolved(pending.pop())
        if a in seen:
            continue
        seen.add(a)
        if a in graph.carried:
            pending += [graph.carried[a].first, graph.carried[a].before]
        elif a in graph.producer:
            node = graph.nodes[graph.producer[a]]
            if node.name:
                found[node.name] = None
            else:
                pending += node.equation.invars
    return list(found)
