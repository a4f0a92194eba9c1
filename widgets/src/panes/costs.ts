/** What the gradient costs: the work and the saved bytes of each line of the source, or of each function, ranked. */

import { FIGURES, type Figure, type Figures, formatFigure } from "../model/figures";
import { lineOf, overviewOf, type Scope } from "../model/overview";
import type { Place } from "../model/records";
import type { Change, Selection, State } from "../state/state";
import { h, onRowKey, section } from "../ui/dom";
import { formatFlops, percent } from "../ui/format";
import { Heads, sortedBy } from "../ui/sorting";
import { isSaved } from "./residualrows";

type SortKey = Figure | "work" | "what" | "line";

const HEADS: [SortKey, string, string][] = [
  ["work", "work", "work"],
  ["what", "name", "line"],
  ["forward", "flops", "forward"],
  ["backward", "flops", "backward"],
  ["recomputed", "flops", "recomputed"],
  ["kept", "nbytes", "saved"],
  ["line", "line", "place"],
];

/** A line or a function, with its figures and equations. */
interface Row {
  what: string;
  place: Place | null;
  figures: Figures;
  rows(): readonly number[];
}

/** All work of a row: what is recomputed is part of the backward pass. */
const workOf = ({ figures }: Row): number => figures.forward + figures.backward;

export class CostsPane {
  readonly element: HTMLElement;
  private readonly body = h("tbody", {});
  private readonly total = h("span", { class: "jv-dim jv-cut" });
  private readonly heads = new Heads(HEADS, "work", ["work", ...FIGURES], () => this.fill());
  private readonly by: HTMLSelectElement;
  /** Whether what is shown is of a model that has changed since. */
  private isStale = false;
  /** The function that was chosen last, and the selection that this made. */
  private chosen: { what: string; selection: Selection } | null = null;

  constructor(private readonly state: State) {
    this.by = h(
      "select",
      {
        class: "jv-filter-kind",
        "aria-label": "rank by",
        "data-testid": "costs-by",
        "data-lm-suppress-shortcuts": "true",
        onchange: () => this.fill(),
        onkeydown: (event: KeyboardEvent) => event.stopPropagation(),
      },
      h("option", { value: "line" }, "by line"),
      h("option", { value: "function" }, "by function, with what it calls"),
    );
    const table = h(
      "table",
      { class: "jv-table" },
      h("thead", {}, h("tr", {}, ...this.heads.cells)),
      this.body,
    );
    this.element = section(
      { class: "jv-pane jv-costs", "aria-label": "costs", "data-testid": "costs" },
      [h("strong", {}, "work and saved bytes"), this.by, this.total],
      h("div", { class: "jv-scroll" }, table),
    );
    this.fill();
  }

  update(change: Change): void {
    if (change === "groups" || change === "memory" || change === "whole") this.isStale = true;
    if (this.isStale && this.state.view === "cost") this.fill();
    if (change === "selection") this.light();
  }

  private fill(): void {
    this.isStale = false;
    const { model } = this.state;
    const { total } = model.lines;
    const again = total.recomputed > 0 ? `, of which ${formatFlops(total.recomputed)} recomputed` : "";
    this.total.textContent = `forward ${formatFlops(total.forward)}, backward ${formatFlops(total.backward)}${again}`;
    const rows = this.by.value === "line" ? linesOf(this.state) : functionsOf(this.state);
    const value = (row: Row, key: SortKey) =>
      key === "work"
        ? workOf(row)
        : key === "what"
          ? row.what
          : key === "line"
            ? (row.place?.line ?? 0)
            : row.figures[key];
    const { key, descending } = this.heads;
    const sorted = sortedBy(
      rows,
      (row) => value(row, key),
      (row) => row.place?.line ?? 0,
      descending,
    );
    const most = Math.max(1, ...rows.map(workOf));
    const all = Math.max(1, total.forward + total.backward);
    this.body.replaceChildren(...sorted.map((row, i) => this.row(row, i, most, all)));
    this.light();
  }

