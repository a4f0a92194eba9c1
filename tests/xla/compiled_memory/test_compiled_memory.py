"""The memory of compiled programs: XLA's own figures, with every byte attributed to a value."""

import json
import shutil
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import (
    LAYERS,
    PROGRAMS,
    STACK,
    STEPS,
    W,
    X,
    attention,
    convolutions,
    divided,
    named,
    scanned,
    training_step,
    unrolled,
)

import jaxviz
from jaxviz.xla.compiled_memory import compiled_program
from jaxviz.xla.compiled_memory.attribution import KINDS, OWN
from jaxviz.xla.compiled_memory.messages import DecodeError, message
from jaxviz.xla.compiled_memory.places import Places


def of_jax(f, args):
    """XLA's figures for the program that JAX itself compiles."""
    jitted = f if f in STEPS else jax.jit(jax.value_and_grad(f))
    return jitted.lower(*args).compile().memory_analysis()


def bytes_of(report, kind):
    return {h.what: h.nbytes for h in report.at_peak if h.kind == kind}


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_the_bytes_are_those_of_xla_and_have_lines(f):
    args = PROGRAMS[f]
    report, xla = jaxviz.compiled_memory(f, *args), of_jax(f, args)
    # JAX 0.12 orders some equations of a loop differently.
    assert report.temp_nbytes == pytest.approx(xla.temp_size_in_bytes, rel=0.02)
    assert report.argument_nbytes == xla.argument_size_in_bytes
    assert report.result_nbytes == xla.output_size_in_bytes - xla.alias_size_in_bytes
    assert sum(h.nbytes for h in report.temporaries) == report.temp_nbytes
    assert report.attributed >= 0.95
    in_use = sum(h.nbytes for h in report.temporaries if h.kind != "unused")
    assert in_use >= 0.98 * report.temp_nbytes
    assert report.peak_nbytes == sum(h.nbytes for h in report.at_peak if h.kind != "unused")
    assert max(sum(m.nbytes) for m in report.timeline) == in_use


@pytest.mark.slow
@pytest.mark.parametrize("scan", [True, False], ids=["scanned", "unrolled"])
def test_a_group_that_is_no_longer_saved_takes_exactly_its_bytes_along(scan):
    found = {}
    for saved in ("ab", "a"):
        loss, ws = named(saved, scan)
        found[saved] = jaxviz.compiled_memory(loss, ws, X), jaxviz.residuals(loss, ws, X)
    (with_b, kept), (without, _) = found["ab"], found["a"]
    (b,) = (g for g in kept.groups if g.label.startswith("checkpoint_name 'b'"))
    before, after = bytes_of(with_b, "residual"), bytes_of(without, "residual")
    gone = set(before) - set(after)
    assert gone == {b.label}
    assert before[b.label] == b.nbytes
    assert {what: n for what, n in before.items() if what not in gone} == after


@pytest.mark.slow
def test_what_xla_merged_with_the_forward_pass_is_said():
    loss, ws = named("", scan=False)
    plain, _ = named("abc", scan=False)
    report, saved = jaxviz.compiled_memory(loss, ws, X), jaxviz.compiled_memory(plain, ws, X)
    merged = sum(bytes_of(report, "merged").values())
    if report.temp_nbytes == saved.temp_nbytes:  # as XLA does with JAX 0.10
        assert merged >= 3 * 5 * X.size * 4
    else:
        assert not merged
        assert sum(bytes_of(report, "recomputed").values()) > 0


def test_what_a_loop_stacks_is_the_residual_that_it_is():
    report, kept = jaxviz.compiled_memory(scanned, STACK, X), jaxviz.residuals(scanned, STACK, X)
    stacks = {g.label.rpartition(" = ")[2]: g for g in kept.groups if g.residuals[0].lengths}
    assert len(stacks) >= 4
    rows = {h.what: h for h in report.at_peak if h.kind == "residual"}
    for label, group in stacks.items():
        assert (rows[label].nbytes, rows[label].location) == (group.nbytes, group.location)
        assert group.residuals[0].why == rows[label].why
    assert any(h.kind == "copy" and h.what.startswith("a slice of") for h in report.at_peak)


def test_a_chain_counted_by_hand():
    """`x @ w` is kept for its cosine."""
    report = jaxviz.compiled_memory(lambda w, x: jnp.sum(jnp.sin(x @ w)), W, X)
    of_x, of_w = 256 * 64 * 4, 64 * 64 * 4
    held = [(h.nbytes, h.location.file) for h in report.temporaries]
    assert held in ([(of_x, __file__)], [(of_x, __file__)] * 2)  # its sine is summed as it is computed, or beside
    results = of_w + 4 + 2 * 8  # the gradient, the value, and the table of pointers to them
    assert (report.argument_nbytes, report.result_nbytes) == (of_x + of_w, results)
    assert report.peak_nbytes == report.reserved_nbytes == len(held) * of_x + (of_x + of_w) + results


@pytest.mark.parametrize("f", [unrolled, attention, convolutions], ids=lambda f: f.__name__)
def test_no_residual_has_more_bytes_than_it_is(f):
    """Intermediate buffers of XLA, such as a broadcast for a quotient, are XLA's own."""
    report, kept = jaxviz.compiled_memory(f, *PROGRAMS[f]), jaxviz.residuals(f, *PROGRAMS[f])
    sizes, held = Counter(), Counter()
    for group in kept.groups:
        sizes[group.label.rpartition(" = ")[2]] += group.nbytes
    for row in report.at_peak:
        held[row.what] += row.nbytes * (row.kind == "residual")
    assert held.total() > 0
    assert held <= sizes


