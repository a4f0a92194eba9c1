"""What a user may write, which type checkers have to accept."""

import jax
import jax.numpy as jnp

import jaxviz
from jaxviz import teach


def loss(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(x @ params["w"]) ** 2)


params = {"w": jnp.ones((3, 3))}
x = jnp.ones((2, 3))

derivation: jaxviz.Derivation = jaxviz.derive(loss, params, x)
check: bool = derivation.check().agrees
kept: jaxviz.ResidualSet = jaxviz.residuals(loss, params, x)
nbytes: int = sum(r.nbytes for r in kept)
lines = [f"{r.location}: {r.reason}" for r in kept]
plan: jaxviz.RematPlan = jaxviz.plan_remat(loss, params, x, memory="1GiB")
smaller = plan.apply(loss)
found: jaxviz.NanReport | None = jaxviz.find_nan(loss, params, x)
if found is not None:
    print(found.summary)
explorer: jaxviz.Explorer = jaxviz.explore(loss, params, x)
explorer.stage, explorer.beside = "forward", "backward"
path = explorer.save_html("loss.html")
size = teach.predict("How many bytes?", truth=lambda: nbytes)
verdict: teach.Verdict = size.answer("12 KiB")
page: str = teach.static_form(size)
gradient = jaxviz.grad(loss)(params, x)
value, slopes = jaxviz.value_and_grad(loss)(params, x)
program: jaxviz.Program = jaxviz.trace(loss)(params, x)
names: list[str] = [e.primitive.name for e in program.equations]