  private row(row: Row, i: number, most: number, all: number): HTMLElement {
    const { model } = this.state;
    const choose = () => {
      if (row.place !== null) this.state.selectLine(row.place.file, row.place.line);
      else {
        this.state.selectRows(row.rows());
        this.chosen = { what: row.what, selection: this.state.selection };
        this.light();
      }
    };
    const figure = (name: Figure) =>
      h("td", { class: "jv-col-figure" }, row.figures[name] > 0 ? formatFigure(name, row.figures[name]) : "");
    const work = workOf(row);
    const share = percent((100 * work) / all);
    return h(
      "tr",
      {
        tabindex: i === 0 ? 0 : -1,
        "data-of": row.place === null ? row.what : `${row.place.file}:${row.place.line}`,
        "data-testid": "cost",
        onclick: choose,
        onkeydown: (event: KeyboardEvent) => onRowKey(event, this.body, "tr", choose),
        onpointerenter: () => this.state.pointTo(row.place),
        onpointerleave: () => this.state.pointTo(null),
      },
      h(
        "td",
        { class: "jv-col-work", title: `${formatFlops(work)}, ${share} of the gradient's` },
        h("span", { class: "jv-cost-bar", style: `--share: ${((100 * work) / most).toFixed(1)}%` }),
        h("span", {}, work > 0 ? share : ""),
      ),
      h("td", { class: "jv-col-name" }, h("code", { class: "jv-cut", title: row.what }, row.what)),
      figure("forward"),
      figure("backward"),
      figure("recomputed"),
      figure("kept"),
      h("td", { class: "jv-col-line" }, model.placeText(row.place)),
    );
  }

  private light(): void {
    const { file, line } = this.state.selection;
    const own = this.chosen?.selection === this.state.selection ? this.chosen.what : null;
    const selected = line >= 0 ? `${file}:${line}` : own;
    for (const tr of this.body.children as HTMLCollectionOf<HTMLElement>) {
      const isSelected = tr.dataset["of"] === selected;
      tr.classList.toggle("is-selected", isSelected);
      tr.ariaCurrent = isSelected ? "true" : null;
    }
  }
}

/** Each line of the source with work or saved bytes. */
function linesOf({ model }: State): Row[] {
  return model.lines.all.map(({ file, line, figures }) => {
    const place = { file, line, function: "", startLine: 0, start: 0, endLine: 0, end: 0 };
    return { what: lineOf(model, place), place, figures, rows: () => model.rowsOfLine(file, line) };
  });
}

/** Each function, module or scope of the overview, of both passes together. */
function functionsOf({ model }: State): Row[] {
  const overview = overviewOf(model);
  const named = new Map<string, Scope[]>();
  for (const scope of overview.scopes) {
    // A sequence that repeats without a loop has no name; what it repeats has.
    if (scope.kind === "line" || scope.kind === "rest" || scope.name === "") continue;
    const same = named.get(scope.name);
    if (same) same.push(scope);
    else named.set(scope.name, [scope]);
  }
  return [...named].map(([what, scopes]) => {
    const inside = new Set(scopes);
    const outermost = scopes.filter((scope) => !isInside(overview.scopes, scope, inside));
    const work = (isBackward: boolean) =>
      outermost.filter((s) => s.isBackward === isBackward).reduce((sum, s) => sum + s.flops, 0);
    const rows = [...new Set(outermost.flatMap((scope) => overview.rowsOf(scope)))];
    const again = rows.filter((row) => model.role(row) === "recomputation");
    // What it computes; of what it only reads, the bytes are those of another function.
    const own = rows.flatMap((row) =>
      (model.residualsOfRow.get(row) ?? []).map((i) => model.residuals[i]!).filter((r) => r.producer === row),
    );
    const figures = {
      forward: work(false),
      backward: work(true),
      recomputed: again.reduce((sum, row) => sum + model.work(row), 0),
      kept: own.filter(isSaved).reduce((sum, r) => sum + r.nbytes, 0),
    };
    return { what, place: null, figures, rows: () => rows };
  });
}

/** Whether a scope is in another one of a set. */
function isInside(scopes: readonly Scope[], scope: Scope, others: ReadonlySet<Scope>): boolean {
  for (let at = scope.parent; at >= 0; at = scopes[at]!.parent) if (others.has(scopes[at]!)) return true;
  return false;
}
