"""`python -m jaxviz.teach students course/*.py --to handout`: copies of notebooks for students."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxviz.teach.handouts import student_copies


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    >>> main(["students", "course/05_transposition.py", "--to", "handout"])
    handout/05_transposition.ipynb

    Args:
      argv: its words; by default those of the process.
    """
    parser = argparse.ArgumentParser(prog="python -m jaxviz.teach", description="For teachers.")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    about = "write copies of notebooks without their solutions"
    students = commands.add_parser("students", help=about, description=f"{about[0].upper()}{about[1:]}.")
    students.add_argument("notebooks", nargs="+", help="the notebooks, .py or .ipynb")
    students.add_argument("--to", default="handout", metavar="FOLDER", help="where to write them (default: handout)")
    students.add_argument("--nbgrader", action="store_true", help="write the instructor's versions for nbgrader")
    students.add_argument("--points", type=float, default=1, help="with --nbgrader: the points of an exercise")
    students.add_argument("--slides", action="store_true", help="mark the cells as slides, for a lecture")
    options = parser.parse_args(argv)
    kind = {"nbgrader": options.nbgrader, "points": options.points, "slides": options.slides}
    try:
        written = student_copies(options.notebooks, options.to, **kind)
    except (ImportError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
