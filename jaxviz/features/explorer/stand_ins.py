"""The values that a checkpoint saves in place of each residual."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from jaxviz.analysis.walk import Tracer, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.features.remat.graph import Graph
from jaxviz.ir import compat
from jaxviz.ir.syntax import Atom, Equation, Var


def stand_ins(derivation: Derivation, graph: Graph, copies: Mapping[Var, Var]) -> list[list[str]]:
    """For each residual as JAX holds it now, the names that a checkpoint saves in its place.

    Those are of what it is made from, as near to it as a name can stand: of `cos(x)`, which the rule of `sin` makes, it is that of
    `x`. There are none for what is an argument, or is made from arguments at no cost.

    Args:
      derivation: of the function as it is written.
      graph: what could be saved of all of it.
      copies: for a value of what the graph is of, the one of the function as written.
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
        """The residuals of a derivation, each with the place that it is made at; None for an argument."""
        trace, made = Tracer(derivation.forward), []
        for atom in derivation.linearized.residuals:
            source = trace(atom)[0]
            made.append((atom, self.of(source.equation, source.atom) if source.equation is not None else None))
        return made

    def of(self, equation: Equation, atom: Atom) -> Any:
        """What tells a value from others: the equation of the function as written that it came from, the operation, and its type."""
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
    """The names that are met first on the way from some values to what they are made from."""
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
