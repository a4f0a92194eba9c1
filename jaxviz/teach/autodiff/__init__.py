"""Build your own autodiff: a small engine, exercises that check each of its functions, and a file that stores the
learner's functions.

>>> my = teach.autodiff.engine()
>>> moving = teach.autodiff.exercise(my, "jvp")
>>> moving.answer(jvp)  # if it is correct, my.jvp is the learner's from then on, also in later notebooks
"""

from jaxviz.teach.autodiff.additions import addition as addition
from jaxviz.teach.autodiff.exercises import EXERCISES as EXERCISES
from jaxviz.teach.autodiff.exercises import exercise as exercise
from jaxviz.teach.autodiff.workbook import engine as engine
