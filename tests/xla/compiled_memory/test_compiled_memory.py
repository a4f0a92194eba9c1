"""The memory of compiled programs: XLA's own figures, with every byte attributed to a value."""

import shutil
from collections import Counter
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import PROGRAMS, W, X, compiled, divided, lowered, named, scanned
from short_runs import short

import jaxviz
from jaxviz.features.residuals.residual import CARRIED
from jaxviz.xla.compiled_memory import compiled_program
from jaxviz.xla.compiled_memory.attribution import KINDS, OWN
from jaxviz.xla.compiled_memory.messages import DecodeError, message
from jaxviz.xla.compiled_memory.places import Places


def bytes_of(report, kind):
    return {h.what: h.nbytes for h in report.at_peak if h.kind == kind}


@pytest.mark.slow
@pytest.mark.parametrize("has_function", [True, False], ids=["its function", "what is lowered"])
@pytest.mark.parametrize("name", short(list(PROGRAMS), 2))
def test_the_bytes_are_those_of_xla_and_have_lines(name, has_function):
    stage = lowered(name)
    report = compiled(name) if has_function else jaxviz.compiled_memory(stage)
    xla = stage.compile().memory_analysis()
    # JAX 0.12 orders some equations of a loop differently.
    assert report.temp_nbytes == pytest.approx(xla.temp_size_in_bytes, rel=0.02 * has_function)
    assert report.argument_nbytes == xla.argument_size_in_bytes
    assert report.result_nbytes == xla.output_size_in_bytes - xla.alias_size_in_bytes
    assert sum(h.nbytes for h in report.temporaries) == report.temp_nbytes
    assert report.attributed >= 0.95
    assert report.function == name
    in_use = sum(h.nbytes for h in report.temporaries if h.kind != "unused")
    assert in_use >= 0.98 * report.temp_nbytes
    assert report.peak_nbytes == sum(h.nbytes for h in report.at_peak if h.kind != "unused")
    assert max(sum(m.nbytes) for m in report.timeline) == in_use


@pytest.mark.slow
@pytest.mark.parametrize("scan", [True, False], ids=["scanned", "unrolled"])
def test_a_group_that_is_no_longer_saved_takes_exactly_its_bytes_along(scan):
    (b,) = (g for g in jaxviz.residuals(*named("ab", scan)).groups if g.label.startswith("checkpoint_name 'b'"))
    before, after = (bytes_of(jaxviz.compiled_memory(*named(saved, scan)), "residual") for saved in ("ab", "a"))
    assert before == {b.label: b.nbytes} | after
    assert b.label not in after


@pytest.mark.slow
def test_what_xla_merged_with_the_forward_pass_is_said():
    report, saved = (jaxviz.compiled_memory(*named(names, scan=False)) for names in ("", "abc"))
    merged = sum(bytes_of(report, "merged").values())
    if report.temp_nbytes == saved.temp_nbytes:  # as XLA does with JAX 0.10
        assert merged >= 3 * 5 * X.size * 4
    else:
        assert not merged
        assert sum(bytes_of(report, "recomputed").values()) > 0


def test_what_a_loop_stacks_is_the_residual_that_it_is():
    report = compiled("scanned")
    groups = jaxviz.residuals(*PROGRAMS["scanned"]).groups
    stacks = {g.label.rpartition(" = ")[2]: g for g in groups if g.residuals[0].lengths}
    assert len(stacks) >= 4
    rows = {h.what: h for h in report.at_peak if h.kind == "residual"}
    for label, group in stacks.items():
        row = rows[label]
        assert (row.nbytes, row.location, row.why) == (group.nbytes, group.location, group.residuals[0].why)
    assert any(h.kind == "copy" and h.what.startswith("a slice of") for h in report.at_peak)


def test_a_chain_counted_by_hand():
    """`x @ w` is saved for its cosine."""
    report = jaxviz.compiled_memory(lambda w, x: jnp.sum(jnp.sin(x @ w)), W, X)
    of_x, of_w = 256 * 64 * 4, 64 * 64 * 4
    rows = [(h.nbytes, h.location.file) for h in report.temporaries]
    assert rows in ([(of_x, __file__)], [(of_x, __file__)] * 2)  # its sine is summed as it is computed, or beside
    results = of_w + 4 + 2 * 8  # the gradient, the value, and the table of pointers to them
    assert (report.argument_nbytes, report.result_nbytes) == (of_x + of_w, results)
    assert report.peak_nbytes == report.reserved_nbytes == len(rows) * of_x + (of_x + of_w) + results


@pytest.mark.parametrize("name", ["unrolled", "attention", "convolutions"])
def test_no_residual_has_more_bytes_than_it_is(name):
    """Intermediate buffers of XLA, such as a broadcast for a quotient, are XLA's own."""
    sizes, in_memory = Counter(), Counter()
    for group in jaxviz.residuals(*PROGRAMS[name]).groups:
        sizes[group.label.rpartition(" = ")[2]] += group.nbytes
    for row in compiled(name).at_peak:
        in_memory[row.what] += row.nbytes * (row.kind == "residual")
    assert in_memory.total() > 0
    assert in_memory <= sizes


