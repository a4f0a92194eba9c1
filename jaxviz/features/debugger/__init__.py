"""The step debugger: positions in a derivation, the values at each, breakpoints, and the widget that shows them."""
