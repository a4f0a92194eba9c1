"""What features and wings add to lower layers, such as a derivation's residuals and the widgets of reports.

Each is listed by module and name and imported on first use, so that no module imports a higher layer.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PLACES = {
    "residuals of a derivation": "jaxviz.features.residuals.residual_set:find_residuals",
    "model beside the compiled memory": "jaxviz.xla.compiled_memory.beside:beside",
    "memory of XLA's kernels": "jaxviz.xla.compiled_memory.kernels:of_compiled",
    "picture of a derivation": "jaxviz.features.draw.drawing:draw",
    "compiled stage": "jaxviz.xla.explorer_stage.compiled",
    "one block of the compiled stage": "jaxviz.xla.explorer_stage.one_block:one_block_of",
    "report of a jitted function": "jaxviz.xla.compilations.compiled:report_compiled",
    "stepper at the origin of a NaN": "jaxviz.features.debugger.start:step_to",
    "stepper where runs part": "jaxviz.features.debugger.start:step_to_parting",
    "zoom of charts": "jaxviz.page.bundle:attend_to_charts",
    "output of a NaN's report": "jaxviz.features.debugger.widget:show_report",
    "plot of a watch": "jaxviz.features.probes.widget:LivePlot",
    "widget of a stepper": "jaxviz.features.debugger.widget:StepperWidget",
    "output of a stepper": "jaxviz.features.debugger.widget:mimebundle",
    "reports of the magics": "jaxviz.notebook.reports:Request",
    "call of a contract": "jaxviz.cli:called",
    "form of an exercise": "jaxviz.teach.widget:exercise_form",
}


def display(name: str) -> Any:
    """The function, class or module with that name in the table."""
    module, _, attribute = _PLACES[name].partition(":")
    target = import_module(module)
    return getattr(target, attribute) if attribute else target
