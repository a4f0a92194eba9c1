"""A call for every primitive that JAX can differentiate, or the reason why there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad
from programs import Case

FLOATS = ("float32", "bfloat16", "float64")
COMPLEX = (*FLOATS, "complex64")


@dataclass(frozen=True)
class Sample:
    """A function whose program contains a primitive.

    Args:
      primitive: its name.
      fun: takes arrays of one dtype.
      args: NumPy arrays; floats are cast to each of `dtypes`, integers and booleans are not.
      dtypes: the dtypes to test.
    """

    primitive: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        return self.primitive


def ramp(*shape: int, low: float = 0.2, high: float = 0.9) -> np.ndarray:
    """Distinct numbers in mixed order, inside the domain of most functions."""
    n = int(np.prod(shape))
    return np.linspace(low, high, n)[np.argsort(np.sin(np.arange(n) * 7.0), kind="stable")].reshape(shape)


V, U = ramp(4), ramp(4, low=0.3, high=0.8)
A, B = ramp(3, 3), ramp(3, 3, low=-0.5)
POSITIVE = A @ A.T + 2 * np.eye(3)
I, J = np.array([2, 0, 1, 1], np.int32), np.array([1, 3, 5, 2], np.int32)
MASK = np.array([True, False, True, True])
INDICES = np.array([[2], [0]], np.int32)
IMAGE, KERNEL = ramp(1, 2, 5, 5), ramp(3, 2, 3, 3)
ROW = lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))


def scatter_by(scatter: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, updates: scatter(x, INDICES, updates, ROW, unique_indices=True)


def window(reducer: Callable[..., Any], start: float) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, np.array(start, x.dtype), reducer, (2, 2), (1, 1), "VALID")


UNARY_REAL = {
    "abs": lax.abs, "acos": lax.acos, "acosh": lambda x: lax.acosh(x + 1), "asin": lax.asin, "asinh": lax.asinh,
    "atan": lax.atan, "atanh": lax.atanh, "bessel_i0e": lax.bessel_i0e, "bessel_i1e": lax.bessel_i1e, "cbrt": lax.cbrt,
    "ceil": lax.ceil, "digamma": lax.digamma, "erf": lax.erf, "erf_inv": lax.erf_inv, "erfc": lax.erfc,
    "exp2": lax.exp2,
    "floor": lax.floor, "is_finite": lax.is_finite, "lgamma": lax.lgamma, "round": lax.round, "sign": lax.sign,
}  # fmt: skip
UNARY = {
    "cos": lax.cos, "cosh": lax.cosh, "exp": lax.exp, "expm1": lax.expm1,
    "integer_pow": lambda x: lax.integer_pow(x, -3),
    "log": lax.log, "log1p": lax.log1p, "logistic": lax.logistic, "neg": lax.neg, "rsqrt": lax.rsqrt, "sin": lax.sin,
    "sinh": lax.sinh, "sqrt": lax.sqrt, "square": lax.square, "tan": lax.tan, "tanh": lax.tanh,
}  # fmt: skip
BINARY_REAL = {
    "atan2": lax.atan2, "igamma": lambda x, a: lax.igamma(x, lax.stop_gradient(a)),
    "igammac": lambda x, a: lax.igammac(lax.stop_gradient(x), a), "max": lax.max, "min": lax.min, "rem": lax.rem,
    "random_gamma": None,
}  # fmt: skip
BINARY = {"add": lax.add, "div": lax.div, "mul": lax.mul, "pow": lax.pow, "sub": lax.sub}
COMPARISONS = {"eq": lax.eq, "ge": lax.ge, "gt": lax.gt, "le": lax.le, "lt": lax.lt, "ne": lax.ne}
INTEGERS = {
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "shift_left": lax.shift_left,
    "shift_right_arithmetic": lax.shift_right_arithmetic, "shift_right_logical": lax.shift_right_logical,
    "mulhi": lax.mulhi,
}  # fmt: skip


# Primitives that only newer versions have.
if hasattr(lax, "log2"):
    UNARY["log2"] = lax.log2
if lax.nextafter_p in ad.primitive_jvps:
    BINARY_REAL["nextafter"] = lax.nextafter
if hasattr(lax, "polynomial"):
    BINARY["polynomial"] = lambda x, c: lax.polynomial(x, [c, c * 2, c])


def samples() -> list[Sample]:
    """One or more for each primitive of `COVERED`."""
    table = [Sample(n, f, (V,), FLOATS) for n, f in UNARY_REAL.items()]
    table += [Sample(n, f, (V,), COMPLEX) for n, f in UNARY.items()]
    table += [Sample(n, f, (V, U), FLOATS) for n, f in BINARY_REAL.items() if f is not None]
    table += [Sample(n, f, (V, U), COMPLEX) for n, f in BINARY.items()]
    table += [Sample(n, lambda x, y, f=f: (f(x, y), x * y), (V, U), FLOATS) for n, f in COMPARISONS.items()]
    table += [Sample(n, lambda x, i, j, f=f: (f(i, j), x * i), (V, I, J), ("float32",)) for n, f in INTEGERS.items()]

    def add(primitive: str, fun: Callable[..., Any], *args: Any, dtypes: tuple[str, ...] = FLOATS) -> None:
        table.append(Sample(primitive, fun, args, dtypes))

    # passing values on, and converting their types
    add("bitcast_convert_type", lambda x: (lax.bitcast_convert_type(x, jnp.int32), x), V, dtypes=("float32",))
    add("convert_element_type", lambda x: lax.convert_element_type(x, jnp.float16), V)
    add("convert_element_type", lambda x: lax.convert_element_type(x, jnp.complex64), V, dtypes=("float32",))
    add("complex", lax.complex, V, U, dtypes=("float32", "float64"))
    add("conj", lambda x: lax.conj(x), V, dtypes=("complex64",))
    add("copy", lambda x: jnp.array(x, copy=True), V, dtypes=COMPLEX)
    add("device_put", lambda x: jnp.sin(jax.device_put(x)) * x, V)
    add("imag", lax.imag, V, dtypes=("complex64",))
    add("real", lax.real, V, dtypes=("complex64",))
    add("name", lambda x: jax.ad_checkpoint.checkpoint_name(lax.sin(x), "here"), V)
    add("not", lambda x, m: (~m, x * m), V, MASK)
    add("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y))[0] * y, V, U)
    add("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), V)
    add("stop_gradient", lambda x: lax.stop_gradient(x) * x, V)
    add("clamp", lambda lo, x, hi: lax.clamp(lo, x, hi), V * 0.5, V, V * 0 + 0.6)
    add("select_n", lambda x, y: lax.select_n(jnp.asarray(MASK), x, y), V, U, dtypes=COMPLEX)
    add("select_n", lambda x, y, z: lax.select_n(jnp.array([0, 2, 1, 2]), x, y, z), V, U, V)
    # shapes
    add("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (2, 4), (1,)), V, dtypes=COMPLEX)
    add("concatenate", lambda x, y: lax.concatenate([x, y, x], 0), V, U, dtypes=COMPLEX)
    add("pad", lambda x, p: lax.pad(x, p, [(1, 2, 1)]), V, np.float64(0.5), dtypes=COMPLEX)
    add("reshape", lambda x: lax.reshape(x, (2, 2)), V, dtypes=COMPLEX)
    add("rev", lambda x: lax.rev(x, (1,)), A, dtypes=COMPLEX)
    add("slice", lambda x: lax.slice(x, (0, 1), (3, 3), (2, 1)), A, dtypes=COMPLEX)
    add("split", lambda x: lax.split(x, (1, 3)), V, dtypes=COMPLEX)
    add("squeeze", lambda x: lax.squeeze(lax.expand_dims(x, (0,)), (0,)), V)
    add("tile", lambda x: lax.tile(x, (2,)), V)
    add("transpose", lambda x: lax.transpose(x, (1, 0)), A, dtypes=COMPLEX)
    # indexing
    add("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, i), (2, 2)), A, np.int32(1), dtypes=COMPLEX)
    add(
        "dynamic_update_slice",
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i,)),
        V,
        U[:2],
        np.int32(1),
        dtypes=COMPLEX,
    )
    add("gather", lambda x, i: x[i], A, I[:3], dtypes=COMPLEX)
    add("scatter", lambda x, u: x.at[jnp.array([2, 0])].set(u), A, B[:2], dtypes=COMPLEX)
    add("scatter-add", scatter_by(lax.scatter_add), A, B[:2], dtypes=COMPLEX)
    add("scatter-sub", scatter_by(lax.scatter_sub), A, B[:2])
    add("scatter-mul", scatter_by(lax.scatter_mul), A, B[:2])
    add("scatter-min", scatter_by(lax.scatter_min), A, B[:2])
    add("scatter-max", scatter_by(lax.scatter_max), A, B[:2])
    # order
    add("argmax", lambda x: (lax.argmax(x, 0, jnp.int32), x), V)
    add("argmin", lambda x: (lax.argmin(x, 0, jnp.int32), x), V)
    add("sort", lambda x: lax.sort(x), V)
    add("sort", lambda x, y, i: lax.sort((x, y, i), num_keys=1), V, U, I)
    add("top_k", lambda x: lax.top_k(x, 2), V)
    add("approx_top_k", lambda x: lax.approx_max_k(x, 2), V, dtypes=("float32", "bfloat16"))
    # reductions
    add("reduce_sum", lambda x: jnp.sum(x, 1), A, dtypes=COMPLEX)
    add("reduce_max", lambda x: jnp.max(x, 1), A)
    add("reduce_min", lambda x: jnp.min(x, 0), A)
    add("reduce_prod", lambda x: jnp.prod(x, 0), A)
    add("reduce", lambda x: lax.reduce(x, jnp.ones((), x.dtype), lambda a, b: lax.mul(a, b) + a * 0, (0,)), A)
    add("cumsum", lambda x: lax.cumsum(x, 1, reverse=True), A, dtypes=COMPLEX)
    add("cumprod", lambda x: lax.cumprod(x, 0), A)
    add("cummax", lambda x: lax.cummax(x, 0), A)
    add("cummin", lambda x: lax.cummin(x, 0), A)
    add("cumlogsumexp", lambda x: lax.cumlogsumexp(x, 0), A)
    add("reduce_window_sum", window(lax.add, 0.0), A)
    add("reduce_window_max", window(lax.max, -np.inf), A)
    add("reduce_window_min", window(lax.min, np.inf), A)
    # algebra
    add("dot_general", lambda x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ()))), A, B, dtypes=COMPLEX)
    add("dot_general", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), ramp(2, 2, 3), ramp(2, 3, 2), dtypes=COMPLEX)
    add(
        "ragged_dot_general",
        lambda x, y, n: lax.ragged_dot(x, y, n),
        ramp(4, 3),
        ramp(2, 3, 2),
        np.array([1, 3], np.int32),
    )
    add("conv_general_dilated", lambda x, k: lax.conv_general_dilated(x, k, (2, 1), "SAME"), IMAGE, KERNEL)
    exact = ("float32", "float64", "complex64")
    add(
        "cholesky",
        lambda x: lax.linalg.cholesky(x @ x.T + 2 * jnp.eye(3, dtype=x.dtype)),
        A,
        dtypes=("float32", "float64"),
    )
    add("eigh", lambda x: lax.linalg.eigh(x + x.T)[1], A, dtypes=("float32", "float64"))
    add("lu", lambda x: lax.linalg.lu(x)[0], POSITIVE, dtypes=exact)
    add("qr", lambda x: lax.linalg.qr(x, full_matrices=False), POSITIVE, dtypes=("float32", "float64"))
    add("svd", lambda x: lax.linalg.svd(x, full_matrices=False)[0], POSITIVE + B, dtypes=("float32", "float64"))
    add("triangular_solve", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True), POSITIVE, B, dtypes=exact)
    add(
        "tridiagonal_solve",
        lax.linalg.tridiagonal_solve,
        U * [0, 1, 1, 1],
        V + 2,
        U * [1, 1, 1, 0],
        ramp(4, 2),
        dtypes=("float32", "float64"),
    )
    add("fft", lambda x: jnp.fft.rfft(x), V, dtypes=("float32", "float64"))
    add("fft", lambda x: jnp.fft.ifft(x), V, dtypes=("complex64",))
    # special functions
    add("polygamma", lambda x: lax.polygamma(jnp.ones_like(x), x), V, dtypes=("float32", "float64"))
    add(
        "regularized_incomplete_beta",
        lambda x, a, b: lax.betainc(lax.stop_gradient(a), lax.stop_gradient(b), x),
        V,
        U,
        U,
        dtypes=("float32", "float64"),
    )
    # random numbers
    add(
        "random_seed",
        lambda x, s: x * jax.random.normal(jax.random.key(s), x.shape),
        V,
        np.int32(3),
        dtypes=("float32",),
    )
    for name in ("random_bits", "random_wrap"):
        make = {
            "random_bits": jax.random.key,
            "random_wrap": lambda s: jax.random.wrap_key_data(jnp.array([0, s], jnp.uint32)),
        }[name]
        add(name, lambda x, make=make: x * jax.random.uniform(make(3), x.shape), V, dtypes=("float32",))
    add(
        "random_fold_in",
        lambda x: x * jax.random.uniform(jax.random.fold_in(jax.random.key(0), 7), x.shape),
        V,
        dtypes=("float32",),
    )
    add(
        "random_split",
        lambda x: x * jax.random.uniform(jax.random.split(jax.random.key(0))[1], x.shape),
        V,
        dtypes=("float32",),
    )
    add(
        "random_unwrap",
        lambda x: x * jax.random.key_data(jax.random.key(0)).sum().astype(x.dtype),
        V,
        dtypes=("float32",),
    )
    add("random_gamma", lambda a: jax.random.gamma(jax.random.key(0), a, a.shape), V + 1, dtypes=("float32",))
    # calls and callbacks
    add("jit", lambda x: jax.jit(lambda y: jnp.sin(y) * y)(x), V, dtypes=COMPLEX)
    add("debug_callback", lambda x: (jax.debug.callback(lambda y: None, x), x * x)[1], V, dtypes=("float32",))
    add("io_callback", _with_callback, V, dtypes=("float32",))
    return table


def _with_callback(x: jax.Array) -> jax.Array:
    from jax.experimental import io_callback

    return x * io_callback(lambda: np.float32(2.0), jax.ShapeDtypeStruct((), jnp.float32))


_CONTROL = "holds programs, and is tried in nested_programs.py and test_hi_primitives.py"
_AXES = "needs a named axis or a mesh of devices"
_STATE = "works on a mutable reference or box, which is no array to differentiate in"
_SPARSE = "of jax.experimental.sparse, whose arrays are pytrees of their own"
_INTERNAL = "bound by JAX alone, inside its own transforms"

LEFT_OUT = {
    **dict.fromkeys(
        """
        cond scan while remat2 run_state custom_linear_solve linear_call custom_vmap_call call_hi_primitive composite
        eval_jaxpr program_order remat_opt
        """.split(),
        _CONTROL,
    ),
    **dict.fromkeys(
        """
        all_gather all_gather_invariant all_gather_reduced all_to_all pbroadcast pbroadcast_dynamic ppermute preduced
        psum psum_invariant pvary ragged_all_to_all reduce_scatter reduced_vary_cast reduced_vary_cast_p relayout
        vary_unreduced_cast unreduced_psum unreduced_reduce_scatter vary_unreduced_cast_p reshard sharding_constraint
        layout_constraint inspect_sharding
        """.split(),
        _AXES,
    ),
    **dict.fromkeys(
        """
        accum_grad_in_ref addupdate box_get with_memory_space_constraint box_set empty_ref free_ref freeze get new_box
        new_ref swap log_extend log_read new_log stack unstack
        """.split(),
        _STATE,
    ),
    **dict.fromkeys(
        """
        bcoo_dot_general bcoo_dot_general_sampled bcoo_extract bcoo_fromdense bcoo_sort_indices bcoo_spdot_general
        bcoo_sum_duplicates bcoo_todense bcoo_transpose bcsr_dot_general bcsr_extract bcsr_fromdense bcsr_todense
        coo_fromdense coo_matmat coo_matvec coo_todense csr_fromdense csr_matmat csr_matvec csr_todense spsolve
        """.split(),
        _SPARSE,
    ),
    **dict.fromkeys(
        """
        add_any dce_sink debug_print eq_to le_to lt_to one_minus_square tie stage from_edtype to_edtype todense
        """.split(),
        _INTERNAL,
    ),
    "check": "of jax.experimental.checkify, and there only once that is imported; it has no result",
    "ffi_call": "needs a compiled library",
    "pure_callback": "JAX refuses to differentiate it",
    "reduce_window": "JAX refuses to differentiate it for a reducer of the user's own",
    "select_and_gather_add": "made by the derivative of a windowed maximum, and tested by it",
    "select_and_scatter_add": "made by the derivative of a windowed maximum, and tested by it",
    "eig": "its eigenvectors have no fixed phase, so two runs need not agree",
}

SAMPLES = samples()
COVERED = {s.primitive for s in SAMPLES}


def cases_of_primitives() -> list[tuple[Case, bool]]:
    """A program for each sample and dtype, and whether the short tests try it: one dtype for each sample, a different
    one for the next."""
    found = []
    for i, sample in enumerate(SAMPLES):
        for k, dtype in enumerate(sample.dtypes):
            where = partial(jax.enable_x64, dtype == "float64")
            args = [a.astype(dtype) if np.issubdtype(a.dtype, np.floating) else a for a in map(np.asarray, sample.args)]
            with where():
                case = Case(f"{sample}-{dtype}", sample.fun, tuple(map(jax.device_put, args)), where=where)
            found.append((case, k == i % len(sample.dtypes)))
    return found


def differentiable() -> set[str]:
    """The primitives with a JVP rule in JAX itself, from a fresh interpreter, since libraries register their own."""
    asked = "from jax.interpreters import ad; import jax.numpy; print(*{p.name for p in ad.primitive_jvps})"
    return set(subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True).stdout.split())
