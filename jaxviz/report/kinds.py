"""The kinds of memory: their order in a chart, what several values of one are called, and their colours, in texts, drawings and on the page."""

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

COLOURS = {
    "argument": "#7f8894",
    "constant": "#7f889480",
    "residual": "#cc7722",
    "result": "#8c68cf",
    "cotangent": "#249b82",
    "temporary": "#4a86d8",
}
"""The colour of a kind in a small drawing, which contrasts with white and with dark pages."""

ON_PAGE = {
    "argument": "#98a4b1",
    "constant": "#ccd4dc",
    "residual": "#de8531",
    "result": "#8c68cf",
    "cotangent": "#2ba48b",
    "temporary": "#6aa5f5",
}
"""The same in the explorer and its pictures: the page's `--jv-of-residual` and the others, where it is white."""
