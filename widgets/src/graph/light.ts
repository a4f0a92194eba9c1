/** What the graph highlights: the selection, its ancestors and descendants, and the focus. */

import type { Lit } from "../state/lit";
import type { Selection } from "../state/state";
import type { Box } from "./draw/view";
import { STAGE, type Tree } from "./layout/hierarchy";
import type { Scene } from "./layout/scene";
import { OPEN, type Positions } from "./layout/shape";
import { isWithin, type Ways } from "./layout/walk";
import type { Focus } from "./tools";

type IsOpen = (node: number) => boolean;

/** The box that shows a row: its own, or the outermost closed box that contains it; or -1. */
export function boxOfRow(tree: Tree, scene: Scene, row: number, isOpen: IsOpen): number {
  const node = tree.ofRow[row]!;
  if (node < 0) return -1;
  let found = node;
  for (const outer of tree.around(node)) if (tree.kind[outer] !== STAGE && !isOpen(outer)) found = outer;
  return scene.boxOf[found]!;
}

/** How each box is highlighted; `current` is the node with keyboard focus, or -1. */
export function litBoxes(
  tree: Tree,
  scene: Scene,
  { rows, ancestors, descendants, siblings }: Selection,
  current: number,
  isOpen: IsOpen,
): Map<number, Lit> {
  const at = current < 0 ? -1 : scene.boxOf[current]!;
  // A selected open group is shown by its outline.
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

/** The highlighted box to scroll to: the topmost of those most closely related to the selection; -1 if one is visible. */
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

/** The boxes that lead to a box, those reachable from it, or both. */
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
