"""Programs in Graphviz's dot language: what is drawn, and that no program text escapes its label."""

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import graphviz
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.draw.program_graph import graph_of
from tests.features.draw.drawn_programs import HOSTILE_ARGS, SQUARE, chosen, hostile, scanned, small

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="`make browser` installs graphviz")


def test_it_is_a_graphviz_source():
    dot = jaxviz.to_dot(small, SQUARE, SQUARE)
    assert isinstance(dot, graphviz.Source)
    assert dot.source.startswith("digraph {")
    assert dot.source.rstrip().endswith("}")


def test_each_equation_is_a_box_in_the_frame_of_its_scope():
    source = jaxviz.to_dot(small, SQUARE, SQUARE).source
    for primitive in ("dot_general", "tanh", "mul", "sin", "add", "reduce_sum"):
        assert source.count(f">{primitive}<") == 1
    (scope,) = re.findall(r"subgraph cluster_\d+ \{\s*graph \[label=.encoder.*?\n +\}", source, re.DOTALL)
    assert ">tanh<" in scope
    assert ">sin<" not in scope


@pytest.mark.slow
def test_a_tooltip_has_the_line_and_its_text_unless_that_is_not_wanted():
    shown, hidden = (jaxviz.to_dot(small, SQUARE, SQUARE, source=s).source for s in (True, False))
    assert "drawn_programs.py:" in hidden
    assert "jnp.tanh(x @ w) * 2.0" in shown
    assert "jnp.tanh" not in hidden
    assert "URL=" not in hidden


def test_more_bytes_are_a_thicker_line():
    def f(x):
        return jnp.sum(jnp.sin(x))

    def thickest(n):
        source = jaxviz.to_dot(f, jnp.ones(n)).source
        return max(map(float, re.findall(r'penwidth="([\d.]+)"', source)))

    assert thickest(10) < thickest(1000) < thickest(100_000)


def test_depth():
    closed, opened = (jaxviz.to_dot(scanned, 1.0, jnp.ones(5), depth=d).source for d in (0, 1))
    assert "scan × 5" in closed
    assert "scan × 5" in opened
    assert ">sin<" not in closed
    assert ">sin<" in opened
    assert 'peripheries="2"' in closed
    assert "peripheries" not in opened


def test_stages_of_a_derivation():
    derivation = jaxviz.derive(small, SQUARE, SQUARE)
    source = derivation.to_dot("forward+backward").source
    assert "cos in the derivative of" in source
    assert "gradient of w" in source
    assert 'dir="back"' in source
    with pytest.raises(ValueError, match="'sideways' is not a stage; there are primal, jvp"):
        derivation.to_dot("sideways")
    with pytest.raises(ValueError, match="has no stages"):
        graph_of(derivation.primal, "backward")


def read_svg(text):
    root = ElementTree.fromstring(text)
    for element in root.iter():
        assert element.tag.split("}")[-1] in "svg g a path polygon polyline ellipse text title rect".split()
        for name, value in element.attrib.items():
            assert not name.lower().startswith("on")
            assert "javascript:" not in value.lower()
    return root


@needs_dot
@pytest.mark.parametrize("stage", ["primal", "forward+backward"])
def test_dot_takes_what_is_written_and_nothing_hostile_comes_through(stage):
    dot = jaxviz.to_dot(hostile, *HOSTILE_ARGS, stage=stage)
    text = dot.pipe(format="svg", encoding="utf-8")
    root = read_svg(text)
    shown = "".join(root.itertext()) + "".join(v for e in root.iter() for v in e.attrib.values())
    assert "<U+202E>" in shown
    assert "onerror=alert(1)" in shown  # as text
    assert "\\N\\l" in shown  # and not expanded by dot
    for text in (dot.source, shown):
        assert not set(text) & {"\u202e", "\u2066", "\x1b", "\x00"}
    assert len(dot.source) < 40_000


@needs_dot
def test_dot_draws_it(tmp_path):
    dot = jaxviz.to_dot(chosen, jnp.ones(3))
    path = dot.render(tmp_path / "chosen", format="pdf")
    assert Path(path).read_bytes()[:5] == b"%PDF-"
    assert "<svg" in dot._repr_mimebundle_()["text/html"]
    assert "graphviz" in dot.pipe(format="svg", encoding="utf-8")
