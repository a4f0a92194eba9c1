"""What types imply, compared with what XLA compiles, on eight devices; and with what JAX prints."""

import gzip
import json
import re
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from explicit_programs import ABSTRACT, MESH, PROGRAMS
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from short_runs import short, short_rows

import jaxviz
from jaxviz.analysis.implied import implied, laid_out
from jaxviz.features.explorer.columns import view_of
from jaxviz.notebook.reports import ProgramText

each = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
some = pytest.mark.parametrize("program", short(PROGRAMS, 3), ids=lambda p: p.name)

SCATTERED = ("product_scattered", "product_with_its_result_split")
"""Each device keeps a part of a sum: XLA for CPU does not make a reduce-scatter of an all-reduce and a slice."""
GATHERED = Counter({("all-gather", ("data",), 4096): 1})
"""Of `result_asked_for_whole`: both passes need all of x on each device, and XLA gathers it once."""


def in_total(rows):
    """How often each collective runs, by kind, axes and bytes on one device."""
    total = Counter()
    for row in rows:
        total[row.kind, row.axes, row.nbytes] += row.count * row.trips
    return total


@cache
def before(program):
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        return jaxviz.collectives(program.function, *program.args(ABSTRACT), argnums=program.argnums, compile=False)


@cache
def compiled(program):
    with jax.set_mesh(MESH):
        return jaxviz.collectives(program.function, *program.args(), argnums=program.argnums)


@pytest.mark.slow
@some
def test_what_types_imply_is_what_is_compiled(program):
    """Kind, axes, bytes and trips, of devices that do not exist and of those that do."""
    wanted, found = in_total(before(program).implied), in_total(compiled(program).compiled)
    assert in_total(compiled(program).implied) == wanted
    if program.name in SCATTERED:
        assert ("reduce-scatter", ("model",), 1024) in wanted
        wanted = Counter(
            {(kind.replace("reduce-scatter", "all-reduce"), *more): n for (kind, *more), n in wanted.items()}
        )
    if program.name == "result_asked_for_whole":
        wanted -= GATHERED
    assert found == wanted
    assert not any("XLA chooses" in note for note in before(program).notes)


WHOLE, DATA, MODEL = P(None, None), P(None, "data"), P(None, "model")
ONE_SIDE_SPLIT = {
    "the other whole": (DATA, WHOLE, WHOLE),
    "the second operand": (WHOLE, P("data", None), WHOLE),
    "over all axes": (P(None, ("data", "model")), WHOLE, WHOLE),
    "rows along the other axis": (P("model", "data"), WHOLE, P("model", None)),
    "columns along the other axis": (DATA, MODEL, MODEL),
    "columns gathered": (DATA, MODEL, WHOLE),
    "result split": (DATA, WHOLE, MODEL),
    "result split over the same axis": (DATA, MODEL, P("data", "model")),
}
SIZES = ((64, 16, 32), (32, 8, 32), (16, 256, 32), (512, 16, 512))
"""Rows, contracted and columns: more bytes, as many and fewer in the sum than in the operand."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "specs"),
    short_rows([(sizes, specs) for sizes in SIZES for specs in ONE_SIDE_SPLIT.values()], 5),
)
def test_an_operand_is_gathered_where_it_alone_is_split_along_the_sum(sizes, specs):
    """XLA sums parts only where that takes fewer bytes, and where each axis splits something."""
    (m, k, n), (left, right, out) = sizes, specs
    with jax.set_mesh(MESH):
        on = lambda shape, spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, spec))
        product = lambda a, b: jnp.einsum("mk,kn->mn", a, b, out_sharding=out)
        report = jaxviz.collectives(product, on((m, k), left), on((k, n), right), argnums=())
    assert report.compiled
    assert in_total(report.implied) == in_total(report.compiled)


@pytest.mark.slow
@each
def test_every_compiled_collective_has_a_cause(program):
    assert compiled(program).explained == 1.0


@pytest.mark.slow
def test_the_sum_of_an_unreduced_gradient_is_at_the_reshard():
    """XLA names that all-reduce after another instruction."""
    (program,) = (p for p in PROGRAMS if p.name == "reduced_weight")
    first = compiled(program).compiled[0]
    assert (first.stage, first.operation, first.what) == ("backward", "reshard", "the cotangent of w")
    assert first.cause.endswith("a sum over `data` that is unreduced, and the program asks for the sum here")
    assert compiled(program).notes[0] == "The types imply these collectives, and no others."


@pytest.mark.slow
def test_each_of_two_unreduced_gradients_of_one_type_is_summed_at_its_own_reshard():
    """XLA sums both in one all-reduce, and names it after other instructions."""

    def loss(up, down, x):
        up = jax.reshard(up, P(None, None, reduced={"data"}))
        down = jax.reshard(down, P(None, None, reduced={"data"}))
        return jnp.mean((jnp.tanh(x @ up) @ down) ** 2)

    with jax.set_mesh(MESH):
        on = lambda shape, *spec: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, P(*spec)))
        weight = on((64, 64), None, None)
        report = jaxviz.collectives(loss, weight, weight, on((128, 64), "data", None), argnums=(0, 1))
    backward = {w.what: w.became for w in report.written if w.stage == "backward" and w.operation == "reshard"}
    assert backward == {"the cotangent of up": ("all-reduce",), "the cotangent of down": ("all-reduce",)}
    equations = [n for c in report.compiled if c.stage == "backward" for n in c.equations]
    assert len(equations) == len(set(equations)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "dtype", "said"),
    [
        (P(None, None), jnp.float32, ""),
        (P(None, None), jnp.bfloat16, "; XLA for this backend exchanges some values in a wider type"),
        (P("data", None), jnp.float32, "; XLA for this backend sums all of what each device then keeps a part of"),
    ],
)
def test_what_the_backend_does_otherwise_is_said(spec, dtype, said):
    """If an axis splits the batch and a dimension that is contracted, the weight is gathered: no axis is unused."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    on = lambda shape, spec: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
    loss = lambda w, x: jnp.sum(jnp.tanh(jnp.einsum("bd,df->bf", x, w, out_sharding=P("data", None))))
    with jax.set_mesh(mesh):
        report = jaxviz.collectives(loss, on((64, 32), spec), on((16, 64), P("data", None)))
    assert report.notes[0] == f"The types imply these collectives, and no others{said}."


