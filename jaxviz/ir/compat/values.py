"""Values and tracers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxviz.ir.compat.checks import is_float0
from jaxviz.ir.compat.jaxprs import is_mutable_type, is_ref
from jaxviz.ir.compat.private import _core, _lax, dispatch, dtypes


def concrete_value(x: Any) -> Any:
    """The value behind x, or None if x is abstract."""
    return x.to_concrete_value() if isinstance(x, _core.Tracer) else x


def canonicalize(x: Any) -> Any:
    """A leaf as JAX takes it as an argument: NumPy and Python values in JAX's types, tracers as they are."""
    return x if isinstance(x, _core.Tracer) else dtypes.canonicalize_value(x)


def aval_of(x: Any) -> Any:
    """The type of an argument: an array, a Python number, a tracer or a ShapeDtypeStruct."""
    return _core.shaped_abstractify(x) if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)


def type_to_trace(x: Any) -> Any:
    """The type with which a function is traced for an argument: that of a mutable hi type with what the value now
    holds."""
    aval = aval_of(x)
    return _core.cur_aval_qdd(x) if is_mutable_type(aval) else aval


def stand_in(aval: Any, sharding: Any = None) -> Any:
    """What a function may be traced or lowered with in place of a value of this type; a hi type and that of a reference
    stand for themselves, and for a mutable hi type a value of zeros that take no memory."""
    if is_mutable_type(aval):
        return aval.new_from_loval(*(np.broadcast_to(np.zeros((), a.dtype), a.shape) for a in aval.lo_ty()))
    if not hasattr(aval, "dtype") or is_ref(aval):
        return aval
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, sharding=sharding, weak_type=bool(getattr(aval, "weak_type", False))
    )


def checked_argument(x: Any) -> Any:
    """x, if JAX accepts it as an argument.

    Raises:
      TypeError: jax's, saying what it is.
    """
    dispatch.check_arg(x)
    return x


def as_type(x: Any, aval: Any) -> Any:
    """x with the weakness of a type; shapes and dtypes are the same already."""
    weak = bool(getattr(aval, "weak_type", False))
    if bool(getattr(jax.typeof(x), "weak_type", False)) == weak or not hasattr(aval, "dtype") or is_float0(aval):
        return x
    return _lax._convert_element_type(x, aval.dtype, weak_type=weak)


def as_array(x: Any, aval: Any) -> Any:
    """x as an array, if it is a plain number."""
    is_number = hasattr(aval, "dtype") and not isinstance(x, (jax.Array, jax.Ref)) and not np.shape(x)
    return as_type(jax.numpy.asarray(x, aval.dtype), aval) if is_number else x


def is_live_ref(x: Any) -> bool:
    """Whether x is a mutable reference that has a value, not one of a program that is being traced."""
    return isinstance(x, jax.Ref) and not isinstance(x, _core.Tracer)


def is_written_in_place(x: Any) -> bool:
    """Whether x can be written in place: a mutable reference, or a value of a mutable hi type; not one that is being
    traced."""
    return is_live_ref(x) or (is_hi_value(x) and not isinstance(x, _core.Tracer) and is_mutable_type(jax.typeof(x)))


def contents(x: Any) -> list[Any]:
    """The arrays that something that can be written in place now holds; x itself for any other value."""
    if is_live_ref(x):
        return [x[...]]
    return list(type_to_trace(x).read_loval(x)) if is_written_in_place(x) else [x]


def arrays_in(x: Any) -> list[Any]:
    """The arrays that a value consists of: several for one of a hi type."""
    is_fixed = is_hi_value(x) and not is_written_in_place(x)
    return list(jax.typeof(x).lower_val(x)) if is_fixed else contents(x)


def keep_contents(x: Any) -> Callable[[], None]:
    """A function that puts back what something that can be written in place now holds."""
    contents_ = contents(x)
    if is_live_ref(x):
        return lambda: x.__setitem__(..., contents_[0])
    kind = type_to_trace(x)
    return lambda: kind.aval.update_from_loval(kind.qdd, x, *contents_)


def _copied(x: Any) -> Any:
    contents_ = contents(x)
    return (
        jax.new_ref(contents_[0], kind=jax.typeof(x).kind)
        if is_live_ref(x)
        else type_to_trace(x).new_from_loval(*contents_)
    )


class Copies:
    """Copies what can be written in place among some values, each once, and returns other values as they are.

    Args:
      outer: copies that are copied in turn, instead of what they were made from.
    """

    def __init__(self, outer: Copies | None = None):
        self._outer = outer
        self._by_id: dict[int, tuple[Any, Any]] = {}
        """By the ids of values, which are kept so that the ids stay theirs."""

    def __call__(self, x: Any) -> Any:
        if not is_written_in_place(x):
            return x
        if id(x) not in self._by_id:
            source = x if self._outer is None else self._outer(x)
            with _core.set_current_trace(_core.eval_trace):  # not part of what is being traced
                copy = _copied(source)
            self._by_id[id(x)], self._by_id[id(copy)] = (x, copy), (copy, copy)
        return self._by_id[id(x)][1]


def is_tracer(x: Any) -> bool:
    return isinstance(x, _core.Tracer)


def is_leaked(x: Any) -> bool:
    """Whether x is a tracer of a finished trace. Under another trace JAX says so itself, when the program is used."""
    return isinstance(x, _core.Tracer) and (
        isinstance(_core.trace_ctx.trace, _core.EvalTrace) or not x._trace.is_valid()
    )


def leaked_error(x: Any) -> Exception:
    """JAX's error for a leaked tracer; it says where the tracer was created."""
    error: Exception = _core.escaped_tracer_error(x)
    return error


def source_of(tracer: Any) -> Any:
    """Where a tracer was created, in the form of an equation's `source`; None if that is unknown."""
    return getattr(tracer, "_line_info", None)


def array_types(aval: Any) -> list[Any]:
    """The types of the arrays that a compiled program has for a value: several for one of a hi type."""
    return [aval] if hasattr(aval, "dtype") else list(aval.lo_ty())


def is_hi_value(x: Any) -> bool:
    """Whether x is of a hi type: one that JAX lowers to arrays."""
    try:
        return bool(getattr(jax.typeof(x), "is_high", False))
    except TypeError:
        return False
