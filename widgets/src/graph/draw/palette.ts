/** The colours of the drawing: the stylesheet's, and viridis for quantities. */

import { HUES } from "../../model/hues";

export interface Palette {
  background: string;
  head: string;
  text: string;
  dim: string;
  line: string;
  accent: string;
  selected: string;
  ancestor: string;
  descendant: string;
  related: string;
  hit: string;
  axis: string;
  roles: Record<string, string>;
  /** Of values. */
  hues: readonly string[];
  mono: string;
  sans: string;
}

const ROLES = ["primal", "tangent", "residual", "cotangent", "accumulation"];

/** Reads the CSS variables at an element, since a canvas cannot use them. */
export function readPalette(element: HTMLElement): Palette {
  const probe = document.createElement("span");
  probe.hidden = true;
  element.append(probe);
  const read = (name: string) => {
    probe.style.color = `var(--jv-${name})`;
    return getComputedStyle(probe).color || "#888";
  };
  const roles = Object.fromEntries(ROLES.map((role) => [role, read(role)]));
  const palette = {
    background: read("bg"),
    head: read("bg-head"),
    text: read("text"),
    dim: read("dim"),
    line: read("line"),
    accent: read("accent"),
    selected: read("selected"),
    ancestor: read("ancestor"),
    descendant: read("descendant"),
    related: read("related"),
    hit: read("residual"),
    axis: read("axis"),
    roles: { ...roles, recomputation: roles["residual"]!, zero: roles["primal"]!, dummy: roles["primal"]! },
    hues: Array.from({ length: HUES }, (_, hue) => read(`hue-${hue}`)),
    mono: getComputedStyle(element).getPropertyValue("--jv-mono") || "monospace",
    sans: getComputedStyle(element).fontFamily || "sans-serif",
  };
  probe.remove();
  return palette;
}

const VIRIDIS = [
  [68, 1, 84],
  [71, 44, 122],
  [59, 81, 139],
  [44, 113, 142],
  [33, 144, 141],
  [39, 173, 129],
  [92, 200, 99],
  [170, 220, 50],
  [253, 231, 37],
] as const;

/** The colour of viridis at a number between 0 and 1. */
export function viridis(share: number): string {
  const at = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const i = Math.min(VIRIDIS.length - 2, Math.floor(at));
  const [a, b] = [VIRIDIS[i]!, VIRIDIS[i + 1]!];
  const mixed = a.map((c, k) => Math.round(c + (b[k]! - c) * (at - i)));
  return `rgb(${mixed.join()})`;
}

/** Black or white, whichever has more contrast with a colour of viridis. */
export function inkOn(share: number): string {
  return share < 0.435 ? "#ffffff" : "#000000";
}

/** A quantity on a logarithmic scale from 0 to 1. */
export function shareOf(amount: number, most: number): number {
  return most <= 0 ? 0 : Math.log2(1 + amount) / Math.log2(1 + most);
}
