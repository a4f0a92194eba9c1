"""The advice of `find_nan`, followed to the letter: the NaN is gone, and finite values and gradients are the same."""

import itertools
import re
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_runs import short, short_rows

import jaxviz
from jaxviz.features.nans.advice import DOMAINS, REMEDIES

X = jnp.array([-1.0, 0.0, 4.0])
HALF = jnp.array([300.0, 1.0], jnp.float16)


def evaluated(code, before=None, **names):
    """What a code snippet computes, after the statement `before`."""
    names = {"jnp": jnp, "jax": jax, "a": 2.0, "p": 0.5, "n": 1} | names
    names["total"] = lambda tree: sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree))
    if before:
        exec(before, names)
    return eval(code, names)


def snippets(remedy):
    """The code snippets of a remedy, each with the statement that it needs."""
    codes = re.findall(r"`([^`]*)`", remedy)
    statements = {m[1]: code for code in codes if (m := re.match(r"(\w+) = ", code))}
    needed = lambda code: next((s for name, s in statements.items() if re.search(rf"\b{name}\b", code)), None)
    return [(code, needed(code)) for code in codes if code not in statements.values()]


def is_finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree))


# --- functions of one element
# -------------------------------------------------------------------------------------------

NUMBERS = [
    -40.0, -2.5, -2.0, -1.5, -1.0, -0.5, -1e-12, -1e-30, -0.0, 0.0, 1e-30, 1e-20, 1e-12, 1e-4, 0.3, 0.5,
    1.0, 1.5, 2.0, 11.0, 40.0, 88.5, 127.5, 200.0, 1e30,
]  # fmt: skip
"""Outside, at, near and inside of all boundaries. No subnormal numbers: for XLA they are 0 in some operations."""

CALLS = {
    "sqrt": ("jnp.sqrt(x)", {}),
    "rsqrt": ("jax.lax.rsqrt(x)", {}),
    "cbrt": ("jnp.cbrt(x)", {}),
    "log": ("jnp.log(x)", {}),
    "log2": ("jnp.log2(x)", {}),
    "log10": ("jnp.log10(x)", {}),
    "log1p": ("jnp.log1p(x)", {}),
    "pow": ("x ** p", {"p": [-2.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]}),
    "integer_pow": ("x ** p", {"p": -3}),
    "cube": ("x ** p", {"p": 3}),
    "square": ("jnp.square(x)", {}),
    "div": ("a / x", {"a": [-2.0, 1.0, 1e10]}),
    "atan2": ("jnp.arctan2(y, x)", {"y": [-2.0, -0.0, 0.0, 1e-30, 1.0]}),
    "asin": ("jnp.arcsin(x)", {}),
    "acos": ("jnp.arccos(x)", {}),
    "acosh": ("jnp.arccosh(x)", {}),
    "atanh": ("jnp.arctanh(x)", {}),
    "erf_inv": ("jax.scipy.special.erfinv(x)", {}),
    "lgamma": ("jax.scipy.special.gammaln(x)", {}),
    "digamma": ("jax.scipy.special.digamma(x)", {}),
    "polygamma": ("jax.scipy.special.polygamma(n, x)", {"n": 2}),
    "igamma": ("jax.scipy.special.gammainc(a, x)", {"a": [0.5, 1.0, 2.0]}),
    "regularized_incomplete_beta": ("jax.scipy.special.betainc(a, p, x)", {"a": 0.5, "p": 3}),
    "exp": ("jnp.exp(x)", {}),
    "exp2": ("jnp.exp2(x)", {}),
    "expm1": ("jnp.expm1(x)", {}),
    "sinh": ("jnp.sinh(x)", {}),
    "cosh": ("jnp.cosh(x)", {}),
    "cast": ("x.astype(jnp.float16)", {}),
}
"""How each is called, with the values of its other arguments; arguments that are arrays are differentiated too."""

NO_HALF = ("igamma", "regularized_incomplete_beta", "erf_inv", "polygamma")
"""What JAX does not compute in 16 bits."""


