"""A derivation as columns: rows, names and links agree with the programs."""

import json
import re
from dataclasses import replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from device_programs import CASES
from printed_programs import FIXTURE, PROGRAMS, printed

import jaxviz
from jaxviz.analysis.naming import Naming
from jaxviz.derivation import STAGES
from jaxviz.features.cost.parts import cost_of
from jaxviz.features.explorer import overview
from jaxviz.features.explorer.columns import ViewMaker, pattern_of, view_of
from jaxviz.features.memory import timeline as memory
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Literal
from jaxviz.page.schema import KINDS, MEMORY_KINDS, ROLES

PRINTED = json.loads(FIXTURE.read_text(encoding="utf-8"))
PRINTED_WITH = PRINTED.pop("jax")


@jax.jit
def scaled(x, w):
    return jnp.tanh(x @ w) * 2.0


def loss(params, x):
    for w in params:
        x = scaled(x, w)
    return jnp.sum(x**2)


@pytest.fixture(scope="module")
def derivation():
    return jaxviz.derive(loss, [jnp.ones((3, 3))] * 2, jnp.ones((2, 3)))


@pytest.fixture(scope="module")
def view(derivation):
    return view_of(derivation)


def text(view, column, i):
    return view.strings[view.columns[column][i]]


def typed(view, variable):
    kind = view.columns["type_text"][view.columns["variable_type"][variable]]
    return f"{text(view, 'variable_name', variable)}:{view.strings[kind]}"


def rows_of(view, derivation):
    """Every equation with its row, stage by stage."""
    for key in STAGES:
        equations = [e for _, e in getattr(derivation, key).walk()]
        first, last = view.stage(key).equations
        assert last - first == len(equations)
        yield from ((key, first + i, e) for i, e in enumerate(equations))


def test_rows_are_the_equations_of_all_stages_in_order(view, derivation):
    for _, row, equation in rows_of(view, derivation):
        assert text(view, "equation_primitive", row) == equation.primitive.name
        assert ROLES[view.columns["equation_role"][row]] == (equation.origin.role if equation.origin else "primal")


def test_rows_have_what_was_called_on_the_way_to_them(view, derivation):
    paths = {text(view, "equation_scope", row) for key, row, _ in rows_of(view, derivation) if key == "backward"}
    assert paths == {"loss", "scaled"}
    for _, row, equation in rows_of(view, derivation):
        assert view.columns["equation_flops"][row] == cost_of(equation).flops


def test_links_lead_to_the_equation_of_origin(view, derivation):
    equation_of = {row: e for _, row, e in rows_of(view, derivation)}
    linked, all_shown = 0, set(equation_of.values())
    for row, equation in equation_of.items():
        source = view.columns["equation_origin"][row]
        shown = [e for e in ancestors(equation) if e in all_shown]
        assert (equation_of[source] if source >= 0 else None) is (shown[0] if shown else None)
        linked += bool(shown)
    assert linked > 20


def test_rows_that_show_one_equation_name_the_first_of_them(view, derivation):
    first_row = {}
    for _, row, equation in rows_of(view, derivation):
        first = first_row.setdefault(equation, row)
        assert view.columns["equation_twin"][row] == (-1 if first == row else first)


def test_names_are_those_that_jax_prints(view, derivation):
    printed = str(derivation.forward)
    stage = view.stage("forward")
    top = [row for row in range(*stage.equations) if view.columns["equation_program"][row] == stage.programs[0]]
    assert len(top) == len(derivation.forward.equations)
    for row in top:
        start, stop = view.columns["equation_outputs"][row : row + 2]
        outputs = " ".join(typed(view, v) for v in view.columns["output_vars"][start:stop])
        assert f"{outputs} = {text(view, 'equation_primitive', row)}" in printed


@pytest.mark.parametrize("stage", ["linear", "backward"])
def test_residuals_keep_their_forward_names(view, derivation, stage):
    top = view.stage(stage).programs[0]
    start = view.columns["program_binders"][top]
    names = [text(view, "variable_name", view.columns["binder_vars"][start + i]) for i in range(derivation.n_residuals)]
    for residual, atom, name in zip(derivation.residuals, derivation.linearized.residuals, names, strict=True):
        assert isinstance(atom, Literal) or name == residual.name
    first, last = view.columns["program_binders"][top], view.columns["program_binders"][top + 1]
    bound = [text(view, "variable_name", v) for v in view.columns["binder_vars"][first:last]]
    assert len(set(bound)) == len(bound)


