"""Dataclasses as plain data, for programs, and the JSON Schema of that data.

Both follow from the fields, or from a list of entries.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin

Entry = str | tuple[str, "tuple[Entry, ...]"]


class Data:
    """A dataclass that can be converted to plain data.

    `_data` has the entries of the data; without it, these are the fields. An entry is one of:

      "nbytes": an attribute, a method without arguments, or an attribute of an attribute ("model.function", as
      "function"). A location becomes
        its 'file', 'line' and 'function', or None if it is not known.
      "policy=name": the same under another name.
      "*cost": the entries of this attribute, among its own.
      ("before", ("nbytes", "flops")): of this attribute, or of each of its items, only these entries.
      ("sums=", ("by_line", "by_scope")): a dictionary of some of its own.
    """

    __slots__ = ()
    _data: ClassVar[tuple[Entry, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for programs."""
        return _PlainValues().entries(self, _entries(type(self)))


def plain(value: Any) -> Any:
    """A value as JSON: dataclasses by their entries or fields, complex numbers by their parts; null for a number that
    is not finite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if hasattr(value, "__dataclass_fields__"):
        return _PlainValues().entries(value, _entries(type(value)))
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, complex):
        return [value.real, value.imag]
    return [plain(inner) for inner in value] if isinstance(value, (tuple, list)) else value


_LOCATION = {"file": str, "line": int, "function": str}


def _entries(kind: Any) -> tuple[Entry, ...]:
    return getattr(kind, "_data", ()) or tuple(field.name for field in fields(kind))


@cache
def _parsed(entry: Entry) -> tuple[str, tuple[str, ...], str | tuple[Entry, ...]]:
    """The key of an entry, the names on the way to its value, and what is read of that: these entries, its 'own', its
    'parts' or the 'whole'."""
    name, only = (entry, ()) if isinstance(entry, str) else entry
    key, renamed, path = name.lstrip("*").partition("=")
    names = tuple(filter(None, (path if renamed else key).split(".")))
    key = key.rpartition(".")[2]
    is_place = key in ("location", "site", "definition") and not renamed
    return key, names, only or ("own" if name.startswith("*") else "parts" if is_place else "whole")


class _Walk:
    """Walks through entries: of a value, for its data; of a type, for the schema."""

    def entries(self, of: Any, entries: Iterable[Entry]) -> dict[str, Any]:
        entries_: dict[str, Any] = {}
        for entry in entries:
            key, names, what = _parsed(entry)
            value = of
            for name in names:
                value = self.attribute(value, name)
            if isinstance(what, tuple):
                entries_[key] = self.only(value, what)
            elif what == "own":
                entries_ |= self.entries(value, _entries(value if isinstance(value, type) else type(value)))
            elif what == "parts":
                entries_ |= {part: self.part(value, part) for part in _LOCATION}
            else:
                entries_[key] = self.whole(value)
        return entries_

    attribute: Callable[[Any, str], Any]
    only: Callable[[Any, tuple[Entry, ...]], Any]
    part: Callable[[Any, str], Any]
    whole: Callable[[Any], Any]


class _PlainValues(_Walk):
    whole = staticmethod(plain)

    def attribute(self, of: Any, name: str) -> Any:
        value = getattr(of, name)
        return value() if inspect.ismethod(value) else value

    def only(self, of: Any, entries: tuple[Entry, ...]) -> Any:
        if isinstance(of, (tuple, list)):
            return [self.only(item, entries) for item in of]
        return None if of is None else self.entries(of, entries)

    def part(self, of: Any, name: str) -> Any:
        return getattr(of, name, None)


# --- the schema -------------------------------------------------------------------------------------------------------


def schema_of(kind: type[Data], first: Mapping[str, Any], reports: Iterable[type[Data]] = ()) -> dict[str, Any]:
    """The JSON Schema of the data of a class, with these properties before its own; `reports` are what it may
    contain."""
    types = _Types(reports)
    schema = _object({**first, **types.entries(kind, _entries(kind))})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.__name__,
        **schema,
        "$defs": types.defs,
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_NAMES = {NoneType: "null", bool: "boolean", int: "integer", float: "number", str: "string"}


class _Types(_Walk):
    def __init__(self, reports: Iterable[type[Data]]) -> None:
        self.defs: dict[str, Any] = {}
        """The schemas of dataclasses, by name."""
        self.reports = {kind.__name__: kind for kind in reports}

    def attribute(self, of: Any, name: str) -> Any:
        """The type of an attribute, or of the result of a method, as annotated."""
        member = inspect.getattr_static(of, name, None)
        function = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if inspect.isfunction(function):
            annotation, namespace = function.__annotations__["return"], function.__globals__
        else:
            base = next(base for base in of.__mro__ if name in inspect.get_annotations(base))
            annotation, namespace = inspect.get_annotations(base)[name], vars(sys.modules[base.__module__])
        # A report may contain one of a higher layer, whose module its own imports only for type checkers.
        return eval(annotation, {**self.reports, **namespace}) if isinstance(annotation, str) else annotation

    def only(self, of: Any, entries: tuple[Entry, ...]) -> dict[str, Any]:
        if isinstance(of, UnionType):
            return {"anyOf": [self.only(one, entries) for one in get_args(of)]}
        if get_origin(of) is not None:
            return {"type": "array", "items": self.only(get_args(of)[0], entries)}
        return {"type": "null"} if of is NoneType else _object(self.entries(of, entries))

    def part(self, of: Any, name: str) -> dict[str, Any]:
        return {"type": [_NAMES[_LOCATION[name]], "null"]}

    def whole(self, of: Any) -> dict[str, Any]:
        origin, args = get_origin(of), get_args(of)
        if isinstance(of, UnionType):
            return {"anyOf": [self.whole(one) for one in args]}
        if origin is Literal:
            return {"enum": list(args)}
        if origin is tuple and args[1:] != (...,):
            items = [self.whole(one) for one in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (tuple, list):
            return {"type": "array", "items": self.whole(args[0])}
        if origin is not None:  # a mapping or a counter
            return {"type": "object", "additionalProperties": self.whole((*args, int)[1])}
        if of is complex:
            return self.whole(tuple[float, float])
        if hasattr(of, "__dataclass_fields__"):
            name = of.__name__
            if name not in self.defs:
                self.defs[name] = {}  # it may contain itself
                self.defs[name] = _object(self.entries(of, _entries(of)))
            return {"$ref": f"#/$defs/{name}"}
        return {"type": [_NAMES[of], "null"] if of is float else _NAMES[of]}
