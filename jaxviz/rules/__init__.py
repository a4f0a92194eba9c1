"""Rules for equations that hold programs, registered into the transforms' tables."""

from jaxviz.rules import calls, checkpoint, conditionals, loops  # noqa: F401
