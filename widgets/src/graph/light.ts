/** The highlighted part of the graph: the selection, its ancestors and descendants, and the focus. */

import type { Lit, Selection } from "../state/state";
import type { Box } from "./draw/view";
import { STAGE, type Tree } from "./layout/hierarchy";
import type { Scene } from "./layout/scene";
import { OPEN, type Positions } from "./layout/shape";
import { isWithin, type Ways } from "./layout/walk";
import type { Focus } from "./tools";

type IsOpen = (node: number) => boolean;

/** The box in which a row is visible: its own, or the outermost closed one around it; or -1. */
export function boxOfRow(tree: Tree, scene: Scene, row: number, isOpen: IsOpen): number {
  const node = tree.ofRow[row]!;
  if (node < 0) return -1;
  let found = node;
  for (const outer of tree.around(node)) if (tree.kind[outer] !== STAGE && !isOpen(outer)) found = outer;
  return scene.boxOf[found]!;
}

/** How boxes are lit; `current` is the node that keys act on, or -1. */
export function litBoxes(
  tree: Tree,
  scene: Scene,
  { rows, ancestors, descendants, siblings }: Selection,
  current: number,
  isOpen: IsOpen,
): Map<number, Lit> {
  const at = current < 0 ? -1 : scene.boxOf[current]!;
  // Of an open group that is selected the outline says so.
  const isGroup = current >= 0 && tree.row[current]! < 0 && isOpen(current);
  const isInGroup = (box: number) => isGroup && isWithin(scene.shape.parent, box, at);
  const lit = new Map<number, Lit>();
  const sets: [ReadonlySet<number>, Lit][] = [
    [rows, "is-selected"],
    [ancestors, "is-ancestor"],
    [descendants, "is-descendant"],
    [siblings, "is-related"],
  ];
  for (const [set, how] of sets)
    for (const row of set) {
      const box = boxOfRow(tree, scene, row, isOpen);
      if (box >= 0 && !lit.has(box) && !(how === "is-selected" && isInGroup(box))) lit.set(box, how);
    }
  if (at >= 0 && !lit.has(at) && !isInGroup(at)) lit.set(at, "is-selected");
  return lit;
}

/** The box to show of those that are lit: the uppermost of what concerns the selection most; -1 where one is in sight. */
export function nearestLit({ x, y }: Positions, lit: ReadonlyMap<number, Lit>, part: Box): number {
  for (const how of ["is-selected", "is-descendant", "is-ancestor", "is-related"] as const) {
    let first = -1;
    for (const [box, as] of lit) {
      if (as !== how) continue;
      const isAcross = x[box]! > part.x && x[box]! < part.x + part.width;
      if (isAcross && y[box]! > part.y && y[box]! < part.y + part.height) return -1;
      if (first < 0 || y[box]! < y[first]!) first = box;
    }
    if (first >= 0) return first;
  }
  return -1;
}

/** What leads to a box and from it, or one of the two. */
export function inFocus(
  { shape: { parent, kind } }: Scene,
  ways: Ways,
  at: number,
  focus: Focus,
): Set<number> {
  const starts = [at];
  if (kind[at] === OPEN)
    for (let i = at + 1; i < parent.length; i++) if (isWithin(parent, i, at)) starts.push(i);
  const found = new Set(starts);
  if (focus !== "down") for (const i of ways.reach(starts, -1)) found.add(i);
  if (focus !== "up") for (const i of ways.reach(starts, 1)) found.add(i);
  return found;
}
