"""What can be typed after a magic and on the command line, with its help: `tests/fixtures/options.txt`.

`python tests/notebook/test_help.py` writes it again.
"""

from argparse import _SubParsersAction
from dataclasses import replace
from pathlib import Path

import pytest

from jaxviz.cli import _parser
from jaxviz.notebook.magics import JaxvizMagics
from jaxviz.notebook.options import COMMANDS, Option, defaults_of

FIXTURE = Path(__file__).parents[1] / "fixtures" / "options.txt"


def help_of(name, parser):
    yield f"{name}: {' '.join(parser.description.split())}"
    for action in parser._actions:
        names = ", ".join(action.option_strings) or action.metavar or action.dest
        value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
        yield f"  {names}{value}: {action.help}"


def everything():
    (commands,) = (a.choices for a in _parser()._actions if isinstance(a, _SubParsersAction))
    magics = {name: getattr(JaxvizMagics, name) for name in JaxvizMagics.magics["line"]}
    parsers = {f"jaxviz {name}": parser for name, parser in commands.items()}
    parsers |= {f"%{name}": magic.parser for name, magic in magics.items() if hasattr(magic, "parser")}
    return "".join(f"{line}\n" for name in sorted(parsers) for line in help_of(name, parsers[name]))


def test_what_can_be_typed_and_its_help():
    assert everything() == FIXTURE.read_text(encoding="utf-8")


def test_an_option_has_one_default_in_all_commands():
    other = replace(COMMANDS["lint"], options=(Option("--stage", "which", default="backward"),))
    with pytest.raises(AssertionError, match="--stage has two defaults"):
        defaults_of([COMMANDS["jaxpr"], other])


if __name__ == "__main__":
    FIXTURE.write_text(everything(), encoding="utf-8")
