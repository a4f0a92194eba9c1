"""One file knows JAX's inside and its versions, by the names that stand in the table beside it."""

import re
from pathlib import Path

import jaxviz

PACKAGE = Path(jaxviz.__file__).parent


def test_no_other_file_knows_jaxs_inside_or_its_version():
    pattern = re.compile(r"jax\._src|jax(lib)?\.__version|version_info|jax\.version")
    found = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert {place.rpartition(":")[0] for place in found} == {"ir/compat.py", "ir/private_names.py"}, found
