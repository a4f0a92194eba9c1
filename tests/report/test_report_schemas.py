"""The schemas of plain data: `tests/fixtures/schemas.json` has them all, one in a line.

An entry that goes, or means something else, needs a new `VERSION`. `python tests/report/test_report_schemas.py` then writes the file again.
"""

from __future__ import annotations

import json
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
from jaxviz.report.report import _REPORTS

FIXTURE = Path(__file__).parents[1] / "fixtures" / "schemas.json"
NAMES = json.loads(FIXTURE.read_text(encoding="utf-8"))


def written():
    lines = (f"{json.dumps(name)}: {json.dumps(jaxviz.schema(name))}" for name in NAMES)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_schemas_are_as_published():
    assert written() == FIXTURE.read_text(encoding="utf-8")
    assert {name for name, of in _REPORTS.items() if of.__module__.startswith("jaxviz.")} == set(NAMES)
    for name in NAMES:
        jsonschema.Draft202012Validator.check_schema(jaxviz.schema(name))


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


@pytest.mark.parametrize("name", ["residual", "memory.besides", ""])
def test_a_name_that_no_report_has(name):
    with pytest.raises(ValueError, match=r"no report is named .*residuals"):
        jaxviz.schema(name)


if __name__ == "__main__":
    FIXTURE.write_text(written(), encoding="utf-8")
