"""Each code snippet that `find_nan` suggests runs as printed, and makes the gradient finite."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import jaxviz
from jaxviz.features.nans.advice import DOMAINS, REMEDIES
from jaxviz.features.nans.causes import Case, cause_of, operand

X = jnp.array([-1.0, 0.0, 4.0])
HALF = jnp.array([300.0, 1.0], jnp.float16)

CASES = {
    "keep inside": [("jnp.sum({})", "jnp.log(x)", X), ("jnp.sum({})", "jnp.arccos(x)", X / 4 - 0.75)],
    "safe before where": [
        ("jnp.sum({})", "jnp.where(x > 0, jnp.sqrt(x), 0)", X),
        ("jnp.sum({})", "jnp.where(x > 0, jnp.log(x), 0)", X),
        ("jnp.sum({})", "jnp.where(x != 0, a / x, 0)", X),
        ("jnp.sum(jnp.where(x > 0, 3 * ({}) + x, 0))", "jnp.sqrt(x)", X),
    ],
    "constant under the root of a norm": [("{}", "jnp.linalg.norm(x)", jnp.zeros(3))],
    "constant under the root of a deviation": [("{}", "jnp.std(x)", jnp.ones(3))],
    "break the tie of eigh": [("total({})", "jnp.linalg.eigh(x)", 100 * jnp.eye(3))],
    "break the tie of svd": [("total({})", "jnp.linalg.svd(x, full_matrices=False)", 100 * jnp.eye(3, 2))],
    "mask with a finite number": [
        ("jax.nn.softmax({})[0]", "jnp.where(mask, x, -jnp.inf)", X),
        ("jax.nn.logsumexp({})", "jnp.where(mask, x, -jnp.inf)", X),
        ("jnp.where(mask[0], jax.nn.logsumexp(x + {}), 0.0)", "jnp.where(mask, 0.0, -jnp.inf)", X),
    ],
    "a finite number for infinity": [
        ("jnp.sum(x * {})", "jnp.inf", X),
        ("jnp.sum((x + {0}) - {0})", "jnp.inf", X),
        ("jnp.sum((x + {0}) / (x + {0}))", "jnp.inf", X),
    ],
    "shift to positive definite": [("total(jnp.linalg.cholesky({}))", "x", -50 * jnp.eye(2))],
    "shift off singular": [
        ("total(jnp.linalg.inv({}))", "x", jnp.zeros((2, 2))),
        ("total(jnp.linalg.solve({}, x[0]))", "x", 1e4 * jnp.array([[1.0, 2.0], [2.0, 4.0]])),
    ],
    "clip before exp": [("jnp.sum({})", f"jnp.{f}(x)", 300 * X) for f in ("exp", "exp2", "sinh")],
    "cast to bfloat16": [("jnp.sum({})", "x.astype(jnp.float16)", jnp.array([1e38, 1.0]))],
    "clip before a cast": [("jnp.sum(({}).astype(jnp.bfloat16))", "x", jnp.array([3.4e38, 1.0]))],
    "compute in float32": [("jnp.sum({0} * {0})", "x", HALF)],
    "clip before": [
        ("jnp.sum({0} * {0})", "x", 1e30 * X),
        ("{0} @ {0}", "x", 1e30 * X),
        ("jnp.sum({0})", "x", jnp.full(9, 3e38)),
        ("jnp.sum(({0}) ** 7)", "x", 1e9 * X),
    ],
    "divide by no less": [("jnp.sum({})", "a / x", jnp.array([1e-39, 1.0]))],
}  # fmt: skip
"""By the name of the advice: program templates, what is filled in and needs the advice, and `x`."""


def evaluated(program, x, safe=None, p=0.5):
    """What a text computes, after the statement `safe`."""
    names = {"jnp": jnp, "jax": jax, "x": x, "y": x, "a": 2.0, "p": p, "mask": jnp.zeros(x.shape, bool)}
    names["total"] = lambda tree: sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree))
    if safe:
        exec(safe, names)
    return eval(program, names)


def followed(remedy, program="{}", **names):
    """The programs with the advice followed: one for each of its snippets, except those that other snippets require."""
    codes = re.findall(r"`([^`]*)`", remedy)
    safe = next((code for code in codes if code.startswith("x_safe = ")), None)
    return [lambda x, c=c: evaluated(program.format(c), x, safe, **names) for c in codes if c != safe]


def has_finite_gradient(f, x):
    value, gradient = jax.value_and_grad(f)(x)
    return bool(jnp.isfinite(value) & jnp.isfinite(gradient).all())


def test_all_advice_has_a_case():
    assert set(CASES) == set(REMEDIES)


@pytest.mark.values
@pytest.mark.parametrize("advice", CASES)
def test_advice_that_is_followed_leaves_the_gradient_finite(advice):
    for program, hole, x in CASES[advice]:
        broken = partial(evaluated, program.format(hole))
        cause = jaxviz.find_nan(broken, x).born.cause
        assert cause.advice == advice
        repaired = followed(cause.remedy, program)
        assert repaired
        for f in repaired:
            assert has_finite_gradient(f, x), (program, cause.remedy)


AT = jnp.array([-2.5, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 40.0])
"""Outside, at, and inside the boundaries of all domains."""


@pytest.mark.values
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("behind_where", [False, True])
def test_each_domain_is_kept_to(behind_where, dtype):
    for name, domain in DOMAINS.items():
        needs_float32 = name in ("igamma", "regularized_incomplete_beta", "erf_inv", "polygamma")
        x = AT.astype("float32" if needs_float32 else dtype)
        p = {"p": -2} if name == "integer_pow" else {}
        plain = partial(evaluated, f"jnp.sum({domain.of('x')})", **p)
        assert not has_finite_gradient(plain, x), name
        case = Case(name, {}, name, name, True, [operand(x)], [operand(x)], x.dtype, behind_where)
        cause = cause_of(case)
        assert cause.advice == ("safe before where" if behind_where else "keep inside")
        (repaired,) = followed(cause.remedy, "jnp.sum({})", **p)
        assert has_finite_gradient(repaired, x), (name, cause.remedy)


def test_a_number_for_an_infinite_argument():
    f = lambda x: jnp.sum(x - x)
    x = jnp.array([1.0, jnp.inf])
    report = jaxviz.find_nan(f, x)
    assert report.born is None
    assert "the argument x (" in report.given[0]
    assert report.given[0].endswith("the first infinity at [1])")
    cause = report.became_nan.cause
    assert cause.remedy in " ".join(str(report).split())
    (number,) = re.findall(r"`(.*)`", cause.remedy)
    assert has_finite_gradient(f, x.at[1].set(float(number)))


def test_what_comes_of_an_infinity_has_no_advice_of_its_own():
    report = jaxviz.find_nan(lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0)), jnp.array([0.0, 4.0]))
    assert report.became_nan.cause.id == "zero-times-infinity"
    assert str(report).count("Instead:") == 1
