"""The compiled program: links are correct, and the program is the one that JAX compiles. A transcript reads texts."""

import collections
import re

import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import programs
import pytest
import transcripts
from jax import lax
from short_runs import short

import jaxviz
from jaxviz.analysis import lowering
from jaxviz.analysis.lowering import Tags, lower_gradient
from jaxviz.ir.origin import locate
from jaxviz.xla.explorer_stage import compiled as module
from jaxviz.xla.explorer_stage.compiled import compiled, lower, lowered
from jaxviz.xla.explorer_stage.one_block import one_block_of

X = jnp.linspace(0.1, 1.0, 6).reshape(2, 3)
W = jnp.ones((3, 3)) * 0.3
CASES = {case.name: case for case in programs.CASES}


@transcripts.of("explorer_stage")
def test_transcript(transcript, tmp_path):
    transcripts.replay(transcript, tmp_path)


def links_of(text):
    """The lines of a text, each with the numbers of its equations."""
    return list(zip(text["text"].split("\n"), text["links"], strict=True))


def lines_of(derivation, which):
    """The lines of a text with the equations that each is linked to, as (stage, equation)."""
    made = compiled(lower(derivation))
    rows = [(stage, e) for stage, _ in made["stages"] for _, e in getattr(derivation, stage).walk()]
    assert len(rows) == sum(n for _, n in made["stages"])
    return [(line, [rows[i] for i in link]) for line, link in links_of(made[which])]


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
    for name, primitive, offset in (("sine", "sin", 1), ("cosine", "cos", 1), ("log", "log", 2)):
        # A fusion recomputes what it reads, so there may be several instructions for an equation.
        (((stage, equation),),) = {tuple(rows) for line, rows in lines if re.search(operation(name), line)}
        assert (stage, equation.primitive.name) == ("forward", primitive)
        assert locate(equation.source).line == loss.__code__.co_firstlineno + offset
    assert linked(lines, operation("dot(_general)?"))[0] == [("forward", "dot_general")]


def test_a_fusion_leads_to_all_that_it_holds():
    lines = lines_of(jaxviz.derive(lambda x: jnp.sum(jnp.tanh(x) * jnp.cos(x)), X), "hlo")
    calls = [(re.search(r"calls=%(\S+)", line)[1].rstrip(","), rows) for line, rows in lines if " fusion(" in line]
    assert calls
    for name, rows in calls:
        start = next(i for i, (line, _) in enumerate(lines) if line.startswith(f"%{name} "))
        end = next(i for i, (line, _) in enumerate(lines) if i > start and line == "}")
        assert {row for _, inside in lines[start + 1 : end] for row in inside} <= set(rows)


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


def numbers_of(derivation, name):
    return [i for i, (_, e) in enumerate(derivation.forward.walk()) if e.primitive.name == name]


def test_the_calls_of_one_function_are_told_apart():
    g = jax.jit(lambda x: jnp.exp(x) * 2.0)
    derivation = jaxviz.derive(lambda x: jnp.sum(g(jnp.sin(x)) + g(jnp.cos(x))), X)
    made, places = compiled(lower(derivation)), numbers_of(derivation, "exp")
    assert len(numbers_of(derivation, "jit")) == len(places) == 2
    exps = [link for line, link in links_of(made["hlo"]) if " exponential(" in line]
    assert sorted(map(tuple, exps)) == [(i,) for i in places]
    # StableHLO contains the function once, for both calls.
    assert [link for line, link in links_of(made["stablehlo"]) if "stablehlo.exponential" in line] == [places]


def test_what_xla_shares_has_no_line_of_its_own():
    derivation = jaxviz.derive(lambda x: jnp.sum(jnp.sin(x) * jnp.exp(jnp.sin(x))), X)
    made, sines = compiled(lower(derivation)), numbers_of(derivation, "sin")
    of = lambda which: {i for link in made[which]["links"] for i in link}
    assert len(sines) == 2
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
    short(["mlp", "layer_norm", "attention", "jitted_twice", "unused_input", "constant_result", "scan_rnn",
           "cumulative", "cond_branches_differ", "remat", "everything_at_once", "four_deep"], 2),
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
    lines = [(line, link) for line, link in links_of(made["hlo"]) if " = " in line]
    bare = [line for line, link in lines if not link and not re.search(plumbing, line)]
    assert len(bare) <= len(lines) // 20, bare


def test_what_xla_refuses_is_shown_beside_what_it_was_given(monkeypatch):
    def refuse(self):
        raise RuntimeError("INTERNAL: no kernel for this\nmore")

    monkeypatch.setattr(module.Lowering, "hlo", property(refuse))
    made = compiled(lower(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x)), X)))
    assert made["hlo"] is None
    assert made["error"].startswith("RuntimeError: INTERNAL: no kernel for this")
    assert "stablehlo.sine" in made["stablehlo"]["text"]


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
