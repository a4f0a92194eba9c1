"""Every private name of JAX in use has a row; a JAX without one gives one error, or disables one feature."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from short_runs import short

import jaxviz
from jaxviz.ir import private_names
from jaxviz.ir.private_names import PRIVATE_NAMES, SUPPORTED, missing_names

PACKAGE = Path(jaxviz.__file__).parent
COMPAT = PACKAGE / "ir" / "compat", PACKAGE / "xla" / "compat"


def test_no_other_package_knows_jaxs_inside_or_its_version():
    pattern = re.compile(r"jax\._src|jax(lib)?\.__version|version_info|jax\.version")
    found = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    outside = [place for place in found if not place.startswith(("ir/compat/", "ir/private_names.py"))]
    assert outside == []
    assert {p.rpartition(":")[0] for p in found if "jax._src" in p} <= {"ir/compat/private.py"}


def names_used():
    """The names under `jax._src` used in the two packages `compat`: imports, with the attributes accessed on them, and
    private ones of classes."""
    nodes = [
        node for of in COMPAT for file in sorted(of.glob("*.py")) for node in ast.walk(ast.parse(file.read_text()))
    ]
    modules = {
        alias.asname or alias.name: f"{node.module}.{alias.name}".removeprefix("jax._src.")
        for node in nodes
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("jax._src.")
        for alias in node.names
    }
    found = set()
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
            continue
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            found.add(f"{modules[node.value.id]}.{node.attr}")
        of = node.value
        if (
            isinstance(of, ast.Attribute)
            and isinstance(of.value, ast.Name)
            and of.value.id in modules
            and node.attr[0] == "_"
        ):
            found.add(f"{modules[of.value.id]}.{of.attr}.{node.attr}")
    classes = {name.rpartition(".")[0] for name in found}
    return found - classes


def test_every_name_has_a_row_and_every_row_a_name():
    assert names_used() == set(PRIVATE_NAMES)


def test_the_installed_jax_has_them_all():
    assert not missing_names()
    for name, row in PRIVATE_NAMES.items():
        assert row.why, name
        is_expected = row.since <= jax.__version_info__ < row.before
        assert private_names._is_there(name) == is_expected, name


def test_the_supported_versions_are_those_that_pip_takes():
    text = (PACKAGE.parent / "pyproject.toml").read_text()
    assert f'"jax{SUPPORTED}"' in text


def run(code, *hidden, status=0):
    """The output and the errors of a process in which JAX lacks these names."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "lacking.py", *hidden, "--", code],
        capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def last_line(text):
    return text.rstrip().splitlines()[-1]


@pytest.mark.slow
def test_without_a_name_that_all_of_it_needs_there_is_one_error():
    _, errors = run(
        "import jaxviz; jaxviz.grad",
        "core.Tracer",
        "interpreters.ad.fancy_transposes",
        "api._vjp_too_many_args",
        status=1,
    )
    error = last_line(errors)
    assert error.startswith("jaxviz.ir.errors.UnsupportedJaxError: jaxviz cannot run with JAX ")
    assert (
        f"JAX {jax.__version__}, which lacks jax._src.core.Tracer, jax._src.interpreters.ad.fancy_transposes." in error
    )
    assert f"jaxviz {jaxviz.__version__} supports JAX {SUPPORTED}: `pip install 'jax{SUPPORTED}'`" in error
    assert "`jaxviz doctor` lists what is missing" in error
    assert "During handling" not in errors
    assert "_vjp_too_many_args" not in errors  # not a reason to refuse


@pytest.mark.slow
@pytest.mark.parametrize("version", short(["0.9.1", "0.13.0"], ["0.9.1"]))
def test_a_version_that_is_not_supported_is_one_error(version):
    info = tuple(map(int, version.split(".")))
    _, errors = run(
        f"import jax; jax.__version__ = {version!r}; jax.__version_info__ = {info}; import jaxviz; jaxviz.grad",
        status=1,
    )
    assert f"UnsupportedJaxError: jaxviz cannot run with JAX {version}. jaxviz" in last_line(errors)
    assert SUPPORTED in last_line(errors)


AS_A_COMMAND = """
import sys
sys.argv = [PROGRAM, "doctor", "--json"]
try:
    RUN
finally:
    print("\\n--", *(name for name in sys.modules if name.startswith("jaxviz")))
"""
COMMANDS = {
    "-m": "import runpy; runpy.run_module('jaxviz', run_name='__main__')",
    "/usr/bin/jaxviz": "from jaxviz.__main__ import main; sys.exit(main())",
}


