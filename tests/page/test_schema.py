"""The wire format: what is written is read again, by this side here and by the browser's in `widgets/tests`."""

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jaxviz.page.schema import COLUMNS, MAGIC, VERSION, decode, encode, from_json, pack, to_json

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "explorer_view.json").read_text(encoding="utf-8"))
BYTES = base64.b64decode(FIXTURE["bytes"])


def test_the_fixture_is_what_encode_writes():
    assert encode(from_json(FIXTURE["view"])) == BYTES


def test_the_fixture_is_what_decode_reads():
    assert to_json(decode(BYTES)) == FIXTURE["view"]


def test_columns_start_at_multiples_of_eight():
    length = int.from_bytes(BYTES[8:12], "little")
    header = json.loads(BYTES[16 : 16 + length])
    assert (16 + length) % 8 == 0
    assert list(header["columns"]) == list(COLUMNS)
    assert all(offset % 8 == 0 for _, offset, _ in header["columns"].values())


@pytest.mark.parametrize(
    ("values", "code"), [([0, 255], "u1"), ([-1, 127], "i1"), ([0, 256], "u2"), ([-1, 300], "i2"), ([70_000], "i4")]
)
def test_a_column_takes_the_narrowest_type(values, code):
    view = from_json(FIXTURE["view"])
    wider = dataclasses.replace(view, columns={**view.columns, "consumer_rows": np.asarray(values)})
    read = decode(encode(wider)).columns["consumer_rows"]
    assert read.dtype == np.dtype("<" + code)
    assert read.tolist() == values


def test_bytes_beyond_32_bits_are_floats():
    view = from_json(FIXTURE["view"])
    read = decode(
        encode(dataclasses.replace(view, columns={**view.columns, "buffer_nbytes": np.asarray([3.0, 2**40])}))
    )
    assert read.columns["buffer_nbytes"].dtype == np.dtype("<f8")
    assert read.columns["buffer_nbytes"].tolist() == [3, 2**40]


def test_a_number_beyond_32_bits_is_an_error():
    view = from_json(FIXTURE["view"])
    with pytest.raises(OverflowError, match="consumer_rows holds 4294967296"):
        encode(dataclasses.replace(view, columns={**view.columns, "consumer_rows": np.asarray([2**32])}))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"", "not a jaxviz view"),
        (b"something else entirely", "not a jaxviz view"),
        (
            MAGIC + (VERSION + 1).to_bytes(2, "little") + bytes(8),
            f"has format {VERSION + 1}; .* reads format {VERSION}",
        ),
        (BYTES[:100], "cut short"),
    ],
)
def test_other_bytes_are_refused(block, message):
    with pytest.raises(ValueError, match=message):
        decode(block)


def test_a_packed_block_is_read_as_it_is():
    packed = pack(BYTES)
    assert len(packed) < len(BYTES) / 2
    assert packed == pack(BYTES)
    assert to_json(decode(packed)) == FIXTURE["view"]


def test_text_that_is_not_unicode_does_not_stop_the_rest():
    view = from_json(FIXTURE["view"])
    assert decode(encode(dataclasses.replace(view, title="a\ud800b"))).title == "a?b"
