/** Programs for tests of the graph, written as lines such as `b = sin a`. */

import { Model } from "../src/model/model";
import { fromJson, HANDED, type Handed, ROLES, type Role, type View } from "../src/wire/schema";
import { json } from "./fixture";

export interface Equation {
  /** For example `b = sin a`, or `b c = scan[num_carry=1 num_consts=0] a`; numbers are literals. */
  text: string;
  scope?: string;
  line?: number;
  /** The columns of its expression on that line. */
  span?: [number, number];
  flops?: number;
  role?: string;
  /** Its nested programs. */
  inside?: Program[];
}

export interface Program {
  label?: string;
  inputs: string[];
  /** How each input gets its operand, if not unchanged: `carry`, or `each`. */
  handed?: Handed[];
  equations: Equation[];
  results: string[];
}

/** A model with one stage per program; every value is an f32 with `size(name)` elements, or a reference to one if its name begins with ref. */
export function modelOf(stages: Record<string, Program>, size: (name: string) => number = () => 4): Model {
  const strings: string[] = [""];
  const numbers = new Map([["", 0]]);
  const text = (s: string) => {
    let found = numbers.get(s);
    if (found === undefined) {
      found = strings.push(s) - 1;
      numbers.set(s, found);
    }
    return found;
  };
  const columns: Record<string, number[]> = Object.fromEntries(
    Object.entries(json.columns).map(([name]) => [name, []]),
  );
  const add = (name: string, ...values: number[]) => columns[name]!.push(...values);
  const types = new Map<string, number>();
  const type = (n: number, isReference = false) => {
    const written = isReference ? `Ref{f32[${n}]}` : `f32[${n}]`;
    let found = types.get(written);
    if (found === undefined) {
      found = types.size;
      types.set(written, found);
      add("type_text", text(written));
      add("type_nbytes", 4 * n);
      add("type_per_device", -1);
    }
    return found;
  };
  let variables = new Map<string, number>();
  const atom = (name: string): number => {
    if (/^[\d.]+$/.test(name)) {
      add("literal_text", text(name));
      add("literal_type", type(1));
      return ~(columns["literal_text"]!.length - 1);
    }
    let found = variables.get(name);
    if (found === undefined) {
      found = columns["variable_name"]!.length;
      variables.set(name, found);
      add("variable_name", text(name));
      add("variable_type", type(size(name), name.startsWith("ref")));
      add("variable_label", 0);
      add("variable_value", found);
      add("variable_kin", 0);
      add("variable_of", -1);
    }
    return found;
  };
  const binders: number[][] = [];
  const results: number[][] = [];
  const operands: number[] = [];
  const handed: number[] = [];
  const visit = (program: Program, stage: number, owner: number, skipped = 0, name = "") => {
    const number = binders.length;
    // Names are local to a program.
    const outer = variables;
    variables = new Map();
    add("program_stage", stage);
    add("program_owner", owner);
    add("program_label", text(program.label ?? ""));
    add("program_name", text(name));
    add("program_length", 0);
    add("program_consts", 0);
    binders.push(program.inputs.map(atom));
    results.push([]);
    operands.push(...program.inputs.map((_, i) => (owner < 0 ? -1 : skipped + i)));
    handed.push(
      ...program.inputs.map((_, i) => Math.max(0, HANDED.indexOf(program.handed?.[i] ?? "as it is"))),
    );
    for (const equation of program.equations) {
      const row = columns["equation_program"]!.length;
      const [left, right] = equation.text.split(" = ");
      const [, primitive, params, given] = /^(\w+)(?:\[([^\]]*)\])?\s*(.*)$/.exec(right!)!;
      const [file, line] = [0, equation.line ?? 0];
      add("equation_program", number);
      add("equation_primitive", text(primitive!));
      add("equation_group", text(primitive!));
      add("equation_params", text((params ?? "").replaceAll(" ", "\n")));
      add("equation_inputs", columns["input_atoms"]!.length);
      add("input_atoms", ...given!.split(" ").filter(Boolean).map(atom));
      add("equation_outputs", columns["output_vars"]!.length);
      add("output_vars", ...left!.split(" ").map(atom));
      add("equation_role", Math.max(0, ROLES.indexOf((equation.role ?? "primal") as Role)));
      for (const name of ["transform", "rule", "earlier", "decision"]) add(`equation_${name}`, 0);
      add("equation_scope", text(equation.scope ?? ""));
      add("equation_flops", equation.flops ?? 0);
      add("equation_origin", -1);
      add("equation_twin", -1);
      add("equation_location", line > 0 ? columns["location_line"]!.length : -1);
      if (line > 0) {
        add("location_file", file);
        add("location_line", line);
        add("location_function", 0);
        const [start, end] = equation.span ?? [0, 0];
        for (const name of ["start_line", "end_line"]) add(`location_${name}`, equation.span ? line : 0);
        add("location_start", start);
        add("location_end", end);
      }
      const n = given!.split(" ").filter(Boolean).length;
      const called = /name=(\S+)/.exec(params ?? "")?.[1];
      for (const inner of equation.inside ?? []) visit(inner, stage, row, n - inner.inputs.length, called);
    }
    results[number] = program.results.map(atom);
    variables = outer;
  };
  const infos = Object.entries(stages).map(([key, program], stage) => {
    const [p, e] = [binders.length, columns["equation_program"]!.length];
    visit(program, stage, -1);
    const q = columns["equation_program"]!.length;
    return {
      key,
      label: key,
      title: key,
      programs: [p, binders.length] as [number, number],
      equations: [e, q] as [number, number],
      error: "",
      is_path: false,
    };
  });
  const offsets = (name: string, values: string, lists: number[][]) => {
    columns[name] = [0];
    for (const list of lists) {
      columns[values]!.push(...list);
      columns[name].push(columns[values]!.length);
    }
  };
  offsets("program_binders", "binder_vars", binders);
  add("binder_operands", ...operands);
  add("binder_handed", ...handed);
  offsets("program_results", "result_atoms", results);
  add("equation_inputs", columns["input_atoms"]!.length);
  add("equation_outputs", columns["output_vars"]!.length);
  add("residual_consumers", 0);
  const view = { ...json, stages: infos, strings, columns };
  return new Model(fromJson(view as Omit<View, "columns"> & { columns: Record<string, number[]> }));
}