def arguments(name, dtype):
    """All combinations of the arguments, as arrays, and the other arguments."""
    lists = {"x": NUMBERS} | {k: v for k, v in CALLS[name][1].items() if isinstance(v, list)}
    lists = {k: [x for x in v if abs(x) < float(jnp.finfo(dtype).max)] for k, v in lists.items()}
    grid = np.meshgrid(*(jnp.asarray(values, dtype) for values in lists.values()))
    arrays = {k: jnp.asarray(values.ravel(), dtype) for k, values in zip(lists, grid, strict=True)}
    return arrays, {k: v for k, v in CALLS[name][1].items() if not isinstance(v, list)}


def computed(code, before, arrays, fixed, seen=True):
    """Each element of the result and of the gradients; where it is not `seen`, a `where` hides the result."""

    def total(*given):
        result = evaluated(code, before, **dict(zip(arrays, given, strict=True)), **fixed)
        result = jnp.where(seen, result, 0.0)
        return jnp.sum(result.astype(jnp.float32) if result.dtype == jnp.float16 else result), result

    gradients, result = jax.grad(total, tuple(range(len(arrays))), has_aux=True)(*arrays.values())
    return np.asarray([result.astype("float32"), *(g.astype("float32") for g in gradients)])


def kinds(values):
    """For each element, which of the values are NaN, infinite and finite, so that one of each kind is tried."""
    return [tuple(column) for column in np.where(np.isfinite(values), 0, values).T.astype(str)]


def test_all_operations_with_a_boundary_are_called():
    assert {domain.partition(" ")[0] for domain in DOMAINS} <= set(CALLS)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The calls in a file, since advice depends on the user's expression: a function of the call, and of where its
    result is seen."""
    calls = {name: ", ".join(arguments(name, "float32")[0]) for name in CALLS}
    lines = ["import jax", "import jax.numpy as jnp"]
    for name, arrays in calls.items():
        lines += [f"def {name}(seen, a=None, n=None, p=None):", f"    def call({arrays}):"]
        lines += [f"        return jnp.where(seen, {CALLS[name][0]}, 0.0)", "    return call"]
    path = tmp_path_factory.mktemp("written") / "calls.py"
    path.write_text("\n".join(lines))
    return runpy.run_path(str(path))


WAYS = {
    # the id: whether the result is behind a `where`, and how the gradient is taken
    "plain, find_nan": (False, "find_nan"),
    "behind where, jax.grad": (True, "jax.grad"),
    "plain, jax.grad": (False, "jax.grad"),
    "behind where, find_nan": (True, "find_nan"),
}


SHORT_WAYS = [
    (name, "float32", list(WAYS)[i % 2])
    for i, name in enumerate(CALLS)
    if name not in ("igamma", "polygamma", "regularized_incomplete_beta")
]
"""Each function in one of two ways, in turn, but those that take longest to compile, which are like the others."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "way"),
    short_rows(list(itertools.product(CALLS, ("float32", "float16", "bfloat16"), WAYS)), SHORT_WAYS),
)
def test_advice_for_an_element_keeps_all_others(written, name, dtype, way):
    hidden, by = WAYS[way]
    if dtype != "float32" and name in (*NO_HALF, "cast"):
        pytest.skip("not computed in 16 bits")
    code, _ = CALLS[name]
    arrays, fixed = arguments(name, dtype)
    plain = computed(code, None, arrays, fixed)
    seen = np.isfinite(plain[0]) if hidden else True
    before = computed(code, None, arrays, fixed, seen)
    first, all_arguments = 1 if by == "jax.grad" else 0, tuple(range(len(arrays)))
    tried = set()
    for i, kind in enumerate(kinds(np.concatenate([before, np.sign(arrays["x"])[None]]))):
        if np.isfinite(before[first:, i]).all() or kind in tried:
            continue
        tried.add(kind)
        element = {k: values[i] for k, values in arrays.items()}
        call = written[name](seen if seen is True else seen[i], **fixed)
        if by == "jax.grad":
            report = jaxviz.find_nan(jax.grad(call, all_arguments), *element.values())
        else:
            report = jaxviz.find_nan(call, *element.values(), argnums=all_arguments)
        if report is None and dtype == "float16":  # XLA compiles it for float32
            continue
        cause = report.born.cause
        if not cause.remedy:
            assert by == "jax.grad" or "x ** p * log(x)" in cause.text, (element, cause)
            continue
        for repaired, statement in snippets(cause.remedy):
            if repaired in NOT_FOR_ELEMENTS:
                continue
            after = computed(repaired, statement, arrays, fixed, seen)
            assert np.isfinite(after[first:, i]).all(), (element, cause, after[:, i])
            was_finite = np.isfinite(before) & np.isfinite(before[:1])
            np.testing.assert_allclose(
                after[was_finite], before[was_finite], rtol=RTOL.get(name, 0), err_msg=cause.remedy
            )


