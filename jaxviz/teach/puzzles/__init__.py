"""Puzzles: short functions to rewrite, so that a gradient takes less memory or work, has no NaN, or sends fewer bytes.

>>> mask = teach.puzzles.show("mask")  # or by its number; a form in a notebook
>>> mask.answer(my_rectified)
>>> teach.puzzles.card()  # the score card, of all of them
"""

from jaxviz.teach.puzzles.card import Card as Card
from jaxviz.teach.puzzles.card import card as card
from jaxviz.teach.puzzles.choices import choose as choose
from jaxviz.teach.puzzles.game import ask as ask
from jaxviz.teach.puzzles.game import show as show
from jaxviz.teach.puzzles.puzzle import Puzzle as Puzzle
