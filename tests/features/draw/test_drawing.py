"""Pictures: their content, what `dot` draws of it, and that none fails."""

import json
import random
import re
import shutil
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from itertools import combinations

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread
from programs import CASES
from test_matrix import marked

import jaxviz
from benchmarks.models import lstm, transformer
from jaxviz.analysis.walk import bodies
from jaxviz.features.draw import drawing as drawing_of
from jaxviz.features.draw.canvas import MOST_BOXES
from jaxviz.features.draw.graph import enclosing
from jaxviz.features.draw.style import FILLS, FRAMES, INK, LINES, PALE, on_page
from tests.features.draw.drawn_programs import HOSTILE_ARGS, SQUARE, chosen, hostile, layer_args, layers, scanned, small

PROGRAMS = {
    "small": (small, (SQUARE, SQUARE)),
    "layers": (layers, layer_args(8)),
    "scan": (scanned, (jnp.ones(()), jnp.ones(5))),
    "cond": (chosen, (jnp.ones(3),)),
    "lstm": lstm(2),
    "transformer": transformer(3),
    "while": (lambda x: jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * x, x), (2.0,)),
    "hostile": (hostile, HOSTILE_ARGS),
    "nothing": (lambda x: x, (1.0,)),
}
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="`make browser` installs graphviz")


def drawing(name, stage="primal", **options):
    f, args = PROGRAMS[name]
    return jaxviz.draw(f, *args, stage=stage, **options)


@needs_dot
def test_lines_run_downwards_but_for_the_backward_program_beside_the_forward_one():
    picture = drawing("small", "forward+backward")
    graph = picture.graph
    height = {
        o["name"]: float(o["pos"].split(",")[1]) for o in json.loads(picture._drawn("json"))["objects"] if "pos" in o
    }
    stages = {f.number: f.title.split(",")[0] for f in graph.stages}
    downwards = {"forward": set(), "backward": set()}
    for line in graph.lines:
        if line.kind == "value":
            stage = stages[enclosing(graph.frames, graph.boxes[line.tail].frame)[-2]]
            downwards[stage].add(height[f"n{line.tail}"] > height[f"n{line.head}"])
    assert downwards == {"forward": {True}, "backward": {False}}


def edges(graph):
    return {(graph.boxes[x.tail].title, graph.boxes[x.head].title, x.kind) for x in graph.lines}


def test_the_lines_are_the_values():
    assert edges(drawing("small").graph) == {
        ("w", "dot_general", "value"), ("x", "dot_general", "value"), ("dot_general", "tanh", "value"),
        ("tanh", "mul", "value"), ("2.0", "mul", "value"), ("w", "sin", "value"), ("mul", "add", "value"),
        ("sin", "add", "value"), ("add", "reduce_sum", "value"), ("reduce_sum", "result", "value"),
    }  # fmt: skip


def test_a_loop_shows_what_the_next_iteration_reads():
    assert edges(drawing("scan", depth=1).graph) >= {
        ("mul", "sin", "carry"), ("mul", "add", "carry"), ("ys", "mul", "value"), ("mul", "result 0", "value"),
        ("add", "result 1", "value"),
    }  # fmt: skip


def test_the_condition_of_a_while_reads_what_its_body_made():
    def f(x):
        return jax.lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1]) * c[1]), (0, x))

    found = edges(jaxviz.draw(f, 1.0, depth=2).graph)
    assert {("add", "lt", "carry"), ("add", "add", "carry"), ("mul", "sin", "carry"), ("mul", "mul", "carry")} <= found
    assert ("mul", "lt", "carry") not in found


def test_many_values_between_the_same_groups_are_one():
    f, args = transformer(6)
    derivation = jaxviz.derive(f, *args)
    graph = derivation.draw("forward+backward", depth=0).graph
    boxes = {b.title: b for b in graph.boxes}
    assert {"48 residuals", "36 inputs", "60 results"} <= set(boxes)
    # The number depends on the version of JAX, whose rules save different values.
    kept = max((t for t in boxes if t.endswith(" residuals")), key=lambda t: int(t.split()[0]))
    assert int(kept.split()[0]) % 6 == 0
    ends = {(graph.boxes[x.tail].title, graph.boxes[x.head].title) for x in graph.lines}
    assert {("layer × 6", kept), (kept, "layer × 6"), ("36 inputs", "48 residuals")} <= ends
    # Each layer has ten parameters, whose gradients are the results.
    assert boxes["60 results"].tooltip.startswith(
        "60 results, 195.0 KiB\ngradient of params['layers'][0…5]['down']: 6 × f32[64,32]"
    )


