"""Checks what jaxviz needs, and the settings that change what it shows: `jaxviz doctor`."""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax

from jaxviz.ir.private_names import SUPPORTED, full_name, missing_names
from jaxviz.report.report import Drawn, Report, Table
from jaxviz.report.tables import counted, device_names, device_text, format_bytes, wrapped
from jaxviz.terminal import show

State = Literal["ok", "note", "fault"]

_DISTRIBUTION = "jaxviz-lab"
_NAMESAKE = "jaxviz"
"""The distribution of another project, whose package has the same name."""
_PACKAGE = Path(__file__).parents[1]
_OLDEST_PYTHON = (3, 11)
_MANAGER = "@jupyter-widgets/jupyterlab-manager"
_WIDGETS = {"anywidget": "anywidget", _MANAGER: "jupyterlab_widgets"}
"""JupyterLab's extensions that a widget needs, and the distributions that provide them."""

_FLAGS: Mapping[str, tuple[Any, str]] = {
    "jax_enable_x64": (
        False,
        "Numbers without an explicit type are 64-bit, so a gradient saves twice as many bytes of them.",
    ),
    "jax_disable_jit": (
        False,
        "Jitted functions, loops and branches run in Python: programs are shown unrolled, and save other values.",
    ),
    "jax_debug_nans": (
        False,
        "JAX raises FloatingPointError at the first NaN; jaxviz.find_nan and jaxviz.step run without the check.",
    ),
    "jax_debug_infs": (
        False,
        "JAX raises FloatingPointError at the first infinity; jaxviz.find_nan and jaxviz.step run without the check.",
    ),
    "jax_check_tracer_leaks": (
        False,
        "JAX does not cache traces, so functions are traced and compiled more often than usual.",
    ),
    "jax_enable_checks": (False, "JAX checks types while it traces, so tracing takes longer than usual."),
    "jax_numpy_dtype_promotion": ("standard", "Mixing types may raise an error instead of converting."),
    "jax_numpy_rank_promotion": ("allow", "Mixing ranks may warn or raise an error instead of broadcasting."),
    "jax_default_matmul_precision": (
        None,
        "Matrix products without an explicit precision use this one, which changes their time.",
    ),
    "jax_default_device": (None, "Calls run here, unless their arguments are elsewhere."),
    "jax_disable_most_optimizations": (
        False,
        "XLA skips most of its passes: compiled programs, their memory and their times differ from the usual ones.",
    ),
    "jax_compilation_cache_dir": (
        None,
        "Programs that were compiled before are loaded from there, so compile times may be load times.",
    ),
    "jax_use_direct_linearize": (
        True,
        "JAX linearizes by JVP: what it saves may differ from what is shown; derive(...).check() compares them.",
    ),
    "jax_remat3": (
        False,
        "Checkpoints are hi-primitives, which jaxviz opens since JAX 0.12; what JAX saves may differ in part: "
        "derive(...).check() shows where.",
    ),
    "jax_custom_vjp3": (
        False,
        "Functions with custom rules are hi-primitives; what JAX saves may differ: derive(...).check() shows where.",
    ),
    "jax_custom_jvp3": (
        False,
        "Functions with custom rules are hi-primitives; what JAX saves may differ: derive(...).check() shows where.",
    ),
    "jax_scan3": (False, "An experimental option of JAX; jaxviz cannot derive scans under it."),
}
"""Flag → its default, and the effect of another value."""

