"""The saved page: a single file that loads nothing else, and that no program text can break out of."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import jaxviz
from jaxviz.features.explorer.columns import view_of
from jaxviz.page.html import fit_to_show, page
from jaxviz.page.schema import encode
from tests.features.draw.drawn_programs import HOSTILE_ARGS, hostile

EVIL = "</script><!--<script>alert(1)</script>\u2028 & \" ' <img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.open = [], {}, None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open = dict(attrs).get("id", tag) if tag in ("script", "title", "style") else None

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.scripts[self.open] = self.scripts.get(self.open, "") + data


def read(**changes):
    values = {"title": "t", "payload": b"bytes", "module": "export default 1", "state": {}, **changes}
    return page(**values), Reader(page(**values))


def unpacked(script):
    return gzip.decompress(base64.b64decode(json.loads(script)))


def test_what_is_put_in_comes_out():
    _, found = read(title=EVIL, payload=b"\x00\xff" * 99, module=f"x = {EVIL!r}", state={"selected": EVIL})
    assert found.scripts["title"] == EVIL
    assert unpacked(found.scripts["jaxviz-payload"]) == b"\x00\xff" * 99
    assert unpacked(found.scripts["jaxviz-module"]).decode() == f"x = {EVIL!r}"
    assert json.loads(unpacked(found.scripts["jaxviz-state"])) == {"selected": EVIL}


def test_parts_are_blocks_that_are_read_when_they_are_asked_for():
    _, found = read(parts={"drawing": b"\x00\xfe"})
    assert base64.b64decode(json.loads(found.scripts["jaxviz-part-drawing"])) == b"\x00\xfe"
    assert "jaxviz-part-drawing" not in read()[0]


def test_no_text_adds_an_element():
    plain, hostile = read()[1], read(title=EVIL, module=EVIL, state={EVIL: EVIL})[1]
    assert hostile.tags == plain.tags


def test_the_page_names_no_address():
    text, _ = read()
    assert not re.search(r"(https?:)?//[\w.-]+\.\w", text)
    assert not re.search(r"\b(src|href)=", text)
    assert "default-src 'none'" in text


def test_the_same_view_gives_the_same_page():
    assert read()[0] == read()[0]


def test_names_neither_turn_text_around_nor_fill_the_page():
    view = view_of(jaxviz.derive(hostile, *HOSTILE_ARGS))
    shown = encode(fit_to_show(view))
    assert len(encode(view)) > 1_000_000
    assert len(shown) < 200_000
    text = shown.decode(errors="replace")
    assert "<U+202E>" in text
    assert not set(text.partition('"strings"')[2].partition("]")[0]) & {"\u202e", "\u2066", "\x1b"}


def test_a_view_without_such_names_stays_as_it_is():
    view = view_of(jaxviz.derive(lambda x: x * 2.0, 1.0))
    assert encode(fit_to_show(view)) == encode(view)


def test_only_a_page_with_graphviz_may_compile_webassembly():
    assert "wasm-unsafe-eval" not in read(parts={"graph": b""})[0]
    assert "script-src 'unsafe-inline' blob: 'wasm-unsafe-eval';" in read(parts={"graphviz": b""})[0]
