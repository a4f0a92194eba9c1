/** The tooltip of a box, an edge or a stub. */

import { formatBytes, formatFlops, plural } from "../base/format";
import { entry, remembered } from "../base/maps";
import { referencesOf } from "../model/references";
import { h } from "../ui/dom";
import type { Colours } from "./colours";
import { differences, REPEAT, type Tree } from "./layout/hierarchy";
import type { Scene } from "./layout/scene";
import { IN } from "./layout/shape";
import type { Stub } from "./layout/stubs";

const MANY = 8;

export function boxTip(
  tree: Tree,
  scene: Scene,
  box: number,
  colours: Colours,
  exchanges: ReadonlyMap<number, readonly string[]>,
): HTMLElement {
  const { model } = tree;
  const node = scene.node[box]!;
  if (scene.variable[box]! >= 0)
    return valueTip(tree, scene.variable[box]!, scene.shape.kind[box] === IN ? "in" : "out");
  const row = tree.row[node]!;
  const cost = `${formatFlops(colours.amount(node, "cost"))} · computes ${formatBytes(colours.amount(node, "bytes"))}`;
  if (row < 0) {
    const differ = tree.kind[node] === REPEAT ? differing(tree, node) : [];
    return h(
      "div.jv-hover",
      h("strong", tree.name(node)),
      h("div", plural(tree.count[node]!, "equation"), h("span.jv-dim", `  ${cost}`)),
      ...differ,
      ...referred(tree, node, colours),
      ...exchanged(tree.rows(node), exchanges),
    );
  }
  const params = model.params(row);
  return h(
    "div.jv-hover",
    h("code", model.summary(row)),
    ...model
      .outputs(row)
      .slice(0, MANY)
      .map((v) =>
        h(
          "div",
          h("code", `${model.atomText(v)}:${model.atomType(v)}`),
          h("span.jv-dim", `  ${model.sizeText(v)}`),
        ),
      ),
    params.length > 0 &&
      h("div.jv-graph-params.jv-column", ...params.slice(0, MANY).map((p) => h("code", p))),
    h(
      "div.jv-dim",
      [model.role(row), formatFlops(model.flops(row)), model.placeText(model.place(row))]
        .filter(Boolean)
        .join(" · "),
    ),
    model.scope(row) !== "" && h("div.jv-dim", model.scope(row)),
    ...referred(tree, node, colours),
    ...exchanged([row], exchanges),
  );
}

/** The references that equations make, read or write. */
function referred(tree: Tree, node: number, colours: Colours): HTMLElement[] {
  const references = referencesOf(tree.model);
  if (!references.any) return [];
  return references
    .among(tree.rows(node))
    .slice(0, MANY)
    .map((v) => h("div", "▬ reference ", h("code", { class: hueClass(colours.hue(v)) }, references.name(v))));
}

const hueClass = (hue: number) => (hue < 0 ? "" : `jv-hue-${hue}`);

/** What devices exchange for these equations. */
function exchanged(
  rows: readonly number[],
  exchanges: ReadonlyMap<number, readonly string[]>,
): HTMLElement[] {
  const said = [...new Set(rows.flatMap((row) => exchanges.get(row) ?? []))];
  const more = said.length > MANY ? [`and ${said.length - MANY} more`] : [];
  return [...said.slice(0, MANY).map((text) => `⇄ ${text}`), ...more].map((text) => h("div", text));
}

const known = remembered((_: Tree) => new Map<number, HTMLElement[]>());

function differing(tree: Tree, node: number): HTMLElement[] {
  return entry(known(tree), node, () => {
    const found = differences(tree, node);
    const n = tree.children[node]!.length;
    return [
      h(
        "div",
        found.length === 0 ? `${n} times the same, except for what they read` : `${n} times, with different`,
      ),
      ...found.map((line) => h("div.jv-dim", line)),
    ];
  });
}

export function edgeTip(tree: Tree, scene: Scene, edge: number): HTMLElement {
  const { model } = tree;
  const values = scene.values[edge]!;
  return h(
    "div.jv-hover",
    h(
      "strong",
      values.length === 1
        ? formatBytes(scene.bytes[edge]!)
        : `${plural(values.length, "value")}, ${formatBytes(scene.bytes[edge]!)}`,
    ),
    ...values.slice(0, MANY).map((v) => h("div", h("code", `${model.atomText(v)}:${model.atomType(v)}`))),
    values.length > MANY && h("div.jv-dim", `and ${values.length - MANY} more`),
  );
}

/** The details of one value, or the names of several. */
export function stubsTip(tree: Tree, stubs: readonly Stub[]): HTMLElement {
  const [stub, more] = stubs;
  if (stub !== undefined && more === undefined) return stubTip(tree, stub);
  return h(
    "div.jv-hover",
    ...stubs.slice(0, MANY).map((s) => h("div", stubLine(tree, s))),
    stubs.length > MANY && h("div.jv-dim", `and ${stubs.length - MANY} more`),
  );
}

function stubLine(tree: Tree, { text, residual, variable }: Stub): HTMLElement {
  const { model } = tree;
  if (residual >= 0) {
    const r = model.residuals[residual]!;
    return h("code", `${text}: ${r.name}:${r.type}`);
  }
  return h("code", variable >= 0 ? `${text}: ${model.atomType(variable)}` : text);
}

function stubTip(tree: Tree, stub: Stub): HTMLElement {
  const { model } = tree;
  if (stub.residual >= 0) {
    const r = model.residuals[stub.residual]!;
    return h(
      "div.jv-hover",
      h("strong", `${stub.text}: residual ${r.name}:${r.type}`),
      h("span.jv-dim", `  ${formatBytes(r.nbytes)}`),
      h("div", r.reason),
      h("div.jv-dim", "click to go to its other end"),
    );
  }
  return stub.variable < 0
    ? h("div.jv-hover", h("code", stub.text))
    : valueTip(tree, stub.variable, stub.kind);
}

function valueTip(tree: Tree, v: number, what: string): HTMLElement {
  const { model } = tree;
  const { name, type, label } = model.variable(v);
  return h(
    "div.jv-hover",
    h("code", `${name}:${type}`),
    h("span.jv-dim", `  ${model.sizeText(v)}`),
    h("div", label ? `${what}: ${label}` : what),
  );
}
