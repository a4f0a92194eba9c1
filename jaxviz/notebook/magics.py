"""`%jaxpr`, `%residuals`, `%memory`, `%collectives`, `%remat`, `%lint`, `%step`, `%nan`, `%linearize`, `%vjp` and `%compare`, each also as
a cell magic; `%recompile`, `%profile` and `%compile_cost`. Loaded by `%load_ext jaxviz`."""

from __future__ import annotations

import argparse
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from jaxviz.derivation import Derivation, derive
from jaxviz.features.comparison.report import Comparison, compare
from jaxviz.features.compilations.report import explain_recompile, watch_compilations
from jaxviz.features.profile.report import profile as run_profile
from jaxviz.features.remat.plan import RematPlan
from jaxviz.ir.origin import is_cell
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace
from jaxviz.notebook.calls import CallError, Place, evaluate_call, parse_calls, pieces, unquoted
from jaxviz.notebook.reports import Request
from jaxviz.report.messages import short_message

_CALL = argument(
    "call", nargs=argparse.REMAINDER, help="a call, such as f(x); it is traced, and only %%nan and %%step run it"
)
_ARGNUMS = argument(
    "--argnums",
    "-a",
    default="0",
    help="positions of the arguments to differentiate with respect to, such as 0 or 0,1; all means all arrays (default: 0)",
)
_EXPLORE = argument("--explore", "-e", action="store_true", help="show it in the explorer")
_POLICY = argument(
    "--policy", "-p", default=None,
    help="use this checkpoint policy for each checkpoint, or for one around the whole function if it has none: a name in "
    "jax.checkpoint_policies, or an expression such as 'save_only_these_names(\"h\")'",
)  # fmt: skip
_COMPARE = argument(
    "--compare", default=None,
    help="several policies side by side, separated by commas: P,Q; 'as it is' means the function's own policies, everything means no checkpoints",
)  # fmt: skip