def test_a_donated_argument_holds_the_result():
    report = jaxviz.compiled_memory(training_step, *PROGRAMS[training_step])
    arguments = {h.what: h.why for h in report.at_peak if h.kind == "argument"}
    assert arguments["w"] == "donated: result 0 reuses its memory"
    assert arguments["x"] == ""
    assert report.reused_nbytes == 2 * 64 * 64 * 4
    assert "training step" in report.summary


def test_bytes_are_those_of_one_device():
    report = jaxviz.compiled_memory(divided, *PROGRAMS[divided])
    (x,) = (h for h in report.at_peak if h.kind == "argument" and h.what == "x")
    assert (report.n_devices, x.nbytes, x.type) == (8, 256 * 64 * 4 // 8, "f32[32,64]")
    assert "on each of 8 devices" in report.summary


def test_a_function_without_a_gradient():
    report = jaxviz.compiled_memory(divided, W, X, argnums=())
    assert {h.kind for h in report.temporaries} <= {"temporary", *OWN}
    assert "function `divided`" in report.summary


def test_as_a_report():
    report = jaxviz.compiled_memory(unrolled, LAYERS, X)
    text = str(report)
    assert text.startswith("compiled gradient of `unrolled` in `ws` on cpu: peak ")
    assert "100.0% of the temporaries have a line" in " ".join(text.split())
    assert "jnp.tanh(h @ w)" in text
    assert "tanh's derivative multiplies the tangent by it" in " ".join(text.split())
    assert "<svg" in report._repr_html_()
    data = json.loads(json.dumps(report.to_dict()))
    assert data["peak_nbytes"] == report.peak_nbytes
    assert data["kinds"] == list(KINDS)
    assert report.plot().axes[0].get_title(loc="left") == f"bytes alive in the compiled {report.about}"
    assert sum(report.by_kind().values()) == sum(h.nbytes for h in report.at_peak)


def test_what_is_not_known_is_not_guessed(monkeypatch):
    monkeypatch.setattr(Places, "numbers", lambda self, instruction: ())
    report = jaxviz.compiled_memory(unrolled, LAYERS, X)
    assert report.attributed == 0.0
    assert {h.kind for h in report.temporaries} == {"not attributed"}
    assert "not attributed" in report.summary


@pytest.mark.parametrize("program", [unrolled, training_step], ids=lambda f: f.__name__)
def test_a_backend_that_does_not_say_dumps_it(program, monkeypatch):
    """As on a GPU: the program is compiled with a dump, and what it says is the same."""
    args = PROGRAMS[program]
    expected = jaxviz.compiled_memory(program, *args)
    monkeypatch.setattr(compiled_program, "serialized_assignment", lambda stats: b"")
    monkeypatch.setattr(compiled_program, "_silent", set())
    assert jaxviz.compiled_memory(program, *args).to_dict() == expected.to_dict()
    assert compiled_program._silent == {"cpu"}
    jaxviz.clear_caches()
    assert jaxviz.compiled_memory(program, *args).to_dict() == expected.to_dict()  # compiled only once this time


def test_a_compiled_program_of_a_backend_that_does_not_say(monkeypatch):
    lowered = jax.jit(jax.grad(unrolled)).lower(LAYERS, X)
    expected = jaxviz.compiled_memory(lowered)
    monkeypatch.setattr(compiled_program, "serialized_assignment", lambda stats: b"")
    monkeypatch.setattr(compiled_program, "_silent", set())
    with pytest.raises(ValueError, match=r"cpu does not report where .*; give .* the result of jax\.jit\(f\)\.lower"):
        jaxviz.compiled_memory(lowered.compile())
    assert jaxviz.compiled_memory(lowered).to_dict() == expected.to_dict()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    jaxviz.clear_caches()
    with pytest.raises(ValueError, match="No temporary folder has room for the program that XLA writes"):
        jaxviz.compiled_memory(lowered)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr(compiled_program, "DUMPED", "nothing.pb")
    jaxviz.clear_caches()
    with pytest.raises(ValueError, match="cpu neither reports nor dumps where"):
        jaxviz.compiled_memory(lowered)


def test_messages_that_are_none():
    with pytest.raises(DecodeError):
        message("Module", b"\xff\xff\xff")


def test_what_xla_holds_in_another_type_is_said():
    """On a CPU, XLA computes bfloat16 in float32, and may store it that way."""
    ws, x = jax.ShapeDtypeStruct((4, 64, 64), jnp.bfloat16), jax.ShapeDtypeStruct((256, 64), jnp.bfloat16)
    report = jaxviz.compiled_memory(scanned, ws, x)
    kept = {
        g.label.rpartition(" = ")[2].removesuffix(", carried"): g.nbytes
        for g in jaxviz.residuals(scanned, ws, x).groups
    }
    otherwise = [h for h in (*report.at_peak, *report.values) if "XLA holds it as " in h.why]
    assert all(h.kind == "fusion" and h.type.startswith(h.why.split()[-1]) for h in otherwise)
    saved = {h.what for h in otherwise if h.why.startswith("the gradient saves it, and ")}
    assert saved <= {f"convert of {label}" for label in kept}
    # Each residual is stored as it is, or in another type.
    held = {h.what.removeprefix("convert of ").removesuffix(", carried") for h in (*report.at_peak, *report.values)}
    assert {label for label, size in kept.items() if size >= 4 * 256 * 64 * 2} <= held
