"""Models of other libraries, as they are: what is captured and put back changes nothing, and modules are named."""

import random

import jax
import numpy as np
import pytest
from short_runs import short

import jaxviz
from jaxviz.analysis.addressed import addressed_values
from jaxviz.analysis.written import address_of
from jaxviz.higher_order import is_scan

libraries = pytest.importorskip("library_programs", reason="their libraries are not installed")

FEW = 10
"""How many values of each program are captured together."""


@pytest.mark.slow
@pytest.mark.parametrize("case", short(list(libraries.LIBRARY_CASES.values()), 7), ids=str)
def test_what_is_captured_and_put_back_changes_nothing(case):
    with case.where():
        program = jaxviz.trace(case.fun)(*case.args)
        # Of a loop without a fixed length the value of the last iteration leaves, which is not that of the others.
        values = [v for v in addressed_values(program) if all(map(is_scan, v.loops))]
        chosen = random.Random(0).sample(values, min(FEW, len(values)))
        texts = list(dict.fromkeys(address_of(program, v).text for v in chosen))
        want = jax.jit(case.fun)(*case.args)
        out, seen = jax.jit(jaxviz.capture(case.fun, *texts))(*case.args)
        assert set(seen) == set(texts)
        same(out, want)
        same(jax.jit(jaxviz.replace(case.fun, {text: seen[text] for text in texts}))(*case.args), want)


def same(got, want):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        if not jax.numpy.issubdtype(a.dtype, jax.dtypes.extended):
            a, b = np.asarray(a), np.asarray(b)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, np.max(np.abs(b), initial=0)))


def test_modules_of_each_library_are_addresses():
    found = {}
    for case in libraries.LIBRARY_CASES.values():
        library = case.name.partition("_")[0]
        if library in ("linen", "nnx", "haiku", "equinox") and len(found.get(library, ())) < 2:
            with case.where():
                program = jaxviz.trace(case.fun)(*case.args)
            found.setdefault(library, set()).update(m for v in addressed_values(program) for m in v.returned_by)
    assert {library for library, modules in found.items() if modules} >= {"linen", "haiku", "equinox"}, found
