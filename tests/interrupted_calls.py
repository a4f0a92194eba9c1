"""Interrupts slow calls at random moments, as Ctrl-C does, and repeats them: `python tests/interrupted_calls.py NAME TIMES`.

Prints a line for each call that did not answer afterwards as it does without an interrupt, and at the end how many were interrupted.
"""

import os
import random
import signal
import sys
import threading
import time

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp

import jaxviz


def loss(x):
    for i in range(12):
        x = jnp.tanh(x @ x * (1 + i * 0.001)) + jnp.sort(x)
    return x.sum()


X = jnp.ones((16, 16))
MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ON_EIGHT = jax.ShapeDtypeStruct(
    (16, 16), jnp.float32, sharding=jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("data"))
)

CALLS = {
    "compiled_memory": lambda: str(jaxviz.compiled_memory(loss, X)),
    "compiled_memory of a lowered program": lambda: str(jaxviz.compiled_memory(jax.jit(jax.grad(loss)).lower(X))),
    "collectives": lambda: str(jaxviz.collectives(loss, ON_EIGHT)),
    "compile_cost": lambda: jaxviz.compile_cost(loss, X).counts,
    "memory.compare": lambda: str(jaxviz.memory(loss, X).compare()),
    "cost.xla": lambda: str(jaxviz.cost(loss, X).xla()),
    "plan_remat": lambda: str(jaxviz.plan_remat(loss, X)),
    "plan_remat.verify": lambda: str(jaxviz.plan_remat(loss, X).verify()),
    "compare_policies": lambda: str(jaxviz.compare_policies(loss, X)),
    "explore": lambda: shown(jaxviz.explore(loss, X)),
    "find_nan": lambda: str(jaxviz.find_nan(loss, X)),
    "step": lambda: str(jaxviz.step(loss, X).run()),
    "lint": lambda: str(jaxviz.lint(loss, X)),
    "report": lambda: str(jaxviz.jit(loss).report(X)),
    "donation": lambda: str(jaxviz.donation(jax.jit(loss, donate_argnums=0), jnp.ones((16, 16)))),
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
    call, moment = CALLS[name], random.Random(0)
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