/** A chain of `n` layers, each with a norm in its own scope and some products. */
export function layers(n: number, scope: (i: number) => string = () => "loss/layer"): Program {
  const equations: Equation[] = [{ text: "x0 = gather table tokens", scope: "loss" }];
  for (let i = 0; i < n; i++) {
    const [x, y] = [`x${i}`, `x${i + 1}`];
    const norm = `${scope(i)}/norm`;
    equations.push(
      { text: `a${i} = reduce_sum ${x}`, scope: norm, line: 10 },
      { text: `b${i} = sub ${x} a${i}`, scope: norm, line: 11 },
      { text: `c${i} = rsqrt b${i}`, scope: norm, line: 12 },
      { text: `d${i} = dot_general c${i} w${i}`, scope: scope(i), line: 20, flops: 1000 },
      { text: `e${i} = tanh d${i}`, scope: scope(i), line: 21 },
      { text: `f${i} = dot_general e${i} v${i}`, scope: scope(i), line: 22, flops: 1000 },
      { text: `${y} = add ${x} f${i}`, scope: scope(i), line: 23 },
    );
  }
  equations.push({ text: `loss = reduce_sum x${n}`, scope: "loss" });
  const weights = Array.from({ length: n }, (_, i) => [`w${i}`, `v${i}`]).flat();
  return { inputs: ["table", "tokens", ...weights], equations, results: ["loss"] };
}

interface Used {
  user: number;
  system: number;
}

declare const process: { cpuUsage(since?: Used): Used };

/** The CPU time of an action in milliseconds; wall time would depend on what else runs. */
export function cost(action: () => void): number {
  const start = process.cpuUsage();
  action();
  const { user, system } = process.cpuUsage(start);
  return (user + system) / 1000;
}

/** The same, the best of three. */
export function bestOf(action: () => void): number {
  return Math.min(...[0, 1, 2].map(() => cost(action)));
}

export function random(seed: number): () => number {
  let a = seed;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
