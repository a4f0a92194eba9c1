"""Prints the lowest version of each direct dependency, as requirements: for `make test-lowest`."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"]
for dependency in (*project["dependencies"], *project["optional-dependencies"]["test-engine"]):
    name, version = re.match(r"([\w.-]+)>=([\d.]+)", dependency).groups()
    # The newest patch release of it: `8.1` is 8.1.x, while `0.9.18` is that release.
    print(f"{name}=={version}" if version.count(".") > 1 else f"{name}=={version}.*")
