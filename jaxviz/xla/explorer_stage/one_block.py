"""A function with only one of several identical blocks, which compiles quickly where the whole takes minutes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxviz.derivation import Derivation
from jaxviz.features.comparison.report import Comparison
from jaxviz.features.explorer.messages import Compiled, CompiledText
from jaxviz.features.remat.graph import derive_like
from jaxviz.ir.stack import deep_stack
from jaxviz.report.tables import short_location
from jaxviz.xla.compile_cost.blocks import blocks_of, opened
from jaxviz.xla.compile_cost.one_block import with_one_block
from jaxviz.xla.explorer_stage.compiled import compiled, lower

_WORTH = 0.6
"""One block is only offered if at most this share of the equations remains."""


@dataclass(frozen=True, eq=False)
class OneBlock:
    """The derivation of a function with one block alone, and of the whole function; and what the blocks are."""

    derivation: Derivation
    whole: Derivation
    text: str

    def compiled(self) -> Compiled:
        """The compiled program, with lines linked to equations of the whole."""
        message = compiled(lower(self.derivation), self.text)
        number = self._numbers([key for key, _ in message["stages"]])
        numbers = lambda some: [number[i] for i in some if i in number]

        def linked(text: CompiledText) -> CompiledText:
            return {**text, "links": [numbers(link) for link in text["links"]]}

        less = "it does not compute the same as the whole program, and takes less memory"
        note = f"Only one block of {self.text}: {less}."
        message["stablehlo"] = linked(message["stablehlo"])
        if message["hlo"] is not None:
            message["hlo"] = linked(message["hlo"])
        if message["exchanges"] is not None:
            rows = message["exchanges"]["rows"]
            message["exchanges"]["rows"] = [row._replace(equations=numbers(row.equations)) for row in rows]
        if message["memory"] is not None:
            message["memory"]["notes"].insert(0, note)
        message["stages"] = [(key, len(list(getattr(self.whole, key).walk()))) for key, _ in message["stages"]]
        return {**message, "notes": [note, *message["notes"]], "isBlock": True}

    def _numbers(self, stages: list[str]) -> dict[int, int]:
        """Maps the equations of the block's function to those of the whole, both numbered over the stages."""
        alignments = Comparison(self.whole, self.derivation).alignments
        numbers: dict[int, int] = {}
        here = there = 0
        for key in stages:
            if key in alignments:
                numbers.update((here + j, there + i) for i, j in alignments[key].pairs)
            here += sum(1 for _ in getattr(self.derivation, key).walk())
            there += sum(1 for _ in getattr(self.whole, key).walk())
        return numbers


@deep_stack
def one_block_of(derivation: Derivation) -> OneBlock | None:
    """The function with one block alone; None without identical blocks, or if little would be left out."""
    program = opened(derivation.primal)
    repeated = blocks_of(program)
    if not repeated:
        return None
    cut = with_one_block(program, [run for blocks in repeated for run in blocks.runs])
    size = lambda p: sum(1 for _ in p.walk())
    if size(cut) > _WORTH * size(program):
        return None
    first = repeated[0]
    written = f" `{first.place.text}` ({short_location(first.place.location)})" if first.place is not None else ""
    text = f"{first.count:,} identical blocks,{written}".rstrip(",")
    return OneBlock(derive_like(cut, derivation.taken_by(None)), derivation, text)
