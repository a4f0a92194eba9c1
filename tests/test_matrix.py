"""The matrix: every law of `laws.py` on the programs of the tables, and what follows from no table."""

from functools import partial
from importlib import import_module

import device_programs
import hi_primitives
import jax
import jax.numpy as jnp
import laws
import pytest
import value_programs
from laws import is_real
from nestings import INSIDE, NESTABLE, NESTINGS, SHORT, in_all, inside, is_nested
from primitives import cases_of_primitives
from programs import CASES
from short_runs import short

import jaxviz

# --- which programs each law is tried on ------------------------------------------------------------------------------


def one_of_each(cases):
    """For each operation, the first program that has it."""
    seen, found = set(), set()
    for c in cases:
        names = {equation.primitive.name for _, equation in jaxviz.trace(c.fun)(*c.args).walk()}
        if names - seen:
            found.add(c)
            seen |= names
    return found


ONE_OF_EACH = one_of_each(CASES)


def marked(cases, part=0, of=1, each=1, quick=True):
    """The quick tests compute with one program for each operation, if with any.

    Of the others, the short tests compute with every `of`-th from `part` on, in addition to one for each operation. Of
    those for an operation, every `each`-th is in the short tests.
    """
    others = [c for c in cases if c not in ONE_OF_EACH]
    left_out = [c for i, c in enumerate(c for c in cases if c in ONE_OF_EACH) if i % each]

    def marks(c):
        if c in others or not quick:
            yield pytest.mark.slow
        if c in left_out or (c in others and c not in others[part::of]):
            yield pytest.mark.slow(sweep=True)

    return [pytest.param(c, marks=[*marks(c)], id=str(c)) for c in cases]


def swept(cases):
    return [pytest.param(c, marks=pytest.mark.slow(sweep=True), id=str(c)) for c in cases]


def rotated(cases, marks):
    """Cases of which one row of each group is in the short tests, another one for the next."""
    return [
        pytest.param(c, marks=[*marks, *[pytest.mark.slow(sweep=True)] * (not short)], id=str(c)) for c, short in cases
    ]


PRIMITIVES = cases_of_primitives()
EVERY_OTHER_PRIMITIVE = [
    (case, is_short and i % 2 == 0) for i, (case, is_short) in enumerate(sorted(PRIMITIVES, key=lambda row: not row[1]))
]
"""The same, of which the short tests try only every other one."""
DEVICES = device_programs.CASES
VALUES = value_programs.CASES
ALSO_IN_PROGRAMS = [case for case in VALUES if case not in value_programs.LOOK_AT_VALUES]
TWICE = [case for case in ALSO_IN_PROGRAMS if "closes_over_a_dict" not in case.name]  # which JAX does not map
REMATS = [case for case in CASES if "remat" in case.name or "checkpoint" in case.name]
REAL = [case for case in CASES if is_real(case)]
MAPPED = [case for case in CASES if case.vmaps]
slow, sweep = [pytest.mark.slow], [pytest.mark.slow(sweep=True)]
HOISTED = pytest.mark.xfail(
    jax.__version_info__ >= (0, 11), strict=True,
    reason="since 0.11 custom_root is a primitive of hijax, whose loop-invariant residual JAX stacks here and jaxviz "
    "keeps once",
)  # fmt: skip


def hoisted(case, nest):
    return [HOISTED] * ((str(case), nest) == ("root", in_all))


def nested_residuals():
    """Of the programs for an operation, each in two or three nestings, in turn; of the others, each in one or none."""
    for case, nest in INSIDE:
        turn = NESTABLE.index(case) + NESTINGS.index(nest)
        marks = hoisted(case, nest)
        every = 3 if case in ONE_OF_EACH else 6
        marks += [pytest.mark.slow, *sweep * (turn % every > 0)]
        made = inside(case, nest)
        yield pytest.param(made, marks=marks, id=str(made))


def one_nesting_each():
    """Each program in one nesting, the next in another; the sweep has all combinations."""
    kept = {p.values[0]: p.marks for p in marked(NESTABLE, of=6, each=3)}
    for i, case in enumerate(NESTABLE):
        nest = in_all if is_nested(case) else SHORT[i % len(SHORT)]
        made = inside(case, nest)
        yield pytest.param(made, marks=[*kept[case], *slow, *hoisted(case, nest)], id=str(made))


