/** What the overview says of a saved expression and of a scope. */

import { formatCount, formatFlops, percent, plural } from "../base/format";
import type { Model } from "../model/model";
import type { Kept, Overview, Scope } from "../model/overview";

/** How many values, and where: `12 × 4 values · model.py:9`. */
export function aboutKept({ times, values, place }: Kept, model: Model): string {
  const n =
    times > 1 ? `${formatCount(times)} × ${plural(values, "value")}` : plural(times * values, "value");
  return `${n} · ${model.placeText(place)}`;
}

/** When its values are in memory. */
export function lifeOf({ label, reason }: Kept, alive: Float64Array): string {
  const first = alive.findIndex((b) => b > 0);
  const last = alive.length - 1 - [...alive].reverse().findIndex((b) => b > 0);
  const n = alive.length;
  if (first < 0) return `\`${label}\`: ${reason}`;
  const until = last === n - 1 ? "to the end" : `until step ${formatCount(last + 1)}`;
  return `In memory from step ${formatCount(first + 1)} ${until} of ${formatCount(n)}: ${reason}`;
}

export function aboutScope(scope: Scope, overview: Overview): string {
  const share = (100 * scope.flops) / Math.max(1, overview.sum("flops"));
  const pass = scope.isBackward ? "backward" : "forward";
  const flops = scope.flops > 0 ? `${formatFlops(scope.flops)}, ${percent(share)} of all` : "no FLOPs";
  const within = overview.scopes[scope.parent];
  const inside = within && within.count > 1 ? ` in each of ${formatCount(within.count)}` : "";
  const place = overview.model.placeText(scope.place);
  return `\`${overview.titleOf(scope)}\`${inside} · ${pass} · ${flops} · ${plural(scope.equations, "equation")} · ${place}`;
}
