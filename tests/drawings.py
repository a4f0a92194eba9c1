"""What a drawing at the top of a report has to be: well-formed, without scripts and ids, and without overlaps."""

import re
import xml.etree.ElementTree as ElementTree

from jaxviz.report import pictures
from jaxviz.report.pictures import columns


def drawn(page):
    """The drawing at the top of a page."""
    end = page.index("</svg></div>") + len("</svg></div>")
    root = ElementTree.fromstring(f"<div>{page[:end]}</div>")
    style, holder = root
    assert (style.tag, style.text) == ("style", ".jaxviz-picture[hidden]{display:block!important}")
    assert holder.get("class") == "jaxviz-picture"
    assert holder.get("hidden") == "hidden"  # if styles are stripped, the text in it is not shown
    (picture,) = holder
    return picture


def texts(picture):
    return [e.text or "" for e in picture.iter("text")]


def places(picture):
    """The left, top, right and bottom of each text."""
    for e in picture.iter("text"):
        wide = pictures._COLUMN * columns(e.text or "")
        x = float(e.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[e.get("text-anchor", "start")] * wide
        yield e.text, (x, float(e.get("y")) - 10, x + wide, float(e.get("y")) + 2)


def is_sound(picture):
    assert picture.tag == "svg"
    assert picture.get("aria-label") == picture.find("title").text
    assert picture.get("aria-label").endswith(".")
    names = {name for e in picture.iter() for name in e.attrib}
    assert not any(name == "id" or name.endswith("href") or name.startswith("on") for name in names)
    assert {e.tag for e in picture.iter()} <= {"svg", "title", "g", "text", "rect", "path", "circle"}
    assert "nan" not in " ".join(
        e.get(name) for e in picture.iter() for name in e.attrib if name in ("x", "y", "d", "width", "cx", "cy")
    )
    width, height = map(float, picture.get("viewBox").split()[2:])
    found = list(places(picture))
    for text, (left, top, right, bottom) in found:
        assert left >= -0.5, text
        assert right <= width + 0.5, text
        assert top >= 0, text
        assert bottom <= height, text
    for i, (text, (left, top, right, bottom)) in enumerate(found):
        for other, (l, t, r, b) in found[:i]:
            assert right <= l + 0.5 or r <= left + 0.5 or bottom <= t + 0.5 or b <= top + 0.5, (text, other)
    # at least 11 pixels at any width
    narrowest = float(re.search(r"min-width:(\d+)px", picture.get("style"))[1])
    assert 12 * narrowest / width >= 11
    assert "font-size:12px" in picture.get("style")
