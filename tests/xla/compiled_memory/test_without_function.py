"""Compiled programs analysed without their function: from what `jax.jit` lowered or compiled."""

from dataclasses import replace

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
    divided,
    scanned,
    scanned_checkpoints,
    training_step,
    unrolled,
)

import jaxviz
from jaxviz.ir import compat
from jaxviz.xla.compiled_memory.messages import message
from jaxviz.xla.compiled_memory.module import Module
from jaxviz.xla.compiled_memory.op_names import OpName, OpNames, paths_of


def lowered(f, args=None):
    jitted = f if f in STEPS else jax.jit(jax.value_and_grad(f))
    return jitted.lower(*(args or PROGRAMS[f]))


def bytes_of(report, kind):
    return sum(h.nbytes for h in report.at_peak if h.kind == kind)


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_the_bytes_are_those_of_xla_and_have_lines(f):
    stage = lowered(f)
    report = jaxviz.compiled_memory(stage)
    xla = stage.compile().memory_analysis()
    assert report.temp_nbytes == xla.temp_size_in_bytes == sum(h.nbytes for h in report.temporaries)
    assert report.argument_nbytes == xla.argument_size_in_bytes
    assert report.result_nbytes == xla.output_size_in_bytes - xla.alias_size_in_bytes
    assert report.attributed >= 0.95
    assert report.function == f.__name__


def test_a_compiled_program_is_read_as_it_is():
    with compat.compiled_with_its_own_metadata():
        compiled = lowered(unrolled).compile()
    report, same = jaxviz.compiled_memory(compiled), jaxviz.compiled_memory(lowered(unrolled))
    assert report.at_peak == same.at_peak
    assert report.summary.startswith("compiled program `unrolled` on cpu: peak ")
    assert "Without the function, names and lines" in str(report)


@pytest.mark.parametrize("f", [unrolled, scanned, scanned_checkpoints, training_step], ids=lambda f: f.__name__)
def test_what_the_passes_keep_is_found_by_its_names(f):
    """What the backward pass reads from the forward pass: residuals, and what XLA merged with recomputed values."""
    with_function, without = jaxviz.compiled_memory(f, *PROGRAMS[f]), jaxviz.compiled_memory(lowered(f))
    kept = sum(bytes_of(with_function, kind) for kind in ("residual", "merged"))
    assert bytes_of(without, "residual") == kept > 0
    assert bytes_of(without, "recomputed") == bytes_of(with_function, "recomputed")


def test_values_are_named_by_their_expressions_and_arguments_by_their_paths():
    report = jaxviz.compiled_memory(lowered(unrolled, (LAYERS, X)))
    whats = {h.kind: {g.what for g in report.at_peak if g.kind == h.kind} for h in report.at_peak}
    assert whats["argument"] == {"ws[0…3]", "x"}
    assert {"h @ w", "jnp.tanh(h @ w)", "jnp.sin(h)"} & whats["residual"]
    assert "result[1][0…3]" in whats["result"]
    assert {h.location.file for h in report.temporaries if h.location} == {unrolled.__code__.co_filename}


def chained(x):
    y = jnp.tanh(x) * jnp.sin(x)
    return jnp.sum(y + x + y * 3)


def test_expressions_that_begin_in_one_place_are_told_apart_by_the_operation():
    names = OpNames(Module(message("Module", proto_of(chained))))
    for i in names.module.instructions.values():
        names.numbers(i)
    found = {(o.operation, names.label(n)[0]) for n, o in enumerate(names.found) if o.stage == "forward"}
    assert {("tanh", "jnp.tanh(x)"), ("sin", "jnp.sin(x)"), ("mul", "jnp.tanh(x) * jnp.sin(x)")} <= found
    assert ("add", "add in y + x + y * 3") in found  # one of the two


def proto_of(f):
    with compat.compiled_with_its_own_metadata():
        compiled = jax.jit(jax.value_and_grad(f)).lower(X).compile()
    return compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()


def test_collectives_that_xla_made_one_have_all_their_names():
    module = Module(message("Module", proto_of(chained)))
    instruction = next(i for i in module.instructions.values() if i.path.endswith("/tanh"))
    both = replace(instruction, path="jit(f)/(jvp()/psum:transpose(jvp())/psum)")
    assert paths_of(both) == ["jit(f)/jvp()/psum", "jit(f)/transpose(jvp())/psum"]
    assert paths_of(replace(instruction, path="jit(f)/jvp(a,b->c)/dot")) == ["jit(f)/jvp(a,b->c)/dot"]


def test_a_function_without_a_gradient_on_several_devices():
    report = jaxviz.compiled_memory(jax.jit(divided).lower(*PROGRAMS[divided]))
    assert report.n_devices == 8
    assert not bytes_of(report, "residual")
    assert "on each of 8 devices" in report.summary


@pytest.mark.parametrize("stage", ["lowered", "compiled"])
def test_arguments_are_refused(stage):
    given = jax.jit(jnp.sin).lower(X)
    given = given.compile() if stage == "compiled" else given
    with pytest.raises(TypeError, match=rf"already has its arguments: call jaxviz.compiled_memory\({stage}\)"):
        jaxviz.compiled_memory(given, X)


def test_a_line_without_source_is_named_by_the_operation():
    code = compile("def f(w, x):\n    return jnp.sum(jnp.sin(x @ w))\n", "/no/such/file.py", "exec")
    exec(code, names := {"jnp": jnp})
    report = jaxviz.compiled_memory(lowered(names["f"], (W, X)))
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


def test_the_stack_is_the_one_that_the_function_tells():
    report = jaxviz.compiled_memory(lowered(scanned, (STACK, X)))
    stacks = [h for h in report.at_peak if h.kind == "residual" and h.type == "f32[4,256,64]"]
    of_function = jaxviz.compiled_memory(scanned, STACK, X)
    assert sum(h.nbytes for h in stacks) == sum(
        h.nbytes for h in of_function.at_peak if h.kind == "residual" and h.type == "f32[4,256,64]"
    )
