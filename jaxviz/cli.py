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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jaxviz.derivation import STAGES
from jaxviz.features.compiled_memory.report import CompiledMemory
from jaxviz.features.doctor import WORDS, print_doctor
from jaxviz.ir.trace import trace
from jaxviz.notebook.calls import Call, CallError, evaluate_call, parse_calls
from jaxviz.notebook.reports import Request
from jaxviz.report.files import write_file
from jaxviz.report.messages import short_message
from jaxviz.report.places import noting_places
from jaxviz.report.tables import PAGE
from jaxviz.terminal import complain, note, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxviz.features.compiled_memory.change import MemoryChange

_EXAMPLES = """examples:
  jaxviz residuals model.py:loss --args "params, jnp.ones((8, 16))"     what the gradient saves, and why
  jaxviz residuals model:loss --args "params, f32[8,16]" --json         the same as JSON; a type such as f32[8,16] can replace an array
  jaxviz memory model:loss --args "params, x" --plot memory.pdf         its memory over time, and a figure for a paper
  jaxviz compiled-memory model:loss --args "params, x"                  what the compiled gradient holds at its peak, and why
  jaxviz compiled-memory model:loss --args "params, x" --save a.json    the same, saved for a comparison
  jaxviz compiled-memory model:loss --args "params, x" --against a.json what changed since then, and why
  jaxviz compile-cost model:loss --args "params, f32[8,16]"             what takes so long to compile, and how much of that a loop would leave out
  jaxviz compile-cost model:loss --args "params, x" --ablate            the same, and measure how much time the loop would save
  jaxviz collectives model:loss --args "params, x"                      which lines make devices communicate, how much, and why
  jaxviz remat model:loss --args "params, x" --budget 512MiB --code     what to recompute, and the lines for it
  jaxviz lint model:loss --args "params, x"                             what to change, with the bytes at stake
  jaxviz jaxpr model:loss --args "params, x" --stage backward           a program as text
  jaxviz explore model:loss --args "params, x" --html loss.html         the explorer as one offline file
  jaxviz explore model:loss --args "params, x" --stage forward+backward --svg loss.svg
  jaxviz doctor                                                         check the installation and the settings
"""

_USAGE_ERROR, _FAILURE = 2, 1


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
    width = options.width or shutil.get_terminal_size((100, 24)).columns
    page = PAGE.set(max(40, min(width, 200) if not options.width else width))
    with noting_places():
        try:
            return _run(options)
        finally:
            PAGE.reset(page)


