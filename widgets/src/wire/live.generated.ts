/** Written by `python tests/page/wire_types.py` from `jaxviz/features/probes/messages.py`, which says more: not to be edited. */

/** A series; non-finite values are None in `y`. */
export interface LiveLine {
  name: string;
  kind: "value" | "cotangent";
  drawn: string;
  x: number[];
  y: (number | null)[];
  count: number;
  last: string;
}

/** Everything that a plot draws. */
export interface Shown {
  lines: LiveLine[];
  more: number;
  note: string;
  isRunning: boolean;
}
