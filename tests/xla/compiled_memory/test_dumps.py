"""Compiled programs that XLA dumped into a folder."""

import random
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import PROGRAMS, compiled, lowered, read_or_refused, scanned
from short_runs import short

import jaxviz
from jaxviz.xla.compat.compiling import parsed_hlo
from jaxviz.xla.compiled_memory.attribution import Attribution
from jaxviz.xla.compiled_memory.dumps import read_dump
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.op_names import OpNames
from jaxviz.xla.compiled_memory.report import CompiledMemory

pytestmark = pytest.mark.slow

GPU_DUMP = Path(__file__).parents[2] / "fixtures" / "gpu_dump"
FORMS = {"proto": {"xla_dump_hlo_as_proto": True}, "text": {"xla_dump_hlo_as_text": True}}


@pytest.fixture
def dump(tmp_path, nothing_from_disk):
    """Compiles a program with XLA dumping to a folder; returns the folder and the compiled program."""

    def of(name, form, folder="dump"):
        options = {"xla_dump_to": str(tmp_path / folder), **FORMS[form]}
        return tmp_path / folder, lowered(name).compile(compiler_options=options)

    return of


def without_results(report):
    """The rows without the names of results, which a dump does not have."""
    plain = lambda h: (
        replace(h, what="", why="", donated_to="result" * bool(h.donated_to)) if h.kind in ("result", "argument") else h
    )
    return [plain(h) for h in report.at_peak]


SAME = "function about temp_nbytes argument_nbytes result_nbytes reused_nbytes peak_nbytes".split()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", short(["scanned", "attention", "divided", "training_step", "accumulated"], 2))
def test_a_folder_has_what_was_compiled(dump, name, form):
    folder, compiled = dump(name, form)
    read, direct = CompiledMemory.from_dump(folder), jaxviz.compiled_memory(compiled)
    assert without_results(read) == without_results(direct)
    assert [getattr(read, name) for name in SAME] == [getattr(direct, name) for name in SAME]
    assert read.compiler.backend == "cpu"
    if form == "proto":  # the text form omits devices, and JAX 0.12 writes tuple elements differently
        assert (read.n_devices, read.timeline) == (direct.n_devices, direct.timeline)
    assert "Read from module_" in str(read)


def test_the_two_forms_are_one(dump):
    proto, _ = dump("scanned", "proto", "a")
    text, _ = dump("scanned", "text", "b")
    change = CompiledMemory.from_dump(proto).compare(CompiledMemory.from_dump(text))
    assert (change.changes, change.compiled_otherwise) == ((), ())


def test_flags_are_those_of_the_folder(dump):
    folder, _ = dump("scanned", "proto")
    (options,) = folder.glob("*jit_scanned.debug_options")
    options.write_text('xla_cpu_enable_fast_min_max: false\nxla_dump_to: "/x"\nxla_backend_extra_options: "a=b"\n')
    flags = CompiledMemory.from_dump(folder).compiler.flags
    assert flags == "--xla_cpu_enable_fast_min_max=false --xla_backend_extra_options=a=b"


def test_one_of_several_is_chosen(dump):
    folder, _ = dump("scanned", "proto")
    dump("training_step", "proto")
    largest = CompiledMemory.from_dump(folder)
    assert largest.function == "scanned"
    assert re.search(r"The folder has 1 other program: module_\d+.jit_training_step;", " ".join(str(largest).split()))
    assert read_dump(folder, of="training_step").function == "training_step"
    unknown = read_dump(folder, of="training")  # which is only a part of the name
    assert unknown.function == "scanned"
    assert "No program in the folder is called training:" in unknown.notes[2]
    assert CompiledMemory.from_dump(folder, "training").function == "training_step"
    with pytest.raises(ValueError, match=r"has no program with 'jit_other' in its name; it has module_\d+.jit_"):
        CompiledMemory.from_dump(folder, "jit_other")


@pytest.mark.parametrize("form", FORMS)
def test_the_program_with_the_most_memory_is_chosen_and_not_the_longest(tmp_path, nothing_from_disk, form):
    def long(x):
        for k in range(40):
            x = jnp.cumsum(jnp.sort(x) * k)
        return x

    def large(x):
        return jnp.sin(x[:, None] + x).sort(0)

    options = {"xla_dump_to": str(tmp_path), **FORMS[form]}
    for f in (long, large):
        jax.jit(f).lower(jax.ShapeDtypeStruct((600,), "float32")).compile(compiler_options=options)
    sizes = {p.name.split(".")[1]: p.stat().st_size for p in tmp_path.glob("*after_optimizations.*")}
    assert sizes["jit_long"] > sizes["jit_large"]
    assert CompiledMemory.from_dump(tmp_path).function == "large"
    assert CompiledMemory.from_dump(tmp_path, "jit_l").function == "large"


