"""`%jaxpr`, `%residuals`, `%memory`, `%remat`, `%linearize` and `%vjp`, each also as a cell magic. Loaded by `%load_ext jaxviz`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from jaxviz.analysis.memory import memory
from jaxviz.analysis.remat_plan import plan_remat
from jaxviz.analysis.residuals import residuals
from jaxviz.analysis.tables import wrapped
from jaxviz.derivation import Derivation, derive
from jaxviz.ir.syntax import Program
from jaxviz.notebook.calls import Call, CallError, evaluate_call, parse_call
from jaxviz.notebook.messages import short_message
from jaxviz.trace import trace

_CALL = argument("call", nargs=argparse.REMAINDER, help="a call, such as f(x); it is traced, not run")
_ARGNUMS = argument(
    "--argnums", "-a", default=None, help="positional arguments to differentiate in, such as 0 or 0,1 (default: 0)"
)
_EXPLORE = argument("--explore", "-e", action="store_true", help="show it in the explorer")


@magics_class
class JaxvizMagics(Magics):
    """The magics; each takes a call, evaluates its arguments, and shows what JAX makes of it."""

    @magic_arguments()
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def jaxpr(self, line: str, cell: str | None = None) -> Any:
        """Show the jaxpr of a call: `%jaxpr f(x)`. As a cell magic, of the call on the cell's last line."""
        return self._run(self.jaxpr, line, cell, "tracing", self._jaxpr)

    @magic_arguments()
    @_ARGNUMS
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def residuals(self, line: str, cell: str | None = None) -> Any:
        """Show what the gradient of a call keeps in memory, and why: `%residuals loss(params, x)`.

        All arguments that are arrays are differentiated, unless --argnums says which.
        """
        return self._run(self.residuals, line, cell, "deriving", self._residuals)

    @magic_arguments()
    @_ARGNUMS
    @argument("--xla", "-x", action="store_true", help="also compile it, and say what XLA takes")
    @_CALL
    @line_cell_magic
    def memory(self, line: str, cell: str | None = None) -> Any:
        """Show the memory that the gradient of a call takes over time, as modelled: `%memory loss(params, x)`."""
        return self._run(self.memory, line, cell, "deriving", self._memory)

    @magic_arguments()
    @_ARGNUMS
    @argument("--budget", "-b", default="0.5", help="bytes that the residuals may take, or up to 1.0 a share of them")
    @argument("--code", "-c", action="store_true", help="print the lines to write for it")
    @_CALL
    @line_cell_magic
    def remat(self, line: str, cell: str | None = None) -> Any:
        """Plan what the gradient of a call saves and what it computes again: `%remat --budget 0.5 loss(params, x)`."""
        return self._run(self.remat, line, cell, "planning", self._remat)

    @magic_arguments()
    @_ARGNUMS
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def linearize(self, line: str, cell: str | None = None) -> Any:
        """Show the forward and the linear program of a call: `%linearize f(x)`."""
        return self._run(self.linearize, line, cell, "linearizing", self._stages("forward", "linear"))

    @magic_arguments()
    @_ARGNUMS
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def vjp(self, line: str, cell: str | None = None) -> Any:
        """Show the forward and the backward program of a call: `%vjp f(x)`."""
        return self._run(self.vjp, line, cell, "transposing", self._stages("forward", "backward"))

    def _run(
        self, magic: Callable[..., Any], line: str, cell: str | None, doing: str, show: Callable[[Call, Any], Any]
    ) -> Any:
        try:
            options = parse_argstring(magic, line)
        except SystemExit:  # argparse has printed the help that was asked for
            return None
        text = "\n".join(part for part in (_call_text(line), cell or "") if part)
        what = f"reading {text.strip().splitlines()[-1] if text.strip() else 'the call'}"
        try:
            before, parsed = parse_call(text)
            namespace = self._namespace()
            if before:
                exec(compile(before, "<cell>", "exec"), namespace)
            call = evaluate_call(parsed, namespace)
            what = f"{doing} {call.text}"
            return show(call, options)
        except CallError as error:
            _print_error(f"%{magic.__name__}: {error}\n  Use it as: %{magic.__name__} f(x)")
        except Exception as error:
            self._remember(error)
            _print_error(short_message(error, what))
        return None

    def _namespace(self) -> dict[str, Any]:
        shell: InteractiveShell = self.shell
        namespace: dict[str, Any] = shell.user_ns
        return namespace

    def _remember(self, error: BaseException) -> None:
        """Leaves the traceback for `%tb`, as an uncaught error would."""
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__

    def _jaxpr(self, call: Call, options: Any) -> Any:
        program = trace(call.fun)(*call.args, **call.kwargs)
        return self._explored(program) if options.explore else Shown((("", program),))

    def _residuals(self, call: Call, options: Any) -> Any:
        argnums = _argnums(options.argnums)
        if options.explore:
            return self._explored(_derive(call, argnums))
        return residuals(call.fun, *call.args, argnums=argnums, **call.kwargs)

    def _memory(self, call: Call, options: Any) -> Any:
        timeline = memory(_derive(call, _argnums(options.argnums)))
        if options.xla:
            print(wrapped(timeline.compare()))
        return timeline

    def _remat(self, call: Call, options: Any) -> Any:
        argnums = _argnums(options.argnums)
        plan = plan_remat(
            call.fun,
            *call.args,
            budget=_budget(options.budget),
            argnums=0 if argnums is None else argnums,
            **call.kwargs,
        )
        if options.code:
            print(plan.code())
        return plan

    def _stages(self, *names: str) -> Callable[[Call, Any], Any]:
        def show(call: Call, options: Any) -> Any:
            derivation = _derive(call, _argnums(options.argnums))
            if options.explore:
                return self._explored(derivation)
            return Shown(tuple((name, getattr(derivation, name)) for name in names))

        return show

    def _explored(self, what: Derivation | Program) -> None:
        from jaxviz.notebook.explorer import explore

        display(explore(what))


class Shown:
    """Programs as text, each under its name."""

    def __init__(self, programs: tuple[tuple[str, Program], ...]):
        self.programs = programs

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}:\n{program}" if name else str(program) for name, program in self.programs)


def _derive(call: Call, argnums: int | tuple[int, ...] | None) -> Derivation:
    return derive(call.fun, *call.args, argnums=0 if argnums is None else argnums, **call.kwargs)


def _argnums(text: str | None) -> int | tuple[int, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise CallError(f"--argnums takes numbers such as 0 or 0,1; got: {text}") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _budget(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CallError(f"--budget takes a number of bytes, or a share such as 0.5; got: {text}") from None


_WITH_VALUE = ("--argnums", "-a", "--budget", "-b")


def _call_text(line: str) -> str:
    """What follows the options. IPython's parser would take the quotes out of a call."""
    parts = line.split()
    taken = 0
    while taken < len(parts) and parts[taken].startswith("-"):
        taken += 2 if parts[taken] in _WITH_VALUE else 1
    return " ".join(parts[taken:]) if taken else line.strip()


def _print_error(message: str) -> None:
    print(message, file=sys.stderr)


def register(ipython: Any) -> None:
    """Makes the magics known to a shell."""
    ipython.register_magics(JaxvizMagics)