@magics_class
class JaxvizMagics(Magics):
    """The magics; each takes a call, evaluates its arguments, and shows a report or a program."""

    @magic_arguments()
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def jaxpr(self, line: str, cell: str | None = None) -> Any:
        """Show the jaxpr of a call: `%jaxpr f(x)`. The cell magic takes the call on the cell's last line."""
        return self._run(self.jaxpr, line, cell, "tracing", self._jaxpr)

    @magic_arguments()
    @_ARGNUMS
    @_POLICY
    @_COMPARE
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def residuals(self, line: str, cell: str | None = None) -> Any:
        """Show which values the gradient of a call saves, and why: `%residuals loss(params, x)`.

        `%residuals --policy dots_saveable loss(params, x)` shows them under a checkpoint policy,
        and `%residuals --compare dots_saveable,nothing_saveable loss(params, x)` compares policies.
        """
        return self._run(self.residuals, line, cell, "deriving", self._residuals)

    @magic_arguments()
    @_ARGNUMS
    @_POLICY
    @_COMPARE
    @argument("--xla", "-x", action="store_true", help="also compile it, and show the memory that XLA allocates")
    @argument(
        "--compiled",
        action="store_true",
        help="compile it, and show what is in memory at the peak of the compiled program",
    )
    @argument(
        "--beside", action="store_true", help="compile it, show both on one axis, and list what differs at the peaks"
    )
    @argument("--save", metavar="FILE", default=None, help="with --compiled, also write it as JSON, for --against")
    @argument(
        "--against",
        metavar="FILE",
        default=None,
        help="with --compiled, show what changed since --save wrote this file, and why",
    )
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def memory(self, line: str, cell: str | None = None) -> Any:
        """Show the modelled memory of the gradient of a call over time: `%memory loss(params, x)`.

        `%memory --compare dots_saveable,nothing_saveable loss(params, x)` shows it under each of several checkpoint policies;
        `%memory --compiled loss(params, x)` shows what the compiled program holds at its peak, and why;
        `%memory --beside loss(params, x)` shows both on one axis. `--compiled --save a.json` saves the report, and `--compiled --against
        a.json` shows what changed since.
        """
        return self._run(self.memory, line, cell, "deriving", self._memory)

    @magic_arguments()
    @_ARGNUMS
    @_CALL
    @line_cell_magic
    def collectives(self, line: str, cell: str | None = None) -> Any:
        """Show which lines of a call make devices communicate, in its compiled gradient, and why: `%collectives loss(params, x)`."""
        return self._run(self.collectives, line, cell, "compiling", Request.collectives)

    @magic_arguments()
    @_ARGNUMS
    @argument(
        "--memory", "-m", default=None,
        help="recompute as little as possible with a modelled peak of at most this: a size such as 16GiB, or 'device' for the memory it has free",
    )  # fmt: skip
    @argument(
        "--work",
        "-w",
        default=None,
        help="reach the lowest peak with at most this much recomputation: a share of the gradient's FLOPs, such as 10%%",
    )
    @argument(
        "--budget", "-b", default=None,
        help="recompute as little as possible with residuals of at most this: bytes, a size such as 64MB or 1.5GiB, or a share such as 50%%",
    )  # fmt: skip
    @argument(
        "--policy", "-p", default=None,
        help="plan for the bytes that this checkpoint policy saves: a name in jax.checkpoint_policies, or an expression such as "
        "'save_only_these_names(\"h\")'",
    )  # fmt: skip
    @argument(
        "--compare",
        default=None,
        help="several policies, separated by commas, beside the plans for the same bytes: P,Q",
    )
    @argument("--code", "-c", action="store_true", help="print the lines to write for it")
    @argument("--explore", "-e", action="store_true", help="show the planned function in the explorer")
    @_CALL
    @line_cell_magic
    def remat(self, line: str, cell: str | None = None) -> Any:
        """Plan what the gradient of a call saves and recomputes: `%remat --memory 16GiB loss(params, x)`.

        `%remat --work 10% loss(params, x)` gives the lowest peak for some extra work; without a bound, the plan lowers the
        peak most for the least work.
        `%remat --policy dots_saveable loss(params, x)` plans for the bytes that a checkpoint policy saves, and
        `%remat --compare dots_saveable,nothing_saveable loss(params, x)` shows policies beside the plans for the same bytes.
        """
        return self._run(self.remat, line, cell, "planning", self._remat)

    @magic_arguments()
    @_ARGNUMS
    @argument("--explain", action="store_true", help="explain each rule that gave advice")
    @_CALL
    @line_cell_magic
    def lint(self, line: str, cell: str | None = None) -> Any:
        """Show advice on the gradient of a call, by line, with the bytes at stake: `%lint loss(params, x)`."""
        return self._run(self.lint, line, cell, "deriving", Request.lint)

    @magic_arguments()
    @_ARGNUMS
    @argument("--line", default=None, help="first run to this line, such as 41 or model.py:41")
    @argument("--primitive", default=None, help="first run to this primitive, such as scan")
    @argument("--name", default=None, help="first run until the variable of this name is computed")
    @argument("--non-finite", action="store_true", help="first run to a value with a NaN or an Inf")
    @_CALL
    @line_cell_magic
    def step(self, line: str, cell: str | None = None) -> Any:
        """Step through a call equation by equation, and for a loss through its backward pass too: `%step loss(params, x)`.

        It returns the stepper, as in `s = %step loss(params, x)`; `%step --primitive scan loss(params, x)` starts at the scan.
        """
        return self._run(self.step, line, cell, "running", Request.step)

    @magic_arguments()
    @_ARGNUMS
    @argument("--harmless", action="store_true", help="also list non-finite values that reach no result")
    @_CALL
    @line_cell_magic
    def nan(self, line: str, cell: str | None = None) -> Any:
        """Run a call, and for a loss its gradient too, and show where a NaN or an infinity in its results is born: `%nan loss(params, x)`."""
        return self._run(self.nan, line, cell, "running", Request.nan)

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

    @magic_arguments()
    @_ARGNUMS
    @_EXPLORE
    @argument("call", nargs=argparse.REMAINDER, help="two calls, such as f(x), g(x); they are traced, not run")
    @line_cell_magic
    def compare(self, line: str, cell: str | None = None) -> Any:
        """Show what differs between two calls and their gradients: `%compare loss(params, x), faster_loss(params, x)`."""
        return self._run(self.compare, line, cell, "comparing", self._compare, 2)

    @magic_arguments()
    @argument(
        "--repeat", "-r", type=int, default=None, help="how many calls to time (default: as many as take a second)"
    )
    @argument("call", nargs=argparse.REMAINDER, help="a call, such as f(x); it is run")
    @line_cell_magic
    def profile(self, line: str, cell: str | None = None) -> Any:
        """Show where the time of a call goes, by phase, line and kernel: `%profile step(params, x)`. It runs several times."""
        return self._run(self.profile, line, cell, "profiling", self._profile)

    @magic_arguments()
    @_ARGNUMS
    @argument(
        "--ablate",
        action="store_true",
        help="also measure how long XLA takes for repeated blocks, and what a loop saves; this compiles several programs, five times each",
    )
    @_CALL
    @line_cell_magic
    def compile_cost(self, line: str, cell: str | None = None) -> Any:
        """Show how long the gradient of a call takes to trace, lower and compile, by phase, line and repeated
        blocks: `%compile_cost loss(params, x)`. It is compiled, not run."""
        return self._run(self.compile_cost, line, cell, "compiling", Request.compile_cost)

    @line_cell_magic
    def recompile(self, line: str, cell: str | None = None) -> Any:
        """Show what JAX compiled, and why again: `%recompile step`; without a function, everything since compilations
        are watched: since `jaxviz.watch_compilations()`, or since the first

        `%recompile`. The cell magic runs the cell, and shows what was compiled for it.
        """
        try:
            if cell is None:
                return explain_recompile(eval(line, self._namespace())) if line.strip() else explain_recompile()
            code = self.shell.transform_cell(cell)
            with watch_compilations() as seen:
                exec(compile(code, self.shell.compile.cache(code), "exec"), self._namespace())
            return seen
        except Exception as error:
            self._remember(error)
            _print_error(short_message(error, "running the cell" if cell else f"reading {line.strip()}"))
        return None

    def _run(
        self,
        magic: Callable[..., Any],
        line: str,
        cell: str | None,
        doing: str,
        show: Callable[..., Any],
        n_calls: int = 1,
    ) -> Any:
        words, rest = _options(line, _takes_value(magic.parser))  # type: ignore[attr-defined]
        try:
            options = magic.parser.parse_args(words)  # type: ignore[attr-defined]
        except SystemExit:  # argparse has printed the help
            return None
        text = rest if cell is None else f"{rest}\n{cell}"
        place = self._place(magic.__name__, text, cell is not None)
        what = f"reading {text.strip().splitlines()[-1] if text.strip() else 'the call'}"
        try:
            before, parsed = parse_calls(text, n_calls, place)
            namespace = self._namespace()
            if before.body:
                exec(compile(before, place.file, "exec"), namespace)
            calls = [evaluate_call(c, namespace, place) for c in parsed]
            what = f"{doing} {' and '.join(c.text for c in calls)}"
            return place.call(parsed[0], lambda: show(*(Request(call, options, namespace) for call in calls)))
        except CallError as error:
            _print_error(
                f"%{magic.__name__}: {error}\n  Usage: %{magic.__name__} {', '.join(f'{f}(x)' for f in 'fg'[:n_calls])}"
            )
        except Exception as error:
            self._remember(error)
            _print_error(short_message(error, what))
        return None

    def _place(self, magic: str, text: str, is_cell_magic: bool) -> Place:
        """Where the text of a magic is: in the running cell, on its own line or, for a cell magic, from the first line on."""
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            file = frame.f_code.co_filename
            if frame.f_globals is not self._namespace() or not is_cell(file):
                continue
            # Python has compiled IPython's translation of a magic; reports show and parse the original cell.
            if is_cell_magic:
                lines, at, name = text.splitlines(), 1, f"%%{magic}"
            else:
                lines, at, name = linecache.getlines(file), frame.f_lineno, f"%{magic}"
                lines = [text if i == at else one.rstrip("\n") for i, one in enumerate(lines, 1)]
            linecache.cache[file] = (sum(map(len, lines)), None, [f"{one}\n" for one in lines], file)
            return Place(file, at, name)
        return Place(name=f"%{magic}")

    def _namespace(self) -> dict[str, Any]:
        shell: InteractiveShell = self.shell
        namespace: dict[str, Any] = shell.user_ns
        return namespace

    def _remember(self, error: BaseException) -> None:
        """Stores the traceback for `%tb`, as for an uncaught error."""
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__

    def _jaxpr(self, request: Request) -> Any:
        call = request.call
        program = trace(call.fun)(*call.args, **call.kwargs)
        return self._explored(derive(program, argnums=None)) if request.options.explore else Shown((("", program),))

    def _residuals(self, request: Request) -> Any:
        if request.options.explore and request.options.compare is None:
            return self._explored(request.under_policy())
        return request.residuals()

    def _memory(self, request: Request) -> Any:
        if request.options.explore and request.options.compare is None:
            return self._explored(request.under_policy())
        options = request.options
        if (options.save or options.against) and not options.compiled:
            raise CallError("--save and --against are for the compiled program; add --compiled")
        return request.compiled_memory() if options.compiled else request.memory()

    def _remat(self, request: Request) -> Any:
        plan = request.remat()
        if request.options.explore and isinstance(plan, RematPlan):
            return self._explored(request.planned(plan))
        return plan

    def _profile(self, request: Request) -> Any:
        call = request.call
        return run_profile(call.fun, *call.args, repeat=request.options.repeat, **call.kwargs)

    def _compare(self, first: Request, second: Request) -> Any:
        comparison = compare(first.subject, second.subject)
        return self._explored(comparison) if first.options.explore else comparison

    def _stages(self, *names: str) -> Callable[[Request], Any]:
        def show(request: Request) -> Any:
            derivation = request.derivation
            if request.options.explore:
                return self._explored(derivation, *names)
            return Shown(tuple((name, getattr(derivation, name)) for name in names))

        return show

    def _explored(self, what: Derivation | Comparison, stage: str = "", beside: str = "") -> None:
        from jaxviz.features.explorer.explore import explore

        explorer = explore(what)
        if stage:
            explorer.stage, explorer.beside, explorer.overview = stage, beside, False
        display(explorer)


