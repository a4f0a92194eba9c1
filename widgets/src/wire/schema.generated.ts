/** Written by `python tests/page/wire_types.py` from `jaxviz/page/schema.py`, which says more: not to be edited. */

export const MAGIC = "jaxviz";
export const VERSION = 23;

export type Column = Uint8Array | Int8Array | Uint16Array | Int16Array | Int32Array | Float64Array;

export const ROLES = [
  "primal",
  "tangent",
  "residual",
  "cotangent",
  "accumulation",
  "recomputation",
  "zero",
  "dummy",
] as const;
export type Role = (typeof ROLES)[number];

export const KINDS = [
  "argument",
  "constant",
  "literal",
  "intermediate",
  "dummy",
  "unread",
] as const;
export type Kind = (typeof KINDS)[number];

export const MEMORY_KINDS = [
  "argument",
  "constant",
  "residual",
  "temporary",
  "cotangent",
  "result",
] as const;
export type MemoryKind = (typeof MEMORY_KINDS)[number];

export const KINS = [
  "value",
  "tangent",
  "cotangent",
  "towards a tangent",
  "towards a cotangent",
  "copy",
] as const;
export type Kin = (typeof KINS)[number];

export const HANDED = [
  "as it is",
  "carry",
  "each",
] as const;
export type Handed = (typeof HANDED)[number];

export const SCOPES = [
  "scope",
  "loop",
  "repeated",
  "line",
  "rest",
] as const;
export type ScopeKind = (typeof SCOPES)[number];

export const STACKED = ["argument", "constant", "residual", "result", "cotangent", "temporary"] as const;

export const PLURALS = {
  argument: "arguments",
  constant: "constants",
  residual: "residuals",
  result: "results",
  cotangent: "cotangents",
  temporary: "temporaries",
} as const;