def test_residuals_lead_to_producer_and_consumers(view, derivation):
    equation_of = {row: e for _, row, e in rows_of(view, derivation)}
    columns = view.columns
    for i, residual in enumerate(derivation.residuals):
        assert text(view, "residual_name", i) == residual.name
        assert KINDS[columns["residual_kind"][i]] == residual.kind
        assert columns["residual_nbytes"][i] == residual.nbytes
        producer = columns["residual_producer"][i]
        assert (equation_of[producer] if producer >= 0 else None) is residual.producer
        readers = columns["consumer_rows"][columns["residual_consumers"][i] : columns["residual_consumers"][i + 1]]
        assert [equation_of[row] for row in readers] == list(residual.consumers)


def test_a_stage_that_fails_shows_its_error_and_the_rest_stands():
    def calls_back(x):
        return jnp.sin(jax.pure_callback(lambda v: v, x, x))

    view = view_of(jaxviz.derive(calls_back, 1.0))
    assert view.stage("primal").equations == (0, 2)
    assert "callbacks do not support JVP" in view.stage("backward").error
    assert view.check.status == "unknown"
    assert "callbacks do not support JVP" in view.notes[0]


def test_a_recorded_path_says_so_and_names_its_branches():
    def f(x):
        if x > 0:
            return jnp.sin(x)
        return x

    view = view_of(jaxviz.derive(f, 2.0))
    assert view.stage("primal").is_path
    (branch,) = view.branches
    assert (branch.kind, branch.value) == ("bool", "True")
    (excerpt,) = view.files[branch.file].excerpts
    assert excerpt.lines[branch.line - excerpt.first].strip() == "if x > 0:"


def test_nested_programs_have_the_name_and_the_length_of_their_equation():
    def f(x):
        x, _ = jax.lax.scan(lambda c, _: (scaled(c, c), None), x, length=5)
        return jax.lax.while_loop(lambda c: jnp.sum(c) < 0.0, jnp.sin, x)

    view = view_of(jaxviz.derive(f, jnp.ones((2, 2))))
    of = [(text(view, "program_name", p), view.columns["program_length"][p]) for p in range(*view.stages[0].programs)]
    assert of == [("", 0), ("", 5), ("scaled", 0), ("", 0), ("", 0)]


def test_what_came_before_a_derived_function_is_told():
    """The mapped gradient of a function: its last equation derives through vmap and transpose."""
    mapped = jaxviz.vmap(jaxviz.grad(lambda w, x: jnp.sum(jnp.sin(w * x))), (None, 0))
    view = view_of(jaxviz.derive(mapped, jnp.ones(3), jnp.ones((2, 3))))
    row = view.stages[0].equations[1] - 1
    assert text(view, "equation_primitive", row) == "mul"
    assert text(view, "equation_rule", row) == "batching rule of mul"
    assert text(view, "equation_earlier", row).splitlines() == [
        "transpose rule of mul (transpose)",
        "jvp rule of mul (linearize)",
    ]
    shown = np.flatnonzero(view.columns["equation_origin"] >= 0)
    assert not view.columns["equation_earlier"][shown[shown >= view.stages[2].equations[0]]].any()


# --- memory -----------------------------------------------------------------------------------------------------------


def test_steps_are_the_equations_of_the_timeline_and_buffers_its_values(view, derivation):
    timeline = jaxviz.memory(derivation)
    equation_of = {row: (key, e) for key, row, e in rows_of(view, derivation)}
    steps = [equation_of[row] for row in view.columns["step_row"]]
    assert steps == [("backward" if s.is_backward else "forward", s.equation) for s in timeline.steps]
    assert MEMORY_KINDS == memory.KINDS
    for i, value in enumerate(timeline.values):
        assert (text(view, "buffer_name", i), text(view, "buffer_type", i)) == (value.what, value.type)
        nbytes, kind, born, last, row = (
            view.columns[f"buffer_{name}"][i] for name in ("nbytes", "kind", "born", "last", "row")
        )
        assert (nbytes, MEMORY_KINDS[kind], born, last) == (value.nbytes, value.kind, value.born, value.last)
        assert (equation_of[row][1] if row >= 0 else None) is value.equation
    holders = {r: i for i, value in enumerate(timeline.values) for r in value.residuals}
    assert holders
    assert view.columns["residual_buffer"].tolist() == [holders.get(i, -1) for i in range(len(derivation.residuals))]


