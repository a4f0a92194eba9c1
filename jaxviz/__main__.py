"""`jaxviz` and `python -m jaxviz` on the command line."""

import sys


def main() -> int:
    """Runs the command that the process was started with; `doctor` runs without the engine, which may be broken."""
    if sys.argv[1:2] == ["doctor"]:
        from jaxviz.features.doctor import command

        return command(sys.argv[2:])
    from jaxviz.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
