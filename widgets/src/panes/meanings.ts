/** The help: keys, and what stages, colours and letters mean. */

import { ROLE_LETTERS } from "../model/roles";
import type { Meanings } from "../ui/frame";

/** The rows of a table: a sign, what it means, and the class with which it is shown, if any. */
const rowsOf = (text: string) =>
  text
    .trim()
    .split("\n")
    .map((line) => line.trim().split(" | ") as [string, string, string?]);

export const KEYS = rowsOf(`
  H | the overview, or forward beside backward; in the overview, the arrow keys go from scope to scope
  1 … 6 | show a stage
  Shift + 1 … 6 | show a stage in the other pane
  L | JVP beside linearize
  R | play a transform, equation by equation; ← → step, Space plays, Home, End
  ↑ ↓ | previous, next equation
  ← → | fold, unfold the program it holds; of a line of the source, its equations
  - + | fold, unfold all of them
  Shift + ← → | previous, next variable of the equation
  Enter, F12 | where the variable is made
  N, Shift + N | its next, previous use
  Alt + ← → | back, forward again
  Ctrl + C | copy the selected equations as JAX text
  V | a colour for each value, or none
  G | the current pane as a graph, or as code
  ← ↑ → ↓ Enter | in the graph: along the edges; open or close a box
  O C | in the graph: open, close all that is in a box, or everything
  + − 0 Z | in the graph: zoom, see all, zoom to the selection
  F | filter the residuals; in the graph: focus on ancestors and descendants of the selection, on one of them, or off
  S | scroll two panes together, or separately
  C | the previous version on the left, if there is one
  E | show params in full, or shortened
  W | everything on the full screen
  P | present: one pane in large text; ← → go through the questions, Escape leaves
  I | the selection in full
  / | search the source, equations, values, scopes and addresses; in the graph: its equations
  X | in the table of residuals: save one, or recompute it
  Ctrl + Z, Ctrl + Shift + Z | undo the last click on a switch, redo it
  M | memory over time; ← → move, Enter selects
  + − 0 | in a chart over time: zoom, the whole run; also wheel (Ctrl where it scrolls), drag, double click
  Shift + drag, Shift + ← → | in a chart over time: select an interval, and list its equations
  Tab | next control; arrows move within a table
  Esc | clear the selection
  ? | these keys
`);

export const MEANINGS: readonly Meanings[] = [
  [
    "The overview",
    rowsOf(`
      what runs | functions, modules and lines, forward then backward; what repeats is one box with a count (×), which shows one repetition
      saved | each expression, from where its values are computed until the backward pass has read them; the thickness shows their bytes
      memory | everything in memory at each moment, by kind; a model that ignores XLA's fusion
    `),
  ],
  [
    "In motion",
    rowsOf(`
      what runs | an equation of the forward or the backward pass, with its line, in the order of the model
      bins | the bytes in memory of each saved expression, and of the rest; each bar is as high as its maximum
    `),
  ],
  [
    "Line by line",
    rowsOf(`
      saved | bytes saved for the backward pass, without the arguments
      forward | FLOPs of the forward pass, all iterations and layers together
      backward | the same of the backward pass
      recomputed | of these, the FLOPs that recompute what the forward pass computed
    `),
  ],
  [
    "Stages",
    rowsOf(`
      f | the function itself, as JAX traces it
      jvp | values and tangents at once: forward mode
      forward | the values, and those that the backward pass needs: the residuals
      linear | the part that is linear in the tangents; it reads the residuals
      backward | the linear program transposed: from cotangents of the results to cotangents of the arguments
      compiled | forward and backward as one program, as JAX passes it to XLA and as XLA compiles it
    `),
  ],
  [
    "Letters beside equations",
    rowsOf(`
      ${ROLE_LETTERS.tangent} tangent | is part of a derivative in forward mode | jv-role-tangent
      ${ROLE_LETTERS.residual} residual | computes a value that is saved for the backward pass | jv-role-residual
      ${ROLE_LETTERS.cotangent} cotangent | is part of a derivative in reverse mode | jv-role-cotangent
      ${ROLE_LETTERS.accumulation} accumulation | adds cotangents of one value | jv-role-accumulation
      ${ROLE_LETTERS.recomputation} recomputation | is recomputed for a checkpoint | jv-role-recomputation
      ${ROLE_LETTERS.zero} zero, ${ROLE_LETTERS.dummy} dummy | fills a place: a zero derivative, or a residual that only another branch saves
    `),
  ],
  [
    "Colours",
    rowsOf(`
      saved | values saved for the backward pass | jv-swatch jv-of-residual
      arguments | arguments of the function | jv-swatch jv-of-argument
      temporaries | values that are read soon after they are computed | jv-swatch jv-of-temporary
      cotangents | derivatives in the backward pass | jv-swatch jv-of-cotangent
      results | the value of the function and the gradients | jv-swatch jv-of-result
    `),
  ],
];