def nested_devices():
    """One nesting per program, in turn: all combinations would take ten minutes."""
    turn = [(case, NESTINGS[i % len(NESTINGS)], i % 5 == 0) for i, case in enumerate(DEVICES)]
    turn += [(c, nest, i % 4 == k) for k, c in enumerate((DEVICES[0], DEVICES[-1])) for i, nest in enumerate(NESTINGS)]
    return rotated([(inside(case, nest), short) for case, nest, short in turn], slow)


ONE_BY_ONE = "operation by operation"
CELLS = [
    # a law, the programs, and whether the sweep also runs them outside `jit`
    (
        laws.residuals,
        [*CASES, *marked(DEVICES, quick=False), *nested_devices(), *nested_residuals(), *rotated(PRIMITIVES, [])],
        False,
    ),
    (laws.well_typed_and_linear, [*CASES, *marked(DEVICES, quick=False)], False),
    (laws.every_derived_equation_leads_back_to_the_function, CASES, False),
    (laws.reasons_name_the_lines_that_read_a_value_again, CASES, False),
    (laws.reads_as_jax_prints_it, CASES, False),
    (laws.written_losslessly, marked(CASES, of=3), False),
    (laws.derived_from_a_program_or_a_jaxpr, marked(CASES, 2, of=6, each=3), False),
    (laws.residuals_are_what_jax_vjp_holds, marked(CASES, of=2), False),
    (laws.the_returned_function_holds_what_jaxs_does, [*marked(CASES, 1, of=3), *swept(DEVICES[::3])], False),
    (laws.a_checkpoint_is_given_to_xla_as_jax_gives_it, marked(REMATS, quick=False), False),
    (laws.what_changes_nothing_changes_nothing_in_jax, marked(REMATS, of=2, quick=False), False),
    (laws.value_and_cotangents, [*marked(CASES, 1, of=2), *swept(DEVICES[::3])], False),
    (laws.forward_mode, marked(CASES, 1, of=6, quick=False), False),
    (laws.linearized, marked(CASES[::2], of=6, each=2, quick=False), False),
    # Of the programs of devices in two forms, the short tests differentiate one.
    (laws.every_derivative, [*marked(DEVICES, 1, of=2, quick=False), *one_nesting_each(), *nested_devices()], False),
    (laws.every_derivative, rotated(EVERY_OTHER_PRIMITIVE, slow), True),
    # Outside `jit`, some scalars are saved that are literals of the program inside.
    (laws.value_and_cotangents, swept([inside(*pair) for pair in INSIDE]), False),
    (laws.value_and_gradient, marked(REAL, of=6), True),
    # Compiling takes most of the time of the next two: every program is in one of them.
    (laws.composed_with_jit_and_vmap, marked(REAL[::2], 1, of=6, each=3, quick=False), True),
    (laws.second_derivatives_every_way, marked(REAL[1::2], 2, of=6, each=3, quick=False), True),
    (laws.mapped, marked(MAPPED, of=6, quick=False), True),
    (laws.mapped_gradient, marked(MAPPED, 1, of=6, each=4, quick=False), True),
    (laws.mapped, marked([c for c in DEVICES if c.vmaps], 1, of=3, quick=False), False),
    (laws.mapped_gradient, marked([c for c in DEVICES if c.vmaps], 2, of=9, quick=False), False),
    # Every program that looks at values is in one of the second, the third and the fourth of these.
    (laws.residuals, [*marked(VALUES, of=2, quick=False), *hi_primitives.CASES], False),
    (laws.value_and_cotangents, marked([*VALUES, *hi_primitives.CASES], of=3, quick=False), False),
    (laws.linearized, marked(VALUES, 1, of=3, quick=False), False),
    (laws.forward_mode, marked(VALUES, 2, of=3, quick=False), False),
    (laws.without_jit(laws.value_and_gradient), marked(VALUES, of=4, quick=False), False),
    (laws.without_jit(laws.second_derivatives_every_way), marked(TWICE, of=15, quick=False), False),
]


