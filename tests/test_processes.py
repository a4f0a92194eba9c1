"""Two processes with four devices each, compared with one process with eight, and with jax's own gradients."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import two_processes

import jaxviz

SECONDS = 60
"""The time limit for both, which take a few seconds."""


def environment():
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}  # no proxy between the two
    return env | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(jaxviz.__file__).parents[1]), env.get("PYTHONPATH")])),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={two_processes.N_DEVICES // 2}",
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",  # the CPU has no collectives of its own between processes
    }


def run_both(folder):
    """What each of the two processes holds of each result."""
    deadline = time.monotonic() + SECONDS
    outfiles, logs = ([folder / f"{i}.{kind}" for i in range(2)] for kind in ("npz", "log"))
    with contextlib.ExitStack() as stack:
        # The port stays reserved while they run: the coordinator may share it, as its server requests, and nobody else
        # gets it.
        port = stack.enter_context(socket.socket())
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{port.getsockname()[1]}"
        workers = []
        for i in range(2):
            command = [sys.executable, two_processes.__file__, coordinator, str(i), str(outfiles[i])]
            log = stack.enter_context(logs[i].open("wb"))
            worker = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            workers.append(worker)
        # Until both have ended, or one has failed, which the other would wait for.
        while None in (codes := [w.poll() for w in workers]) and not any(codes) and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                workers[codes.index(None)].wait(0.2)
    said = "\n".join(
        f"--- process {i}, which ended with {w.returncode}\n{logs[i].read_text()}" for i, w in enumerate(workers)
    )
    assert [w.returncode for w in workers] == [0, 0], said
    return [dict(np.load(f)) for f in outfiles]


@pytest.mark.slow(sweep=True)
def test_two_processes_agree_with_one_and_with_jax(tmp_path):
    one = two_processes.run(jaxviz)
    for process, held in enumerate(run_both(tmp_path)):
        assert len(held) == 2 * len(one)
        for name, whole in one.items():
            got = held[f"jaxviz {name}"]
            np.testing.assert_allclose(got, held[f"jax {name}"], 1e-6, 1e-6, err_msg=name)
            if not name.startswith(two_processes.PER_PROCESS):
                want = whole if got.shape == whole.shape else np.split(whole, 2)[process]
                np.testing.assert_allclose(got, want, 1e-6, 1e-6, err_msg=name)
        assert (held["jaxviz with_pmap [0][1][0]"] == 8).all()
        assert held["jaxviz with_pmap [0][1][0]"].shape == (4,)
