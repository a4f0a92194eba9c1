"""A function traced with values observed: what `capture` and `replace` both run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, linear_call

from jaxviz.analysis.addressed import AddressedValue
from jaxviz.analysis.addresses import Address, AddressError, Meant, resolve
from jaxviz.analysis.passes import Passes
from jaxviz.analysis.probed import also_in_probes
from jaxviz.analysis.walk import own_location_of
from jaxviz.arguments import flat_arguments
from jaxviz.derivation import Derivation, derive
from jaxviz.higher_order import is_loop, is_scan, scan_length
from jaxviz.higher_order.observing import NO_STEP, Observer, PassedIn, Path, Place, all_zero, observed_program
from jaxviz.higher_order.shard_map import axes_of_devices, inside
from jaxviz.ir import compat
from jaxviz.ir.convert import read_traced, trace_rule
from jaxviz.ir.expressions import expression_at
from jaxviz.ir.syntax import Atom, Equation, Program, Var
from jaxviz.ir.trace import trace_call, with_fixed
from jaxviz.report.tables import short_location
from jaxviz.runtime.evaluate import evaluate
from jaxviz.transforms.driver import Builder, reordered_inputs, with_constants_as_inputs
from jaxviz.transforms.inline import inlined_where
from jaxviz.transforms.linearize import linearize_program


@dataclass(frozen=True, eq=False)
class Found:
    """The values of a traced function that addresses mean.

    Args:
      program: the function.
      out_tree: of its result.
      meant: what each address means.
      is_input: for each flat argument whether the program takes it; by default all.
      fixed: for each flat result what is returned as it is, such as a function in a model; None for an array.
    """

    program: Program
    out_tree: Any
    meant: Mapping[Address, Meant]
    is_input: Sequence[bool] | None = None
    fixed: Sequence[Any] = ()

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The flat inputs of the program in a call."""
        leaves = jax.tree.leaves((args, kwargs))
        return leaves if self.is_input is None else list(compress(leaves, self.is_input))

    def result(self, outs: Sequence[Any]) -> Any:
        """The function's result, of what the program returns."""
        it = iter(outs)
        leaves = [next(it) if x is None else x for x in self.fixed] if self.fixed else outs
        return jax.tree.unflatten(self.out_tree, leaves)


class Finder:
    """Traces a function, and finds values in it, once for each combination of argument types.

    Of an argument that holds functions, texts or whole numbers beside arrays, such as a model of Equinox, the arrays
    are inputs and everything else is fixed, as by `equinox.filter_jit`.

    Args:
      fun: the function.
      addresses: of the values.
      change: what is done to its program first.
    """

    def __init__(
        self, fun: Callable[..., Any], addresses: Sequence[Address], change: Callable[[Program], Program] | None = None
    ):
        self.fun, self._change = fun, change
        self.addresses = tuple(dict.fromkeys(addresses))
        self._found: dict[Any, Found] = {}

    def __str__(self) -> str:
        return ", ".join([str(getattr(self.fun, "__name__", self.fun)), *(repr(str(a)) for a in self.addresses)])

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
        """
        Raises:
          AddressError: an address means nothing, or several values.
        """
        leaves, tree, _, is_input = flat_arguments(args, kwargs, (*range(len(args)), *kwargs))
        try:
            types = [
                compat.aval_of(compat.canonicalize(x)) if is_in else (type(x), x)
                for is_in, x in zip(is_input, leaves, strict=True)
            ]
            key = tree, tuple(types), compat.trace_key()
            if key in self._found:
                return self._found[key]
        except TypeError:  # an argument is not an array: tracing reports which
            key = None
        found, is_path = also_in_probes(self.addresses, lambda: self._find(args, kwargs, is_input))
        if key is not None and not is_path:  # a recorded path is valid only for these values
            self._found[key] = found
        return found

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_input: Sequence[bool]) -> tuple[Found, bool]:
        """What the addresses mean, and whether the program holds for these values alone."""
        traced, out_tree, fixed = self._trace(args, kwargs, is_input)
        program = traced.program if self._change is None else self._change(traced.program)
        meant = {a: resolve(program, a) for a in self.addresses}
        return Found(program, out_tree, meant, is_input, fixed), traced.program.is_path

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_input: Sequence[bool]) -> Any:
        """The traced function, the tree of its result, and what of that is fixed."""
        if all(is_input):
            traced = trace_call(self.fun, args, kwargs)
            return traced, traced.out_tree, ()
        returned: list[Any] = []

        def arrays_of(*args: Any, **kwargs: Any) -> list[Any]:
            leaves, tree = jax.tree.flatten(self.fun(*args, **kwargs))
            fixed = [None if isinstance(x, (float, complex)) or hasattr(x, "dtype") else x for x in leaves]
            returned[:] = tree, fixed
            return [x for x, other in zip(leaves, fixed, strict=True) if other is None]

        _, _, info = with_fixed(self.fun, args, kwargs, is_input)
        call, inputs, _ = with_fixed(arrays_of, args, kwargs, is_input)
        call.stands_for = self.fun, args, kwargs  # type: ignore[attr-defined]  # for `note_arguments`
        return trace_call(call, inputs, debug_info=info), *returned


