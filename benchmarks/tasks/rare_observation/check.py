"""All densities underflow to zero at one measurement, so the belief is zero divided by zero.

Shown by `jaxviz nan hmm.py:log_likelihood --args "fitted(), recording()" --agent`.
"""

import re

from benchmarks.tasks.judging import Attempt, Edit, answer, line_of, names_line

KIND = "NaN"
DIVIDES = "belief = joint / evidence"
STEP = 263
SOLUTION = Attempt(
    "zero divided by zero, at the outlier that is far from all states",
    (Edit("answer.txt", "", f"hmm.py:{line_of('rare_observation', 'hmm.py', DIVIDES)}\nstep {STEP}\n"),),
)
WRONG = Attempt(
    "the logarithm at the first outlier: it has a floor, and the densities there are above zero",
    (Edit("answer.txt", "", f"hmm.py:{line_of('rare_observation', 'hmm.py', 'surprise = -jnp.log')}\nstep 100\n"),),
)  # fmt: skip


def check(folder):
    text = answer(folder)
    wrong = names_line(text, "rare_observation", "hmm.py", DIVIDES)
    steps = {int(n) for n in re.findall(r"(?:step|iteration)\W*(?:number\W*)?(\d+)", text, re.IGNORECASE)}
    if len(steps) != 1:
        return [*wrong, "answer.txt has to name one time step, as in: step 0"]
    return wrong if steps == {STEP} else [*wrong, f"it is not step {min(steps)}"]
