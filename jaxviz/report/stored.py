"""Reports and other dataclasses in files: what is written, and how it becomes the same objects again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from jaxviz.ir.origin import Location
from jaxviz.report.data import Data
from jaxviz.report.files import no_such_file, write_file
from jaxviz.report.tables import printable

T = TypeVar("T")
MOST = 1 << 63
"""Numbers of bytes, and lines, are smaller."""


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Args:
      name: the first entry of such a file.
      version: of its fields.
      entry: under which the data is.
      what: what such a file has, for messages.
      written_by: what writes such files, for messages.
    """

    name: str
    version: int
    entry: str
    what: str
    written_by: str

    def write(self, data: Data, path: str | os.PathLike[str]) -> Path:
        """Writes a file, and returns its path."""
        head = {"format": self.name, "version": self.version, "jaxviz": _own_version()}
        return write_file(path, json.dumps({**head, self.entry: data.to_dict()}, indent=1))

    def read(self, path: str | os.PathLike[str], made: Callable[[Any], T]) -> T:
        """What `made` makes of the data in a file.

        Raises:
          OSError: it cannot be read.
          ValueError: it is not of this kind, of another version, or damaged.
        """
        name = os.fspath(path)
        try:
            read = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise no_such_file(path, self.written_by) from None
        except (ValueError, RecursionError):  # not text, or not JSON
            read = None
        if not isinstance(read, dict) or read.get("format") != self.name:
            raise ValueError(f"{name} has no {self.what}; {self.written_by}")
        if read.get("version") != self.version:
            raise ValueError(
                f"{name} is of version {read.get('version')} of these files, written by jaxviz "
                f"{read.get('jaxviz', '?')}; this one, {_own_version()}, reads version {self.version}"
            )
        try:
            return made(read[self.entry])
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{name} is damaged: {type(error).__name__}: {error}") from None


def _own_version() -> str:
    """The version of jaxviz; '' if it is not installed, as in a process that only borrows it."""
    try:
        return version("jaxviz-lab")
    except PackageNotFoundError:
        return ""


def from_plain(kind: Any, data: Any, name: str = "") -> Any:
    """A value of the type of a field from plain data, as `Data.to_dict` writes it.

    A field with a default may be missing, as in a file of an earlier version.

    Raises:
      TypeError: the data has anything else; the message names the field.
      KeyError: a field is missing.
    """
    origin, kinds = get_origin(kind), get_args(kind)
    if isinstance(kind, UnionType):
        return None if data is None else from_plain(kinds[0], data, name)
    if origin is tuple and type(data) is list:
        return tuple(from_plain(kinds[0], one, f"{name}[{i}]") for i, one in enumerate(data))
    if origin is dict and type(data) is dict:
        return {key: from_plain(kinds[1], one, f"{name}[{key!r}]") for key, one in data.items()}
    if is_dataclass(kind) and isinstance(kind, type) and type(data) is dict:
        inside = f"{name}." if name else ""
        return kind(**{
            key: _location(data, inside) if key == "location" else from_plain(of, data[key], inside + key)
            for key, (of, is_needed) in _fields(kind).items()
            if is_needed or key in data or key == "location"
        })  # fmt: skip
    if data in kinds if origin is Literal else type(data) is kind and (kind is not int or 0 <= data < MOST):
        return data
    raise TypeError(f"{name or 'it'} is {printable(repr(data), 60)}")


def _location(data: Mapping[str, Any], inside: str) -> Location | None:
    at = data.get("location", data)
    types = {"file": str, "line": int, "function": str}
    return (
        Location(**{key: from_plain(of, at[key], f"{inside}location.{key}") for key, of in types.items()})
        if at["file"]
        else None
    )


@cache
def _fields(kind: type) -> dict[str, tuple[Any, bool]]:
    """The types of the fields of a dataclass, and whether each has to be there."""
    hints = get_type_hints(kind)
    return {f.name: (hints[f.name], f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)}
