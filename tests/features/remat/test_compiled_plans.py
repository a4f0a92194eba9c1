"""Plans within a budget of XLA's bytes: the compiled peak fits, and falls with the budget."""

import jax
import jax.numpy as jnp
import pytest
from test_search import layer, scanned, unrolled

import jaxviz
from benchmarks.remat_programs import SMALL

pytestmark = pytest.mark.slow

ARGS = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((6, 32, 32), (256, 32))]
NAMES = ["transformer, unrolled", "transformer, scanned", "MoE transformer, unrolled", "diffusion step", "U-Net", "RNN",
         "neural ODE",
         "MD rollout", "GNN"]  # fmt: skip


def few(ws, x):
    """Two layers, without a loop."""
    for w in ws:
        x = layer(x, w)
    return jnp.sum(x)


FEW = [jax.ShapeDtypeStruct((2, 32, 32), jnp.float32), ARGS[1]]
PROGRAMS = {"few": lambda: (few, FEW), "scanned": lambda: (scanned, ARGS), "unrolled": lambda: (unrolled, ARGS)} | {
    name: lambda name=name: (SMALL[name]().plain, SMALL[name]().args) for name in NAMES
}


def compiled_peak(f, args):
    """As JAX compiles the value and the gradient."""
    memory = jax.jit(jax.value_and_grad(f)).lower(*args).compile().memory_analysis()
    parts = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return sum(parts) - memory.alias_size_in_bytes


def least_of(f, args):
    """The lowest compiled peak that is reached for one byte."""
    with pytest.raises(ValueError, match=r"the lowest of \d+ compiled programs is .* B\)") as error:
        jaxviz.plan_remat(f, *args, memory=1, of="compiled")
    return int(str(error.value).split(" compiled programs is ")[1].split("(")[1].split(" B)")[0].replace(",", ""))


@pytest.mark.parametrize(
    ("name", "n"), [("few", 1), *(pytest.param(name, 9, marks=pytest.mark.slow(sweep=True)) for name in PROGRAMS)]
)
def test_the_compiled_peak_is_within_the_budget_and_falls_with_it(name, n):
    f, args = PROGRAMS[name]()
    written = compiled_peak(f, args)
    least = least_of(f, args)
    budgets = [least + (written - least) * k // n for k in (*range(1, n + 1, 2), *range(0, n + 1, 2))]
    peaks = {}
    for budget in budgets:
        plan = jaxviz.plan_remat(f, *args, memory=budget, of="compiled")
        before, after = plan.compiled
        assert abs(before.peak_nbytes - written) <= 0.02 * written
        assert after.peak_nbytes <= budget
        assert abs(compiled_peak(plan.apply(f), args) - after.peak_nbytes) <= 0.02 * written
        peaks[budget] = after.peak_nbytes
    in_order = [peaks[b] for b in sorted(peaks)]
    assert in_order == sorted(in_order)


def test_the_report_has_the_figures_of_xla():
    plan = jaxviz.plan_remat(scanned, *ARGS, memory="50GiB", of="compiled")
    assert "compiled peak within 50.0 GiB: compiled peak " in plan.summary
    assert "(modelled " in plan.summary
    assert "no changes" in plan.summary
    assert plan.to_dict()["compiled"][0]["peak_nbytes"] == plan.compiled[0].peak_nbytes


@pytest.mark.parametrize("bound", [{"of": "xla", "memory": 10}, {"of": "compiled", "work": 0.1}])
def test_only_a_peak_can_be_compiled(bound):
    with pytest.raises(ValueError, match="of must be 'modelled' or 'compiled', the peak that memory= bounds"):
        jaxviz.plan_remat(scanned, *ARGS, **bound)
