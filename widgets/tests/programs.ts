/** Views written as text, in the notation of the listings: real programs, with the origins of their equations. */

import { Model } from "../src/model/model";
import { type Column, type ColumnName, ROLES, type Role, type View } from "../src/wire/schema";

const OFFSETS = {
  program_binders: "binder_vars",
  program_results: "result_atoms",
  equation_inputs: "input_atoms",
  equation_outputs: "output_vars",
  residual_consumers: "consumer_rows",
  residual_names: "reason_names",
} as const;

const OTHERS = [
  "axis_rows axis_exchanges implied_rows implied_texts layout_rows layout_texts donation_rows donation_operands donation_results",
  "donation_reasons literal_text literal_type residual_name residual_label residual_group residual_type residual_nbytes residual_per_device",
  "residual_dummy residual_kind residual_location residual_scope residual_module residual_rule residual_reason residual_outlier",
  "group_label group_why residual_kept",
  "others_value others_of others_kin residual_decision residual_producer residual_buffer location_file location_line location_function",
  "location_start_line location_start location_end_line location_end",
].flatMap((names) => names.split(" "));

/**
 * A model of stages, each a key and its lines: `in a:v b:m` and `out c` around a program, `c:v = sin a <- 0 primal, a rule` for an
 * equation, and around its nested program, `{ jaxpr a:v` and `} c`.
 */
export function modelOf(stages: [key: string, text: string][]): Model {
  const columns: Record<string, number[]> = {};
  const column = (name: string) => (columns[name] ??= []);
  const strings = [""];
  const numbers = new Map([["", 0]]);
  const string = (text: string) => {
    const known = numbers.get(text) ?? strings.push(text) - 1;
    numbers.set(text, known);
    return known;
  };
  const lists: Record<string, number[][]> = {};
  const list = (name: keyof typeof OFFSETS) => (lists[name] ??= []);
  const found: View["stages"] = [];
  stages.forEach(([key, text], stage) => {
    const from = [list("program_results").length, column("equation_program").length] as const;
    const open: number[] = [];
    let scope = new Map<string, number>();
    const scopes: Map<string, number>[] = [];
    const define = (typed: string) => {
      const [name = "", type = ""] = typed.split(":");
      scope.set(name, column("variable_name").push(string(name)) - 1);
      if (!column("type_text").includes(string(type))) column("type_text").push(string(type));
      column("variable_type").push(column("type_text").indexOf(string(type)));
      column("variable_label").push(0);
      column("variable_labels").push(0);
      return scope.get(name)!;
    };
    const atom = (name: string) => {
      const v = scope.get(name);
      if (v !== undefined) return v;
      column("literal_type").push(0);
      return ~(column("literal_text").push(string(name)) - 1);
    };
    for (const line of text
      .trim()
      .split("\n")
      .map((l) => l.trim())) {
      const words = line.split(/\s+/);
      if (words[0] === "in" || words[0] === "{") {
        const isTop = words[0] === "in";
        column("program_owner").push(isTop ? -1 : column("equation_program").length - 1);
        column("program_label").push(isTop ? 0 : string(words[1]!));
        column("program_stage").push(stage);
        for (const name of ["program_name", "program_length", "program_consts"]) column(name).push(0);
        scopes.push(scope);
        scope = new Map();
        open.push(list("program_binders").push(words.slice(isTop ? 1 : 2).map(define)) - 1);
        list("program_results").push([]);
      } else if (words[0] === "out" || words[0] === "}") {
        list("program_results")[open.pop()!] = words.slice(1).map(atom);
        scope = scopes.pop()!;
      } else {
        const [equation = "", made = ""] = line.split("<-").map((part) => part.trim());
        const [left = "", right = ""] = equation.split(" = ");
        const [primitive = "", ...inputs] = right.trim().split(/\s+/);
        const [, origin = "-1", role = "primal", rule = ""] = /^(-?\d+) (\w+),? ?(.*)$/.exec(made) ?? [];
        column("equation_program").push(open.at(-1)!);
        column("equation_primitive").push(string(primitive));
        column("equation_group").push(string(primitive));
        list("equation_inputs").push(inputs.map(atom));
        list("equation_outputs").push(left.trim().split(/\s+/).map(define));
        column("equation_role").push(ROLES.indexOf(role as Role));
        column("equation_rule").push(string(rule));
        column("equation_origin").push(Number(origin));
        for (const name of ["equation_params", "equation_transform", "equation_earlier", "equation_decision"])
          column(name).push(0);
        for (const name of ["equation_location", "equation_twin"]) column(name).push(-1);
      }
    }
    const to = [list("program_results").length, column("equation_program").length] as const;
    found.push({
      key,
      label: key === "primal" ? "f" : key,
      title: "",
      programs: [from[0], to[0]],
      equations: [from[1], to[1]],
      error: "",
      is_path: false,
    });
  });
  for (const [offsets, values] of Object.entries(OFFSETS)) {
    const all = lists[offsets] ?? [];
    let sum = 0;
    columns[offsets] = [0, ...all.map((items) => (sum += items.length))];
    columns[values] = all.flat();
  }
  for (const name of ["type_nbytes", "type_per_device"]) columns[name] = column("type_text").map(() => -1);
  for (const name of OTHERS) column(name);
  // As in the transforms: the results of a copied equation are the same values as the original's.
  const values = column("variable_name").map((_, v) => v);
  const outputs = list("equation_outputs");
  column("equation_origin").forEach((origin, row) => {
    const isPrimal = column("equation_role")[row] === ROLES.indexOf("primal");
    const isCopy =
      origin >= 0 && isPrimal && column("equation_primitive")[row] === column("equation_primitive")[origin];
    if (isCopy)
      outputs[row]!.forEach((v, i) => {
        values[v] = values[outputs[origin]![i]!] ?? v;
      });
  });
  columns["variable_value"] = values;
  for (const name of ["variable_kin", "binder_handed"]) columns[name] = column("variable_name").map(() => 0);
  for (const name of ["variable_of", "binder_operands"])
    columns[name] = column("variable_name").map(() => -1);
  return new Model({
    title: "f",
    stages: found,
    files: [],
    branches: [],
    check: null,
    notes: [],
    devices: [],
    placement: "",
    no_memory: "",
    n_devices: 1,
    headline: { keeps: "", largest: "", peak: "", saves: "" },
    has_groups: true,
    has_memory: true,
    is_whole: true,
    strings,
    columns: Object.fromEntries(Object.entries(columns).map(([k, v]) => [k, Int32Array.from(v)])) as Record<
      string,
      Column
    > as Record<ColumnName, Column>,
  });
}

