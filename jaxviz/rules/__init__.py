"""Rules for equations that hold programs, registered into the transforms' tables."""

from jaxviz.rules import calls, checkpoint, conditionals, devices, loops  # noqa: F401
