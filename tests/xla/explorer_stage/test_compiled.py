"""The compiled program: links are correct, and the program is the one that JAX compiles."""

import collections
import re

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import programs
import pytest
from jax import lax

import jaxviz
from jaxviz.analysis import lowering
from jaxviz.analysis.lowering import Tags, lower_gradient
from jaxviz.ir.origin import locate
from jaxviz.xla.explorer_stage import compiled as module
from jaxviz.xla.explorer_stage.compiled import compiled, lower, lowered, read_hlo, read_stablehlo
from jaxviz.xla.explorer_stage.one_block import one_block_of

X = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)
W = jnp.ones((3, 3)) * 0.3
CASES = {case.name: case for case in programs.CASES}


def lines_of(derivation, which):
    """The lines of a text with the equations that each is linked to, as (stage, equation)."""
    made = compiled(lower(derivation))
    rows = [(stage, e) for stage, _ in made["stages"] for _, e in getattr(derivation, stage).walk()]
    assert len(rows) == sum(n for _, n in made["stages"])
    text = made[which]
    assert len(text["text"].split("\n")) == len(text["links"])
    return [(line, [rows[i] for i in link]) for line, link in zip(text["text"].split("\n"), text["links"], strict=True)]


def linked(lines, pattern):
    """For each line that matches, the (stage, primitive) that it is linked to."""
    return [[(stage, e.primitive.name) for stage, e in rows] for line, rows in lines if re.search(pattern, line)]


@pytest.mark.parametrize("which", ["stablehlo", "hlo"])
def test_an_instruction_leads_to_its_equation_and_its_line(which):
    def loss(w, x):
        y = jnp.sin(x @ w)
        return jnp.sum(jnp.log(y))

    lines = lines_of(jaxviz.derive(loss, W, X), which)
    operation = {"stablehlo": r"stablehlo\.{}\b", "hlo": r"= \S+ {}\("}[which].format
    for name, stage, primitive, offset in (
        ("sine", "forward", "sin", 1),
        ("cosine", "forward", "cos", 1),
        ("log", "forward", "log", 2),
    ):
        # A fusion recomputes what it reads, so there may be several instructions for an equation.
        (((found, equation),),) = {tuple(rows) for line, rows in lines if re.search(operation(name), line)}
        assert (found, equation.primitive.name) == (stage, primitive)
        assert locate(equation.source).line == loss.__code__.co_firstlineno + offset
    assert linked(lines, operation("dot(_general)?"))[0] == [("forward", "dot_general")]


def test_a_fusion_leads_to_all_that_it_holds():
    lines = lines_of(jaxviz.derive(lambda x: jnp.sum(jnp.tanh(x) * jnp.cos(x)), X), "hlo")
    calls = [(re.search(r"calls=%(\S+)", line)[1].rstrip(","), rows) for line, rows in lines if " fusion(" in line]
    assert calls
    for name, rows in calls:
        start = next(i for i, (line, _) in enumerate(lines) if line.startswith(f"%{name} "))
        inside = []
        for line, there in lines[start + 1 :]:
            if line == "}":
                break
            inside += there
        assert set(inside) <= set(rows)


def test_a_loops_body_leads_into_the_scan():
    def loss(w, x):
        return jnp.sum(lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0])

    derivation = jaxviz.derive(loss, W, X)
    inner = set(derivation.forward.equations[0].params["jaxpr"].equations)
    for which, tanh in (("stablehlo", r"stablehlo\.tanh"), ("hlo", r" tanh\(")):
        lines = lines_of(derivation, which)
        ((stage, equation),) = next(rows for line, rows in lines if re.search(tanh, line))
        assert (stage, equation.primitive.name) == ("forward", "tanh")
        assert equation in inner
        whiles = linked(lines, r"stablehlo\.while|\bwhile\(")
        assert [("forward", "scan")] in whiles
        assert [("backward", "scan")] in whiles


def test_what_a_checkpoint_computes_again_leads_to_the_backward_pass():
    f = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
    lines = lines_of(jaxviz.derive(lambda x: jnp.sum(f(x)), X), "stablehlo")
    sines = linked(lines, r"stablehlo\.sine")
    assert sines.count([("forward", "sin")]) == 2
    assert [("backward", "sin")] in sines


