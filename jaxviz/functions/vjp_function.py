"""The function that `vjp` returns: from a cotangent of the value to the cotangents of the arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax.tree_util import Partial, register_pytree_node

from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.ir.syntax import Atom, Program
from jaxviz.ir.trace import TracedFunction, are_concrete
from jaxviz.runtime.donated import is_deleted
from jaxviz.runtime.evaluate import evaluate
from jaxviz.transforms.dce import dce_program
from jaxviz.transforms.driver import Mask, select
from jaxviz.transforms.in_place import with_references
from jaxviz.transforms.linearize import CondResiduals, Linearized
from jaxviz.transforms.transpose import Transposed, TransposeOptions, transpose_program


class Transposable:
    """The parts of a `VJP` other than its residuals, of a call and its linearization; transposed at the first call."""

    def __init__(
        self,
        traced: TracedFunction,
        parts: Linearized,
        nonzeros: Sequence[bool],
        cond_residuals: CondResiduals = "jax",
    ):
        self.program = program = traced.program  # without the arguments of the call, which may be large
        self.n_results, self.cond_residuals = traced.n_results, cond_residuals
        self.name = program.name
        self.primal_jaxpr = lambda: program.jaxpr.jaxpr
        self.in_avals = [v.aval for v in program.invars]
        self.out_avals = [v.aval for v in program.outvars[: traced.n_results]]
        self.linear = parts.linear
        self.nonzeros_in = tuple(nonzeros)
        self.nonzeros_out = parts.nonzeros_out
        self.n_residuals = len(parts.residuals)
        self.structured = parts.structured
        places: dict[Atom, int] = {v: i for i, v in enumerate(program.invars)}
        self.from_argument = tuple(places.get(a) for a in parts.residuals[: parts.structured.n_opaque])
        self._transposed: dict[tuple[Mask, Mask, Mask, bool], Transposed] = {}

    def read_leaves(self, trees: list[Any]) -> list[Any]:
        """The residuals that are leaves of the trees of rules, and nothing else, from these trees."""
        at = dict(zip(self.structured.leaves, jax.tree.leaves(trees), strict=True))
        return [at[i] for i in range(self.structured.n_opaque, self.n_residuals)]

    def transposed(self, nonzero_cts: Mask, needed: Mask, in_place: Mask, logs: bool) -> Transposed:
        """The backward program for the results whose cotangents are given and the arguments whose cotangents are
        needed, with logged values if requested. It takes references for those that are accumulated in place."""
        transposed = self._transposed.get((nonzero_cts, needed, in_place, logs))
        if transposed is None:
            transposed = self.transposed_at(nonzero_cts, in_place, logs, None)
            if not all(needed):
                used = [w for w, nonzero in zip(needed, transposed.nonzeros_out, strict=True) if nonzero]
                used += [True] * (len(transposed.backward.outvars) - len(used))
                keep = [True] * len(transposed.backward.invars)
                transposed = Transposed(
                    dce_program(transposed.backward, used, keep)[0],
                    tuple(w and nonzero for w, nonzero in zip(needed, transposed.nonzeros_out, strict=True)),
                    transposed.logs,
                )
            self._transposed[nonzero_cts, needed, in_place, logs] = transposed
        return transposed

    def cotangents(
        self, residuals: Sequence[Any], cts: Sequence[Any], needed: Mask, refs: Sequence[Any], logs: bool
    ) -> tuple[Iterator[Any], Mask, Any]:
        """The cotangents of the arguments that carry a tangent.

        Args:
          cts: the cotangents of the results that depend on these arguments; some may be symbolic zeros.
          needed: which are computed.
          refs: for each of these arguments, the reference that its cotangent is added to in place, or None.
          logs: whether logged values follow them.

        Returns:
          those that are not zero, which these are, and the tree of the logged values, None without any.
        """
        nonzero_cts = tuple([not compat.is_zero(ct) for ct in cts])
        in_place = tuple([ref is not None for ref in refs])
        inputs = [*residuals, *(ct for ct, g in zip(cts, nonzero_cts, strict=True) if g)]
        inputs += [ref for ref in refs if ref is not None]
        try:
            transposed = self.transposed(nonzero_cts, needed, in_place, logs)
        except compat.ConcretizationTypeErrors:
            if not are_concrete(inputs):
                raise
            transposed = self.transposed_at(nonzero_cts, in_place, logs, list(map(compat.concrete_value, inputs)))
        return iter(_evaluate(transposed.backward, inputs)), transposed.nonzeros_out, transposed.logs

    def transposed_at(self, nonzero_cts: Mask, in_place: Mask, logs: bool, at: Sequence[Any] | None) -> Transposed:
        """The backward program, at these values of the residuals and the given cotangents, for rules whose Python looks
        at values."""
        linear = [False] * self.n_residuals + [True] * sum(self.nonzeros_in)
        program = with_references(self.linear, [False] * self.n_residuals + list(in_place))
        return transpose_program(program, linear, nonzero_cts, TransposeOptions(logs=logs, at=at))


@dataclasses.dataclass(slots=True, weakref_slot=True, eq=False)
class VJP:
    """The function that `vjp` returns, like JAX's: a pytree whose leaves are its residuals.

    Args:
      known: everything but its residuals.
      in_tree, out_tree: the tree structures of the arguments and of the value.
      args_res: the arguments that are residuals, nested like the arguments; `NotNeeded` for the others. They may be
        taken out, and put back before it is called.
      opaque_residuals: the residuals that are not arguments.
      structured_residuals: the trees that rules of primitives save, such as the fourth result of `vjp_fwd` of a
        `HiPrim`, which JAX has since 0.11.1: one for each equation whose rule saves one. That of a call or a loop is
        such a list, of its body, and that of a cond has one for each branch. A value may be several of their leaves.
    """

    known: Transposable
    in_tree: Any
    out_tree: Any
    args_res: list[Any]
    opaque_residuals: list[Any]
    structured_residuals: list[Any]
    want_logs: bool = False

    @property
    def with_logs(self) -> VJP:
        """The function that returns a pair: the cotangents, and a dict of what backward rules log, as they can since
        JAX 0.11.1.

        The logs of a rule in a scan are stacked, in a `shard_map` they are concatenated, and in a cond they are JAX's
        `CondSum`.
        """
        return dataclasses.replace(self, want_logs=True)

    @property
    def out_nzs(self) -> Any:
        """For each result, nested like the value, whether its cotangent is used."""
        return compat.nested_like(self.out_tree, self.known.nonzeros_out)

    replace = dataclasses.replace

    @property
    def jaxpr(self) -> Any:
        """The linear program that is transposed, as a jaxpr from residuals and tangents."""
        return self.known.linear.jaxpr.jaxpr

    @api_boundary
    def __call__(self, out_ct: Any, *more: Any) -> Any:
        if more:
            raise TypeError(compat.too_many_cotangents(self.known.name, len(more) + 1))
        return self._applied([compat.GRAD_VALUE] * self.in_tree.num_leaves, False)(out_ct)

    @api_boundary
    def with_refs(self, *refs: Any) -> Any:
        """The function that accumulates the cotangent of an argument into a reference, if one is given.

        Args:
          *refs: for each argument a tree of its structure: a reference to add to, `jax.ad.GradValue()` for a cotangent
          that is returned, `jax.ad.DontWant()` for one that is not computed.
        """
        leaves, tree = jax.tree.flatten(refs)
        if tree != self.in_tree:
            raise ValueError(f"with_refs takes one tree for each argument: expected {self.in_tree}, got {tree}")
        return self._applied(leaves, True)

    def _applied(self, requests: list[Any], explicit: bool) -> Any:
        needed = [i for i in self.known.from_argument if i is not None]
        arguments = compat.restored_arguments(self.args_res, self.known.primal_jaxpr, self.in_tree, needed)
        opaque = iter(self.opaque_residuals)
        residuals = [next(opaque) if i is None else arguments[i] for i in self.known.from_argument]
        residuals += self.known.read_leaves(self.structured_residuals)
        accumulators = compat.accumulators(
            requests, self.known.in_avals, explicit, self.known.primal_jaxpr, self.in_tree
        )
        pull = partial(_pull_back, self.known, self.in_tree, self.out_tree, self.want_logs)
        return Partial(pull, residuals, accumulators)


register_pytree_node(
    VJP,
    lambda f: ((f.args_res, f.opaque_residuals, f.structured_residuals), (f.known, f.in_tree, f.out_tree, f.want_logs)),
    lambda meta, xs: VJP(meta[0], meta[1], meta[2], xs[0], xs[1], xs[2], meta[3]),
)


def vjp_of(
    known: Transposable, in_tree: Any, out_tree: Any, residuals: Sequence[Any], saveable: Sequence[bool] | None = None
) -> VJP:
    """The `VJP` with these values of its residuals, and of its `saveable` arguments, by default all."""
    opaque = residuals[: known.structured.n_opaque]
    saved = {i: x for i, x in zip(known.from_argument, opaque, strict=True) if i is not None}
    arguments = [
        saved[i] if i in saved and is_saveable else compat.not_saveable() if i in saved else compat.NOT_NEEDED
        for i, is_saveable in enumerate(saveable or [True] * in_tree.num_leaves)
    ]
    held = [x for i, x in zip(known.from_argument, opaque, strict=True) if i is None]
    structured = jax.tree.unflatten(known.structured.tree, [residuals[i] for i in known.structured.leaves])
    return VJP(known, in_tree, out_tree, list(compat.nested_like(in_tree, arguments)), held, structured)


@api_boundary
def _pull_back(
    known: Transposable, in_tree: Any, out_tree: Any, want_logs: bool, residuals: list[Any], accumulators: list[Any],
    out_ct: Any,
) -> Any:  # fmt: skip
    cts, tree = jax.tree.flatten(out_ct, is_leaf=compat.is_zero)
    if tree != out_tree:
        compat.raise_cotangent_tree_error(known.primal_jaxpr(), out_tree, tree)
    cts = [ct if compat.is_zero(ct) else compat.canonicalize(ct) for ct in cts]
    compat.check_cotangent_types(cts, known.out_avals)
    cts = [ct for ct, nonzero in zip(cts, known.nonzeros_out, strict=True) if nonzero]
    nonzeros = [x for x, nonzero in zip(accumulators, known.nonzeros_in, strict=True) if nonzero]
    needed = tuple([not compat.is_unwanted(x) for x in nonzeros])
    refs = list(map(compat.accumulated_in, nonzeros, select(known.nonzeros_in, known.in_avals)))
    outs, reached, logged = known.cotangents(residuals, cts, needed, refs, want_logs)
    for x, nonzero in zip(nonzeros, reached, strict=True):
        if nonzero:
            x.accum(next(outs))
    result = jax.tree.unflatten(in_tree, list(map(compat.accumulated, accumulators)))
    if not want_logs:
        return result
    return result, {} if logged is None else jax.tree.unflatten(logged, outs)


def _evaluate(backward: Program, inputs: list[Any]) -> list[Any]:
    try:
        with compat.in_transpose():
            return evaluate(backward, inputs)
    except RuntimeError as error:
        gone = [jax.typeof(r).str_short(short_dtypes=True) for r in inputs if is_deleted(r)]
        if gone:
            error.add_note(
                f"The gradient saves arrays that were donated to a jitted function: {', '.join(gone)}. Do not donate "
                "values that a gradient saves; jaxviz.residuals lists them."
            )
        raise
