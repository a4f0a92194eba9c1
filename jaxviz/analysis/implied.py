"""What devices exchange for an equation, as the types of its operands and results imply it; nothing is compiled.

Over explicit axes a type says how each device's part is laid out, so it also says where a sum has parts on several
devices, and where a value is asked for in another layout. Inside a `shard_map` the collectives are equations.

The rules are those by which XLA partitions, and the tests compare them with what it compiles. Where XLA chooses among
several ways, `kind` is '' and nothing is said about sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
from jax.sharding import AxisType

from jaxviz.ir import compat
from jaxviz.ir.pretty import variable_names
from jaxviz.ir.primitives import ELEMENTWISE, exchanges, plain
from jaxviz.ir.syntax import Operation, Program, Var
from jaxviz.report.tables import format_bytes, together

Dims = tuple[tuple[str, ...], ...]
"""The axes that each dimension is split over, the outermost first."""


@dataclass(frozen=True, slots=True)
class Implied:
    """What devices exchange for an equation.

    Args:
      kind: the collective, as XLA calls it: 'all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all',
        'collective-permute' or 'collective-broadcast'; '' if XLA chooses how values move, or whether any does.
      axes: the axes along which values are exchanged.
      group_size: the number of devices that exchange values.
      type: the type of one device's operand.
      size: the number of elements of that operand.
      nbytes: bytes of the exchanged array on one device: the result of an all-gather, the operand otherwise; 0 if XLA
        chooses.
      cause: why, in a sentence.
      cause_kind: 'written' for a collective of the function itself, or its transpose; 'sum' for a sum over a split
        dimension; 'asked' for a layout that the function asks for; 'move' for one that an operation needs.
    """

    kind: str
    axes: tuple[str, ...]
    group_size: int
    type: str
    size: int
    nbytes: int
    cause: str
    cause_kind: Literal["written", "sum", "asked", "move"]


@dataclass(frozen=True, slots=True)
class LaidOut:
    """How devices hold a value.

    Args:
      shape: of the whole value; inside a `shard_map`, of what one device has of it along the axes mapped over.
      dims: the axes that each dimension is split over.
      unreduced: the axes along which each device has a part of a sum.
      sizes: of the axes of the mesh.
      dtype: of the value.
      auto: the axes over which XLA chooses how it is split.
    """

    shape: tuple[int, ...]
    dims: Dims
    unreduced: frozenset[str]
    sizes: Mapping[str, int]
    dtype: Any
    auto: frozenset[str] = frozenset()

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of one device's part."""
        return tuple(-(-n // self.number(axes)) for n, axes in zip(self.shape, self.dims, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes on one device."""
        return math.prod(self.local) * int(self.dtype.itemsize)

    @property
    def type(self) -> str:
        """The type of one device's part, such as `f32[8,64]`."""
        return str(jax.core.ShapedArray(self.local, self.dtype).str_short(short_dtypes=True))

    @property
    def is_split(self) -> bool:
        """Whether devices have different parts, of the value or of a sum."""
        return any(self.dims) or bool(self.unreduced)

    def number(self, axes: Iterable[str]) -> int:
        """The number of devices along some axes."""
        return math.prod(self.sizes.get(a, 1) for a in axes)


def laid_out(aval: Any, sizes: Mapping[str, int] | None = None) -> LaidOut | None:
    """How devices hold a value of a type; None if its type says nothing about devices.

    Args:
      aval: the type.
      sizes: of the axes of the mesh on which a value is that has none in its type, such as an argument that is not
        placed: each device has all of it.
    """
    sharding, shape = getattr(aval, "sharding", None), getattr(aval, "shape", None)
    if sharding is None or shape is None:
        return None
    if sharding.mesh.empty:
        return None if sizes is None else LaidOut(tuple(shape), ((),) * len(shape), frozenset(), sizes, aval.dtype)
    dims = tuple(() if p is None else p if isinstance(p, tuple) else (p,) for p in sharding.spec.partitions)
    dims += ((),) * (len(shape) - len(dims))
    mesh, unreduced = sharding.mesh, frozenset(sharding.spec.unreduced)
    auto = frozenset(a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto)
    return LaidOut(tuple(shape), dims, unreduced, dict(mesh.shape), aval.dtype, auto)


Called = Callable[[int], str]
"""What an operand is called, by its position."""


def implied(operation: Operation, called: Called | None = None) -> tuple[Implied, ...]:
    """What devices exchange for an operation; not for those of the programs that it holds.

    Args:
      operation: the operation.
      called: the names of its operands; by default 'its operand', or 'its first operand' and so on.
    """
    if operation.programs:
        return ()
    on_mesh = next(filter(None, map(laid_out, operation.in_avals)), None)
    if on_mesh is None:
        return ()
    before, after = (
        tuple(laid_out(a, on_mesh.sizes) for a in avals) for avals in (operation.in_avals, operation.out_avals)
    )
    called = called or called_by_position(len(operation.in_avals))
    return tuple(_Rule(operation, before, after, on_mesh.sizes, called).found())


def called_by_position(n: int) -> Called:
    """What operands without names are called, of an equation with n of them."""
    ordinals = ("first", "second", "third", "fourth", "fifth")
    return lambda k: "its operand" if n == 1 else f"its {ordinals[k]} operand" if k < len(ordinals) else "an operand"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What an operation exchanges, from how devices hold its operands (`before`) and results (`after`)."""

    operation: Operation
    before: tuple[LaidOut | None, ...]
    after: tuple[LaidOut | None, ...]
    sizes: Mapping[str, int]
    called: Called

    def found(self) -> Iterator[Implied]:
        operation = self.operation
        if compat.axis_names(operation.params):
            yield from self.written()
            return
        if not any(s is not None and s.is_split for s in self.before):
            return
        name, does = operation.primitive.name, plain(operation.primitive.name)
        if does.kind == "transfer" or (does.kind, does.same) == ("nothing", "layout"):
            yield from self.asked()
        elif name in ("dot_general", "conv_general_dilated"):
            yield from self.product()
        elif name.startswith("reduce_") and "axes" in operation.params:
            yield from self.reduction()
        elif name in ("argmax", "argmin"):
            yield from self.position()
        elif not self._is_in_place():
            yield self._chosen(self._where(), f"the types do not say how XLA computes `{name}`", "move")

    # --- collectives of the program itself ----------------------------------------------------------------------------

    def written(self) -> Iterator[Implied]:
        operation = self.operation
        name = operation.primitive.name
        kind = plain(name).collective or plain(name).kind
        if not exchanges(operation.primitive) or operation.params.get("axis_index_groups") is not None:
            return
        for split, after in zip(self.before, self.after, strict=False):
            if split is None or after is None:
                continue
            named = compat.axis_names(operation.params)
            axes = tuple(a for a in split.sizes if a in named)
            if axes and (n := split.number(axes)) > 1:
                nbytes = after.nbytes if kind == "all-gather" else split.nbytes
                text = f"`{name.removesuffix('_invariant')}` over {axes_text(axes)} is an equation of the program"
                yield Implied(kind, axes, n, split.type, math.prod(split.local), nbytes, text, "written")

    # --- layouts that are asked for -----------------------------------------------------------------------------------

    def asked(self) -> Iterator[Implied]:
        before, after = self.before[0], self.after[0]
        if before is None or after is None:
            return
        if left := {a for axes in before.dims for a in axes if a in after.auto}:
            are = f"{axes_text(left)} {'is an auto axis' if len(left) == 1 else 'are auto axes'}"
            yield self._chosen(left, f"{self.called(0)} is {layout_text(before.dims)}, and from here on {are}", "asked")
            return
        summed = tuple(a for a in before.sizes if a in before.unreduced - after.unreduced)
        if summed:
            text = f"each device has a part of {self.called(0)}, a sum over {axes_text(summed)} that is unreduced, and "
            yield from self._sums(before, after, [summed], text + "the program asks for the sum here", "asked")
            before = replace(before, dims=_with(before.dims, after.dims, summed), unreduced=after.unreduced)
        text = f"{self.called(0)} is {layout_text(before.dims)}, but the program asks for it "
        yield from self._moved(before, after, text + f"{layout_text(after.dims)} here", "asked")

    # --- sums ---------------------------------------------------------------------------------------------------------

    def reduction(self) -> Iterator[Implied]:
        """XLA reduces one dimension at a time, so each that is split has a collective of its own."""
        before, after = self.before[0], self.after[0]
        if before is None or after is None:
            return
        reduced = tuple(self.operation.params["axes"])
        over = [tuple(a for a in before.dims[d] if a not in after.unreduced) for d in reduced]
        dims = [d for d, axes in zip(reduced, over, strict=True) if axes]
        if not dims:
            return
        name = self.operation.primitive.name
        does = "sums over" if name == "reduce_sum" else "reduces"
        text = (
            f"`{name}` {does} {_dimensions(dims)} of {self.called(0)}, split over "
            f"{axes_text(a for axes in over for a in axes)}: each device has the result of its part"
        )
        summed = {a for axes in over for a in axes}
        part = replace(_whole_along(after, summed), dtype=before.dtype)
        yield from self._sums(part, after, [axes for axes in over if axes], text, "sum")
        kept = tuple(axes for d, axes in enumerate(before.dims) if d not in reduced)
        if kept != part.dims:
            yield self._chosen(summed, "its result is asked for in another layout", "asked")

    def position(self) -> Iterator[Implied]:
        """XLA gathers the largest value of each device, and its position."""
        before, after = self.before[0], self.after[0]
        (dim,) = self.operation.params["axes"]
        if before is None or after is None or not before.dims[dim]:
            return
        axes, n = before.dims[dim], before.number(before.dims[dim])
        text = (
            f"`{self.operation.primitive.name}` compares the values of {self.called(0)} along dimension {dim}, split "
            f"over {axes_text(axes)}: each device's best value and its position are gathered"
        )
        for one in (replace(after, dtype=before.dtype), after):
            yield Implied("all-gather", axes, n, one.type, math.prod(one.local), one.nbytes * n, text, "move")

    def product(self) -> Iterator[Implied]:
        """XLA moves operands so that each device multiplies its parts, and then adds up what they contribute."""
        name = self.operation.primitive.name
        product = _product_of(self.operation, self.before, self.after)
        if product is None:
            yield self._chosen(self._where(), f"`{name}` slides along a split dimension, or has groups", "move")
            return
        over = [product.summed(pair) for pair in product.contracted]
        if any(axes is None for axes in over):
            clashing = {a for k, pair in enumerate(product.contracted) if over[k] is None for a in product.along(pair)}
            text = f"`{name}` contracts a dimension split over {axes_text(clashing)}, along which other dimensions are "
            yield self._chosen(clashing, text + "split", "move")
            return
        summed = [axes or () for axes in over]
        for k, split in enumerate(product.operands):
            wanted = product.wanted(k, summed)
            text = f"{self.called(k)} is {layout_text(split.dims)}, and `{name}` needs it {layout_text(wanted)}"
            yield from self._moved(split, replace(split, dims=wanted), text, "move")
        left = [tuple(a for a in axes if a not in product.after.unreduced) for axes in summed]
        pairs = [pair for pair, axes in zip(product.contracted, left, strict=True) if axes]
        if not pairs:
            return
        text = (
            f"`{name}` contracts {_dimensions(p[0] for p in pairs)} of {self.called(0)} with "
            f"{_dimensions(p[1] for p in pairs)} of {self.called(1)}, split over "
            f"{axes_text(a for axes in left for a in axes)}: each device has a part of the sum"
        )
        part = _whole_along(product.after, {a for axes in left for a in axes})
        yield from self._sums(part, product.after, list(filter(None, left)), text, "sum")

    def _sums(
        self, part: LaidOut, after: LaidOut, over: Sequence[tuple[str, ...]], text: str, why: Any
    ) -> Iterator[Implied]:
        """A sum of each device's part, one collective for each group of axes; scattered if the result is split over
        them."""
        scattered = {a for axes in after.dims for a in axes}
        for axes in over:
            kind = "reduce-scatter" if set(axes) <= scattered else "all-reduce"
            yield Implied(
                kind, axes, after.number(axes), part.type, math.prod(part.local), part.nbytes,
                f"{text}{', and keeps a part of it' if kind == 'reduce-scatter' else ''}", why,
            )  # fmt: skip

    # --- moves --------------------------------------------------------------------------------------------------------

    def _moved(self, before: LaidOut, after: LaidOut, text: str, why: Any) -> Iterator[Implied]:
        steps = moves(before, after)
        if steps is None:
            changed = {a for b, c in zip(before.dims, after.dims, strict=True) if b != c for a in (*b, *c)}
            yield self._chosen(changed, text, why)
            return
        for kind, axes, part, nbytes in steps:
            done = "it is gathered" if kind == "all-gather" else "its parts are exchanged"
            yield Implied(
                kind, axes, part.number(axes), part.type, math.prod(part.local), nbytes, f"{text}: {done}", why
            )

    def _chosen(self, axes: Iterable[str], text: str, why: Any) -> Implied:
        """Values that move in a way that XLA chooses."""
        named = tuple(a for a in self.sizes if a in set(axes))
        n = math.prod(self.sizes[a] for a in named)
        return Implied("", named, n, "", 0, 0, f"{text}: XLA chooses how values are exchanged, if any are", why)

    # --- operations that need no exchange -----------------------------------------------------------------------------

    def _where(self) -> set[str]:
        return {a for s in (*self.before, *self.after) if s is not None for axes in s.dims for a in axes}

    def _is_in_place(self) -> bool:
        """Whether each device computes its part of the result from its parts of the operands."""
        name = self.operation.primitive.name
        if plain(name).is_along:
            return not any(s.dims[d] for s in self._operands() for d in self._worked_along(s))
        return name == "mesh_cast" or plain(name).kind in _ON_PARTS

    def _operands(self) -> list[LaidOut]:
        results = len(self.operation.out_avals[0].shape)
        return [s for s in filter(None, self.before) if len(s.shape) == results]

    def _worked_along(self, split: LaidOut) -> list[int]:
        """The dimensions along which an operation reads or writes elements at other places."""
        params = self.operation.params
        named = params.get("dimensions", params.get("dimension", params.get("axis")))
        if named is not None:
            return list(named) if isinstance(named, tuple) else [int(named)]
        shapes = [a.shape for a in (*self.operation.in_avals, *self.operation.out_avals)]
        alike = [s for s in shapes if len(s) == len(split.shape)]
        return [d for d in range(len(split.shape)) if len({s[d] for s in alike}) > 1]


_ON_PARTS = ELEMENTWISE | {
    "indexing", "scattering", "scattered arithmetic", "update", "added in place", "random bits", "cipher"
}  # fmt: skip
"""Kinds of operations whose types JAX refuses unless each device has all that it needs."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of two values.

    Args:
      operands: how the devices hold them.
      after: how they hold the result.
      contracted: the pairs of dimensions that it sums over.
      results: for each operand the dimension of the result that each of its other dimensions becomes.
    """

    operands: tuple[LaidOut, LaidOut]
    after: LaidOut
    contracted: tuple[tuple[int, int], ...]
    results: tuple[Mapping[int, int], Mapping[int, int]]

    def along(self, pair: tuple[int, int]) -> tuple[str, ...]:
        """The axes along which a pair of dimensions is split."""
        left, right = (split.dims[d] for split, d in zip(self.operands, pair, strict=True))
        return left or right

    def summed(self, pair: tuple[int, int]) -> tuple[str, ...] | None:
        """The axes along which devices have parts of a sum; () if an operand is gathered first; None if XLA chooses."""
        axes = self.along(pair)
        of_each = [split.dims[d] for split, d in zip(self.operands, pair, strict=True)]
        is_alike = all(a in ((), axes) for a in of_each)
        if is_alike and not self._taken & set(axes):
            return () if self._gathers(pair, axes) else axes
        # If an axis splits nothing, XLA splits what it sums over along that one.
        used = {a for split in (*self.operands, self.after) for dim in split.dims for a in dim}
        return () if all(n == 1 or a in used for a, n in self.after.sizes.items()) else None

    def _gathers(self, pair: tuple[int, int], axes: tuple[str, ...]) -> bool:
        """Whether XLA moves the only operand that is split along a pair of dimensions, so that there is no sum over
        devices: if that has no more bytes than the sum, if each device would keep a part of the sum, or if an axis
        splits nothing that the devices could multiply apart."""
        split = [k for k in (0, 1) if self.operands[k].dims[pair[k]]]
        if len(split) != 1 or self.after.unreduced & set(axes):
            return False
        kept, used = {a for dim in self.after.dims for a in dim}, self._taken | set(axes)
        if kept & set(axes) or any(n > 1 and a not in used for a, n in self.after.sizes.items()):
            return True
        (k,) = split
        summed = [() if p == pair else self.along(p) for p in self.contracted]
        return replace(self.operands[k], dims=self.wanted(k, summed)).nbytes <= self.after.nbytes

    @property
    def _taken(self) -> set[str]:
        """The axes along which both an operand and the result are split."""
        kept = zip(self.operands, self.results, strict=True)
        of_operands = {a for split, becomes in kept for d in becomes for a in split.dims[d]}
        return of_operands & {a for axes in self.after.dims for a in axes}

    def wanted(self, k: int, summed: Sequence[tuple[str, ...]]) -> Dims:
        """How an operand has to be split: as the result, and along the axes of the sums."""
        dims = [
            self.after.dims[self.results[k][d]] if d in self.results[k] else ()
            for d in range(len(self.operands[k].dims))
        ]
        for pair, axes in zip(self.contracted, summed, strict=True):
            dims[pair[k]] = axes
        return tuple(dims)


def _product_of(
    operation: Operation, before: Sequence[LaidOut | None], results_after: Sequence[LaidOut | None]
) -> _Product | None:
    """None for a convolution that slides along a split dimension, or has groups."""
    (lhs, rhs), (after,) = before, results_after
    if lhs is None or rhs is None or after is None:
        return None
    numbers = operation.params["dimension_numbers"]
    if operation.primitive.name != "dot_general":
        slides = any(s.dims[d] for s, spec in ((lhs, numbers.lhs_spec), (rhs, numbers.rhs_spec)) for d in spec[2:])
        if slides or operation.params["feature_group_count"] != 1 or operation.params["batch_group_count"] != 1:
            return None
        batch, features, *_ = numbers.out_spec
        pair = (numbers.lhs_spec[1], numbers.rhs_spec[1])
        return _Product((lhs, rhs), after, (pair,), ({numbers.lhs_spec[0]: batch}, {numbers.rhs_spec[0]: features}))
    (left, right), batches = numbers
    n = len(batches[0])
    results: list[dict[int, int]] = []
    for split, summed, of_batch in zip((lhs, rhs), (left, right), batches, strict=True):
        free = [d for d in range(len(split.shape)) if d not in summed and d not in of_batch]
        results.append({**{d: i for i, d in enumerate(of_batch)}, **{d: n + i for i, d in enumerate(free)}})
        n += len(free)
    return _Product((lhs, rhs), after, tuple(zip(left, right, strict=True)), (results[0], results[1]))


# --- from one layout to another ---------------------------------------------------------------------------------------


def moves(before: LaidOut, after: LaidOut) -> list[tuple[str, tuple[str, ...], LaidOut, int]] | None:
    """The collectives by which XLA goes from one layout to another: kind, axes, one device's operand, bytes.

    None if there are several ways. To split a value further, each device drops what it does not need.
    """
    common = [_shared(b, a) for b, a in zip(before.dims, after.dims, strict=True)]
    left = [b[n:] for b, n in zip(before.dims, common, strict=True)]
    entering = [a[n:] for a, n in zip(after.dims, common, strict=True)]
    gone, new = {a for axes in left for a in axes}, {a for axes in entering for a in axes}
    moved = [d for d, axes in enumerate(left) if set(axes) & new]
    if any(a and b for a, b in zip(left, entering, strict=True)) or len(moved) > 1:
        return None
    steps: list[tuple[str, tuple[str, ...], LaidOut, int]] = []
    state = before
    for d in reversed(range(len(left))):  # XLA gathers the last dimension first
        if left[d] and d not in moved:
            part, state = state, _changed(state, d, before.dims[d][: common[d]])
            steps.append(("all-gather", left[d], part, state.nbytes))
    if moved:
        (d,) = moved
        target = next((k for k, axes in enumerate(entering) if axes == left[d]), None)
        if target is None or gone & new != set(left[d]):
            return None
        for k, axes in enumerate(entering):
            if axes and k != target:
                state = _changed(state, k, after.dims[k])
        steps.append(("all-to-all", left[d], state, state.nbytes))
    return steps


def _shared(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    n = 0
    while before[n : n + 1] and before[n : n + 1] == after[n : n + 1]:
        n += 1
    return n


def _changed(split: LaidOut, dim: int, axes: tuple[str, ...]) -> LaidOut:
    return replace(split, dims=(*split.dims[:dim], axes, *split.dims[dim + 1 :]))


def _whole_along(split: LaidOut, axes: Collection[str]) -> LaidOut:
    """The same value, not split over some axes."""
    return replace(split, dims=tuple(tuple(a for a in dim if a not in axes) for dim in split.dims))


def _with(before: Dims, after: Dims, axes: Iterable[str]) -> Dims:
    """The layout in which these axes split the dimensions that they split afterwards."""
    added = set(axes)
    return tuple(
        a if set(a) - set(b) and set(a) - set(b) <= added and a[: len(b)] == b else b
        for b, a in zip(before, after, strict=True)
    )


# --- words ------------------------------------------------------------------------------------------------------------


def exchange_text(exchange: Implied) -> str:
    """All that is known of an exchange, in a sentence: 'all-reduce over `data` of 8.0 KiB, as the types imply: …'."""
    if not exchange.kind:
        return exchange.cause
    size = format_bytes(exchange.nbytes)
    return f"{exchange.kind} over {axes_text(exchange.axes)} of {size}, as the types imply: {exchange.cause}"


def exchanges_in(program: Program) -> list[str]:
    """What devices exchange in a program and those that it holds, by its equations: 'c = dot_general: all-reduce …'.

    Collectives of the program itself are left out: they are equations.
    """
    names, said = variable_names(program), []
    for _, e in program.walk():
        called = [f"`{names[a]}`" if isinstance(a, Var) else "a literal" for a in e.invars]
        results = " ".join(names[v] for v in e.outvars)
        found = implied(e.operation, called.__getitem__)
        said += [f"{results} = {e.primitive.name}: {exchange_text(i)}" for i in found if i.cause_kind != "written"]
    return list(dict.fromkeys(said))


def axes_text(axes: Iterable[str]) -> str:
    """`` `data` and `model` ``; 'devices' if there are none."""
    names = sorted(set(map(str, axes)))
    return together(map(_axis_text, names)) if names else "devices"


def _axis_text(axis: str) -> str:
    """`` `data` ``, and `` a part of `data` `` for such as `data:(2)4`."""
    name, _, part = axis.partition(":")
    return f"a part of `{name}`" if part else f"`{name}`"


def layout_text(dims: Sequence[Sequence[str]]) -> str:
    """`` split over `data` along dimension 0 ``, or `replicated`."""
    parts = [f"over {together(map(_axis_text, axes))} along dimension {d}" for d, axes in enumerate(dims) if axes]
    return f"split {together(parts)}" if parts else "replicated"


def _dimensions(dims: Iterable[int]) -> str:
    named = list(map(str, dims))
    return f"dimension{'s' if len(named) > 1 else ''} {together(named)}"
