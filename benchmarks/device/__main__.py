"""`python -m benchmarks.device [--minutes M] [--only WORDS] [--out FOLDER]`; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from benchmarks.device.rows import Row, as_line, markdown, read_rows

ROOT = Path(__file__).parents[2]

# The most important first: what is stopped by the time limit is at the end.
ORDER = (
    ("compiled", 120), ("plans", 330), ("gradients", 180), ("times", 200), ("footprint", 120), ("calls", 90),
    ("largest", 150),
)  # fmt: skip
"""The modules, and the seconds that each of their parts may take."""
BY_ITSELF = "largest"
"""The module that fills the memory of the device."""

LIBRARIES = "jax jaxlib jax-cuda13-plugin jax-cuda12-plugin numpy scipy flax equinox optax diffrax numpyro".split()


@dataclass
class Running:
    """A part that runs in a process of its own.

    Args:
      name: of the part.
      process: its process.
      rows: the file that it writes its rows to.
      log: the file with what it prints.
      limit: seconds that it may take.
    """

    name: str
    process: subprocess.Popen[bytes]
    rows: Path
    log: IO[bytes]
    limit: float
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def parts_of(module: str) -> dict[str, Any]:
    return __import__(f"benchmarks.device.{module}", fromlist=["PARTS"]).PARTS


def run_part(module: str, name: str, rows: str) -> None:
    """Runs one part in this process; each row is written when it is known."""
    from benchmarks.device.device import join  # it imports JAX

    join()
    with open(rows, "a", buffering=1) as file:
        for row in parts_of(module)[name]():
            file.write(as_line(replace(row, part=name)))


def listed() -> tuple[list[tuple[str, str, float]], dict[str, Any]]:
    """All parts with their modules and limits, and the device; found in another process, so that this one takes nothing
    from the device."""
    code = (
        "import json, jax\nfrom benchmarks.device import __main__ as m\nd = jax.devices()[0]\n"
        "parts = [(module, name, limit) for module, limit in m.ORDER for name in m.parts_of(module)]\n"
        "about = {'platform': d.platform, 'device': d.device_kind, 'devices': len(jax.devices())}\n"
        "about['memory'] = (d.memory_stats() or {}).get('bytes_limit')\n"
        "print('\\n' + json.dumps([parts, about]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"JAX does not start here:\n{done.stderr[-2000:]}")
    parts, about = json.loads(done.stdout.splitlines()[-1])
    about["python"] = platform.python_version()
    about["libraries"] = {name: found for name in LIBRARIES if (found := installed(name))}
    return [tuple(p) for p in parts], about


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def environment(**more: str) -> dict[str, str]:
    """Of a part: memory is allocated as it is needed, since several parts share the device."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {
        **os.environ, "PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.93",
        "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1", **more,
    }  # fmt: skip


