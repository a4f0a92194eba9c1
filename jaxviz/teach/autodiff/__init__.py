"""Building one's own autodiff: a small engine, exercises that check each of its functions, and a file that keeps the learner's.

>>> my = teach.autodiff.engine()
>>> moving = teach.autodiff.exercise(my, "jvp")
>>> moving.answer(jvp)  # if it is right, my.jvp is the learner's from here on, in the notebooks after this one too
"""

from jaxviz.teach.autodiff.exercises import EXERCISES as EXERCISES
from jaxviz.teach.autodiff.exercises import exercise as exercise
from jaxviz.teach.autodiff.workbook import engine as engine
