"""From a program and two environments to the report of what differs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from jaxviz.arguments import Argnums
from jaxviz.environments.changes import leaf_changes
from jaxviz.environments.elsewhere import Gathered, Interpreter, folders, gather_with
from jaxviz.environments.report import Upgrade
from jaxviz.environments.values import ARRAYS, GIVEN, leaves_in
from jaxviz.ir.boundary import api_boundary
from jaxviz.progress import counting


@api_boundary
def upgrade(
    target: str,
    args: str = "",
    *,
    before: str | os.PathLike[str] | None = None,
    after: str | os.PathLike[str] | None = None,
    argnums: Argnums = 0,
) -> Upgrade:
    """Shows what differs for a function and its gradient between two environments, such as two versions of JAX: what it
    saves, the peak, the work, the compiled memory, collectives, policies, the compile time, and what it computes.

    >>> print(jaxviz.upgrade("model.py:loss", "params, f32[8,16]", before="old-env"))
    the gradient of `loss` in `params` from JAX 0.10.2 to 0.12.0: worse: …

    Each environment loads the function in a process of its own and gathers the facts there, one after the other. Both
    use the jaxviz that runs here, which need not be installed in them. If the arguments are arrays, the gradient is run
    in both with the same values, those of the first, and with other last digits of the arguments, so
    that differences by rounding are not reported.

    Args:
      target: the function, as `module:function` or `path/to/file.py:function`.
      args: its arguments, as written in a call: Python in the namespace of its module, with `jax`, `jnp` and `np`; a
        type such as `f32[8,16]` can replace an array.
      before, after: the environments: interpreters, or folders that have one; by default the Python that runs.
      argnums: the positional arguments to differentiate with respect to, as for `derive`.

    Raises:
      ValueError: neither environment is given, one has no Python, or a package that is needed is missing there; or the
        program fails in both in the same way.
    """
    if before is None and after is None:
        raise ValueError(
            "give the other environment as before or after: a Python such as 'old-env/bin/python', or its folder"
        )
    pythons = [Interpreter.of(sys.executable if place is None else place) for place in (before, after)]
    with folders() as (first, second), counting("environments", 2) as done:
        a = gather_with(pythons[0], target, args, _text_of(argnums), first)
        done()
        if a.facts is not None and a.facts.values is not None:
            shutil.copyfile(first / ARRAYS, second / GIVEN)
        b = gather_with(pythons[1], target, args, _text_of(argnums), second)
        done()
        if a.error and a.error == b.error:
            raise ValueError(a.error.removeprefix("jaxviz upgrade: "))
        compared = _not_compared(a, b) or leaf_changes(a.facts, b.facts, (leaves_in(first), leaves_in(second)))  # type: ignore[arg-type]
    leaves, why = ((), compared) if isinstance(compared, str) else (compared, "")
    environments = [
        p.environment if g.facts is None else g.facts.environment for p, g in zip(pythons, (a, b), strict=True)
    ]
    printed = () if b.facts is None else printed_only_by(b.printed, a.printed)
    return Upgrade(
        target, args, (environments[0], environments[1]), (a.facts, b.facts), (a.error, b.error), leaves, why, printed
    )


def _not_compared(*sides: Gathered) -> str:
    """Why values cannot be compared; '' if they can."""
    for side in sides:
        if side.facts is None:
            return "one of the environments fails"
        if side.facts.values is None:
            return next((n.why for n in side.facts.not_known if n.what == "values"), "there is no compiled gradient")
    return ""


def printed_only_by(lines: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The lines that are not among the others, whatever the places of files and lines in them."""
    known = {_PLACE.sub("", line) for line in others}
    return tuple(dict.fromkeys(line for line in lines if _PLACE.sub("", line) not in known))


_PLACE = re.compile(r"\S*[/\\]|:\d+")


def _text_of(argnums: Argnums) -> str:
    """The same on the command line."""
    return "all" if argnums is None else ",".join(map(str, (argnums,) if isinstance(argnums, int) else argnums))
