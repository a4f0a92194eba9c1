"""Writes files, and says what to do about one that is not there."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from jaxviz.report.tables import listed


def write_file(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Writes a file, whole or not at all: what was there stays if the disk is full. Text is written as UTF-8.

    Returns:
      the path.

    Raises:
      OSError: it cannot be written; the error has the name of the file.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    try:
        if _can_be_replaced(path):
            _replace(path, data)
        else:
            path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    return path


def no_such_file(path: str | os.PathLike[str], written_by: str) -> FileNotFoundError:
    """The error of a file that is to be read: it lists files with such an ending in the folder, and what writes one."""
    folder, ending = Path(path).parent, Path(path).suffix
    if not folder.is_dir():
        return FileNotFoundError(f"there is no file {path}, and no folder {folder}; {written_by}")
    near = listed(sorted(p.name for p in folder.glob(f"*{ending}")), 6) if ending else ""
    return FileNotFoundError(f"there is no file {path}{f'; its folder has {near}' if near else ''}; {written_by}")


def _can_be_replaced(path: Path) -> bool:
    """Whether it is no device, pipe or link, which would become a file, and its folder can be written."""
    return not path.is_symlink() and (not path.exists() or (path.is_file() and os.access(path.parent, os.W_OK)))


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".jaxviz-{os.getpid()}-{threading.get_ident()}")
    try:
        part.write_bytes(data)
        if path.exists():
            shutil.copymode(path, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