/** `sum(sin(x) * cos(x @ w))`. */
export const SIN_COS = (): Model =>
  modelOf([
    [
      "primal",
      `in a:v b:m
       c:v = sin a
       d:v = dot a b
       e:v = cos d
       f:v = mul c e
       g:s = sum f
       out g`,
    ],
    [
      "jvp",
      `in a:v b:m c:v
       d:v = sin a <- 0 primal, jvp rule of sin
       e:v = cos a <- 0 tangent, jvp rule of sin
       f:v = mul c e <- 0 tangent, jvp rule of sin
       g:v = dot a b <- 1 primal, jvp rule of dot
       h:v = dot c b <- 1 tangent, jvp rule of dot
       i:v = cos g <- 2 primal, jvp rule of cos
       j:v = sin g <- 2 tangent, jvp rule of cos
       k:v = mul h j <- 2 tangent, jvp rule of cos
       l:v = neg k <- 2 tangent, jvp rule of cos
       m:v = mul d i <- 3 primal, jvp rule of mul
       n:v = mul f i <- 3 tangent, jvp rule of mul
       o:v = mul d l <- 3 tangent, jvp rule of mul
       p:v = add_any n o <- 3 tangent, jvp rule of mul
       q:s = sum m <- 4 primal, jvp rule of sum
       r:s = sum p <- 4 tangent, jvp rule of sum
       out q r`,
    ],
    [
      "forward",
      `in a:v b:m
       c:v = sin a <- 0 primal, jvp rule of sin
       d:v = cos a <- 0 residual, jvp rule of sin
       e:v = dot a b <- 1 primal, jvp rule of dot
       f:v = cos e <- 2 primal, jvp rule of cos
       g:v = sin e <- 2 residual, jvp rule of cos
       h:v = mul c f <- 3 primal, jvp rule of mul
       i:s = sum h <- 4 primal, jvp rule of sum
       out i d b g f c`,
    ],
    [
      "linear",
      `in d:v b:m g:v f:v c:v a:v
       e:v = mul a d <- 0 tangent, jvp rule of sin
       h:v = dot a b <- 1 tangent, jvp rule of dot
       i:v = mul h g <- 2 tangent, jvp rule of cos
       j:v = neg i <- 2 tangent, jvp rule of cos
       k:v = mul e f <- 3 tangent, jvp rule of mul
       l:v = mul c j <- 3 tangent, jvp rule of mul
       m:v = add_any k l <- 3 tangent, jvp rule of mul
       n:s = sum m <- 4 tangent, jvp rule of sum
       out n`,
    ],
    [
      "backward",
      `in d:v b:m g:v f:v c:v a:s
       e:v = broadcast a <- 34 cotangent, transpose rule of sum
       h:v = mul c e <- 32 cotangent, transpose rule of mul
       i:v = mul e f <- 31 cotangent, transpose rule of mul
       j:v = neg h <- 30 cotangent, transpose rule of neg
       k:v = mul j g <- 29 cotangent, transpose rule of mul
       l:v = dot k b <- 28 cotangent, transpose rule of dot
       m:v = mul i d <- 27 cotangent, transpose rule of mul
       n:v = add_any l m <- 27 accumulation, sum of cotangents
       out n`,
    ],
  ]);

