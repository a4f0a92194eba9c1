"""What each primitive does that holds no programs, in one table; `jaxviz/higher_order` describes those that hold
some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxviz.ir.syntax import Equation, Var

_COLLECTIVE = frozenset(("all-reduce", "reduce-scatter", "exchange"))
COSTLY = _COLLECTIVE | {"series", "product", "ragged product", "convolution", "window gradient", "sorting", "transform",
    "factorization", "solving", "transfer"}  # fmt: skip
"""Kinds of work that take more than a few steps per element, or communicate between devices."""
ELEMENTWISE = frozenset(("elementwise", "comparison", "transcendental", "lowered", "series", "selection", "power",
"part",
    "movement", "transfer", "nothing"))  # fmt: skip
"""Kinds of work that read one element of each operand for an element of the result, if all have its shape."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What a primitive without programs does.

    Args:
      kind: the kind of its work, by which `features/cost/counts.py` counts it; '' if unknown.
      same: what its result shares with the first operand. 'operand': it is the operand, for XLA; 'view': its numbers in
        another shape; 'bits': its memory, read as other numbers; 'layout': its numbers in another order, multiplicity
        or sharding; 'rounded': its numbers in another type or precision.
      is_free: whether XLA computes it where it is read, without memory for it.
      is_along: whether it moves or combines values along some dimensions, alike at each place of the others.
      collective: XLA's name for what devices exchange, if not its kind.
      passes_on: the operands that make the result non-finite if they are.
      grows: how a result of finite operands becomes infinite; a sum of such results may also be NaN.
      stops: why its result has no derivative although it is a number that depends on the operands: 'flat' if the slope
        is zero wherever there is one, 'asked' if a user wants none.
      word: what people call its result, if not by its name.
      operation: what they call the operation, if not by `word`.
    """

    kind: str = ""
    same: Literal["", "operand", "view", "bits", "layout", "rounded"] = ""
    is_free: bool = False
    is_along: bool = False
    collective: str = ""
    passes_on: Literal["", "first", "all"] = ""
    grows: Literal["", "sum", "product", "exponential"] = ""
    stops: Literal["", "flat", "asked"] = ""
    word: str = ""
    operation: str = ""

    @property
    def keeps_numbers(self) -> bool:
        """Whether its result has the numbers of its first operand, as far as its type can represent them."""
        return self.same not in ("", "bits")


ROWS = (
    ("add add_any sub", Plain("elementwise", passes_on="all", grows="sum")),
    ("mul", Plain("elementwise", passes_on="all", grows="product", operation="product")),
    ("square", Plain("elementwise", passes_on="all", grows="product")),
    ("div", Plain("elementwise", passes_on="first", grows="product", operation="division")),
    ("neg abs", Plain("elementwise", passes_on="all")), ("reduce_precision", Plain("elementwise", same="rounded")),
    ("sign floor ceil round", Plain("elementwise", stops="flat")),
    ("rem max min is_finite clamp eq_to lt_to le_to and or xor not shift_left "
     "shift_right_logical "
     "shift_right_arithmetic population_count clz mulhi real imag complex", Plain("elementwise")),
    ("eq ne lt le gt ge", Plain("comparison")),
    ("exp expm1", Plain("transcendental", grows="exponential")), ("pow", Plain("transcendental", grows="product")),
    ("log log1p sin cos sqrt cbrt", Plain("transcendental", passes_on="all")),
    ("tan tanh rsqrt atan atan2 erf rng_uniform", Plain("transcendental")),
    ("sinh cosh", Plain("lowered", passes_on="all", grows="exponential")),
    ("exp2", Plain("lowered", grows="exponential")),
    ("conj log2 asinh acosh", Plain("lowered", passes_on="all")),
    ("one_minus_square nextafter logistic asin acos atanh erfc erf_inv lgamma digamma bessel_i0e bessel_i1e",
     Plain("lowered")),
    ("igamma igammac igamma_grad_a zeta polygamma regularized_incomplete_beta", Plain("series")),
    ("select_n", Plain("selection", word="selected", operation="selection")),
    ("integer_pow", Plain("power", passes_on="first", grows="product", word="power")),
    ("dot_general", Plain("product", passes_on="all", grows="sum", word="product")),
    ("ragged_dot_general", Plain("ragged product", word="product", operation="ragged product")),
    ("conv_general_dilated", Plain("convolution", grows="sum", word="convolution")),
    ("reduce_sum", Plain("reduction", passes_on="all", grows="sum")),
    ("reduce_prod", Plain("reduction", passes_on="all", grows="product", operation="product")),
    ("reduce_max reduce_min reduce_and reduce_or reduce_xor", Plain("reduction")), ("argmax argmin", Plain("position")),
    ("cumsum", Plain("cumulative", is_along=True, passes_on="all", grows="sum")),
    ("cumprod", Plain("cumulative", is_along=True, passes_on="all", grows="product")),
    ("cummax cummin", Plain("cumulative", is_along=True)),
    ("cumlogsumexp", Plain("cumulative logsumexp", is_along=True)),
    ("reduce_window_sum", Plain("window", grows="sum")), ("reduce_window_max reduce_window_min", Plain("window")),
    ("select_and_scatter_add", Plain("window gradient", grows="sum")),
    ("slice dynamic_slice", Plain("part", is_along=True, operation="slice")),
    ("gather", Plain("indexing", operation="indexing")),
    ("dynamic_update_slice", Plain("update", is_along=True)), ("scatter", Plain("scattering")),
    ("scatter-add scatter-sub", Plain("scattered arithmetic", passes_on="first", grows="sum")),
    ("scatter-mul", Plain("scattered arithmetic", passes_on="first", grows="product")),
    ("scatter-min scatter-max", Plain("scattered arithmetic")), ("sort", Plain("sorting", is_along=True)),
    ("fft", Plain("transform", grows="sum")),
    ("cholesky", Plain("factorization")), ("triangular_solve", Plain("solving", operation="triangular solve")),
    ("reshape squeeze", Plain("movement", "view")), ("bitcast_convert_type", Plain("movement", "bits")),
    ("transpose", Plain("movement", "layout", is_free=True)), ("iota empty", Plain("movement", is_free=True)),
    ("broadcast_in_dim", Plain("movement", "layout", is_free=True, word="broadcast")),
    ("convert_element_type", Plain("movement", "rounded", word="converted", operation="conversion")),
    ("rev", Plain("reversal", "layout", is_along=True)),
    ("concatenate", Plain("movement", is_along=True, passes_on="all")),
    ("pad", Plain("movement", is_along=True, passes_on="first")), ("broadcast_to tile", Plain("movement", "layout")),
    ("split", Plain("movement", is_along=True)), ("stack unstack empty2", Plain("movement")),
    ("device_put", Plain("transfer")),  # its numbers are those of its operand, but in another memory on purpose
    ("random_bits random_split random_fold_in", Plain("random bits")), ("threefry2x32", Plain("cipher")),
    ("rng_bit_generator", Plain("generator")),
    ("psum psum_invariant unreduced_psum", Plain("all-reduce", grows="sum")),
    ("pmax pmin unreduced_pmax unreduced_pmin", Plain("all-reduce")),
    ("reduce_scatter unreduced_reduce_scatter", Plain("reduce-scatter", grows="sum")),
    ("all_gather all_gather_invariant all_gather_reduced", Plain("exchange", collective="all-gather")),
    ("all_to_all", Plain("exchange", collective="all-to-all")),
    ("ppermute", Plain("exchange", collective="collective-permute")),
    ("pbroadcast pbroadcast_dynamic", Plain("exchange", collective="collective-broadcast")),
    ("stop_gradient", Plain("nothing", "operand", stops="asked")),
    ("copy name optimization_barrier pvary preduced reduced_vary_cast reduced_vary_cast_p "
     "vary_unreduced_cast "
     "vary_unreduced_cast_p random_wrap random_unwrap random_clone", Plain("nothing", "operand")),
    ("sharding_constraint layout_constraint reshard", Plain("nothing", "layout")),
    ("new_ref empty_ref", Plain("movement")), ("freeze", Plain("nothing", "operand")), ("free_ref", Plain("nothing")),
    ("get", Plain("part", operation="read")), ("swap", Plain("update", operation="write")),
    ("addupdate", Plain("added in place", operation="addition in place")),
    ("LowerVal RaiseVal", Plain("nothing", is_free=True)),
    ("axis_index platform_index random_seed debug_callback debug_print create_token dce_sink", Plain("nothing")),
)  # fmt: skip
"""Primitives with the same properties, by their names."""
PLAIN: Mapping[str, Plain] = {name: does for names, does in ROWS for name in names.split()}
OTHER = Plain()


def plain(primitive: str) -> Plain:
    """What the primitive of a name does."""
    return PLAIN.get(primitive, OTHER)


def operation_of(equation: Equation) -> str:
    """What people call the operation of an equation: `product`, `matrix product`, `sin`."""
    does = plain(name := equation.primitive.name)
    if name != "dot_general":
        return does.operation or does.word or name
    (summed, _), (batch, _) = equation.params["dimension_numbers"]
    is_of_vectors = all(len(a.shape) == len(summed) + len(batch) for a in equation.operation.in_avals)
    return "product" if not summed else "inner product" if is_of_vectors else "matrix product"


def is_view(equation: Equation) -> bool:
    """Whether the result is a view of the operand's memory in another shape."""
    return shows_operand(equation) and sum(isinstance(a, Var) for a in equation.invars) == 1


def shows_operand(equation: Equation) -> bool:
    """Whether the result is a view if there is one operand, and the others are literals."""
    name = equation.primitive.name
    if name == "reshape" and equation.params["dimensions"] is not None:
        return False  # it reads the operand in another order
    return len(equation.outvars) == 1 and plain(name).same in ("operand", "view", "bits")


def keeps_numbers(equation: Equation) -> bool:
    """Whether the only result has the numbers of the first operand, as far as its type can represent them."""
    return len(equation.outvars) == 1 and plain(equation.primitive.name).keeps_numbers


def exchanges(primitive: Any) -> bool:
    """Whether an operation that names an axis makes devices along it exchange values; otherwise it only reads the axis
    or changes types."""
    return plain(primitive.name).kind in (*_COLLECTIVE, "")
