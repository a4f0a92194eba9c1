"""Interrupts slow calls at random moments, as Ctrl-C does, and repeats them: `python tests/interrupted_calls.py NAME
TIMES`.

Prints a line for each call that did not answer afterwards as it does without an interrupt, and for what an interrupt
left behind; at the end how many were interrupted. One more is interrupted just before Python ends.
"""

import faulthandler
import functools
import os
import random
import signal
import sys
import tempfile
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
    "memory.xla": lambda f: jaxviz.memory(f, X).xla,
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
    "check_rule": lambda f: str(jaxviz.check_rule(with_rule(f), X)),
    "profile": lambda f: measured(jaxviz.profile(jax.jit(f), X, repeat=3)),
    "profile of a Python function": lambda f: measured(jaxviz.profile(f, X, repeat=3)),
}
ALONE = ("profile", "profile of a Python function")
"""These need the process for themselves: JAX records one run at a time."""
LAYERS = {
    "plan_remat": 40,
    "compare_policies": 24,
    "lint": 60,
    "plan_remat.verify": 2,
    "check_rule": 2,
    "find_nan": 2,
    "step": 2,
}
"""How many layers a program has, where four take too long or not long enough."""


def with_rule(f):
    ruled = jax.custom_vjp(f)
    ruled.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * jax.grad(f)(x),))
    return ruled


def measured(profile):
    """What does not depend on the time."""
    kernels = sorted((k.name, k.equations, k.lines) for k in profile.kernels)
    return [p.name for p in profile.phases], kernels, sorted((d.name, d.calls) for d in profile.dispatches)


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


INTERRUPTED = object()


def interrupted(call, seconds):
    """Calls something, and interrupts it after some seconds: `INTERRUPTED`, or its answer if it is over before."""
    global is_inside
    over = threading.Event()

    def press():
        if not over.wait(seconds):
            os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press)
    presses.start()
    try:
        is_inside = True
        return call()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        is_inside = False
        over.set()
        presses.join()


LONGEST = 240
"""After how many seconds a call counts as hanging; Python then prints where it is, and ends."""


def left_behind():
    """What must be the same after an interrupt as before: standard error, settings of Python, and temporary folders."""
    here = os.fstat(2)
    return (
        (here.st_dev, here.st_ino),
        sys.getrecursionlimit(),
        sys.getprofile(),
        sorted(os.listdir(tempfile.gettempdir())),
    )


def main(name, times):
    signal.signal(signal.SIGINT, stop)
    faulthandler.enable()
    call, moment = functools.partial(CALLS[name], loss_of(LAYERS.get(name, 4))), random.Random(0)
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        call()
        forget()
        start = time.perf_counter()
        expected = call()
        seconds = time.perf_counter() - start
        before = left_behind()
        n = 0
        for _ in range(2 * times):
            if n == times:
                break
            forget()
            after = moment.uniform(0, seconds)
            told = f"{name}, interrupted after {after:.3f} of {seconds:.3f} s"
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            start = time.perf_counter()
            try:
                found = interrupted(call, after)
                if found is INTERRUPTED:
                    n += 1
                    found = call()
                else:
                    seconds = min(seconds, time.perf_counter() - start)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"
            if found != expected:
                print(f"{told}: {found}", flush=True)
            if left_behind() != before:
                print(f"{told}, left {left_behind()} of {before}", flush=True)
                before = left_behind()
        faulthandler.cancel_dump_traceback_later()
    print(f"{n} interrupted", flush=True)
    forget()
    interrupted(call, moment.uniform(0, seconds))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
