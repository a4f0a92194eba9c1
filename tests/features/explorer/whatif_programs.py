"""Programs whose switches the tests of both languages flip. Run as a script, it writes their tables and what JAX makes of them down."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from printed_programs import loop

import jaxviz
from jaxviz.features.explorer.whatif import what_if
from jaxviz.features.remat.code import CodeRow, code_text

FIXTURE = Path(__file__).parents[2] / "fixtures" / "whatif.json"


def chain(w, x):
    for _ in range(3):
        x = jnp.tanh(x @ w) * jnp.cos(x)
    return jnp.sum(x)


def blocks(ws, x):
    @jax.checkpoint
    def block(w, x):
        return x + jnp.sin(jnp.tanh(x @ w))

    for w in ws:
        x = block(w, x)
    return jnp.mean(jax.nn.softmax(x))


PROGRAMS = {
    "chain": (chain, (jnp.ones((8, 8)), jnp.ones((32, 8)))),
    "loop": (loop, (jnp.ones((6, 6)), jnp.ones((10, 6)))),
    "blocks": (blocks, ([jnp.ones((8, 8))] * 3, jnp.ones((32, 8)))),
}


def cases(f, args):
    """The table, and for some choices of what to save what the planner makes of them, and the peak of the function that it gives."""
    table = what_if(jaxviz.derive(f, *args))
    plan = jaxviz.plan_remat(f, *args, budget=0.9)
    n = len(table["values"])
    chosen = [
        [],
        table["present"]["saved"],
        *table["plans"],
        list(range(n)),
        list(range(0, n, 2)),
        list(range(0, n, 3)),
    ]
    made = []
    for saved in chosen:
        found = plan._graph.outcome([list(plan._graph.candidates)[i] for i in saved])
        other = replace(plan, saved=found.saved, point=found.point)
        peak = int(jaxviz.memory(other.apply(f), *args).peak_nbytes)
        made.append({"chosen": saved, "nbytes": int(other.nbytes), "flops": int(other.flops), "peak": peak})
    for place in table["places"]:
        place["file"] = Path(place["file"]).name  # the same wherever it is run
    rows = [CodeRow(**{k: v for k, v in place.items() if k != "values"}) for place in table["places"]]
    return {"table": table, "cases": made, "code": code_text(f.__name__, rows, ["All that can be named."])}


if __name__ == "__main__":
    made = {"jax": jax.__version__, **{name: cases(*p) for name, p in PROGRAMS.items()}}
    FIXTURE.write_text(json.dumps(made) + "\n")
    sys.stdout.write(f"{FIXTURE}: {FIXTURE.stat().st_size:,} bytes\n")
