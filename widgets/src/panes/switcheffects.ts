/** What a switch would change, in words and in the cells of its row. */

import { formatBytes, formatFlops } from "../base/format";
import { h } from "../ui/dom";
import type { TriedTrade } from "../wire/explorer.generated";
import { shareOf } from "./switchfigures";

/** `42.2 → 20.9 MiB`; the unit is said once if both have it. */
export function fromTo(before: number, after: number): [before: string, after: string] {
  const [a, b] = [formatBytes(before), formatBytes(after)];
  const [unit] = b.split(" ").slice(-1);
  return [a.endsWith(` ${unit}`) ? a.slice(0, -unit!.length - 1) : a, b];
}

/** `1.3 % more`, `no more` */
export function moreWork(flops: number, work: number): string {
  if (flops === 0) return "no more";
  const n = Math.abs(flops);
  return `${work > 0 ? shareOf(n, work) : formatFlops(n)} ${flops < 0 ? "less" : "more"}`;
}

/** `if switched on: peak 64.6 → 32.1 MiB, saved 39.0 → 6.6 MiB, 1.3 % more work (16.7 MFLOP)` */
export function effectOf(lead: string, now: TriedTrade, next: TriedTrade, work: number): string {
  const change = (i: 0 | 1) =>
    now[i] === next[i] ? `${formatBytes(now[i])} as now` : fromTo(now[i], next[i]).join(" → ");
  const flops = next[2] - now[2];
  const exact = flops !== 0 && work > 0 ? ` (${formatFlops(Math.abs(flops))})` : "";
  return `${lead}: peak ${change(0)}, saved ${change(1)}, ${moreWork(flops, work)} work${exact}`;
}

/** The columns of an effect: class, heading, and the place of the figure. */
const COLUMNS = [
  ["peak", "peak", 0],
  ["kept", "saved", 1],
] as const;

/**
 * The cells of the peak, the saved bytes and the work. They have their place before the figures are known, so that nothing moves when they
 * come.
 * @param lead when it would be so, such as `if switched on`.
 * @param next the figures with the switch flipped; or what is said instead: why there are none, or that they are being computed.
 * @param most the peak that fills the bar.
 */
export function effectCells(
  lead: string,
  now: TriedTrade | null,
  next: TriedTrade | { said: string; title: string },
  work: number,
  most: number,
): HTMLElement[] {
  const isKnown = now !== null && Array.isArray(next);
  const title = isKnown ? effectOf(lead, now, next, work) : "title" in next ? next.title : "";
  const said = "said" in next ? next.said : "…";
  const sign = (n: number) => (n < 0 ? "jv-less" : n > 0 ? "jv-more" : "jv-dim");
  const cell = (name: string, head: string, ...parts: (Node | string)[]) =>
    h("td", { class: `jv-col-${name}`, title, "data-head": head }, ...parts);
  const bytes = COLUMNS.map(([name, head, i]) => {
    const [before, after] = isKnown ? fromTo(now[i], next[i]) : ["", ""];
    const isSame = isKnown && now[i] === next[i];
    const figure = h(
      "span.jv-effect",
      isKnown && !isSame && h("span.jv-dim", `${before} → `),
      isKnown
        ? h("strong", { class: sign(next[i] - now[i]) }, isSame ? "as now" : after)
        : h("span.jv-dim", said),
    );
    if (name !== "peak") return cell(name, head, figure);
    const share = isKnown && most > 0 ? Math.min(100, (100 * next[0]) / most) : 0;
    const bar = h("span.jv-effect-bar", { style: `--share: ${share.toFixed(1)}%` });
    return cell(name, head, h("span.jv-lead.jv-dim", `${lead}: `), bar, figure);
  });
  const flops = isKnown ? next[2] - now[2] : 0;
  const more = h("span", { class: sign(flops) }, isKnown ? moreWork(flops, work) : said);
  return [...bytes, cell("work", "work", more)];
}
