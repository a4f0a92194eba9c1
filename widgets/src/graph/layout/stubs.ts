/** Stubs at the sides of a box, and rows of ports for residuals: these replace long edges. */

import { remembered } from "../../base/maps";

export type StubKind = "input" | "constant" | "literal" | "carry" | "residual" | "result";

/** A value that is named beside a box instead of connected by an edge. */
export interface Stub {
  kind: StubKind;
  text: string;
  /** Its variable, or -1. */
  variable: number;
  /** Its residual, or -1. */
  residual: number;
}

/** In pixels, at full size. */
export const SIZES = {
  card: 34,
  stub: 15,
  letter: 7.3,
  small: 6.1,
  gap: 4,
  port: 8,
  /** The height of a row of ports. */
  row: 17,
} as const;

/** Longer names are shortened, with a tooltip. */
const LONG = 30;
export const LONG_STUB = 16;
/** How many stubs are written out on each side of a box. */
export const STUBS = 2;
/** How many ports of a row are written out. */
export const PORTS = 6;
/** The padding of a port, and the gap between two. */
const [PORT_PAD, PORT_GAP] = [8, 3];

/** A text in at most this many characters; cut after an identifier or an operator, or within a long identifier after one of its parts. */
export function shortened(text: string, most = LONG): string {
  if (text.length <= most) return text;
  for (const token of [/[\p{L}\p{N}_]+|./gsu, /[\p{L}\p{N}]+|./gsu, /./gsu]) {
    let kept = 0;
    for (const { 0: found } of text.matchAll(token)) {
      if (kept + found.length > most - 1) break;
      kept += found.length;
    }
    if (kept > 0) return `${text.slice(0, kept).trimEnd()}…`;
  }
  return "…";
}

/** A label at one side of a box: one stub, or the number of stubs of a kind. */
export interface Pill {
  text: string;
  stubs: readonly Stub[];
}

const COUNTED: [string, (stub: Stub) => boolean][] = [
  ["in", (s) => s.kind !== "result"],
  ["out", (s) => s.kind === "result"],
];

export function pills(stubs: readonly Stub[]): Pill[] {
  if (stubs.length <= STUBS) return stubs.map((s) => ({ text: shortened(s.text, LONG_STUB), stubs: [s] }));
  return COUNTED.flatMap(([unit, is]) => {
    const some = stubs.filter(is);
    if (some.length === 0) return [];
    const [first] = some;
    return [
      { text: some.length === 1 ? shortened(first!.text, LONG_STUB) : `${some.length} ${unit}`, stubs: some },
    ];
  });
}

/** The width of the stubs on one side. */
export function stubsWidth(stubs: readonly Stub[] | undefined): number {
  if (!stubs || stubs.length === 0) return 0;
  return Math.max(...pills(stubs).map((p) => p.text.length)) * SIZES.small + 10 + SIZES.gap;
}

/** A port of a row, or the count of those left out; `x` is relative to the row. */
export interface Port extends Pill {
  x: number;
  width: number;
}

export interface Row {
  ports: readonly Port[];
  width: number;
}

/** The residuals at one edge of a box, sorted by number. */
export const rowOf = remembered((stubs: readonly Stub[]): Row => {
  const inOrder = [...stubs].sort((a, b) => a.residual - b.residual);
  const shown = inOrder.length <= PORTS ? inOrder.length : PORTS - 1;
  const rest = inOrder.slice(shown);
  const texts: Pill[] = inOrder.slice(0, shown).map((stub) => ({ text: stub.text, stubs: [stub] }));
  if (rest.length > 0) texts.push({ text: `+${rest.length}`, stubs: rest });
  let x = 0;
  const ports = texts.map((pill) => {
    const port = { ...pill, x, width: pill.text.length * SIZES.small + PORT_PAD };
    x += port.width + PORT_GAP;
    return port;
  });
  return { ports, width: Math.max(0, x - PORT_GAP) };
});

/** The height of a row of ports. */
export function rowHeight(stubs: readonly Stub[] | undefined): number {
  return stubs === undefined ? 0 : SIZES.row;
}

/** The number that a residual shows at both ends. */
export function residualText(index: number): string {
  return `R${index + 1}`;
}
