/** Written by `python tests/page/wire_types.py` from `jaxviz/report/zooming.py`, which says more: not to be edited. */

/** Stacked amounts at each step. */
export interface Areas {
  step: string;
  kinds: [string, string][];
  passes: [string, number][];
  changes: number[][];
  top: number;
  base: number;
  scale: number;
}

/** A curve, to be read at the pointer. */
export interface Read {
  name: string;
  x: number[];
  y: number[];
}

/** The horizontal axis of a drawing. */
export interface Along {
  left: number;
  right: number;
  last: number;
  units: [string, number][];
  label: string;
  whole: boolean;
  ticks: number;
}

/** What a page draws of a part of the axis, and says at the pointer. */
export interface Zoomable {
  along: Along;
  areas: Areas | null;
  curves: Read[];
}