def _run(options: Any) -> int:
    """Runs the command, and returns the exit status."""
    what = f"reading {options.target}"
    try:
        function, namespace = _load(options.target)
        what = f"evaluating --args {options.args}" if options.args else what
        call = _call(function, options, namespace)
        what = f"{options.doing} {options.target}"
        options.run(Request(call, options, namespace, say=note if options.json else show, note=note))
        sys.stdout.flush()
        return 0
    except CallError as error:
        complain(f"jaxviz {options.command}: {error}")
        return _USAGE_ERROR
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt as error:
        for text in getattr(error, "__notes__", ()):
            complain(text)
        return 130
    except Exception as error:
        if options.traceback:
            complain("".join(traceback.format_exception(error)))
        else:
            complain(short_message(error, what, "(--traceback shows where)"))
        return _FAILURE


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

    def command(name: str, doing: str, run: Callable[[Request], None], help: str) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name, help=help, description=f"{help[0].upper()}{help[1:]}.", epilog=_examples_of(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        made.set_defaults(run=run, doing=doing, json=False)
        made.add_argument(
            "target", metavar="module:function", help="such as package.model:loss or path/to/model.py:loss"
        )
        made.add_argument(
            "--args", metavar="EXPRESSIONS", default="",
            help="the arguments, as written in a call: Python in the namespace of the module, with jax, jnp and np defined; a "
            "type such as f32[8,16] or bf16[] can replace an array. The function is traced, not run",
        )  # fmt: skip
        made.add_argument(
            "--argnums", "-a", default="0",
            help="positions of the arguments to differentiate with respect to, such as 0 or 0,1; all means all arrays (default: 0)",
        )  # fmt: skip
        made.add_argument(
            "--width", type=int, help="width of the output in columns (default: the width of the terminal)"
        )
        made.add_argument("--traceback", action="store_true", help="on an error, show the whole traceback")
        return made

    explore = command("explore", "deriving", _explore, "write the explorer as HTML, or a program as a picture")
    explore.add_argument("--html", metavar="FILE", help="the explorer as one file that works offline")
    for name, words in (("svg", ""), ("png", ""), ("pdf", ""), ("dot", " in Graphviz's dot language")):
        explore.add_argument(f"--{name}", metavar="FILE", help=f"a picture of the stages{words}")
    explore.add_argument("--stage", default="", help=f"what the picture shows: {_STAGES}; join several with +")
    explore.add_argument(
        "--depth", type=int, help="how many levels of calls, loops, scopes and repeated layers a picture opens"
    )
    explore.add_argument("--no-source", action="store_true", help="do not write source lines to the files")

    found = command("residuals", "deriving", _report(Request.residuals), "which values the gradient saves, and why")
    _of_report(found, policies=True)
    found = command("memory", "deriving", _report(Request.memory), "the memory of the gradient over time, as modelled")
    _of_report(found, policies=True)
    found.add_argument(
        "--xla", "-x", action="store_true", help="also compile it, and show the memory that XLA allocates"
    )
    found.add_argument(
        "--beside",
        action="store_true",
        help="also compile it, show both on one axis, and list what differs at the peaks",
    )
    found = command(
        "compiled-memory",
        "compiling",
        _report(_compiled_memory),
        "what is in memory at the peak of the compiled gradient, and why",
    )
    _of_report(found, policies=True)
    found.add_argument(
        "--save", metavar="FILE", help="also write it as JSON, with versions, flags and device, for --against"
    )
    found.add_argument("--against", metavar="FILE", help="show what changed since --save wrote this file, and why")
    found = command(
        "compile-cost",
        "compiling",
        _report(Request.compile_cost),
        "how long the gradient takes to trace, lower and compile, and where",
    )
    _of_report(found)
    found.add_argument(
        "--ablate",
        action="store_true",
        help="also measure how long XLA takes for repeated blocks, and what a loop saves; this compiles several programs, five times each",
    )
    found = command(
        "collectives",
        "compiling",
        _report(Request.collectives),
        "which lines make devices communicate in the compiled gradient, and why",
    )
    _of_report(found)
    found = command("remat", "planning", _report(Request.remat), "where to put checkpoints, and what they save")
    _of_report(found, policies=True)
    found.add_argument(
        "--memory", "-m",
        help="recompute as little as possible with a modelled peak of at most this: a size such as 16GiB, or 'device' for the memory it has free",
    )  # fmt: skip
    found.add_argument(
        "--work",
        "-w",
        help="reach the lowest peak with at most this much recomputation: a share of the gradient's FLOPs, such as 10%%",
    )
    found.add_argument(
        "--budget", "-b",
        help="recompute as little as possible with residuals of at most this: bytes, a size such as 64MB or 1.5GiB, or a share such as 50%%",
    )  # fmt: skip
    found.add_argument("--code", "-c", action="store_true", help="print the lines to write for it")
    found = command(
        "lint",
        "deriving",
        _report(Request.lint),
        "advice on values that the gradient saves, and work that it does, without need",
    )
    _of_report(found)
    found.add_argument("--explain", action="store_true", help="explain each rule that gave advice")
    found = command("jaxpr", "tracing", _jaxpr, "a program as text, as JAX prints it")
    found.add_argument("--stage", default="primal", help=f"which: {_STAGES} (default: primal)")
    doctor = commands.add_parser("doctor", help=WORDS[0].lower() + WORDS[1:], description=WORDS)
    doctor.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


_STAGES = ", ".join(STAGES[:-1]) + f" or {STAGES[-1]}"


def _of_report(parser: argparse.ArgumentParser, policies: bool = False) -> None:
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    if policies:
        parser.add_argument("--plot", metavar="FILE", help="write its figure as .pdf, .svg or .png")
        parser.add_argument(
            "--policy", "-p", help="use this checkpoint policy: a name in jax.checkpoint_policies, or an expression"
        )
        parser.add_argument("--compare", help="several policies side by side, separated by commas")


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
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            there = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            own = [n for n in there if getattr(getattr(module, n), "__module__", "") == module.__name__]
            raise CallError(f"{place} has no {name!r}; it has {', '.join((own or there)[:12]) or 'no functions'}")
        found = getattr(found, part)
    if not callable(found):
        raise CallError(f"{target} is not a function (it is of type {type(found).__name__})")
    return found, vars(module)


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
        **{f"{kind}{n}": getattr(jnp, f"{long}{n}") for kind, long in (("i", "int"), ("u", "uint")) for n in (8, 16, 32, 64)},
    }.items()
}  # fmt: skip
"""The types that a jaxpr prints."""

