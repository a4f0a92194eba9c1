"""The wire format: what is written can be read, here and by the browser's side in `widgets/tests`."""

import base64
import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wire_types import misfit, wire_types

import jaxviz
from jaxviz.features.debugger import messages as stepper
from jaxviz.features.explorer import messages as explorer
from jaxviz.features.explorer.changes import changes_of
from jaxviz.features.probes import messages as live
from jaxviz.features.probes.widget import shown_of
from jaxviz.page.schema import COLUMNS, MAGIC, VERSION, decode, encode, from_json, pack, to_json
from jaxviz.xla.explorer_stage.compiled import compiled, lower

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "explorer_view.json").read_text(encoding="utf-8"))
BYTES = base64.b64decode(FIXTURE["bytes"])
VIEW = from_json(FIXTURE["view"])


def header_of(block):
    return json.loads(block[16 : 16 + int.from_bytes(block[8:12], "little")])


def sent(name, values):
    """A view with another column: what is written, and the column as it is read."""
    block = encode(dataclasses.replace(VIEW, columns={**VIEW.columns, name: np.asarray(values)}))
    return block, decode(block).columns[name]


def test_the_fixture_is_what_encode_writes_and_decode_reads():
    assert encode(VIEW) == BYTES
    assert to_json(decode(BYTES)) == FIXTURE["view"]
    packed = pack(BYTES)
    assert len(packed) < len(BYTES) / 2
    assert packed == pack(BYTES)
    assert to_json(decode(packed)) == FIXTURE["view"]


def test_columns_start_at_multiples_of_eight():
    header = header_of(BYTES)
    assert (16 + int.from_bytes(BYTES[8:12], "little")) % 8 == 0
    assert list(header["columns"]) == list(COLUMNS)
    assert all(offset % 8 == 0 for _, _, offset, *_ in header["columns"].values())


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("consumer_rows", [0, 255], "<u1"),
        ("consumer_rows", [-1, 127], "<i1"),
        ("consumer_rows", [0, 256], "<u2"),
        ("consumer_rows", [-1, 300], "<i2"),
        ("consumer_rows", [70_000], "<i4"),
        ("buffer_nbytes", [3.0, 2**40], "<f8"),
    ],
)
def test_a_column_takes_the_narrowest_type(name, values, code):
    _, read = sent(name, values)
    assert (read.dtype, read.tolist()) == (np.dtype(code), values)


def test_a_number_beyond_32_bits_is_an_error():
    with pytest.raises(OverflowError, match="consumer_rows holds 4294967296"):
        sent("consumer_rows", [2**32])


FORMAT = VERSION + 1


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"", "not a jaxviz view"),
        (b"something else entirely", "not a jaxviz view"),
        (MAGIC + FORMAT.to_bytes(2, "little") + bytes(8), f"has format {FORMAT}; .* reads format {VERSION}"),
        (BYTES[:100], "cut short"),
    ],
)
def test_other_bytes_are_refused(block, message):
    with pytest.raises(ValueError, match=message):
        decode(block)


def test_text_that_is_not_unicode_does_not_stop_the_rest():
    assert decode(encode(dataclasses.replace(VIEW, title="a\ud800b"))).title == "a?b"


RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("name", "values", "coding"),
    [
        ("consumer_rows", np.arange(1000) * 7, "delta"),
        ("consumer_rows", RANDOM.integers(0, 5, 1000) * 100_003, "dictionary"),
        ("consumer_rows", RANDOM.choice([-300, 7, 1000], 1000), "dictionary"),
        ("consumer_rows", RANDOM.integers(-(2**31), 2**31 - 1, 1000), ""),
        ("consumer_rows", np.array([0, 2**31 - 1, -(2**31)] * 100), "dictionary"),
        ("consumer_rows", np.zeros(1000), ""),
        ("buffer_nbytes", RANDOM.integers(0, 3, 1000) * 2.0**40, "dictionary"),
    ],
)
def test_a_long_column_is_coded_as_it_packs_best(name, values, coding):
    block, read = sent(name, values)
    assert "".join(map(str, header_of(block)["columns"][name][3:4])) in {coding, "delta"}
    assert read.tolist() == values.tolist()


def test_what_is_known_is_not_written_again():
    whole = from_json(FIXTURE["view"])
    first = dataclasses.replace(
        whole,
        has_groups=False,
        has_memory=False,
        is_whole=False,
        columns={**whole.columns, "step_row": np.array([])},
        strings=whole.strings[:5],
    )
    block = encode(whole, known=first)
    header = json.loads(block[16 : 16 + int.from_bytes(block[8:12], "little")])
    assert list(header["columns"]) == ["step_row"]
    assert header["strings"] == list(whole.strings[5:])
    assert to_json(decode(block, first)) == FIXTURE["view"]


def test_the_types_of_the_page_are_current():
    """To update them, run `python tests/page/wire_types.py`."""
    for path, text in wire_types().items():
        assert path.read_text(encoding="utf-8") == text


FIXTURES = Path(__file__).parents[1] / "fixtures"
STEPPER = json.loads((FIXTURES / "stepper.json").read_text(encoding="utf-8"))
WHAT_IF = json.loads((FIXTURES / "whatif.json").read_text(encoding="utf-8"))


def as_sent(value):
    return json.loads(json.dumps(value))


def f(x):
    return jnp.sum(jnp.sin(x))


def g(x):
    return jnp.sum(jnp.cos(x) * 2.0)


def watched():
    with jaxviz.watch() as told:
        jax.grad(lambda x: f(jaxviz.probe(x, "x")))(jnp.ones(3))
    return told


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (lambda: STEPPER["programs"], stepper.Programs),
        *((lambda stop=stop: stop, stepper.StepperStop) for stop in STEPPER["stops"].values()),
        *(
            (lambda table=case["table"]: table, explorer.SwitchTable)
            for case in (WHAT_IF[name] for name in ("chain", "loop", "blocks"))
        ),
        (lambda: changes_of(jaxviz.compare(f, g, jnp.ones(3))), explorer.Changes),
        (lambda: compiled(lower(jaxviz.derive(f, jnp.ones(3)))), explorer.Compiled),
        (lambda: json.loads(shown_of(watched())), live.Shown),
    ],
)
def test_what_is_sent_is_of_its_type(sent, kind):
    found = as_sent(sent())
    assert misfit(found, kind) == ""
    # Anything missing, superfluous or of another type would be found.
    for name in kind.__required_keys__ & found.keys():
        assert misfit({k: v for k, v in found.items() if k != name}, kind)
        assert misfit({**found, name: {"other": object()}}, kind)
    assert misfit({**found, "more than there is": 1}, kind)
