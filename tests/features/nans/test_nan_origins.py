"""Every operation that a NaN or an infinity comes from, of random programs, compared with a run line by line."""

import random

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxviz

OPERATIONS = [
    "jnp.log({})", "lax.div(1.0, {})", "-{}", "{} * 2.0", "jnp.arctan({})", "lax.max({}, 0.5)", "lax.asin({})",
    "{} + {}", "{} - {}", "{} * {}", "lax.div({}, {})", "lax.atan2({}, {})", "lax.select({} > 0, {}, {})",
]  # fmt: skip
"""Each computes a floating-point number in one step. Without inverses such as `exp` of `log` or the root of a square,
which XLA drops."""


def drawn(rng):
    """A program with the names that each of its lines reads."""
    lines, reads = ["def f(x, y):"], {}
    for k in range(rng.randint(4, 12)):
        operation = rng.choice(OPERATIONS)
        read = [rng.choice(["x", "y", *(f"v{j}" for j in range(k))][-4:]) for _ in range(operation.count("{}"))]
        lines.append(f"  v{k} = {operation.format(*read)}")
        reads[f"v{k}"] = read
    last = [*reads][-6:]
    return "\n".join([*lines, f"  return {' + '.join(last)}"]), reads | {"the result": last}


def origins(code, reads, values):
    """The lines that compute from finite numbers what is not finite, and reach the result through such values."""
    for line in code.splitlines()[1:-1]:
        exec(line.strip(), {"jnp": jnp, "lax": lax}, values)
    values["the result"] = sum(values[name] for name in reads["the result"])
    is_bad = lambda name: not np.isfinite(values[name])
    found, todo, seen = set(), ["the result"] if is_bad("the result") else [], set()
    while todo:
        name = todo.pop()
        bad = [read for read in reads[name] if is_bad(read)]
        if not bad:
            found.add(list(reads).index(name) + 2)
        todo += [read for read in bad if read not in seen]
        seen.update(bad)
    return sorted(found)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow(sweep=True)) for n in (60, 120, 180))])
def test_every_origin_is_named_and_the_first_first(first):
    several = 0
    for seed in range(first, first + 60):
        rng = random.Random(seed)
        code, reads = drawn(rng)
        x, y = (jnp.float32(rng.choice([0.0, -1.0, 2.0, 1e20])) for _ in "xy")
        names = {"jnp": jnp, "lax": lax}
        exec(compile(code, "<drawn>", "exec"), names)
        expected = origins(code, reads, {"x": x, "y": y})
        report = jaxviz.find_nan(names["f"], x, y, gradient=False)
        events = [] if report is None else [report.born, report.became_nan, *report.also]
        own = [e.location.line for e in events if e is not None and all(o.is_finite for o in e.inputs)]
        assert sorted(set(own)) == expected, code
        assert own[:1] == expected[:1], code
        several += len(expected) > 1
    assert several > 1
