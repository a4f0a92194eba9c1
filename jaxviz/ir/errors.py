"""The errors that the engine raises itself; where JAX has an error for the case, JAX's own is raised."""

from __future__ import annotations


class JaxvizError(Exception):
    """What all errors of the engine's own are."""


class ProgramTypeError(JaxvizError, TypeError):
    """A program that is not well typed; the message names the equation and the user's line."""


class NoRuleError(JaxvizError, NotImplementedError):
    """An equation that a transform has no rule for; the message names the primitive and the user's line."""
