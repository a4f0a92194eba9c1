"""Errors of running out of memory: what can be said of each text, and with the program."""

import importlib
import io
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import jsonschema
import pytest
import transcripts
from oom_texts import TEXTS

import jaxviz
from jaxviz.cli import main
from jaxviz.xla.out_of_memory.start import stacked


@transcripts.of("out_of_memory")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_each_text_is_read(name):
    found = jaxviz.oom(TEXTS[name])
    assert found.needs or found.asked
    assert found.rows or "lists no buffers" in str(found)
    jsonschema.validate(found.to_dict(), jaxviz.schema("oom"))


def test_an_exception_has_the_user_s_line():
    with pytest.raises(jax.errors.JaxRuntimeError) as raised:
        jax.block_until_ready(jax.jit(lambda x: jnp.broadcast_to(x, (1 << 23, 1 << 23)) * 2)(jnp.ones(1 << 23)))
    found = jaxviz.oom(raised.value)
    assert found.asked == 1 << 48
    assert found.raised.file == __file__


def layer(x, w):
    h = jax.nn.gelu(x @ w["a"])
    return x + jnp.tanh(h @ w["b"]), None


def loss(params, x):
    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x**2)


def train_step(params, x):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))


PARAMS = {"a": jax.ShapeDtypeStruct((6, 64, 256), "float32"), "b": jax.ShapeDtypeStruct((6, 256, 64), "float32")}
X = jax.ShapeDtypeStruct((256, 64), "float32")
LIMIT = 10 << 20
AT = f'source_file="{__file__}" source_line={layer.__code__.co_firstlineno + 1}'
TEXT = f"""RESOURCE_EXHAUSTED: Out of memory while trying to allocate 14680064 bytes.
Peak buffers:
	Buffer 1:
		Size: 1.50MiB
		Operator: op_name="jit(train_step)/jvp()/while/body/closed_call/dot_general" {AT}
		Shape: f32[6,256,256]
		==========================

	Buffer 2:
		Size: 256.0KiB
		Operator: op_name="jit(train_step)/transpose(jvp())/while/body/dot_general" {AT}
		Shape: f32[256,256]
		==========================
"""


def peak_with(code, path, name, *types):
    """Of the function with that name, after the changes in a copy of its file: as JAX and XLA compile it."""
    folders = next(line for line in code.splitlines() if line.startswith("--- ")).count("/")
    apply = ["git", "apply", f"-p{folders}", "--whitespace=nowarn", "-"]
    subprocess.run(apply, input=code, text=True, check=True, cwd=path.parent)
    exec(compile(path.read_text(), str(path), "exec"), edited := {"__name__": path.stem, "__file__": str(path)})
    compiled = jax.jit(edited[name]).lower(*types).compile().memory_analysis()
    return compiled.temp_size_in_bytes + compiled.argument_size_in_bytes + compiled.output_size_in_bytes


@pytest.mark.slow
def test_with_the_program_values_have_reasons_and_changes_are_compiled(tmp_path):
    found = jaxviz.oom(TEXT, train_step, PARAMS, X, limit=LIMIT)
    assert found.rows[0].when == "forward"
    saved = {r.value: r.why for r in jaxviz.residuals(train_step, PARAMS, X)}
    assert found.rows[0].what == 'x @ w["a"]'
    assert found.rows[0].why == saved['x @ w["a"]']
    (checkpoints,) = found.changes
    peak = peak_with(checkpoints.code, Path(shutil.copy(__file__, tmp_path)), "train_step", PARAMS, X)
    assert checkpoints.compiled
    assert checkpoints.fits is (peak <= LIMIT)
    assert abs(checkpoints.after - peak) < 0.01 * peak
    assert "layer_h" in checkpoints.code


MODEL = """
import jax
import jax.numpy as jnp


def model(params, x):
    def layer(x, w):
        scores = jnp.einsum("btd,bsd->bts", x @ w["q"], x @ w["k"])
        return x + jax.nn.softmax(scores) @ (x @ w["v"]), None

    x, _ = jax.lax.scan(layer, x, params)
    return jnp.mean(x**2)


gradient = jax.value_and_grad(model)
"""


