"""What the primitives that hold programs are, and the rules by which each transform goes through them, registered into its table."""

from jaxviz.higher_order import calls, checkpoint, conditionals, devices, flags, loops  # noqa: F401
