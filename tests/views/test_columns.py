"""A derivation as columns: rows, names and links hold against the programs that they show."""

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.derivation import STAGES
from jaxviz.ir.origin import ancestors
from jaxviz.ir.syntax import Literal
from jaxviz.views.columns import view_of, visible_params
from jaxviz.views.schema import KINDS, ROLES


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


def test_inputs_are_labelled_by_their_path(view):
    first, second = view.columns["binder_vars"][:2]
    assert [text(view, "variable_label", v) for v in (first, second)] == ["params[0]", "params[1]"]


def test_residual_inputs_are_labelled_by_how_they_are_made(view, derivation):
    top = view.stage("backward").programs[0]
    start = view.columns["program_binders"][top]
    labels = [
        text(view, "variable_label", v) for v in view.columns["binder_vars"][start : start + derivation.n_residuals]
    ]
    assert labels == [f"residual {r.expression}" for r in derivation.residuals]
    assert "residual params[1]" in labels


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


def test_of_a_jit_only_the_name_is_shown(derivation):
    calls = [e for e in derivation.primal.equations if e.primitive.name == "jit"]
    assert visible_params(calls[0]) == ["name=scaled"]


def test_what_came_before_a_derived_function_is_told():
    """The mapped gradient of a function: its last equation is a sum over the axis, and leads back through vmap and transpose."""
    total = jaxviz.vmap(
        jaxviz.grad(lambda w, x: jnp.sum(jnp.sin(w * x)), reduce_axes=("i",)), (None, 0), None, axis_name="i"
    )
    view = view_of(jaxviz.derive(total, jnp.ones(3), jnp.ones((2, 3))))
    row = view.stages[0].equations[1] - 1
    assert text(view, "equation_primitive", row) == "psum"
    assert text(view, "equation_rule", row) == "batching rule of psum"
    assert text(view, "equation_earlier", row).splitlines() == [
        "summed over the axis i, along which the primal is the same (transpose)",
        "jvp rule of mul (linearize)",
    ]
    later = range(*view.stages[2].equations)
    assert not any(text(view, "equation_earlier", r) for r in later if view.columns["equation_origin"][r] >= 0)


def test_nothing_came_before_a_function(view):
    assert not any(text(view, "equation_earlier", r) for r in range(len(view.columns["equation_earlier"])))
