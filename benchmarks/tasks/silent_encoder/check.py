"""The energy is a sum over 1,500 samples, at which tanh is 1 to the last digit and its slope is 0.

Shown by `jaxviz flow train.py:loss --args "init(jax.random.key(0)), encoder_init(jax.random.key(1)), *batch()"`.
"""

from benchmarks.tasks.judging import Attempt, Edit, answer, line_of, names_line

KIND = "zero gradient"
AT = "summary = jnp.tanh(energy"
SOLUTION = Attempt(
    "the tanh of the energy, which is saturated in all elements",
    (Edit("answer.txt", "", f"encoder.py:{line_of('silent_encoder', 'encoder.py', AT)}\n"),),
)
WRONG = Attempt(
    "a `stop_gradient`, which is meant, and of another path",
    (Edit("answer.txt", "", f"train.py:{line_of('silent_encoder', 'train.py', 'lax.stop_gradient(teacher)')}\n"),),
)


def check(folder):
    return names_line(answer(folder), "silent_encoder", "encoder.py", AT)
