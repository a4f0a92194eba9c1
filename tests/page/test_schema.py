"""The types of what is sent to the page, here and in `widgets/tests`; its columns are in a transcript."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from wire_types import misfit, wire_types

import jaxviz
from jaxviz.features.debugger import messages as stepper
from jaxviz.features.explorer import messages as explorer
from jaxviz.features.explorer.addressing import ExplorerAddresses
from jaxviz.features.explorer.changes import changes_of
from jaxviz.features.probes import messages as live
from jaxviz.features.probes.widget import shown_of
from jaxviz.xla.explorer_stage.compiled import compiled, lower


def test_the_types_of_the_page_are_current():
    """To update them, run `python tests/page/wire_types.py`."""
    for path, text in wire_types().items():
        assert path.read_text(encoding="utf-8") == text


FIXTURES = Path(__file__).parents[1] / "fixtures"
STEPPER = json.loads((FIXTURES / "stepper.json").read_text(encoding="utf-8"))
WHAT_IF = json.loads((FIXTURES / "whatif.json").read_text(encoding="utf-8"))


def as_sent(value):
    return json.loads(json.dumps(value))


def f(x):
    return jnp.sum(jnp.sin(x))


def g(x):
    return jnp.sum(jnp.cos(x) * 2.0)


def watched():
    with jaxviz.watch() as told:
        jax.grad(lambda x: f(jaxviz.probe(x, "x")))(jnp.ones(3))
    return told


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (lambda: STEPPER["programs"], stepper.Programs),
        *((lambda stop=stop: stop, stepper.StepperStop) for stop in STEPPER["stops"].values()),
        *(
            (lambda table=case["table"]: table, explorer.SwitchTable)
            for case in (WHAT_IF[name] for name in ("chain", "loop", "blocks"))
        ),
        (lambda: changes_of(jaxviz.compare(f, g, jnp.ones(3))), explorer.Changes),
        (lambda: ExplorerAddresses(jaxviz.derive(f, jnp.ones(3))).found("sin(x)"), explorer.FoundAddresses),
        (lambda: ExplorerAddresses(jaxviz.derive(f, jnp.ones(3))).of("forward:0"), explorer.EquationAddresses),
        (lambda: compiled(lower(jaxviz.derive(f, jnp.ones(3)))), explorer.Compiled),
        (lambda: json.loads(shown_of(watched())), live.Shown),
    ],
)
def test_what_is_sent_is_of_its_type(sent, kind):
    found = as_sent(sent())
    assert misfit(found, kind) == ""
    # Anything missing, superfluous or of another type would be found.
    for name in kind.__required_keys__ & found.keys():
        assert misfit({k: v for k, v in found.items() if k != name}, kind)
        assert misfit({**found, name: {"other": object()}}, kind)
    assert misfit({**found, "more than there is": 1}, kind)
