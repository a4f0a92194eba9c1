"""`python -m benchmarks.tasks list | prepare | check | run`."""

import argparse
import sys
from pathlib import Path

from benchmarks.tasks import harness


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    status: int = args.do(args)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.tasks", description="Tasks that measure a solver of JAX's problems.")
    commands = parser.add_subparsers(required=True, metavar="command")
    add = lambda name, do, text: _command(commands.add_parser(name, help=text, description=text), do)
    add("list", _list, "the tasks and their kinds")
    for name, do, text in (
        ("prepare", _prepare, "copy the question and the program of a task into a folder"),
        ("check", _check, "say what is wrong with a solver's folder; the exit status is 1 if anything is"),
    ):
        command = add(name, do, text)
        command.add_argument("name", choices=harness.names(), metavar="NAME")
        command.add_argument("folder", type=Path, metavar="FOLDER")
        if name == "prepare":
            _skill(command)
    run = add("run", _run, "give tasks to a shell command, and check what it leaves")
    run.add_argument("names", nargs="*", metavar="NAME", help="all tasks, if there is none")
    run.add_argument("--solver", required=True, metavar="COMMAND", help="runs in the folder; $QUESTION is a path")
    run.add_argument("--minutes", type=float, default=30.0, help="for each task (default: 30)")
    _skill(run)
    return parser


def _command(parser: argparse.ArgumentParser, do: object) -> argparse.ArgumentParser:
    parser.set_defaults(do=do)
    return parser


def _skill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--with-skill", action="store_true", help="also the text of `jaxviz skill`")


def _list(args: argparse.Namespace) -> int:
    for name in harness.names():
        print(f"{name:24}{harness.checker(name).KIND}")
    return 0


def _prepare(args: argparse.Namespace) -> int:
    harness.prepare(args.name, args.folder, with_skill=args.with_skill)
    return 0


def _check(args: argparse.Namespace) -> int:
    wrong = harness.check(args.name, args.folder)
    print("\n".join(wrong) or "solved")
    return 1 if wrong else 0


def _run(args: argparse.Namespace) -> int:
    unknown = set(args.names) - set(harness.names())
    if unknown:
        print(f"no task {', '.join(sorted(unknown))}; `list` prints them", file=sys.stderr)
        return 2
    outcomes = []
    for name in args.names or harness.names():
        o = harness.solve(name, args.solver, with_skill=args.with_skill, limit=60 * args.minutes)
        tokens = "" if o.tokens is None else f"{o.tokens:,}"
        print(f"{name:24}{o.seconds:8.1f} s {tokens:>12}  {'; '.join(o.wrong) or 'solved'}", flush=True)
        outcomes.append(o)
    print(harness.summary(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