def test_the_calls_of_one_function_are_told_apart():
    g = jax.jit(lambda x: jnp.exp(x) * 2.0)
    derivation = jaxviz.derive(lambda x: jnp.sum(g(jnp.sin(x)) + g(jnp.cos(x))), X)
    made = compiled(lower(derivation))
    calls = [i for i, (_, e) in enumerate(derivation.forward.walk()) if e.primitive.name == "jit"]
    places = [i for i, (_, e) in enumerate(derivation.forward.walk()) if e.primitive.name == "exp"]
    assert len(calls) == len(places) == 2
    exps = [
        link
        for line, link in zip(made["hlo"]["text"].split("\n"), made["hlo"]["links"], strict=True)
        if " exponential(" in line
    ]
    assert sorted(map(tuple, exps)) == [(i,) for i in places]
    # StableHLO contains the function once, for both calls.
    shared = [
        link
        for line, link in zip(made["stablehlo"]["text"].split("\n"), made["stablehlo"]["links"], strict=True)
        if "stablehlo.exponential" in line
    ]
    assert shared == [places]


def test_what_xla_shares_has_no_line_of_its_own():
    def loss(x):
        return jnp.sum(jnp.sin(x) * jnp.exp(jnp.sin(x)))

    derivation = jaxviz.derive(loss, X)
    made = compiled(lower(derivation))
    sines = [i for i, (_, e) in enumerate(derivation.forward.walk()) if e.primitive.name == "sin"]
    assert len(sines) == 2
    of = lambda which: {i for link in made[which]["links"] for i in link}
    assert set(sines) <= of("stablehlo")
    assert len(set(sines) & of("hlo")) == 1


def instructions(text):
    """The instructions of optimised HLO, with operands instead of their names, in any order."""
    made = {
        line: re.match(r"\s+(?:ROOT )?%(\S+) = (.*?\S [a-z0-9-]+)\(", line) for line in module._without_tables(text)
    }
    kinds = {found[1]: found[2] for found in made.values() if found}
    lines = [module._METADATA.sub("", line) for line, found in made.items() if found]
    # A fusion's parameters are in arbitrary order, so they are numbered.
    plain = (re.sub(r"(?<=parameter\()\d+|^\s*(ROOT )?%\S+ = |\.clone|/\*.*?\*/", "", line) for line in lines)
    return collections.Counter(re.sub(r"%([\w.\-]+)", lambda m: f"<{kinds.get(m[1], '')}>", line) for line in plain)


def jax_gradient(fun, args, argnums):
    out = jax.eval_shape(fun, *args)
    leaves = jax.tree.leaves(out)
    if len(leaves) == 1 and leaves[0].shape == ():
        return jax.jit(jax.value_and_grad(fun, argnums)).lower(*args)

    def gradient(*given):
        *given, cts = given
        full = lambda active: [active[argnums.index(i)] if i in argnums else x for i, x in enumerate(given)]
        y, pull_back = jax.vjp(lambda *active: fun(*full(active)), *[given[i] for i in argnums])
        return y, pull_back(cts)

    return jax.jit(gradient).lower(*args, out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["mlp", "layer_norm", "attention", "jitted_twice", "unused_input", "constant_result", "scan_rnn", "cumulative",
     "cond_branches_differ", "remat", "everything_at_once", "four_deep"],
)  # fmt: skip
def test_the_program_is_the_one_that_jax_compiles(name):
    case = CASES[name]
    is_float = lambda x: any(jnp.issubdtype(jnp.result_type(v), jnp.floating) for v in jax.tree.leaves(x))
    argnums = tuple(i for i, a in enumerate(case.args) if is_float(a))
    ours = lower_gradient(jaxviz.derive(case.fun, *case.args, argnums=argnums))
    theirs = jax_gradient(case.fun, case.args, argnums)
    assert instructions(ours.hlo) == instructions(theirs.compile().as_text())


class Untagged(Tags):
    def __init__(self, given):
        super().__init__(given)
        self.programs = tuple(given)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "scan_in_scan", "cond_in_remat", "jit_in_scan_in_jit"])
def test_tags_change_nothing_that_is_compiled(name, monkeypatch):
    derivation = jaxviz.derive(CASES[name].fun, *CASES[name].args)
    tagged = lower_gradient(derivation).hlo
    monkeypatch.setattr(lowering, "Tags", Untagged)
    plain = lower_gradient(derivation).hlo
    assert "jaxviz." in tagged
    assert "jaxviz." not in plain
    assert instructions(tagged) == instructions(plain)


