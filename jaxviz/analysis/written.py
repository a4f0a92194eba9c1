"""Writes an address down: what is known of a value, so that it is found again after an edit of the source."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from jaxviz.analysis.addressed import AddressedValue
from jaxviz.analysis.addresses import (
    Address,
    Evidence,
    described,
    in_order,
    matching,
    parsed,
)
from jaxviz.analysis.computed import computed, forms, used
from jaxviz.ir.syntax import Program


def address_of(program: Program, value: AddressedValue) -> Address:
    """The shortest address that means a value of a program and no other, with what else is known of it, so that it
    still means the value after most edits."""
    found = {text: there for text in _texts(value) if value in (there := matching(program, text))}
    alone = next((text for text, there in found.items() if there == [value]), None)
    if alone is None:
        text, there = min(found.items(), key=lambda f: len(f[1]))
        alone = f"{text} #{there.index(value) + 1}"
    found |= {text: matching(program, text) for text in (f"form {form}" for form in forms(program)[value.place])}
    counted = {text: _which(value, there) for text, there in found.items()}
    texts = [f"{text} {which}" for text, which in counted.items() if which]
    ways = computed(program)
    by_name, by_position = (way.texts[value.place] for way in ways)
    readers = frozenset().union(*(way.readers.get(value.place, ()) for way in ways))
    written = Evidence(
        described(value), tuple(texts), value.equation.primitive.name, (by_name, by_position), readers,
        value.place in used(program), value.runs,
    )  # fmt: skip
    return Address(alone, written=written)


def _texts(value: AddressedValue) -> list[str]:
    """All texts that mean a value, the shortest first."""
    names = dict.fromkeys(n for n in (value.label, value.assigned, value.text) if n)
    inside = [value.container, *(value.module.split("/")[-1:] if value.module else []), value.module]
    texts = [*names, *(f"{c} › {n}" for c in dict.fromkeys(inside) if c for n in names)]
    texts += [f"{m}:out" for m in value.returned_by]
    for r in value.returned:
        names = dict.fromkeys(n for n in (r.assigned, r.text) if n)
        texts += [*names, *(f"{r.container} › {n}" for n in names if r.container)]
    if (anonymous := _anonymous(value.text)) and anonymous != value.text:
        texts += [anonymous, *([f"{value.container} › {anonymous}"] if value.container else [])]
    return texts


def _which(value: AddressedValue, there: Sequence[AddressedValue]) -> str:
    """`#3/12`: which of the times that a text is computed are those of a value; '' if that cannot be said."""
    runs = in_order(there)
    own = [i for i, (v, _) in enumerate(runs) if v is value]
    if len(own) == len(runs):
        return f"#*/{len(runs)}"
    if not own:  # in a loop that does not run
        return ""
    if len(own) == 1:
        return f"#{own[0] + 1}/{len(runs)}"
    step = own[1] - own[0]
    return f"#{own[0] + 1}:{own[-1] + 1}:{step}/{len(runs)}" if own == [*range(own[0], own[-1] + 1, step)] else ""


class _Anonymous(ast.NodeTransformer):
    """An expression with `_` in place of each variable."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("_", node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        arguments = [self.visit(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return ast.Call(node.func, arguments, keywords)


@lru_cache(maxsize=65536)
def _anonymous(text: str) -> str:
    if not isinstance(parsed(text), ast.expr):
        return ""
    return ast.unparse(_Anonymous().visit(ast.parse(text, mode="eval").body))