def test_the_headline_is_written_once(monkeypatch):
    """The outline and the view have the same one."""
    asked, find = [], overview.not_reached
    monkeypatch.setattr(overview, "not_reached", lambda d: asked.append(d) or find(d))
    maker = ViewMaker(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)), jnp.ones(3)))
    assert maker.outline().headline == maker.first.headline
    assert len(asked) == 1


def test_residuals_and_memory_are_named_by_one_search(monkeypatch):
    searched, find = [], Naming.__dict__["_readers"].func
    counted = cached_property(lambda naming: searched.append(naming) or find(naming))
    counted.__set_name__(Naming, "_readers")
    monkeypatch.setattr(Naming, "_readers", counted)
    view_of(jaxviz.derive(lambda x: jnp.sum(jnp.sin(x) * jnp.cos(x)), jnp.ones(3)))
    assert len(searched) == 1


def test_steps_of_a_function_called_twice_have_rows_of_their_own():
    """A function that JAX traces once, but that is called twice, has two steps."""
    view = view_of(jaxviz.derive(lambda x: jnp.sum(jax.jit(jnp.sin)(jax.jit(jnp.sin)(x))), jnp.ones(3)))
    rows = view.columns["step_row"].tolist()
    assert len(set(rows)) == len(rows)
    assert rows == sorted(rows)


def test_without_a_reverse_mode_there_is_a_reason_in_place_of_the_memory():
    view = view_of(jaxviz.derive(lambda x: jax.lax.while_loop(lambda c: c < 9.0, lambda c: c * 2.0, x), 1.0))
    assert "Reverse-mode differentiation does not work for lax.while_loop" in view.no_memory
    assert view.columns["step_row"].size == view.columns["buffer_nbytes"].size == 0
    assert view.stage("primal").equations == (0, 3)


def test_scopes_of_residuals_are_handed_on():
    def f(x):
        with jax.named_scope("block"):
            return jnp.sin(x)

    view = view_of(jaxviz.derive(f, 1.0))
    assert text(view, "residual_scope", 0) == "block"


# --- devices ----------------------------------------------------------------------------------------------------------


def named(case):
    return next(c for c in CASES if c.name == case)


def device_view(case):
    """The view of one of the programs for several devices, differentiated in all its arguments."""
    case = named(case)
    return view_of(jaxviz.derive(case.fun, *case.args, argnums=tuple(range(len(case.args)))))


def rows_named(view, primitive, stage="primal"):
    return [r for r in range(*view.stage(stage).equations) if text(view, "equation_primitive", r) == primitive]


@pytest.mark.parametrize(
    "case", ["data_parallel_loss", "psum_of_two_axes", "explicit_axes_in_shard_map", "pmap", "reduced", "unreduced"]
)
def test_types_show_axes_as_jax_prints_them(case):
    view, case = device_view(case), named(case)
    printed = str(jax.make_jaxpr(case.fun)(*case.args))
    first, last = view.stage("primal").equations
    start, stop = view.columns["equation_outputs"][[first, last]]
    shown = {typed(view, v).split(":", 1)[1] for v in view.columns["output_vars"][start:stop]}
    assert shown <= set(re.findall(r":(\S*?\[\S*?\](?:\{.*?\})?)", printed))


@pytest.mark.parametrize(
    ("case", "primitive", "params"),
    [
        ("only_one_axis_manual", "shard_map", ["i=2", "others=(j=4)"]),
        ("all_gather_tiled", "all_gather", ["axis_name=('i',)"]),
        ("constrained", "sharding_constraint", ["sharding=P('i', 'j') over i=2 j=4"]),
        ("jit_shardings", "jit", ["name=<lambda>", "in_shardings=(P('i') over i=2 j=4, P() over i=2 j=4)",
                                  "out_shardings=(P('i') over i=2 j=4, P('i') over i=2 j=4)"]),
    ],
)  # fmt: skip
def test_axes_and_shardings_come_first_in_the_params(case, primitive, params):
    view = device_view(case)
    row, *_ = rows_named(view, primitive)
    assert text(view, "equation_params", row).splitlines()[: len(params)] == params