def test_a_gpu_is_read_off_the_name(dump):
    folder, _ = dump("scanned", "proto")
    (path,) = folder.glob("*jit_scanned*after_optimizations.hlo.pb")
    path.rename(folder / "module_0012.jit_scanned.sm_9.0_gpu_after_optimizations.hlo.pb")
    compiler = CompiledMemory.from_dump(folder).compiler
    assert (compiler.backend, compiler.device) == ("gpu", "sm_9.0")


# --- not a dump, or an incomplete one ---------------------------------------------------------------------------------


def test_no_folder_and_no_programs(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        CompiledMemory.from_dump(tmp_path / "nowhere")
    (tmp_path / "module_0001.jit_f.before_optimizations.txt").write_text("HloModule jit_f")
    with pytest.raises(ValueError, match=r"has no compiled program, .*; XLA writes one with XLA_FLAGS='--xla_dump_to="):
        CompiledMemory.from_dump(tmp_path)


@pytest.mark.slow(sweep=True)
def test_flipped_bytes_are_refused_by_name_or_can_be_shown(dump):
    folder, _ = dump("scanned", "proto")
    (path,) = folder.glob("*jit_scanned*after_optimizations.hlo.pb")
    content = path.read_bytes()
    draw = random.Random(0)
    for _ in range(60):
        spoiled = bytearray(content)
        spoiled[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(spoiled)
        report = read_or_refused(lambda: CompiledMemory.from_dump(folder, "scanned"), path)
        if report is not None:
            str(report), report._repr_html_()


MESSAGE, TEXT, BUFFERS = "after_optimizations.hlo.pb", "after_optimizations.txt", "buffer-assignment.txt"
CUT_OFF = "is damaged: |has no program|has no buffer assignment"
DAMAGED = [
    *((MESSAGE, lambda t, share=share: t[: int(share * len(t))], CUT_OFF) for share in (0, 0.01, 0.2, 0.5, 0.8, 0.95,
        0.999)),
    (MESSAGE, lambda t: "no message" * 100, "is damaged: "),
    (TEXT, lambda t: t[: len(t) // 2], "is damaged: "),
    (TEXT, lambda t: "nothing", "is damaged: "),
    (TEXT, lambda t: t.replace(", is_scheduled=true", ""), "has no schedule"),
    (BUFFERS, lambda t: t[: len(t) // 2], "have no buffer in it: it seems to be truncated"),
    (BUFFERS, lambda t: "", "has no allocations"),
    (BUFFERS, lambda t: t[t.index(" value:") :], "has values before its first allocation"),
    (BUFFERS, lambda t: re.sub(r"<(\d+) copy\S*", r"<\1 copy.ghost", t), "has a value of copy.ghost"),
    (BUFFERS, None, "buffer-assignment.txt, which says where it stores its values, is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "spoil", "message"), DAMAGED)
def test_what_is_damaged_is_refused_by_name(dump, which, spoil, message):
    folder, _ = dump("scanned", "proto" if which == MESSAGE else "text")
    (path,) = folder.glob(f"*jit_scanned*{which}")
    if spoil is None:
        path.unlink()
    else:
        path.write_bytes(spoil(path.read_bytes().decode("latin-1")).encode("latin-1"))
    with pytest.raises(ValueError, match=message) as error:
        CompiledMemory.from_dump(folder, "scanned")
    assert str(folder) in str(error.value)


def test_buffers_of_another_program(dump):
    folder, _ = dump("scanned", "text")
    other, _ = dump("training_step", "text", "other")
    (path,) = folder.glob("*jit_scanned*buffer-assignment.txt")
    (wrong,) = other.glob("*jit_training_step*buffer-assignment.txt")
    path.write_text(wrong.read_text())
    with pytest.raises(ValueError, match=r"has a value of .*, but .* has no such instruction"):
        CompiledMemory.from_dump(folder, "scanned")


def test_lines_without_source_stay_lines(dump, monkeypatch):
    """On another machine the source is missing."""
    folder, _ = dump("scanned", "proto")
    monkeypatch.setattr("jaxviz.xla.compiled_memory.op_names.expressions_from", lambda location: [])
    read = CompiledMemory.from_dump(folder)
    assert read.attributed >= 0.95
    residuals = {h.what for h in read.at_peak if h.kind == "residual"}
    assert {"sin", "cos", "tanh"} <= residuals
    assert all(h.location.file == scanned.__code__.co_filename for h in read.temporaries if h.location)
    assert jnp.asarray([m.is_backward for m in read.timeline]).any()


@pytest.mark.parametrize("name", ["scanned", "attention", "training_step"])
def test_with_the_function_at_hand_residuals_have_its_reasons(dump, name):
    read = CompiledMemory.from_dump(dump(name, "proto")[0])
    found = read.explain(*PROGRAMS[name])
    reasons = {}
    for h in compiled(name).values:
        reasons.setdefault((h.location and h.location.line, h.kind), set()).add(h.why.partition(";")[0])
    residuals = [(a, b) for a, b in zip(read.at_peak, found.at_peak, strict=True) if a.kind == "residual"]
    explained = [b for a, b in residuals if a is not b]
    # XLA may store a value from which it computes the residual: JAX 0.12 saves 1 - tanh², where XLA stores the tanh.
    assert sum(b.nbytes for b in explained) >= 0.25 * sum(a.nbytes for a, _ in residuals) > 0
    # With the function, each value is mapped to its equation, with that equation's reason.
    assert all(h.why in reasons[h.location.line, "residual"] for h in explained)
    row = lambda h: (h.nbytes, h.kind, h.location)
    assert list(map(row, found.at_peak)) == list(map(row, read.at_peak))
    assert "reasons come from the gradient of" in str(found).replace("\n", " ")
    assert "Without the function, names and lines" not in str(found)
    with pytest.raises(TypeError):
        read.explain(PROGRAMS[name][0])


def test_what_a_gpu_offloads_is_in_the_memory_of_the_host():
    """A dump of an H200, on which JAX's `memory_analysis()` gave these figures. It is a scan of 16 iterations, whose
    checkpoint offloads the two values that it names."""
    memory = CompiledMemory.from_dump(GPU_DUMP)
    assert (memory.argument_nbytes, memory.temp_nbytes) == (402653184, 2885688376)
    assert memory.reserved_nbytes == sum(h.nbytes for h in memory.at_peak) == 3556777048
    assert memory.host_nbytes == 4294967296
    assert [(h.kind, h.type, h.nbytes, h.location.line) for h in memory.on_host] == [
        ("offloaded", "f32[16,16384,2048]", 2**31, 92),
        ("offloaded", "f32[16,16384,2048]", 2**31, 93),
    ]
    assert "offloaded" not in memory.by_kind()
    assert "Besides, 4.0 GiB are in the memory of the host: f32[16,16384,2048] of " in str(memory).replace("\n", " ")
    assert memory.to_dict()["host_nbytes"] == 4294967296


def lines_of_kernels(read):
    """For each instruction that becomes a kernel the lines that it is led to."""
    module = Module(read)
    names = OpNames(module)
    attribution = Attribution(module, names)
    kernels = [i for n in module.order if (i := module.instructions[n]).opcode in ("fusion", "custom-call", "copy")]
    return {i.name: {names.makers[n].location.line for n in attribution.numbers_of(i)} for i in kernels}


def test_each_kernel_of_a_gpu_comes_from_a_line():
    """Also those without metadata: copies, calls of libraries, and a fusion of the zeros that a scan stacks into."""
    lines = lines_of_kernels(message("Program", next(GPU_DUMP.iterdir()).read_bytes()).hlo_module)
    assert {"copy.30", "custom-call.4", "loop_broadcast_fusion"} < lines.keys()
    assert all(lines.values())


ZEROS = """HloModule jit_f, is_scheduled=true

%zeros () -> (f32[4], f32[4]) {
  %zero = f32[] constant(0)
  %some = f32[4]{0} broadcast(%zero), dimensions={}
  ROOT %both = (f32[4]{0}, f32[4]{0}) tuple(%some, %some)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %fusion = (f32[4]{0}, f32[4]{0}) fusion(), kind=kLoop, calls=%zeros
  %first = f32[4]{0} get-tuple-element(%fusion), index=0
  %second = f32[4]{0} get-tuple-element(%fusion), index=1
  %sum = f32[4]{0} add(%x, %first), metadata={op_name="jit(f)/add" source_file="model.py" source_line=7}
  ROOT %less = f32[4]{0} subtract(%sum, %second), metadata={op_name="jit(f)/sub" source_file="model.py" source_line=8}
}
"""


def test_a_kernel_with_several_results_comes_from_the_lines_that_read_them():
    assert lines_of_kernels(message("Module", parsed_hlo(ZEROS))) == {"fusion": {7, 8}}
