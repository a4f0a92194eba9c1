"""A view as plain text, for terminals and for notebooks without widgets."""

from __future__ import annotations

from collections.abc import Iterator

from jaxviz.page.schema import Stage, View


def summary(view: View) -> str:
    """The contents of an explorer, in a few lines.

    >>> print(summary(view))
    Explorer of the gradient of `loss` in `params`
      f          26 equations
      ...
    """
    width = max((len(stage.label) for stage in view.stages), default=0)
    lines = [f"Explorer of the {view.title}{f' on {view.placement}' if view.placement else ''}"]
    for stage in view.stages:
        n = stage.equations[1] - stage.equations[0]
        what = stage.error or f"{n:,} equation{'s' if n != 1 else ''}"
        lines.append(f"  {stage.label:<{width}}  {what}")
    if view.headline.saves:
        lines.append(f"  {view.headline.saves}")
    if view.check is not None:
        lines.append(f"  {view.check.summary}")
    return "\n".join([*lines, *(f"  {note}" for note in view.notes)])


def stage_text(view: View, key: str) -> str:
    """One stage's program, an equation per line, with the names that the explorer shows."""
    stage = view.stage(key)
    return stage.error or "\n".join(_lines(view, stage))


def _lines(view: View, stage: Stage) -> Iterator[str]:
    if stage.programs[0] < stage.programs[1]:
        reader = _Reader(view)
        rows = range(*stage.equations)
        held: dict[int, list[int]] = {}
        for row in rows:
            held.setdefault(int(view.columns["equation_program"][row]), []).append(row)
        yield from reader.program(stage.programs[0], held, 0)


class _Reader:
    def __init__(self, view: View):
        self.view = view
        self.nested: dict[int, list[int]] = {}
        for program, owner in enumerate(view.columns["program_owner"].tolist()):
            self.nested.setdefault(owner, []).append(program)

    def text(self, column: str, i: int) -> str:
        return self.view.strings[int(self.view.columns[column][i])]

    def items(self, offsets: str, values: str, i: int) -> list[int]:
        starts = self.view.columns[offsets]
        found: list[int] = self.view.columns[values][int(starts[i]) : int(starts[i + 1])].tolist()
        return found

    def typed(self, atom: int) -> str:
        kind, i = ("variable", atom) if atom >= 0 else ("literal", ~atom)
        return f"{self.atom(atom)}:{self.text('type_text', int(self.view.columns[f'{kind}_type'][i]))}"

    def atom(self, atom: int) -> str:
        return self.text("variable_name", atom) if atom >= 0 else self.text("literal_text", ~atom)

    def program(self, program: int, held: dict[int, list[int]], depth: int) -> Iterator[str]:
        pad = "  " * depth
        binders = "".join(f" {self.typed(v)}" for v in self.items("program_binders", "binder_vars", program))
        yield f"{pad}lambda{binders} ."
        for row in held.get(program, []):
            yield f"{pad}  {self.equation(row)}"
            for inner in self.nested.get(row, []):
                yield from self.program(inner, held, depth + 2)
        results = ", ".join(self.atom(a) for a in self.items("program_results", "result_atoms", program))
        yield f"{pad}in ({results})"

    def equation(self, row: int) -> str:
        outputs = " ".join(self.typed(v) for v in self.items("equation_outputs", "output_vars", row))
        params = self.text("equation_params", row).replace("\n", " ")
        inputs = self.items("equation_inputs", "input_atoms", row)
        operands = "".join(f" {self.atom(a) if a >= 0 else self.typed(a)}" for a in inputs)
        head = self.text("equation_primitive", row) + (f"[{params}]" if params else "")
        return f"{outputs} = {head}{operands}" if outputs else f"{head}{operands}"
