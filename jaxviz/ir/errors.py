"""The engine's own errors; if JAX has an error for the case, that is raised instead."""

from __future__ import annotations

from typing import Any


class JaxvizError(Exception):
    """The base class of jaxviz's own errors.

    >>> try:
    ...     jaxviz.derive(loss, params, x)
    ... except jaxviz.JaxvizError as error:
    ...     print(error)
    """


class UnsupportedJaxError(JaxvizError, ImportError):
    """The installed JAX is of a version that jaxviz does not support, or lacks a private name that jaxviz uses.

    >>> import jaxviz  # with a JAX that is too old or too new
    Traceback (most recent call last):
      ...
    jaxviz.UnsupportedJaxError: ...
    """


class EquationError(JaxvizError):
    """An equation that a transform cannot handle; the message names the primitive and the user's line.

    >>> try:
    ...     jaxviz.grad(loss)(params, x)
    ... except jaxviz.EquationError as error:  # NoRuleError, ReverseModeError or ForwardModeError
    ...     print(error)

    Args:
      message: what is missing, and what to do.
    """

    def __init__(self, message: str):
        super().__init__(message)
        self.trail: list[str] = []
        """The equation, then its enclosing ones, up to the first that has a line of the user's."""
        self.is_placed = False
        self.equation: Any = None
        """The equation."""
        self.advice = ""
        """What to write instead, as far as the function says it."""

    def __str__(self) -> str:
        message = super().__str__()
        reached = f" Reached at {', inside '.join(self.trail)}." if self.trail else ""
        return f"{message}{reached}{f' {self.advice}' if self.advice else ''}"


class NoRuleError(EquationError, NotImplementedError):
    """An equation that a transform has no rule for.

    >>> try:
    ...     jaxviz.grad(loss)(params, x)
    ... except jaxviz.NoRuleError as error:
    ...     print(error)
    """


class ReverseModeError(EquationError, ValueError):
    """An equation that has no reverse mode, such as a while loop; JAX's words, with the user's line and what to use.

    >>> halved = lambda x: jax.lax.while_loop(lambda x: x > 1, lambda x: x / 2, x)
    >>> jaxviz.grad(halved)(8.0)
    Traceback (most recent call last):
      ...
    jaxviz.ReverseModeError: ...
    """


class ForwardModeError(EquationError, TypeError):
    """Forward mode met a function whose rule is for reverse mode only; JAX's words, with the user's line.

    >>> jaxviz.jvp(tanh, (0.5,), (1.0,))  # a function of custom_vjp
    Traceback (most recent call last):
      ...
    jaxviz.ForwardModeError: ...
    """


class RuleNeedsValuesError(JaxvizError, NotImplementedError):
    """A custom rule can only be derived on values, and there are none."""


class NoArrayError(TypeError):
    """A function that was traced gave something that is not an array."""


def message_of(error: BaseException) -> str:
    """The text of an error; '' if its class has none to give: a user's `__str__` may fail too."""
    try:
        return str(error)
    except Exception:
        return ""