class Shown:
    """Programs as text, each under its name."""

    def __init__(self, programs: tuple[tuple[str, Program], ...]):
        self.programs = programs

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}:\n{program}" if name else str(program) for name, program in self.programs)


def _takes_value(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """The options of a magic, and whether each takes a value."""
    return {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}


def _options(line: str, known: Mapping[str, bool]) -> tuple[list[str], str]:
    """The options of a line, which can be before or after the call, and the call as typed.

    IPython's parser would remove the quotes from a call. Here a value may be quoted, or have quotes and brackets of its own:
    `--policy save_only_these_names("a", "b") f(x)`. After a call, `-y` is an option only if there is one with that name.
    """
    words: list[str] = []
    call: list[str] = []
    rest = line.strip()
    while rest:
        word, rest = _word(rest)
        name, equals, value = word.partition("=")
        if not (word.startswith("-") and (not call or name in known or _LONG.match(word))):
            if word.startswith("#"):
                break
            call.append(word)
        elif equals:
            words.append(f"{name}={unquoted(value)}")
        else:
            words.append(word)
            if known.get(word) and rest:
                value, rest = _word(rest)
                words.append(unquoted(value))
    return words, " ".join(call)


_LONG = re.compile(r"--[a-z]")


def _word(text: str) -> tuple[str, str]:
    """The text up to the first space that is not in quotes or brackets, and the rest."""
    n = 0
    for piece, depth in pieces(text):
        if piece.isspace() and depth <= 0:
            break
        n += len(piece)
    return text[:n], text[n:].strip()


def _print_error(message: str) -> None:
    print(message, file=sys.stderr)


_COMMAND = re.compile(r"(?:^|=\s*)\s*%{1,2}(\w+)\s")
"""A magic in a line, such as `x = %residuals `, and its name."""


@context_matcher(identifier="jaxviz.options")
def complete_options(context: CompletionContext) -> SimpleMatcherResult:
    """Completions after a dash in the line of one of the magics: the options that the line does not have yet."""
    line, token = context.line_with_cursor, context.token
    found = _COMMAND.search(line)
    parser = getattr(getattr(JaxvizMagics, found[1], None), "parser", None) if found else None
    if parser is None or not token.startswith("-"):
        return {"completions": []}
    options = [name for name in _takes_value(parser) if name.startswith(token) and name not in line.split()]
    return {"completions": [SimpleCompletion(name, type="option") for name in options], "suppress": bool(options)}


def register(ipython: Any) -> None:
    """Registers the magics with a shell, and their options with its completer."""
    ipython.register_magics(JaxvizMagics)
    if complete_options not in ipython.Completer.custom_matchers:
        ipython.Completer.custom_matchers.append(complete_options)