def test_a_cond_shows_both_branches():
    graph = drawing("cond", depth=2).graph
    assert {f.title for f in graph.frames} >= {"cond", "branch 0", "branch 1"}
    assert {("exp", "reduce_sum", "value"), ("mul", "reduce_sum", "value")} <= edges(graph)


def test_repetitions_are_drawn_once_with_all_that_goes_in_and_out():
    graph = drawing("layers").graph
    assert Counter(b.title for b in graph.boxes)["tanh"] == 1
    assert ("mul", "dot_general", "carry") in edges(graph)
    assert ("x", "dot_general", "value") in edges(graph)
    (weights,) = [b for b in graph.boxes if b.title == "ws[0…7]"]
    assert weights.detail == "8 × f32[4,4]"
    assert 'style="dashed"' in drawing("layers").source  # from one layer to the next
    ports = [b for b in drawing("layers", "forward+backward").graph.boxes if b.kind == "residual" and b.frame == 0]
    assert len(ports) < 12


@pytest.mark.parametrize("name", ["small", "scan", "cond", "lstm", "layers", "transformer"])
def test_every_residual_is_a_port_that_the_backward_program_reads(name):
    f, args = PROGRAMS[name]
    derivation = jaxviz.derive(f, *args)
    graph = derivation.draw("forward+backward").graph
    ports = {b.number: b for b in graph.boxes if b.kind == "residual" and b.frame == 0}
    total = sum(int(p.detail.split(" × ")[0]) if " × " in p.detail.split("[")[0] else 1 for p in ports.values())
    assert total == derivation.n_residuals
    # Some are read by nothing, which the residuals report notes as well.
    unread = sum(not r.consumers for r in derivation.residuals)
    read = {x.tail for x in graph.lines if x.tail in ports}
    assert len(set(ports) - read) <= unread


@pytest.mark.slow(sweep=True)
def test_a_large_program_gives_a_picture_that_says_what_is_left_out(monkeypatch):
    choice = random.Random(0).choice

    def long(x):
        xs = [x, x]
        for i in range(1700):
            xs.append(
                choice([jnp.sin, jnp.cos, jnp.tanh, jnp.exp])(xs[-1 - i * i % 2]) * xs[(i * 7919) % len(xs)]
                + float(i % 7)
            )
        return xs[-1]

    program = jaxviz.trace(long)(1.0)
    assert len(program.equations) > 5000
    start = time.process_time()
    picture = jaxviz.draw(program)
    assert time.process_time() - start < 20
    assert sum(b.kind == "equation" for b in picture.graph.boxes) <= MOST_BOXES
    assert "equations are left out: a picture has at most 800 boxes" in picture.source
    assert "more equations" in picture.source
    assert "left out" in str(picture)
    monkeypatch.setattr(drawing_of, "_SECONDS", 0.1)
    with pytest.raises(
        RuntimeError, match=r"takes more than 0\.1 s for [\d,]+ boxes; a smaller `depth` may have fewer"
    ):
        picture.svg()


@needs_dot
@pytest.mark.parametrize("stage", ["primal", "forward+backward"])
def test_a_notebook_shows_it_in_the_ink_of_the_page(stage):
    """In light and dark themes."""
    picture = drawing("small", stage)
    svg = picture.svg()
    shown = on_page(svg)
    root = ElementTree.fromstring(shown)
    fills = {e.get("fill") for e in root.iter()} - {None}
    assert "currentColor" in fills
    frames = (fill for fill, _, _ in FRAMES.values() if fill != "none")
    assert not fills & {*FILLS.values(), *frames, INK, PALE, "white", "black"}
    assert all(e.get("id") is None for e in root.iter())
    assert "".join(root.itertext()).split() == "".join(ElementTree.fromstring(svg).itertext()).split()
    assert shown in picture._repr_html_()


def test_without_dot_a_picture_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    picture = drawing("small")
    for draw in (picture.svg, picture.plot, lambda: picture.save_pdf(tmp_path / "x.pdf")):
        with pytest.raises(RuntimeError, match="not installed; to install: conda install -c conda-forge graphviz, apt"):
            draw()
    assert not (tmp_path / "x.pdf").exists()
    shown = picture._repr_html_()
    assert "picture of small: 6 boxes" in shown
    assert "conda install" in shown
    assert "digraph" in picture.to_dot().source
    assert picture.to_dot()._repr_mimebundle_()["text/html"] == shown