@pytest.mark.parametrize("name", ["mlp", "scan_in_scan", "everything_at_once", "attention"])
def test_no_tag_or_location_is_left_in_sight(name):
    made = compiled(lower(jaxviz.derive(CASES[name].fun, *CASES[name].args)))
    for which in ("stablehlo", "hlo"):
        assert not re.search(r"jaxviz\.\d|loc\(|#loc|metadata=|FileNames|stack_frame", made[which]["text"])
    # Everything computed is linked; parameters, constants and the like need not be.
    plumbing = r"parameter\(|constant|tuple|copy|bitcast|broadcast|= \S+ convert|iota"
    bare = [
        line
        for line, link in zip(made["hlo"]["text"].split("\n"), made["hlo"]["links"], strict=True)
        if " = " in line and not link and not re.search(plumbing, line)
    ]
    total = sum(" = " in line for line in made["hlo"]["text"].split("\n"))
    assert len(bare) <= total // 20, bare


def test_a_function_without_a_gradient_is_compiled_by_itself():
    loop = jaxviz.derive(lambda x: lax.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, x), 1.0)
    made = compiled(lower(loop))
    assert made["stages"] == [("primal", 3)]
    assert made["notes"][0].startswith("The function alone, since it has no gradient: Reverse-mode")
    assert linked(lines_of(loop, "hlo"), r"\bmultiply\(") == [[("primal", "mul")]]


def test_one_path_says_so():
    made = compiled(lower(jaxviz.derive(lambda x: x * 2.0 if x > 0 else x, 1.0)))
    assert any(note.startswith("One path") for note in made["notes"])


def test_too_large_a_program_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", 3)
    with pytest.raises(ValueError, match=r"compiles programs of up to 3 equations.*as_text\(\)"):
        compiled(lower(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x) * x), X)))


def test_what_xla_refuses_is_shown_beside_what_it_was_given(monkeypatch):
    def refuse(self):
        raise RuntimeError("INTERNAL: no kernel for this\nmore")

    monkeypatch.setattr(module.Lowering, "hlo", property(refuse))
    made = compiled(lower(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x)), X)))
    assert made["hlo"] is None
    assert made["error"].startswith("RuntimeError: INTERNAL: no kernel for this")
    assert "stablehlo.sine" in made["stablehlo"]["text"]


def test_a_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 5)
    made = compiled(lower(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x)), X)))
    for which in ("stablehlo", "hlo"):
        assert len(made[which]["text"].split("\n")) == len(made[which]["links"]) == 5
        assert made[which]["cut"] > 0


HLO = """HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[3]{0})->f32[3]{0}}

FileNames
1 "/home/me/model.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}


%fused (p.1: f32[8,4]) -> f32[8,4] {
  %p.1 = f32[8,4]{1,0} parameter(0)
  ROOT %sine.1 = f32[8,4]{0,1:T(8,128)} sine(%p.1), metadata={op_name="jit(f)/jaxviz.0/sin" source_file="a \\"}b.py" source_line=3 profile_type={1}}
}

ENTRY %main.3 (w.1: f32[8,4]) -> f32[8,4] {
  %w.1 = f32[8,4]{1,0} parameter(0), metadata={op_name="params[\\'w\\']"}
  ROOT %fusion = f32[8,4]{0,1} fusion(%w.1), kind=kInput, calls=%fused, metadata={op_name="jit(f)/jaxviz.1/mul"}, backend_config={"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton"}}
}
"""  # fmt: skip


def test_the_text_of_any_backend_is_read():
    program = jaxviz.trace(lambda x: jnp.sin(x) * 2.0)(jnp.ones(3))
    found = read_hlo(HLO, Tags([program]))
    assert [(line, link) for line, link in zip(found.lines, found.links, strict=True) if line] == [
        ("HloModule jit_f, input_output_alias={ {0}: (0, {}, may-alias) }", ()),
        ("%fused (p.1: f32[8,4]) -> f32[8,4] {", ()),
        ("  %p.1 = f32[8,4] parameter(0)", ()),
        ("  ROOT %sine.1 = f32[8,4]{0,1:T(8,128)} sine(%p.1)", (0,)),
        ("}", ()),
        ("ENTRY %main.3 (w.1: f32[8,4]) -> f32[8,4] {", ()),
        ("  %w.1 = f32[8,4] parameter(0)  // params['w']", ()),
        ("  ROOT %fusion = f32[8,4]{0,1} fusion(%w.1), kind=kInput, calls=%fused, backend_config={…}", (1, 0)),
        ("}", ()),
    ]


