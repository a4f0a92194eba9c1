"""What charts distinguish by colour: the kinds of memory, with their order and what several values of one are called,
and the kinds of other charts."""

STACKED = ("argument", "constant", "residual", "result", "cotangent", "temporary")
"""The kinds in stacking order: the longest-lived at the bottom."""

PLURALS = {
    "argument": "arguments",
    "constant": "constants",
    "residual": "residuals",
    "result": "results",
    "cotangent": "cotangents",
    "temporary": "temporaries",
}
"""What several values of a kind are called."""

OF_MEMORY = {
    "argument": "#7f8894",
    "constant": "#7f889480",
    "residual": "#cc7722",
    "result": "#8c68cf",
    "cotangent": "#249b82",
    "temporary": "#4a86d8",
}
"""The colour of a kind of memory in a small drawing, which contrasts with white and with dark pages."""

COLOURS = {
    **OF_MEMORY, "literal": "#7f889450", "intermediate": OF_MEMORY["residual"], "dummy": "#d1495b",
    "forward": "#4a86d8", "backward": "#249b82", "before": "#7f8894", "after": "#4a86d8", "saved": "#cc7722",
    "offloaded": "#8c68cf", "recomputed": "#4a86d8", "already an input": "#7f8894", "spared": "#249b82",
    "copied": "#cc7722", "for nothing": "#d1495b", "could be donated": "#7f889480", "at stake": "#cc7722",
    "trace": "#7f8894", "lower": "#4a86d8", "compile": "#cc7722", "no checkpoints": "#7f8894", "policy": "#cc7722",
    "plan": "#4a86d8", "infinity": "#cc7722", "NaN": "#d1495b", "passed": "#7f8894", "merged": "#d1495b",
    "carried": "#9a7a30", "copy": "#d1495b", "layout": "#d9667a", "padding": "#b5708a", "double buffer": "#c0506a",
    "fusion": "#b5586f", "scratch": "#9a6a75", "unused": "#7f889450", "not attributed": "#7f889480",
}  # fmt: skip
"""The kind of something -> its colour, in all charts of reports."""
