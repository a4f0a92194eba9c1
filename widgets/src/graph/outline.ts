/** The graph as a tree for screen readers: the current box and its neighbours. It also handles the keys. */

import { h } from "../ui/dom";
import { kindOf, STAGE, type Tree } from "./layout/hierarchy";
import { labels } from "./layout/scene";

/** How many boxes before and after the current one are in the tree. */
const NEAR = 10;

let made = 0;

export class Outline {
  readonly element: HTMLElement;
  private readonly id = `jv-outline-${made++}`;

  constructor(
    private readonly tree: Tree,
    onKey: (event: KeyboardEvent) => void,
  ) {
    const stages = tree.stages.map((stage) => tree.model.view.stages[stage]!.label).join(" and ");
    this.element = h("div.jv-graph-tree", {
      role: "tree",
      tabindex: 0,
      "aria-label": `graph of ${stages}; arrow keys move along the edges, Enter opens and closes`,
      "data-testid": "graph-tree",
      onkeydown: (event: KeyboardEvent) => onKey(event),
    });
    const [root] = tree.roots;
    if (root !== undefined) this.fill(root, -1, () => false);
  }

  /** Puts a box and its neighbours into the tree, and makes the box the active item. */
  show(node: number, isOpen: (node: number) => boolean): void {
    const parent = this.tree.parent[node]!;
    if (parent >= 0) this.fill(parent, node, isOpen);
  }

  private fill(parent: number, current: number, isOpen: (node: number) => boolean): void {
    const { tree } = this;
    const chain = [parent, ...tree.around(parent)].reverse();
    const siblings = tree.children[parent]!;
    const at = Math.max(0, siblings.indexOf(current));
    const from = Math.max(0, at - NEAR);
    const items = [
      ...chain.map((node, level) => this.item(node, level + 1, true, -1)),
      ...siblings.slice(from, at + NEAR + 1).flatMap((node) => {
        const own = this.item(node, chain.length + 1, isOpen(node), current);
        const inside = node === current && isOpen(node) ? tree.children[node]!.slice(0, NEAR) : [];
        return [own, ...inside.map((child) => this.item(child, chain.length + 2, isOpen(child), -1))];
      }),
    ];
    this.element.replaceChildren(...items);
    if (current >= 0) this.element.setAttribute("aria-activedescendant", `${this.id}-${current}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  private item(node: number, level: number, isOpen: boolean, current: number): HTMLElement {
    const { tree } = this;
    const parent = tree.parent[node]!;
    const siblings = parent < 0 ? tree.roots : tree.children[parent]!;
    const [title, line] = labels(tree, node);
    const row = tree.row[node]!;
    const role = row >= 0 ? tree.model.role(row) : "";
    const text = [title, line, kindOf(tree, node), role].filter(Boolean).join(", ");
    return h(
      "div",
      {
        role: "treeitem",
        id: `${this.id}-${node}`,
        "aria-level": level,
        "aria-posinset": siblings.indexOf(node) + 1,
        "aria-setsize": siblings.length,
        "aria-expanded": tree.canOpen(node) ? String(isOpen || tree.kind[node] === STAGE) : undefined,
        "aria-selected": String(node === current),
      },
      text,
    );
  }
}
