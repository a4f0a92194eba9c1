"""What the magics and the command line show, and the options of each: from this table both have parsers and help."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxviz.features.values.records import RECORDS
from jaxviz.notebook.calls import CallError
from jaxviz.notebook.reports import STAGE_NAMES, Request


@dataclass(frozen=True)
class Option:
    """An option.

    Args:
      names: as typed, the long one first.
      help: its sentence, in which argparse replaces `%%` by `%`.
      kind: the type of its value; bool for an option without a value.
      metavar: the name of the value in the help.
      default: the value without the option.
      only: where it exists, if not in both.
    """

    names: str
    help: str
    kind: type = str
    metavar: str | None = None
    default: Any = None
    only: Literal["", "magic", "command"] = ""

    def add(self, to: Callable[..., Any]) -> Any:
        """Calls argparse's `add_argument`, or IPython's `argument`, for it."""
        if self.kind is bool:
            return to(*self.names.split(), action="store_true", help=self.help)
        return to(*self.names.split(), type=self.kind, default=self.default, metavar=self.metavar, help=self.help)


@dataclass(frozen=True)
class Command:
    """Something to show of a call.

    Args:
      name: its name on the command line; that of the magic has underscores.
      doing: the word for it in messages.
      make: from a request for each call to what is shown.
      options: in the order of the help.
      brief: what it shows, for the help of the command line; '' if it is not on the command line.
      about: the help of the magic; '' if there is none.
      explored: from the requests to what `--explore` shows, and the stages to show side by side.
      exclusive: groups of options of which only one can be given.
      calls: how many calls it takes.
      alone: options with each of which it takes one call instead, and without which it takes none on the command line.
      runs: whether it runs the call.
      elsewhere: whether other processes load the function; the request then has only the texts.
      reads: the end of the name of a file that may be given in place of a function; '' for none.
      without: an option with which it takes no function.
      named: what the command line takes in place of a function, if it does; and its help.
    """

    name: str
    doing: str
    make: Callable[..., Any]
    options: tuple[Option, ...]
    brief: str = ""
    about: str = ""
    explored: Callable[..., tuple[Any, ...]] | None = None
    exclusive: tuple[str, ...] = ()
    calls: int = 1
    alone: str = ""
    runs: bool = False
    elsewhere: bool = False
    reads: str = ""
    without: str = ""
    named: str = ""
    named_help: str = ""

    @property
    def magic(self) -> str:
        return self.name.replace("-", "_")

    def check(self, options: Any) -> None:
        """Raises a CallError if options were given of which only one can be."""
        for group in self.exclusive:
            names_of_group = [name for name in group.split() if getattr(options, name) not in (None, False)]
            if len(names_of_group) > 1:
                names = " and ".join(f"--{name}" for name in names_of_group)
                raise CallError(f"{names} exclude each other; give only one of them")

    def calls_with(self, options: Any) -> int:
        """How many calls it takes with these options."""
        return 1 if any(getattr(options, name) is not None for name in self.alone.split()) else self.calls

    @property
    def call_help(self) -> str:
        calls = "a call, such as f(x); it is" if self.calls == 1 else "two calls, such as f(x), g(x); they are"
        return f"{calls} {'run' if self.runs else 'traced, not run'}"

    def options_of(self, place: Literal["magic", "command"]) -> tuple[Option, ...]:
        return tuple(option for option in self.options if option.only in ("", place))


_ARGNUMS = Option(
    "--argnums -a",
    "positions of the arguments to differentiate with respect to, such as 0 or 0,1; all means all arrays (default: 0)",
    default="0",
)
_EXPLORE = Option("--explore -e", "show it in the explorer", bool, only="magic")
_JSON = Option("--json", "print it as JSON", bool, only="command")
_PLOT = Option("--plot", "write its figure as .pdf, .svg or .png", metavar="FILE", only="command")
_A_POLICY = "a name in jax.checkpoint_policies, or an expression such as 'save_only_these_names(\"h\")'"
_POLICY = Option(
    "--policy -p",
    f"use this checkpoint policy for each checkpoint, or for one around the whole function if it has none: {_A_POLICY}",
)
_COMPARE = Option(
    "--compare",
    "several policies side by side, separated by commas: P,Q; 'as it is' means the function's own policies, "
    "everything means no checkpoints",
)
_UNDER_POLICIES = (_ARGNUMS, _JSON, _PLOT, _POLICY, _COMPARE)
_SAVE = Option("--save", "also write it as JSON, with versions, flags and device, for --against", metavar="FILE")
_AGAINST = Option("--against", "show what changed since --save wrote this file, and why", metavar="FILE")
_AN_ENVIRONMENT = "a Python or the folder of one's environment (default: the Python that runs)"
_STAGE = Option("--stage", f"which: {STAGE_NAMES} (default: primal)", default="primal")

_COMMANDS = (
    Command(
        "explore", "deriving", Request.explore,
        (
            _ARGNUMS,
            Option("--html", "the explorer as one file that works offline", metavar="FILE"),
            *(Option(f"--{name}", "a picture of the stages", metavar="FILE") for name in ("svg", "png", "pdf")),
            Option("--dot", "a picture of the stages in Graphviz's dot language", metavar="FILE"),
            replace(_STAGE, help=f"what the picture shows: {STAGE_NAMES}; join several with +"),
            Option("--depth", "how many levels of calls, loops, scopes and repeated layers a picture opens", int),
            Option("--no-source", "do not write source lines to the files", bool),
        ),
        "write the explorer as HTML, or a program as a picture",
    ),
    Command(
        "residuals", "deriving", Request.residuals, (*_UNDER_POLICIES, _EXPLORE),
        "which values the gradient saves, and why",
        """Show which values the gradient of a call saves, and why: `%residuals loss(params, x)`.

        `%residuals --policy dots_saveable loss(params, x)` shows them under a checkpoint policy,
        and `%residuals --compare dots_saveable,nothing_saveable loss(params, x)` compares policies.
        """,
        lambda request: (request.under_policy(),),
        ("policy compare", "explore compare"),
    ),
    Command(
        "memory", "deriving", Request.memory,
        (
            *_UNDER_POLICIES,
            Option("--xla -x", "also compile it, and show the memory that XLA allocates", bool),
            Option("--compiled", "compile it, and show what is in memory at the peak of the compiled program", bool),
            Option("--beside", "also compile it, show both on one axis, and list what differs at the peaks", bool),
            *(replace(option, help=f"with --compiled, {option.help}") for option in (_SAVE, _AGAINST)),
            _EXPLORE,
        ),
        "the memory of the gradient over time, as modelled",
        """Show the modelled memory of the gradient of a call over time: `%memory loss(params, x)`.

        `%memory --compare dots_saveable,nothing_saveable loss(params, x)` shows it under each of several policies;
        `%memory --compiled loss(params, x)` shows what the compiled program holds at its peak, and why;
        `%memory --beside loss(params, x)` shows both on one axis. `--compiled --save a.json` writes the report to a
        file, and `--compiled --against a.json` shows what changed since.
        """,
        lambda request: (request.under_policy(),),
        (
            "policy compare", "explore compiled beside compare", "explore compiled xla", "explore save",
            "explore against", "plot against",
        ),
    ),
    Command(
        "compiled-memory", "compiling", Request.compiled_memory, (_ARGNUMS, _JSON, _PLOT, _POLICY, _SAVE, _AGAINST),
        "what is in memory at the peak of the compiled gradient, and why",
        """Show what a compiled gradient has in memory at its peak, and why: `%compiled_memory loss(params, x)`.

        `--save a.json` writes the report to a file, and `--against a.json` shows what changed since.
        """,
        exclusive=("plot against",),
    ),
    Command(
        "compile-cost", "compiling", Request.compile_cost,
        (
            _ARGNUMS, _JSON,
            Option("--ablate", "compile each program five times, and show the medians", bool),
        ),
        "how long the gradient takes to trace, lower and compile, and where",
        """Show how long the gradient of a call takes to trace, lower and compile, by phase, line and repeated
        blocks: `%compile_cost loss(params, x)`. It is compiled, not run.""",
    ),
    Command(
        "collectives", "compiling", Request.collectives,
        (_ARGNUMS, _JSON, Option("--types", "what the types imply over explicit axes; nothing is compiled", bool)),
        "which lines make devices communicate in the compiled gradient, and why",
        "Show which lines of a call make devices communicate, in its compiled gradient, and why: `%collectives "
        "loss(params, x)`.",
    ),
    Command(
        "remat", "planning", Request.remat,
        (
            _ARGNUMS, _JSON, _PLOT,
            Option("--memory -m",
                "recompute as little as possible with a modelled peak of at most this: a size such as 16GiB, or "
                "'device' for the memory it has free"),
            Option("--work -w",
                "reach the lowest peak with at most this much recomputation: a share of the gradient's FLOPs, such "
                "as 10%%"),
            Option("--budget -b",
                "recompute as little as possible with residuals of at most this: bytes, a size such as 64MB or "
                "1.5GiB, or a share such as 50%%"),
            replace(_POLICY, help=f"plan for the bytes that this checkpoint policy saves: {_A_POLICY}"),
            replace(_COMPARE, help="several policies, separated by commas, beside the plans for the same bytes: P,Q"),
            Option("--code -c", "print the lines to write for it", bool),
            replace(_EXPLORE, help="show the planned function in the explorer"),
        ),
        "where to put checkpoints, and what they save",
        """Plan what the gradient of a call saves and recomputes: `%remat --memory 16GiB loss(params, x)`.

        `%remat --work 10% loss(params, x)` gives the lowest peak for some extra work; without a bound, the plan
        lowers the peak most for the least work.
        `%remat --policy dots_saveable loss(params, x)` plans for the bytes that a checkpoint policy saves, and
        `%remat --compare dots_saveable,nothing_saveable loss(params, x)` shows policies and plans for their bytes.
        """,
        lambda request: (request.planned(),),
        ("memory work budget policy compare", "code compare", "explore compare"),
    ),
    Command(
        "lint", "deriving", Request.lint, (_ARGNUMS, _JSON, Option("--explain", "explain each rule that gave advice",
            bool)),
        "advice on values that the gradient saves, and work that it does, without need",
        "Show advice on the gradient of a call, by line, with the bytes at stake: `%lint loss(params, x)`.",
    ),
    Command(
        "flow", "running", Request.flow,
        (
            _ARGNUMS, _JSON, _PLOT,
            Option("--types", "only what holds for any values, from types alone; nothing is compiled or run", bool),
        ),
        "which parameters the gradient reaches, and why it is zero in the others",
        """Show which parameters the gradient of a call reaches, and why it is zero in the others:
        `%flow loss(params, x)`. It is run, and with `--types` only traced. Of a training step it shows also which
        parameters stay as they are although their gradient is not zero.
        """,
        runs=True,
    ),
    Command(
        "nan", "running", Request.nan,
        (_ARGNUMS, _JSON, Option("--harmless", "also list non-finite values that reach no result", bool)),
        "where a NaN or an infinity in the results is born",
        "Run a call, and for a loss its gradient too, and show where a NaN or an infinity in its results is born: "
        "`%nan loss(params, x)`.",
        runs=True,
    ),
    Command(
        "step", "running", Request.step,
        (
            _ARGNUMS,
            Option("--line", "first run to this line, such as 41 or model.py:41"),
            Option("--primitive", "first run to this primitive, such as scan"),
            Option("--name", "first run until the variable of this name is computed"),
            Option("--at", "first run until the value at this address is computed, such as 'softmax(q @ k.T)'"),
            Option("--non-finite", "first run to a value with a NaN or an Inf", bool),
        ),
        about="""Step through a call equation by equation, and for a loss backwards too: `%step loss(params, x)`.

        It returns the stepper, as in `s = %step loss(params, x)`; with `--primitive scan` it starts at the scan.
        """,
        runs=True,
    ),
    Command(
        "profile", "profiling", Request.profile,
        (_JSON, Option("--repeat -r", "how many calls to time (default: as many as take a second)", int)),
        "where the time of a call goes, by phase, line and kernel",
        "Show where the time of a call goes, by phase, line and kernel: `%profile step(params, x)`. It runs several "
        "times.",
        runs=True,
    ),
    Command(
        "jaxpr", "tracing", Request.jaxpr, (_ARGNUMS, _STAGE, _EXPLORE),
        "a program as text, as JAX prints it",
        "Show the jaxpr of a call: `%jaxpr f(x)`. The cell magic takes the call on the cell's last line.",
        Request.explored_jaxpr,
    ),
    *(
        Command(
            name, doing, lambda request, stage=stage: request.stages("forward", stage), (_ARGNUMS, _EXPLORE),
            f"the forward and the {stage} program as text",
            f"Show the forward and the {stage} program of a call: `%{name} f(x)`.",
            lambda request, stage=stage: (request.derivation, "forward", stage),
        )
        for name, doing, stage in (("linearize", "linearizing", "linear"), ("vjp", "transposing", "backward"))
    ),
    Command(
        "compare", "comparing", Request.compare,
        (
            _ARGNUMS, _JSON, _PLOT,
            Option("--flags",
                "what flags of JAX change, separated by commas: jax_remat3,jax_custom_vjp3; a flag may have a value, "
                "as in jax_enable_x64=False"),
            _EXPLORE,
        ),
        "what flags of JAX change of the gradient",
        """Show what differs between two calls and their gradients: `%compare loss(params, x), faster_loss(params, x)`.

        `%compare --flags jax_remat3 loss(params, x)` shows what a flag of JAX changes: bytes, work, the peak, lines,
        and which policies have no effect.
        """,
        lambda *requests: (requests[0].compare(*requests[1:]),),
        ("explore flags",),
        calls=2,
        alone="flags",
    ),
    Command(
        "divergence", "running", Request.divergence,
        (
            _ARGNUMS, _JSON,
            replace(_SAVE, help="write a record of the run, for --against; of one call"),
            Option("--against",
                "in place of a second call: op-by-op, float64, bfloat16, no-remat, unsharded, perturbed, or a file "
                "that --save wrote", metavar="WHAT"),
        ),
        "where a run parts from another one: the first value that differs by more than rounding may change",
        """Show where two runs part, forward or backward: `%divergence loss(params, x), other(params, x)`.

        `%divergence --against float64 loss(params, x)` compares with the same in another precision or, with op-by-op,
        outside of `jit`; `--save a.jaxviz` writes a record, and `--against a.jaxviz` compares with it, also on another
        machine or with another version of JAX. `%divergence a.jaxviz b.jaxviz` compares two records.
        """,
        exclusive=("save against",),
        calls=2,
        alone="against save",
        runs=True,
        reads=RECORDS,
    ),
    Command(
        "growth", "running", Request.growth, (_ARGNUMS, _JSON),
        "how values and cotangents grow or shrink along a loop or over layers, and at which line",
        "Run a call, and for a loss its gradient, and show how values and cotangents grow or shrink along a loop or "
        "over layers: `%growth loss(params, x)`.",
        runs=True,
    ),
    Command(
        "upgrade", "gathering facts of", Request.upgrade,
        (
            _ARGNUMS, _JSON,
            Option("--from", f"the environment before, {_AN_ENVIRONMENT}", metavar="ENV", only="command"),
            Option("--to", f"the environment after, {_AN_ENVIRONMENT}", metavar="ENV", only="command"),
            Option("--facts", SUPPRESS, metavar="FOLDER", only="command"),
        ),
        "what a newer JAX, or another environment, changes for the gradient",
        runs=True,
        elsewhere=True,
    ),
    Command(
        "lock", "locking", Request.lock,
        (
            _ARGNUMS, _JSON,
            Option("--compiled", "also compile it, and lock its memory and collectives for this backend and version",
                bool),
            Option("--out", "the file to write (default: contracts/NAME.toml, with the name of the function)",
                metavar="FILE"),
            Option("--accept", "lock only these facts of contracts again, such as loss.residuals or 'loss.*', "
                "separated by commas", metavar="FACTS", only="command"),
        ),
        "a contract of the gradient, for jaxviz check: what it saves, its work, what devices exchange",
        without="accept",
    ),
    Command(
        "check", "checking contracts", Request.check, (_JSON,),
        "which contracts hold, and the cause of what does not",
        named="contract", named_help="its name, or its file (default: all in the folder contracts)",
    ),
)  # fmt: skip
COMMANDS = {command.name: command for command in _COMMANDS}


def defaults_of(commands: Iterable[Command]) -> dict[str, Any]:
    """The value of each option without it, the same in each command that has it."""
    defaults: dict[str, Any] = {}
    for option in (option for command in commands for option in command.options):
        name = option.names.split()[0][2:].replace("-", "_")
        default = False if option.kind is bool else option.default
        assert defaults.setdefault(name, default) == default, f"--{name} has two defaults"
    return defaults


DEFAULTS = defaults_of(_COMMANDS)
"""The value of each option without it, of whichever command: a method of `Request` may belong to several."""
