/** A line of a program as DOM elements, with the colours of the code panes. */

import type { State } from "../state/state";
import { h } from "../ui/dom";
import type { Line } from "./listing";
import { hueClass } from "./variable";

export function lineParts(state: State, { text, tokens }: Line): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let at = 0;
  for (const { from, to, kind, variable, title } of tokens) {
    if (from > at) parts.push(text.slice(at, from));
    const hue = variable === undefined ? "" : hueClass(state, variable);
    parts.push(h("span", { class: `jv-${kind} ${hue}`, title }, text.slice(from, to)));
    at = to;
  }
  return [...parts, text.slice(at)];
}