@needs_dot
def test_what_dot_says_of_a_failure_is_in_the_error(monkeypatch):
    picture = drawing("small")
    vars(picture)["source"] = "digraph {"
    with pytest.raises(RuntimeError, match="it fails: Error: <stdin>: syntax error in line 1"):
        picture.svg()


@needs_dot
def test_files(tmp_path):
    picture = drawing("cond")
    ElementTree.parse(picture.save_svg(tmp_path / "x.svg"))
    (small, _, _), (large, _, _) = (imread(picture.save_png(tmp_path / "x.png", dpi)).shape for dpi in (72, 144))
    assert large == pytest.approx(2 * small, abs=2)
    assert b"/FontFile" in picture.save_pdf(tmp_path / "x.pdf").read_bytes()  # text, and not outlines


@needs_dot
def test_a_figure_for_a_paper():
    """It has what `dot` draws: each text within its room, boxes in their colours, lines with their arrows."""
    picture = drawing("small", "forward+backward")
    figure = picture.plot(width=7)
    assert figure.get_size_inches()[0] == pytest.approx(7)
    (axes,) = figure.axes
    words = {text.get_text() for text in axes.texts}
    assert {"gradient of small in w", "tanh", "encoder", "residual", "cotangent"} <= words
    assert {b.title for b in picture.graph.boxes} <= words
    filled = Counter(to_hex(patch.get_facecolor()) for patch in axes.patches if patch.get_fill())
    colours = Counter(FILLS[b.role or b.kind] for b in picture.graph.boxes if (b.role or b.kind) in FILLS)
    assert all(filled[colour] >= n for colour, n in colours.items())
    assert filled[LINES["value"][0]] == sum(line.kind == "value" for line in picture.graph.lines)
    places = [text.get_window_extent() for text in axes.texts]
    whole = figure.bbox
    assert not [p for p in places if p.x0 < whole.x0 or p.x1 > whole.x1 or p.y0 < whole.y0 or p.y1 > whole.y1]
    overlapping = [(p, q) for p, q in combinations(places, 2) if p.overlaps(q)]
    assert not overlapping


def test_what_can_be_drawn():
    program = jaxviz.trace(small)(SQUARE, SQUARE)
    same = [edges(jaxviz.draw(x).graph) for x in (program, program.jaxpr, jaxviz.derive(program, argnums=(0, 1)))]
    assert same[0] == same[1] == same[2]
    backward = jaxviz.draw(program, stage="backward", argnums=(0, 1))
    assert {"gradient of w", "gradient of x"} <= {b.title for b in backward.graph.boxes}
    with pytest.raises(TypeError, match="takes no arguments with a Program"):
        jaxviz.draw(program, SQUARE)


def innermost(program):
    """The number of equations drawn as such when everything is open: those without nested programs, and one for each
    choice of a cond's branch."""
    n = 0
    for e in program.equations:
        inside = bodies(e)
        n += sum(innermost(body.program) for body in inside) + (not inside or e.primitive.name == "cond")
    return n


def assert_whole(picture):
    """Every box is in the source, in its frame, and every line is between two boxes."""
    source, graph = picture.source, picture.graph
    assert len(re.findall(r"^ *n\d+ \[", source, re.MULTILINE)) == len(graph.boxes)
    assert len(re.findall(r"^  n\d+ -> n\d+ \[", source, re.MULTILINE)) == len(graph.lines)
    assert source.count("subgraph cluster_") == len(graph.frames) - 1


@pytest.mark.slow
@pytest.mark.parametrize("case", marked(CASES, 0, of=3, each=2), ids=str)
def test_every_program_can_be_drawn_and_each_equation_is_there(case):
    derivation = jaxviz.derive(case.fun, *case.args)
    for stage in ("primal", "forward+backward"):
        picture = derivation.draw(stage, depth=20)
        assert_whole(picture)
        if not any("drawn once" in note for note in picture.graph.notes):
            expected = sum(innermost(getattr(derivation, key)) for key in stage.split("+"))
            assert sum(b.kind == "equation" for b in picture.graph.boxes) == expected
        for depth in (0, 1):
            assert_whole(derivation.draw(stage, depth=depth))
