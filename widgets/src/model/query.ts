/** The search language: `dot_general size>1MiB line:12 scope:blocks_0 /scan/dot_general`. Rows have to match all terms. */

import { entry } from "../base/maps";
import type { Model } from "./model";

/** Whether a row matches a term. */
type Test = (row: number) => boolean;

export const SYNTAX =
  "primitive or variable name · size>1MiB · flops>1e6 · line:12 or line:12-20 · file:model.py · scope:blocks_0 · type:f32[ · " +
  "role:cotangent · param:axis · /scan/dot_general · -term excludes · * matches anything";

const UNITS: Record<string, number> = {
  "": 1,
  b: 1,
  k: 1e3,
  m: 1e6,
  g: 1e9,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40,
};

const COMPARE: Record<string, (a: number, b: number) => boolean> = {
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
  "=": (a, b) => a === b,
};

/** The rows in some ranges that match an expression, in order; throws an Error that explains what is wrong with it. */
export function search(
  model: Model,
  expression: string,
  ranges: readonly (readonly [number, number])[],
): number[] {
  const tests = terms(expression).map((term) => testOf(model, term));
  if (tests.length === 0) return [];
  const found: number[] = [];
  for (const [from, to] of ranges)
    for (let row = from; row < to; row++) if (tests.every((test) => test(row))) found.push(row);
  return found;
}

/** The terms of an expression; quoted text may contain spaces. */
function terms(expression: string): string[] {
  return (expression.match(/(?:[^\s"]+|"[^"]*"?)+/g) ?? []).map((t) => t.replaceAll('"', "")).filter(Boolean);
}

function testOf(model: Model, term: string): Test {
  if (term.startsWith("-") && term.length > 1) {
    const test = testOf(model, term.slice(1));
    return (row) => !test(row);
  }
  if (term.startsWith("/")) return pathTest(model, term);
  const compared = /^(size|flops)(>=|<=|>|<|=|:)(.+)$/i.exec(term);
  if (compared)
    return amountTest(model, compared[1]!.toLowerCase(), compared[2]!.replace(":", "="), compared[3]!);
  const [, key, value] = /^(line|file|scope|type|role|param|name):(.*)$/i.exec(term) ?? [];
  switch (key?.toLowerCase()) {
    case "line":
      return lineTest(model, value!);
    case "file":
      return textTest(
        model.column("equation_location"),
        (i) => (i < 0 ? "" : model.placeTitle(model.location(i))),
        value!,
      );
    case "scope":
      return textTest(model.column("equation_scope"), (i) => model.view.strings[i] ?? "", value!);
    case "param":
      return textTest(model.column("equation_params"), (i) => model.view.strings[i] ?? "", value!);
    case "role":
      return (row) => model.role(row).startsWith(value!.toLowerCase());
    case "type": {
      const is = remembered((type) =>
        matches(model.view.strings[model.column("type_text")[type]!] ?? "", value!),
      );
      const types = model.column("variable_type");
      return (row) => model.outputs(row).some((v) => is(types[v]!));
    }
    case "name":
      return nameTest(model, value!);
  }
  const place = /^([\w.-]+\.py):(\d+)$/.exec(term);
  if (place) {
    const [file, line] = [testOf(model, `file:${place[1]}`), lineTest(model, place[2]!)];
    return (row) => file(row) && line(row);
  }
  const primitive = textTest(model.column("equation_primitive"), (i) => model.view.strings[i] ?? "", term);
  const name = nameTest(model, term);
  return (row) => primitive(row) || name(row);
}

/** Matches a text that many rows share; cached. */
function textTest(column: ArrayLike<number>, text: (i: number) => string, value: string): Test {
  const is = remembered((i) => matches(text(i), value));
  return (row) => is(column[row]!);
}

function remembered(test: (i: number) => boolean): (i: number) => boolean {
  const known = new Map<number, boolean>();
  return (i) => entry(known, i, () => test(i));
}

/** Whether a text contains another one, where `*` matches anything; ignores case. */
function matches(text: string, value: string): boolean {
  if (!value.includes("*")) return text.toLowerCase().includes(value.toLowerCase());
  return glob(value).test(text);
}

function glob(value: string): RegExp {
  const parts = value.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join(".*")}$`, "i");
}

function nameTest(model: Model, name: string): Test {
  const names = model.column("variable_name");
  const wanted = model.view.strings.indexOf(name);
  if (wanted < 0) return () => false;
  const [offsets, outputs] = [model.column("equation_outputs"), model.column("output_vars")];
  return (row) => {
    for (let i = offsets[row]!; i < offsets[row + 1]!; i++) if (names[outputs[i]!] === wanted) return true;
    return false;
  };
}

function lineTest(model: Model, value: string): Test {
  const [, from, to] = /^(\d+)(?:-(\d+))?$/.exec(value) ?? [];
  if (from === undefined) throw new Error(`line:${value} is not a line; write line:12 or line:12-20`);
  const [first, last] = [Number(from), Number(to ?? from)];
  const lines = model.column("location_line");
  const places = model.column("equation_location");
  return (row) => places[row]! >= 0 && lines[places[row]!]! >= first && lines[places[row]!]! <= last;
}

function amountTest(model: Model, what: string, operator: string, value: string): Test {
  const [, digits, unit] = /^([\d.]+(?:e\d+)?)\s*([a-z]*)$/i.exec(value) ?? [];
  const factor = unit === undefined ? undefined : UNITS[unit.toLowerCase().replace(/flops?$/, "")];
  if (digits === undefined || factor === undefined || Number.isNaN(Number(digits)))
    throw new Error(
      `${value} is not an amount; write, for example, ${what}>${what === "size" ? "1MiB" : "1e6"}`,
    );
  const amount = Number(digits) * factor;
  const is = COMPARE[operator]!;
  const of = what === "size" ? (row: number) => sizeOf(model, row) : (row: number) => model.flops(row);
  return (row) => is(of(row), amount);
}

/** The bytes of an equation's outputs. */
export function sizeOf(model: Model, row: number): number {
  const offsets = model.column("equation_outputs");
  const outputs = model.column("output_vars");
  const types = model.column("variable_type");
  const bytes = model.column("type_nbytes");
  let total = 0;
  for (let i = offsets[row]!; i < offsets[row + 1]!; i++) total += bytes[types[outputs[i]!]!]!;
  return total;
}

/** `/scan/dot_general`: an equation, after the equations, functions and scopes that contain it, outermost first; levels may be left out. */
function pathTest(model: Model, term: string): Test {
  const parts = term.split("/").filter(Boolean);
  const last = parts.pop();
  if (last === undefined) return () => true;
  const is = textTest(model.column("equation_primitive"), (i) => model.view.strings[i] ?? "", last);
  const isPart = parts.map((part) => (part.includes("*") ? glob(part) : null));
  const around = new Map<number, number>();
  const step = (from: number, name: string): number => {
    const part = parts[from];
    if (part === undefined) return from;
    return (isPart[from] ? isPart[from].test(name) : name.toLowerCase() === part.toLowerCase())
      ? from + 1
      : from;
  };
  /** How many parts of the path are matched by a row's scopes, after those that its enclosing equations match. */
  const scopes = (row: number): number => {
    let n = holders(model.owner(row));
    for (const name of model.scope(row).split("/")) n = step(n, name);
    return n;
  };
  const holders = (owner: number): number => {
    if (owner < 0) return 0;
    return entry(around, owner, () => step(step(scopes(owner), model.primitive(owner)), model.called(owner)));
  };
  return (row) => is(row) && scopes(row) >= parts.length;
}
