"""Pictures: their content, that boxes do not overlap, and that none fails."""

import shutil
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import numpy as np
import pytest
from programs import CASES
from test_parity import marked

import jaxviz
from benchmarks.models import lstm, transformer
from jaxviz.analysis.walk import bodies
from jaxviz.features.draw.canvas import MOST_BOXES
from jaxviz.features.draw.style import FILLS, FRAMES, INK, PALE
from jaxviz.features.draw.svg import arrow, on_page
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
STAGES = ["primal", "forward", "backward", "forward+backward", "forward+linear"]


@pytest.fixture
def without_dot(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def drawing(name, stage="primal", **options):
    f, args = PROGRAMS[name]
    return jaxviz.draw(f, *args, stage=stage, **options)


@pytest.mark.parametrize("depth", [1, None])
@pytest.mark.parametrize("name", PROGRAMS)
def test_boxes_stand_free_of_each_other_and_inside_of_their_frames(name, depth):
    for stage in STAGES if name != "while" else ("primal", "jvp"):
        picture = drawing(name, stage, depth=depth)
        graph, layout = picture.graph, picture.layout
        boxes = list(zip(graph.boxes, layout.boxes, strict=True))
        left, top, width, height = np.array([(b.x, b.y, b.width, b.height) for b in layout.boxes]).reshape(-1, 4).T
        beside = left + width <= left[:, None]
        below = top + height <= top[:, None]
        assert (beside | beside.T | below | below.T | np.eye(len(boxes), dtype=bool)).all()
        for box, place in boxes:
            assert 0 <= place.x <= place.x + place.width <= layout.width
            assert 0 <= place.y <= place.y + place.height <= layout.height
            around = set(graph.enclosing(box.frame))
            for frame, r in layout.frames.items():
                apart = (
                    place.x + place.width <= r.x or r.x + r.width <= place.x
                    or place.y + place.height <= r.y or r.y + r.height <= place.y
                )  # fmt: skip
                inside = r.x <= place.x <= place.x + place.width <= r.x + r.width and r.y <= place.y
                assert inside if frame in around else apart
        for line, path in zip(graph.lines, layout.paths, strict=True):
            assert touches(layout.boxes[line.tail], path[0])
            assert touches(layout.boxes[line.head], path[-1])


def touches(r, point):
    return r.x - 1 <= point[0] <= r.x + r.width + 1 and r.y - 1 <= point[1] <= r.y + r.height + 1


def test_lines_run_downwards_but_for_the_backward_program_beside_the_forward_one():
    picture = drawing("small", "forward+backward")
    stages = {f.number: f.title.split(",")[0] for f in picture.graph.stages}
    directions = {"forward": set(), "backward": set()}
    for i, line in enumerate(picture.graph.lines):
        if line.kind == "value":
            stage = stages[picture.graph.enclosing(picture.graph.boxes[line.tail].frame)[-2]]
            path = picture.layout.paths[i]
            directions[stage].add(path[0][1] < path[-1][1])
    assert directions == {"forward": {True}, "backward": {False}}


def edges(graph):
    return {(graph.boxes[x.tail].title, graph.boxes[x.head].title, x.kind) for x in graph.lines}


def test_the_lines_are_the_values():
    assert edges(drawing("small").graph) == {
        ("w", "dot_general", "value"), ("x", "dot_general", "value"), ("dot_general", "tanh", "value"),
        ("tanh", "mul", "value"), ("2.0", "mul", "value"), ("w", "sin", "value"), ("mul", "add", "value"),
        ("sin", "add", "value"), ("add", "reduce_sum", "value"), ("reduce_sum", "result", "value"),
    }  # fmt: skip


def test_a_loop_shows_what_the_next_iteration_reads():
    found = edges(drawing("scan", depth=1).graph)
    assert ("mul", "sin", "carry") in found
    assert ("mul", "add", "carry") in found
    assert ("mul", "result 0", "value") in found
    assert ("add", "result 1", "value") in found
    assert ("ys", "mul", "value") in found


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
    both = drawing("layers", "forward+backward").graph
    ports = [b for b in both.boxes if b.kind == "residual" and b.frame == 0]
    derivation = jaxviz.derive(layers, *layer_args(8))
    drawn = sum(int(p.detail.split(" × ")[0]) if " × " in p.detail else 1 for p in ports)
    assert drawn == len(derivation.residuals)
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


@pytest.mark.slow
@pytest.mark.sweep
def test_a_large_program_gives_a_picture_that_says_what_is_left_out(without_dot, tmp_path):
    def long(x):
        xs = [x, x]
        for i in range(1700):
            xs.append(jnp.sin(xs[-1 - i * i % 2]) * xs[(i * 7919) % len(xs)] + float(i % 7))
        return xs[-1]

    program = jaxviz.trace(long)(1.0)
    assert len(program.equations) > 5000
    start = time.process_time()
    picture = jaxviz.draw(program)
    svg = picture.svg()
    assert time.process_time() - start < 20
    assert sum(b.kind == "equation" for b in picture.graph.boxes) <= MOST_BOXES
    assert "equations are left out: a picture has at most 800 boxes" in svg
    assert "more equations" in svg
    assert "left out" in str(picture)


def read_svg(text):
    root = ElementTree.fromstring(text)
    for element in root.iter():
        assert element.tag.split("}")[-1] in {"svg", "g", "a", "path", "polygon", "text", "title", "rect"}
        assert not [name for name in element.attrib if name.lower().startswith("on")]
    return root


@pytest.mark.large
@pytest.mark.parametrize("stage", ["primal", "forward+backward"])
def test_nothing_hostile_gets_into_a_picture(stage, without_dot, tmp_path):
    picture = drawing("hostile", stage)
    svg = picture.svg()
    shown = "".join(read_svg(svg).itertext())
    assert "<U+202E>" in shown
    assert "onerror=alert(1)" in shown
    assert not set(svg) & {"\u202e", "\u2066", "\x1b", "\x00"}
    assert len(svg) < 40_000
    assert "…" in shown
    assert picture.save_png(tmp_path / "x.png", dpi=50).read_bytes().startswith(b"\x89PNG")
    assert picture.save_pdf(tmp_path / "x.pdf").read_bytes().startswith(b"%PDF-")
    assert not set(str(picture)) & {"\u202e", "\x1b"}


@pytest.mark.parametrize("stage", ["primal", "forward+backward"])
def test_a_notebook_shows_it_in_the_ink_of_the_page(stage):
    """In light and dark themes: with `dot`, if it is installed, and with our own layout."""
    picture = drawing("small", stage)
    for by_dot in (True, False):
        shown = on_page(picture.svg(by_dot))
        root = ElementTree.fromstring(shown)
        fills = {e.get("fill") for e in root.iter()} - {None}
        assert "currentColor" in fills
        assert not fills & {
            *FILLS.values(),
            *(fill for fill, _, _ in FRAMES.values() if fill != "none"),
            INK,
            PALE,
            "white",
            "black",
        }
        assert all(e.get("id") is None for e in root.iter())
        assert (
            "".join(root.itertext()).split() == "".join(ElementTree.fromstring(picture.svg(by_dot)).itertext()).split()
        )
    assert "<svg" in picture._repr_html_()


def test_source_text_is_left_out_on_request(without_dot):
    shown, hidden = (drawing("small", source=s).svg() for s in (True, False))
    assert "jnp.sum(h + jnp.sin(w))" in shown
    assert "jnp.sum" not in hidden
    assert "<a href" not in hidden


def test_files(tmp_path):
    picture = drawing("cond")
    ElementTree.parse(picture.save_svg(tmp_path / "x.svg"))
    assert picture.save_png(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    if shutil.which("dot"):
        assert "graphviz" in (tmp_path / "x.svg").read_text()


@pytest.mark.large
def test_a_figure_for_a_paper(tmp_path):
    figure = drawing("small", "forward+backward").plot(width=3.4)
    assert figure.get_size_inches()[0] == pytest.approx(3.4)
    words = {text.get_text() for text in figure.axes[0].texts}
    assert {"gradient of small in w", "tanh", "encoder", "residual", "cotangent"} <= words
    path = drawing("cond").save_pdf(tmp_path / "x.pdf")
    assert b"/FontType 42" in path.read_bytes() or b"/Type0" in path.read_bytes()
    assert b"/Type3" not in path.read_bytes()


def test_what_can_be_drawn():
    program = jaxviz.trace(small)(SQUARE, SQUARE)
    same = [edges(jaxviz.draw(x).graph) for x in (program, program.jaxpr, jaxviz.derive(program, argnums=(0, 1)))]
    assert same[0] == same[1] == same[2]
    backward = jaxviz.draw(program, stage="backward", argnums=(0, 1))
    assert {"gradient of w", "gradient of x"} <= {b.title for b in backward.graph.boxes}
    with pytest.raises(TypeError, match="takes no arguments with a Program"):
        jaxviz.draw(program, SQUARE)


def innermost(program):
    """The number of equations drawn as such when everything is open: those without nested programs, and one for each choice of a cond's
    branch."""
    n = 0
    for e in program.equations:
        inside = bodies(e)
        n += sum(innermost(body.program) for body in inside) + (not inside or e.primitive.name == "cond")
    return n


@pytest.mark.parametrize("case", marked(CASES, third=0, each=2), ids=str)
def test_every_program_can_be_drawn_and_each_equation_is_there(case):
    derivation = jaxviz.derive(case.fun, *case.args)
    for stage in ("primal", "forward+backward"):
        picture = derivation.draw(stage, depth=20)
        read_svg(picture.svg(by_dot=False))
        if not any("drawn once" in note for note in picture.graph.notes):
            expected = sum(innermost(getattr(derivation, key)) for key in stage.split("+"))
            assert sum(b.kind == "equation" for b in picture.graph.boxes) == expected
        for depth in (0, 1):
            read_svg(derivation.draw(stage, depth=depth).svg(by_dot=False))


@pytest.mark.parametrize(
    ("path", "is_sideways"),
    [([(0, 0), (0, 9)], False), ([(0, 9), (0, 0)], False), ([(0, 0), (9, 0)], True), ([(9, 0), (0, 0)], True)],
)
def test_an_arrow_s_head_is_at_the_end_of_its_path_and_points_along_it(path, is_sideways):
    tip, *corners = arrow(tuple(path), is_sideways, 1.0)
    (x0, y0), end = path
    assert tip == end
    distance = lambda p: abs(p[0] - x0) if is_sideways else abs(p[1] - y0)
    assert all(0 < distance(p) < distance(tip) for p in corners)
