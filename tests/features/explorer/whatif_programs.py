"""Programs whose switches the tests of both languages use. Run as a script, this writes their tables and figures."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from printed_programs import loop

import jaxviz
from jaxviz.features.explorer.whatif import Switches

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


def activation(x):
    h = jnp.tanh(x)
    return jnp.sin(h) * h * jnp.cos(h)


def layer(w, x):
    return x + activation(x @ w)


def layers(ws, x):
    for w in ws:
        x = layer(w, x)
    return jnp.mean(jnp.sin(x) * x)


def halves(ws, x):
    """The two functions overlap: neither contains the other, and both contain the middle."""

    def first(x):
        return second(activation(x @ ws[0]))

    def second(x):
        return activation(x @ ws[1])

    return jnp.sum(activation(first(x) @ ws[2]))


PROGRAMS = {
    "chain": (chain, (jnp.ones((8, 8)), jnp.ones((32, 8)))),
    "loop": (loop, (jnp.ones((6, 6)), jnp.ones((10, 6)))),
    "blocks": (blocks, ([jnp.ones((8, 8))] * 3, jnp.ones((32, 8)))),
    "layers": (layers, ([jnp.ones((8, 8))] * 4, jnp.ones((32, 8)))),
    "halves": (halves, ([jnp.ones((8, 8))] * 3, jnp.ones((32, 8)))),
}


def cases(f, args):
    """The table, settings with their keys, the settings one switch away, and their figures."""
    switches = Switches(jaxviz.derive(f, *args))
    table = switches.table()
    n, regions = len(switches.values), range(len(switches.regions))
    chosen = [
        ([], range(n)),
        (regions, []),
        *(([i], saved) for i in regions for saved in ([], range(n), range(0, n, 2))),
    ]
    settings = [
        {"regions": list(r), "saved": list(s), "offloaded": list(o), "key": switches.key(r, s, o)}
        for r, s in chosen
        for o in ([], list(s)[::3], s)
    ]
    flips = [[s["key"], i, switches.flipped(s["key"], i)] for s in settings[6:18] for i in regions]
    switches.fill([*switches.first_keys, *switches.next_keys], 60.0)
    trades, failed = switches.tried_trades()
    alone = switches.key([0], [])
    tried = {"trades": trades, "failed": failed, "plan": None, "asked": 1}
    return {"table": table, "settings": settings, "flips": flips, "tried": tried, "drawn": switches.drawn(alone)}


if __name__ == "__main__":
    made = {"jax": jax.__version__, **{name: cases(*p) for name, p in PROGRAMS.items()}}
    FIXTURE.write_text(json.dumps(made) + "\n")
    sys.stdout.write(f"{FIXTURE}: {FIXTURE.stat().st_size:,} bytes\n")