# --- where XLA chooses ------------------------------------------------------------------------------------------------

CHOSEN = {
    "a split dimension is split over another axis": lambda x: jax.reshard(x, P("model", None)),
    "two dimensions change their axes": lambda x: jax.reshard(jax.reshard(x, P("data", "model")), P("model", "data")),
    "a slice along a split dimension": lambda x: x[:8],
    "a concatenation along a split dimension": lambda x: jnp.concatenate([x, x]),
    "reversed along a split dimension": lambda x: x[::-1],
    "a library's routine": lambda x: jax.lax.top_k(x, 2)[0],
    "rows of a table that is split along them": lambda x: x.at[jnp.arange(4)].get(out_sharding=P(None, None)),
    "both operands are split over one axis": lambda x: jnp.einsum(
        "bd,df->bf", x, jax.reshard(x.T, P("data", None)), out_sharding=P("data", None)
    ),
}


@pytest.mark.parametrize("function", CHOSEN.values(), ids=CHOSEN)
def test_what_the_types_do_not_say_is_said(function):
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(ABSTRACT, P("data", None)))
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        report = jaxviz.collectives(function, x, argnums=(), compile=False)
    assert [(c.kind, c.nbytes) for c in report.implied if not c.kind]
    assert "since XLA chooses" in report.notes[0]
    assert "?" in str(report)


@pytest.mark.slow(sweep=True)
@pytest.mark.parametrize("function", CHOSEN.values(), ids=CHOSEN)
def test_what_xla_chooses_there_follows_from_no_type(function):
    """Parts are permuted, exchanged once or twice, or gathered: XLA has a way of its own for each, in kind and bytes,
    and none is said before it compiles."""
    with jax.set_mesh(MESH):
        x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(MESH, P("data", None)))
        report = jaxviz.collectives(function, x, argnums=())
    assert report.compiled
    known = in_total(c for c in report.implied if c.kind)
    assert in_total(report.compiled) - known


def test_nothing_is_said_about_auto_axes():
    mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(mesh, P("data", None)))
    with jax.sharding.use_abstract_mesh(mesh):
        report = jaxviz.collectives(lambda x: jnp.sum(x @ x.T), x, compile=False)
    assert report.implied == ()
    assert report.notes[0].startswith("The types say nothing about what is exchanged along `data`")


