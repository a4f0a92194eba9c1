"""What to write so that a function is compiled less often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxviz.ir import compat
from jaxviz.report.tables import listed, short_location

if TYPE_CHECKING:
    from jaxviz.xla.compilations.report import FunctionCompilations, KeyChange


def advice_on(f: FunctionCompilations) -> Iterator[str]:
    """Sentences that say what to write, for each kind of change that compiled a function again."""
    changes: dict[str, list[KeyChange]] = {}
    for r in f.compiled:
        for c in r.changes:
            changes.setdefault(c.kind, []).append(c)
    if f.is_part and f.count:
        yield (
            "A transform of it, such as jax.grad, runs outside of jit, so its parts are compiled one by one. "
            "Put jax.jit around the whole: jax.jit(jax.grad(f))."
        )
        return
    if "function" in changes:
        yield _defined_again(f)
    if "closure" in changes:
        names = _names(changes["closure"])
        yield (
            f"A value that it closes over is a constant of the program, and {names} changed: pass {names} as an "
            "argument."
        )
    both = changes.get("shape and dtype", [])
    if shapes := changes.get("shape", []) + both:
        yield (
            f"Each shape is compiled separately ({_names(shapes)}): pad to a few sizes and mask, or call it "
            "with batches of one size."
        )
    if kinds := changes.get("dtype", []) + both:
        yield f"Convert {_names(kinds)} to one dtype before the call, with astype or jnp.asarray(x, dtype)."
    if "weak type" in changes:
        names = _names(changes["weak type"])
        yield (
            f"A Python number is weakly typed, and jnp.asarray(x, dtype) is not: always pass {names} as one of the two."
        )
    if "place" in changes:
        names = _names(changes["place"])
        yield (
            f"Put {names} on the same device each time, or commit it to none: jax.device_put with a device commits "
            "an array to it."
        )
    if "static" in changes:
        yield from _of_static(changes["static"])
    if "tree" in changes:
        yield (
            f"The structure of the arguments is part of the key: give {_names(changes['tree'])} in each call, in "
            "the same containers."
        )
    if "options" in changes:
        yield "It was jitted with different options: jit it once, and call the result."
    meshes = [c for c in changes.get("config", []) if c.path in compat.MESH_IN_USE]
    if meshes:
        yield (
            "Call jax.set_mesh(mesh) once, before the first call, or make each call within the same mesh: each "
            "mesh is compiled separately."
        )
    if settings := [c for c in changes.get("config", []) if c not in meshes]:
        yield f"Set {_names(settings)} once, before the first call: each setting is compiled separately."
    if "watch" in changes:
        yield (
            "A program that reports probes is compiled separately, and both stay cached: a later watch of the "
            "same probes compiles nothing."
        )
    if any(r.since is not None and not r.changes for r in f.compiled):
        yield (
            "The same program was compiled before and is no longer cached: do not call jax.clear_caches() or "
            "f.clear_cache()."
        )


def _defined_again(f: FunctionCompilations) -> str:
    outer = f.definition.function.rpartition(".<locals>.")[0] if f.definition is not None else ""
    outer = outer.rpartition(".<locals>.")[2] or outer
    where = f" in each call of {outer}" if outer else ""
    line = f" ({short_location(f.definition)})" if f.definition is not None else ""
    return (
        f"{f.name} is defined again{where}{line}, {f.n_functions} times so far; JAX caches compiled programs by "
        "function object: define and jit it once, outside of the function that is called repeatedly."
    )


def _of_static(changes: Sequence[KeyChange]) -> Iterator[str]:
    same = [c for c in changes if c.after.startswith("another ")]
    if same:
        yield (
            f"The static {_names(same)} looks the same but does not compare equal: give its class __eq__ and __hash__."
        )
    others = [c for c in changes if c not in same]
    if others:
        yield (
            f"Each value of a static argument is compiled separately: where {_names(others)} is only used in "
            "arithmetic, pass it as an array and not as static."
        )


def _names(changes: Sequence[KeyChange]) -> str:
    return listed(c.path for c in changes)
