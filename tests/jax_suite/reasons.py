"""The tests of JAX that fail with jaxviz, each with its reason. The run fails if one of them passes."""

import jax

_NUMBER = "the rule adds Python numbers, which JAX hands back as Python numbers; what a program gives is an array"
_OPENED = (
    "a checkpoint of jax_remat3 is opened and differentiated as the primitive that jax.checkpoint has without the "
    "flag, and that keeps its name"
)
_TRACED = "a value without a tangent is to be no tracer while the function runs; here the whole function is traced"

_MUTABLE = "a rule writes a value of a mutable hi type, which jaxviz does not trace: it raises an error with the line"

CANNOT = {
    "test_symbolic_zero_custom_jvp": _NUMBER,
    "test_symbolic_zero_custom_vjp": _NUMBER,
    "test_jvp_rule_doesnt_return_pair_error_message": (
        "the message shows what the rule returned, for JAX a number and here a tracer, since the rule is traced"
    ),
    "test_jvp_closure": (
        "its rule for vmap gives another shape than its function, which running a jaxpr under jax_enable_checks "
        "refuses; without that "
        "flag it gives JAX's values"
    ),
}
CANNOT |= dict.fromkeys(
    """
    test_box_autodiff test_jvp_arg0 test_jvp_arg1 BoxTest.test_custom_vjp_plumbing_abstracted0
    BoxTest.test_custom_vjp_plumbing_abstracted1
    """.split(),
    _MUTABLE,
)
CANNOT["test_custom_types_and_primitive"] = (
    "the text of what jaxviz.vjp returns does not have the types of what it holds"
)

if jax.__version_info__ < (0, 11):
    CANNOT["test_free_ref_jvp"] = "JAX's check of a jaxpr takes no effects of free_ref for others than no effects"

RAISES = {_MUTABLE: NotImplementedError}
"""For a reason, the error with which its tests fail: any other, such as one about a wrong number, fails the run."""

if jax.__version_info__ >= (0, 11, 1):
    CANNOT |= {
        "test_leak_checker_remat3_zero_tangent_output_stays_concrete": _TRACED,
        "test_leak_checker_remat3_linearize_zero_tangent_output": _TRACED,
    }
if jax.__version_info__ >= (0, 12):
    CANNOT |= {
        "Remat3Test.test_remat_higher_order_ad_preserves_remat_primitive_basic": _OPENED,
        "Remat3Test.test_remat_higher_order_ad_preserves_remat_primitive_cond": _OPENED,
    }