def test_a_shard_map_says_its_axes_and_how_each_value_is_laid_out():
    view = device_view("data_parallel_loss")
    (row,) = rows_named(view, "shard_map")
    params = text(view, "equation_params", row).splitlines()
    assert params == ["i=8", "in_specs=(P('i'), P(), P())", "out_specs=(P())"]
    i = view.columns["layout_rows"].tolist().index(row)
    assert text(view, "layout_texts", i).splitlines() == ["device", "P('i')", "P()", "P()", "P()"]


def test_one_in_another_that_leaves_no_axis_runs_on_a_device():
    view = device_view("one_in_another")
    places = [text(view, "layout_texts", i).splitlines()[0] for i in range(2)]
    assert places == ["place along i", "device"]
    inner = text(view, "equation_params", view.columns["layout_rows"][1]).splitlines()
    assert inner[:2] == ["j=4", "check_vma=False"]


@pytest.mark.parametrize("case", ["data_parallel_loss", "replicated_argument_untyped"])
def test_sums_over_axes_that_transposition_put_in_are_listed(case):
    view = device_view(case)
    sums = [r for p in ("psum", "psum_invariant") for r in rows_named(view, p, "backward")]
    exchanges = dict(zip(view.columns["axis_rows"].tolist(), view.columns["axis_exchanges"].tolist(), strict=True))
    assert sums
    assert all(exchanges[r] == 1 for r in sums)
    assert all(text(view, "equation_params", r).startswith("axes=('i',)") for r in sums)
    assert all(exchanges[r] == 0 for r in rows_named(view, "pvary"))
    assert all(r not in exchanges for r in rows_named(view, "reduce_sum"))


def test_bytes_on_a_device_follow_the_type():
    view = device_view("explicit_axes")
    strings = [view.strings[t] for t in view.columns["type_text"]]
    sizes = dict(
        zip(strings, zip(view.columns["type_nbytes"], view.columns["type_per_device"], strict=True), strict=True)
    )
    assert sizes["f32[8@i,4@j]"] == (128, 16)
    assert sizes["f32[4,3]"] == (48, -1)


def test_bytes_of_a_residual_on_a_device_are_handed_on(derivation):
    items = derivation.residuals.items
    given = replace(derivation.residuals, items=(replace(items[0], nbytes_per_device=3), *items[1:]))
    other = jaxviz.derive(loss, [jnp.ones((3, 3))] * 2, jnp.ones((2, 3)))
    vars(other).update(_residuals={True: given}, linearized=derivation.linearized)
    assert view_of(other).columns["residual_per_device"].tolist() == [3] + [-1] * (len(items) - 1)


def donations(view):
    names = ("rows", "operands", "results")
    columns = [view.columns[f"donation_{name}"].tolist() for name in names]
    reasons = [text(view, "donation_reasons", i) for i in range(len(columns[0]))]
    return [d for d in zip(*columns, reasons, strict=True) if d[0] < view.stage("primal").equations[1]]


def test_donated_operands_have_the_result_that_takes_their_memory_or_a_reason():
    step = jax.jit(lambda w, g, x: (w - 0.1 * g, jnp.sum(x)), donate_argnums=(0, 2))
    view = view_of(jaxviz.derive(step, jnp.ones(3), jnp.ones(3), jnp.ones(5)))
    taken, lost = donations(view)
    assert taken == (0, 0, 0, "")
    assert lost[:3] == (0, 2, -1)
    assert "no result has its type f32[5]" in lost[3]


def test_the_timeline_frees_what_a_jit_donates():
    step = lambda w, x: (w * jnp.sum(jnp.sin(x * 2.0)), x * 3.0)
    shown = lambda f: view_of(jaxviz.derive(f, jnp.ones(9), jnp.ones(900))).columns
    given, held = shown(jax.jit(step, donate_argnums=1)), shown(jax.jit(step))
    of_arguments = lambda c: [
        int(last) for kind, last in zip(c["buffer_kind"], c["buffer_last"], strict=True) if kind == 0
    ]
    end = len(held["step_row"])
    assert of_arguments(held) == [end, end]
    assert of_arguments(given)[0] == end
    assert of_arguments(given)[1] < end


