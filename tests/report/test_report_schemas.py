"""The schemas of plain data: `tests/fixtures/schemas.json` has them all, one in a line.

An entry that goes, or means something else, needs a new `VERSION`. `python tests/report/test_report_schemas.py` then writes the file again.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jsonschema
import pytest

import jaxviz
from jaxviz.ir.origin import Location
from jaxviz.report.data import Data, schema_of
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
        if module.name != "jaxviz.__main__":
            importlib.import_module(module.name)
    defined = [report for report in Report.__subclasses__() if report.__module__.startswith("jaxviz.")]
    assert {report.__qualname__ for report in defined} == {report.__qualname__ for report in reports().values()}


@dataclass(frozen=True)
class Size(Data):
    nbytes: int
    share: complex | None = None


@dataclass(frozen=True)
class Part(Data):
    size: Size
    parts: tuple[Part, ...] = ()
    site: Location | None = None

    _data = ("*size", "parts", "site", "at=site")


@dataclass(frozen=True)
class Whole(Data):
    name: str
    parts: tuple[Part, ...]
    first: Part | None
    kinds: Mapping[str, float]
    pair: tuple[int, Literal["a", "b"]]

    _data = (
        "title=name", "first=parts", ("sizes=parts", ("size.nbytes",)), ("none=first", ("size",)), "kinds", "pair", ("sums=", ("by",)),
    )  # fmt: skip

    def by(self) -> Counter[str]:
        return Counter("aab")


def test_data_and_schema_are_of_the_same_entries():
    part = Part(Size(3, 1j), (Part(Size(4)),), Location("model.py", 3, "f"))
    data = part.to_dict()
    assert data == {
        "nbytes": 3, "share": [0.0, 1.0], "file": "model.py", "line": 3, "function": "f",
        "parts": [{"nbytes": 4, "share": None, "parts": [], "file": None, "line": None, "function": None, "at": None}],
        "at": {"file": "model.py", "line": 3, "function": "f", "column": 0, "end_line": 0, "end_column": 0},
    }  # fmt: skip
    whole = Whole("w", (part, part), None, {"k": 0.5}, (1, "b")).to_dict()
    assert whole == {
        "title": "w", "first": [data, data], "sizes": [{"nbytes": 3}, {"nbytes": 3}], "none": None, "kinds": {"k": 0.5}, "pair": [1, "b"],
        "sums": {"by": {"a": 2, "b": 1}},
    }  # fmt: skip
    jsonschema.validate(json.loads(json.dumps(whole)), schema_of(Whole, {}))
    schema = schema_of(Part, {})
    jsonschema.validate(json.loads(json.dumps(data)), schema)
    for wrong in ({**data, "more": 1}, {**data, "line": "3"}, {**data, "share": [1.0]}, {"nbytes": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize("name", ["residual", "memory.besides", "", None, 3])
def test_a_name_that_no_report_has(name):
    with pytest.raises(ValueError, match="no report is named") as caught:
        jaxviz.schema(name)
    assert str(caught.value).endswith(f"there are {', '.join(sorted(reports()))}")


@pytest.mark.slow(sweep=True)
def test_the_names_do_not_depend_on_what_is_imported():
    code = (
        "import jaxviz\ntry: jaxviz.schema('')\nexcept ValueError as error: print(str(error).split(' there are ')[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ", ".join(sorted(reports()))


if __name__ == "__main__":
    FIXTURE.write_text(written(), encoding="utf-8")
