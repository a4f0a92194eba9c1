"""The time of a session's first report: importing jaxviz and deriving one line, compared with jax tracing it, in
separate processes.

Also the imports alone, as reported by `python -X importtime`.
"""

from __future__ import annotations

import subprocess
import sys

MOST = 0.35
"""The target in seconds of CPU time, in addition to `import jax` and its trace."""

_WORK = """
import resource
import jax
{work}
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""

_JAX = "jax.make_jaxpr(lambda x: x * x)(1.0)"
_REPORTS = ("residuals", "memory", "cost", "lint", "policies", "step", "find_nan")


def seconds(work: str) -> float:
    """CPU time of a new process that imports jax and does some work."""
    ran = subprocess.run([sys.executable, "-c", _WORK.format(work=work)], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def import_ms(package: str, work: str) -> float:
    """The milliseconds that each module of a package takes to import, without its own imports."""
    ran = subprocess.run([sys.executable, "-X", "importtime", "-c", work], capture_output=True, text=True, check=True)
    rows = (line.removeprefix("import time:").split("|") for line in ran.stderr.splitlines() if line.count("|") == 2)
    found = [(name.strip(), own) for own, _, name in rows if own.strip().isdigit()]
    return sum(int(own) for name, own in found if name.split(".")[0] == package) / 1000


def main(quick: bool = False) -> None:
    works = {"jax alone": _JAX}
    works |= {f"jaxviz.{name}": f"{_JAX}; import jaxviz; jaxviz.{name}(lambda x: x * x, 1.0)" for name in _REPORTS}
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(3 if quick else 10):
        for name, work in works.items():
            taken[name].append(seconds(work))
    best = {name: min(times) for name, times in taken.items()}  # other processes use the machine as well
    print("\nThe first report of a session: CPU time")
    for name, time in best.items():
        added = time - best["jax alone"]
        print(
            f"  {name:18} {time:6.3f} s  {time / best['jax alone']:5.2f} ×  {added:+6.3f} s   target: at most "
            f"{MOST:+.2f} s"
        )
    imports = {
        "jax": ("jax", "import jax"),
        "jaxviz": ("jaxviz", "import jaxviz"),
        "jaxviz, all for residuals": ("jaxviz", "import jaxviz; jaxviz.residuals"),
        "jaxviz, every public name": ("jaxviz", "import jaxviz; [getattr(jaxviz, name) for name in dir(jaxviz)]"),
    }
    print("Import time by `python -X importtime`: the modules of the package only")
    for name, how in imports.items():
        print(f"  {name:26} {min(import_ms(*how) for _ in range(3)):7.1f} ms")


if __name__ == "__main__":
    main("--quick" in sys.argv)
