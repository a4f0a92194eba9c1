/** The memory over time as areas, one for each kind, stacked. */

import type { Totals } from "../model/timeline";
import { svg } from "../ui/dom";

/** Where the areas are drawn. */
interface Plot {
  /** Where a column begins; that of the column after the last is where the areas end. */
  edge(column: number): number;
  y(bytes: number): number;
}

/**
 * The areas, the topmost first, so that lower ones are painted over it; none for a kind of which there are no bytes.
 * @param kinds the kinds of the totals, the longest-lived first.
 * @param steps the step that each column shows.
 */
export function stacked(
  kinds: readonly string[],
  totals: Totals,
  steps: Int32Array,
  plot: Plot,
  className = "jv-area",
): SVGElement[] {
  const levels = new Float64Array(steps.length);
  const [bottom, right] = [round(plot.y(0)), round(plot.edge(steps.length))];
  const areas = kinds.flatMap((kind, k) => {
    const bytes = totals.kinds[k]!;
    if (!steps.some((step) => bytes[step]! > 0)) return [];
    let d = `M${round(plot.edge(0))} ${bottom}`;
    let before = bottom;
    steps.forEach((step, c) => {
      levels[c]! += bytes[step]!;
      const y = round(plot.y(levels[c]!));
      if (y !== before) d += `H${round(plot.edge(c))}V${y}`;
      before = y;
    });
    return [svg("path", { class: `${className} jv-of-${kind}`, d: `${d}H${right}V${bottom}Z` })];
  });
  return areas.reverse();
}

export const round = (value: number) => Math.round(value * 100) / 100;
