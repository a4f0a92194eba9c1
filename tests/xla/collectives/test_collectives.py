"""Communication between devices, compared with the text of XLA's compiled program."""

import _thread
import itertools
import math
import re
import threading
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collective_programs import PROGRAMS, data_parallel, fsdp, on_data, shape, within
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxviz
from jaxviz.analysis.lowering import lower_gradient, lower_step
from jaxviz.analysis.training_step import subject_of
from jaxviz.xla.collectives import compiling
from jaxviz.xla.collectives.compiling import partitioned
from jaxviz.xla.collectives.groups import groups_of
from jaxviz.xla.compiled_memory.messages import message

pytestmark = pytest.mark.values
each = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)

_BYTES = {"f32": 4, "s32": 4, "bf16": 2, "pred": 1, "u32": 4}
_LINE = re.compile(
    r"%?(?P<name>\S+) = (?P<type>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
"""A collective in the text of a program, synchronous or asynchronous."""


@cache
def report_of(program):
    with within(program):
        return jaxviz.collectives(program, *PROGRAMS[program])


@cache
def text_of(program):
    """The optimized program as printed by XLA, compiled like JAX compiles it."""
    with within(program):
        lowering = lowering_of(program)
        return lowering.lowered.compile().as_text()


def lowering_of(program):
    derivation = subject_of(program, PROGRAMS[program], {}, 0)
    step = derivation.step
    return lower_gradient(derivation) if step is None else lower_step(step, step.opened())


def printed(program):
    """The name, kind and result bytes of each collective that XLA prints."""
    for line in text_of(program).splitlines():
        found = _LINE.match(line.strip().removeprefix("ROOT "))
        if found:
            shapes = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", found["type"])
            nbytes = sum(_BYTES[t] * math.prod(int(n) for n in dims.split(",") if n) for t, dims in shapes)
            yield found["name"], found["kind"], nbytes


@each
def test_every_collective_that_xla_prints_is_in_the_report(program):
    report = report_of(program)
    expected = sorted((name, kind) for name, kind, _ in printed(program))
    found = sorted({(name, c.kind) for c in report.compiled for name in c.instructions})
    assert found == expected
    assert expected


@each
def test_bytes_are_those_of_the_shapes_that_xla_prints(program):
    of_instruction = {}
    for c in report_of(program).compiled:
        for name in c.instructions:
            of_instruction[name] = of_instruction.get(name, 0) + c.nbytes
    assert of_instruction == {name: nbytes for name, kind, nbytes in printed(program)}


@each
def test_every_collective_has_its_line_and_almost_all_bytes_a_cause(program):
    report = report_of(program)
    assert all(c.location is not None and c.location.file.endswith("collective_programs.py") for c in report.compiled)
    assert report.explained >= 0.95
    assert report.explained == pytest.approx(
        sum(c.total_nbytes for c in report.compiled if c.cause) / sum(c.total_nbytes for c in report.compiled)
    )


@each
def test_every_collective_is_along_axes_of_the_mesh(program):
    report = report_of(program)
    for c in report.compiled:
        assert c.axes
        assert c.group_size == math.prod(report.mesh[a] for a in c.axes)
        assert c.stage in ("forward", "backward") or program.__name__ == "training_step"


@each
def test_the_groups_of_the_message_are_those_of_the_text(program):
    """XLA writes groups in three forms; JAX's own parser converts each of them to lists."""
    with within(program):
        made = partitioned(lowering_of(program))
    read = message("Module", made.module)
    for c in read.computations:
        for i in c.instructions:
            if i.opcode in ("all-reduce", "all-gather", "all-to-all"):
                groups = groups_of(i, 8)
                assert sorted(d for group in groups for d in group) == list(range(8))
                assert len({len(group) for group in groups}) == 1


def test_the_trips_are_those_of_the_scan():
    report = report_of(fsdp)
    assert {(c.kind, c.stage): c.trips for c in report.compiled} == {
        ("all-gather", "forward"): 6, ("all-gather", "backward"): 6, ("all-reduce", "backward"): 6, ("all-reduce", "forward"): 1,
    }  # fmt: skip


def test_the_cause_says_who_is_replicated_and_who_is_split():
    causes = {c.cause: c for c in report_of(data_parallel).compiled}
    first = "`params['w1']` is replicated over `data`, `x` is split over it: `params['w1']`'s cotangent is summed"
    assert causes[first].kind == "all-reduce"
    assert causes[first].nbytes == 64 * 128 * 4
    assert causes[first].sent_nbytes == 2 * 64 * 128 * 4 * 7 // 8
    assert any("`params['b1']`'s cotangent" in cause for cause in causes)


def test_the_summary_and_the_table_say_it():
    report = report_of(data_parallel)
    assert report.summary.startswith("gradient of `data_parallel` in `params` on 8 devices (data=8), compiled on cpu:")
    text = str(report)
    assert "collective_programs.py:" in text
    assert "100.0% of the bytes have a known cause" in text
    assert (
        jaxviz.collectives(jnp.sin, 1.0).summary
        == "gradient of `sin` in `x` on 1 device, compiled on cpu: no collectives"
    )


def test_the_collectives_of_the_program_itself_are_linked_to_what_became_of_them():
    program = next(f for f in PROGRAMS if f.__name__ == "pipeline")
    written = {(w.operation, w.stage): w for w in report_of(program).written}
    forward, backward = written["ppermute", "forward"], written["ppermute", "backward"]
    assert (forward.trips, backward.trips) == (11, 11)
    assert forward.became == backward.became == ("collective-permute",)
    assert (forward.is_transpose, backward.is_transpose) == (False, True)
    assert forward.axes == ("stage",)


def test_what_is_compiled_is_kept_by_program_and_flags(monkeypatch):
    derivation = jaxviz.derive(data_parallel, *PROGRAMS[data_parallel])
    first = partitioned(lower_gradient(derivation))
    assert partitioned(lower_gradient(derivation)) is first
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8 ")
    assert partitioned(lower_gradient(derivation)) is not first
    jaxviz.clear_caches()
    monkeypatch.undo()
    assert partitioned(lower_gradient(derivation)) is not first


def test_compiling_can_be_stopped_and_what_it_made_is_kept(monkeypatch):
    """The user interrupts while XLA compiles: the call ends, and after XLA has finished the next call uses the result."""
    jaxviz.clear_caches()
    lowering = lower_gradient(jaxviz.derive(data_parallel, *PROGRAMS[data_parallel]))
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    compile_ = compiling._compile

    def slow(given):
        began.set()
        may_end.wait(30)
        try:
            return compile_(given)
        finally:
            ended.set()

    monkeypatch.setattr(compiling, "_compile", slow)
    threading.Thread(target=lambda: (began.wait(30), _thread.interrupt_main())).start()
    with pytest.raises(KeyboardInterrupt):
        partitioned(lowering)
    may_end.set()
    assert ended.wait(60)
    monkeypatch.setattr(compiling, "_compile", None)
    assert partitioned(lowering).module


def test_groups_in_all_their_forms():
    """Compared with the lists in XLA's own text, for every set of axes of meshes of several shapes."""
    for sizes in ((8,), (2, 4), (4, 2), (2, 2, 2)):
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(sizes), tuple("abc"[: len(sizes)]))
        for n in range(1, len(sizes) + 1):
            for axes in itertools.combinations(mesh.axis_names, n):
                body = jax.shard_map(
                    lambda x, axes=axes: lax.psum(x, axes),
                    mesh=mesh,
                    in_specs=P(mesh.axis_names),
                    out_specs=P(tuple(a for a in mesh.axis_names if a not in axes) or None),
                )
                report = jaxviz.collectives(
                    lambda x, body=body: jnp.sum(body(x)), shape(16, mesh=mesh, spec=(mesh.axis_names,)), argnums=()
                )
                summed = [c for c in report.compiled if "is called here" in c.cause]
                assert [set(c.axes) for c in summed] == [set(axes)]


