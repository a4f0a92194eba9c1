"""Edits of a program's source that add or delete values with the text of others."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.editing import (
    EDITS,
    Model,
    decorate,
    each_statement,
    edit,
    expression_of,
    functions_in,
    is_pure,
    names_in,
    outermost_in,
    put_before_functions,
    statements_of,
)
from benchmarks.edits import change_constants

_SHIFTED = """
def _shifted(tree):
    is_array = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: x * 1.25 if is_array(x) else x, tree)

def _log(tree):
    jax.debug.callback(lambda *_: None, *[x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array)])
    return tree

def _try(f):
    try:
        return _log(f())
    except (TypeError, ValueError):
        return None
"""


def _looks_alike(tree: ast.Module, model: Model, change: Callable[[ast.stmt, ast.expr], Sequence[ast.stmt]]) -> None:
    """Adds statements to each that assigns or returns an expression, given that."""

    def one(s: ast.stmt, name: str) -> Sequence[ast.stmt] | None:
        v = getattr(s, "value", None)
        if isinstance(s, (ast.Assign, ast.Return)) and v is not None and is_pure(v):
            return change(s, v)
        return None

    traced = [f for f in outermost_in(tree) if f.name not in model.made or f.name == model.entry]
    before = ast.dump(tree)
    for f in traced:
        each_statement(ast.Module([f], []), one)
    if ast.dump(tree) != before:
        put_before_functions(tree, _SHIFTED)


def _for_other_arguments(v: ast.expr) -> ast.stmt:
    """Evaluates an expression with other values of its variables, in the same function."""
    modules = {"jax", "jnp", "lax", "np", "nn", "hk", "eqx", "nnx", "diffrax", "optax"}
    functions = {n.func.id for n in ast.walk(v) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    names = sorted(n for n in names_in(v) - modules - functions if n not in dir(builtins))
    other = ", ".join(f"_shifted({n})" for n in names)
    return ast.Expr(expression_of(f"_try(lambda: (lambda {', '.join(names)}: {ast.unparse(v)})({other}))"))


@edit("compute the same for a log", "no longer compute the same for a log", adds_look_alikes=True)
def log_same(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [ast.Expr(ast.Call(ast.Name("_log", ast.Load()), [v], [])), s])


@edit("compute the same, which nothing reads", adds_look_alikes=True)
def unread(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [ast.Assign([ast.Name("unread", ast.Store())], v), s])


@edit("log a metric of each value", "no longer log a metric")
def metric(tree: ast.Module, model: Model) -> None:
    def change(s: ast.stmt, v: ast.expr) -> list[ast.stmt]:
        if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name):
            return [s, *statements_of(f"_try(lambda: jnp.mean({s.targets[0].id}))")]
        return [s]

    _looks_alike(tree, model, change)


@edit("insert a look-alike before each expression", "delete a look-alike before each expression", adds_look_alikes=True)
def alike_before(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [_for_other_arguments(v), s])


@edit("insert a look-alike after each expression", "delete a look-alike after each expression", adds_look_alikes=True)
def alike_after(tree: ast.Module, model: Model) -> None:
    _looks_alike(tree, model, lambda s, v: [s, _for_other_arguments(v)] if isinstance(s, ast.Assign) else [s])


@edit("move each expression behind a look-alike in its place", adds_look_alikes=True)
def alike_in_place(tree: ast.Module, model: Model) -> None:
    """`h = E` becomes `h = [E with other arguments, E][1]`: as many lines, the look-alike assigned to nothing."""

    def change(s: ast.stmt, v: ast.expr) -> list[ast.stmt]:
        other = _for_other_arguments(v).value  # type: ignore[attr-defined]
        s.value = ast.Subscript(ast.Tuple([other, v], ast.Load()), ast.Constant(1), ast.Load())  # type: ignore
        return [s]

    _looks_alike(tree, model, change)


_TWICE = """
def _twice(f):
    def call(*args, **kwargs):
        if not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves((args, kwargs))):
            return f(*args, **kwargs)
        BODY
    call.__name__ = f.__name__
    return call
"""
_OTHER = "_try(lambda: f(*map(_shifted, args), **kwargs))"


def _twice(tree: ast.Module, model: Model, *body: str) -> None:
    decorate(tree, model, _SHIFTED + _TWICE.replace("BODY", "\n        ".join(body)), "_twice")


@edit("call functions for other arguments before", "no longer call them before", adds_look_alikes=True)
def called_before(tree: ast.Module, model: Model) -> None:
    _twice(tree, model, _OTHER, "return f(*args, **kwargs)")


@edit("call functions for other arguments after", "no longer call them after", adds_look_alikes=True)
def called_after(tree: ast.Module, model: Model) -> None:
    _twice(tree, model, "result = f(*args, **kwargs)", _OTHER, "return result")


@edit("call the model for other arguments first", "no longer call the model first", adds_look_alikes=True)
def model_before(tree: ast.Module, model: Model) -> None:
    for f in functions_in(tree):
        if f.name == model.entry and not f.args.kwonlyargs:
            f.decorator_list.append(ast.Name("_twice", ast.Load()))
            body = "\n        ".join([_OTHER, "return f(*args, **kwargs)"])
            put_before_functions(tree, _SHIFTED + _TWICE.replace("BODY", body))


for _name in (
    "rename all locals", "wrap functions in jax.jit", "extract the returned expression",
    "insert a look-alike before each expression", "delete a look-alike before each expression",
    "call functions for other arguments before", "no longer call them before", "scan over a loop in Python",
    "unroll scans into loops in Python", "compute the same for a log",
):  # fmt: skip
    _new = f"change constants, and {_name}"
    EDITS[_new] = replace(EDITS[_name], name=_new, first=change_constants)
