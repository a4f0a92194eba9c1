"""Plans that save more in some layers of a loop than in others, like a policy that depends on the index."""

import pytest
from short_runs import short
from test_diff import BLOCK, HEAD, arguments, module  # noqa: F401
from test_written_checkpoints import holds

import jaxviz
from jaxviz.features.remat.call import Call
from jaxviz.features.remat.choose import fastest_at_calls
from jaxviz.features.remat.planning import Planning
from jaxviz.features.remat.search import Search

LOOPS = {
    "range": ("for i in range(6):\n        x = block(at(params, i), x)", "for i in range(6):", "i"),
    "enumerate": (
        "for k, n in enumerate(range(6)):\n        x = block(at(params, n), x)",
        "for k, n in enumerate(range(6)):",
        "k",
    ),
    "pairs": (
        "for m, n in zip(range(6), range(6)):\n        x = block(at(params, m), x)",
        "for i, (m, n) in enumerate(zip(range(6), range(6))):",
        "i",
    ),
    "one": ("for n in list(range(6)):\n        x = block(at(params, n), x)", "for i, n in enumerate(list(range(6))):", "i"),
}  # fmt: skip
LOOPS["changed"] = (
    "for i in range(6):\n        x = block(at(params, i), x)\n        i = 0",
    "for layer_index, i in enumerate(range(6)):",
    "layer_index",
)
OTHERS = {
    "conditional": "for i in range(12):\n        if i % 2:\n            x = block(at(params, i // 2), x)",
    "nested": "for i in range(2):\n        for k in range(3):\n            x = block(at(params, 3 * i + k), x)",
    "breaks": "for i in range(12):\n        if i == 6:\n            break\n        x = block(at(params, i), x)",
}
SOURCE = """
def at(params, n):
    return jax.tree.map(lambda w: w[n], params)

def loss(params, x):
    {loop}
    return jnp.mean(x**2)
"""


def planned(own):
    """A plan with checkpoints around calls that may use a fifth of the memory that these can save."""
    args = arguments(layers=6)
    derivation = jaxviz.derive(own.loss, *args)
    call = Call.planned(derivation)
    planning = Planning(Search(derivation, False), call)
    search = planning.search
    least = min(search.trial(form).trade.peak_nbytes for regions in search.sets for form in search.path(regions))
    room = least + (search.opened.peak_nbytes - least) // 5
    return planning.plan("", fastest_at_calls(search, lambda t: room - t.peak_nbytes)), args


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(LOOPS), ["enumerate"]))
def test_a_policy_depends_on_the_index(module, name, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    source, loop, index = LOOPS[name]
    own = module(HEAD + BLOCK + SOURCE.format(loop=source))
    plan, args = planned(own)
    code = holds(own, plan, args, module, tmp_path)
    assert loop in code
    assert f"jax.checkpoint(block, policy=SAVED if {index} < " in code
    assert " else SAVED_2)(at(params, " in code
    assert plan.written.trade.peak_nbytes <= plan.peak_nbytes * 1.02


@pytest.mark.slow
@pytest.mark.parametrize("name", short(list(OTHERS), ["nested"]))
def test_calls_that_no_index_counts_get_one_policy(module, name, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    own = module(HEAD + BLOCK + SOURCE.format(loop=OTHERS[name]))
    plan, args = planned(own)
    code = holds(own, plan, args, module, tmp_path)
    assert "jax.checkpoint(block, policy=SAVED)(" in code
    assert "# plan.apply can also save values that no name in your source refers to" in code


@pytest.mark.slow(sweep=True)
def test_a_function_that_is_called_twice_has_no_index(module):  # noqa: F811
    own = module(
        HEAD + BLOCK + SOURCE.format(loop=LOOPS["range"][0]).replace("loss(", "half(").replace("jnp.mean(x**2)", "x").replace("(6)", "(3)")
        + "\ndef loss(params, x):\n    for _ in range(2):\n        x = half(params, x)\n    return jnp.mean(x**2)\n"
    )  # fmt: skip
    plan, _ = planned(own)
    assert " if i < " not in plan.code()
