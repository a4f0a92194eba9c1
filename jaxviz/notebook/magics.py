"""The magics of the table in `options.py`, also as cell magics, and `%recompile`; loaded by `%load_ext jaxviz`."""

from __future__ import annotations

import argparse
import ast
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from jaxviz.derivation import Derivation
from jaxviz.features.comparison.report import Comparison
from jaxviz.ir.origin import is_cell
from jaxviz.notebook.calls import CallError, CellPosition, call_of_nothing, evaluate_call, parse_calls, pieces, unquoted
from jaxviz.notebook.options import COMMANDS, DEFAULTS, Command
from jaxviz.notebook.reports import Request
from jaxviz.report.messages import short_message
from jaxviz.runs.watch import recorded
from jaxviz.xla.compilations.report import explain_recompile, watch_compilations
from jaxviz.xla.out_of_memory.start import oom as explain_oom


class JaxvizMagics(Magics):
    """The magics; each takes a call, evaluates its arguments, and shows a report or a program."""

    @line_cell_magic
    def recompile(self, line: str, cell: str | None = None) -> Any:
        """Show what JAX compiled, and why again: `%recompile step`; without a function, everything since compilations
        are watched: since `jaxviz.watch_compilations()`, or since the first `%recompile`.

        The cell magic runs the cell, and shows what was compiled for it.
        """
        try:
            if cell is None:
                return explain_recompile(eval(line, self._namespace())) if line.strip() else explain_recompile()
            with watch_compilations() as seen:
                self._run_cell("recompile", line, cell)
            return seen
        except Exception as error:
            self._remember(error)
            _print_error(short_message(error, "running the cell" if cell else f"reading {line.strip()}"))
        return None

    @line_magic
    def oom(self, line: str) -> Any:
        """Explain that memory ran out, of the last exception: `%oom`; or `%oom train_step(params, batch)`, with the
        call, for the reasons and for what would make it fit. `--limit 16GiB` says how much memory there is.
        """
        try:
            error = getattr(sys, "last_value", None)
            if error is None:
                raise CallError("there was no exception; run %oom after the one that says that memory ran out")
            words, rest = _options(line, {"--limit": True})
            if words and (len(words) != 2 or words[0] != "--limit"):
                raise CallError("it takes --limit, such as --limit 16GiB, and a call")
            limit = words[1] if words else None
            if not rest:
                return explain_oom(error, limit=limit)
            _, (parsed,) = parse_calls(rest)
            call = evaluate_call(parsed, self._namespace())
            return explain_oom(error, call.fun, *call.args, limit=limit, **call.kwargs)
        except CallError as error:
            _print_error(f"%oom: {error}")
        except Exception as error:
            _print_error(short_message(error, "explaining the last exception"))
        return None

    @cell_magic
    def jaxviz_run(self, line: str, cell: str) -> Any:
        """Run the cell, and show what it compiled, the gradients that it took, and what to do: `%%jaxviz_run`.

        It is what `jaxviz run` does for a script; `%%jaxviz_run FOLDER` also writes the page, and leaves it there.
        """
        try:
            with recorded(line.strip()) as run:
                self._run_cell("jaxviz_run", line, cell)
            return run()
        except Exception as error:
            self._remember(error)
            _print_error(short_message(error, "running the cell"))
        return None

    def _run_cell(self, magic: str, line: str, cell: str) -> None:
        """Runs the rest of a cell, whose lines have the numbers that they have in the cell."""
        place = self._place(magic, f"{line}\n{cell}", is_cell_magic=True)
        tree = ast.increment_lineno(ast.parse(self.shell.transform_cell(cell)), 1)
        exec(compile(tree, place.file, "exec", dont_inherit=True), self._namespace())

    def _run(self, command: Command, parser: argparse.ArgumentParser, line: str, cell: str | None) -> Any:
        words, rest = _options(line, _takes_value(parser))
        try:
            options = parser.parse_args(words)
        except SystemExit:  # argparse has printed the help
            return None
        text = rest if cell is None else f"{rest}\n{cell}"
        place = self._place(command.magic, text, cell is not None)
        what = f"reading {text.strip().splitlines()[-1] if text.strip() else 'the call'}"
        try:
            command.check(options)
            namespace = self._namespace()
            if files := _files(text, command.reads):
                what = f"{command.doing} {text.strip()}"
                options.target, options.other, *more = *files, None
                if any(more):
                    raise CallError(f"it compares two files; got {text.strip()}")
                return self._show(command, [Request(call_of_nothing(text.strip()), options, namespace)])
            before, parsed = parse_calls(text, command.calls_with(options), place)
            if before.body:
                exec(compile(before, place.file, "exec", dont_inherit=True), namespace)
            calls = [evaluate_call(c, namespace, place) for c in parsed]
            what = f"{command.doing} {' and '.join(c.text for c in calls)}"
            requests = [Request(call, options, namespace) for call in calls]
            return place.call(parsed[0], lambda: self._show(command, requests))
        except CallError as error:
            usage = ", ".join(f"{f}(x)" for f in "fg"[: command.calls_with(options)])
            _print_error(f"%{command.magic}: {error}\n  Usage: %{command.magic} {usage}")
        except Exception as error:
            self._remember(error)
            _print_error(short_message(error, what))
        return None

    def _place(self, magic: str, text: str, is_cell_magic: bool) -> CellPosition:
        """Where the text of a magic is in the running cell: on its line or, for a cell magic, from the first one on."""
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
            return CellPosition(file, at, name)
        return CellPosition(name=f"%{magic}")

    def _namespace(self) -> dict[str, Any]:
        shell: InteractiveShell = self.shell
        namespace: dict[str, Any] = shell.user_ns
        return namespace

    def _remember(self, error: BaseException) -> None:
        """Stores the traceback for `%tb`, as for an uncaught error."""
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__

    def _show(self, command: Command, requests: list[Request]) -> Any:
        if command.explored is None or not requests[0].options.explore:
            return command.make(*requests)
        return self._explored(*command.explored(*requests))

    def _explored(self, what: Derivation | Comparison, stage: str = "", beside: str = "") -> None:
        from jaxviz.features.explorer.explore import explore

        explorer = explore(what)
        if stage:
            explorer.stage, explorer.beside, explorer.question = stage, beside, ""
        display(explorer)


