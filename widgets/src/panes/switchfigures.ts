/** The figures of the current switches, in words. */

import { formatBytes, formatFlops } from "../base/format";
import type { Residual } from "../model/records";
import type { Switches } from "../model/switches";

/** `4.2 %` */
export function shareOf(n: number, work: number): string {
  const share = (100 * n) / work;
  return share < 0.05 ? "<0.1 %" : `${share.toFixed(1)} %`;
}

/**
 * The modelled peak, saved bytes and recomputed work, each with its value for the function as written, or empty if that is the current
 * setting.
 */
export function figuresOf(
  switches: Switches,
): Record<"kept" | "again" | "peak", [string, string]> & { moved: [string, string] | null } {
  const { work } = switches.table!;
  const before = switches.trade("");
  const now = switches.trade();
  const isSet = switches.chosen !== null;
  const figure = (i: 0 | 1 | 2 | 3, format: (n: number) => string): [string, string] => [
    now ? format(now[i]) : "…",
    isSet && before ? format(before[i]) : "",
  ];
  const share = now && work && now[2] ? ` (+${shareOf(now[2], work)})` : "";
  const [again, was] = figure(2, formatFlops);
  const moved = now?.[3] || (isSet && before?.[3]) ? figure(3, formatBytes) : null;
  return { peak: figure(0, formatBytes), kept: figure(1, formatBytes), again: [again + share, was], moved };
}

/** Why a residual cannot be saved or recomputed by a switch. */
export function withoutSwitch(r: Residual): string {
  return r.kind === "intermediate"
    ? `${r.name} has no switch here: it is in no checkpoint that is on, or it is recomputed from saved values`
    : `${r.name} has no switch: it is in memory anyway`;
}
