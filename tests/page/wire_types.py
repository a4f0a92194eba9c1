"""Generates TypeScript types of the data sent to the page. As a script, it writes them from Python's definitions."""

import dataclasses
import json
import sys
import types
import typing
from pathlib import Path

from jaxviz.features.debugger import messages as stepper
from jaxviz.features.explorer import messages as explorer
from jaxviz.features.probes import messages as live
from jaxviz.page import schema
from jaxviz.report import kinds
from jaxviz.report import zooming as charts
from jaxviz.teach import messages as exercise

WIRE = Path(__file__).parents[2] / "widgets" / "src" / "wire"
WORDS = {
    "ROLES": ("Role", schema.ROLES),
    "KINDS": ("Kind", schema.KINDS),
    "MEMORY_KINDS": ("MemoryKind", schema.MEMORY_KINDS),
    "KINS": ("Kin", schema.KINS),
    "HANDED": ("Handed", schema.HANDED),
    "SCOPES": ("ScopeKind", schema.SCOPES),
}
PLAIN = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def type_of(annotation):
    """The TypeScript type of a Python type's JSON form."""
    if annotation in PLAIN:
        return PLAIN[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list or (origin is tuple and args[1:] == (...,)):
        of = type_of(args[0])
        return f"({of})[]" if " | " in of else f"{of}[]"
    if origin is tuple:
        return f"[{', '.join(map(type_of, args))}]"
    if origin is dict:
        return f"Record<string, {type_of(args[1])}>"
    if origin is typing.Literal:
        return " | ".join(f'"{word}"' for word in args)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(type_of, args))
    if is_record(annotation) or is_row(annotation):
        return annotation.__name__
    return "Record<ColumnName, Column>"


def is_record(annotation):
    return dataclasses.is_dataclass(annotation) or typing.is_typeddict(annotation)


def is_row(annotation):
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def fields_of(record):
    """The name, the type and the optionality of each field of a record."""
    for name, hint in typing.get_type_hints(record, include_extras=True).items():
        may_miss = typing.get_origin(hint) is typing.NotRequired
        yield name, typing.get_args(hint)[0] if may_miss else hint, may_miss


def records_in(module):
    """The records of a module, in order."""
    found = [x for x in vars(module).values() if isinstance(x, type) and x.__module__ == module.__name__]
    return [x for x in found if is_record(x) or is_row(x)]


def declared(record):
    """A record as an interface; a row as a labelled tuple."""
    about = " ".join(record.__doc__.split("\n\n")[0].split())
    fields = [f"{name}{'?' * may_miss}: {type_of(hint)}" for name, hint, may_miss in fields_of(record)]
    if is_row(record):
        return ["", f"/** {about} */", f"export type {record.__name__} = [{', '.join(fields)}];"]
    return ["", f"/** {about} */", f"export interface {record.__name__} {{", *(f"  {f};" for f in fields), "}"]


def head(module):
    path = module.__name__.replace(".", "/")
    return f"/** Written by `python tests/page/wire_types.py` from `{path}.py`, which says more: not to be edited. */"


def schema_types():
    lines = [
        "",
        f'export const MAGIC = "{schema.MAGIC.decode()}";',
        f"export const VERSION = {schema.VERSION};",
        "",
        "export type Column = Uint8Array | Int8Array | Uint16Array | Int16Array | Int32Array | Float64Array;",
    ]
    for constant, (name, words) in WORDS.items():
        lines += ["", f"export const {constant} = [", *(f'  "{word}",' for word in words), "] as const;"]
        lines += [f"export type {name} = (typeof {constant})[number];"]
    lines += ["", f"export const STACKED = {json.dumps(kinds.STACKED)} as const;", ""]
    lines += [
        "export const PLURALS = {",
        *(f'  {kind}: "{word}",' for kind, word in kinds.PLURALS.items()),
        "} as const;",
    ]
    lines += ["", "export type ColumnName ="]
    lines += [f'  /** {meaning} */\n  | "{name}"' for name, meaning in schema.COLUMNS.items()]
    lines[-1] += ";"
    return lines


MODULES = {
    "schema": schema,
    "explorer": explorer,
    "stepper": stepper,
    "live": live,
    "exercise": exercise,
    "charts": charts,
}


def wire_types():
    """The text of each file with types, by its path."""
    found = {}
    for name, module in MODULES.items():
        lines = [head(module), *(schema_types() if module is schema else ())]
        lines += [line for record in records_in(module) for line in declared(record)]
        found[WIRE / f"{name}.generated.ts"] = "\n".join(lines) + "\n"
    return found


def misfit(value, hint, path=""):
    """Where a JSON value does not match its type, or ''."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        found = [misfit(value, arg, path) for arg in args]
        return "" if "" in found else found[0]
    if origin is typing.Literal:
        return "" if value in args else path
    if is_record(hint):
        fields = {name: (inner, may_miss) for name, inner, may_miss in fields_of(hint)}
        needed = {name for name, (_, may_miss) in fields.items() if not may_miss}
        if not isinstance(value, dict) or not needed <= value.keys() <= fields.keys():
            return path or hint.__name__
        inside = [(inner, fields[name][0], name) for name, inner in value.items()]
    elif origin is dict:
        inside = (
            [(inner, args[1], key) for key, inner in value.items()] if isinstance(value, dict) else [(value, int, "")]
        )
    elif origin is list:
        inside = (
            [(inner, args[0], i) for i, inner in enumerate(value)] if isinstance(value, list) else [(value, int, "")]
        )
    elif origin is tuple or is_row(hint):
        each = args or tuple(typing.get_type_hints(hint).values())
        if not isinstance(value, list) or len(value) != len(each):
            return path
        inside = [(inner, one, i) for i, (inner, one) in enumerate(zip(value, each, strict=True))]
    else:
        return "" if type(value) is hint or (hint is float and type(value) is int) else path
    return next((where for inner, one, key in inside if (where := misfit(inner, one, f"{path}.{key}"))), "")


if __name__ == "__main__":
    for path, text in wire_types().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
