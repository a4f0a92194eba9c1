"""`%jaxpr`, `%residuals`, `%memory`, `%remat`, `%lint`, `%linearize`, `%vjp` and `%compare`, each also as a cell magic. Loaded by `%load_ext jaxviz`."""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from jaxviz.analysis.budgets import FASTEST, read_budget
from jaxviz.analysis.compare import Comparison, compare
from jaxviz.analysis.cost import format_flops
from jaxviz.analysis.lint import lint
from jaxviz.analysis.memory import memory
from jaxviz.analysis.policy_comparison import PolicyComparison, checkpoints_of, compare_policies
from jaxviz.analysis.policy_views import MemoryComparison, PlanComparison
from jaxviz.analysis.remat_plan import plan_remat
from jaxviz.analysis.residuals import arrays_among, residuals
from jaxviz.analysis.set_policy import AS_IT_IS, NO_CHECKPOINTS, Setting, derive_under, setting
from jaxviz.analysis.tables import format_bytes, wrapped
from jaxviz.derivation import Derivation, derive
from jaxviz.ir.syntax import Program
from jaxviz.notebook.calls import Call, CallError, evaluate_call, parse_calls
from jaxviz.notebook.messages import short_message
from jaxviz.trace import trace

_CALL = argument("call", nargs=argparse.REMAINDER, help="a call, such as f(x); it is traced, not run")
_ARGNUMS = argument(
    "--argnums", "-a", default=None, help="positional arguments to differentiate in, such as 0 or 0,1 (default: 0)"
)
_EXPLORE = argument("--explore", "-e", action="store_true", help="show it in the explorer")
_POLICY = argument(
    "--policy", "-p", default=None,
    help="with this checkpoint policy on each of its checkpoints, or on one around the whole function where it has none: a name in "
    "jax.checkpoint_policies, or an expression such as 'save_only_these_names(\"h\")'",
)  # fmt: skip
_COMPARE = argument(
    "--compare", default=None,
    help="several policies side by side, with commas between them: P,Q; 'as it is' is the function's own, everything no checkpoints",
)  # fmt: skip


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
    @_POLICY
    @_COMPARE
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def residuals(self, line: str, cell: str | None = None) -> Any:
        """Show what the gradient of a call keeps in memory, and why: `%residuals loss(params, x)`.

        All arguments that are arrays are differentiated, unless --argnums says which.
        `%residuals --policy dots_saveable loss(params, x)` shows them as they are under a checkpoint policy, and
        `%residuals --compare dots_saveable,nothing_saveable loss(params, x)` what policies differ in.
        """
        return self._run(self.residuals, line, cell, "deriving", self._residuals)

    @magic_arguments()
    @_ARGNUMS
    @_POLICY
    @_COMPARE
    @argument("--xla", "-x", action="store_true", help="also compile it, and say what XLA takes")
    @_EXPLORE
    @_CALL
    @line_cell_magic
    def memory(self, line: str, cell: str | None = None) -> Any:
        """Show the memory that the gradient of a call takes over time, as modelled: `%memory loss(params, x)`.

        `%memory --compare dots_saveable,nothing_saveable loss(params, x)` shows it under each of several checkpoint policies.
        """
        return self._run(self.memory, line, cell, "deriving", self._memory)

    @magic_arguments()
    @_ARGNUMS
    @argument(
        "--budget", "-b", default=None,
        help="what the residuals may take: bytes, a size such as 64MB or 1.5GiB, or up to 1.0 a share of them (default: 0.5); or "
        "'fastest that fits', which the modelled peak has to",
    )  # fmt: skip
    @argument(
        "--memory", "-m", default=None, help="what 'fastest that fits' has to fit, such as 16GiB (default: the device)"
    )
    @argument(
        "--policy", "-p", default=None,
        help="plan for the bytes that this checkpoint policy keeps: a name in jax.checkpoint_policies, or an expression such as "
        "'save_only_these_names(\"h\")'",
    )  # fmt: skip
    @argument(
        "--compare",
        default=None,
        help="several policies, with commas between them, beside the plans for their bytes: P,Q",
    )
    @argument("--code", "-c", action="store_true", help="print the lines to write for it")
    @argument("--explore", "-e", action="store_true", help="show the planned function in the explorer")
    @_CALL
    @line_cell_magic
    def remat(self, line: str, cell: str | None = None) -> Any:
        """Plan what the gradient of a call saves and what it computes again: `%remat --budget 0.5 loss(params, x)`.

        `%remat --policy dots_saveable loss(params, x)` plans for the bytes that a checkpoint policy keeps, and
        `%remat --compare dots_saveable,nothing_saveable loss(params, x)` sets policies beside the plans for their bytes.
        """
        return self._run(self.remat, line, cell, "planning", self._remat)

    @magic_arguments()
    @_ARGNUMS
    @argument("--explain", action="store_true", help="print what each rule means that there is advice by")
    @_CALL
    @line_cell_magic
    def lint(self, line: str, cell: str | None = None) -> Any:
        """Show advice on the gradient of a call, by line, with the bytes at stake: `%lint loss(params, x)`."""
        return self._run(self.lint, line, cell, "deriving", self._lint)

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

    def _run(
        self,
        magic: Callable[..., Any],
        line: str,
        cell: str | None,
        doing: str,
        show: Callable[..., Any],
        n_calls: int = 1,
    ) -> Any:
        words, rest = _options(line)
        try:
            options = magic.parser.parse_args(words)  # type: ignore[attr-defined]
        except SystemExit:  # argparse has printed the help that was asked for
            return None
        text = "\n".join(part for part in (rest, cell or "") if part)
        what = f"reading {text.strip().splitlines()[-1] if text.strip() else 'the call'}"
        try:
            before, parsed = parse_calls(text, n_calls)
            namespace = self._namespace()
            if before:
                exec(compile(before, "<cell>", "exec"), namespace)
            calls = [evaluate_call(c, namespace) for c in parsed]
            what = f"{doing} {' and '.join(c.text for c in calls)}"
            return show(*calls, options)
        except CallError as error:
            _print_error(
                f"%{magic.__name__}: {error}\n  Use it as: %{magic.__name__} {', '.join(f'{f}(x)' for f in 'fg'[:n_calls])}"
            )
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
        if options.compare is not None:
            return self._compared(call, options, arrays_among(call.args) if argnums is None else argnums)
        if options.explore:
            return self._explored(self._derived(call, options, argnums))
        nums = arrays_among(call.args) if argnums is None else argnums
        return residuals(self._derived(call, options, nums))

    def _memory(self, call: Call, options: Any) -> Any:
        if options.compare is not None:
            return MemoryComparison(self._compared(call, options), options.xla)
        derivation = self._derived(call, options, _argnums(options.argnums))
        if options.explore:
            return self._explored(derivation)
        timeline = memory(derivation)
        if options.xla:
            print(wrapped(timeline.compare()))
        return timeline

    def _remat(self, call: Call, options: Any) -> Any:
        if options.budget is not None and (options.policy, options.compare) != (None, None):
            raise CallError("--budget says how many bytes, and so does a policy; give one of them")
        if options.compare is not None:
            if options.code:
                raise CallError("--code prints one plan, so it goes with --budget or --policy")
            return PlanComparison(self._compared(call, options))
        argnums = _argnums(options.argnums)
        nums = 0 if argnums is None else argnums
        budget: float | str = _budget(options.budget or "0.5")
        if options.policy is not None:
            to = self._setting(options.policy)
            compared = compare_policies(call.fun, *call.args, policies=[to], argnums=nums, **call.kwargs)
            (found,) = compared.outcomes
            budget = found.nbytes
            print(wrapped(
                f"{to.name} keeps {format_bytes(found.nbytes)} and computes {format_flops(found.flops)} again; for the same bytes:"
            ))  # fmt: skip
        plan = plan_remat(call.fun, *call.args, budget=budget, memory=options.memory, argnums=nums, **call.kwargs)
        if options.code:
            print(plan.code())
        if options.explore:
            planned = derive(plan.apply(call.fun), *call.args, argnums=nums, **call.kwargs)
            return self._explored(planned)
        return plan

    def _derived(self, call: Call, options: Any, argnums: int | tuple[int, ...] | None) -> Derivation:
        """The call's derivation, under the policy that was asked for."""
        derivation = _derive(call, argnums)
        if options.policy is None:
            return derivation
        to = self._setting(options.policy)
        found = derive_under(derivation, to)
        print(wrapped(f"with {to.name} on {checkpoints_of(derivation.primal)}:"))
        return found

    def _compared(self, call: Call, options: Any, argnums: int | tuple[int, ...] | None = None) -> PolicyComparison:
        if options.policy is not None:
            raise CallError("--policy shows one policy and --compare several; give one of them")
        if options.explore:
            raise CallError("--explore shows one program, so it goes with --policy")
        settings = [self._setting(text) for text in _split(options.compare)]
        if argnums is None:
            argnums = _argnums(options.argnums)
        return compare_policies(
            call.fun, *call.args, policies=settings, argnums=0 if argnums is None else argnums, **call.kwargs
        )

    def _setting(self, text: str) -> Setting:
        """A policy by name, or by an expression in the user's namespace, where those of jax.checkpoint_policies have their names too.

        Raises:
          CallError: it is none.
        """
        namespace = self._namespace()
        policies = vars(jax.checkpoint_policies)
        try:
            is_name = text in (AS_IT_IS, NO_CHECKPOINTS) or text in policies
            if is_name or (text.isidentifier() and text not in namespace):
                return setting(text)
            return setting(eval(compile(text, "<magic>", "eval"), {**policies, **namespace}))
        except (ValueError, TypeError) as error:
            raise CallError(str(error)) from None
        except Exception as error:
            raise CallError(f"{text} is no policy: {type(error).__name__}: {error}") from None

    def _lint(self, call: Call, options: Any) -> Any:
        report = lint(_derive(call, _argnums(options.argnums)))
        if options.explain and report:
            print(report.explain())
        return report

    def _compare(self, first: Call, second: Call, options: Any) -> Any:
        argnums = _argnums(options.argnums)
        comparison = compare(*(_derive(call, argnums) for call in (first, second)))
        return self._explored(comparison) if options.explore else comparison

    def _stages(self, *names: str) -> Callable[[Call, Any], Any]:
        def show(call: Call, options: Any) -> Any:
            derivation = _derive(call, _argnums(options.argnums))
            if options.explore:
                return self._explored(derivation)
            return Shown(tuple((name, getattr(derivation, name)) for name in names))

        return show

    def _explored(self, what: Derivation | Program | Comparison) -> None:
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