def test_an_operation_with_regions_is_linked_where_it_begins():
    program = jaxviz.trace(lambda x: jnp.sin(x) * 2.0)(jnp.ones(3))
    text = """module @jit_f {
  func.func public @main(%arg0: tensor<3xf32> loc("x")) -> tensor<f32> {
    %0 = stablehlo.reduce(%arg0 init: %c) across dimensions = [0] : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
     reducer(%arg1: tensor<f32> loc("r:"(#loc1)), %arg2: tensor<f32> loc(unknown))  {
      %1 = stablehlo.add %arg1, %arg2 : tensor<f32> loc(#loc2)
    } loc(#loc1)
    %2 = "stablehlo.case"(%0) ({
      stablehlo.return %0 : tensor<f32> loc(#loc)
    }, {
      stablehlo.return %0 : tensor<f32> loc(#loc)
    }) : (tensor<f32>) -> tensor<f32> loc("jit(f)/jaxviz.1/case"(#loc))
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc1 = loc("jit(f)/jaxviz.0/reduce"(#loc))
#loc2 = loc("jit(f)/jaxviz.1/add"(#loc))
"""
    found = read_stablehlo(text, Tags([program]))
    assert [found.links[i] for i in range(len(found.lines))] == [
        (), (), (0,), (), (1,), (), (1,), (), (), (), (), (), (),
    ]  # fmt: skip
    assert found.lines[3] == "     reducer(%arg1: tensor<f32>, %arg2: tensor<f32>)  {"


def test_a_path_names_the_innermost_equation_of_the_right_call():
    g = jax.jit(lambda x: jnp.exp(x))
    program = jaxviz.trace(lambda x: g(x) + g(x * 2.0))(1.0)
    names = [e.primitive.name for _, e in program.walk()]
    tags = Tags([program])
    first, second = (i for i, name in enumerate(names) if name == "jit")
    assert collections.Counter(names)["exp"] == 2
    carried = names.index("exp")
    assert tags.named(f"jit(f)/jaxviz.{first}/jit(g)/jaxviz.{carried}/exp") == (first + 1,)
    assert tags.named(f"jit(f)/jaxviz.{second}/jit(g)/jaxviz.{carried}/exp") == (second + 1,)
    assert tags.named(f"jaxviz.{carried}/exp") == (first + 1, second + 1)
    assert tags.named("jit(f)/my_jaxviz.1/exp") == tags.named("") == ()


@pytest.mark.slow
def test_collectives_that_xla_made_one_are_linked_to_what_each_is_for():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    laid_out = lambda *shape, spec=(): jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=jax.NamedSharding(mesh, jax.P(*spec))
    )
    loss = lambda ws, x: jnp.sum(jnp.tanh(jnp.tanh(x @ ws[0]) @ ws[1]))
    derivation = jaxviz.derive(loss, [laid_out(4, 4)] * 2, laid_out(16, 4, spec=("i",)))
    linked = {
        e.primitive.name: stage
        for line, found in lines_of(derivation, "hlo")
        if " all-reduce(" in line
        for stage, e in found
    }
    assert linked == {"reduce_sum": "forward", "dot_general": "backward"}


def layers(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.sum(x**2)


def test_what_jax_hands_to_xla_is_there_before_it_is_compiled():
    found = lower(jaxviz.derive(layers, [jnp.ones((3, 3))] * 3, jnp.ones((2, 3))))
    first = lowered(found)
    assert "compiled" not in vars(found)
    made = compiled(found)
    assert {key: made[key] for key in first} == first
    assert made["hlo"] is not None


def test_one_block_alone_is_linked_to_the_equations_of_the_first():
    ws, x = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 12, jax.ShapeDtypeStruct((4, 8), jnp.float32)
    derivation = jaxviz.derive(layers, ws, x)
    one = one_block_of(derivation)
    assert "12 identical blocks, `x = jnp.tanh(x @ w)`" in one.text
    made, whole = one.compiled(), compiled(lower(derivation))
    assert made["isBlock"]
    assert made["stages"] == whole["stages"]
    assert one.text in made["notes"][0]
    assert len(made["hlo"]["text"]) < 0.5 * len(whole["hlo"]["text"])
    programs = [e for stage in ("forward", "backward") for _, e in getattr(derivation, stage).walk()]
    linked = [str(programs[n].primitive.name) for link in made["stablehlo"]["links"] for n in link]
    # In a single block, x has no cotangent.
    assert (linked.count("tanh"), linked.count("dot_general")) == (1, 2)
    assert one_block_of(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x) * x), X)) is None