def _method(command: Command) -> Callable[..., Any]:
    """The magic of a command, with its parser and its help."""

    def magic(self: JaxvizMagics, line: str, cell: str | None = None) -> Any:
        return self._run(command, magic.parser, line, cell)  # type: ignore[attr-defined]

    magic.__name__, magic.__doc__ = command.magic, command.about
    arguments = [option.add(argument) for option in command.options_of("magic")]
    for added in (argument("call", nargs=argparse.REMAINDER, help=command.call_help), *reversed(arguments)):
        added(magic)
    magic_arguments()(magic)
    magic.parser.set_defaults(**DEFAULTS)  # type: ignore[attr-defined]
    return magic


for _command in COMMANDS.values():
    if _command.about:
        setattr(JaxvizMagics, _command.magic, line_cell_magic(_method(_command)))
magics_class(JaxvizMagics)


def _takes_value(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """The options of a magic, and whether each takes a value."""
    return {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}


def _options(line: str, known: Mapping[str, bool]) -> tuple[list[str], str]:
    """The options of a line, which can be before or after the call, and the call as typed.

    IPython's parser would remove the quotes from a call. Here a value may be quoted, or have quotes and brackets of its
    own: `--policy save_only_these_names("a", "b") f(x)`. After a call, `-y` is an option only if one has that name.
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


def _files(text: str, ending: str) -> list[str]:
    """The names of files, quoted or not, if a text is nothing else: `a.jaxviz b.jaxviz`."""
    names, rest = [], text.strip() if ending else ""
    while rest:
        word, rest = _word(rest)
        names.append(unquoted(word.removesuffix(",")))
    return names if all(name.endswith(ending) for name in names) else []


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
    match = _COMMAND.search(line)
    parser = getattr(getattr(JaxvizMagics, match[1], None), "parser", None) if match else None
    if parser is None or not token.startswith("-"):
        return {"completions": []}
    options = [name for name in _takes_value(parser) if name.startswith(token) and name not in line.split()]
    return {"completions": [SimpleCompletion(name, type="option") for name in options], "suppress": bool(options)}


def register(ipython: Any) -> None:
    """Registers the magics with a shell, and their options with its completer."""
    ipython.register_magics(JaxvizMagics)
    if complete_options not in ipython.Completer.custom_matchers:
        ipython.Completer.custom_matchers.append(complete_options)