@pytest.mark.slow
@pytest.mark.parametrize("program", short(list(COMMANDS), []))
def test_the_doctor_needs_no_engine_and_says_what_is_missing(program):
    code = AS_A_COMMAND.replace("PROGRAM", repr(program)).replace("RUN", COMMANDS[program])
    printed, _ = run(code, "core.Tracer", "api._jacfwd_unravel", status=1)
    report, _, modules = printed.rpartition("-- ")
    assert {"jaxviz.features.doctor", "jaxviz.ir.private_names"} < set(modules.split())
    assert not {"jaxviz.ir.compat", "jaxviz.derivation"} & set(modules.split())
    found = {f["what"]: f for f in json.loads(report)["findings"]}
    fatal, feature = found["jax._src.core.Tracer"], found["jax._src.api._jacfwd_unravel"]
    assert fatal["state"] == "fault"
    assert "jaxviz cannot be imported" in fatal["advice"]
    assert feature["state"] == "note"
    assert "Without it jaxviz.jacfwd raises an error" in feature["advice"]
    assert {f["what"] for f in found.values() if f["what"].startswith("jax._src")} == {fatal["what"], feature["what"]}


WITHOUT = {
    "interpreters.batching.BatchTracer": "jaxviz.vmap(jnp.sin)(x)",
    "api._jacfwd_unravel": "jaxviz.jacfwd(jnp.sin)(x)",
    "api._check_scalar": "jaxviz.grad(jnp.sum)(x)",
    "api._post_hook_state": "jaxviz.watch_donations()",
    "interpreters.partial_eval.ensure_enum": "jaxviz.derive(jax.checkpoint(jnp.sin), x).forward",
    "shard_map._as_manual_mesh": "jaxviz.derive(jax.shard_map(jnp.sin, mesh=mesh, in_specs=P('i'), out_specs=P('i')), "
    "x).forward",
}
"""Each name, and what cannot be done without it."""

EACH = """
import jax, jax.numpy as jnp, jaxviz
from jax.sharding import PartitionSpec as P
from jaxviz.ir.errors import UnsupportedJaxError
mesh, x = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)), jnp.ones(3)
print(jaxviz.residuals(lambda x: jnp.sin(x) * x, x).summary)
for name, code in WITHOUT.items():
    try:
        eval(code)
    except UnsupportedJaxError as error:
        print(name, error)
"""


@pytest.mark.slow
def test_without_a_name_that_a_feature_needs_that_feature_alone_is_off():
    printed, _ = run(EACH.replace("WITHOUT", repr(WITHOUT)), *WITHOUT)
    summary, *errors = printed.splitlines()
    assert "saves 24 B in 2 values" in summary
    assert [error.split()[0] for error in errors] == list(WITHOUT)
    for error, name in zip(errors, WITHOUT, strict=True):
        assert (
            f"{PRIVATE_NAMES[name].feature} needs jax._src.{name}, which JAX {jax.__version__} lacks. jaxviz" in error
        )


@pytest.mark.slow
def test_without_any_name_that_only_features_need_the_rest_works():
    names = [n for n, row in PRIVATE_NAMES.items() if row.feature and row.since <= jax.__version_info__ < row.before]
    printed, errors = run("import jax, jaxviz; print(jaxviz.derive(jax.numpy.sin, 1.0).backward)", *names)
    assert "= mul b a in" in printed, errors


SWEEP = """
import os, sys
from lacking import hide
for name, feature in NAMES.items():
    sys.stdout.flush()
    if os.fork():
        os.wait()
        continue
    hide(name)
    try:
        import jaxviz
        jaxviz.derive(jax.numpy.sin, 1.0).backward
        print(name, "" if feature else "was not missed")
    except ImportError as error:
        print(name, f"raised {error}" if feature or f"lacks jax._src.{name}." not in str(error) else "")
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.mark.slow(sweep=True)
@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="each name takes a process of its own, which only forking makes quick"
)
def test_every_name_alone():
    here = {n: row.feature for n, row in PRIVATE_NAMES.items() if row.since <= jax.__version_info__ < row.before}
    printed, errors = run(SWEEP.replace("NAMES", repr(here)))
    assert [line.strip() for line in printed.splitlines()] == list(here), errors
