"""Only one package uses JAX's internals and versions, with the names listed in its table."""

import re
from pathlib import Path

import jaxviz

PACKAGE = Path(jaxviz.__file__).parent


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