export type ColumnName =
  /** number of its stage */
  | "program_stage"
  /** equation that contains it, or -1 at the top of a stage */
  | "program_owner"
  /** string: its param, such as 'jaxpr' or 'branches[0]' */
  | "program_label"
  /** string: the name of the function that its equation calls, or empty */
  | "program_name"
  /** number of iterations if its equation is a loop of known length, or 0 */
  | "program_length"
  /** how many of its binders are constants */
  | "program_consts"
  /** offsets into binder_vars, one more than there are programs */
  | "program_binders"
  /** variable */
  | "binder_vars"
  /** index of the operand of the program's equation that it receives, or -1 */
  | "binder_operands"
  /** index into HANDED */
  | "binder_handed"
  /** offsets into result_atoms, one more than there are programs */
  | "program_results"
  /** atom: a variable, or if negative, ~number of a literal */
  | "result_atoms"
  /** program that it is in */
  | "equation_program"
  /** string */
  | "equation_primitive"
  /** string: one 'name=value' per line, without nested programs */
  | "equation_params"
  /** string: the params that JAX prints, in JAX's order, one 'name=value' per line; for a nested program only the name, or `{}` for one within a value */
  | "equation_printed"
  /** offsets into input_atoms, one more than there are equations */
  | "equation_inputs"
  /** atom */
  | "input_atoms"
  /** offsets into output_vars, one more than there are equations */
  | "equation_outputs"
  /** variable */
  | "output_vars"
  /** index into ROLES */
  | "equation_role"
  /** string: the transform that emitted it, or empty */
  | "equation_transform"
  /** string: the rule that emitted it, or empty */
  | "equation_rule"
  /** string: how its origins in programs that are not shown were emitted, latest first, one 'rule (transform)' per line */
  | "equation_earlier"
  /** location, or -1 */
  | "equation_location"
  /** equation of another stage that it derives from, or -1 */
  | "equation_origin"
  /** string: what a checkpoint policy decided about its results, or empty */
  | "equation_decision"
  /** string: the functions that lead to it, outermost first, and its named scopes, joined by '/', or empty */
  | "equation_scope"
  /** FLOPs including nested programs; for a while loop, of one iteration */
  | "equation_flops"
  /** bytes of the operands and results of its operations, each taken separately, likewise */
  | "equation_moved"
  /** how often it runs; 0 if its nested programs are counted */
  | "equation_runs"
  /** a number shared by the equations of one expression in repeated layers, calls and iterations */
  | "equation_group"
  /** first row that shows the same equation, or -1 if this is the first */
  | "equation_twin"
  /** equation that names axes; its first param says which */
  | "axis_rows"
  /** 1 if the devices or examples along them exchange values, as in a psum; 0 if they do not, as in a pvary */
  | "axis_exchanges"
  /** equation for which devices exchange values, as the types of its operands and results imply */
  | "implied_rows"
  /** string: what they exchange and why, a line for each collective */
  | "implied_texts"
  /** equation that runs its program on each device of a mesh; its first param says along which axes */
  | "layout_rows"
  /** string: what runs the program, 'device' or for example 'place along i'; then a line per operand and per result with its sharding, such as "P('i')" */
  | "layout_texts"
  /** equation, once for each of its donated operands */
  | "donation_rows"
  /** index of the operand */
  | "donation_operands"
  /** index of the result that reuses its memory, or -1 */
  | "donation_results"
  /** string: why no result does, or empty */
  | "donation_reasons"
  /** string */
  | "variable_name"
  /** type */
  | "variable_type"
  /** string: the name of an argument, 'residual', 'tangent of' or 'cotangent of' something, or empty */
  | "variable_label"
  /** string: one label for all inputs of its stage whose labels differ only in numbers, or empty */
  | "variable_labels"
  /** first variable with the same value, in any stage */
  | "variable_value"
  /** index into KINS */
  | "variable_kin"
  /** variable that it belongs to: whose tangent or cotangent it is or leads to, or for a variable of a rule, the result of the rule's equation; or -1 */
  | "variable_of"
  /** variable, as in variable_value, that belongs to others in addition to its variable_of */
  | "others_value"
  /** another variable that it belongs to, also as in variable_value */
  | "others_of"
  /** index into KINS: its relation to that one */
  | "others_kin"
  /** string */
  | "literal_text"
  /** type */
  | "literal_type"
  /** string, such as 'f32[3,4]' */
  | "type_text"
  /** bytes of one value */
  | "type_nbytes"
  /** bytes on one device, or -1 if its type is not sharded */
  | "type_per_device"
  /** file */
  | "location_file"
  /** line, from 1 */
  | "location_line"
  /** string */
  | "location_function"
  /** line on which its expression starts, or 0 if unknown */
  | "location_start_line"
  /** column on that line, in UTF-16 code units from 0 */
  | "location_start"
  /** line on which the expression ends */
  | "location_end_line"
  /** column on that line */
  | "location_end"
  /** file */
  | "line_file"
  /** line, from 1 */
  | "line_number"
  /** bytes that the gradient saves for it, without arguments */
  | "line_kept"
  /** FLOPs of the forward program */
  | "line_forward"
  /** FLOPs of the backward program */
  | "line_backward"
  /** FLOPs of the backward program that recompute values of the forward program */
  | "line_recomputed"
  /** bytes that the operations of both programs read and write, each taken separately */
  | "line_moved"
  /** string: its name in the listing of the forward program */
  | "residual_name"
  /** string: the user's expression for it if known, or another name */
  | "residual_label"
  /** row of the report of residuals that it is in, largest first */
  | "residual_group"
  /** string: its type, such as '1,000 × f32[3]' if a scan stacks one per iteration */
  | "residual_type"
  /** bytes */
  | "residual_nbytes"
  /** bytes on one device, or -1 if it is not sharded or this is unknown */
  | "residual_per_device"
  /** bytes that are dummies if a cond takes another branch */
  | "residual_dummy"
  /** index into KINDS */
  | "residual_kind"
  /** location, or -1 */
  | "residual_location"
  /** string: its named scopes, or empty */
  | "residual_scope"
  /** string: the path of the module that computes it, or empty */
  | "residual_module"
  /** string */
  | "residual_rule"
  /** string: why it is saved, in a sentence with `` in place of each name */
  | "residual_reason"
  /** offsets into reason_names, one more than there are residuals */
  | "residual_names"
  /** string: a name in the sentence, such as that of a value, primitive or argument */
  | "reason_names"
  /** 1 if this reason is another one than those of most in its row */
  | "residual_outlier"
  /** string: 'saved' or 'offloaded' */
  | "residual_decision"
  /** string: one name for the residuals of a row of the report */
  | "group_label"
  /** string: why they are saved */
  | "group_why"
  /** equation of the forward program that computes it, or -1 */
  | "residual_producer"
  /** buffer that contains it, or -1; several residuals share one if some are reshaped views of others */
  | "residual_buffer"
  /** offsets into consumer_rows, one more than there are residuals */
  | "residual_consumers"
  /** equation of the backward program that reads it */
  | "consumer_rows"
  /** equation */
  | "step_row"
  /** bytes */
  | "buffer_nbytes"
  /** index into MEMORY_KINDS */
  | "buffer_kind"
  /** first step at which it is in memory */
  | "buffer_born"
  /** last step at which it is in memory; the number of steps if it is never freed */
  | "buffer_last"
  /** equation that computes it, or -1 */
  | "buffer_row"
  /** string: the path of an argument, or what computes it */
  | "buffer_name"
  /** string, or empty */
  | "buffer_type"
  /** a number shared by one expression's values in repeated layers, calls and iterations */
  | "buffer_group"
  /** string: one name for the values with that number */
  | "buffer_group_label"
  /** saved expression that it is a value of, or -1 */
  | "residual_kept"
  /** string: the user's expression, with the name that it is assigned to */
  | "kept_label"
  /** location, or -1 */
  | "kept_location"
  /** bytes of its values, over all evaluations */
  | "kept_nbytes"
  /** how often it is evaluated, in layers, calls and iterations */
  | "kept_times"
  /** how many values each evaluation saves */
  | "kept_values"
  /** string: the reasons, in sentences */
  | "kept_reason"
  /** enclosing scope, or -1 */
  | "scope_parent"
  /** 1 in the backward pass */
  | "scope_backward"
  /** string, or empty */
  | "scope_name"
  /** index into SCOPES */
  | "scope_kind"
  /** how often it is called in that box per run of the enclosing one, or iterates; 1 if that is not certain */
  | "scope_count"
  /** location, or -1 */
  | "scope_location"
  /** FLOPs, over all iterations */
  | "scope_flops"
  /** number of equations without nested programs, each counted once */
  | "scope_equations"
  /** offsets into row_of_scope, one more than there are scopes */
  | "scope_rows"
  /** equation in it, but not in a nested scope */
  | "row_of_scope"
  /** number of equations without nested programs that each step runs, each counted once */
  | "step_equations";

