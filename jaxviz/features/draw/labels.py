"""The labels of the boxes and frames of a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxviz.analysis.repeats import Run
from jaxviz.analysis.site import call_name
from jaxviz.derivation import Derivation
from jaxviz.higher_order import Body, bodies, is_scan, of, scan_length
from jaxviz.higher_order.jit import JIT
from jaxviz.ir import compat
from jaxviz.ir.origin import Location, ancestors, call_stack
from jaxviz.ir.syntax import Equation, Program
from jaxviz.report.tables import printable, shortened

_TOOLTIP = 600


def printable_lines(text: str) -> str:
    """A few lines for a tooltip, each printable."""
    return shortened("\n".join(printable(line, 200) for line in text.split("\n")), _TOOLTIP)


def numbered(word: str, n: int) -> list[str]:
    return [word] if n == 1 else [f"{word} {i}" for i in range(n)]


_PURPOSE = {
    "primal": "the function itself",
    "jvp": "jvp: inputs and tangents",
    "forward": "forward",
    "linear": "linear",
    "backward": "backward",
}


def stage_title(subject: Derivation | Program, key: str, program: Program) -> str:
    name = subject.primal.name if isinstance(subject, Derivation) else subject.name
    n = sum(1 for _ in program.walk())
    return f"{_PURPOSE[key] if key else name}, {n:,} equation{'s' if n != 1 else ''}"


def role(e: Equation) -> str:
    return e.origin.role if e.origin else "primal"


def equation_title(e: Equation) -> str:
    """The primitive, with the most relevant params."""
    if e.primitive is compat.name_p:
        return f"name {e.params['name']!r}"
    y = e.params.get("y") if e.primitive.name == "integer_pow" else None
    return f"{e.primitive.name} {y}" if y is not None else str(e.primitive.name)


def call_title(e: Equation) -> str:
    name = call_name(e)
    if is_scan(e):
        return f"{name} × {scan_length(e):,}"
    if of(e) is JIT:
        return f"jit {name}"
    return name


def body_name(e: Equation, body: Body) -> str:
    if body.branch is not None:
        return f"branch {body.branch}"
    if len(bodies(e)) > 1:
        return "body" if body.has_results else "condition"
    return ""


def summary(equations: Sequence[Equation]) -> str:
    """`12 equations: 3 dot_general, 2 mul …`."""
    n = len(equations)
    counts = Counter(e.primitive.name for e in equations if not bodies(e))
    most = [f"{times} {name}" if times > 1 else name for name, times in counts.most_common(2)]
    more = " …" if len(counts) > 2 else ""
    return f"{n:,} equation{'s' if n != 1 else ''}{': ' if most else ''}{', '.join(most)}{more}"


def scopes_of(item: Equation | Run) -> tuple[str, ...]:
    """The named scopes of an equation; for a repeated layer, those that contain all of it."""
    if isinstance(item, Run):
        paths = [compat.scopes(e.source) for e in item.equations]
        shared = 0
        while all(len(p) > shared and p[shared] == paths[0][shared] for p in paths):
            shared += 1
        return paths[0][:shared]
    return compat.scopes(item.source)


def common_function(layer: Sequence[Equation]) -> str:
    """The innermost function of the user's that contains all equations of a layer; '' if there is none."""
    stacks = [[at.function for at in _stack(e)] for e in layer]
    stacks = [s for s in stacks if s]
    if not stacks:
        return ""
    shared = set(stacks[0]).intersection(*stacks[1:])
    innermost = next((name for name in stacks[0] if name in shared), "")
    return innermost.rsplit("<locals>.", 1)[-1]


def _stack(e: Equation) -> tuple[Location, ...]:
    return next((s for s in (call_stack(x.source) for x in (e, *ancestors(e))) if s), ())