class At:
    """Where a value is that is replaced: the second argument of a replacement.

    >>> jaxviz.replace(loss, {"h": lambda h, at: jnp.zeros_like(h) if at.name == "h" else h})

    Args:
      name: its address.
      value: the value.
      iterations: of the loops around it, outermost first; traced numbers.
      axes: for each equation around it the axes of devices along which it varies; see `axes_of_devices`.
    """

    def __init__(
        self, name: str, value: AddressedValue, iterations: Sequence[Any], axes: Sequence[tuple[Any, ...]] = ()
    ):
        self.name = name
        self.iterations = tuple(iterations)
        self._value, self._axes = value, axes

    def __repr__(self) -> str:
        inside = f", iterations={self.iterations}" if self.iterations else ""
        return f"At({self.name!r}{inside})"

    @property
    def iteration(self) -> Any:
        """Of the innermost loop around it, from 0.

        Raises:
          AddressError: it is in no loop.
        """
        if not self.iterations:
            raise AddressError(f"{self._value.name} at {self._value.line} is in no loop, so it has no iteration.")
        return self.iterations[-1]

    def pick(self, captured: Any, *, is_of_one: bool = False) -> Any:
        """What belongs here of an array that `capture` has returned for this address: of a stack the row of these
        iterations, and over devices the part of this one.

        Args:
          is_of_one: whether it was returned for one iteration of the innermost loop.

        Raises:
          TypeError: it has no row for each iteration.
        """
        loops, innermost = iter(self.iterations), self._value.loops[-1:]
        for e, names in zip(self._value.path, self._axes, strict=True):
            if is_scan(e):
                i, n = next(loops), scan_length(e)
                if is_of_one and e is innermost[0]:
                    continue
                if captured.shape[:1] != (n,):
                    v, kind = self._value, jax.typeof(captured).str_short(short_dtypes=True)
                    raise TypeError(
                        f"The array for {v.name} (at {v.line}) has type {kind}, and must have a first axis of {n}, for "
                        f"the iterations of the loop, as capture returns it.{_of_number(captured)}"
                    )
                captured = _row(captured, i)
            elif is_loop(e):
                next(loops)
            elif names:
                captured = _row(captured, jax.lax.axis_index(names))
        return captured


def axis_of_iterations(value: AddressedValue) -> int:
    """Which axis of what leaves a program for a value is of the iterations of the innermost scan around it."""
    axis, found = 0, 0
    for e, names in zip(value.path, axes_of_devices(value.path, value.aval), strict=True):
        found = axis if is_scan(e) else found
        axis += is_scan(e) or bool(names)
    return found


def _row(stack: Any, i: Any) -> Any:
    if not stack.shape[0]:  # of a scan without iterations
        return jnp.zeros(stack.shape[1:], stack.dtype)
    return jax.lax.dynamic_index_in_dim(stack, i, keepdims=False)


