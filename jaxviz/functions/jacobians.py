"""Jacobians and Hessians, as jax's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from jaxviz.functions.transformations import Argnums, check_inputs, jvp, named, partial_in, vjp
from jaxviz.ir import compat
from jaxviz.ir.boundary import api_boundary
from jaxviz.runtime.cache import remember_step


@api_boundary
def jacfwd(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Jacobian column by column in forward mode, as `jax.jacfwd`; see `grad` for the arguments.

    >>> jaxviz.jacfwd(jnp.sin)(jnp.zeros(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    compat.check_callable(fun)
    argnums = compat.index_or_indices(argnums)

    @named(fun, "Jacobian", argnums)
    @api_boundary
    def jacfun(*args: Any, **kwargs: Any) -> Any:
        in_argnums, dyn_args = partial_in(fun, argnums, args, kwargs)
        check_inputs(partial(compat.check_input_dtype_jacfwd, holomorphic), dyn_args, in_argnums)
        push = partial(jvp, in_argnums, dyn_args, has_aux=has_aux)
        out_axes = (None, -1, None) if has_aux else (None, -1)
        y, jac, *aux = compat.jax_vmap(push, out_axes=out_axes)(compat.standard_basis(dyn_args))
        jax.tree.map(partial(compat.check_output_dtype_jacfwd, holomorphic), y)
        example = dyn_args[0] if isinstance(argnums, int) else dyn_args
        jac_tree = jax.tree.map(partial(compat.unravel_jacfwd, example), y, jac)
        return (jac_tree, *aux) if has_aux else jac_tree

    return remember_step(jacfun, fun, jacfwd, {"argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic})


@api_boundary
def jacrev(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """Jacobian row by row in reverse mode, as `jax.jacrev`; see `grad` for the arguments.

    >>> jaxviz.jacrev(jnp.sin)(jnp.zeros(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    compat.check_callable(fun)
    argnums = compat.index_or_indices(argnums)

    @named(fun, "Jacobian", argnums)
    @api_boundary
    def jacfun(*args: Any, **kwargs: Any) -> Any:
        in_argnums, dyn_args = partial_in(fun, argnums, args, kwargs)
        check_inputs(partial(compat.check_input_dtype_reverse, "jacrev", holomorphic, allow_int), dyn_args, in_argnums)
        y, pull, *aux = vjp(in_argnums, *dyn_args, has_aux=has_aux)
        jax.tree.map(partial(compat.check_output_dtype_reverse, "jacrev", holomorphic), y)
        jac = compat.jax_vmap(pull)(compat.standard_basis(y))
        jac = jac[0] if isinstance(argnums, int) else jac
        example = dyn_args[0] if isinstance(argnums, int) else dyn_args
        jac_tree = jax.tree.map(partial(compat.unravel_jacrev, y), example, jac)
        jac_tree = jax.tree.transpose(jax.tree.structure(example), jax.tree.structure(y), jac_tree)
        return (jac_tree, *aux) if has_aux else jac_tree

    options = {"has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    return remember_step(jacfun, fun, jacrev, {"argnums": argnums, **options})


@api_boundary
def hessian(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Hessian, forward over reverse, as `jax.hessian`; see `grad` for the arguments.

    >>> jaxviz.hessian(lambda x: x @ x)(jnp.ones(2))
    Array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    inner = jacrev(fun, argnums, has_aux=has_aux, holomorphic=holomorphic)
    return jacfwd(inner, argnums, has_aux=has_aux, holomorphic=holomorphic)
