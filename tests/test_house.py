"""The package layout: public names do not depend on the order of imports, and tools see them."""

import importlib
import pkgutil
import re
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path

import device_programs
import hi_primitives
import jax
import jax.numpy as jnp
import nested_programs  # noqa: F401  enters its programs into the table
import pytest
from every_report import CALLS
from programs import CASES

import jaxviz
from jaxviz import higher_order
from jaxviz.ir import compat

MYPY_CACHE = Path(__file__).parents[1] / ".mypy_cache" / "user_program"


NOT_IMPORTED = ("jaxviz.__main__", "jaxviz.auto")
"""Modules that do something when they are imported."""


def every_module():
    return [m.name for m in pkgutil.walk_packages(jaxviz.__path__, "jaxviz.") if m.name not in NOT_IMPORTED]


def test_no_module_has_a_public_callable_s_name():
    modules = {name.split(".")[1] for name in every_module()}
    assert {name for name in modules & set(dir(jaxviz)) if callable(getattr(jaxviz, name))} == set()


def test_no_two_test_files_have_one_name():
    """Pytest collects only the first of them, and the other is an error of the whole run."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)


@pytest.fixture(scope="module")
def all_imported():
    for name in every_module():
        importlib.import_module(name)


def test_public_names_are_no_modules(all_imported):
    modules = {name for name in dir(jaxviz) if isinstance(getattr(jaxviz, name), types.ModuleType)}
    assert modules == {"teach"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_every_entry_point_works_with_every_module_imported(all_imported, name):
    args = (jnp.ones(3),)
    f = jax.custom_jvp(lambda x: jnp.sum(jnp.sin(x)))
    f.defjvp(lambda x, t: (f(*x), jnp.vdot(jnp.cos(x[0]), t[0])))
    if name == "linear_transpose":
        jaxviz.linear_transpose(lambda x: 2 * x, *args)(*args)
    elif name in ("capture", "replace"):
        CALLS[name](has_a_name, *args)
    else:
        CALLS[name](f, *args)


def has_a_name(x):
    h = jnp.sin(x)
    return jnp.sum(h)


def test_import_brings_nothing_with_it():
    code = (
        "import sys, jaxviz; print(*(m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxviz', 'matplotlib', "
        "'IPython')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["jaxviz"]


@pytest.mark.slow
def test_a_first_report_imports_nothing_but_jax_and_jaxviz():
    code = """
import sys, jax, jaxviz
f = lambda x: x * x
jax.make_jaxpr(f)(1.0)
before = set(sys.modules)
reports = (jaxviz.residuals, jaxviz.memory, jaxviz.cost, jaxviz.lint, jaxviz.policies)
print(*(report(f, 1.0) for report in reports), file=sys.stderr)
print(*{m.split('.')[0] for m in set(sys.modules) - before})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"jax", "jaxviz"}
    assert "saves" in done.stderr


def test_completion_offers_the_public_names():
    code = "import jaxviz; print(*dir(jaxviz))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"explore", "residuals", "grad", "plan_remat", "teach"} <= set(done.stdout.split())