/** A scan of `tanh(c @ w + t)`, with its carry and outputs summed. */
export const SCAN = (): Model =>
  modelOf([
    [
      "primal",
      `in a:v b:m
       c:vs = broadcast 1.0
       d:v e:ss = scan b a c
         { jaxpr f:m g:v h:v
         i:v = dot g f
         j:v = add i h
         k:v = tanh j
         l:s = sum k
         } k l
       m:s = sum e
       n:s = sum d
       o:s = add m n
       out o`,
    ],
    [
      "forward",
      `in a:v b:m
       c:vs = broadcast 1.0 <- 0 primal, known: no tangent reaches it
       d:v e:ss f:vs g:vs = scan b a c <- 1 primal, linearize of a scan
         { jaxpr h:m i:v j:v
         k:v = dot i h <- 2 primal, jvp rule of dot
         l:v = add k j <- 3 primal, jvp rule of add
         m:v = tanh l <- 4 primal, jvp rule of tanh
         n:v = sub 1.0 m <- 4 residual, jvp rule of tanh
         o:s = sum m <- 5 primal, jvp rule of sum
         } m o m n
       p:s = sum e <- 6 primal, jvp rule of sum
       q:s = sum d <- 7 primal, jvp rule of sum
       r:s = add p q <- 8 primal, jvp rule of add
       out r b f g`,
    ],
    [
      "linear",
      `in b:m f:vs g:vs a:v
       c:v d:ss = scan b a f g <- 1 tangent, linearize of a scan
         { jaxpr e:m h:v i:v j:v
         k:v = dot h e <- 2 tangent, jvp rule of dot
         l:v = mul k i <- 4 tangent, jvp rule of tanh
         m:v = add k l <- 4 tangent, jvp rule of tanh
         n:v = mul m j <- 4 tangent, jvp rule of tanh
         o:s = sum n <- 5 tangent, jvp rule of sum
         } n o
       p:s = sum d <- 6 tangent, jvp rule of sum
       q:s = sum c <- 7 tangent, jvp rule of sum
       r:s = add p q <- 8 tangent, jvp rule of add
       out r`,
    ],
    [
      "backward",
      `in b:m f:vs g:vs a:s
       c:v = broadcast a <- 26 cotangent, transpose rule of sum
       d:ss = broadcast a <- 25 cotangent, transpose rule of sum
       z:v = broadcast 0.0 <- -1 zero
       e:v = scan b c d f g z <- 19 cotangent, transpose of a scan
         { jaxpr h:m i:v j:s k:v l:v w:v
         m:v = broadcast j <- 24 cotangent, transpose rule of sum
         n:v = add_any i m <- 24 accumulation, sum of cotangents
         o:v = mul n l <- 23 cotangent, transpose rule of mul
         p:v = mul o k <- 21 cotangent, transpose rule of mul
         q:v = add_any o p <- 21 accumulation, sum of cotangents
         r:v = dot q h <- 20 cotangent, transpose rule of dot
         } r
       out e`,
    ],
  ]);

/** A checkpointed `sin(sin(x))`: its backward equations derive from the function through a JVP that is not shown. */
export const CHECKPOINT = (): Model =>
  modelOf([
    [
      "primal",
      `in a:v
       b:v = remat2 a
         { jaxpr c:v
         d:v = sin c
         e:v = tanh d
         } e
       out b`,
    ],
    ["forward", "in a:v\n c:v = sin a <- 1 primal\n d:v = tanh c <- 2 primal\n out d a"],
    [
      "linear",
      `in a:v b:v
       c:v = remat2 a b <- 0 tangent, jvp of a checkpointed function
         { jaxpr d:v e:v
         f:v = cos d <- 1 recomputation, recomputed in the backward pass
         g:v = mul e f <- 1 tangent, jvp rule of sin
         h:v = mul g d <- 2 tangent, jvp rule of tanh
         i:v = mul h d <- 2 tangent, jvp rule of tanh
         } i
       out c`,
    ],
    [
      "backward",
      `in a:v b:v
       c:v = remat2 a b <- 5 cotangent, transpose of a checkpointed function
         { jaxpr d:v e:v
         f:v = cos d <- 6 recomputation, recomputed in the backward pass
         g:v = mul e d <- 2 cotangent, transpose rule of mul
         h:v = mul g d <- 2 cotangent, transpose rule of mul
         i:v = mul h f <- 1 cotangent, transpose rule of mul
         } i
       out c`,
    ],
  ]);