NOT_FOR_ELEMENTS = "jax.nn.softmax(x)", "x.astype(jnp.bfloat16)", "x.astype(jnp.float32)"
"""Alternatives to which other tests apply."""

RTOL = {"regularized_incomplete_beta": 1e-6}
"""XLA iterates until all elements have converged, so that each depends a little on the others."""


# --- programs
# -----------------------------------------------------------------------------------------------------------

NORMAL = [jax.random.normal(jax.random.key(k), (3,)) * scale for k, scale in enumerate((1.0, 1e-30, 1e10, 100.0))]
POSITIVE = [jnp.abs(x) for x in NORMAL]
INSIDE = [x / (1 + jnp.max(jnp.abs(x))) for x in NORMAL]
MATRICES = [jnp.array([[4.0, 1.0, 0.3], [1.0, 3.0, 0.5], [0.3, 0.5, 2.0]]) * scale for scale in (1.0, 1e-4, 1e4)]

PROGRAMS = {
    "call inside": [
        ("jnp.sum({})", "jnp.log(x)", X, POSITIVE),
        ("jnp.sum({})", "jnp.arccos(x)", X / 4 - 0.75, INSIDE),
    ],
    "safe before where": [
        ("jnp.sum(jnp.where(x > 0, {}, 0))", "jnp.sqrt(x)", X, POSITIVE),
        ("jnp.sum(jnp.where(x != 0, {}, 0))", "a / x", X, NORMAL),
        ("jnp.sum(jnp.where(x > 0, 3 * ({}) + x, 0))", "jnp.sqrt(x)", X, POSITIVE),
        ("jnp.sum(jnp.where(x > 0, ({}) ** 2, 0))", "jnp.log(x)", X, POSITIVE),
    ],
    "flat where it is steep": [("jnp.sum({})", "a / x", X + 1e-25, NORMAL)],
    "norm of what is not zero": [("{}", "jnp.linalg.norm(x)", jnp.zeros(3), [*NORMAL, *MATRICES])],
    "root of a variance that is not zero": [("{}", "jnp.std(x)", jnp.ones(3), [*NORMAL, *MATRICES])],
    "break the tie of eigh": [("total({})", "jnp.linalg.eigh(x)", 100 * jnp.eye(3), MATRICES)],
    "break the tie of svd": [
        ("total({})", "jnp.linalg.svd(x, full_matrices=False)", 100 * jnp.eye(3, 2), [m[:, :2] for m in MATRICES]),
        ("total({})", "jnp.linalg.svd(x, full_matrices=False)", jnp.stack([jnp.eye(2), 2 * jnp.eye(2)]), []),
    ],
    "mask with a finite number": [
        ("jax.nn.softmax({})[0]", "jnp.where(mask, x, -jnp.inf)", X, NORMAL),
        ("jax.nn.logsumexp({})", "jnp.where(mask, x, -jnp.inf)", X, NORMAL),
        ("jnp.where(mask[0], (lambda s, x: jax.nn.logsumexp(s + {}))(x, 0 * x), 0.0)", "jnp.where(mask, x, -jnp.inf)",
         X, NORMAL),
    ],
    "a finite number for infinity": [
        ("jnp.sum(x * {})", "jnp.inf", X, []),
        ("jnp.sum((x + {0}) - {0})", "jnp.inf", X, []),
        ("jnp.sum((x + {0}) / (x + {0}))", "jnp.inf", X, []),
    ],
    "shift to positive definite": [("total(jnp.linalg.cholesky({}))", "x", -50 * jnp.eye(2), MATRICES)],
    "shift off singular": [
        ("total(jnp.linalg.inv({}))", "x", jnp.zeros((2, 2)), MATRICES),
        ("total(jnp.linalg.solve({}, x[0]))", "x", 1e4 * jnp.array([[1.0, 2.0], [2.0, 4.0]]), MATRICES),
    ],
    "replace what overflows exp": [("jnp.sum({})", "jnp.exp(x)", 300 * X, NORMAL)],
    "replace what overflows": [
        *(("jnp.sum({})", f"jnp.{f}(x)", 300 * X, NORMAL) for f in ("exp2", "sinh")),
        ("jnp.sum({})", "a / x", jnp.array([1e-38, 1.0]), NORMAL),
        ("jnp.sum(({}).astype(jnp.float32))", "x.astype(jnp.bfloat16)", jnp.array([3.4e38, 1.0]), NORMAL),
        ("jnp.sum({})", "jnp.square(x)", 1e30 * X, NORMAL),
    ],
    "cast to bfloat16": [("jnp.sum(({}).astype(jnp.float32))", "x.astype(jnp.float16)", jnp.array([1e38, 1.0]),
                          NORMAL)],
    "compute in float32": [("jnp.sum({0} * {0})", "x", HALF, [HALF / 10])],
    "clip before": [
        ("jnp.sum({0} * {0})", "x", 1e30 * X, [1e-20 * X, 3e18 * X]),
        ("{0} @ {0}", "x", 1e30 * X, [1e-20 * X, 3e18 * X]),
        ("jnp.sum({0})", "x", jnp.full(9, 3e38), [X, jnp.array([1e38, 1.0])]),
    ],
}  # fmt: skip
"""By advice: program templates, what is filled in and needs the advice, `x` where it does, and other arguments."""


