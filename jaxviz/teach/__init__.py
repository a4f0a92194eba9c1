"""Exercises that check answers by computing the truth with JAX.

>>> from jaxviz import teach
>>> kept = teach.saved(loss, params, x)  # a form in a notebook
>>> kept.answer(["x", "tanh"])  # or by name
"""

import importlib as _importlib
import typing as _typing

from jaxviz.teach import autodiff as autodiff
from jaxviz.teach.exercise import Exercise as Exercise
from jaxviz.teach.exercise import Point as Point
from jaxviz.teach.exercise import Verdict as Verdict
from jaxviz.teach.handouts import given as given
from jaxviz.teach.handouts import student_copies as student_copies
from jaxviz.teach.predict import predict as predict
from jaxviz.teach.results import Answered as Answered
from jaxviz.teach.results import Results as Results
from jaxviz.teach.results import read_results as read_results
from jaxviz.teach.results import results as results
from jaxviz.teach.rule import Check as Check
from jaxviz.teach.rule import computes as computes
from jaxviz.teach.rule import gradient_of as gradient_of
from jaxviz.teach.rule import has_right_rule as has_right_rule
from jaxviz.teach.rule import is_linear as is_linear
from jaxviz.teach.rule import keeps_at_most as keeps_at_most
from jaxviz.teach.rule import rule as rule
from jaxviz.teach.rule import traces_to as traces_to
from jaxviz.teach.saved import saved as saved
from jaxviz.teach.sessions import number as number
from jaxviz.teach.sessions import seed as seed
from jaxviz.teach.static import static_fold as static_fold
from jaxviz.teach.static import static_form as static_form
from jaxviz.teach.static import static_result as static_result
from jaxviz.teach.static import static_script as static_script

if _typing.TYPE_CHECKING:
    from jaxviz.teach import puzzles as puzzles


def __getattr__(name: str) -> _typing.Any:
    """The puzzles, which import the planner and more, are imported on first use."""
    if name == "puzzles":
        return _importlib.import_module("jaxviz.teach.puzzles")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