def test_devices_that_are_not_in_order():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8])[[3, 1, 0, 2, 7, 5, 4, 6]].reshape(2, 4), ("data", "model"))
    x, w = shape(16, 8, mesh=mesh, spec=("data", "model")), shape(8, 4, mesh=mesh, spec=("model",))
    report = jaxviz.collectives(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), w, x)
    assert {c.axes for c in report.compiled} == {("model",), ("data",)}
    assert report.explained == 1


def test_errors_say_what_to_do():
    abstract = NamedSharding(AbstractMesh((8,), ("data",)), P("data"))
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=abstract)
    with pytest.raises(
        ValueError, match=r"x has a sharding over an AbstractMesh, which has no devices to compile for: use"
    ):
        jaxviz.collectives(lambda x: jnp.sum(x), x)
    with pytest.raises(
        TypeError,
        match=r"a jax.stages.Compiled does not have .* call jaxviz.collectives\(f, \*args\) with the function",
    ):
        jaxviz.collectives(jax.jit(jnp.sin).lower(1.0).compile())


def test_what_xla_does_not_show_is_said(monkeypatch):
    """If a backend does not provide the partitioned program, causes come from Shardy's shardings, and the report says so."""
    jaxviz.clear_caches()
    monkeypatch.setattr(compiling, "_before", lambda _: None)
    report = jaxviz.collectives(data_parallel, *PROGRAMS[data_parallel])
    monkeypatch.undo()
    jaxviz.clear_caches()
    assert "XLA on cpu does not expose the program that it partitions" in str(report)
    assert [c.cause for c in report.compiled] == [c.cause for c in report_of(data_parallel).compiled]