def traced_inside(value: AddressedValue, fun: Callable[..., Any], *avals: Any) -> tuple[Program, list[Any]]:
    """A function of arrays as a program that can stand beside a value, and the arrays it closes over, which are its
    first inputs."""
    with inside_all(value.path):
        program = read_traced(compat.trace_to_jaxpr(lambda *xs: [fun(*xs)], avals))
    n = len(program.constvars)
    unnamed = compat.unknown_debug_info(n + len(avals), 1)
    return with_constants_as_inputs(program, debug_info=unnamed), list(program.consts)


@contextmanager
def inside_all(path: Path) -> Iterator[None]:
    """JAX's state while it traces a program inside of these equations."""
    with ExitStack() as stack:
        for e in path:
            stack.enter_context(inside(e))
        yield


def iterations_type(value: AddressedValue) -> Any:
    """The type of the vector of iterations beside a value."""
    return compat.aval_of(np.zeros(1 + len(value.loops), np.int32))


def numbers(vector: Any) -> list[Any]:
    """The iterations of the loops around a value, from the vector."""
    return [vector[i] for i in range(1, vector.shape[0])]


def checked(value: AddressedValue, program: Program, what: str) -> None:
    """
    Raises:
      TypeError: the result has not the type of the value.
    """
    (result,), aval = program.out_avals, value.aval
    if (result.shape, result.dtype) != (aval.shape, aval.dtype):
        raise TypeError(
            f"{what} has type {result.str_short(short_dtypes=True)}, and must have the type of what it replaces, "
            f"{aval.str_short(short_dtypes=True)}.{_of_number(result)}"
        )


def _of_number(given: Any) -> str:
    """What to write in place of a number that stands for an array."""
    return "" if given.shape else " For one number everywhere, give `lambda v: jnp.full_like(v, number)`."


def as_array(given: Any, what: str, *, may_be_list: bool = True) -> Any:
    """
    Raises:
      TypeError: it is none.
    """
    if isinstance(given, jax.Array):
        return given
    if may_be_list or jax.tree_util.all_leaves([given]):
        with suppress(TypeError, ValueError):
            return jnp.asarray(given)
    kind = "None" if given is None else f"of type {type(given).__name__}"
    hint = "; jnp.stack makes one of several" if isinstance(given, (tuple, list)) else ""
    raise TypeError(f"{what} is {kind}, and must be one array{hint}.")


def constants(arrays: Sequence[Any]) -> list[Var]:
    return [Var(compat.aval_of(x)) for x in arrays]


def is_differentiable(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.inexact))


# --- values that leave ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taps:
    """What leaves a program.

    Args:
      places: the values.
      reduce: from a value, or a cotangent, to what leaves in its place; None for itself.
      only_inside: whether values of the outermost program leave as they are, and only those of others are reduced.
      barrier: whether XLA may not fuse across them.
      linked: the places that have a cotangent if they have a tangent; None for all whose type can have one.
      as_they_are: other places, whose values are never reduced.
    """

    places: Collection[Place]
    reduce: Callable[[Any], Any] | None = None
    only_inside: bool = False
    barrier: bool = False
    linked: Collection[Place] | None = None
    as_they_are: Collection[Place] = ()

    def reduced_at(self, place: Place, e: Equation) -> Callable[[Any], Any] | None:
        """What is done with a value before it leaves."""
        reduce = self.reduce
        if reduce is None or (self.only_inside and not place[0]) or place in self.as_they_are:
            return None

        def reduced(x: Any) -> Any:
            at = own_location_of(e, place[0])
            of = f"{expression_at(at)} (at {short_location(at)})" if at is not None else str(e.primitive.name)
            return as_array(reduce(x), f"What reduce= returns of {of}", may_be_list=False)

        return reduced


@dataclass(frozen=True, eq=False)
class TappedRun:
    """What a program with taps returned.

    Args:
      results: those of the program.
      values, cotangents: what left it, by place.
      gradient: in inputs, by number.
    """

    results: list[Any]
    values: dict[Place, Any]
    cotangents: dict[Place, Any] = field(default_factory=dict)
    gradient: dict[int, Any] = field(default_factory=dict)


