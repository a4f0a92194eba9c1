/** Keyboard commands of the graph. */

import type { Drawing } from "./draw/drawing";
import { STAGE, type Tree } from "./layout/hierarchy";
import { beside, type Ways } from "./layout/walk";

/** The actions of the graph. */
export interface Keyed {
  zoom(factor: number): void;
  fit(): void;
  zoomToSelection(): void;
  nextFocus(): void;
  /** Ends dimming; returns whether anything was dimmed. */
  endFocus(): boolean;
  openAll(isOpen: boolean): void;
  search(): void;
  nextHit(by: 1 | -1): void;
  toggle(): void;
  /** Moves by an arrow key, `Home` or `End`; with Shift, out of a box or into it. */
  move(key: string): void;
}

/** Runs the command of a key; returns whether it has one. */
export function actOnKey(event: KeyboardEvent, graph: Keyed): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const { key } = event;
  const letter = key.toLowerCase();
  if (key === "+" || key === "=") graph.zoom(1.25);
  else if (key === "-") graph.zoom(0.8);
  else if (key === "0") graph.fit();
  else if (letter === "z") graph.zoomToSelection();
  else if (letter === "f") graph.nextFocus();
  else if (letter === "o") graph.openAll(true);
  else if (letter === "c") graph.openAll(false);
  else if (key === "/") graph.search();
  else if (letter === "n") graph.nextHit(event.shiftKey ? -1 : 1);
  else if (key === "Enter" || key === " ") graph.toggle();
  else if (key === "Escape") return graph.endFocus();
  else if (key.startsWith("Arrow") || key === "Home" || key === "End")
    graph.move(event.shiftKey ? `Shift${key}` : key);
  else return false;
  return true;
}

/** The node that an arrow key leads to, or -1. */
export function neighbour(
  tree: Tree,
  { scene, at }: Drawing,
  ways: Ways,
  node: number,
  key: string,
  isOpen: (node: number) => boolean,
): number {
  const top = tree.roots[0] === undefined ? -1 : (tree.children[tree.roots[0]]![0] ?? -1);
  const box = node < 0 ? -1 : scene.boxOf[node]!;
  if (box < 0 || key === "Home") return top;
  if (key === "End") return tree.children[tree.roots.at(-1)!]!.at(-1)!;
  if (key === "ShiftArrowUp") {
    const outer = tree.parent[node]!;
    return outer >= 0 && tree.kind[outer] !== STAGE ? outer : -1;
  }
  if (key === "ShiftArrowDown") return isOpen(node) ? tree.children[node]![0]! : -1;
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const there = beside(scene, at, box, key === "ArrowLeft" ? -1 : 1);
    return there < 0 ? -1 : scene.node[there]!;
  }
  const along = key === "ArrowDown" ? 1 : -1;
  const middle = (b: number) => at.x[b]! + at.width[b]! / 2;
  const near = ways
    .next(box, along)
    .sort((a, b) => Math.abs(middle(a) - middle(box)) - Math.abs(middle(b) - middle(box)));
  if (near[0] !== undefined) return scene.node[near[0]]!;
  // Without an edge, the next node in program order.
  const siblings = tree.children[tree.parent[node]!]!;
  return siblings[siblings.indexOf(node) + along] ?? -1;
}
