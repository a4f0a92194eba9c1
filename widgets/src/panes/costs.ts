/**
 * What the gradient costs: the work and the saved bytes of each line of the source, or of each function, ranked; or of the
 * equations of the selected interval.
 */

import { formatCount, formatFlops, formatRepeated, percent } from "../base/format";
import { sortedBy } from "../base/sorted";
import { alikeAmong, CALLED, FIGURES, type Figure, type Figures, formatFigure } from "../model/figures";
import { sumOf } from "../model/groups";
import type { Model } from "../model/model";
import { lineOf, overviewOf, type Scope } from "../model/overview";
import type { Place, Residual } from "../model/records";
import type { Interval } from "../model/span";
import type { Selection, State } from "../state/state";
import { h, onRowKey, section } from "../ui/dom";
import type { Effects } from "../ui/pane";
import { Rows } from "../ui/rows";
import { Heads } from "../ui/sorting";
import { isSaved } from "./residualrows";

/** How long an interval is the same before its equations are listed, in milliseconds. */
const GROWS = 80;

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
  /** For a line, `file:line`. */
  key: string;
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
  private readonly scroller = h("div", { class: "jv-scroll" });
  /** The rows near the visible ones are in the document. */
  private readonly rows: Rows;
  private readonly shown = new Map<string, HTMLElement>();
  private sorted: readonly Row[] = [];
  private readonly total = h("span", { class: "jv-dim jv-cut" });
  private readonly heads = new Heads(HEADS, "work", ["work", ...FIGURES], () => this.fill());
  private readonly by: HTMLSelectElement;
  /** What was known of the model when this was filled, and the interval. */
  private known = "";
  private interval: Interval | null;
  /** The function or the equations that were chosen last, and the selection that this made. */
  private chosen: { key: string; selection: Selection } | null = null;
  /** An interval grows while it is dragged. */
  private timer: ReturnType<typeof setTimeout> | undefined;

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
      h("option", { value: "equation" }, "by equation"),
    );
    this.interval = state.time.interval;
    if (state.time.interval) this.by.value = "equation";
    const table = h(
      "table",
      { class: "jv-table" },
      h("thead", {}, h("tr", {}, ...this.heads.cells)),
      this.body,
    );
    this.element = section(
      { class: "jv-pane jv-costs", "aria-label": "costs", "data-testid": "costs" },
      [h("strong", {}, "work and saved bytes"), this.by, this.total],
      this.scroller,
    );
    this.scroller.append(table);
    this.rows = new Rows(this.scroller, this.body, (i) => this.shown.delete(this.sorted[i]!.key));
  }

  readonly effects: Effects = [
    [() => this.state.time.interval, () => this.narrow()],
    [() => this.isSeen && this.state.modelled, () => this.refill()],
    [() => this.state.selection, () => this.light()],
  ];

  private get isSeen(): boolean {
    return this.state.view === "cost" || this.known === "";
  }

  /** Lists the equations of a new interval. */
  private narrow(): void {
    const { interval } = this.state.time;
    if (interval === this.interval) return;
    this.interval = interval;
    if (interval) this.by.value = "equation";
    else if (this.by.value === "equation") this.by.value = "line";
    this.known = "stale";
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refill(), GROWS);
  }

  private refill(): void {
    const { modelled } = this.state;
    if (!this.isSeen || modelled === this.known) return;
    this.known = modelled;
    this.fill();
  }

  destroy(): void {
    clearTimeout(this.timer);
  }

  private fill(): void {
    const { model } = this.state;
    const { total } = model.lines;
    const by = this.by.value;
    const interval = by === "equation" ? this.state.time.interval : null;
    const again = total.recomputed > 0 ? `, of which ${formatFlops(total.recomputed)} recomputed` : "";
    this.total.textContent = interval
      ? `steps ${formatCount(interval.first + 1)} to ${formatCount(interval.last + 1)}; Esc for the whole run`
      : `forward ${formatFlops(total.forward)}, backward ${formatFlops(total.backward)}${again}`;
    const rows = (by === "line" ? linesOf : by === "function" ? functionsOf : equationsOf)(this.state);
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
    this.sorted = sorted;
    this.shown.clear();
    this.rows.show(sorted.length, (i) => this.row(sorted[i]!, i, most, all));
  }

  private row(row: Row, i: number, most: number, all: number): HTMLElement {
    const { model } = this.state;
    const choose = () => {
      if (row.place !== null && this.by.value === "line")
        this.state.selectLine(row.place.file, row.place.line);
      else {
        this.state.selectRows(row.rows());
        this.chosen = { key: row.key, selection: this.state.selection };
        this.light();
      }
    };
    const figure = (name: Figure) =>
      h(
        "td",
        { class: "jv-col-figure", "data-head": CALLED[name] },
        row.figures[name] > 0 ? formatFigure(name, row.figures[name]) : "",
      );
    const work = workOf(row);
    const share = percent((100 * work) / all);
    const tr = h(
      "tr",
      {
        tabindex: i === 0 ? 0 : -1,
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
    this.shown.set(row.key, tr);
    this.lightRow(row.key, tr);
    return tr;
  }

  private light(): void {
    for (const [key, tr] of this.shown) this.lightRow(key, tr);
  }

  private lightRow(key: string, tr: HTMLElement): void {
    const { file, line } = this.state.selection;
    const own = this.chosen?.selection === this.state.selection ? this.chosen.key : null;
    const isSelected = key === (line >= 0 ? `${file}:${line}` : own);
    tr.classList.toggle("is-selected", isSelected);
    tr.ariaCurrent = isSelected ? "true" : null;
  }
}

/** Each line of the source with work or saved bytes. */
function linesOf({ model }: State): Row[] {
  return model.lines.all.map(({ file, line, figures }) => {
    const place = { file, line, function: "", startLine: 0, start: 0, endLine: 0, end: 0 };
    const rows = () => model.rowsOfLine(file, line);
    return { key: `${file}:${line}`, what: lineOf(model, place), place, figures, rows };
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
    const own = rows.flatMap((row) => madeBy(model, row));
    const figures = {
      forward: work(false),
      backward: work(true),
      recomputed: again.reduce((sum, row) => sum + model.work(row), 0),
      kept: own.filter(isSaved).reduce((sum, r) => sum + r.nbytes, 0),
    };
    return { key: what, what, place: null, figures, rows: () => rows };
  });
}

/** The equations of the selected interval, or of the whole run; those of one expression in repeated layers together. */
function equationsOf({ model, time: { interval } }: State): Row[] {
  const { steps } = interval?.timeline ?? model.timeline;
  const shown = steps.slice(interval?.first ?? 0, (interval?.last ?? steps.length) + 1);
  const rows = shown.map(({ row }) => row).filter((row) => row >= 0);
  return alikeAmong(model, rows).map((same) => {
    const [first] = same as [number];
    const isBackward = model.view.stages[model.stage(first)]!.key === "backward";
    const work = sumOf(same, (row) => model.flops(row));
    const saved = isBackward ? [] : same.flatMap((row) => madeBy(model, row)).filter(isSaved);
    const figures = {
      forward: isBackward ? 0 : work,
      backward: isBackward ? work : 0,
      recomputed: model.role(first) === "recomputation" ? work : 0,
      kept: sumOf(saved, (r) => r.nbytes),
    };
    const types = model.outputs(first).map((v) => model.variable(v).type);
    const what = formatRepeated(same.length, `${model.primitive(first)} ${types.join(" ")}`.trim());
    return { key: `equation ${first}`, what, place: model.place(first), figures, rows: () => same };
  });
}

/** The residuals that an equation computes. */
const madeBy = (model: Model, row: number): Residual[] =>
  (model.residualsOfRow.get(row) ?? []).map((i) => model.residuals[i]!).filter((r) => r.producer === row);

/** Whether a scope is in another one of a set. */
function isInside(scopes: readonly Scope[], scope: Scope, others: ReadonlySet<Scope>): boolean {
  for (let at = scope.parent; at >= 0; at = scopes[at]!.parent) if (others.has(scopes[at]!)) return true;
  return false;
}