# --- types as text ----------------------------------------------------------------------------------------------------

VARIABLE = re.compile(r"\b([a-z]+):([a-z0-9]+(?:<\w+>)?\[[^\]]*\](?:\{[^}]*\})?)")
"""A variable where it is bound, with its type, in JAX's text."""


@pytest.mark.slow
@some
def test_types_are_printed_as_in_jax(program):
    """In the program, and in the explorer, from whose columns every pane takes its types."""
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        args = program.args(ABSTRACT)
        assert str(jaxviz.trace(program.function)(*args)) == str(jax.make_jaxpr(program.function)(*args))
        derived = jaxviz.derive(program.function, *args)
        view = view_of(derived)
    stages = [getattr(derived, stage.key) for stage in view.stages]
    printed = {text for stage in stages for _, text in VARIABLE.findall(" ".join(str(stage.jaxpr).split()))}
    texts = [view.strings[i] for i in view.columns["type_text"]]
    assert {texts[i] for i in view.columns["variable_type"]} == printed


def test_the_kinds_of_types_are_there():
    """The programs have values split, unreduced, reduced, varying along an axis, and in another memory."""
    texts = set()
    for program in PROGRAMS:
        with jax.sharding.use_abstract_mesh(ABSTRACT):
            derived = jaxviz.derive(program.function, *program.args(ABSTRACT))
            texts.update(VARIABLE.findall(" ".join(f"{derived.forward} {derived.backward}".split())))
    types = {text for _, text in texts}
    assert types >= {
        "f32[16@data,64@model]", "f32[16@(data,model),64]", "f32[16@data,32]{U:model}", "f32[64,32]{R:data}",
        "f32[8,64]{V:data}", "f32<host>[16@data,64]",
    }  # fmt: skip


def test_a_value_that_is_not_placed_is_on_every_device():
    """The type of an argument that is not on the mesh names no mesh."""
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(ABSTRACT, P(None, "data")))
    program = jaxviz.trace(lambda w, x: x @ w)(jnp.ones((64, 32)), x)
    found = [(e.primitive.name, i.kind, i.nbytes) for e in program.equations for i in implied(e.operation)]
    assert found == [("dot_general", "all-gather", 16 * 64 * 4)]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (P("data", "model"), 16 * 64 * 4 // 8),
        (P(("data", "model"), None), 16 * 64 * 4 // 8),
        (P("data", None, unreduced={"model"}), 16 * 64 * 4 // 2),
        (P("data", None, reduced={"model"}), 16 * 64 * 4 // 2),
        (P(None, None, unreduced={"data", "model"}), 16 * 64 * 4),
    ],
)
def test_bytes_on_one_device(spec, wanted):
    """A part of a sum is as large as the sum."""
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(ABSTRACT, spec))
    with jax.sharding.use_abstract_mesh(ABSTRACT):
        aval = jaxviz.trace(lambda x: x)(x).in_avals[0]
    assert laid_out(aval).nbytes == wanted


def test_exchanges_are_shown_at_their_equations():
    """In `%jaxpr`, in the stepper and in the explorer, before anything is compiled."""
    (program,) = (p for p in PROGRAMS if p.name == "reduced_weight")
    with jax.set_mesh(MESH):
        args = [jax.device_put(jnp.ones(a.shape), a.sharding) for a in program.args()]
        derived = jaxviz.derive(program.function, *args)
        stepper = jaxviz.step(program.function, *args).run(primitive="reduce_sum")
        view = view_of(derived)
    text = repr(ProgramText((("", derived.backward),)))
    said = "all-reduce over `data` of 8.0 KiB, as the types imply: each device has a part of"
    assert re.search(rf"what devices exchange:\n- [a-z] = reshard: {said} `[a-z]`", text)
    rows = [view.strings[view.columns["equation_primitive"][row]] for row in view.columns["implied_rows"]]
    texts = [view.strings[i] for i in view.columns["implied_texts"]]
    assert set(rows) == {"reduce_sum", "reshard"}
    assert any(t.startswith(said) for t in texts)
    assert "all-reduce over `data` of 4 B, as the types imply" in str(stepper)
    made = json.loads(gzip.decompress(stepper.widget().payload))
    marked = {row["p"] for program in made["programs"] for row in program["rows"] if "x" in row}
    assert marked == {"reduce_sum", "reshard"}
