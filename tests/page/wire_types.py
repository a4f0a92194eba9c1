"""The types of the wire format for the page. Run as a script, it writes them down from `jaxviz/page/schema.py`."""

import dataclasses
import sys
import types
import typing
from pathlib import Path

from jaxviz.page import schema

TYPES = Path(__file__).parents[2] / "widgets" / "src" / "wire" / "schema.generated.ts"
WORDS = {
    "ROLES": ("Role", schema.ROLES),
    "KINDS": ("Kind", schema.KINDS),
    "MEMORY_KINDS": ("MemoryKind", schema.MEMORY_KINDS),
    "KINS": ("Kin", schema.KINS),
    "HANDED": ("Handed", schema.HANDED),
}
RECORDS = (schema.Stage, schema.Excerpt, schema.SourceFile, schema.BranchPoint, schema.CheckResult, schema.View)
PLAIN = {str: "string", int: "number", bool: "boolean", type(None): "null"}


def type_of(annotation):
    """A Python type as the JSON of it is in TypeScript."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple and args[1:] == (...,):
        return f"{type_of(args[0])}[]"
    if origin is tuple:
        return f"[{', '.join(map(type_of, args))}]"
    if origin is typing.Literal:
        return " | ".join(f'"{word}"' for word in args)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_of, args))
    if dataclasses.is_dataclass(annotation):
        return annotation.__name__
    return "Record<ColumnName, Column>"


def first_line(text):
    return text.strip().splitlines()[0]


def wire_types():
    lines = [
        "/** Written by `python tests/page/wire_types.py` from `jaxviz/page/schema.py`, which says more: not to be edited. */",
        "",
        f'export const MAGIC = "{schema.MAGIC.decode()}";',
        f"export const VERSION = {schema.VERSION};",
        "",
        "export type Column = Uint8Array | Int8Array | Uint16Array | Int16Array | Int32Array | Float64Array;",
    ]
    for constant, (name, words) in WORDS.items():
        lines += ["", f"export const {constant} = [", *(f'  "{word}",' for word in words), "] as const;"]
        lines += [f"export type {name} = (typeof {constant})[number];"]
    lines += ["", "export type ColumnName ="]
    lines += [f'  /** {meaning} */\n  | "{name}"' for name, meaning in schema.COLUMNS.items()]
    lines[-1] += ";"
    for record in RECORDS:
        hints = typing.get_type_hints(record)
        lines += ["", f"/** {first_line(record.__doc__)} */", f"export interface {record.__name__} {{"]
        lines += [f"  {field.name}: {type_of(hints[field.name])};" for field in dataclasses.fields(record)]
        lines += ["}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TYPES.write_text(wire_types(), encoding="utf-8")
    sys.stdout.write(f"{TYPES}\n")
