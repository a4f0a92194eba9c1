"""Every public function that takes a function, as one table: what holds of all of them is tested on all of them."""

import jax
import jax.numpy as jnp

import jaxviz

CALLS = {
    "grad": lambda f, *args: jaxviz.grad(f)(*args),
    "value_and_grad": lambda f, *args: jaxviz.value_and_grad(f)(*args),
    "vjp": jaxviz.vjp,
    "jvp": lambda f, *args: jaxviz.jvp(f, args, args),
    "linearize": jaxviz.linearize,
    "linear_transpose": jaxviz.linear_transpose,
    "vmap": lambda f, *args: jaxviz.vmap(f, in_axes=None, axis_size=2)(*args),
    "jacfwd": lambda f, *args: jaxviz.jacfwd(f)(*args),
    "jacrev": lambda f, *args: jaxviz.jacrev(f)(*args),
    "hessian": lambda f, *args: jaxviz.hessian(f)(*args),
    "jit": lambda f, *args: jaxviz.jit(f)(*args),
    "trace": lambda f, *args: jaxviz.trace(f)(*args),
    "derive": jaxviz.derive,
    "residuals": jaxviz.residuals,
    "memory": jaxviz.memory,
    "compiled_memory": jaxviz.compiled_memory,
    "compile_cost": jaxviz.compile_cost,
    "collectives": jaxviz.collectives,
    "cost": jaxviz.cost,
    "lock": jaxviz.lock,
    "lint": jaxviz.lint,
    "policies": jaxviz.policies,
    "compare_policies": jaxviz.compare_policies,
    "plan_remat": lambda f, *args: jaxviz.plan_remat(f, *args, budget=1.0),
    "find_nan": jaxviz.find_nan,
    "gradient_flow": jaxviz.gradient_flow,
    "step": jaxviz.step,
    "capture": lambda f, *args: jaxviz.capture(f, "h")(*args),
    "replace": lambda f, *args: jaxviz.replace(f, {"h": jnp.zeros_like})(*args),
    "record": jaxviz.record,
    "growth": jaxviz.growth,
    "compare": lambda f, *args: jaxviz.compare(f, f, *args),
    "profile": jaxviz.profile,
    "donation": lambda f, *args: jaxviz.donation(jax.jit(f), *args),
    "check_rule": jaxviz.check_rule,
    "explain_recompile": lambda f, *args: jaxviz.explain_recompile(jax.jit(f), *args),
    "explore": jaxviz.explore,
    "draw": jaxviz.draw,
    "to_dot": jaxviz.to_dot,
}
"""With the function's arguments."""

NEVER_CALLS_IT = {"explain_recompile"}
TAKES_JITTED = {"donation"}
RETURN_FUNCTIONS = {
    "grad", "value_and_grad", "vmap", "jacfwd", "jacrev", "hessian", "jit", "trace", "capture", "replace",
}  # fmt: skip
