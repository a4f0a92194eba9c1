"""Checks of an answer in code that run JAX: of its values, its gradient, its rule, and what it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_leaves, tree_map

from jaxviz.arguments import Argnums
from jaxviz.features.residuals.residual_set import residuals
from jaxviz.functions.rule_check import check_rule
from jaxviz.ir.syntax import Program
from jaxviz.ir.trace import trace
from jaxviz.report.tables import counted, format_bytes
from jaxviz.runtime.cache import function_name
from jaxviz.teach.rule import Check

_F32 = np.dtype(np.float32)


def computes(reference: Callable[..., Any], *points: tuple[Any, ...], tol: float = 1e-5) -> Check:
    """Checks that the answer returns the same as a reference.

    >>> teach.rule("Write `square`.", teach.computes(jnp.square, (3.0,), (jnp.arange(3.0),)))

    Args:
      reference: a function.
      *points: the inputs, each a tuple of arguments.
      tol: the largest allowed difference, relative to the largest number of the result.
    """
    return _gives(
        f"returns the same as {function_name(reference)}", function_name(reference), reference, lambda f: f, points, tol
    )


def gradient_of(reference: Callable[..., Any], *points: tuple[Any, ...], tol: float = 1e-4) -> Check:
    """Checks that the answer has the same gradient, by JAX, as a reference; for several results, of their sum, and for
    complex ones, of the sum of their real and imaginary parts. A custom rule must not change the result.

    >>> teach.rule("Write `square`.", teach.gradient_of(jnp.square, (3.0,), (-1.0,)))

    Args:
      reference: a function.
      *points: the inputs, each a tuple of arguments; all of them are differentiated.
      tol: as for `computes`.
    """

    def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
        def pulled_back(*args: Any) -> Any:
            out, pull_back = jax.vjp(f, *args)
            # A real cotangent would not tell f(z) from f(conj(z)).
            return pull_back(tree_map(lambda y: jnp.full_like(y, 1 - 1j if jnp.iscomplexobj(y) else 1), out))

        return pulled_back

    def of_its_rule(written: Callable[..., Any]) -> str:
        for args in points:
            problem = difference(jax.vjp(written, *args)[0], written(*args), tol, "without that")
            if problem:
                return f"At {shown_inputs(args)}, where it is differentiated, {problem}"
        return ""

    name = f"the gradient of {function_name(reference)}"
    of_gradient = _gives(f"has {name}", name, gradient(reference), gradient, points, tol)
    # A custom rule computes the value again, and may compute another one.
    return Check(of_gradient.says, lambda written: of_gradient.fails(written) or of_its_rule(written))


def _gives(
    says: str, name: str, reference: Callable[..., Any], rule: Callable[[Any], Any], points: Sequence[Any], tol: float
) -> Check:
    def fails(written: Any) -> str:
        for args in points:
            problem = difference(rule(written)(*args), reference(*args), tol, name)
            if problem:
                return f"At {shown_inputs(args)} {problem}"
        return ""

    return Check(says, fails)


def has_right_rule(*points: tuple[Any, ...], twice: bool = False) -> Check:
    """Checks that the answer's custom rule agrees with numerical differences; see `jaxviz.check_rule`.

    >>> teach.rule("Give `tanh` a custom rule.", teach.has_right_rule((0.5,), (3.0,), twice=True))

    Args:
      *points: the inputs, each a tuple of arguments.
      twice: whether it must also have second derivatives in all modes.
    """

    def fails(written: Any) -> str:
        for args in points:
            report = check_rule(written, *args)
            if not report:
                return f"At {shown_inputs(args)} the {report.summary}"
            if twice and report.no_second:
                return f"At {shown_inputs(args)}: {report.no_second}"
        return ""

    return Check(f"its rule agrees with numerical differences{', and so does its second derivative' * twice}", fails)


def is_linear(*points: tuple[Any, ...]) -> Check:
    """Checks that the answer is linear in all of its arguments together: for real multiples, as a derivative is, so
    `jnp.real` and `jnp.conj` are linear.

    >>> teach.rule("Write the derivative of `sin` at 1 as a linear function.", teach.is_linear((jnp.ones(3),)))
    """

    def fails(written: Any) -> str:
        for args in points:
            rng = np.random.default_rng(0)
            u, v = (tree_map(lambda x: _random_like(x, rng), args) for _ in range(2))
            together = written(*tree_map(lambda a, b: 2 * a - 3 * b, u, v))
            apart = tree_map(lambda a, b: 2 * a - 3 * b, written(*u), written(*v))
            problem = difference(together, apart, 1e-4, "2 f(u) - 3 f(v)")
            if problem:
                return f"At 2u - 3v, with random u and v like {shown_inputs(args)}, {problem}"
        return ""

    return Check("is linear", fails)


def _random_like(x: Any, rng: np.random.Generator) -> jax.Array:
    z = rng.normal(size=np.shape(x))
    if jnp.issubdtype(jnp.result_type(x), jnp.complexfloating):
        z = z + 1j * rng.normal(size=np.shape(x))
    return jnp.asarray(z, jnp.result_type(x))


def keeps_at_most(nbytes: int, *args: Any, argnums: Argnums = 0) -> Check:
    """Checks that the gradient of the answer saves at most some bytes, besides arguments.

    >>> teach.rule("Write `tanh` with a rule that saves one number.", teach.keeps_at_most(4, 0.5))

    Args:
      nbytes: the limit in bytes.
      *args: the arguments of the call.
      argnums: the arguments to differentiate.
    """

    def fails(written: Any) -> str:
        saved = residuals(written, *args, argnums=argnums)
        n = saved.saved.nbytes
        largest = max(saved, key=lambda r: r.nbytes * (r.kind != "argument"), default=None)
        if n <= nbytes or largest is None:
            return ""
        return f"It saves {format_bytes(n)}; the largest value is {format_bytes(largest.nbytes)}: {largest.reason}"

    return Check(f"its gradient saves at most {format_bytes(nbytes)} besides its arguments", fails)


def traces_to(holds: Callable[[Program], bool], says: str, *args: Any) -> Check:
    """Checks that the answer traces to a program with a property.

    >>> teach.traces_to(lambda program: len(program.equations) == 1, "is one equation", 0.5)

    Args:
      holds: whether a program has the property.
      says: a description of the property, such as 'has no exp'.
      *args: the arguments to trace it with.
    """

    def fails(written: Any) -> str:
        program = trace(written)(*args)
        return "" if holds(program) else f"It traces to {' '.join(str(program).split())}"

    return Check(says, fails)


def shown_inputs(args: Iterable[Any]) -> str:
    return ", ".join(_short(x) for x in args)


def _short(x: Any) -> str:
    leaves = tree_leaves(x)
    if len(leaves) == 1 and np.size(leaves[0]) <= 4:
        return np.array2string(np.asarray(leaves[0]), precision=4, separator=", ")
    types = [str(jax.typeof(leaf).str_short(short_dtypes=True)) for leaf in leaves]
    return f"{', '.join(types[:4])}{', …' if len(types) > 4 else ''}"


def difference(ours: Any, theirs: Any, tol: float, name: str) -> str:
    """A sentence on where two results differ most, with the name of the second; '' if they are equal."""
    leaves, expected = tree_flatten_with_path(ours)[0], tree_flatten_with_path(theirs)[0]
    if [p for p, _ in leaves] != [p for p, _ in expected]:
        if ours is None:
            return "it returns None. Is a `return` missing?"
        return (
            f"it returns {counted(len(leaves), 'array')} in {jax.tree.structure(ours)}, but {name} returns "
            f"{jax.tree.structure(theirs)}."
        )
    for (path, a), (_, b) in zip(leaves, expected, strict=True):
        at = f" in {keystr(path)}" if path else ""
        if np.shape(a) != np.shape(b):
            return f"it returns the shape {np.shape(a)}{at}, but {name} returns the shape {np.shape(b)}."
        # The answers of puzzles have millions of elements: no copy that is not needed, and in their own type.
        types = {np.asarray(a).dtype, np.asarray(b).dtype}
        kind: Any = np.complex128 if any(t.kind == "c" for t in types) else np.float64 if types != {_F32} else _F32
        x, y = np.asarray(a, kind), np.asarray(b, kind)
        with np.errstate(invalid="ignore", over="ignore"):
            off = np.asarray(np.abs(np.subtract(x, y)))
        odd = ~np.isfinite(off)
        if odd.any():
            x_odd, y_odd = x[odd], y[odd]
            off[odd] = np.where((x_odd == y_odd) | (np.isnan(x_odd) & np.isnan(y_odd)), 0.0, np.inf)
        scale = np.max(np.abs(y), initial=1e-30, where=np.isfinite(y))
        if off.size and off.max() > tol * scale:
            worst = np.unravel_index(int(off.argmax()), off.shape)
            element = f" at index [{', '.join(map(str, worst))}]" if worst else ""
            return f"it returns {x[worst]:.6g}{at}{element}, but {name} returns {y[worst]:.6g}."
    return ""
