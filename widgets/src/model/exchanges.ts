/** The compiled program's communication between devices, with the equations that need it. */

import { formatBytes } from "../base/format";
import type { Compiled } from "../wire/explorer.generated";
import type { Model } from "./model";

/** Converts pairs of stage and number to rows. */
export const rowsOfStages = (model: Model, stages: readonly [string, number][]): number[] =>
  stages.flatMap(([key, n]) => model.rowsOfStage(key).slice(0, n));

/** The equations that need each collective of the compiled program. */
export function exchangingRows(model: Model, { exchanges, stages }: Compiled): number[][] {
  if (exchanges === null) return [];
  const rowOf = rowsOfStages(model, stages);
  return exchanges.rows.map((row) => row[7].map((number) => rowOf[number]!));
}

/**
 * What devices exchange for each equation, including the equations it came from; null if nothing.
 * @param compiled the JSON text from Python. It is long, and parsed only if it contains exchanges.
 */
export function exchangesIn(model: Model, compiled: string): Map<number, readonly string[]> | null {
  if (compiled === "" || compiled.includes('"exchanges":null')) return null;
  const answer = JSON.parse(compiled) as Compiled;
  if (!answer.exchanges) return null;
  const exchanging = exchangingRows(model, answer);
  const found = new Map<number, Set<string>>();
  answer.exchanges.rows.forEach(([kind, over, sent, times, stage, , why], i) => {
    const often = times === "1" ? "" : ` in ${times}`;
    const text = `${kind} over ${over}, ${stage}: each device sends ${formatBytes(sent)}${often}; ${why}`;
    for (const row of exchanging[i]!.flatMap((each) => model.alike(each)))
      for (let r = row; r >= 0; r = model.origin(r)) found.set(r, (found.get(r) ?? new Set()).add(text));
  });
  return new Map([...found].map(([row, texts]) => [row, [...texts]]));
}

/** The collectives in the function itself, and those that types imply. */
export function ownExchanges(model: Model): Map<number, readonly string[]> {
  const found = new Map<number, readonly string[]>();
  for (const [row, exchanges] of model.axes) {
    const [v] = model.outputs(row);
    if (exchanges && v !== undefined)
      found.set(row, [
        `${model.primitive(row)}, ${model.params(row)[0]}, ${model.sizeText(v)}: a collective that your code calls here, or its transpose`,
      ]);
  }
  model.column("implied_rows").forEach((row, i) => {
    found.set(row, model.text("implied_texts", i).split("\n"));
  });
  return found;
}