def with_taps(
    program: Program, taps: Taps, own: Mapping[Place, Var] | None = None
) -> tuple[Program, tuple[Place, ...]]:
    """The program with the vector of iterations as another input, and what leaves it as other results,
    with the places of these; `own` has an input for each place that has a cotangent."""
    chosen = frozenset((*taps.places, *taps.as_they_are))
    traced: dict[Any, Program] = {}

    def observe(builder: Builder, place: Place, e: Equation, passed: PassedIn) -> tuple[Atom, Atom]:
        value: Atom = place[1]

        def add(what: Any, fun: Callable[..., Any], *operands: Atom) -> Atom:
            key = what, compat.trace_key(), *(a.aval for a in operands)
            if key not in traced:
                traced[key] = trace_rule(lambda *xs: [fun(*xs)], [a.aval for a in operands])
            return builder.inline(traced[key], operands)[0]

        if taps.barrier:
            value = add("barrier", jax.lax.optimization_barrier, value)
        reduce = taps.reduced_at(place, e)
        tap = value if reduce is None else add("reduce", reduce, value)
        if place in passed.own:
            link = (_linked if taps.linked is None else _linked_in_passing)(reduce)
            value = add(f"linked {reduce is not None}", link, value, passed.own[place])
        return value, tap

    return observed_program(program, Observer(chosen.__contains__, observe), own=own)


def _linked(reduce: Callable[[Any], Any] | None) -> Callable[[Any, Any], Any]:
    """From a value and its own input to the value: the cotangent of the input is that of the value, or what is made of
    it, since nothing is computed with the input itself."""

    def link(x: Any, own: Any) -> Any:
        linked, dtype = jax.custom_vjp(lambda x, own: x), own.dtype
        backward = lambda _, ct: (ct, ct if reduce is None else reduce(ct).astype(dtype))
        linked.defvjp(lambda x, own: (x, None), backward)
        return linked(x, own)

    return link


def _linked_in_passing(reduce: Callable[[Any], Any] | None) -> Callable[[Any, Any], Any]:
    """The same if the value has a tangent, since an operation that reads it may refuse one. Otherwise its cotangent is
    zero."""

    link: Any = jax.custom_jvp(lambda x, own: x)

    def rule(primals: Any, tangents: Any) -> Any:
        (x, own), (t, of_own) = primals, tangents
        if isinstance(t, SymbolicZero) or isinstance(of_own, SymbolicZero):
            return x, t
        if reduce is None:
            return x, t + of_own
        back = lambda _, ct: reduce(ct).astype(own.dtype)
        return x, t + linear_call(lambda _, __: jnp.zeros_like(t), back, (), of_own)

    link.defjvp(rule, symbolic_zeros=True)
    linked: Callable[[Any, Any], Any] = link
    return linked


def _with_linked_taps(program: Program, taps: Taps) -> tuple[Program, dict[Place, Any], dict[Place, Var]]:
    """The same with an input for each place that has a cotangent; the types of what leaves, and these inputs."""
    tapped, places = with_taps(program, taps)
    returned = dict(zip(places, tapped.out_avals[len(program.outvars) :], strict=True))
    is_linked = lambda p: is_differentiable(p[1].aval) and (taps.linked is None or p in taps.linked)
    own = {p: Var(_of_cotangent(a)) for p, a in returned.items() if is_linked(p)}
    tapped, places = with_taps(program, taps, own)
    return tapped, {p: returned[p] for p in places}, own


def places_with_tangents(
    program: Program, places: Collection[Place], differentiated: Sequence[int]
) -> frozenset[Place]:
    """Those of some values that have tangents, if some inputs do."""
    tapped, found = with_taps(program, Taps(places))
    parts = linearize_program(tapped, [i in differentiated for i in range(len(tapped.invars))])
    return frozenset(compress(found, parts.nonzeros_out[len(program.outvars) :]))