def cells():
    """A law and a program for each test, with all laws of one program together, which share its derivation."""
    found = []
    for law, cases, also_one_by_one in CELLS:
        for p in cases:
            p = p if hasattr(p, "values") else pytest.param(p, id=str(p))
            of = f"{law.__name__}-{p.id}"
            found.append(pytest.param(law, *p.values, marks=p.marks, id=of))
            if also_one_by_one:
                alone = partial(law, run=lambda f: f)
                found.append(pytest.param(alone, *p.values, marks=[*p.marks, *sweep], id=f"{of}-{ONE_BY_ONE}"))
    order = {}
    return sorted(found, key=lambda p: order.setdefault(str(p.values[1]).partition("-")[0], len(order)))


@pytest.mark.parametrize(("law", "case"), cells())
def test_law(law, case):
    with case.where():
        law(case)


# --- programs of other libraries --------------------------------------------------------------------------------------

NAMES = """
    linen_decoder_with_named_policy nnx_batch_norm_and_dropout_state haiku_library_resnet haiku_vector_quantizer
    equinox_gru equinox_bounded_loop equinox_checkpointed_loop_with_buffers diffrax_direct_adjoint
    diffrax_backsolve_of_a_neural_ode lineax_conjugate_gradients optimistix_minimise optax_losses optax_inner_loop
    numpyro_log_density jax_odeint jax_custom_linear_solve deep_equilibrium_model sparse_products
    grouped_query_attention kalman_filter nested_checkpointed_scans images diffrax_forward_mode
""".split()
LONG_NAMES = """
    linen_decoder_with_named_policy haiku_library_resnet equinox_checkpointed_loop_with_buffers diffrax_direct_adjoint
    diffrax_backsolve_of_a_neural_ode diffrax_forward_mode optax_losses
""".split()


@pytest.mark.slow
@pytest.mark.parametrize("name", short(NAMES, [n for n in NAMES if n not in LONG_NAMES]))
def test_programs_of_libraries(name):
    """By name: importing the libraries takes a second and a half, which only the worker that runs these tests pays."""
    pytest.importorskip("numpyro", reason="the engine's tests with the newest JAX go without the libraries")
    case = import_module("library_programs").LIBRARY_CASES[name]
    laws.residuals(case) if case.reverse else laws.no_reverse_mode(case)


# --- what no table holds ----------------------------------------------------------------------------------------------


def test_weak_types_are_those_of_jaxs_tracing():
    """For a Python number to a traced integer power, JAX saves a weak type outside jit, and a strong one inside."""

    def power(x, n):
        return x**n

    derivation = jaxviz.derive(power, 3.0, 2, argnums=(0, 1))
    assert derivation.check().agrees
    _, pull = jax.vjp(power, 3.0, 2)
    assert [x.shape for x in jax.tree.leaves(pull)] == [r.aval.shape for r in derivation.residuals]


def closing_over(kind, depth):
    """A function whose custom rule closes over a value made of constants, directly or through another function."""

    def f(x):
        y = jnp.sin(2.0) * jnp.ones(3)
        times_y = (lambda v: v * y) if depth == 0 else (lambda v: (lambda w: w * y)(v))
        if kind == "jvp":
            g = jax.custom_jvp(lambda x: times_y(jnp.sin(x)))
            g.defjvp(lambda p, t: (g(p[0]), times_y(3.0 * t[0])))
        else:
            g = jax.custom_vjp(lambda x: times_y(jnp.sin(x)))
            g.defvjp(lambda x: (g(x), x), lambda x, ct: (times_y(ct) * 3.0 * x,))
        return g(x) * x

    return f


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_custom_rule_may_close_over_what_depends_on_constants_alone(kind, depth):
    case = laws.Case(kind, closing_over(kind, depth), (jnp.linspace(0.5, 1.5, 3),))
    for law in (laws.value_and_cotangents, laws.the_returned_function_holds_what_jaxs_does, laws.residuals):
        law(case)
    laws.value_and_gradient(case)