def test_an_argument_without_a_layout_is_replicated_though_nobody_asked():
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    report = jaxviz.collectives(lambda w, x: jnp.sum(jnp.tanh(x @ w)), w, on_data(256, 64, spec=("data",)))
    (found,) = report.replicated
    assert (found.what, found.nbytes, found.split_nbytes, found.axes) == ("w", 64 * 64 * 4, 64 * 64 * 4 // 8, ("data",))
    assert found.why == "this argument has no sharding"
    assert not report_of(data_parallel).replicated


def test_what_is_replicated_of_each_layer_is_one_row():
    layer = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def loss(layers, x):
        for w in layers:
            x = jnp.tanh(x @ w["w"])
        return jnp.sum(x)

    report = jaxviz.collectives(loss, [{"w": layer}] * 3, on_data(256, 64, spec=("data",)))
    assert [r.what for r in report.replicated] == [f"layers[{i}]['w']" for i in range(3)]
    shown = " ".join(str(report).split())
    assert "3 × f32[64,64] 48.0 KiB 6.0 KiB data" in shown
    assert "`layers[0…2]['w']`: this argument has no sharding" in shown


def test_what_a_cause_names_has_the_bytes_that_are_exchanged():
    """A gradient that is summed is as large as the argument in the cause."""
    params, *_ = PROGRAMS[data_parallel]
    for name, x in params.items():
        (summed,) = [
            c for c in report_of(data_parallel).compiled if f"`params['{name}']`'s cotangent is summed" in c.cause
        ]
        assert summed.nbytes == x.size * x.dtype.itemsize


def test_without_shardy_the_axes_are_known_and_no_cause_is_guessed(capfd):
    """With XLA's older partitioner, which JAX can still use."""
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        report = jaxviz.collectives(data_parallel, *PROGRAMS[data_parallel])
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)
    assert {c.axes for c in report.compiled} == {("data",)}
    assert [c.cause for c in report.compiled] == [""] * len(report.compiled)
    assert report.replicated == ()
    assert "no cause found" in str(report)
    assert "jax_use_shardy_partitioner is off" in str(report)
    assert sum(c.nbytes for c in report.compiled) == sum(c.nbytes for c in report_of(data_parallel).compiled)
