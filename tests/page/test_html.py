"""Pages that need no server: what stands in them around their widgets."""

import pytest

from jaxviz.page import html


def test_the_title_of_a_page_is_text():
    written = html.page("</title><script>alert(1)</script> & co", b"", "", {})
    assert "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; co</title>" in written
    assert "alert(1)</script>" not in written


@pytest.mark.parametrize(("parts", "compiles"), [({}, False), ({"stepper": b""}, False), ({"graphviz": b""}, True)])
def test_a_page_may_compile_webassembly_only_if_a_part_of_it_does(parts, compiles):
    assert ("wasm-unsafe-eval" in html.page("a title", b"", "", {}, parts)) is compiles
