"""What `jaxviz.vjp` returns holds the trees that rules save, as what `jax.vjp` returns does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hi_primitives import HiPrim
from jax import lax
from jax.extend.core import Primitive as JaxPrimitive
from jax.sharding import PartitionSpec as P
from short_runs import short_rows

import jaxviz
from jaxviz.ir.convert import trace_rule
from jaxviz.transforms.linearize import VJP, rule_of, with_each_once
from jaxviz.transforms.primitive import Primitive

X, FACTOR = jnp.linspace(0.5, 2.0, 4), jnp.float32(3.0)
KEEPS_TREES = hasattr(jax.vjp(lax.sin, 1.0)[1], "structured_residuals")


class Tanh(HiPrim):
    """The hyperbolic tangent, whose rules save a tree."""

    def __init__(self, aval, kind):
        self.in_avals, self.out_aval, self.params, self.kind = (aval,), aval, {"kind": kind}, kind
        super().__init__()

    def expand(self, x):
        return lax.tanh(x)

    def vjp_fwd(self, nonzeros, x):
        y = lax.tanh(x)
        slope = 1 - y * y
        trees = {
            "pair": {"a": slope, "b": slope},
            "mixed": (slope, [x, y, {"unread": 2.0 * y}]),
            "operand": x,
            "constant": [FACTOR],
        }
        return y, x, True, trees[self.kind]

    lin = vjp_fwd

    def linearized(self, x, tree, t):
        return t * jnp.cos(x) * jax.tree.leaves(tree)[0]

    def vjp_bwd(self, x, tree, ct, accumulator):
        accumulator.accum(ct * jnp.cos(x) * jax.tree.leaves(tree)[0])


def tanh(kind):
    return lambda x: Tanh(jax.typeof(x), kind)(x)


def on_one_device(f, spec):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    return jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)


def twice(f):
    return lambda x: lax.mul(f(f(x)), lax.sin(x))


PROGRAMS = {
    "alone": lambda f, x: f(x),
    "twice": lambda f, x: f(lax.sin(f(x))),
    "jit": lambda f, x: jax.jit(f)(lax.sin(x)),
    "jit of an argument": lambda f, x: jax.jit(f)(x),
    "jit in jit": lambda f, x: jax.jit(lambda x: lax.sin(jax.jit(twice(f))(x)))(x),
    "carry": lambda f, x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0],
    "xs": lambda f, x: lax.scan(lambda c, x: (c + f(x), f(lax.sin(x))), 1.0, x),
    "the same in each iteration": lambda f, x: lax.scan(lambda c, _: (c + f(x), None), x, None, length=3)[0],
    "read otherwise too": lambda f, x: lax.scan(lambda c, _: (c + f(x) * lax.sin(x), f(c)), x, None, length=3),
    "cond": lambda f, x: lax.cond(jnp.array(True), f, lax.sin, lax.exp(x)),
    "both branches": lambda f, x: lax.cond(jnp.array(False), f, twice(f), lax.exp(x)),
    "cond in scan": lambda f, x: lax.scan(
        lambda c, n: (lax.cond(n > 0, f, lax.sin, c), None), x, jnp.arange(3)
    )[0],
    "scan in cond": lambda f, x: lax.cond(
        jnp.array(True), lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0], lax.sin, x
    ),
    "shard_map": lambda f, x: on_one_device(f, P("i"))(x),
    "shard_map of what is known": lambda f, x: on_one_device(twice(f), P())(lax.exp(x)),
    "shard_map of a number": lambda f, x: on_one_device(twice(f), P())(lax.exp(lax.reduce_sum(x, (0,)))),
}  # fmt: skip
if jax.__version_info__ >= (0, 11):
    from jax.experimental.xla_metadata import xla_metadata_call

    PROGRAMS["metadata"] = lambda f, x: xla_metadata_call(twice(f), tag="a")(lax.exp(x))
KINDS = ("pair", "mixed", "operand", "constant")
CASES = short_rows([(name, kind) for name in PROGRAMS for kind in KINDS], [(name, "mixed") for name in PROGRAMS])

keeps_trees = pytest.mark.skipif(not KEEPS_TREES, reason="before 0.11.1 JAX keeps no trees")


def of_case(name, kind):
    return lambda x: PROGRAMS[name](tanh(kind), x)


def short(aval):
    return aval.str_short(short_dtypes=True)


def type_name(x):
    return short(jax.typeof(x))


def is_mark(x):
    return "Not" in type(x).__name__


def without_empty(tree):
    """JAX also has an empty list for a call that it inlines when it traces, such as `jnp.multiply`'s."""
    if type(tree) is list:
        return [x for x in map(without_empty, tree) if type(x) is not list or x]
    return tree


