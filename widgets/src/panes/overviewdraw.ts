/** The curves of the overview: the memory by kind, and of one saved expression. */

import { mostIn, stepsOfColumns } from "../model/overview";
import type { Totals } from "../model/timeline";
import { svg } from "../ui/dom";
import { STACKED } from "../wire/schema";

export type Columns = ReturnType<typeof stepsOfColumns>;

/** Columns of one pixel each. */
export function columnsFor(edges: Float64Array, width: number): Columns {
  return stepsOfColumns(edges, Math.max(1, Math.floor(width)));
}

/** A saved expression as a band around a line, as thick as its bytes in memory; `most` bytes have the full height. */
export function band(alive: Float64Array, columns: Columns, height: number, most: number): SVGElement {
  const bytes = mostIn(alive, columns);
  const middle = height / 2;
  const above: string[] = [];
  const below: string[] = [];
  let from = 0;
  for (let x = 1; x <= bytes.length; x++) {
    if (x < bytes.length && bytes[x] === bytes[from]) continue;
    const half = bytes[from]! > 0 ? Math.max(1, (middle * bytes[from]!) / most) : 0;
    above.push(`${from},${round(middle - half)} ${x},${round(middle - half)}`);
    below.push(`${x},${round(middle + half)} ${from},${round(middle + half)}`);
    from = x;
  }
  return svg("polygon", { class: "jv-band", points: [...above, ...below.reverse()].join(" ") });
}

/** Memory by kind, the longest-lived at the bottom. */
export function areas(totals: Totals, columns: Columns, height: number, most: number): SVGElement[] {
  const n = columns.first.length;
  // In a column with several steps, take the one with the most bytes.
  const steps = Int32Array.from(columns.first, (from, c) => {
    let best = from;
    for (let i = from + 1; i <= columns.last[c]!; i++) if (totals.total[i]! > totals.total[best]!) best = i;
    return best;
  });
  const levels = new Float64Array(n);
  return STACKED.flatMap((kind, k) => {
    const bytes = totals.kinds[k]!;
    let any = false;
    for (let c = 0; c < n; c++) {
      levels[c]! += bytes[steps[c]!]!;
      any ||= bytes[steps[c]!]! > 0;
    }
    if (!any) return [];
    let d = `M0 ${height}`;
    let before = -1;
    for (let c = 0; c < n; c++) {
      const y = round(height - (height * levels[c]!) / most);
      if (y !== before) d += `H${c}V${y}`;
      before = y;
    }
    return [svg("path", { class: `jv-area jv-of-${kind}`, d: `${d}H${n}V${height}Z` })];
  }).reverse();
}

const round = (value: number) => Math.round(value * 10) / 10;