_VARIABLES = {
    "XLA_FLAGS": "XLA compiles with these flags: they affect devices, memory and times.",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "Sets whether JAX allocates most of a GPU's memory when it starts.",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "Sets how much of a GPU's memory JAX takes, and so what fits.",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "Sets how GPU memory is allocated; the free memory of a device may be unknown.",
    "CUDA_VISIBLE_DEVICES": "JAX sees only these GPUs.",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check.

    Args:
      what: such as 'jax', 'dot' or 'jax_debug_nans'.
      state: 'ok'; 'note' for something that needs no change; 'fault' for something needed that is missing.
      found: such as '0.10.2'.
      advice: what to do, or what it changes; '' if there is nothing to say.
      part: 'versions', 'devices', 'notebook', 'pictures' or 'flags'.
    """

    what: str
    state: State
    found: str
    advice: str = ""
    part: str = ""

    _data = ("what", "part", "state", "found", "advice")


@dataclass(frozen=True, eq=False, repr=False)
class DoctorReport(Report, schema="doctor"):
    """What is installed and configured here. Made by `jaxviz.doctor()`.

    >>> report = jaxviz.doctor()
    >>> report.ok, report["jax"].found, report.faults

    Args:
      findings: see `Diagnosis`.
    """

    findings: tuple[Diagnosis, ...]

    def __getitem__(self, what: str) -> Diagnosis:
        for finding in self.findings:
            if finding.what == what:
                return finding
        raise KeyError(f"no check {what!r}; the checks are {', '.join(f.what for f in self.findings)}")

    def __contains__(self, what: object) -> bool:
        return any(f.what == what for f in self.findings)

    @property
    def faults(self) -> tuple[Diagnosis, ...]:
        """What is needed but is missing or does not fit."""
        return tuple(f for f in self.findings if f.state == "fault")

    @property
    def ok(self) -> bool:
        """Whether everything needed is installed."""
        return not self.faults

    @property
    def summary(self) -> str:
        """`jaxviz 0.1.0: everything it needs is installed`."""
        version = self["jaxviz"].found
        if self.ok:
            return f"jaxviz {version}: everything it needs is installed"
        names = ", ".join(f.what for f in self.faults)
        return f"jaxviz {version}: {counted(len(self.faults), 'problem')}: {names}"

    def _parts(self) -> Iterator[Drawn | Table]:
        yield Table(
            ("", "what", "found"), [(_MARKS[f.state], f.what, f.found) for f in self.findings], "<<<", shown=None
        )
        said = (f for state in ("fault", "note", "ok") for f in self.findings if f.advice and f.state == state)
        yield Drawn("\n\n".join(f"{_MARKS[f.state]}: {f.what}\n{wrapped(f.advice, '  ')}" for f in said))

    def _html_parts(self) -> Iterator[Table]:
        rows = [(_MARKS[f.state], f.what, f.found, f.advice) for f in self.findings]
        yield Table(("", "what", "found", "what to do, or what it changes"), rows, "<<<<", shown=None)

    _data = ("ok", "findings")


_MARKS: Mapping[str, str] = {"ok": "ok", "note": "note", "fault": "FAIL"}


def doctor() -> DoctorReport:
    """Checks versions, devices, the notebook frontend, Graphviz and flags, and says how to fix what is missing.

    >>> print(jaxviz.doctor())
    jaxviz 0.1.0: everything it needs is installed
    ...

    It checks the environment of this Python. If JupyterLab runs in another environment than the kernel, run
    `jaxviz doctor` there on the command line to check its extensions.

    Returns:
      a report: `str()` for a terminal, `.ok`, `.faults`, `.to_dict()`, and a table in a notebook.
    """
    parts = {
        "versions": _versions, "devices": _devices, "notebook": _notebook, "pictures": _pictures, "flags": _flags,
    }  # fmt: skip
    return DoctorReport(tuple(replace(d, part=part) for part, check in parts.items() for d in check()))


WORDS = (
    "Checks what jaxviz needs, and the settings that change what it shows; exits with status 1 if something is missing"
)


def command(argv: Sequence[str] | None) -> int:
    """`jaxviz doctor` and its options, without the other commands: they need an engine that can run."""
    parser = argparse.ArgumentParser("jaxviz doctor", description=WORDS)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    return print_doctor(parser.parse_args((argv or ())[1:]).json)


def print_doctor(as_json: bool = False) -> int:
    """Prints the report, and returns the exit status: 0, or 1 if something needed is missing."""
    report = doctor()
    if as_json:
        print(json.dumps(report.to_dict(), indent=1))
    else:
        show(str(report), headed=True)
    return 0 if report.ok else 1


# --- versions ---------------------------------------------------------------------------------------------------------


def _versions() -> Iterator[Diagnosis]:
    # If a package of the same name has overwritten our __init__.py, there is no version.
    own = getattr(sys.modules["jaxviz"], "__version__", "") or metadata.version(_DISTRIBUTION)
    old = tuple(map(int, platform.python_version_tuple()[:2])) < _OLDEST_PYTHON
    advice = f"jaxviz needs Python {'.'.join(map(str, _OLDEST_PYTHON))} or newer." if old else ""
    yield Diagnosis("python", "fault" if old else "ok", platform.python_version(), advice)
    needed = _requirements(_DISTRIBUTION)
    if needed is None:
        unknown = "It is imported from a folder and not installed, so its requirements are unknown"
        yield Diagnosis("jaxviz", "note", own, f"{unknown}: `pip install -e .` in the checkout.")
        needed = {"jax": SUPPORTED, "ipywidgets": "", "anywidget": "", "jupyterlab": ""}
    else:
        yield Diagnosis("jaxviz", "ok", own)
    if other := _installed(_NAMESAKE):
        yield Diagnosis(
            "another jaxviz", "fault", f"{_NAMESAKE} {other}",
            f"The distribution {_NAMESAKE} is another project, whose package has the same name, so each overwrites "
            f"files of the other: `pip uninstall {_NAMESAKE}`, then `pip install --force-reinstall --no-deps "
            f"{_DISTRIBUTION}`.",
        )  # fmt: skip
    rows = [_version(name, version, _DISTRIBUTION) for name, version in sorted(needed.items(), key=_jax_first)]
    for owner, name in (("jax", "jaxlib"), ("ipywidgets", "jupyterlab_widgets")):
        requirement = (_requirements(owner) or {}).get(name)
        if requirement is not None:
            rows.append(_version(name, requirement, owner))
    faults = (row for row in rows if row.state == "fault")
    yield from {row.what: row for row in (*rows, *faults)}.values()  # each once
    for name, row in missing_names().items():  # private names that jaxviz uses and the installed JAX lacks
        off = f"Without it {row.feature} raises an error." if row.feature else "Without it jaxviz cannot be imported."
        yield Diagnosis(
            full_name(name), "note" if row.feature else "fault", "not in this JAX",
            f"Purpose: {row.why}. {off} `pip install 'jax{SUPPORTED}'` for a JAX that has it.",
        )  # fmt: skip


def _jax_first(item: tuple[str, str]) -> tuple[bool, str]:
    return item[0] != "jax", item[0]


def _requirements(name: str) -> dict[str, str] | None:
    """The requirements of a distribution without extras, with their versions; None if it is not installed."""
    from packaging.requirements import Requirement

    if not _installed(name):
        return None
    requirements = map(Requirement, metadata.requires(name) or ())
    return {r.name: str(r.specifier) for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})}


def _installed(name: str) -> str:
    """The version of a distribution; '' if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _version(name: str, requirement: str, owner: str) -> Diagnosis:
    from packaging.specifiers import SpecifierSet

    version, install = _installed(name), f"`pip install '{name}{requirement}'`."
    if not version:
        return Diagnosis(name, "fault", "not installed", f"{owner} needs it: {install}")
    if SpecifierSet(requirement).contains(version, prereleases=True):
        return Diagnosis(name, "ok", version)
    return Diagnosis(name, "fault", version, f"{owner} needs {name} {requirement}: {install}")


# --- devices ----------------------------------------------------------------------------------------------------------


def _devices() -> Iterator[Diagnosis]:
    platforms: Any = jax.config.jax_platforms  # type: ignore[attr-defined]
    try:
        backend, devices = jax.default_backend(), jax.devices()
    except Exception as error:  # whatever a plugin raises; an AssertionError if there is no plugin for a platform
        chosen = f"JAX is set to use {platforms} (jax_platforms or JAX_PLATFORMS): unset it, or install JAX for it."
        said = [*([chosen] if platforms else []), *([f"JAX says: {error}"] if str(error) else [])]
        yield Diagnosis("backend", "fault", "none", " ".join(said) or repr(error))
        return
    yield Diagnosis("backend", *_backend(backend, platforms))
    kinds = ", ".join(dict.fromkeys(d.device_kind for d in devices))
    memory = (_stats(devices[0]) or {}).get("bytes_limit")
    each = f", {format_bytes(memory)} each for JAX" if memory else ""
    elsewhere = jax.device_count() - jax.local_device_count()
    others = f"{elsewhere} of them belong to other processes." if elsewhere else ""
    yield Diagnosis("devices", "ok", f"{device_text(device_names(devices))} ({kinds}{each})", others)


def _backend(backend: str, platforms: Any) -> tuple[State, str, str]:
    if backend == "cpu" and not platforms and shutil.which("nvidia-smi"):
        advice = (
            'There is an NVIDIA GPU, which this jax cannot use: `pip install "jax[cuda13]"`, '
            "or jax[cuda12] for an older driver."
        )
        return "note", backend, advice
    return "ok", f"{backend} (as set for JAX)" if platforms else backend, ""


def _stats(device: Any) -> dict[str, Any] | None:
    try:
        return device.memory_stats()  # type: ignore[no-any-return]
    except (RuntimeError, NotImplementedError):  # a device of another process, or one without memory statistics
        return None


# --- the notebook -----------------------------------------------------------------------------------------------------


def _notebook() -> Iterator[Diagnosis]:
    yield _bundle(_PACKAGE / "static", _PACKAGE.parent / "widgets" / "src")
    try:
        from jupyter_core.paths import jupyter_config_dir, jupyter_path
        from jupyterlab_server.config import get_federated_extensions, get_page_config
        from jupyterlab_server.settings_utils import get_settings
    except Exception as error:  # a broken package raises anything
        yield Diagnosis("widgets in JupyterLab", "fault", "not known", f"{error}: `pip install 'jupyterlab>=4.2'`.")
        return
    folders = [str(p) for p in jupyter_path("labextensions")]
    lab = Path(sys.prefix, "share", "jupyter", "lab")
    settings = lab / "settings"
    disabled = get_page_config(folders, app_settings_dir=str(settings)).get("disabledExtensions", ())
    loaded = get_federated_extensions(folders)
    for name, distribution in _WIDGETS.items():
        yield _lab_extension(name, distribution, loaded.get(name), any(d.split(":")[0] == name for d in disabled))
    if _MANAGER in loaded:
        own = os.environ.get("JUPYTERLAB_SETTINGS_DIR") or os.path.join(jupyter_config_dir(), "lab", "user-settings")
        set_here, _ = get_settings(
            str(settings), str(lab / "schemas"), own, f"{_MANAGER}:plugin", labextensions_path=folders
        )
        is_on = set_here["settings"].get("saveState", set_here["schema"]["properties"]["saveState"]["default"])
        yield _saved_widgets(bool(is_on))


def _saved_widgets(is_on: bool) -> Diagnosis:
    """JupyterLab's setting that saves widgets with a notebook."""
    what = "lab setting saveState"
    if is_on:
        return Diagnosis(what, "ok", "on: notebooks are saved with their widgets")
    return Diagnosis(
        what, "note", "off",
        "Notebooks are saved with their explorers and steppers, but not with other widgets, such as live plots and "
        "exercises. JupyterLab's menu Settings > Save Widget State Automatically turns it on.",
    )  # fmt: skip


def _bundle(static: Path, sources: Path) -> Diagnosis:
    """The explorer's JavaScript, which a checkout has to build."""
    files = [static / "explorer.js", static / "loader.js", *sorted((static / "parts").glob("*.js"))]
    missing = [path.name for path in files if not path.is_file()]
    build = "In a checkout run `make lab`, or `npm ci && npm run build` in widgets/ (Node 20 or newer)."
    if missing or len(files) == 2:
        missing_text = f"{', '.join(missing) or 'its parts'} not in {static}"
        again = f"Install it again: `pip install --force-reinstall --no-deps {_DISTRIBUTION}`."
        return Diagnosis("widget bundle", "fault", missing_text, build if sources.is_dir() else again)
    size = format_bytes(sum(path.stat().st_size for path in files))
    newest = max((p.stat().st_mtime for p in sources.rglob("*") if p.is_file()), default=0.0)
    if newest > files[0].stat().st_mtime:
        older = f"{size}, older than {sources}"
        return Diagnosis("widget bundle", "note", older, f"Edits there have no effect. {build}")
    return Diagnosis("widget bundle", "ok", f"{size} in {static}")


def _lab_extension(name: str, distribution: str, loaded: Mapping[str, Any] | None, disabled: bool) -> Diagnosis:
    """Whether JupyterLab loads an extension, in the installed version."""
    what = f"lab extension {name}"
    again = f"`pip install --force-reinstall --no-deps {distribution}`, then reload JupyterLab's page"
    if loaded is None:
        return Diagnosis(
            what, "fault", "JupyterLab does not find it",
            f"Widgets stay empty without it: {again}. If JupyterLab runs in another environment, install "
            f"{distribution} there.",
        )  # fmt: skip
    installed = f"{loaded['version']} in {loaded['ext_dir']}"
    if disabled:
        return Diagnosis(what, "fault", f"{installed}, disabled", f"`jupyter labextension enable {name}`.")
    belongs = _version_brought(distribution, name)
    if belongs and belongs != loaded["version"]:
        advice = (
            f"{distribution} brings {belongs}, but JupyterLab loads another: remove {loaded['ext_path']}, or {again}."
        )
        return Diagnosis(what, "fault", installed, advice)
    return Diagnosis(what, "ok", installed)


def _version_brought(distribution: str, name: str) -> str:
    """The version of the extension that a distribution installed; '' if unknown."""
    try:
        files: Iterable[metadata.PackagePath] = metadata.files(distribution) or ()
    except metadata.PackageNotFoundError:
        return ""
    for path in files:
        where = Path(str(path.locate()))
        if path.as_posix().endswith(f"labextensions/{name}/package.json") and where.is_file():
            return str(json.loads(where.read_text(encoding="utf-8"))["version"])
    return ""


# --- pictures and flags -----------------------------------------------------------------------------------------------


def _pictures() -> Iterator[Diagnosis]:
    install = "`conda install -c conda-forge graphviz`, `apt install graphviz` or `brew install graphviz`"
    dot = shutil.which("dot")
    missing = Diagnosis("dot", "note", "not found", f"`jaxviz.draw` needs Graphviz's program: {install}.")
    yield missing if dot is None else Diagnosis("dot", "ok", dot)


def _flags() -> Iterator[Diagnosis]:
    for name, (default, meaning) in _FLAGS.items():
        value = getattr(jax.config, name, jax.config.values.get(name, default))  # other versions of JAX may not have it
        value = getattr(value, "value", value)
        if value != default:
            yield Diagnosis(name, "note", str(value), meaning)
    for name, meaning in _VARIABLES.items():
        if os.environ.get(name):
            yield Diagnosis(name, "note", os.environ[name], meaning)
