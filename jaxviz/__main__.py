"""`jaxviz` and `python -m jaxviz` on the command line."""

import os
import sys


def main() -> int:
    """Runs the command that the process was started with; `doctor` and `run` begin without the engine: it may be
    broken, and the script imports JAX itself."""
    if sys.argv[1:2] == ["run"]:
        from jaxviz.runs.command import main as run

        return run(sys.argv[1:])  # what the script raises is Python's to show
    try:
        if sys.argv[1:2] == ["doctor"]:
            from jaxviz.features.doctor import command
        else:
            from jaxviz.cli import main as command
        status = command(sys.argv[1:])
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