def facts(f_vjp):
    """The paths, types and order of what it holds, and which leaves are one value."""
    structured = without_empty(f_vjp.structured_residuals)
    found, _ = jax.tree_util.tree_flatten_with_path(structured)
    first = {}
    for i, (_, x) in enumerate(found):
        first.setdefault(id(x), i)
    arguments = jax.tree.leaves(f_vjp.args_res, is_leaf=is_mark)
    return {
        "structured": [(jax.tree_util.keystr(path), type_name(x), first[id(x)]) for path, x in found],
        "opaque": list(map(type_name, f_vjp.opaque_residuals)),
        "arguments": [type(x).__name__ if is_mark(x) else type_name(x) for x in arguments],
    }


@keeps_trees
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_it_holds_what_jaxs_holds(name, kind):
    f = of_case(name, kind)
    (y, ours), (_, theirs) = (m.vjp(f, X) for m in (jaxviz, jax))
    assert facts(ours) == facts(theirs)
    values = [jax.tree.leaves(v.structured_residuals) for v in (ours, theirs)]
    for mine, its in zip(*values, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6)
    ct = jax.tree.map(jnp.ones_like, y)
    np.testing.assert_allclose(ours(ct)[0], theirs(ct)[0], rtol=1e-6)


@keeps_trees
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_derivation_saves_what_jax_saves(name, kind):
    f = of_case(name, kind)
    check = jaxviz.derive(f, X).check()
    assert check.agrees, check
    t = jnp.linspace(1.0, 2.0, 4)
    pushed = [m.linearize(f, X)[1](t) for m in (jaxviz, jax)]
    for ours, theirs in zip(*map(jax.tree.leaves, pushed), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@keeps_trees
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_reports_on_both_name_what_they_hold_by_its_path(name, kind):
    """A report on JAX's lists a value at each path, one on ours once."""
    ours, theirs = (m.vjp(of_case(name, kind), X)[1] for m in (jaxviz, jax))
    at = {
        f"{field}{jax.tree_util.keystr(path)}": type_name(x)
        for field in ("opaque_residuals", "structured_residuals")
        for path, x in jax.tree_util.tree_flatten_with_path(getattr(theirs, field))[0]
    }
    found = jaxviz.residuals(theirs)
    assert {r.path: short(r.aval) for r in found if r.path} == at
    assert {r.expression for r in found if r.path} == at.keys()
    assert {r.expression for r in found if not r.path} <= {"args[0]"}

    held = {
        f"{field}{jax.tree_util.keystr(path)}": x
        for field in ("opaque_residuals", "structured_residuals")
        for path, x in jax.tree_util.tree_flatten_with_path(getattr(ours, field))[0]
    }
    mine = jaxviz.residuals(ours)
    assert {r.path: short(r.aval) for r in mine if r.path}.items() <= {p: type_name(x) for p, x in held.items()}.items()
    of_arguments = [x for x in jax.tree.leaves(ours.args_res, is_leaf=is_mark) if not is_mark(x)]
    assert [r.expression for r in mine if not r.path] == ["x"] * len(of_arguments)
    distinct = {id(x) for x in held.values()} - {id(x) for x in of_arguments}
    assert len([r for r in mine if r.path]) == len(distinct)
    assert [r.why for r in mine] == [r.why for r in jaxviz.residuals(of_case(name, kind), X)]


@keeps_trees
@pytest.mark.parametrize("kind", KINDS)
def test_a_jitted_call_returns_each_value_once(kind):
    f = jax.jit(tanh(kind))
    counts = []
    for m in (jaxviz, jax):
        traced = jax.make_jaxpr(lambda x, vjp=m.vjp: vjp(f, x)[1](x))(X)
        counts.append([len(e.outvars) for e in traced.jaxpr.eqns if "jit" in e.primitive.name])
    assert counts[0] == counts[1]


@keeps_trees
def test_a_value_that_nothing_reads_is_said_to_be_unread():
    found = jaxviz.residuals(lambda x: tanh("mixed")(x), X)
    assert [r.kind for r in found].count("unread") == 2
    assert "that nothing reads" in str(found)


# --- a rule of jaxviz's own, with any JAX ----------------------------------------------------------------------------

tanh_p = JaxPrimitive("tanh_with_a_tree")
tanh_p.def_impl(lax.tanh)
tanh_p.def_abstract_eval(lambda x: x)
jax.interpreters.mlir.register_lowering(tanh_p, jax.interpreters.mlir.lower_fun(lax.tanh, multiple_results=False))


class TanhWithTree(Primitive):
    def linearize(self, operation, nonzeros, mode=VJP):
        def forward(x):
            y = lax.tanh(x)
            return [y, 1 - y * y, 2.0 * lax.stop_gradient(FACTOR)]

        (aval,) = operation.in_avals
        primal = trace_rule(forward, [aval])
        _, slope, same = primal.outvars
        linear = trace_rule(lambda a, b, c, t: [t * a + 0.0 * c], [aval, aval, same.aval, aval])
        tree = jax.tree.structure({"pair": (0, 0), "same": 0})
        return rule_of(primal, 1, (slope, slope, same), linear, (True,), "rule with a tree", structured=tree)


TANH = TanhWithTree(tanh_p)
IN_ANY = {
    "alone": (tanh_p.bind, "[0]"),
    "jit": (jax.jit(tanh_p.bind), "[0][0]"),
    "scan": (lambda x: lax.scan(lambda c, _: (tanh_p.bind(c), None), x, None, length=3)[0], "[0][0]"),
}


@pytest.mark.parametrize("name", IN_ANY)
def test_trees_pass_through_calls_and_loops_in_any_jax(name):
    f, at = IN_ANY[name]
    y, f_vjp = jaxviz.vjp(f, X)
    leaves = dict(jax.tree_util.tree_flatten_with_path(f_vjp.structured_residuals)[0])
    leaves = {jax.tree_util.keystr(path): x for path, x in leaves.items()}
    pair, same = [leaves[f"{at}['pair'][{i}]"] for i in (0, 1)], leaves[f"{at}['same']"]
    assert len(leaves) == 3
    assert pair[0] is pair[1]
    stacked = (3,) if name == "scan" else ()
    assert (pair[0].shape, same.shape) == ((*stacked, 4), stacked)
    (expected,) = jax.vjp(lambda x: lax.tanh(lax.tanh(lax.tanh(x))) if name == "scan" else lax.tanh(x), X)[1](y)
    np.testing.assert_allclose(f_vjp(y)[0], expected, rtol=1e-5)

    d = jaxviz.derive(f, X)
    assert len(d.linearized.residuals) == len(set(d.linearized.residuals)) == 2
    assert with_each_once(d.linearized) is d.linearized
    report = jaxviz.residuals(f_vjp)
    assert [r.path for r in report] == [f"structured_residuals{at}['pair'][0]", f"structured_residuals{at}['same']"]
    assert report.nbytes == pair[0].nbytes + same.nbytes


def test_it_is_a_tree_whose_leaves_may_be_changed_in_any_jax():
    _, f_vjp = jaxviz.vjp(tanh_p.bind, X)
    assert len(jax.tree.leaves(f_vjp)) == 3
    halved = jax.tree.map(lambda x: x / 2, f_vjp.structured_residuals)
    (expected,) = f_vjp(jnp.ones(4))
    np.testing.assert_allclose(f_vjp.replace(structured_residuals=halved)(jnp.ones(4))[0], expected / 2, rtol=1e-6)
    (of_copy,) = jax.tree.map(lambda x: x, f_vjp)(jnp.ones(4))
    np.testing.assert_array_equal(of_copy, expected)
