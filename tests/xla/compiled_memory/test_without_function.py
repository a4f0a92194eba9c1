"""Compiled programs analysed without their function: from what `jax.jit` lowered or compiled."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from compiled_programs import W, X, compiled, lowered, unrolled

import jaxviz
from jaxviz.ir import compat
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.op_names import OpName, OpNames, paths_of


def bytes_of(report, *kinds, type=""):
    return sum(h.nbytes for h in report.at_peak if h.kind in kinds and type in ("", h.type))


def test_a_compiled_program_is_read_as_it_is():
    with compat.compiled_with_its_own_metadata():
        report = jaxviz.compiled_memory(lowered("unrolled").compile())
    assert report.at_peak == jaxviz.compiled_memory(lowered("unrolled")).at_peak
    assert report.summary.startswith("compiled program `unrolled` on cpu: peak ")
    assert "Without the function, names and lines" in str(report)


@pytest.mark.parametrize("name", ["unrolled", "scanned", "scanned_checkpoints", "training_step"])
def test_what_the_backward_pass_reads_is_recognised_by_its_names(name):
    """Residuals, and what XLA merged with recomputed values."""
    with_function, without = compiled(name), jaxviz.compiled_memory(lowered(name))
    assert bytes_of(without, "residual") == bytes_of(with_function, "residual", "merged") > 0
    assert bytes_of(without, "recomputed") == bytes_of(with_function, "recomputed")
    if name == "scanned":
        stacked = {"type": "f32[4,256,64]"}
        assert bytes_of(without, "residual", **stacked) == bytes_of(with_function, "residual", **stacked)


def test_values_are_named_by_their_expressions_and_arguments_by_their_paths():
    report = jaxviz.compiled_memory(lowered("unrolled"))
    whats = {h.kind: {g.what for g in report.at_peak if g.kind == h.kind} for h in report.at_peak}
    assert whats["argument"] == {"ws[0…3]", "x"}
    assert {"h @ w", "jnp.tanh(h @ w)", "jnp.sin(h)"} & whats["residual"]
    assert "result[1][0…3]" in whats["result"]
    assert {h.location.file for h in report.temporaries if h.location} == {unrolled.__code__.co_filename}


@pytest.fixture(scope="module")
def chained():
    """The module of a chain of operations."""

    def f(x):
        y = jnp.tanh(x) * jnp.sin(x)
        return jnp.sum(y + x + y * 3)

    with compat.compiled_with_its_own_metadata():
        made = jax.jit(jax.value_and_grad(f)).lower(X).compile()
    return Module(message("Module", made.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()))


def test_expressions_that_begin_in_one_place_are_told_apart_by_the_operation(chained):
    names = OpNames(chained)
    for i in chained.instructions.values():
        names.numbers(i)
    found = {(o.operation, names.label(n)[0]) for n, o in enumerate(names.makers) if o.stage == "forward"}
    assert {("tanh", "jnp.tanh(x)"), ("sin", "jnp.sin(x)"), ("mul", "jnp.tanh(x) * jnp.sin(x)")} <= found
    assert ("add", "add in y + x + y * 3") in found  # one of the two


def test_collectives_that_xla_made_one_have_all_their_names(chained):
    instruction = next(i for i in chained.instructions.values() if i.path.endswith("/tanh"))
    both = replace(instruction, path="jit(f)/(jvp()/psum:transpose(jvp())/psum)")
    assert paths_of(both) == ["jit(f)/jvp()/psum", "jit(f)/transpose(jvp())/psum"]
    assert paths_of(replace(instruction, path="jit(f)/jvp(a,b->c)/dot")) == ["jit(f)/jvp(a,b->c)/dot"]


@pytest.mark.parametrize("stage", ["lowered", "compiled"])
def test_arguments_are_refused(stage):
    program = jax.jit(jnp.sin).lower(X)
    with pytest.raises(TypeError, match=rf"already has its arguments: call jaxviz.compiled_memory\({stage}\)"):
        jaxviz.compiled_memory(program.compile() if stage == "compiled" else program, X)


def test_a_line_without_source_is_named_by_the_operation():
    code = compile("def f(w, x):\n    return jnp.sum(jnp.sin(x @ w))\n", "/no/such/file.py", "exec")
    exec(code, names := {"jnp": jnp})
    report = jaxviz.compiled_memory(jax.jit(jax.value_and_grad(names["f"])).lower(W, X))
    assert report.temporaries
    assert {h.what for h in report.temporaries} <= {"dot_general", "sin", "cos"}
    assert {str(h.location) for h in report.temporaries} == {"/no/such/file.py:2"}


@pytest.mark.parametrize(
    ("path", "stage", "holds", "recomputed"),
    [
        ("jit(f)/jvp()/while/body/closed_call/sin", "forward", False, False),
        ("jit(f)/jvp()/while/body/jit(dynamic_update_index_in_dim)/dynamic_update_slice", "forward", True, False),
        ("jit(f)/jvp()/while/body/dynamic_slice", "forward", True, False),
        ("jit(f)/jvp()/while/body/closed_call/dynamic_slice", "forward", False, False),
        ("jit(f)/transpose(jvp())/cond/branch_1_fun/mul", "backward", False, False),
        ("jit(f)/transpose(jvp())/cond", "backward", True, False),
        ("jit(f)/transpose(jvp(jvp()))/checkpoint/rematted_computation/cos", "backward", False, True),
        ("jit(step)/jit(relu)", "outside", True, False),
    ],
)
def test_what_the_name_of_an_operation_says(path, stage, holds, recomputed):
    name = OpName(path, None)
    assert (name.stage, name.holds_programs, name.is_recomputed) == (stage, holds, recomputed)
    assert name.is_cotangent == (stage == "backward" and not recomputed)
