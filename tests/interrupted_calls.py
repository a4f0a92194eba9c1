"""Interrupts slow calls at random moments, as Ctrl-C does, and repeats them: `python tests/interrupted_calls.py NAME TIMES`.

Prints a line for each call that did not answer afterwards as it does without an interrupt, and at the end how many were interrupted.
"""

import functools
import os
import random
import signal
import sys
import threading
import time

if __name__ == "__main__":
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp

import jaxviz


def loss_of(layers):
    def loss(x):
        for i in range(layers):
            x = jnp.tanh(x @ x * (1 + i * 0.001)) + jnp.sort(x)
        return x.sum()

    return loss


X = jnp.ones((16, 16))
MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ON_EIGHT = jax.ShapeDtypeStruct(
    (16, 16), jnp.float32, sharding=jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("data"))
)

CALLS = {
    # name: the report of a function, as text or in parts that do not depend on the time
    "compiled_memory": lambda f: str(jaxviz.compiled_memory(f, X)),
    "compiled_memory of a lowered program": lambda f: str(jaxviz.compiled_memory(jax.jit(jax.grad(f)).lower(X))),
    "collectives": lambda f: str(jaxviz.collectives(f, ON_EIGHT)),
    "compile_cost": lambda f: jaxviz.compile_cost(f, X).counts,
    "memory.compare": lambda f: str(jaxviz.memory(f, X).compare()),
    "cost.xla": lambda f: str(jaxviz.cost(f, X).xla()),
    "plan_remat": lambda f: str(jaxviz.plan_remat(f, X)),
    "plan_remat.verify": lambda f: str(jaxviz.plan_remat(f, X).verify()),
    "compare_policies": lambda f: str(jaxviz.compare_policies(f, X)),
    "explore": lambda f: shown(jaxviz.explore(f, X)),
    "find_nan": lambda f: str(jaxviz.find_nan(f, X)),
    "step": lambda f: str(jaxviz.step(f, X).run()),
    "lint": lambda f: str(jaxviz.lint(f, X)),
    "report": lambda f: str(jaxviz.jit(f).report(X)),
    "donation": lambda f: str(jaxviz.donation(jax.jit(f, donate_argnums=0), jnp.ones((16, 16)))),
}


def shown(explorer):
    explorer.complete()
    try:
        return explorer.payload, explorer.rest, str(explorer)
    finally:
        explorer.close()


def forget():
    jaxviz.clear_caches()
    jax.clear_caches()


is_inside = False


def stop(*_):
    if is_inside:
        raise KeyboardInterrupt


def interrupted(call, seconds):
    """Whether a call was interrupted after some seconds."""
    global is_inside
    over = threading.Event()

    def press():
        if not over.wait(seconds):
            os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    try:
        is_inside = True
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        is_inside = False
        over.set()
        presses.join()


def main(name, times):
    signal.signal(signal.SIGINT, stop)
    call, moment = functools.partial(CALLS[name], loss_of(12)), random.Random(0)
    call()
    forget()
    start = time.perf_counter()
    expected = call()
    seconds = time.perf_counter() - start
    n = 0
    for _ in range(times):
        forget()
        after = moment.uniform(0, seconds)
        if not interrupted(call, after):
            continue
        n += 1
        try:
            found = call()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found != expected:
            print(f"{name}, interrupted after {after:.3f} of {seconds:.3f} s: {found}", flush=True)
    print(f"{n} interrupted", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
