/** Searches source, equations, values and scopes. */

import { formatBytes, plural } from "../base/format";
import { entry } from "../base/maps";
import type { FoundValue } from "../wire/explorer.generated";
import type { ColumnName } from "../wire/schema";
import { grouped, push, sumOf } from "./groups";
import type { Model } from "./model";
import { search, sizeOf } from "./query";
import { rowsOf, wordsOf } from "./question";
import { PASSES } from "./roles";

export type KindFound = "addresses" | "source" | "equations" | "values" | "scopes";

/** A result: its name, a description, and what it refers to. */
export interface Found {
  title: string;
  about: string;
  line?: { file: number; line: number };
  /** Its equations; or the variable, if no equation computes it. */
  rows?: readonly number[];
  variable?: number;
  residuals?: readonly number[];
  /** The equations that compute a value, in all stages. */
  copies?: readonly number[];
}

export type AllFound = Readonly<Record<KindFound, readonly Found[]>>;

/**
 * The results for a text. Conditions on equations are written as in the graph's search; throws an Error that explains what is wrong with
 * them, unless the text is an address.
 * @param meant what the text means as an address.
 */
export function find(model: Model, text: string, meant: readonly FoundValue[] = []): AllFound {
  const words = wordsOf(text);
  const addresses = meant
    .map((value) => ({ title: value[0], about: value[1], copies: rowsOf(model, value) }))
    .filter(({ copies }) => copies.length > 0);
  if (words === "") return { addresses, source: [], equations: [], values: [], scopes: [] };
  return {
    addresses,
    source: lines(model, words.toLowerCase()),
    equations: conditions(model, words, addresses.length > 0),
    values: [...kept(model, words.toLowerCase()), ...variables(model, words)],
    scopes: scopes(model, words.toLowerCase()),
  };
}

/** Equations by conditions; an address such as `line:41` may look like one. */
function conditions(model: Model, words: string, isAddress: boolean): Found[] {
  try {
    return equations(model, words);
  } catch (error) {
    if (isAddress) return [];
    throw error;
  }
}

function lines(model: Model, words: string): Found[] {
  return model.view.files.flatMap(({ excerpts, label }, file) =>
    excerpts.flatMap(({ first, lines }) =>
      lines.flatMap((text, i) =>
        text.toLowerCase().replace(/\s+/g, " ").includes(words)
          ? [{ title: text.trim(), about: `${label}:${first + i}`, line: { file, line: first + i } }]
          : [],
      ),
    ),
  );
}

/** Equations, where those of one expression in repeated layers are one result. */
function equations(model: Model, words: string): Found[] {
  const { stages } = model.view;
  const rows = search(
    model,
    words,
    stages.map((stage) => stage.equations),
  );
  const same = grouped(rows, (row) =>
    [model.stage(row), model.group(row), model.primitive(row), model.role(row)].join(),
  );
  return same.map((rows) => {
    const [first] = rows as [number];
    const times = rows.length > 1 ? `${plural(rows.length, "equation")}` : "";
    const parts = [stages[model.stage(first)]!.label, times, model.placeText(model.place(first))];
    return { title: model.summary(first), about: parts.filter(Boolean).join(" · "), rows };
  });
}

/** Residuals by name, where those of one expression are one result. */
function kept(model: Model, words: string): Found[] {
  const called = model.residuals.filter(
    (r) => r.name.toLowerCase() === words || r.label.toLowerCase().includes(words),
  );
  return grouped(called, (r) => r.group).map((same) => {
    const size = formatBytes(sumOf(same, (r) => r.nbytes));
    return {
      title: same.length > 1 ? model.groups[same[0]!.group]!.label : same[0]!.label || same[0]!.name,
      about: ["saved", size, model.placeText(same[0]!.place)].filter(Boolean).join(" · "),
      residuals: same.map((r) => r.index),
    };
  });
}

