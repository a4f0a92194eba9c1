"""The tests of JAX's that do not pass on jaxviz, each with its reason."""

_NUMBER = (
    "the rule adds Python numbers, which JAX hands back as Python numbers; what comes of a program here is an array"
)

CANNOT = {
    "CustomJVPTest.test_symbolic_zero_custom_jvp": _NUMBER,
    "CustomVJPTest.test_symbolic_zero_custom_vjp": _NUMBER,
    "CustomVJP3Test.test_symbolic_zero_custom_vjp": _NUMBER,
    "CustomJVPTest.test_jvp_rule_doesnt_return_pair_error_message": (
        "the message shows what the rule returned, for JAX a number and here a tracer, since the rule is traced"
    ),
    "CustomJVPTest.test_hard_stuff2": (
        "under vmap the function's result is the same for all examples and its tangent is not; a program is traced with the "
        "function, and JAX runs the rule alone"
    ),
    "CustomVmapTest.test_jvp_closure": (
        "its rule for vmap gives another shape than its function, which a jaxpr run under jax_enable_checks refuses; without that flag "
        "it gives JAX's values"
    ),
}
