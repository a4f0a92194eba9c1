"""`jaxviz run` and `jaxviz show` on the command line. JAX is not imported here, since the script does so itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from jaxviz.runs.start import BUDGET, OUT, run_script

RUN = "run a script, unchanged, and write what it compiled, its gradients and what to do"
SHOW = "what `jaxviz run` wrote"
EXAMPLES = """examples:
  jaxviz run train.py --steps 100                 the script with its own arguments; then jaxviz-run/index.html
  jaxviz run --out runs/1 -m package.train        a module, and another folder
  jaxviz show                                     what the last run left behind
  jaxviz show runs/1 --json                       the same, for programs
"""


def add_run(to: argparse.ArgumentParser) -> None:
    """Adds the options of `jaxviz run`."""
    to.add_argument("--out", default=OUT, metavar="FOLDER", help=f"the folder to write (default: {OUT})")
    to.add_argument(
        "--budget", type=_seconds, default=BUDGET, metavar="SECONDS",
        help=f"how long functions may be analysed, beside the run, such as 30s (default: {BUDGET:g}s)",
    )  # fmt: skip
    to.add_argument("--source", action="store_true", help="let the page have the lines of your source files")
    to.add_argument("-m", dest="is_module", action="store_true", help="the script is a module, as after python -m")
    to.add_argument("script", help="the script or module to run, such as train.py")
    to.add_argument("arguments", nargs=argparse.REMAINDER, default=[], help="its arguments")


def add_show(to: argparse.ArgumentParser) -> None:
    """Adds the options of `jaxviz show`."""
    to.add_argument("folder", nargs="?", default=OUT, help=f"the folder that the run wrote (default: {OUT})")
    to.add_argument("--json", action="store_true", help="print it as JSON")
    to.add_argument("--agent", action="store_true", help="print at most 4,000 tokens, for an agent")


def _seconds(text: str) -> float:
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"expected seconds, such as 30s; got {text!r}")
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `jaxviz run`; it ends as the script does.

    Args:
      argv: the words, of which the first is "run"; by default those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="jaxviz run", description=f"{RUN[0].upper()}{RUN[1:]}.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_run(parser)
    options: Any = parser.parse_args((sys.argv[1:] if argv is None else argv)[1:])
    run_script([options.script, *options.arguments], options.out, options.budget, options.is_module, options.source)
    return 0