/** One program of a derivation: its rows, or the error that prevented it. */
export interface Stage {
  key: string;
  label: string;
  title: string;
  programs: [number, number];
  equations: [number, number];
  error: string;
  is_path: boolean;
}

/** Consecutive lines of a source file, the first of which has number `first`. */
export interface Excerpt {
  first: number;
  lines: string[];
}

/** A file that equations point into; excerpts only of the user's own files. */
export interface SourceFile {
  label: string;
  path: string;
  is_user: boolean;
  excerpts: Excerpt[];
}

/** A branch of Python code on a traced value, in a recorded function. */
export interface BranchPoint {
  file: number;
  line: number;
  kind: string;
  value: string;
}

/** How the derivation compares with JAX: 'agrees', 'differs' or 'unknown'. */
export interface CheckResult {
  status: "agrees" | "differs" | "unknown";
  summary: string;
  differences: string[];
}

/** A summary of a gradient in words: what it saves, in how many values, mostly what, its peak; '' until known. */
export interface Headline {
  keeps: string;
  largest: string;
  peak: string;
  saves: string;
}

/** Everything that the explorer shows, as plain data. */
export interface View {
  title: string;
  stages: Stage[];
  strings: string[];
  columns: Record<ColumnName, Column>;
  files: SourceFile[];
  branches: BranchPoint[];
  check: CheckResult | null;
  notes: string[];
  devices: string[];
  placement: string;
  no_memory: string;
  n_devices: number;
  headline: Headline;
  has_groups: boolean;
  has_memory: boolean;
  is_whole: boolean;
}
