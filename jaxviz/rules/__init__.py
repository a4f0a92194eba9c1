"""Rules for equations that hold programs, registered into the transforms' tables."""

from jaxviz.rules import calls, checkpoint, conditionals, devices, flags, loops  # noqa: F401
