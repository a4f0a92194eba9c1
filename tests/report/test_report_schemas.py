"""The schemas of plain data: `tests/fixtures/schemas.json` has them all, one in a line.

An entry that goes, or means something else, needs a new `VERSION`. `python tests/report/test_report_schemas.py` then
writes the file again.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import jaxviz
from jaxviz.report.report import Report, reports

FIXTURE = Path(__file__).parents[1] / "fixtures" / "schemas.json"


def written():
    lines = (f"{json.dumps(name)}: {json.dumps(jaxviz.schema(name))}" for name in sorted(reports()))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_schemas_are_as_published():
    assert written() == FIXTURE.read_text(encoding="utf-8")
    for name in reports():
        jsonschema.Draft202012Validator.check_schema(jaxviz.schema(name))


def test_every_report_has_a_schema():
    for module in pkgutil.walk_packages(jaxviz.__path__, "jaxviz."):
        if module.name not in ("jaxviz.__main__", "jaxviz.auto"):
            importlib.import_module(module.name)
    every = [kind for report in Report.__subclasses__() for kind in (report, *report.__subclasses__())]
    defined = [report for report in every if report.__module__.startswith("jaxviz.")]
    assert {report.__qualname__ for report in defined} == {report.__qualname__ for report in reports().values()}


@pytest.mark.slow(sweep=True)
def test_the_names_do_not_depend_on_what_is_imported():
    code = (
        "import jaxviz\ntry: jaxviz.schema('')\nexcept ValueError as error: print(str(error).split(' there are ')[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ", ".join(sorted(reports()))


if __name__ == "__main__":
    FIXTURE.write_text(written(), encoding="utf-8")
