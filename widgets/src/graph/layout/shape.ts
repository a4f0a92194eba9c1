/** The types of scenes and layouts. */

/** A box that is closed, or an equation that holds nothing. */
export const CLOSED = 0;
export const OPEN = 1;
/** Where values enter an open box, and where they leave it. */
export const IN = 2;
export const OUT = 3;

export const HEADER = 24;
export const PAD = 12;

/** Boxes and ports, parents before children, children in the order of the program; and the edges between those of one parent. */
export interface Shape {
  parent: Int32Array;
  kind: Uint8Array;
  /** Of an open box, what its header needs at least. */
  width: Float32Array;
  height: Float32Array;
  /** How far the middle of the card, where edges meet it, is from the middle of a closed box. */
  anchor: Float32Array;
  /** What an edge joins: a closed box, or a port of an open one. */
  from: Int32Array;
  to: Int32Array;
  /** The open box in which it runs. */
  level: Int32Array;
}

export interface Positions {
  x: Float32Array;
  y: Float32Array;
  width: Float32Array;
  height: Float32Array;
  /** For each edge the offset of its points, x and y in turn; between the first and the last, two for each rank that it passes. */
  starts: Int32Array;
  points: Float32Array;
  /** Edges of which only the ends are drawn. */
  cut: Uint8Array;
  /** Whether points are those of cubic curves instead, one and three times as many, from box to box across the frames of open ones. */
  curved: boolean;
}
