"""Names for saved values in a policy, from the user's source, such as `attention_probs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from jaxviz.analysis.grouping import alike
from jaxviz.features.remat.choices import Part
from jaxviz.features.remat.code import Place
from jaxviz.features.remat.forms import Form
from jaxviz.features.remat.graph import Saved
from jaxviz.features.remat.regions import frames_of, place_of
from jaxviz.features.remat.search import Search
from jaxviz.features.remat.source import last_name
from jaxviz.ir import compat
from jaxviz.ir.expressions import assigned_at, called_by, expression_at
from jaxviz.ir.origin import Location, location_at
from jaxviz.ir.own_code import owner
from jaxviz.ir.primitives import plain
from jaxviz.ir.syntax import Equation, Program, Var

_AROUND = ("vmap", "jit", "checkpoint", "remat", "partial")
"""Functions that return another one, and whose own name says nothing about the value."""


class Names:
    """Generates unique names.

    Args:
      taken: names that exist.
    """

    def __init__(self, taken: Collection[str] = ()):
        self.taken = set(taken)

    def new(self, code: Any, what: str) -> str:
        """A new name such as `attention_probs`.

        Args:
          code: the code of the function that it is in; None if unknown.
          what: a word for the value.
        """
        inside = code.co_qualname.split(".") if code is not None else []
        function = next((part for part in reversed(inside) if part.isidentifier() and part != "__call__"), "")
        words = [word for word in (function, what) if word.isidentifier()]
        name = base = re.sub(r"\W+", "_", "_".join(words)).strip("_") or "saved"
        k = 2
        while name in self.taken:
            name, k = f"{base}_{k}", k + 1
        self.taken.add(name)
        return name

    def of_place(self, place: Place, maker: Equation) -> tuple[str, Any]:
        """A name for an expression, and the code that contains it.

        Args:
          place: the expression.
          maker: an equation that computes its value.
        """
        found = ((c, i) for c, i in reversed(frames_of(maker.source)) if place_of(c, i) == place)
        code, instruction = next(found, (None, 0))
        return self.new(code, word(maker, location_at(code, instruction) if code is not None else None)), code

    def of_value(self, part: Part, value: Var) -> str:
        """A name for a value, whether or not it has an expression."""
        maker = part.graph.makers[value]
        is_whole = part.graph.naming.is_whole(maker, (), maker.outvars.index(value))
        frames = frames_of(maker.source)
        own = next((f for f in reversed(frames) if owner(f[0].co_filename) == "user"), frames[-1] if frames else None)
        at = location_at(*own) if own is not None and is_whole else None
        return self.new(own[0] if own is not None else None, word(maker, at))


def word(maker: Equation, at: Location | None) -> str:
    """A word for a value: what it is assigned to, what is called for it, or its operation, such as `product`.

    Args:
      maker: the equation that computes it.
      at: the expression whose value it is; None if there is none.
    """
    assigned, name = assigned_at(at), str(maker.primitive.name)
    return assigned if assigned.isidentifier() else _called(expression_at(at)) or plain(name).word or name


def _called(expression: str) -> str:
    """`Dense` for `nn.Dense(8)(x)`, `norm` for `jax.vmap(self.norm)(x)`; '' for anything but a call."""
    node = called_by(expression)
    while isinstance(node, ast.Call):
        node = node.args[0] if node.args and last_name(node.func) in _AROUND else node.func
    name = last_name(node) if node is not None else ""
    return "" if name.startswith("_") or name in _AROUND else name


def names_there(program: Program) -> set[str]:
    """The names that values of a function already have."""
    return {e.params["name"] for _, e in program.walk() if e.primitive is compat.name_p}


def names_of(search: Search, form: Form) -> dict[Var, str]:
    """A name for each saved value, by its variable in the first spot of its part."""
    names = Names(names_there(search.flat))
    found: dict[Var, str] = {}
    for part, choice in form.choices:
        for candidate in part.names_of(choice):
            values = part.graph.candidates[candidate]
            name = next((found[v] for v in values if v in found), "") or names.of_value(part, values[0])
            found.update(dict.fromkeys(values, name))
        for k in part.inputs_moved(choice):
            found[part.body.invars[k]] = names.new(_function_of(part), "input")
    return found


def _function_of(part: Part) -> Any:
    """The code that a part is a call of, if it is the user's."""
    frames = frames_of(part.spots[0].equations[0].source)
    return next((code for code, _ in reversed(frames) if owner(code.co_filename) == "user"), None)


def saved_by(search: Search, form: Form) -> tuple[Saved, ...]:
    """The values that are saved or offloaded, one for all spots, with their names."""
    words = names_of(search, form)
    found: list[Saved] = []
    for part, choice in form.choices:
        moved = part.moved_of(choice)
        for candidate in part.names_of(choice):
            value = part.graph.candidates[candidate][0]
            saved = replace(part.described(candidate), name=words[value], offloaded=candidate in moved)
            found.append(_as_written(saved, search, list(part.everywhere(value))))
        for k in part.inputs_moved(choice):
            found.append(replace(part.described_input(k), name=words[part.body.invars[k]]))
    return tuple(found)


def _as_written(saved: Saved, search: Search, everywhere: Sequence[Var]) -> Saved:
    """A value with its name, line and library in the function as written, given its variables in all spots."""
    naming, made_by = search.context.naming, search.makers[everywhere[0]]
    return replace(
        saved,
        label=alike([search.called(v) for v in everywhere]),
        location=naming.location(made_by, ()),
        library=naming.library(made_by, ()),
    )
