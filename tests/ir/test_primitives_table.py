"""The table of plain primitives is complete, has no stale names, and is the only one."""

import ast
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive
from primitives import SAMPLES

import jaxviz
from jaxviz.features.cost.counts import COUNTS
from jaxviz.ir.compat.hi_primitives import LowerVal, RaiseVal
from jaxviz.ir.primitives import OTHER, PLAIN, ROWS, is_view, keeps_numbers, plain
from jaxviz.transforms.flags import passes_on

PACKAGE = Path(jaxviz.__file__).parent


def primitives_of(prefix):
    """The names of the primitives that a part of JAX defines or imports."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith(prefix)]
    return {p.name for m in modules for p in list(vars(m).values()) if isinstance(p, Primitive)}


OF_SOME_VERSIONS = {
    "log2", "one_minus_square", "pbroadcast_dynamic", "reduced_vary_cast", "unreduced_pmax", "unreduced_pmin",
    "vary_unreduced_cast",  # since 0.12
    "reduced_vary_cast_p", "vary_unreduced_cast_p",  # before
}  # fmt: skip

BY_DEFAULT = {
    "holds programs": "composite cond custom_linear_solve eval_jaxpr program_order reduce reduce_window scan "
    "select_and_scatter while",
    "takes a number of steps that depends on the numbers, or an algorithm of the backend": (
        "approx_top_k cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu lu_pivots_to_permutation "
        "ormqr polynomial "
        "qr scaled_dot schur svd symmetric_product top_k tridiagonal tridiagonal_solve"
    ),
    "starts, ends or addresses an exchange in another way than the whole one": (
        "all_gather_done all_gather_reduced_start all_gather_start all_to_all_done all_to_all_start pbroadcast_done "
        "pbroadcast_start "
        "ppermute_done ppermute_start precv psend psum_done psum_invariant_start psum_start ragged_all_to_all "
        "reduce_scatter_done "
        "reduce_scatter_start unreduced_psum_start unreduced_reduce_scatter_start"
    ),
    "is bound by JAX alone, inside its own transforms": (
        "after_all from_edtype select_and_gather_add stage tie to_edtype core_call call jaxpr_call relayout"
    ),
}


def test_every_plain_primitive_of_lax_is_in_the_table_or_left_out_for_a_reason():
    left_out = {name for names in BY_DEFAULT.values() for name in names.split()}
    assert primitives_of("jax._src.lax.") - set(PLAIN) - left_out == set()
    assert left_out & set(PLAIN) == set()
    assert plain("eigh") is OTHER


def test_the_table_names_primitives_of_jax_each_once():
    names = [name for names, _ in ROWS for name in names.split()]
    assert sorted(set(names)) == sorted(names)
    of_ours = {kind.__name__ for kind in (LowerVal, RaiseVal)}
    assert set(names) - primitives_of("jax") - of_ours <= OF_SOME_VERSIONS
    assert set(COUNTS) == set(names)


ALLOWED = {
    "features/nans/advice.py": "what to write in place of a function near the edge of its domain",
    "features/nans/causes.py": "sentences about mathematical functions where they are not finite",
    "features/nans/events.py": "functions whose slope is written with the same function",
    "features/probes/watching.py": "the columns of a table of recorded values, some of which have such names",
    "features/residuals/reasons.py": "sentences about what a derivative does with a value",
    "teach/autodiff/grading.py": "the primitives of the course's own engine",
    "teach/autodiff/small_engine.py": "the primitives of the course's own engine",
    "teach/saved_values.py": "the signs of Python's operators",
}


UNMISTAKABLE = set(PLAIN) - {"and", "or", "not", "name", "copy"}


def literals(tree):
    """The strings of each literal collection, of a text that is split at spaces too."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            parts = node.keys if isinstance(node, ast.Dict) else node.elts
            parts = [p for part in parts for p in (part.elts if isinstance(part, ast.Tuple) else (part,))]
            yield node, {p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)}
        elif isinstance(node, ast.Attribute) and node.attr == "split" and isinstance(node.value, ast.Constant):
            yield node, set(str(node.value.value).split())


