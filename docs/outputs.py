"""Where the outputs of the site's code are kept between builds, and what they depend on.

myst-nb runs a page again if its code has changed. Its outputs also depend on what the code imports, so there is a
folder for each state of that, and the folders of other states are removed. The outputs are in `cells`, and their
explorers in `explorers`.
"""

import hashlib
import platform
import shutil
from importlib import metadata
from pathlib import Path

SOURCES = ("jaxviz/**/*.py", "jaxviz/static/**/*.js", "docs/kernel_startup.py", "docs/running.py")


def state(root: Path) -> str:
    """A digest of what the outputs depend on other than the code of a page: jaxviz, the kernel's settings and startup
    code, and all installed packages."""
    digest = hashlib.sha256(platform.python_version().encode())
    for installed in sorted({f"{d.name}=={d.version}" for d in metadata.distributions()}):
        digest.update(installed.encode())
    for path in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def folder(root: Path, build: Path) -> Path:
    """The folder of the current state; those of others are removed."""
    kept = build / "outputs" / state(root)
    for other in kept.parent.glob("*"):
        if other != kept:
            shutil.rmtree(other)
    (kept / "explorers").mkdir(parents=True, exist_ok=True)
    return kept
