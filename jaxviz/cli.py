"""jaxviz on the command line: `jaxviz residuals model.py:loss --args "params, f32[8,16]"`."""

from __future__ import annotations

import argparse
import builtins
import importlib
import importlib.util
import inspect
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.arguments import Argnums
from jaxviz.completion import ABOUT, INSTALL, SHELLS, script
from jaxviz.contracts.report import ContractCheck
from jaxviz.environments.elsewhere import TRACEBACK_SHOWS
from jaxviz.features.doctor import WORDS, print_doctor
from jaxviz.notebook.calls import CallError, EvaluatedCall, call_of_nothing, evaluate_call, parse_calls
from jaxviz.notebook.options import COMMANDS, DEFAULTS, Command
from jaxviz.notebook.reports import ProgramText, Request, read_argnums
from jaxviz.report.messages import short_message
from jaxviz.report.places import noting_places
from jaxviz.report.tables import PAGE
from jaxviz.runs.command import EXAMPLES as EXAMPLES_OF_RUNS
from jaxviz.runs.command import RUN, SHOW, add_run, add_show
from jaxviz.runs.command import main as run
from jaxviz.runs.report import show as show_run
from jaxviz.terminal import complain, note, show, show_briefly
from jaxviz.xla.out_of_memory.start import oom

_EXAMPLES = """examples:
  jaxviz residuals model.py:loss --args "params, jnp.ones((8, 16))"     what the gradient saves, and why
  jaxviz residuals model:loss --args "params, f32[8,16]" --json         the same as JSON, for a type
  jaxviz memory model:loss --args "params, x" --plot memory.pdf         its memory over time, and a figure for a paper
  jaxviz compiled-memory model:loss --args "params, x"                  what it holds at its peak once compiled
  jaxviz compiled-memory model:loss --args "params, x" --save a.json    the same, in a file for a comparison
  jaxviz compiled-memory model:loss --args "params, x" --against a.json what changed since then, and why
  jaxviz compile-cost model:loss --args "params, f32[8,16]"             what takes so long to compile
  jaxviz compile-cost model:loss --args "params, x" --ablate            the same, with the loop's time measured
  jaxviz collectives model:loss --args "params, x"                      which lines make devices communicate, and why
  jaxviz remat model:loss --args "params, x" --budget 512MiB --code     what to recompute, and the lines for it
  jaxviz lint model:loss --args "params, x"                             what to change, with the bytes at stake
  jaxviz compare model:loss --args "params, x" --flags jax_remat3       what a flag of JAX changes, in bytes and work
  jaxviz divergence model:loss --args "params, x" --against float64     which value rounding changes more than it may
  jaxviz divergence model:loss --args "params, x" --save a.jaxviz       what its values are, in a file for a comparison
  jaxviz divergence a.jaxviz b.jaxviz                                   where two recorded runs part
  jaxviz growth model:loss --args "params, x"                           which line makes a gradient explode or vanish
  jaxviz upgrade model:loss --args "params, x" --from old-env           what a newer JAX changes, from types to values
  jaxviz lock model:loss --args "params, f32[8,16]"                     a contract of it, in contracts/loss.toml
  jaxviz lock --accept loss.residuals                                   what it saves is meant to have changed
  jaxviz check                                                          which contracts hold, and why others do not
  jaxviz flow model:loss --args "params, x"                             which parameters the gradient reaches
  jaxviz nan model:loss --args "params, jnp.zeros((8, 16))"             which operation computes a NaN, and from what
  jaxviz profile model:step --args "params, jnp.ones((8, 16))"          where the time of a call goes
  jaxviz jaxpr model:loss --args "params, x" --stage backward           a program as text
  jaxviz vjp model:loss --args "params, x"                              the forward and the backward program
  jaxviz linearize model:loss --args "params, x"                        the forward and the linear program
  jaxviz explore model:loss --args "params, x" --html loss.html         the explorer as one offline file
  jaxviz explore model:loss --args "params, x" --stage forward+backward --svg loss.svg
  jaxviz oom error.txt                                                  which lines hold the bytes when memory ran out
  jaxviz oom error.txt --of model:loss --args "params, f32[8,16]"       the same with reasons, and what makes it fit
  jaxviz run train.py --steps 100                                       what a script compiles, and what to do about it
  jaxviz show                                                           the same again, of the last run
  jaxviz skill > .skills/jaxviz/SKILL.md                                what an agent has to know of these commands
  jaxviz completion bash                                                complete commands and options in a shell
  jaxviz doctor                                                         check the installation and the settings
"""

