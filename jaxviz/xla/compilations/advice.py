"""What to write so that a function is compiled less often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxviz.ir import compat
from jaxviz.report.tables import listed, short_location

if TYPE_CHECKING:
    from jaxviz.xla.compilations.report import FunctionCompilations, KeyChange

_ADVICE = {
    "function": "{again}",
    "wrapper": "JAX caches compiled programs by function object, of which there are {n} so far, since each "
    "functools.partial, bound method or wrapper of {name} is a new one: make it and jit it once, outside of the "
    "function that is called repeatedly.",
    "closure": "A value that it closes over is a constant of the program, and {names} changed: pass {names} as an "
    "argument.",
    "shape": "Each shape is compiled separately ({names}): pad to a few sizes and mask, or call it with batches of one "
    "size.",
    "dtype": "Convert {names} to one dtype before the call, with astype or jnp.asarray(x, dtype).",
    "weak type": "A Python number is weakly typed, and jnp.asarray(x, dtype) is not: always pass {names} as one of the "
    "two.",
    "place": "Put {names} on the same device each time, or commit it to none: jax.device_put with a device commits an "
    "array to it.",
    "static function": "Each static function ({names}) is compiled separately, and is compared by identity: pass the "
    "same object in each call, and not a lambda or a functools.partial that is made in the call.",
    "static object": "A static object whose class defines no __eq__ ({names}) is compared by identity: pass the same "
    "object in each call, or give its class __eq__ and __hash__.",
    "static": "Each value of a static argument is compiled separately: what is only used in arithmetic ({names}), pass "
    "as an array and not as static.",
    "static field": "The values of static fields are part of the key: make what is only used in arithmetic ({names}) "
    "an array, in a field that is not static.",
    "passing": "The key has how each argument is passed: give {names} always by position or always by keyword.",
    "tree": "The structure of the arguments is part of the key: give {names} in each call, in the same containers.",
    "options": "It was jitted with different options: jit it once, and call the result.",
    "mesh": "Call jax.set_mesh(mesh) once, before the first call, or make each call within the same mesh: each mesh is "
    "compiled separately.",
    "config": "Set {names} once, before the first call: each setting is compiled separately.",
    "watch": "A program that reports probes is compiled separately, and both stay cached: a later watch of the same "
    "probes compiles nothing.",
    "nothing": "The same program was compiled before and is no longer cached: do not call jax.clear_caches() or "
    "f.clear_cache().",
}
"""The kind of a change -> what to do about it."""


def advice_on(f: FunctionCompilations) -> Iterator[str]:
    """Sentences that say what to write, for each kind of change that compiled a function again."""
    if f.is_part and f.count:
        yield (
            "A transform of it, such as jax.grad, runs outside of jit, so its parts are compiled one by one. "
            "Put jax.jit around the whole: jax.jit(jax.grad(f))."
        )
        return
    names: dict[str, list[str]] = {}
    for r in f.compiled:
        for c in r.changes:
            for kind in _kinds(c):
                names.setdefault(kind, []).append(c.path)
        if r.since is not None and not r.changes:
            names.setdefault("nothing", [])
    for kind, text in _ADVICE.items():
        if kind in names:
            yield text.format(names=listed(names[kind]), again=_defined_again(f), name=f.name, n=f.n_functions)


def _kinds(c: KeyChange) -> tuple[str, ...]:
    """The keys of `_ADVICE` for a change."""
    match c.kind:
        case "shape and dtype":
            return "shape", "dtype"
        case "tree" if c.before.startswith("given by "):
            return ("passing",)
        case "config" if c.path in compat.MESH_IN_USE:
            return ("mesh",)
    return (c.kind,)


def _defined_again(f: FunctionCompilations) -> str:
    outer = f.definition.function.rpartition(".<locals>.")[0] if f.definition is not None else ""
    outer = outer.rpartition(".<locals>.")[2] or outer
    where = f" in each call of {outer}" if outer else ""
    line = f" ({short_location(f.definition)})" if f.definition is not None else ""
    return (
        f"{f.name} is defined again{where}{line}, {f.n_functions} times so far; JAX caches compiled programs by "
        "function object: define and jit it once, outside of the function that is called repeatedly."
    )