@pytest.mark.slow
def test_the_peak_beside_the_code_is_that_of_the_code(tmp_path, monkeypatch):
    """The plan also saves values of a library, to which no name in the source refers."""
    path = tmp_path / "model_of_oom.py"
    path.write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("model_of_oom").model
    x = jax.ShapeDtypeStruct((4, 512, 32), "float32")
    params = {name: jax.ShapeDtypeStruct((8, 32, 32), "float32") for name in "qkv"}
    (change,) = jaxviz.oom(
        "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.", model, params, x, limit="20MiB"
    ).changes
    assert "plan.apply can also save values that no name in your source refers to" in change.code
    peak = peak_with(change.code, path, "gradient", params, x)
    assert change.compiled
    assert abs(change.after - peak) < 0.01 * peak


@pytest.mark.slow
def test_donation_is_tried_on_a_step():
    small = jax.ShapeDtypeStruct((2, 64), "float32")
    found = jaxviz.oom("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.", train_step, PARAMS, small, limit=1)
    donation = next(c for c in found.changes if "donate_argnames=('params',)" in c.text)
    spared = jaxviz.donation(jax.jit(train_step, donate_argnames="params"), PARAMS, small).spared
    assert donation.before - donation.after == spared > 0
    assert not donation.fits


@pytest.mark.slow
def test_a_dump_is_read_too(tmp_path, nothing_from_disk):
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True}
    jax.jit(train_step).lower(PARAMS, X).compile(compiler_options=options)
    found = jaxviz.oom(tmp_path, limit="1MiB")
    assert found.function == "train_step"
    assert found.used == jaxviz.compiled_memory(jax.jit(train_step).lower(PARAMS, X)).peak_nbytes
    assert any(r.when == "forward" and r.why for r in found.rows)
    assert found.summary.startswith("`train_step` needs ")
    jsonschema.validate(found.to_dict(), jaxviz.schema("oom"))
    assert "error" not in str(found).partition("Read from")[0]


@pytest.mark.slow
def test_a_folder_with_the_program_is_about_that_program(tmp_path, nothing_from_disk):
    def larger(x):
        return jnp.sort(x[:, None] + x, 0)

    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_proto": True}
    for f, args in ((train_step, (PARAMS, X)), (larger, (jax.ShapeDtypeStruct((4096,), "float32"),))):
        jax.jit(f).lower(*args).compile(compiler_options=options)
    assert jaxviz.oom(tmp_path).function == "larger"
    assert jaxviz.oom(tmp_path, module="train").function == "train_step"
    found = jaxviz.oom(tmp_path, train_step, PARAMS, X, limit=LIMIT // 4)
    assert found.function == "train_step"
    assert found.changes
    assert not jaxviz.oom(tmp_path, train_step, PARAMS, X, limit="1GiB").changes


def test_a_module_is_one_of_a_folder():
    with pytest.raises(ValueError, match="module='train' selects a program in a folder"):
        jaxviz.oom("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.", module="train")


@pytest.mark.slow
def test_without_a_limit_nothing_is_said_to_fit_or_not():
    found = str(jaxviz.oom("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.", train_step, PARAMS, X))
    assert "What would take less:" in found
    assert "does not fit" not in found
    assert "that fits" not in found


def test_one_request_asks_for_the_program():
    said = " ".join(str(jaxviz.oom("RESOURCE_EXHAUSTED: Out of memory allocating 17452499012 bytes.")).split())
    assert "One allocation of 16.3 GiB was asked for: give the program to see what it is" in said
    assert "says nothing about the program" not in said


def test_an_error_on_standard_input_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("NaN in layer 3"))
    assert main(["oom"]) == 1
    assert "while reading standard input: this text" in capsys.readouterr().err


def test_another_text_is_an_error():
    with pytest.raises(ValueError, match="does not say that memory ran out"):
        jaxviz.oom("NaN in layer 3")


@pytest.mark.parametrize(
    ("kind", "buffer"),
    [("f32[8]", "f32[8]"), ("6 × f32[8]", "f32[6,8]"), ("1,000 × f32[]", "f32[1000]"), ("2 × 6 × i4[3]", "i4[2,6,3]")],
)
def test_the_values_of_a_loop_are_one_buffer(kind, buffer):
    assert stacked(kind) == buffer
