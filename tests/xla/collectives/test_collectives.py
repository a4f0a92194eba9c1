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
import transcripts
from collective_programs import PROGRAMS, data_parallel, on_data, shape, within
from jax import lax
from jax.sharding import PartitionSpec as P
from short_runs import short

import jaxviz
from jaxviz.analysis.lowering import lower_gradient, lower_step
from jaxviz.analysis.training_step import subject_of
from jaxviz.xla.collectives import compiling
from jaxviz.xla.collectives.compiling import partitioned
from jaxviz.xla.collectives.exchanges import groups_of
from jaxviz.xla.compiled_memory.messages import message

pytestmark = pytest.mark.slow
each = pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
some = pytest.mark.parametrize("program", short(PROGRAMS, 2), ids=lambda f: f.__name__)

_BYTES = {"f32": 4, "s32": 4, "bf16": 2, "pred": 1, "u32": 4}
_LINE = re.compile(
    r"%?(?P<name>\S+) = (?P<type>.*?) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
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


@some
def test_every_collective_that_xla_prints_is_in_the_report_with_its_bytes(program):
    found, kinds = {}, {}
    for c in report_of(program).compiled:
        for name in c.instructions:
            found[name] = found.get(name, 0) + c.nbytes
            kinds[name] = c.kind
    expected = list(printed(program))
    assert expected
    assert found == {name: nbytes for name, _, nbytes in expected}
    assert kinds == {name: kind for name, kind, _ in expected}


@each
def test_every_collective_has_its_line_its_axes_and_almost_always_a_cause(program):
    report = report_of(program)
    assert report.explained >= 0.95
    assert report.explained == pytest.approx(
        sum(c.total_nbytes for c in report.compiled if c.cause) / sum(c.total_nbytes for c in report.compiled)
    )
    for c in report.compiled:
        assert c.location.file.endswith("collective_programs.py")
        assert c.axes
        assert c.group_size == math.prod(report.mesh[a] for a in c.axes)
        assert c.stage in ("forward", "backward") or program.__name__ == "training_step"


@transcripts.of("collectives")
def test_transcripts(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@some
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
    """The user interrupts while XLA compiles: the call ends, and after XLA has finished the next call uses the
    result."""
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


def test_what_xla_does_not_show_is_said(monkeypatch):
    """If a backend does not provide the partitioned program, causes come from Shardy, and the report says so."""
    jaxviz.clear_caches()
    monkeypatch.setattr(compiling, "_before", lambda _: None)
    report = jaxviz.collectives(data_parallel, *PROGRAMS[data_parallel])
    monkeypatch.undo()
    jaxviz.clear_caches()
    assert "XLA on cpu does not expose the program that it partitions" in str(report)
    assert [c.cause for c in report.compiled] == [c.cause for c in report_of(data_parallel).compiled]


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


def test_a_sum_that_xla_combines_with_a_smaller_one_stays_on_its_own_line():
    def loss(w, x):
        scores = x @ w
        high = jnp.sort(scores, axis=0)
        return jnp.mean(high[-8:]) + jnp.mean(jax.nn.logsumexp(scores, axis=1) - jnp.diagonal(scores))

    found = jaxviz.collectives(loss, jax.ShapeDtypeStruct((32, 256), "float32"), on_data(256, 32, spec=("data",)))
    sorted_at = loss.__code__.co_firstlineno + 2
    summed = [c for c in found.compiled if c.kind == "all-reduce" and c.location is not None]
    largest = max(summed, key=lambda c: c.sent_nbytes)
    assert (largest.location.line, largest.stage) == (sorted_at, "backward")