@pytest.mark.slow(sweep=True)
def test_type_checkers_know_the_public_names(tmp_path):
    pytest.importorskip("mypy", reason="the environment of `make test-latest` has no type checker")
    file = tmp_path / "first.py"
    # What jaxviz imports itself is skipped.
    skipped = ",".join(
        f"{name}.*" for name in ("anywidget", "IPython", "ipywidgets", "jax", "matplotlib", "numpy", "scipy")
    )
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nfollow_imports = silent\n[mypy-{skipped}]\nfollow_imports = skip\n")
    program = Path(__file__).with_name("user_program.py").read_text(encoding="utf-8")
    file.write_text(f"{program}\njaxviz.nothing_of_the_kind\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "--no-error-summary", f"--cache-dir={MYPY_CACHE}",
         str(file)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert [line.split(": ", 2)[1:] for line in done.stdout.splitlines()] == [
        ["error", 'Module has no attribute "nothing_of_the_kind"  [attr-defined]']
    ], done.stdout


KNOWS_THEM = ("higher_order/", "ir/compat/", "ir/private_names.py")


def test_only_higher_order_names_a_primitive_that_holds_programs():
    package = Path(jaxviz.__file__).parent
    opened = {p.primitive for p in higher_order.opened()}
    variables = [name for name, x in vars(compat).items() if name.endswith("_p") and x in opened]
    names = [p.name for p in opened]
    named = re.compile(rf"\b({'|'.join(variables)})\b|primitive\.name (==|in) [^\n]*['\"]({'|'.join(names)})['\"]")
    found = [
        f"{file.relative_to(package)}:{number}: {line.strip()}"
        for file in sorted(package.rglob("*.py"))
        if not file.relative_to(package).as_posix().startswith(KNOWS_THEM)
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if named.search(line)
    ]
    assert found == []


def test_each_primitive_that_is_opened_is_in_the_table_of_programs():
    bound_directly = {compat.core_call_p, compat.closed_call_p}  # in test_hi_primitives.py
    missing = {p.primitive for p in higher_order.opened()} - bound_directly
    for c in (*device_programs.CASES, *CASES, *hi_primitives.CASES):
        if not missing:
            return
        missing -= {e.primitive for _, e in jaxviz.trace(c.fun)(*c.args).walk()}
    assert missing == set()


BUDGETS = {
    ".": 1_620,
    "analysis": 6_967,
    "contracts": 1_175,
    "environments": 1_650,
    "features": 445,
    "features/comparison": 800,
    "features/cost": 1_108,
    "features/debugger": 4_190,
    "features/draw": 1_520,
    "features/explorer": 4_581,
    "features/flow": 1_899,
    "features/lint": 2_469,
    "features/memory": 1_275,
    "features/nans": 2_975,
    "features/probes": 1_240,
    "features/remat": 9_288,
    "features/residuals": 2_066,
    "features/values": 3_834,
    "functions": 2_521,
    "higher_order": 4_371,
    "ir": 4_000,
    "ir/compat": 4_656,
    "notebook": 1_295,
    "page": 1_250,
    "report": 2_956,
    "runs": 1_947,
    "runtime": 1_814,
    "teach": 7_588,
    "transforms": 3_589,
    "xla": 10,
    "xla/collectives": 2_230,
    "xla/compat": 740,
    "xla/compilations": 968,
    "xla/compile_cost": 1_300,
    "xla/compiled_memory": 3_420,
    "xla/donation": 360,
    "xla/explorer_stage": 420,
    "xla/live_memory": 350,
    "xla/out_of_memory": 667,
    "xla/profile": 1_110,
}
"""How many lines of Python each room may have. Who raises one says why; who makes a room smaller lowers it."""
LONGEST = 600
"""How many lines a file may have."""


def room_of(file):
    parts = file.parent.relative_to(Path(jaxviz.__file__).parent).parts
    deep = parts[:1] in (("features",), ("xla",)) or parts[:2] == ("ir", "compat")
    return "/".join(parts[: 2 if deep else 1]) or "."


def test_every_room_keeps_to_its_budget_of_lines():
    lines = dict.fromkeys(BUDGETS, 0)
    for file in Path(jaxviz.__file__).parent.rglob("*.py"):
        n = len(file.read_text(encoding="utf-8").splitlines())
        assert n <= LONGEST, f"{file.name} has {n} lines"
        lines[room_of(file)] += n  # each room has a budget
    root = Path(__file__).parents[1]
    others = [*(root / "widgets" / "src").rglob("*.ts"), *(root / "benchmarks").rglob("*.py")]
    assert [file.name for file in others if len(file.read_text(encoding="utf-8").splitlines()) > LONGEST] == []
    assert {room: n for room, n in lines.items() if n > BUDGETS[room]} == {}
    assert {room: n for room, n in lines.items() if n < 0.9 * BUDGETS[room] - 50} == {}, "lower these budgets"


OF_THE_COURSE = {"Equation", "Program", "Var"}
"""The small engine that a reader of the course writes has the names of the large one."""


def test_a_class_has_a_name_of_its_own():
    """`jaxviz.Check` and `jaxviz.teach.Check` are two public names."""
    rooms = {}
    for file in Path(jaxviz.__file__).parent.rglob("*.py"):
        for name in re.findall(r"^ *class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            rooms.setdefault(name, []).append(room_of(file))
    twice = {name: places for name, places in rooms.items() if len(places) > 1}
    assert twice.keys() == {"Check", *OF_THE_COURSE}, twice


FAULTS = runpy.run_path(str(Path(__file__).parent / "mutants" / "faults.py"))["FAULTS"]


def test_every_fault_to_plant_has_a_place():
    """The whole search for them takes hours, so that a place that is gone would be noticed late."""
    root = Path(__file__).parents[1]
    gone = [f.what for f in FAULTS if (root / f.path).read_text(encoding="utf-8").count(f.text) != 1]
    assert gone == []


@pytest.mark.slow(sweep=True)  # which collects most tests
def test_every_fault_to_plant_has_tests():
    """Moved or renamed ones are no longer selected, and another of the same file might find the fault for now."""
    words = {f.what: shlex.split(f.tests) for f in FAULTS}
    files = sorted({w for of in words.values() for w in of if w.startswith("tests/")})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    ids = [line.partition("::") for line in done.stdout.splitlines() if "::" in line]

    def selects(file, keywords):
        names = [f"{Path(path).name} {name}".lower() for path, _, name in ids if path.startswith(file)]
        of = lambda word, name: word if word in ("and", "or", "not") else str(word.lower() in name)
        is_in = lambda name: re.sub(r"[\w-]+", lambda m: of(m[0], name), keywords)
        return any(eval(is_in(name) or "True") for name in names)

    keywords = {what: of[of.index("-k") + 1] if "-k" in of else "" for what, of in words.items()}
    selected = {what for what, of in words.items() if any(selects(w, keywords[what]) for w in of if w in files)}
    assert sorted(words.keys() - selected) == []