def _budget(text: str) -> str:
    """A size, a share or 'fastest that fits', as `plan_remat` takes it."""
    if text != FASTEST:
        try:
            read_budget(text, 0)
        except ValueError as error:
            raise CallError(f"--budget: {error}") from None
    return text


_WITH_VALUE = ("--argnums", "-a", "--budget", "-b", "--memory", "-m", "--policy", "-p", "--compare")


def _options(line: str) -> tuple[list[str], str]:
    """The options of a line, and the call after them as it was typed.

    IPython's parser would take the quotes out of a call. Here a value may be quoted, or have quotes and brackets of its own:
    `--policy save_only_these_names("a", "b") f(x)`.
    """
    words: list[str] = []
    rest = line.strip()
    while rest.startswith("-"):
        word, rest = _word(rest)
        name, equals, value = word.partition("=")
        if equals:
            words.append(f"{name}={_unquoted(value)}")
        else:
            words.append(word)
            if word in _WITH_VALUE and rest:
                value, rest = _word(rest)
                words.append(_unquoted(value))
    return words, rest


_PIECE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)


def _pieces(text: str) -> list[tuple[str, int]]:
    """The characters of a text, a quoted string as one, each with how many brackets are open around it."""
    depth, found = 0, []
    for piece in _PIECE.findall(text):
        depth -= piece in ")]}"
        found.append((piece, depth))
        depth += piece in "([{"
    return found


def _word(text: str) -> tuple[str, str]:
    """The text up to the first space that is in no quotes and no brackets, and what follows it."""
    n = 0
    for piece, depth in _pieces(text):
        if piece.isspace() and depth <= 0:
            break
        n += len(piece)
    return text[:n], text[n:].strip()


def _split(text: str) -> list[str]:
    """The parts between commas that are in no quotes and no brackets."""
    parts = [""]
    for piece, depth in _pieces(text):
        if piece == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [_unquoted(part.strip()) for part in parts if part.strip()]


def _unquoted(text: str) -> str:
    if text[:1] not in ("'", '"') or len(text) < 2:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, str) else text


def _print_error(message: str) -> None:
    print(message, file=sys.stderr)


def register(ipython: Any) -> None:
    """Makes the magics known to a shell."""
    ipython.register_magics(JaxvizMagics)
