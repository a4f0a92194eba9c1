"""Exercises that check answers by computing the truth.

>>> from jaxviz import teach
>>> kept = teach.saved(loss, params, x)  # a form in a notebook
>>> kept.answer(["x", "tanh"])  # or by name
"""

import importlib as _importlib
import typing as _typing

from jaxviz.teach.exercise import Exercise as Exercise
from jaxviz.teach.exercise import Point as Point
from jaxviz.teach.exercise import Verdict as Verdict
from jaxviz.teach.predict import predict as predict
from jaxviz.teach.rule import Check as Check
from jaxviz.teach.rule import rule as rule
from jaxviz.teach.sessions import Answered as Answered
from jaxviz.teach.sessions import number as number
from jaxviz.teach.sessions import seed as seed
from jaxviz.teach.static import static_fold as static_fold
from jaxviz.teach.static import static_form as static_form
from jaxviz.teach.static import static_result as static_result
from jaxviz.teach.static import static_script as static_script

if _typing.TYPE_CHECKING:
    from jaxviz.teach import autodiff as autodiff
    from jaxviz.teach import puzzles as puzzles
    from jaxviz.teach.checks import computes as computes
    from jaxviz.teach.checks import gradient_of as gradient_of
    from jaxviz.teach.checks import has_right_rule as has_right_rule
    from jaxviz.teach.checks import is_linear as is_linear
    from jaxviz.teach.checks import keeps_at_most as keeps_at_most
    from jaxviz.teach.checks import traces_to as traces_to
    from jaxviz.teach.handouts import given as given
    from jaxviz.teach.handouts import student_copies as student_copies
    from jaxviz.teach.outcomes import Results as Results
    from jaxviz.teach.outcomes import read_results as read_results
    from jaxviz.teach.outcomes import results as results
    from jaxviz.teach.saved_values import saved as saved

# A question, and an answer in code, need no JAX: the notebook on a tape runs in a browser, where there is none.
_PLACES = {
    "autodiff": "",
    "puzzles": "",
    "saved": "saved_values",
    **dict.fromkeys(("given", "student_copies"), "handouts"),
    **dict.fromkeys(("Results", "read_results", "results"), "outcomes"),
    **dict.fromkeys(("computes", "gradient_of", "has_right_rule", "is_linear", "keeps_at_most", "traces_to"), "checks"),
}


def __getattr__(name: str) -> _typing.Any:
    """What runs JAX is imported on first use."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _importlib.import_module(f"{__name__}.{_PLACES[name] or name}")
    return getattr(place, name) if _PLACES[name] else place


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
