"""The versions of JAX that this jaxviz supports, and every private name of JAX that it uses.

`check_jax` checks them before the engine is imported, so that an unsupported JAX gives one error that says what to do,
instead of an AttributeError from somewhere inside. A missing name that only one feature needs is not an error: it is
replaced by an object that raises one when it is used. `jaxviz doctor` lists missing names, and so needs this module
without the engine.

Besides the names in the table, `compat` reads some attributes of JAX's objects (`_trace` of a tracer,
`frame.tracing_eqns` of a trace, `_fun` and `_jit_info` of a jitted function, `_base_array` of random keys, `traced`,
`prim` and `remat_rules` of JAX's own hi-primitives) and the local variables of the frames of a call of a jitted
function (`pjit.cache_miss`, `jit_trace`, `call_impl_cache_miss`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import jax

from jaxviz.ir.errors import UnsupportedJaxError

OLDEST, TOO_NEW = (0, 10, 2), (0, 13)
SUPPORTED = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, TOO_NEW))}"
"""The same as in `pyproject.toml`."""


class Name(NamedTuple):
    """A private name of JAX's.

    Args:
      why: why it is needed in addition to the public API.
      feature: what does not work without it; '' for jaxviz as a whole.
      since, before: the versions of JAX that have it, if not all supported ones do.
    """

    why: str
    feature: str = ""
    since: tuple[int, ...] = OLDEST
    before: tuple[int, ...] = TOO_NEW


_VMAP = "jaxviz.vmap"
_SHARD_MAP = "differentiating a shard_map"
_MAPPED_RULE = "jax.vmap of a function with a custom rule"
_MAPPED_COND = "jaxviz.vmap of a cond"
_JACFWD, _JACREV = "jaxviz.jacfwd", "jaxviz.jacrev"
_REVERSE = "jaxviz.grad or jaxviz.vjp"
_LOGS = "with_logs of a function that jaxviz.vjp returned"
_COTANGENTS = "the error for cotangents that do not match"
_DONATION = "jaxviz.watch_donations"
_RECOMPILING = "jaxviz.explain_recompile"
_PROBE = "watching a jaxviz.probe"
_LAYOUTS = "the bytes on one device of a function on several devices"
_DUMPS = "jaxviz.CompiledMemory.from_dump of text"
_POLICY = "a checkpoint policy"
_MEMORY_SPACES = "gradients of moves between memories under an explicit mesh"
_NAN_FLAGS = "jaxviz.find_nan under jax_debug_nans"
_NAN_REFS = "jaxviz.find_nan of a function that uses mutable references"
_OPTIONS = "naming the parameters of jax.jit"
_ON_VALUES = "a function that branches on values"

PRIVATE_NAMES: dict[str, Name] = {
    # arrays, types and equations
    "ad_util.SymbolicZero": Name("what a rule with symbolic_zeros=True gets for a zero", "symbolic_zeros=True"),
    "ad_util.replace_internal_symbolic_zeros": Name("a zero tangent of a rule, as a rule of the user's returns it"),
    "ad_util.empty_like_aval": Name(
        "the dummies of a cond, as JAX creates them",
        "a cond whose branches save different values",
    ),
    "core.AvalQDD": Name("the type of a value with mutable state", _ON_VALUES, before=(0, 11, 1)),
    "core.DebugInfo": Name("the name and the argument names of a derived program"),
    "core.DropVar": Name("a result that nothing reads"),
    "core.InternalMutableArrayEffect": Name("an effect that only concerns a ref inside"),
    "core.Jaxpr": Name("an open jaxpr, as in some params; jax.extend has only the closed one"),
    "core.JaxprEqn": Name("an equation with its context: mesh, compute type, random numbers; jax.extend's has none"),
    "core.Literal": Name("a literal in a tracer"),
    "core.NamedAxisEffect": Name("an effect that names an axis and keeps no equation alive"),
    "core.ShapedArray": Name("whether a type is that of an array"),
    "core.current_jaxpr_eqn_context": Name("mesh, compute type and random numbers of an equation"),
    "core.eval_jaxpr": Name("runs a jaxpr with jax_debug_nans as the user has it; jaxpr_as_fun switches it off"),
    "core.full_lower": Name("the constant behind a tracer"),
    "core.is_literalable": Name("whether JAX inlines a constant"),
    "core.jaxprs_in_params": Name("the jaxprs in an equation"),
    "core.mapped_leading_aval": Name("the type of one slice of a value that a scan stacks"),
    "core.unmapped_leading_aval": Name("the type of a value that a scan stacks"),
    "core.mem_kind_to_space": Name("the memory to which a policy moves a value", "a checkpoint policy that offloads"),
    "core.resolve_input_effects": Name("effects on inputs, by variable"),
    "core.shaped_abstractify": Name("the type of an argument of a jitted function"),
    "core.typecompat": Name("whether a tangent or cotangent has the required type"),
    "core.typematch": Name("whether two types are equal except for weakness"),
    "core.typeof": Name("the type of a value in a rule"),
    "dtypes.canonicalize_value": Name("a NumPy or Python value in JAX's types"),
    "dtypes.finfo": Name("the precision to which a saved value is rounded, also of bfloat16"),
    "dtypes.float0": Name("the tangent type of integers"),
    "dtypes.issubdtype": Name("kinds of types, including JAX's own"),
    "effects.JaxprInputEffect": Name("an effect that names a variable and is renamed with it"),
    "effects.remat_allowed_effects": Name("the effects that JAX allows in a checkpoint"),
    "dispatch.ArrayCopySemantics": Name("how JAX copies what it offloads", "a checkpoint policy that offloads"),
    "dispatch.check_arg": Name("JAX's error for an argument that is not an array"),
    "state.types.AbstractRef": Name("the type of a mutable reference"),
    "core.ref_p": Name("makes a mutable reference"),
    "core.empty_ref_p": Name("makes a mutable reference without a value"),
    "core.freeze_p": Name("ends a mutable reference, and returns its value"),
    "core.free_ref_p": Name("ends a mutable reference"),
    "state.primitives.get_p": Name("reads a mutable reference"),
    "state.primitives.swap_p": Name("writes a mutable reference, and returns what was there"),
    "state.primitives.addupdate_p": Name("adds to a mutable reference"),
    "lax.slicing._gather_to_ref_indexer": Name(
        "which gathers accumulate their cotangents in place", "with_refs", since=(0, 11)
    ),
    "core.call_p": Name("the call of jax.named_call and others"),
    "hijax.HiType": Name("whether a type says how its cotangents are added", "cotangents of hi types"),
    "hijax.call_hi_primitive_p": Name("an equation of a hi-primitive"),
    "hijax.call_hi_primitive_linearized_p": Name("its derivative, until its rule for the backward pass transposes it"),
    "hijax.linearize_from_jvp": Name("whether a hi-primitive has its JVP rule alone", since=(0, 11)),
    "hijax.vjp_from_lin": Name("whether its backward pass is that of its linearization", since=(0, 11, 1)),
    "interpreters.partial_eval.dce_jaxpr": Name("whether JAX removes what is written to a reference and not read"),
    "interpreters.partial_eval.dce_rules": Name("what a hi-primitive becomes if not all of its results are used"),
    "interpreters.remat.remat_transform": Name(
        "what a rule of a hi-primitive saves in a checkpoint, and what it computes again",
        "a checkpoint with a rule of jax.custom_vjp's defremat",
    ),
    "config.remat3": Name("which hi-primitives checkpoints and names are, and checkpoints without the flag"),
    "config.log_checkpoint_residuals": Name("whether JAX logs what checkpoints save"),
    "state.types.WriteEffect": Name("the effect of writing to a mutable reference"),
    "state.types.AccumEffect": Name("the effect of adding to a mutable reference"),
    "core.cur_aval_qdd": Name("the type of an argument with its state", "mutable hi types", before=(0, 11, 1)),
    "interpreters.partial_eval.lower_jaxpr2": Name(
        "a program that takes and returns what values of mutable types hold", _NAN_REFS
    ),
    "state.discharge.discharge_state": Name("a program that takes and returns the values of its references", _NAN_REFS),
    "state.types.RefEffect": Name("the effect that JAX refuses in a mapped cond", _MAPPED_COND),
    # source lines
    "source_info_util._source_info_context": Name("the place that a jaxpr's equation gives to what it is evaluated as"),
    "lib.xla_client.Traceback": Name("the current frames in Python"),
    "source_info_util.NameStack": Name("the scopes of an equation without a line"),
    "source_info_util.Scope": Name("a name from jax.named_scope"),
    "source_info_util.Transform": Name("a name from a transform"),
    "source_info_util.current": Name("the current place in Python, as the source of an equation"),
    "source_info_util.current_name_stack": Name("the current scopes"),
    "source_info_util.is_user_filename": Name("whether a file is neither jax's nor Python's"),
    "source_info_util.raw_frame_to_frame": Name("the lines and columns of a frame"),
    "source_info_util.new_source_info": Name("the source of an equation without a line"),
    "source_info_util.transform_name_stack": Name("marking the equations of a backward pass"),
    "source_info_util.reset_name_stack": Name("tracing without the surrounding scopes"),
    "source_info_util.user_context": Name("gives equations the line of the equation that they are evaluated from"),
    "source_info_util.user_frames": Name("the user's frames of an equation"),
    "config.traceback_filtering": Name("whether the user lets JAX filter tracebacks"),
    "traceback_util.api_boundary": Name("tracebacks without the frames of this package, as without jax's"),
    "traceback_util.include_filename": Name("whether the frames of a file are left out"),
    "traceback_util.register_exclusion": Name("leaves out the frames of this package"),
    # tracing
    "core.Trace": Name("records the operations that a rule binds"),
    "core.Tracer": Name("tells a traced value from an array"),
    "core.eval_trace": Name("runs an equation while a function is traced", _ON_VALUES),
    "core.set_current_trace": Name("lets a trace of ours see the operations"),
    "core.trace_ctx": Name("the current trace"),
    "core.EvalTrace": Name("whether there is no current trace"),
    "core.escaped_tracer_error": Name("JAX's error for a leaked tracer, with the line that it was made on"),
    "interpreters.partial_eval.DynamicJaxprTrace": Name(
        "make_jaxpr does not record which scalars are passed to jitted functions",
    ),
    "interpreters.partial_eval.DynamicJaxprTracer": Name("its tracers, which may know their values here"),
    "interpreters.partial_eval.const_fold_rules": Name("what JAX computes immediately while it traces"),
    "interpreters.partial_eval.custom_staging_rules": Name("which operations have their own way of tracing"),
    "interpreters.partial_eval.forwarding_rules": Name("which operations return an operand"),
    "linear_util.wrap_init": Name("a backward rule as a param of custom_lin"),
    "linear_util.WrappedFun": Name("what a custom rule closes over, after transforms have wrapped it"),
    "api_util.Unhashable": Name("the arguments in nondiff_argnums of a custom rule"),
    "core.Var": Name("an input of a call with a custom rule, for what the rule closes over", _ON_VALUES),
    "api_util._ensure_index": Name("argnums, checked as JAX checks them"),
    "core.concrete_or_error": Name("argnums, checked as JAX checks them"),
    "api_util.check_no_aliased_ref_args": Name("JAX's error for a reference that is passed twice"),
    "api_util.debug_info": Name("name, source and argument paths of a function"),
    "api_util.fun_signature": Name("the names of a function's parameters", _OPTIONS),
    "api_util.infer_argnums_and_argnames": Name("which arguments jit takes as static", _OPTIONS),
    "api_util.save_wrapped_fun_debug_info": Name("lets errors name the user's function and not a wrapper"),
    "config.eager_constant_folding": Name("tracing with constants computed immediately"),
    # JAX's rules
    "interpreters.ad.JVPTrace": Name("how often a custom rule is derived while its captured values exist"),
    "interpreters.ad.LinearizeTrace": Name("how often a custom rule is derived while its captured values exist"),
    "interpreters.ad.CustomVJPException": Name(
        "JAX's error for a custom_vjp differentiated with respect to captured values",
    ),
    "interpreters.ad.GradAccum": Name("the linear operands of a transpose rule"),
    "interpreters.ad.UndefinedPrimal": Name("the linear operands of a transpose rule of the older kind"),
    "interpreters.ad.ValAccum": Name("receives the cotangents of a transpose rule"),
    "interpreters.ad.Zero": Name("a symbolic zero"),
    "interpreters.ad.fancy_transposes": Name("transpose rules of the newer kind"),
    "interpreters.ad.get_primitive_transpose": Name("a transpose rule, or JAX's error if there is none"),
    "interpreters.ad.instantiate_zeros": Name("zeros of a tangent type"),
    "interpreters.ad.jvp_jaxpr": Name("the JVP of a jaxpr, for a loop's condition"),
    "interpreters.ad.linear_jvp": Name("whether an operation is linear in all its operands"),
    "interpreters.ad.primitive_jvps": Name("JVP rules"),
    "interpreters.ad.primitive_linearizations": Name("linearization rules, which jax.vjp takes first"),
    "interpreters.ad.primitive_transposes": Name("transpose rules"),
    "interpreters.ad.replace_rule_output_symbolic_zeros": Name("the zeros that a custom rule returns"),
    "api.check_callable": Name("JAX's error for something that is not a function"),
    "api.vjp": Name("replaces the parts of `jax.grad` while a training step is traced", "planning a training step"),
    "api._check_input_dtype_revderiv": Name("JAX's error for an argument that has no gradient", _REVERSE),
    "api._check_output_dtype_revderiv": Name("JAX's error for a result that has no gradient", _REVERSE),
    "api._check_scalar": Name("JAX's error for a loss that is not a scalar", _REVERSE),
    "api.NotNeeded": Name("in a VJP object, the place of an argument that is not a residual"),
    "api.NotSaveable": Name(
        "in a VJP object, the place of an argument that must not be saved", _REVERSE,
        since=(0, 11),
    ),
    "api.GradValue": Name("asks a VJP object for a cotangent"),
    "api.DontWant": Name("asks a VJP object for no cotangent", _REVERSE),
    "api.GradRef": Name("returned for a cotangent that went to a reference", _REVERSE),
    "api.DidntWant": Name("returned for a cotangent that was not requested", _REVERSE),
    "api.tuptree_map": Name("the structure of a VJP object's arguments", _REVERSE, before=(0, 12)),
    "api.mirror_tree_map": Name("the structure of a VJP object's arguments", _REVERSE, since=(0, 12)),
    "api.tuptree_flags": Name(
        "which arguments are differentiated, or saved, by a tree of bools", _REVERSE,
        since=(0, 11, 1),
    ),
    "api._is_ref": Name("whether a cotangent goes to a reference", _REVERSE),
    "api.check_accum": Name("JAX's error for a reference of the wrong type", _REVERSE),
    "api._vjp_accum": Name("the target of a cotangent, with JAX's errors", _REVERSE, since=(0, 11)),
    "api._vjp_not_saveable_error": Name("JAX's error for a residual argument that is missing", _REVERSE, since=(0, 11)),
    "interpreters.ad._merge_rule_logs": Name(
        "the logs of a further backward rule, with JAX's errors", _LOGS,
        since=(0, 11, 1),
    ),
    "interpreters.ad.NullAccum": Name("a cotangent that is not needed", _REVERSE),
    "interpreters.ad.RefAccum": Name("a cotangent that is added to a reference", _REVERSE),
    "lax.lax._one_vjp": Name("the cotangent 1 of a loss, of its type", _REVERSE),
    "api._vjp_check_ct_avals": Name("JAX's error for a cotangent of the wrong type", _REVERSE),
    "api._vjp_ct_tree_error": Name("JAX's error for cotangents of the wrong structure", _COTANGENTS),
    "api._vjp_too_many_args": Name("JAX's error for several cotangents", _COTANGENTS),
    "api._check_input_dtype_jacfwd": Name("JAX's error for an argument that has no derivative", _JACFWD),
    "api._check_output_dtype_jacfwd": Name("JAX's error for a result that has no derivative", _JACFWD),
    "api._jacfwd_unravel": Name("the structure of the result", _JACFWD),
    "api._jacrev_unravel": Name("the structure of the result", _JACREV),
    "api._std_basis": Name("the tangents or cotangents for each column or row", f"{_JACFWD} or {_JACREV}"),
    "lax.lax.composite_p": Name("the primitive of jax.lax.composite, whose program is opened"),
    "lax.lax._convert_element_type": Name("a value with a different weakness of type"),
    # primitives and their params
    "custom_batching.custom_vmap_p": Name("the equation of a function with its own rule for vmap"),
    "compute_on.compute_on_p": Name("the equation of jax.experimental.compute_on, whose program is opened"),
    "xla_metadata.xla_metadata_call_p": Name("the same of xla_metadata_call", since=(0, 11)),
    "custom_derivatives.linear_call_p": Name("the equation of a linear function with its own transpose"),
    "state.discharge.run_state_p": Name("the equation of a function of references"),
    "debugging.debug_callback_p": Name("a debug callback under a checkpoint policy"),
    "debugging.debug_print_p": Name("jax.debug.print under a checkpoint policy"),
    "pjit.UNSPECIFIED": Name("the sharding of an operand that is added to a jit"),
    "pjit.jit_p": Name("the equation that calls a jitted function"),
    "pjit.sharding_constraint_p": Name("sets the layout of a residual over devices"),
    "shard_map.shard_map_p": Name("the equation of a shard_map"),
    "flattree.nones": Name("the structure of a scan's inputs", since=(0, 11)),
    "flattree.pack": Name("the structure of a scan's inputs", since=(0, 11)),
    # checkpoint policies
    "interpreters.partial_eval.Offloadable": Name("a policy's answer: in another memory", _POLICY),
    "interpreters.partial_eval.SaveableType": Name("a policy's answer: saved", _POLICY),
    "interpreters.partial_eval.ensure_enum": Name("a policy's answer, in any form", _POLICY),
    "interpreters.partial_eval.dceable_effects": Name("the effects that keep no equation alive"),
    "interpreters.partial_eval.partial_eval_jaxpr_custom_rules": Name(
        "what a checkpoint repeats, for a probe and for references"
    ),
    # vmap
    "interpreters.batching.AxisData": Name("an axis on one device", _VMAP),
    "interpreters.batching.BatchTrace": Name("batching rules are called by a trace", _VMAP),
    "interpreters.batching.BatchTracer": Name("a value with its mapped dimension", _VMAP),
    "interpreters.batching.batch_custom_jvp_subtrace": Name(
        "a custom JVP rule under vmap, to map its results",
        _MAPPED_RULE,
    ),
    "interpreters.batching.batch_subtrace": Name(
        "a function with a custom rule under vmap, to map its results",
        _MAPPED_RULE,
    ),
    "interpreters.batching.broadcast": Name("a result of which only the tangent is mapped", _MAPPED_RULE),
    "interpreters.batching.fancy_primitive_batchers": Name("whether there is a batching rule", _VMAP),
    "interpreters.batching.matchaxis": Name("moves a mapped dimension, or JAX's error", _VMAP),
    "interpreters.batching.zero_if_mapped": Name("the mapped dimension at the front", _VMAP),
    "core.TraceTag": Name("distinguishes traces of batching rules", _VMAP),
    "core.add_explicit_mesh_axis_names": Name("the current axes in a batching rule", _VMAP),
    "core.add_spmd_axis_names": Name("the current axes in a batching rule", _VMAP),
    "core.extend_axis_env_nd": Name("the current axes in a batching rule", _VMAP),
    "core.unmapped_aval": Name("a type with its mapped dimension", _VMAP),
    "pjit._pjit_batcher_for_sharding": Name("a sharding with its mapped dimension", f"{_VMAP} of a jit with shardings"),
    "lax.control_flow.conditionals._bcast_select": Name("the operands of one branch of a mapped cond", _MAPPED_COND),
    "lax.control_flow.conditionals._bcast_select_n": Name("the results of a mapped cond", _MAPPED_COND),
    "lax.control_flow.conditionals.CondSum": Name("what the branches of a cond log", _LOGS, since=(0, 11, 1)),
    "lax.control_flow.conditionals.platform_index_p": Name("the platform of a mapped cond", _MAPPED_COND),
    "lax.lax._const": Name("the number of a branch, in the type of the index", _MAPPED_COND),
    "lax.lax.eq": Name("compares this number with the index", _MAPPED_COND),
    "lax.lax.stop_gradient": Name("cuts the other examples off from differentiation", _MAPPED_COND),
    "callback._IOEffect": Name("the effect that JAX refuses in a mapped cond or loop", _MAPPED_COND),
    "callback._OrderedIOEffect": Name("the effect that JAX refuses in a mapped cond or loop", _MAPPED_COND),
    # devices
    "config._check_vma": Name("whether types record along which axes values differ", _SHARD_MAP),
    "core.filter_named_axis_effects": Name("the effects of a body that concern other axes too", _SHARD_MAP),
    "core.shard_aval": Name("the type of the value on one device", _SHARD_MAP),
    "core.unshard_aval": Name("the type of the value on all devices", _SHARD_MAP),
    "mesh.get_concrete_mesh": Name(
        "the devices of the mesh that is set; jax.sharding.get_mesh raises an error under "
        "jit", _MEMORY_SPACES,
    ),
    "mesh.use_abstract_mesh": Name("the mesh that JAX knows in a shard_map", _SHARD_MAP),
    "shard_map._all_newly_manual_mesh_names": Name("the axes that a shard_map maps over", _SHARD_MAP),
    "shard_map._as_manual_mesh": Name("the mesh that JAX knows in a shard_map", _SHARD_MAP),
    "shard_map._extend_axis_env": Name("the axes that JAX knows in a shard_map", _SHARD_MAP),
    "shard_map._repspec": Name("the spec of a residual that is the same on each device", _SHARD_MAP),
    "shard_map._unmentioned2": Name("the axes along which a cotangent is summed", _SHARD_MAP),
    "shard_map.used_axis_names": Name("the axes that a spec uses", f"{_VMAP} of a shard_map"),
    "interpreters.pxla.batch_spec": Name("a spec with its mapped dimension", f"{_VMAP} of a shard_map"),
    # compiling and running
    "api._post_hook_state": Name("a hook after each call of a jitted function", f"{_DONATION} or {_NAN_FLAGS}"),
    "array.ArrayImpl._check_if_deleted": Name("JAX's error for a donated array, to say which call took it", _DONATION),
    "config.config_ext": Name("whether a thread has its own hook", _DONATION),
    "config.debug_infs": Name("switches the check off while a NaN is looked for"),
    "config.debug_nans": Name("switches the check off while a NaN is looked for"),
    "config.enable_compilation_cache": Name("compiles programs that are in a cache on disk", "jaxviz.compile_cost"),
    "config.compilation_cache_include_metadata_in_key": Name("a cached program with its own lines", "jaxviz.profile"),
    "config.trace_context": Name("the configuration in the cache key of a program", _RECOMPILING),
    "config.trace_context_names": Name("the names of its parts", _RECOMPILING),
    "tree_util.equality_errors_pytreedef": Name("where two argument structures differ", _RECOMPILING),
    "tree_util.keystr": Name("the path of that place", _RECOMPILING),
    # shardings
    "lib.mlir.ir.RankedTensorType": Name("the shape of an instruction's result", _LAYOUTS),
    "lib.mlir.ir.WalkResult": Name("walks the instructions of a lowered program", _LAYOUTS),
    "lib.mlir.passmanager.PassManager": Name("runs Shardy on a lowered program, without compiling it", _LAYOUTS),
    "lib.mlir.ir.ArrayAttr": Name("the layouts of the arguments of a program from XLA", "jaxviz.collectives"),
    "lib.mlir.ir.Attribute": Name("the layout of a value in it", "jaxviz.collectives"),
    "lib.mlir.ir.DictAttr": Name("the layout of an argument of it", "jaxviz.collectives"),
    "lib.mlir.ir.InsertionPoint": Name("the mesh of such a program", "jaxviz.collectives"),
    "lib.mlir.ir.Module": Name("reads a program from XLA", "jaxviz.collectives"),
    "lib.mlir.ir.StringAttr": Name("the text of a layout in XLA", "jaxviz.collectives"),
    "lib.mlir.ir.UnitAttr": Name("marks the layouts that a program requests", "jaxviz.collectives"),
    "lib.xla_client._xla": Name("reads a program from XLA as MLIR", "jaxviz.collectives"),
    "lib.mlir.ir.Block": Name("an argument in a lowered program", "jaxviz.collectives"),
    "lib.mlir.ir.ComplexType": Name("the bytes of a complex value", "jaxviz.collectives"),
    "lib.mlir.ir.FloatType": Name("the bytes of a complex value", "jaxviz.collectives"),
    "lib.mlir.ir.TypeAttr": Name("the types of the results of a lowered program", "jaxviz.collectives"),
    "lib.mlir.dialects.sdy.DimMappingAttr": Name("the dimensions that an instruction works on", "jaxviz.collectives"),
    "lib.mlir.dialects.sdy.OpShardingRuleAttr": Name(
        "the dimensions that an instruction works on",
        "jaxviz.collectives",
    ),
    "lib.mlir.dialects.sdy.TensorMappingAttr": Name(
        "the dimensions that an instruction works on",
        "jaxviz.collectives",
    ),
    "lib.mlir.dialects.sdy.AxisRefAttr": Name("an axis in a layout", _LAYOUTS),
    "lib.mlir.dialects.sdy.DimensionShardingAttr": Name("the axes over which a dimension is split", _LAYOUTS),
    "lib.mlir.dialects.sdy.MeshAttr": Name("the axes of a mesh", _LAYOUTS),
    "lib.mlir.dialects.sdy.MeshAxisAttr": Name("the size of an axis", _LAYOUTS),
    "lib.mlir.dialects.sdy.SubAxisInfoAttr": Name("a part of an axis", _LAYOUTS),
    "lib.mlir.dialects.sdy.TensorShardingAttr": Name("the layout of a value", _LAYOUTS),
    "lib.mlir.dialects.sdy.TensorShardingPerValueAttr": Name("the layouts of an instruction's results", _LAYOUTS),
    # compiled memory
    "lib.xla_client.hlo": Name("reads the text of a compiled program", _DUMPS),
    # probes
    "callback._get_sdy_array_list_for_callbacks": Name("a callback from each device", _PROBE),
    "callback.emit_python_callback": Name("a callback that receives XLA's buffers directly, once", _PROBE),
    "debugging.debug_effect": Name("an effect that loops, branches and checkpoints may have"),
    "lib.mlir.dialects.hlo.partition_id": Name("the number of the device that calls back", _PROBE),
    "sharding_impls.SPMDAxisContext": Name("whether a probe is in a shard_map", _PROBE),
    "sharding_impls.SdyArray": Name("a callback with the whole value", _PROBE),
    "sharding_impls.SdyArrayList": Name("a callback with the whole value", _PROBE),
    "sharding_impls.ShardingContext": Name("whether a probe is in a program for several devices", _PROBE),
}  # fmt: skip
"""Path under `jax._src` → what it is for. A test compares it with the names that `compat` uses."""


@cache
def missing_names() -> Mapping[str, Name]:
    """The rows of the table whose name the installed JAX lacks, though its version should have it."""
    version = jax.__version_info__
    expected = {name: row for name, row in PRIVATE_NAMES.items() if row.since <= version < row.before}
    return {name: row for name, row in expected.items() if not _is_there(name)}


def full_name(name: str) -> str:
    return f"jax._src.{name}"


def _is_there(name: str) -> bool:
    holder, path = importlib.import_module("jax._src"), "jax._src"
    for part in name.split("."):
        path += f".{part}"
        if not hasattr(holder, part):
            try:
                importlib.import_module(path)  # not imported by anything yet
            except ImportError:
                return False
        holder = getattr(holder, part)
    return True


def check_jax() -> None:
    """Raises an error if jaxviz cannot run with the installed JAX.

    Raises:
      UnsupportedJaxError: its version is not supported, or it lacks a name that all of jaxviz needs.
    """
    if not OLDEST <= jax.__version_info__ < TOO_NEW:
        raise UnsupportedJaxError(f"jaxviz cannot run with JAX {jax.__version__}. {_what_to_do()}")
    needed = [name for name, row in missing_names().items() if not row.feature]
    if needed:
        raise UnsupportedJaxError(
            f"jaxviz cannot run with JAX {jax.__version__}, which lacks {_listed(needed)}. {_what_to_do()}"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more private names" if len(names) > 3 else ""
    return ", ".join(map(full_name, names[:3])) + more


def _what_to_do() -> str:
    version = importlib.import_module("jaxviz").__version__
    return (
        f"jaxviz {version} supports JAX {SUPPORTED}: `pip install 'jax{SUPPORTED}'`, or `pip install --upgrade "
        "jaxviz-lab` for a jaxviz that "
        "supports a newer one. `jaxviz doctor` lists what is missing."
    )


def complete(module: Any, path: str = "") -> Any:
    """A module of JAX's; if it lacks names that some feature needs, one in which these raise when used."""
    path = path or module.__name__.removeprefix("jax._src.")
    return _Incomplete(module, path) if any(name.startswith(f"{path}.") for name in missing_names()) else module


class _Incomplete:
    """A module or class that lacks names."""

    def __init__(self, holder: Any, path: str):
        self.__dict__.update(_holder=holder, _path=path)

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}.{name}"
        return _Missing(path) if path in missing_names() else complete(getattr(self._holder, name), path)

    def __setattr__(self, name: str, value: Any) -> None:
        if f"{self._path}.{name}" in missing_names():
            raise _error(f"{self._path}.{name}")
        setattr(self._holder, name, value)


class _Missing:
    """Represents a name that JAX lacks: any use of it raises."""

    def __init__(self, name: str):
        self.__dict__["_name"] = name

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise _error(self._name)

    __call__ = __contains__ = __getitem__ = __setitem__ = __instancecheck__ = __enter__ = _refuse

    def __getattr__(self, name: str) -> Any:
        raise _error(self._name)


def _error(name: str) -> UnsupportedJaxError:
    feature = PRIVATE_NAMES[name].feature
    return UnsupportedJaxError(f"{feature} needs {full_name(name)}, which JAX {jax.__version__} lacks. {_what_to_do()}")