_USAGE_ERROR, _FAILURE = 2, 1
_FOR_AGENTS = 160
"""The width of output for agents, for whom wrapped cells are hard to read."""
SKILL = Path(__file__).parent / "skills" / "jaxviz" / "SKILL.md"
OOM = "which lines hold the bytes when memory ran out, and what would make it fit"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    >>> main(["jaxpr", "model.py:loss", "--args", "f32[3]"])

    Args:
      argv: its words; by default those of the process.

    Returns:
      the exit status: 0; 1 for a failure; 2 for a mistake in the command.
    """
    try:
        options = _parser().parse_args(argv)
    except SystemExit as done:  # argparse has already printed the error or the help
        return int(done.code or 0)
    if options.command == "doctor":
        return print_doctor(as_json=options.json)
    if options.command == "run":
        return run(argv)
    if options.command == "completion":
        print(script(_parser(), options.shell), end="")
        return 0
    if options.command == "skill":
        print(SKILL.read_text(encoding="utf-8"), end="")
        return 0
    usual = _FOR_AGENTS if getattr(options, "agent", False) else shutil.get_terminal_size((100, 24)).columns
    width = getattr(options, "width", None) or usual
    page = PAGE.set(max(40, min(width, 200) if not getattr(options, "width", None) else width))
    with noting_places():
        try:
            return _run(options)
        finally:
            PAGE.reset(page)


def _run(options: Any) -> int:
    """Runs the command, and returns the exit status."""
    if options.command == "show":
        return _show_run(options)
    given = options.target or getattr(options, "text", "")
    what = f"reading {'standard input' if given == '-' else given}"
    try:
        if options.command == "oom":
            return _show_oom(options)
        command = COMMANDS[options.command]
        command.check(options)
        namespace: dict[str, Any]
        is_file = bool(command.reads) and options.target.endswith(command.reads)
        is_none = command.named or (command.without and (options.target is None or getattr(options, command.without)))
        if is_file or is_none or (command.elsewhere and not options.facts):
            namespace = {}
            call = call_of_nothing(f"{options.target}({options.args})")
        else:
            function, namespace = _load(options.target)
            what = f"evaluating --args {options.args}" if options.args else what
            call = _call(function, options.target, options.args, namespace)
        what = f"{command.doing} {options.target or ''}".rstrip()
        report = _show(command, Request(call, options, namespace, say=note if options.json else show, note=note))
        return _FAILURE if isinstance(report, ContractCheck) and not report.holds else 0
    except CallError as error:
        complain(f"jaxviz {options.command}: {error}")
        return _USAGE_ERROR
    except BrokenPipeError:  # see `jaxviz.__main__`
        raise
    except KeyboardInterrupt as error:
        for text in getattr(error, "__notes__", ()):
            complain(text)
        return 130
    except Exception as error:
        if options.traceback:
            complain("".join(traceback.format_exception(error)))
        else:
            complain(short_message(error, what, TRACEBACK_SHOWS))
        return _FAILURE


def _show_run(options: Any) -> int:
    try:
        found = show_run(options.folder)
    except (OSError, ValueError) as error:
        complain(f"jaxviz show: {error}")
        return _FAILURE
    _print(found, options)
    return 0


def _show_oom(options: Any) -> int:
    text: Any = sys.stdin.read() if options.text == "-" else Path(options.text)
    if options.text != "-" and not text.is_dir():
        if not text.exists():
            raise CallError(f"no such file: {options.text}")
        text = text.read_text(encoding="utf-8", errors="replace")
    if options.target:
        function, namespace = _load(options.target)
        call = _call(function, options.target, options.args, namespace)
        found = oom(text, call.fun, *call.args, limit=options.limit, module=options.module, **call.kwargs)
    else:
        found = oom(text, limit=options.limit, module=options.module)
    _print(found, options)
    return 0


# --- options ----------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        complain(f"{self.prog}: {message}\n  `{self.prog} --help` lists the options")
        raise SystemExit(_USAGE_ERROR)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="jaxviz", description="See what JAX's transformations do with a function.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    for command in COMMANDS.values():
        if not (brief := command.brief):
            continue
        added = commands.add_parser(
            command.name, help=brief, description=f"{brief[0].upper()}{brief[1:]}.", epilog=_examples_of(command.name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        _add_call(command, added)
        for option in command.options_of("command"):
            option.add(added.add_argument)
        added.add_argument(
            "--width", type=int, help="width of the output in columns (default: the width of the terminal)"
        )
        added.add_argument("--agent", action="store_true", help="print at most 4,000 tokens, for an agent")
        added.add_argument("--traceback", action="store_true", help="on an error, show the whole traceback")
        added.set_defaults(**DEFAULTS)
    ran_out = commands.add_parser(
        "oom", help=OOM, description=f"{OOM[0].upper()}{OOM[1:]}.", epilog=_examples_of("oom"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    for name, of, about in _OOM_OPTIONS:
        ran_out.add_argument(name, **of, help=about)
    for name, words, add in (("run", RUN, add_run), ("show", SHOW, add_show)):
        add(commands.add_parser(
            name, help=words, description=f"{words[0].upper()}{words[1:]}.", epilog=EXAMPLES_OF_RUNS,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        ))  # fmt: skip
    completion = commands.add_parser(
        "completion", help=ABOUT, description=f"{ABOUT[0].upper()}{ABOUT[1:]}.", epilog=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    completion.add_argument("shell", choices=SHELLS)
    about = "print what an agent has to know of these commands, for its folder of skills"
    commands.add_parser("skill", help=about, description=f"{about[0].upper()}{about[1:]}.")
    doctor = commands.add_parser("doctor", help=WORDS[0].lower() + WORDS[1:], description=WORDS)
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


_OOM_OPTIONS: tuple[tuple[str, dict[str, Any], str], ...] = (
    (
        "text", {"nargs": "?", "default": "-"},
        "a file with the error, a folder of --xla_dump_to, or - for standard input",
    ),
    (
        "--of", {"dest": "target", "metavar": "module:function", "default": ""},
        "the program, for reasons and for what would make it fit",
    ),
    (
        "--args", {"metavar": "EXPRESSIONS", "default": ""},
        "all its arguments, as written in a call; types such as f32[8,16] will do",
    ),
    (
        "--module", {"metavar": "NAME", "default": ""},
        "a part of the name of a program in the folder (default: that of --of, or else the one with the most memory)",
    ),
    ("--limit", {"metavar": "SIZE"}, "how much memory there is, such as 16GiB, if the error does not say"),
    ("--json", {"action": "store_true"}, "print it as JSON"),
    ("--agent", {"action": "store_true"}, "print at most 4,000 tokens, for an agent"),
    ("--traceback", {"action": "store_true"}, "on an error, show the whole traceback"),
)  # fmt: skip


def _add_call(command: Command, added: argparse.ArgumentParser) -> None:
    """What a command is about: a call of a function, or names."""
    if command.named:
        added.add_argument("names", nargs="*", metavar=command.named, help=command.named_help)
        added.set_defaults(target="", args="")
        return
    added.add_argument(
        "target", metavar="module:function", help="such as package.model:loss or path/to/model.py:loss",
        nargs="?" if command.without else None,
    )  # fmt: skip
    types = (
        "" if command.runs and not command.elsewhere else "; a type such as f32[8,16] or bf16[] can replace an array"
    )
    added.add_argument(
        "--args", metavar="EXPRESSIONS", default="",
        help="the arguments, as written in a call: Python in the namespace of the module, with jax, jnp and np "
        f"defined{types}. The function is {'run' if command.runs else 'traced, not run'}",
    )  # fmt: skip
    if command.reads:
        also = "or two files in place of the function"
        added.add_argument(
            "other", metavar=f"b{command.reads}", nargs="?", help=f"{also}: a{command.reads} b{command.reads}"
        )


def _examples_of(command: str) -> str:
    lines = [line for line in _EXAMPLES.splitlines()[1:] if line.split()[1] == command]
    return "\n".join(["examples:", *lines])


# --- requests ---------------------------------------------------------------------------------------------------------


def _load(target: str) -> tuple[Any, dict[str, Any]]:
    """The function that `module:function` names, and the namespace of its module."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise CallError(f"expected module:function, such as model:loss or path/to/model.py:loss; got {target!r}")
    module = _module(place)
    function: Any = module
    for part in name.split("."):
        if not hasattr(function, part):
            there = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            own = [n for n in there if getattr(getattr(module, n), "__module__", "") == module.__name__]
            raise CallError(f"{place} has no {name!r}; it has {', '.join((own or there)[:12]) or 'no functions'}")
        function = getattr(function, part)
    if not callable(function):
        raise CallError(f"{target} is not a function (it is of type {type(function).__name__})")
    return function, vars(module)


