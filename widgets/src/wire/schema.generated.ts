/** Written by `python tests/page/wire_types.py` from `jaxviz/page/schema.py`, which says more: not to be edited. */

export const MAGIC = "jaxviz";
export const VERSION = 18;

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

export type ColumnName =
  /** number of its stage */
  | "program_stage"
  /** equation that holds it, or -1 at the top of a stage */
  | "program_owner"
  /** string: the parameter it is, such as 'jaxpr' or 'branches[0]' */
  | "program_label"
  /** string: the name of the function that its equation calls, or empty */
  | "program_name"
  /** how many iterations its equation runs, for a loop of known length; else 0 */
  | "program_length"
  /** how many of its binders are constants */
  | "program_consts"
  /** offsets into binder_vars, one more than there are programs */
  | "program_binders"
  /** variable */
  | "binder_vars"
  /** which operand of the equation that holds the program it is handed, or -1 */
  | "binder_operands"
  /** index into HANDED */
  | "binder_handed"
  /** offsets into result_atoms, one more than there are programs */
  | "program_results"
  /** atom: a variable, or ~number of a literal where negative */
  | "result_atoms"
  /** program it stands in */
  | "equation_program"
  /** string */
  | "equation_primitive"
  /** string: one 'name=value' per line, nested programs left out */
  | "equation_params"
  /** string: the params that JAX prints, in its order, one 'name=value' per line; of programs the name alone, or `{}` for one within a value */
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
  /** string: the transform that made it, or empty */
  | "equation_transform"
  /** string: the rule that made it, or empty */
  | "equation_rule"
  /** string: what made the equations of programs that are not shown, latest first, one 'rule (transform)' per line */
  | "equation_earlier"
  /** location, or -1 */
  | "equation_location"
  /** equation of another stage that it came from, or -1 */
  | "equation_origin"
  /** string: what a checkpoint policy decided of its results, or empty */
  | "equation_decision"
  /** string: the functions called on the way to it, outermost first, and its named scopes, joined by '/', or empty */
  | "equation_scope"
  /** FLOPs of it with the programs that it holds; of a while loop, of one iteration */
  | "equation_flops"
  /** FLOPs of it alone, all the times that it runs together; 0 where those of the programs that it holds are counted */
  | "equation_work"
  /** a number that those have in common which one expression led to in repeated layers, calls and iterations */
  | "equation_group"
  /** the first row that shows the same equation, or -1 if this is the first */
  | "equation_twin"
  /** equation that names axes; its first param says which */
  | "axis_rows"
  /** 1 if the places along them exchange values, as in a psum; 0 if they do not, as in a pvary */
  | "axis_exchanges"
  /** equation that runs its program on each device of a mesh; its first param says which axes */
  | "layout_rows"
  /** string: what runs the program, 'device' or such as 'place along i'; then a line for each operand and each result, saying how it is laid out, such as "P('i')" */
  | "layout_texts"
  /** equation, once for each of its donated operands */
  | "donation_rows"
  /** place of the operand */
  | "donation_operands"
  /** place of the result that reuses its memory, or -1 */
  | "donation_results"
  /** string: why none does, or empty */
  | "donation_reasons"
  /** string */
  | "variable_name"
  /** type */
  | "variable_type"
  /** string: the name of the argument it is, 'residual', 'tangent of' or 'cotangent of' and what of, or empty */
  | "variable_label"
  /** first variable that is the same value, in whatever stage */
  | "variable_value"
  /** index into KINS */
  | "variable_kin"
  /** variable it belongs to: whose tangent or cotangent it is or leads to, or the result of what its rule is the rule of; or -1 */
  | "variable_of"
  /** variable that belongs to more variables than its variable_of: a first one, as in variable_value */
  | "others_value"
  /** another that it belongs to, a first one too */
  | "others_of"
  /** index into KINS: how it belongs to that one */
  | "others_kin"
  /** string */
  | "literal_text"
  /** type */
  | "literal_type"
  /** string, such as 'f32[3,4]' */
  | "type_text"
  /** bytes that one value takes */
  | "type_nbytes"
  /** bytes of it on one device, or -1 where its type lays it out over none */
  | "type_per_device"
  /** file */
  | "location_file"
  /** line, from 1 */
  | "location_line"
  /** string */
  | "location_function"
  /** line on which its expression starts, or 0 where that is not known */
  | "location_start_line"
  /** where on that line, in code units of UTF-16 from 0 */
  | "location_start"
  /** line on which it ends */
  | "location_end_line"
  /** where on that one */
  | "location_end"
  /** file */
  | "line_file"
  /** line, from 1 */
  | "line_number"
  /** bytes that the gradient keeps of it, without arguments */
  | "line_kept"
  /** FLOPs of the forward program */
  | "line_forward"
  /** FLOPs of the backward program */
  | "line_backward"
  /** FLOPs of these that compute again what the forward program did */
  | "line_recomputed"
  /** string: its variable's name in the listing of the forward program */
  | "residual_name"
  /** string: what it is called, the user's expression for it where one is found */
  | "residual_label"
  /** a number that those have in common that are one expression's values in repeated layers, calls and iterations */
  | "residual_group"
  /** string: its type, such as '1,000 × f32[3]' for one from each iteration of a scan */
  | "residual_type"
  /** bytes */
  | "residual_nbytes"
  /** bytes of it on one device, or -1 where that has all of it or it is not known */
  | "residual_per_device"
  /** bytes of it that are a dummy if a cond takes another branch */
  | "residual_dummy"
  /** index into KINDS */
  | "residual_kind"
  /** location, or -1 */
  | "residual_location"
  /** string: the named scopes it is made in, or empty */
  | "residual_scope"
  /** string: the path of the module it is made in, or empty */
  | "residual_module"
  /** string */
  | "residual_rule"
  /** string: why it is saved, in a sentence with `` in the place of each of its names */
  | "residual_reason"
  /** offsets into reason_names, one more than there are residuals */
  | "residual_names"
  /** string: a name in the sentence, such as that of a value, a primitive or an argument */
  | "reason_names"
  /** string: 'saved' or 'offloaded' */
  | "residual_decision"
  /** equation of the forward program that makes it, or -1 */
  | "residual_producer"
  /** buffer that holds it, or -1; several share one where one shows another in a new shape */
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
  /** first step at which it is there */
  | "buffer_born"
  /** last step at which it is there; the number of steps if it is there when all is done */
  | "buffer_last"
  /** equation that makes it, or -1 */
  | "buffer_row"
  /** string: the path of an argument, or what makes it */
  | "buffer_name"
  /** string, or empty */
  | "buffer_type"
  /** kept expression it is a value of, or -1 */
  | "residual_kept"
  /** string: the user's expression, with what it is assigned to */
  | "kept_label"
  /** location, or -1 */
  | "kept_location"
  /** bytes of its values, all evaluations together */
  | "kept_nbytes"
  /** how often it is evaluated, in layers, calls and iterations */
  | "kept_times"
  /** how many values it keeps each time */
  | "kept_values"
  /** string: why, in sentences */
  | "kept_reason"
  /** scope around it, or -1 */
  | "scope_parent"
  /** 1 in the backward pass */
  | "scope_backward"
  /** string, or empty */
  | "scope_name"
  /** index into SCOPES */
  | "scope_kind"
  /** how often it runs each time that the scope around it does */
  | "scope_count"
  /** location, or -1 */
  | "scope_location"
  /** FLOPs, all iterations together */
  | "scope_flops"
  /** equations that hold no program, each once */
  | "scope_equations"
  /** offsets into row_of_scope, one more than there are scopes */
  | "scope_rows"
  /** equation that is in it, and in no scope inside of it */
  | "row_of_scope"
  /** for each step how many equations that hold no program it runs, each once */
  | "step_equations";

/** One program of a derivation: its rows, or the error that stood in the way of it. */
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

/** A place where a recorded function chose a side by a value. */
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

/** What a gradient comes to, in words: what it keeps, what most of that is, and its peak; '' where that is not known or not known yet. */
export interface Headline {
  keeps: string;
  largest: string;
  peak: string;
}

/** All that the explorer shows, as plain data. */
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
  is_whole: boolean;
}