/** Variables by name, and inputs and cotangents by label; labels that differ only in numbers are one result. */
function variables(model: Model, words: string): Found[] {
  const { strings, stages } = model.view;
  const wanted = strings.indexOf(words);
  const called = strings.map(
    (text) => !text.startsWith("residual ") && text.toLowerCase().includes(words.toLowerCase()),
  );
  const [names, labels] = [model.column("variable_name"), model.column("variable_label")];
  const together = model.column("variable_labels");
  const stageOf = (v: number) => {
    const row = model.definition(v);
    const program = row < 0 ? model.boundBy(v) : model.program(row);
    return program < 0 ? -1 : model.column("program_stage")[program]!;
  };
  const found: { v: number; stage: number; label: string }[] = [];
  for (let v = 0; v < names.length; v++) {
    const isNamed = wanted > 0 && names[v] === wanted;
    if (!isNamed && !(labels[v]! > 0 && called[labels[v]!])) continue;
    const stage = stageOf(v);
    if (stage >= 0) found.push({ v, stage, label: strings[labels[v]!]! });
  }
  const same = grouped(found, ({ v, stage }) => `${stage} ${together[v]! > 0 ? strings[together[v]!] : v}`);
  return same.map((each) => {
    const { v, stage, label } = each[0]!;
    const { name, type } = model.variable(v);
    const row = model.definition(v);
    const of = row < 0 ? "" : model.placeText(model.place(row));
    const typed = label === "" ? "" : `${name}:${type}`;
    return {
      title: (each.length > 1 ? strings[together[v]!]! : label) || `${name}:${type}`,
      about: [stages[stage]!.label, typed, of].filter(Boolean).join(" · "),
      variable: v,
    };
  });
}

/** Functions, modules and named scopes by name, with their equations in both passes. */
function scopes(model: Model, words: string): Found[] {
  const { strings } = model.view;
  const hasPasses = model.stageNamed("backward") >= 0;
  const column = model.column("equation_scope");
  const namesOf = new Map<number, string[]>();
  const rows = new Map<string, number[]>();
  for (let row = 0; row < model.rows; row++) {
    const path = column[row]!;
    const names = entry(namesOf, path, () => {
      const parts = new Set(strings[path]!.split("/").filter(Boolean));
      return [...parts].filter((part) => part.toLowerCase().includes(words));
    });
    if (names.length > 0 && (!hasPasses || PASSES.includes(model.stageKey(row))))
      for (const name of names) push(rows, name, row);
  }
  return [...rows].map(([title, inside]) => ({
    title,
    about: plural(inside.length, "equation"),
    rows: inside,
  }));
}

/** What a condition can be about, and the words after it. */
const CONDITIONS = ["size>", "flops>", "line:", "file:", "scope:", "type:", "role:", "param:"];

/** Searches that find something: what a text may go on with, or, for an empty text, some with the conditions that there are. */
export function suggested(model: Model, text: string): string[] {
  const before = text.replace(/\S*$/, "");
  const last = text.slice(before.length).toLowerCase();
  // Many equations share few texts.
  const texts = (name: ColumnName) => [...new Set(model.column(name))].map((i) => model.view.strings[i]!);
  const scopes = () => new Set(texts("equation_scope").flatMap((path) => path.split("/").filter(Boolean)));
  const primitives = () => new Set(texts("equation_primitive"));
  if (text.trim() === "") {
    const rows = Array.from({ length: model.rows }, (_, row) => row);
    const largest = rows.reduce((most, row) => (sizeOf(model, row) > sizeOf(model, most) ? row : most), 0);
    const costliest = rows.reduce((most, row) => (model.flops(row) > model.flops(most) ? row : most), 0);
    const unit = ["1MiB", "1KiB", "1B"].find((_, i) => sizeOf(model, largest) > 1024 ** (2 - i));
    const [scope] = scopes();
    const work = model.rows > 0 && model.flops(costliest) > 0 ? model.primitive(costliest) : "";
    const line = model.lines.largest.split(":")[1];
    return [work, unit && `size>${unit}`, scope && `scope:${scope}`, line && `line:${line}`].filter(
      (each): each is string => Boolean(each),
    );
  }
  if (last === "") return [];
  const words = [...CONDITIONS, ...primitives(), ...[...scopes()].map((name) => `scope:${name}`)];
  const goesOn = (word: string) => word.toLowerCase().startsWith(last) && word.length > last.length;
  return words
    .filter(goesOn)
    .slice(0, 4)
    .map((word) => before + word);
}