def test_a_donated_argument_holds_the_result():
    report = compiled("training_step")
    arguments = {h.what: h.why for h in report.at_peak if h.kind == "argument"}
    assert (arguments["w"], arguments["x"]) == ("donated: result 0 reuses its memory", "")
    assert report.reused_nbytes == 2 * 64 * 64 * 4
    assert "training step" in report.summary


def test_bytes_are_those_of_one_device():
    report, without = compiled("divided"), jaxviz.compiled_memory(jax.jit(divided).lower(*PROGRAMS["divided"][1:]))
    (x,) = (h for h in report.at_peak if h.kind == "argument" and h.what == "x")
    assert (report.n_devices, x.nbytes, x.type) == (8, 256 * 64 * 4 // 8, "f32[32,64]")
    assert (without.n_devices, bytes_of(without, "residual")) == (8, {})
    assert all("on each of 8 devices" in r.summary for r in (report, without))


def test_a_function_without_a_gradient():
    report = jaxviz.compiled_memory(divided, W, X, argnums=())
    assert {h.kind for h in report.temporaries} <= {"temporary", *OWN}
    assert "function `divided`" in report.summary


def test_as_a_report():
    report = compiled("unrolled")
    text = " ".join(str(report).split())
    assert text.startswith("compiled gradient of `unrolled` in `ws` on cpu: peak ")
    for words in ("100.0% of the temporaries have a line", "needed again in"):
        assert words in text
    assert "<svg" in report._repr_html_()
    assert (report.to_dict()["peak_nbytes"], report.to_dict()["kinds"]) == (report.peak_nbytes, list(KINDS))
    assert report.plot().axes[0].get_title(loc="left") == f"bytes alive in the compiled {report.about}"
    assert sum(report.by_kind().values()) == sum(h.nbytes for h in report.at_peak)


def test_what_is_not_known_is_not_guessed(monkeypatch):
    monkeypatch.setattr(Places, "numbers", lambda self, instruction: ())
    report = jaxviz.compiled_memory(*PROGRAMS["unrolled"])
    assert report.attributed == 0.0
    assert {h.kind for h in report.temporaries} == {"not attributed"}
    assert "not attributed" in report.summary


def silence(monkeypatch):
    """The backend does not say where it stores values, like a GPU's."""
    monkeypatch.setattr(compiled_program, "serialized_assignment", lambda stats: b"")
    monkeypatch.setattr(compiled_program, "_silent", set())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unrolled", "training_step"])
def test_a_backend_that_does_not_say_dumps_it(name, monkeypatch):
    """The program is compiled with a dump, and what it says is the same."""
    expected = compiled(name).to_dict()
    silence(monkeypatch)
    assert jaxviz.compiled_memory(*PROGRAMS[name]).to_dict() == expected
    assert compiled_program._silent == {"cpu"}
    jaxviz.clear_caches()
    assert jaxviz.compiled_memory(*PROGRAMS[name]).to_dict() == expected  # compiled only once this time


@pytest.mark.slow
def test_a_compiled_program_of_a_backend_that_does_not_say(monkeypatch):
    stage = lowered("unrolled")
    expected = jaxviz.compiled_memory(stage)
    silence(monkeypatch)
    with pytest.raises(ValueError, match=r"cpu does not report where .*; give .* the result of jax\.jit\(f\)\.lower"):
        jaxviz.compiled_memory(stage.compile())
    assert jaxviz.compiled_memory(stage).to_dict() == expected.to_dict()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    jaxviz.clear_caches()
    with pytest.raises(ValueError, match="No temporary folder has room for the program that XLA writes"):
        jaxviz.compiled_memory(stage)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr(compiled_program, "DUMPED", "nothing.pb")
    jaxviz.clear_caches()
    with pytest.raises(ValueError, match="cpu neither reports nor dumps where"):
        jaxviz.compiled_memory(stage)


def test_messages_that_are_none():
    with pytest.raises(DecodeError):
        message("Module", b"\xff\xff\xff")


def test_what_xla_stores_in_another_type_is_said():
    """On a CPU, XLA computes bfloat16 in float32, and may store it that way."""
    program = scanned, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((4, 64, 64), (256, 64)))
    report, saved = jaxviz.compiled_memory(*program), jaxviz.residuals(*program)
    sizes = {g.residuals[0].value: g.nbytes for g in saved.groups}
    rows = (*report.at_peak, *report.values)
    otherwise = [h for h in rows if "XLA holds it as " in h.why]
    assert all(h.kind == "fusion" and h.type.startswith(h.why.split()[-1]) for h in otherwise)
    residuals = {h.what for h in otherwise if h.why.startswith("the gradient saves it, and ")}
    assert residuals <= {f"convert of {label}" for label in sizes}
    # Each residual is stored as it is, or in another type.
    stored = {h.what.removeprefix("convert of ").removesuffix(CARRIED) for h in rows}
    assert {label for label, size in sizes.items() if size >= 4 * 256 * 64 * 2} <= stored