class Check:
    """Runs the parts, several at once, and writes what they have answered so far after each.

    Args:
      folder: where results go.
      deadline: when to stop, on the monotonic clock.
      jobs: how many parts run at once.
      about: the device and the versions.
    """

    def __init__(self, folder: Path, deadline: float, jobs: int, about: dict[str, Any]):
        self.folder, self.deadline, self.jobs, self.about = folder, deadline, jobs, about
        self.done: list[tuple[str, list[Row], float]] = []
        self.running: list[Running] = []

    def run(self, parts: Sequence[tuple[str, str, float]]) -> None:
        waiting = list(parts)
        order = [name for _, name, _ in parts]
        while waiting or self.running:
            while waiting and self.has_room_for(waiting[0][0]) and time.monotonic() < self.deadline:
                self.start(*waiting.pop(0))
            for part in list(self.running):
                if part.process.poll() is not None:
                    self.finish(part, "")
                elif part.seconds > part.limit or time.monotonic() > self.deadline:
                    part.stop()
                    self.finish(part, f"stopped after {part.seconds:.0f} s")
            if waiting and time.monotonic() > self.deadline:
                self.done += [(name, [_failed(name, "not started: no time was left")], 0.0) for _, name, _ in waiting]
                waiting = []
            self.write(order)
            time.sleep(0.2)
        self.write(order)

    def has_room_for(self, module: str) -> bool:
        return len(self.running) < (1 if module == BY_ITSELF else self.jobs)

    def start(self, module: str, name: str, limit: float) -> None:
        stem = "".join(c if c.isalnum() else "-" for c in name)
        rows, log = self.folder / f"{stem}.jsonl", (self.folder / f"{stem}.log").open("wb")
        deadline = min(self.deadline, time.monotonic() + limit)
        env = environment(
            JAXVIZ_DEVICE_LOCK=str(self.folder / "lock"), JAXVIZ_DEVICE_RAW=str(self.folder / "raw"),
            JAXVIZ_DEVICE_DEADLINE=str(deadline),
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.device", "--part", module, name, str(rows)], cwd=ROOT, env=env,
            stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.running.append(Running(name, process, rows, log, limit))

    def finish(self, part: Running, stopped: str) -> None:
        self.running.remove(part)
        (self.folder / "lock.processes" / str(part.process.pid)).unlink(missing_ok=True)
        if stopped:  # perhaps while it measured, and the others were paused
            for other in self.running:
                os.killpg(other.process.pid, signal.SIGCONT)
        part.log.close()
        rows = read_rows(part.rows.read_text()) if part.rows.exists() else []
        if stopped:
            rows.append(_failed(part.name, stopped))
        elif part.process.returncode:
            last = Path(part.log.name).read_text(errors="replace").strip().splitlines()[-1:]
            rows.append(_failed(part.name, f"failed with {part.process.returncode}: {' '.join(last)[:200]}"))
        self.done.append((part.name, rows, part.seconds))
        n = sum(r.agrees is False for r in rows)
        print(f"{part.name}: {len(rows)} answers, {n} not as expected, {part.seconds:.0f} s", flush=True)

    def write(self, order: Sequence[str]) -> None:
        done = sorted(self.done, key=lambda found: order.index(found[0]))
        rows = [r for _, found, _ in done for r in found]
        taken = {name: round(s, 1) for name, _, s in done}
        data = {"about": self.about, "seconds": taken, "rows": [json.loads(as_line(r)) for r in rows]}
        (self.folder / "results.json").write_text(json.dumps(data, indent=1))
        (self.folder / "results.md").write_text(f"{heading(self.about)}\n\n{markdown(rows)}")

    def pack(self) -> None:
        """One archive of what the compiler and the profiler wrote, and of the logs."""
        with tarfile.open(self.folder / "raw.tar.gz", "w:gz") as archive:
            for path in sorted([*self.folder.glob("raw/*"), *self.folder.glob("*.log")]):
                archive.add(path, path.relative_to(self.folder))


def _failed(name: str, why: str) -> Row:
    return Row("", "the whole part", "", why, False, part=name)


def heading(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["libraries"].items())
    return f"# jaxviz on {about['device']} ({about['platform']})\n\nPython {about['python']}, {versions}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="the time limit for everything")
    parser.add_argument(
        "--only", default="", help="only the parts whose name contains one of these words, separated by commas"
    )
    parser.add_argument("--out", default="artifacts/device", help="the folder for the results")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run_part(*options.part)
        return
    started = time.monotonic()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    for old in [p for pattern in ("*.jsonl", "*.log", "raw/*", "lock.processes/*") for p in folder.glob(pattern)]:
        old.unlink()
    parts, about = listed()
    words = [w.strip() for w in options.only.split(",") if w.strip()]
    chosen = [p for p in parts if not words or any(w in p[1] for w in words)]
    if not chosen:
        raise SystemExit(f"no part matches {options.only!r}; there are: {', '.join(name for _, name, _ in parts)}")
    cores = os.cpu_count() or 1
    jobs = max(1, cores // 2)
    check = Check(folder.absolute(), started + 60 * options.minutes, jobs, about)
    check.run(chosen)
    check.pack()
    print((folder / "results.md").read_text())
    print(f"{time.monotonic() - started:.0f} s; {folder}/results.json and results.md")


if __name__ == "__main__":
    main()
