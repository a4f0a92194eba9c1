/** The types of scenes and layouts. */

/** A closed box, or an equation without nested programs. */
export const CLOSED = 0;
export const OPEN = 1;
/** Ports where values enter and leave an open box. */
export const IN = 2;
export const OUT = 3;

export const HEADER = 24;
export const PAD = 12;

/** Boxes and ports, parents before children and children in program order, and the edges within each parent. */
export interface Shape {
  parent: Int32Array;
  kind: Uint8Array;
  /** For an open box, the minimum width of its header. */
  width: Float32Array;
  height: Float32Array;
  /** The offset of the card's centre, where edges attach, from the centre of a closed box. */
  anchor: Float32Array;
  /** The ends of each edge: a closed box, or a port of an open one. */
  from: Int32Array;
  to: Int32Array;
  /** The open box that contains the edge. */
  level: Int32Array;
}

export interface Positions {
  x: Float32Array;
  y: Float32Array;
  width: Float32Array;
  height: Float32Array;
  /**
   * For each edge, the offset of its points: x and y alternate, with two points for each rank that it passes between the first and the
   * last.
   */
  starts: Int32Array;
  points: Float32Array;
  /** Edges of which only the ends are drawn. */
  cut: Uint8Array;
  /** Whether points are those of cubic curves (1 + 3n) from box to box, across the frames of open ones. */
  curved: boolean;
}