_SCALAR = re.compile(rf"\b({'|'.join(_TYPES)})\[\s*\]")


def _call(function: Any, options: Any, namespace: dict[str, Any]) -> Call:
    text = _SCALAR.sub(r"\1[()]", options.args)
    _, (parsed,) = parse_calls(f"f({text}\n)")
    own = {"jax": jax, "jnp": jnp, "np": np, **_TYPES, **namespace}
    found = evaluate_call(parsed, {**own, parsed.func.id: function})  # type: ignore[attr-defined]
    try:
        inspect.signature(function).bind(*found.args, **found.kwargs)
    except TypeError as error:
        raise CallError(
            f'{error} of {options.target}; give it with --args, such as --args "params, f32[8,16]"'
        ) from None
    except ValueError:  # a builtin whose signature Python does not know
        pass
    return Call(f"{options.target}({options.args})", function, found.args, found.kwargs)


# --- commands ---------------------------------------------------------------------------------------------------------


def _report(of: Callable[[Request], Any]) -> Callable[[Request], None]:
    def run(request: Request) -> None:
        options = request.options
        plot = getattr(options, "plot", None)
        if plot and Path(plot).suffix not in (".pdf", ".svg", ".png"):
            raise CallError(f"--plot writes .pdf, .svg or .png; got {plot}")
        report = of(request)
        if options.json:
            print(json.dumps(report.to_dict(), indent=1, ensure_ascii=True, default=str))
        elif not getattr(options, "code", False):
            show(str(report), headed=True)
        if plot:
            _save_figure(report.plot() if hasattr(report, "plot") else report.policies.plot(), plot)

    return run


def _compiled_memory(request: Request) -> CompiledMemory | MemoryChange:
    if request.options.against and request.options.plot:
        raise CallError("--plot draws the memory of one program, and --against shows two; give one of them")
    return request.compiled_memory()


def _save_figure(figure: Figure, path: str) -> None:
    from jaxviz.features.draw.figure import editable_text

    with editable_text():
        figure.savefig(path, dpi=200)
    note(f"wrote {path}")


def _jaxpr(request: Request) -> None:
    call, options = request.call, request.options
    if options.stage not in STAGES:
        raise CallError(f"--stage must be {_STAGES}; got {options.stage!r}")
    if options.stage != "primal":
        show(str(getattr(request.derivation, options.stage)))
        return
    try:
        program = trace(call.fun)(*call.args, **call.kwargs)
    except (jax.errors.ConcretizationTypeError, TypeError):
        if not call.args:
            raise
        program = request.derivation.primal  # where an argument that is not an array, such as a flag, is itself
    show(str(program))


def _explore(request: Request) -> None:
    from jaxviz.features.draw.drawing import draw
    from jaxviz.features.explorer.columns import view_of
    from jaxviz.features.explorer.text import summary

    options, source = request.options, not request.options.no_source
    derivation = request.subject
    if options.html:
        from jaxviz.features.explorer.widget import Explorer  # it imports anywidget and IPython

        note(f"wrote {Explorer(derivation).save_html(options.html, source=source)}")
    pictures = {name: getattr(options, name) for name in ("svg", "png", "pdf", "dot") if getattr(options, name)}
    if pictures:
        try:
            picture = draw(derivation, stage=options.stage or "primal", depth=options.depth, source=source)
        except ValueError as error:
            raise CallError(str(error)) from None
        for name, path in pictures.items():
            if name == "dot":
                write_file(path, picture.to_dot().source)
            else:
                getattr(picture, f"save_{name}")(path)
            note(f"wrote {path}")
    if not options.html and not pictures:
        show(summary(view_of(derivation, source=False)), headed=True)
