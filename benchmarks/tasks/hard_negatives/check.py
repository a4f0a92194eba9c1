"""Sorting the columns of a matrix whose rows are split moves the whole matrix to other devices.

Shown by `jaxviz collectives train.py:loss --args "*types()" --agent`.
"""

from benchmarks.tasks.judging import Attempt, Edit, answer, line_of, names_line

KIND = "resharding"
AT = "jnp.sort(others"
SOLUTION = Attempt(
    "the sort within each column",
    (Edit("answer.txt", "", f"losses.py:{line_of('hard_negatives', 'losses.py', AT)}\n"),),
)
WRONG = Attempt(
    "the product that gathers the captions, which is the expected part",
    (Edit("answer.txt", "", f"losses.py:{line_of('hard_negatives', 'losses.py', 'a @ b.T')}\n"),),
)


def check(folder):
    return names_line(answer(folder), "hard_negatives", "losses.py", AT)
