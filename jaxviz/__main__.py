"""`jaxviz` and `python -m jaxviz` on the command line."""

import sys


def main() -> int:
    """Runs the command that the process was started with; `doctor` without the engine, which it may find to lack something."""
    if sys.argv[1:2] == ["doctor"]:
        from jaxviz.features.doctor import command

        return command(sys.argv[2:])
    from jaxviz.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