def run_with_taps(
    program: Program, inputs: Sequence[Any], taps: Taps, number: Callable[[Sequence[Any]], Any] | None,
    differentiated: Sequence[int] = (), opened: Collection[Var] = (),
) -> TappedRun:  # fmt: skip
    """Runs a program, forward and with `number` also backward.

    Args:
      opened: the first results of calls whose equations are run as if they were not in a call.
      differentiated: the inputs in which the gradient is wanted.
      number: from the results to the number that is differentiated.
    """
    n = len(program.outvars)
    if number is None:
        tapped, places = with_taps(program, taps)
        tapped = inlined_where(tapped, lambda e: e.outvars[:1] != () and e.outvars[0] in opened) if opened else tapped
        outs = evaluate(tapped, [*inputs, NO_STEP])
        return TappedRun(outs[:n], dict(zip(places, outs[n:], strict=True)))
    tapped, returned, own = _with_linked_taps(program, taps)

    def run(zeros: list[Any], given: dict[int, Any]) -> Any:
        of_program = [given.get(i, x) for i, x in enumerate(inputs)]
        outs = evaluate(tapped, [*of_program, NO_STEP, *zeros])
        return number(outs), outs

    zeros = [compat.zeros(v.aval) for v in own.values()]  # which may vary over devices
    differentiable = {i: inputs[i] for i in differentiated}
    result, pull, outs = jax.vjp(run, zeros, differentiable, has_aux=True)
    pulled, gradient = pull(jnp.ones_like(result))
    found = {p: ct.astype(returned[p].dtype) for p, ct in zip(own, pulled, strict=True)}
    return TappedRun(outs[:n], dict(zip(returned, outs[n:], strict=True)), found, gradient)


@dataclass(frozen=True, eq=False)
class TappedPasses:
    """The passes of a gradient that also return what is tapped.

    Args:
      passes: these.
      places: of what the forward pass returns after the results of the function.
      linked: of what the backward pass returns last, the cotangents.
    """

    passes: Passes
    places: tuple[Place, ...]
    linked: tuple[Place, ...]


def tapped_passes(derivation: Derivation, program: Program, taps: Taps) -> TappedPasses:
    """The passes of a derived function, or of another program in its place,, with taps."""
    tapped, returned, own = _with_linked_taps(program, taps)
    n, step = len(program.outvars), tapped.invars[len(program.invars)]
    tapped = replace(tapped, constvars=(*tapped.constvars, step), consts=(*tapped.consts, NO_STEP))
    taken = reordered_inputs(tapped, (*program.invars, *own.values()))
    active = (*derivation.nonzeros, *[True] * len(own))
    d = derive(taken, argnums=tuple(compress(range(len(active)), active)), cond_residuals=derivation.cond_residuals)
    d = replace(d, n_results=n if derivation.n_results is None else derivation.n_results)
    builder = Builder()
    zeros = [builder.inline(all_zero(v.aval), ())[0] for v in own.values()]
    inputs = tuple([v.renewed() for v in program.invars])
    outs = builder.inline(d.forward, (*inputs, *zeros))
    info = compat.derived_debug_info(program.debug_info, program.arg_names, len(outs))
    forward = builder.program(inputs, outs, info, like=program)
    in_place = lambda mask: d.backward_in_place((*mask, *[False] * len(own)))
    linked = compress(own, d.reached[len(program.invars) :])
    return TappedPasses(Passes(forward, d.backward, in_place, len(returned)), tuple(returned), tuple(linked))


def _of_cotangent(aval: Any) -> Any:
    """The type of an input whose cotangent is of a type, which may be one of integers."""
    return aval if is_differentiable(aval) else aval.update(dtype=np.dtype(np.float32))


def number_of(found: Found, has_aux: bool, asked: str) -> Callable[[Sequence[Any]], Any]:
    """From a function's results to the number that is differentiated.

    Raises:
      TypeError: the function returns something else than one number.
    """
    if not returns_number(found, has_aux):
        hint = "" if has_aux else ", or a pair of one and something else: write has_aux=True"
        raise TypeError(
            f"{asked} needs a function that returns one real number, as jax.grad does{hint}. `{found.program.name}` "
            "does not."
        )
    return lambda outs: outs[0]


def returns_number(found: Found, has_aux: bool) -> bool:
    """Whether a function returns one real number, and with `has_aux` perhaps something else."""
    aval = found.program.outvars[0].aval if found.program.outvars else None
    is_one = found.out_tree.num_leaves == 1 or has_aux
    return is_one and aval is not None and aval.shape == () and bool(jnp.issubdtype(aval.dtype, jnp.floating))