def test_no_other_module_has_a_table_of_primitives():
    found, allowed = {}, set()
    for file in sorted(PACKAGE.rglob("*.py")):
        where = file.relative_to(PACKAGE).as_posix()
        text = file.read_text(encoding="utf-8")
        quoted = set(re.findall(r"[\"' ]([a-z][\w-]+)(?=[\"' ])", text))
        for node, texts in literals(ast.parse(text)) if len(quoted & UNMISTAKABLE) >= 3 or where in ALLOWED else ():
            if len(texts & set(PLAIN)) >= 3 and where != "ir/primitives.py":
                allowed.update({where} & set(ALLOWED))
                found |= {} if where in ALLOWED else {f"{where}:{node.lineno}": sorted(texts & set(PLAIN))}
    assert found == {}
    assert allowed == set(ALLOWED)


PASSING = [
    pytest.param(sample, bad, id=f"{sample}{'' if np.isrealobj(bad) else ' of complex numbers'}")
    for sample in SAMPLES
    for bad in (np.array([np.inf, -np.inf, np.nan], np.float32), np.array([np.inf, 1 + 1j * np.inf], np.complex64))
    if plain(sample.primitive).passes_on or plain(sample.primitive).keeps_numbers
    if np.isrealobj(bad) or "complex64" in sample.dtypes
]


@pytest.mark.slow
@pytest.mark.parametrize(("sample", "bad"), PASSING)
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_what_is_not_finite_stays_so_where_the_table_says(sample, bad):
    """Each operand with one infinity or NaN, whose result is computed by JAX."""
    args = [a.astype(bad.dtype) if a.dtype == np.float64 else a for a in sample.args]
    jaxpr = jax.make_jaxpr(sample.fun)(*args)
    operations = {e.primitive.name: e.operation for e in jaxviz.trace(sample.fun)(*args).equations}
    for e in jaxpr.eqns:
        passes = passes_on(operations[e.primitive.name]) if e.primitive.name == sample.primitive else ()
        for k, aval in enumerate(v.aval for v in e.invars) if any(passes) else ():
            for x in bad if passes[k] else ():
                values = [np.ones(v.aval.shape, v.aval.dtype) for v in e.invars]
                values[k] = np.where(np.arange(aval.size) == aval.size - 1, x, 1).reshape(aval.shape).astype(aval.dtype)
                result = e.primitive.bind(*values, **e.params)
                assert not np.isfinite(result).all(), (e.primitive.name, k, x)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_a_cast_to_fewer_numbers_may_hide_what_is_not_finite():
    cast = lambda x, to: jaxviz.trace(lambda x: jax.lax.convert_element_type(x, to))(x).equations[0].operation
    assert passes_on(cast(np.float32(1), np.complex64)) == (True,)
    assert passes_on(cast(np.complex64(1), np.float32)) == (False,)
    assert passes_on(cast(np.float32(1), jax.numpy.float8_e4m3fn)) == (True,)
    assert passes_on(cast(np.float32(1), jax.numpy.float4_e2m1fn)) == (False,)


def test_only_what_has_one_operand_is_that_operand():
    barrier = lambda *xs: jaxviz.trace(jax.lax.optimization_barrier)(xs).equations[0]
    assert is_view(barrier(1.0))
    assert keeps_numbers(barrier(1.0))
    assert not is_view(barrier(1.0, 2.0))
    assert not keeps_numbers(barrier(1.0, 2.0))


def test_numbers_in_another_order_are_no_view_of_them():
    equation = lambda f: jaxviz.trace(f)(np.ones((2, 3), np.float32)).equations[0]
    assert is_view(equation(lambda x: jax.lax.reshape(x, (3, 2))))
    for f in (
        lambda x: jax.lax.reshape(x, (3, 2), dimensions=(1, 0)),
        lambda x: jax.lax.rev(x, (0,)),
        jax.numpy.transpose,
    ):
        assert keeps_numbers(equation(f))
        assert not is_view(equation(f))