def _module(place: str) -> Any:
    if not place.endswith(".py") and os.sep not in place:
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
                raise  # a module that the user's module imports
            raise CallError(f"no module {place!r} was found; give a file by its path, such as model.py:loss") from None
    path = Path(place).resolve()
    if not path.is_file():
        raise CallError(f"no such file: {place}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise CallError(f"{place} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class _Type:
    """`f32` in `f32[8,16]`, an array of that type."""

    def __init__(self, name: str, dtype: Any):
        self.name = name
        self.dtype = dtype

    def __getitem__(self, shape: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape if isinstance(shape, tuple) else (shape,), self.dtype)

    def __call__(self, *args: Any) -> Any:
        return getattr(builtins, self.name)(*args) if hasattr(builtins, self.name) else self.dtype(*args)


_TYPES = {
    name: _Type(name, dtype)
    for name, dtype in {
        "f16": jnp.float16, "bf16": jnp.bfloat16, "f32": jnp.float32, "f64": jnp.float64, "c64": jnp.complex64,
        "c128": jnp.complex128, "bool": jnp.bool_,
        **{f"{kind}{n}": getattr(jnp, f"{long}{n}") for kind, long in (("i", "int"), ("u", "uint")) for n in (8, 16, 32,
            64)},
    }.items()
}  # fmt: skip
"""The types that a jaxpr prints."""

_SCALAR = re.compile(rf"\b({'|'.join(_TYPES)})\[\s*\]")


def called(target: str, args: str, argnums: str) -> tuple[EvaluatedCall, Argnums]:
    """The call that a contract stores, and which of its arguments are differentiated, as on the command line.

    Raises:
      CallError: there is no such function, or the arguments are not its own.
    """
    function, namespace = _load(target)
    return _call(function, target, args, namespace), read_argnums(argnums)


def _call(function: Any, target: str, args: str, namespace: dict[str, Any]) -> EvaluatedCall:
    text = _SCALAR.sub(r"\1[()]", args)
    _, (parsed,) = parse_calls(f"f({text}\n)")
    own = {"jax": jax, "jnp": jnp, "np": np, **_TYPES, **namespace}
    evaluated = evaluate_call(parsed, {**own, parsed.func.id: function})  # type: ignore[attr-defined]
    try:
        inspect.signature(function).bind(*evaluated.args, **evaluated.kwargs)
    except TypeError as error:
        raise CallError(f'{error} of {target}; give it with --args, such as --args "params, f32[8,16]"') from None
    except ValueError:  # a builtin whose signature Python does not know
        pass
    return EvaluatedCall(f"{target}({args})", function, evaluated.args, evaluated.kwargs)


# --- output -----------------------------------------------------------------------------------------------------------


def _print(report: Any, options: Any, is_left_out: bool = False) -> None:
    """Prints a report as JSON, for an agent, or as it is unless that is left out."""
    if options.json:
        print(json.dumps(None if report is None else report.to_dict(), indent=1, ensure_ascii=True, default=str))
    elif options.agent:
        show_briefly(str(report))
    elif not is_left_out:
        show(str(report), headed=not isinstance(report, ProgramText))


def _show(command: Command, request: Request) -> Any:
    """Shows what a command makes of a request, and returns it."""
    options, plot = request.options, request.options.plot
    if plot and Path(plot).suffix not in (".pdf", ".svg", ".png"):
        raise CallError(f"--plot writes .pdf, .svg or .png; got {plot}")
    report = command.make(request)
    if report is not None or options.json:
        _print(report, options, is_left_out=options.code)
    if plot:
        figure = report.plot()
        from jaxviz.report.figures import editable_text

        with editable_text():
            figure.savefig(plot, dpi=200)
        note(f"wrote {plot}")
    return report
