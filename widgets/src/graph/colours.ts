/** The colours of the graph's boxes, and their legend. */

import { formatBytes, formatFlops } from "../base/format";
import { entry } from "../base/maps";
import { sumOf } from "../model/groups";
import { sizeOf } from "../model/query";
import { type References, referencesOf } from "../model/references";
import { ROLE_LETTERS } from "../model/roles";
import { h } from "../ui/dom";
import { ROLES } from "../wire/schema";
import type { Colouring } from "./draw/painter";
import { shareOf, viridis } from "./draw/palette";
import type { Tree } from "./layout/hierarchy";
import type { Scene } from "./layout/scene";
import { CLOSED } from "./layout/shape";

export type By = "role" | "cost" | "bytes";

/** How many references the legend names. */
const NAMED = 6;

export class Colours implements Colouring {
  by: By = "role";
  readonly legend = h("div.jv-graph-legend.jv-fixed.jv-wraps.jv-row", { "data-testid": "graph-legend" });
  private scene: Scene | null = null;
  private shares: Float32Array | null = null;
  private most = 0;
  private readonly known = new Map<string, number>();
  private names: ReadonlySet<string | undefined> | null = null;
  /** Whether references have their hues. */
  private hasHues = true;
  /** The hues of references by node, and by edge; read again when more is known of the model. */
  private readonly huesOf = new Map<number, readonly number[]>();
  private huesOfEdges: Int8Array | null = null;
  private references: References | null = null;

  constructor(
    private readonly tree: Tree,
    private readonly changed: () => void,
  ) {}

  set(by: By): void {
    this.by = by;
    this.measure();
    this.changed();
  }

  /** Shows references in their hues, as code does, or not. */
  showHues(isShown: boolean): void {
    this.hasHues = isShown;
    this.fillLegend();
    this.changed();
  }

  /** Updates the scale for a new layout. */
  show(scene: Scene): void {
    this.scene = scene;
    this.huesOfEdges = null;
    this.measure();
  }

  role(row: number): string {
    return this.tree.model.role(row);
  }

  share(box: number): number | null {
    return this.shares === null ? null : this.shares[box]!;
  }

  /** The references, if they are shown in their hues. */
  private get coloured(): References | null {
    const found = referencesOf(this.tree.model);
    if (found !== this.references) {
      this.references = found;
      this.huesOf.clear();
      this.huesOfEdges = null;
    }
    return this.hasHues && found.any ? found : null;
  }

  /** The hue of a variable that is a reference, or -1. */
  hue(variable: number): number {
    return this.coloured?.has(variable) ? this.tree.model.hue(variable) : -1;
  }

  /** The hue of the first reference that an edge leads, or -1. */
  hueOfEdge(edge: number): number {
    if (this.coloured === null || this.scene === null) return -1;
    this.huesOfEdges ??= Int8Array.from(this.scene.values, (values) =>
      values.reduce((hue, v) => (hue < 0 ? this.hue(v) : hue), -1),
    );
    return this.huesOfEdges[edge]!;
  }

  /** The hues of the references that the equations in a node make, read or write. */
  hues(node: number): readonly number[] {
    const references = this.coloured;
    if (references === null || this.by !== "role") return [];
    const { model } = this.tree;
    return entry(this.huesOf, node, () => [
      ...new Set(references.among(this.tree.rows(node)).map((v) => model.hue(v))),
    ]);
  }

  /** FLOPs, or bytes of output, of everything in a node. */
  amount(node: number, by: By): number {
    const { model } = this.tree;
    const of = by === "cost" ? (row: number) => model.flops(row) : (row: number) => sizeOf(model, row);
    return entry(this.known, `${by} ${node}`, () => sumOf(this.tree.rows(node), of));
  }

  private measure(): void {
    const { scene, by } = this;
    this.shares = null;
    if (scene !== null && by !== "role") {
      const { kind } = scene.shape;
      const amounts = Float64Array.from(scene.node, (node, i) =>
        kind[i] === CLOSED ? this.amount(node, by) : 0,
      );
      this.most = amounts.reduce((most, a) => Math.max(most, a), 0);
      this.shares = Float32Array.from(amounts, (a) => shareOf(a, this.most));
    }
    this.fillLegend();
  }

  private fillLegend(): void {
    const { by, tree } = this;
    if (by !== "role") {
      const stops = Array.from({ length: 9 }, (_, i) => viridis(i / 8)).join(", ");
      this.legend.replaceChildren(
        h("span", "0"),
        h("span.jv-graph-scale", { style: `background: linear-gradient(to right, ${stops})` }),
        h("span", by === "cost" ? formatFlops(this.most) : formatBytes(this.most)),
      );
      return;
    }
    this.names ??= rolesIn(tree);
    const { names } = this;
    this.legend.replaceChildren(
      ...Object.entries(ROLE_LETTERS)
        .filter(([role]) => names.has(role) && names.size > 1)
        .map(([role, letter]) =>
          h("span.jv-graph-role", h("span", { class: `jv-role jv-role-${role}` }, letter || "·"), role),
        ),
      ...this.named(),
    );
  }

  /** The first references of the stages, each by its name in its hue. */
  private named(): HTMLElement[] {
    const { tree } = this;
    const references = this.coloured;
    if (references === null) return [];
    return references
      .among(tree.roots.flatMap((root) => tree.rows(root)))
      .slice(0, NAMED)
      .map((v) =>
        h(
          "span",
          { class: `jv-graph-role jv-hue-${tree.model.hue(v)}`, "data-testid": "graph-reference" },
          `▬ ${references.name(v)}`,
        ),
      );
  }
}

/** The roles that occur in some stages. */
function rolesIn({ model, stages }: Tree): Set<string | undefined> {
  const there = new Set<number>();
  const roles = model.column("equation_role");
  for (const stage of stages) {
    const [from, to] = model.view.stages[stage]!.equations;
    for (let row = from; row < to; row++) there.add(roles[row]!);
  }
  return new Set([...there].map((i) => ROLES[i]));
}
