"""In bfloat16, positions above 256 are rounded to even numbers and more, so neighbours have the same one.

Shown by `jaxviz lint model.py:in_16_bits --args "init(jax.random.key(0)), document()" --agent`. To `jaxviz divergence`
it is what rounding may change.
After transformers#29285, gpt-neox#1003 and candle#3520.
"""

from benchmarks.tasks.judging import Attempt, Edit, answer, line_of, names_line

KIND = "divergence"
AT = "steps = positions.astype(dtype)"
SOLUTION = Attempt(
    "the positions, which have no room in 8 bits of mantissa",
    (Edit("answer.txt", "", f"rotary.py:{line_of('long_positions', 'rotary.py', AT)}\n"),),
)
WRONG = Attempt(
    "the weights of attention in 16 bits: a part in 256 of each, which is what 16 bits cost",
    (Edit("answer.txt", "", f"model.py:{line_of('long_positions', 'model.py', 'softmax(scores).astype')}\n"),),
)


def check(folder):
    return names_line(answer(folder), "long_positions", "rotary.py", AT)