def test_what_a_jit_inside_another_donates_is_not_used():
    step = jax.jit(lambda w: w * 2.0, donate_argnums=0)
    view = view_of(jaxviz.derive(jax.jit(lambda w: step(w)), jnp.ones(3)))
    ((_, operand, result, reason),) = donations(view)
    assert (operand, result) == (0, -1)
    assert "inside another" in reason


def test_a_token_among_the_results_takes_no_memory():
    step = jax.jit(lambda w: (jax.lax.create_token(w), w * 2.0), donate_argnums=0)
    assert donations(view_of(jaxviz.derive(lambda w: step(w)[1], jnp.ones(3)))) == [(0, 0, 1, "")]


@pytest.mark.skipif(
    jax.__version__ != PRINTED_WITH, reason=f"written with JAX {PRINTED_WITH}; others print other params"
)
@pytest.mark.parametrize("name", PRINTED)
def test_the_text_that_the_browser_is_tested_with_is_what_jax_prints(name):
    """To update it, run `python tests/features/explorer/printed_programs.py`."""
    made = json.loads(json.dumps(printed(*PROGRAMS[name])))
    assert made["text"] == PRINTED[name]["text"]
    params = lambda view: [view["strings"][i] for i in view["columns"]["equation_printed"]]
    assert params(made["view"]) == params(PRINTED[name]["view"])


def test_inputs_are_labelled_by_their_path_and_by_whose_they_are():
    derivation = jaxviz.derive(lambda n, p, x: (p["w"] * x * n, x), 3, {"w": 1.0}, 2.0, argnums=(1, 2))
    view = view_of(derivation)
    labels = lambda key: [text(view, "variable_label", v) for v in binders(view, key)]
    assert labels("primal") == ["p['w']", "x"]
    assert labels("backward")[:-2] == [f"residual {r.expression}" for r in derivation.residuals]
    assert labels("jvp")[-2:] == ["tangent of p['w']", "tangent of x"]
    assert labels("linear")[-2:] == ["tangent of p['w']", "tangent of x"]
    assert labels("backward")[-2:] == ["cotangent of result 0", "cotangent of result 1"]


def binders(view, key):
    program = view.stage(key).programs[0]
    start, end = view.columns["program_binders"][program : program + 2]
    return view.columns["binder_vars"][start:end]


def filled(pattern, names):
    """The reason with its names, like in `widgets/src/model/records.ts`."""
    first, *rest = pattern.split("``") if names else [pattern]
    return first + "".join(f"`{name}`{part}" for name, part in zip(names, rest, strict=True))


def test_the_sentences_are_those_of_the_residuals(derivation):
    view = view_of(derivation)
    starts, names = (view.columns[name] for name in ("residual_names", "reason_names"))
    sentences = [
        filled(text(view, "residual_reason", i), [view.strings[n] for n in names[starts[i] : starts[i + 1]]])
        for i in range(len(derivation.residuals))
    ]
    assert sentences == [r.reason for r in derivation.residuals]
    assert len(set(view.columns["residual_reason"])) < len(set(sentences))


@pytest.mark.parametrize("sentence", ["", "none", "`a`", "x `a` y `b`", "`a``b` c", "an odd ` one", "`` empty"])
def test_a_sentence_is_its_pattern_with_its_names(sentence):
    assert filled(*pattern_of(sentence)) == sentence


LIBRARY = """
import threading

import jax
import jax.numpy as jnp

soft = jax.jit(lambda x: jnp.log1p(jnp.exp(x)))
warm = threading.Thread(target=lambda: soft(jnp.ones(3)))
warm.start()
warm.join()
"""


def test_what_a_library_traced_before_is_on_the_line_of_the_users_that_called_it(tmp_path, monkeypatch):
    """JAX caches the trace, which contains no line of the user's."""
    (tmp_path / "soft_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    jaxviz.own_code(exclude=[str(tmp_path / "soft_library.py")])
    try:
        from soft_library import soft

        def called(x):
            return jnp.sum(soft(x))

        view = view_of(jaxviz.derive(called, jnp.ones(3)))
        first, last = view.stage("primal").equations
        places = {view.columns["equation_location"][row] for row in range(first, last)}
        found = {(view.files[view.columns["location_file"][p]].label, view.columns["location_line"][p]) for p in places}
        assert found == {("test_columns.py", called.__code__.co_firstlineno + 1)}
    finally:
        jaxviz.own_code()
