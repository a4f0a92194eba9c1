"""What features add to lower layers: a derivation's residuals and pictures, the widgets of reports, the report of a jit.

Each is listed by module and name and imported on first use, so that no module imports a higher layer.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "residuals of a derivation": "jaxviz.features.residuals.residual_set:find_residuals",
    "model beside the compiled memory": "jaxviz.features.compiled_memory.beside:beside",
    "picture of a derivation": "jaxviz.features.draw.drawing:draw",
    "report of a jitted function": "jaxviz.features.compilations.compiled:report_compiled",
    "run up to a birth": "jaxviz.features.debugger.birth:step_to",
    "output of a NaN's report": "jaxviz.features.debugger.widget:show_report",
    "plot of a watch": "jaxviz.features.probes.widget:LivePlot",
    "widget of a stepper": "jaxviz.features.debugger.widget:StepperWidget",
    "output of a stepper": "jaxviz.features.debugger.widget:mimebundle",
    "reports of the magics": "jaxviz.notebook.reports:Request",
    "form of an exercise": "jaxviz.teach.widget:exercise_form",
}


def display(name: str) -> Any:
    """The function or class with that name in the table."""
    module, attribute = _PLACES[name].split(":")
    return getattr(import_module(module), attribute)