def changing(remedy):
    """The code snippet that changes what was finite before, according to the remedy; '' if none."""
    before, says_so, _ = remedy.partition("This changes")
    return re.findall(r"`([^`]*)`", before)[-1] if says_so else ""


def value_and_gradient(program, hole, before, x, n_unmasked=2):
    mask = jnp.arange(len(x)) < n_unmasked
    return jax.value_and_grad(lambda x: evaluated(program.format(hole), before, x=x, mask=mask))(x)


def test_all_advice_has_a_program():
    assert set(PROGRAMS) == set(REMEDIES)


ALONE = {"jnp.linalg.eigvalsh(x)", "jnp.linalg.svd(x, compute_uv=False)", "jax.nn.softmax(x)"}
"""Alternatives for a part of what is computed, which are tested below."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("advice", "i"),
    short_rows([(advice, i) for advice in PROGRAMS for i in range(len(PROGRAMS[advice]))], [(a, 0) for a in PROGRAMS]),
)
def test_advice_for_a_program_keeps_what_was_finite_or_says_what_it_changes(advice, i):
    program, hole, x, others = PROGRAMS[advice][i]
    broken = lambda x: evaluated(program.format(hole), x=x, mask=jnp.zeros(x.shape, bool))
    cause = jaxviz.find_nan(broken, x).born.cause
    assert cause.advice == advice
    kept = {}
    for code, before in snippets(cause.remedy):
        assert is_finite(value_and_gradient(program, code, before, x, n_unmasked=0)), (code, x)
        if code in ALONE:
            continue
        kept[code] = [
            all(map(jnp.array_equal, was, value_and_gradient(program, code, before, other)))
            for other in others
            if is_finite(was := value_and_gradient(program, hole, None, other))
        ]
    for code, is_kept in kept.items():
        if others:
            assert is_kept, "nothing was finite before"
            assert all(is_kept) if code != changing(cause.remedy) else not all(is_kept), (code, is_kept)


def test_a_number_for_infinity_changes_what_is_finite_because_of_it():
    remedy = jaxviz.find_nan(lambda x: jnp.sum(x * jnp.inf), X).born.cause.remedy
    assert 1 / float(changing(remedy)) > 1 / np.inf


@pytest.mark.slow
@pytest.mark.parametrize("x", MATRICES)
def test_the_values_of_a_decomposition_alone_are_the_same(x):
    for whole, alone in (
        (lambda x: jnp.linalg.eigh(x)[0], "jnp.linalg.eigvalsh(x)"),
        (lambda x: jnp.linalg.svd(x)[1], "jnp.linalg.svd(x, compute_uv=False)"),
    ):
        both = [jax.vjp(f, x) for f in (whole, lambda x: evaluated(alone, x=x))]
        (was, pull), (now, pull_now) = both
        np.testing.assert_allclose(now, was, rtol=1e-5)
        np.testing.assert_allclose(pull_now(jnp.arange(3.0))[0], pull(jnp.arange(3.0))[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("x", [x for x in NORMAL if jnp.abs(x).max() < 80])
def test_a_softmax_is_what_the_exponentials_by_their_sum_are(x):
    exponentials = jnp.exp(x) / jnp.sum(jnp.exp(x))
    np.testing.assert_allclose(jax.nn.softmax(x), exponentials, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [0, 1])
def test_a_norm_along_an_axis_follows_the_same_advice(axis):
    x = jnp.array([[3.0, 0.0], [4.0, 0.0]])
    x = x if axis == 0 else x.T
    norm = lambda x, keepdims=False: jnp.linalg.norm(x, axis=axis, keepdims=keepdims)

    def repaired(x):
        x_safe = jnp.where(norm(x, keepdims=True) > 0, x, 1.0)
        return jnp.where(norm(x) > 0, norm(x_safe), 0.0)

    assert not is_finite(jax.jacobian(norm)(x))
    assert jnp.array_equal(repaired(x), norm(x))
    was, now = jax.jacobian(norm)(x), jax.jacobian(repaired)(x)
    assert jnp.array_equal(now, jnp.where(jnp.isfinite(was), was, 0.0))


COMPLEX = jnp.array([0, 1, -1, 1j, -1j, 2 + 1j, -2, 0.5, -0.5, 1e-9j], jnp.complex64)
OF_COMPLEX = ["sqrt", "rsqrt", "log", "log1p", "div", "asin", "acos", "acosh", "atanh"]


@pytest.mark.slow
@pytest.mark.parametrize("name", short(OF_COMPLEX, ["rsqrt", "log", "div", "acos"]))
def test_advice_keeps_complex_numbers_too(name):
    code = CALLS[name][0]

    def both(code, before, x):
        def total(x):
            result = evaluated(code, before, x=x)
            return jnp.sum(result.real + 2 * result.imag), result

        return jax.grad(total, has_aux=True)(x)

    gradient, value = both(code, None, COMPLEX)
    bad = ~(jnp.isfinite(value) & jnp.isfinite(gradient))
    x = COMPLEX[jnp.argmax(bad)]
    report = jaxviz.find_nan(lambda x: (lambda y: y.real + 2 * y.imag)(evaluated(code, x=x)), x)
    ((repaired, before),) = snippets(report.born.cause.remedy)
    gradient_now, value_now = both(repaired, before, COMPLEX)
    assert is_finite((gradient_now, value_now))
    assert jnp.array_equal(value_now, jnp.where(jnp.isfinite(value), value, value_now))
    assert jnp.array_equal(gradient_now, jnp.where(bad, gradient_now, gradient))


# --- infinities that came in
# --------------------------------------------------------------------------------------------


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
    assert is_finite(jax.value_and_grad(f)(x.at[1].set(float(number))))


def test_what_comes_of_an_infinity_has_no_advice_of_its_own():
    report = jaxviz.find_nan(lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0)), jnp.array([0.0, 4.0]))
    assert report.became_nan.cause.id == "zero-times-infinity"
    assert str(report).count("Instead:") == 1
