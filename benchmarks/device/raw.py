"""What a device's compiler and profiler wrote, to look at later without the device: one archive beside the results."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER = os.environ.get("JAXVIZ_DEVICE_RAW", "")
_MOST = 4 * 2**20


def keep(name: str, content: str | bytes) -> None:
    """Keeps a file, if it is not empty and not large."""
    content = content.encode() if isinstance(content, str) else content
    if FOLDER and content and len(content) <= _MOST:
        folder = Path(FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / re.sub(r"[^\w.]+", "-", name)).write_bytes(content)
