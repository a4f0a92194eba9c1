"""What the explorer needs to say by itself what comes of saving or computing again each value: mirrored by `widgets/src/model/whatif.ts`.

The table has a row for each slot, node, step and buffer:

- A slot is a value of the function with a name after each value that could be saved. It can be had in the backward pass if it is an
  input, is saved by its name, or if the node that makes it is computed again from slots that can be had.
- A node is an equation that makes slots, and is computed again at most once. Its row is that of the function as written that it came
  from, of which there may be none.
- Steps and buffers are those of the modelled timeline without a checkpoint. Where a slot is computed again, its node gets a step of its
  own right before the first step of the backward pass that reads it, and the slot a buffer of its own from there on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from jaxviz.analysis.budgets import evenly
from jaxviz.analysis.walk import Tracer, find_readers, primal_equation
from jaxviz.derivation import Derivation
from jaxviz.features.cost.report import cost
from jaxviz.features.memory.model import (
    KINDS,
    Model,
    is_made_where_read,
    is_view,
    may_write_into_an_operand,
    what_makes,
)
from jaxviz.features.memory.timeline import memory
from jaxviz.features.remat.code import places_of_values, with_source
from jaxviz.features.remat.graph import Graph, Solution
from jaxviz.features.remat.plan import code_row, repeated_effects
from jaxviz.ir import compat
from jaxviz.ir.stack import deep_stack
from jaxviz.ir.syntax import Atom, Equation, Literal, Var
from jaxviz.page.sources import file_label, short_path
from jaxviz.page.texts import fit
from jaxviz.progress import each
from jaxviz.report.tables import nbytes, type_text

_BUDGETS = 9
"""How many plans to give, of a small function; a large one gets fewer, since each takes time."""

_LARGEST = 20_000
"""Equations of the function, called ones counted at each call, up to which there are switches."""


@deep_stack
def what_if(derivation: Derivation, source: bool = True) -> dict[str, Any]:
    """The table, as JSON values.

    Args:
      derivation: of the function; checkpoints that are in it give way.
      source: whether lines of the user's source may be in it, which are those that a name could be put into.

    Raises:
      ValueError: the function has too many equations, or an effect that JAX does not let a checkpoint repeat.
      what `derive` raises for the function with a name after each of its values.
    """
    n = sum(1 for _ in derivation.primal.walk())
    if n > _LARGEST:
        raise ValueError(
            f"the switches are for up to {_LARGEST:,} equations, and this has {n:,}; jaxviz.plan_remat plans it"
        )
    table: dict[str, Any] = fit(_Table(derivation, source).table())
    return table


class _Table:
    def __init__(self, derivation: Derivation, source: bool):
        self.derivation = derivation
        self.source = source
        self.graph = Graph(derivation, False)
        self.strings: dict[str, int] = {"": 0}
        self.slots: dict[Atom, int] = {}
        self.rows: dict[Atom, int] = {}
        for i, (_, e) in enumerate(derivation.primal.walk()):
            for v in e.outvars:
                self.rows.setdefault(v, i)

    def table(self) -> dict[str, Any]:
        graph = self.graph
        repeated_effects(graph.flat)
        model = Model(graph.whole, (False,) * len(graph.whole.primal.invars))
        model.run()
        number_of = {id(b): i for i, b in enumerate(model.buffers)}
        numbers = {name: i for i, name in enumerate(graph.candidates)}
        loops = list(dict.fromkeys(n.where.loop for n in graph.nodes if n.where.loop is not None))
        nodes = {
            "value": [numbers.get(n.name, -1) for n in graph.nodes],
            "flops": [int(f) for f in graph.flops],
            "loop": [loops.index(n.where.loop) if n.where.loop is not None else -1 for n in graph.nodes],
            "isForward": [int(i in graph.in_forward) for i in range(len(graph.nodes))],
            "isView": [int(is_view(n.equation)) for n in graph.nodes],
            "isFree": [int(is_made_where_read(n.equation)) for n in graph.nodes],
            "mayReuse": [int(may_write_into_an_operand(n.equation)) for n in graph.nodes],
            "what": [self.string(n.equation.primitive.name) for n in graph.nodes],
            "row": [self.row(n.equation) for n in graph.nodes],
            "reads": [self.numbered(n.equation.invars) for n in graph.nodes],
            "makes": [self.numbered(n.equation.outvars) for n in graph.nodes],
        }
        needed = self.numbered(graph.needed)
        # What is carried adds slots that nothing else reads, and those may be carried themselves.
        carried: dict[int, list[int]] = {}
        for v, c in graph.carried.items():
            carried[self.slot(v)] = self.numbered((c.first, c.before))
        inputs = {v: nbytes(v.aval) for v in graph.inputs}
        for v in inputs:
            self.slot(v)
        held = {graph.resolved(a): model.of_forward[a] for a in graph.needed if a in model.of_forward}
        of_slot = {**model.of_forward, **held}
        turn = next((i for i, (*_, is_backward) in enumerate(model.steps) if is_backward), len(model.steps))
        reads = self.read_in_backward(model)
        times: dict[Atom, int] = {v: n.where.times * n.where.devices for n in graph.nodes for v in n.equation.outvars}
        present = self.derivation.residuals
        stand_ins = self.stand_ins()
        saved_now = graph.outcome(list(set[str]().union(*stand_ins))).saved
        return {
            "function": self.derivation.primal.name,
            "kinds": list(KINDS),
            "values": [self.value(name) for name in graph.candidates],
            "slots": {
                "nbytes": [nbytes(a.aval) * times.get(a, 1) if isinstance(a, Var) else 0 for a in self.slots],
                "type": [self.string(_often(times.get(a, 1), type_text(a.aval))) for a in self.slots],
                "input": [inputs.get(a, -1) if isinstance(a, Var) else -1 for a in self.slots],
                "buffer": [number_of[id(of_slot[a])] if a in of_slot else -1 for a in self.slots],
                "reads": {
                    i: self.numbered((node.reads or {})[a])
                    for node in graph.nodes
                    for a in node.reads or ()
                    if (i := self.slots.get(a)) is not None
                },
                "carried": [carried.get(i, []) for i in range(len(self.slots))],
            },
            "nodes": nodes,
            "needed": needed,
            "loops": [self.loop(e, model, number_of) for e in loops],
            "turn": turn,
            "steps": [
                {
                    "what": self.string(e.primitive.name),
                    "row": self.row(e),
                    "reads": reads.get(i, []),
                }
                for i, (e, within, _) in enumerate(model.steps)
            ],
            "buffers": [
                [int(b.nbytes) if not b.is_free else 0, KINDS.index(b.kind), b.born, b.last, b.last_forward, self.string(b.name or what_makes(b.equation, b.within)), self.string(b.type), self.row(b.equation) if b.equation is not None else -1]
                for b in model.buffers
            ],
            "inside": [[step, int(n)] for step, n in model.inside.items()],
            "everything": {"nbytes": graph.all_nbytes, "flops": 0, "work": cost(graph.whole).total.flops},
            "present": {
                "nbytes": present.nbytes,
                "flops": self.computed_again() if graph.has_checkpoints else 0,
                "peak": memory(self.derivation).peak_nbytes,
                "saved": sorted(numbers[s.name] for s in saved_now),
            },
            "residuals": [sorted(numbers[name] for name in names) for names in stand_ins],
            "least": graph.least,
            "places": self.places(),
            "taken": sorted({e.params["name"] for _, e in graph.flat.walk() if e.primitive is compat.name_p}),
            "plans": [[numbers[s.name] for s in plan.saved] for plan in self.plans()],
            "strings": list(self.strings),
        }  # fmt: skip

    def read_in_backward(self, model: Model) -> dict[int, list[int]]:
        """The slots that each step of the backward pass reads."""
        whole = self.graph.whole
        at = {(e, within): i for i, (e, within, is_backward) in enumerate(model.steps) if is_backward}
        kept = dict(zip(whole.backward.invars, whole.linearized.residuals, strict=False))
        found: dict[int, list[int]] = {}
        for v, readers in find_readers(whole.backward, kept).items():
            for reader in readers:
                # Inside of a loop or a branch it is the step of that.
                path = (*reader.within, reader.equation)
                step = next((at[e, path[:k]] for k, e in enumerate(path) if (e, path[:k]) in at), None)
                if step is not None:
                    found.setdefault(step, []).extend(self.numbered((kept[v],)))
        return {step: list(dict.fromkeys(slots)) for step, slots in found.items()}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def slot(self, atom: Atom) -> int:
        return self.slots.setdefault(atom, len(self.slots))

    def numbered(self, atoms: Iterable[Atom]) -> list[int]:
        resolved = (self.graph.resolved(a) for a in atoms)
        return [self.slot(a) for a in resolved if not isinstance(a, Literal)]

    def row(self, equation: Equation) -> int:
        """The row of the function as written that an equation came from; -1 where there is none."""
        written = primal_equation(equation)
        named = written.invars if written.primitive is compat.name_p else written.outvars
        return next((self.rows[o] for v in named if (o := self.original(v)) in self.rows), -1)

    def original(self, atom: Atom) -> Atom:
        return self.graph.copies.get(atom, atom) if isinstance(atom, Var) else atom

    def value(self, name: str) -> dict[str, Any]:
        saved = self.graph.described(name)
        return {
            "what": self.string(saved.expression),
            "type": self.string(saved.type),
            "nbytes": int(saved.nbytes),
            "row": self.rows.get(self.original(self.graph.candidates[name][0]), -1),
        }

    def loop(self, scan: Equation, model: Model, number_of: dict[int, int]) -> dict[str, Any]:
        """Where a scan of the forward program stands in the timeline, and the first and last step that reads what it stacks."""
        stacked = {number_of[id(model.of_forward[v])] for v in scan.outvars if v in model.of_forward}
        forward = next(i for i, (e, *_) in enumerate(model.steps) if e is scan)
        back = [
            i
            for i, (e, _, is_backward) in enumerate(model.steps)
            if is_backward and any(number_of[id(b)] in stacked for b in model.reads[i])
        ]
        return {"forward": forward, "backward": max(back, default=-1), "row": self.row(scan)}

    def places(self) -> list[dict[str, Any]]:
        """The expressions that can be given a name: the values that get it, and what `code_text` writes."""
        graph = self.graph
        numbers = {v: i for i, (v,) in enumerate(graph.candidates.values())}
        places = {p: vs for p, vs in places_of_values(graph.flat).items() if all(v in numbers for v in vs)}
        rows = [code_row(str(i), place, values, graph) for i, (place, values) in enumerate(places.items())]
        if self.source:
            rows = with_source(rows, list(places))
        values = list(places.values())
        shown = lambda path: short_path(path) if self.source else file_label(path)
        return [
            {**row.to_dict(), "file": shown(row.file), "values": [numbers[v] for v in values[int(row.name)]]}
            for row in rows
        ]

    def plans(self) -> list[Solution]:
        """The best that can be had at some budgets, from the least bytes up."""
        graph = self.graph
        n_plans = max(2, min(_BUDGETS, 40_000 // max(len(graph.nodes), 1)))
        budgets = evenly(graph.least, max(graph.least, graph.all_nbytes), n_plans)
        found = {plan.point: plan for plan in each(graph.solve, dict.fromkeys(budgets), "plans")}
        best: list[Solution] = []
        for point in sorted(found, key=lambda p: (p.nbytes, p.flops)):
            if not best or point.flops < best[-1].point.flops:
                best.append(found[point])
        return best

    def computed_again(self) -> int:
        plain = self.graph.whole
        return int(cost(self.derivation).total.flops - cost(plain).total.flops)

    def stand_ins(self) -> list[set[str]]:
        """For each residual as JAX holds it now, the names that a checkpoint saves in its place.

        Those are of what it is made from, as near to it as a name can stand: of `cos(x)`, which the rule of `sin` makes, it is that of
        `x`. There are none for what is an argument, or is made from arguments at no cost.
        """
        whole = self.graph.whole
        residuals, all_made = defaultdict[Any, list[Atom]](list), defaultdict[Any, list[Atom]](list)
        for atom, key in self.made_at(whole):
            residuals[key].append(atom)
        for node in self.graph.nodes:
            for v in node.equation.outvars:
                all_made[self.place(node.equation, v)].append(v)
        now = [key for _, key in self.made_at(self.derivation)]
        count, turn, found = Counter(now), Counter[Any](), []
        for key in now:
            same = [] if key is None else residuals.get(key) or all_made[key]
            # Of a function that is called several times, each call's is told from the others by its turn.
            mine = same[turn[key] : turn[key] + 1] if count[key] == len(same) else same
            turn[key] += 1
            found.append(self.nearest(mine))
        return found

    def made_at(self, derivation: Derivation) -> list[tuple[Atom, Any]]:
        """The residuals of a derivation, each with the place that it is made at; None for an argument."""
        trace, made = Tracer(derivation.forward), []
        for atom in derivation.linearized.residuals:
            source = trace(atom)[0]
            made.append((atom, self.place(source.equation, source.atom) if source.equation is not None else None))
        return made

    def place(self, equation: Equation, atom: Atom) -> Any:
        """What tells a value from others: the equation of the function as written that it came from, the operation, and its type."""
        written = primal_equation(equation)
        operation = equation.primitive
        if operation is compat.name_p and isinstance(written.invars[0], Var):
            maker = self.graph.makers.get(written.invars[0])
            operation = maker.primitive if maker is not None else operation
        if operation is compat.reduce_precision_p:
            # A checkpoint rounds what it saves.
            operation = written.primitive
        return self.row(equation), operation, atom.aval.str_short()

    def nearest(self, atoms: Sequence[Atom]) -> set[str]:
        """The names that are met first on the way from some values to what they are made from."""
        graph, found, seen = self.graph, set(), set()
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
                    found.add(node.name)
                else:
                    pending += node.equation.invars
        return found


def _often(n: int, kind: str) -> str:
    return f"{n:,} × {kind}" if n > 1 else kind
