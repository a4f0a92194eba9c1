/**
 * What the gradient costs: the work, the moved and the saved bytes of each line of the source, or of each function, ranked; or of
 * the equations of the selected interval. And its roofline.
 */

import {
  formatBytes,
  formatCount,
  formatFlops,
  formatRepeated,
  formatSeconds,
  formatShort,
  percent,
} from "../base/format";
import { sortedBy } from "../base/sorted";
import {
  ABOUT,
  alikeAmong,
  CALLED,
  FIGURES,
  type Figure,
  type Figures,
  formatFigure,
} from "../model/figures";
import { push, sumOf } from "../model/groups";
import type { Model } from "../model/model";
import { lineOf, overviewOf, type Scope, shortPlace } from "../model/overview";
import { bytesOnOne, type Place, type Residual } from "../model/records";
import { type Least, Roofline } from "../model/roofline";
import type { Interval } from "../model/span";
import type { Selection, State } from "../state/state";
import { button, choice, h, onRowKey, section, table } from "../ui/dom";
import type { Effects } from "../ui/pane";
import { Rows } from "../ui/rows";
import { Heads } from "../ui/sorting";
import { Waiting } from "../ui/waiting";
import type { DeviceSpeed } from "../wire/explorer.generated";
import { isSaved } from "./residualrows";
import { RooflineChart, roofOf } from "./roofline";

/** How long an interval is the same before its equations are listed, in milliseconds. */
const GROWS = 80;

type SortKey = Figure | "work" | "what" | "each" | "least" | "line";

const HEADS: [SortKey, string, string, string?][] = [
  ["work", "work", "work", "FLOPs of both passes"],
  ["what", "name", "what"],
  ["forward", "flops", "forward", ABOUT.forward],
  ["backward", "flops", "backward", ABOUT.backward],
  ["recomputed", "again", "recomputed", ABOUT.recomputed],
  ["moved", "nbytes", "moved", ABOUT.moved],
  ["each", "flops", "per byte", "FLOPs for each byte moved"],
  ["least", "least", "at best", "the least time that the device needs, computing or moving bytes"],
  ["kept", "nbytes", "saved", ABOUT.kept],
  ["line", "line", "line"],
];

/** A line or a function, with its figures and equations. */
interface Row {
  /** For a line, `file:line`. */
  key: string;
  what: string;
  place: Place | null;
  figures: Figures;
  rows(): readonly number[];
  least(roofline: Roofline): Least;
}

/** All work of a row: what is recomputed is part of the backward pass. */
const workOf = ({ figures }: Row): number => figures.forward + figures.backward;

/** FLOPs for each byte moved. */
const eachOf = (row: Row): number => (row.figures.moved > 0 ? workOf(row) / row.figures.moved : 0);

export class CostsPane {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private readonly scroller = h("div.jv-scroll");
  /** The rows near the visible ones are in the document. */
  private readonly rows: Rows;
  private readonly shown = new Map<string, HTMLElement>();
  private sorted: readonly Row[] = [];
  private readonly total = h("span.jv-dim.jv-cut");
  private readonly heads = new Heads(HEADS, "work", ["work", "each", "least", ...FIGURES], () => this.fill());
  private readonly by = choice(
    [
      ["line", "by line"],
      ["function", "by function, with what it calls"],
      ["equation", "by equation"],
    ],
    () => this.fill(),
    { class: "jv-field jv-filter-kind", "aria-label": "rank by", "data-testid": "costs-by" },
  );
  /** The roofline, from its first use. */
  private chart: RooflineChart | null = null;
  private readonly toChart: HTMLButtonElement;
  /** What stands in the table's place until the device's speed is known, or why it is not. */
  private readonly unknown = h("div.jv-roofline-unknown");
  private waiting: Waiting | null = null;
  private roofline: Roofline | null = null;
  /** What was known of the model when this was filled, and the interval. */
  private known = "";
  private interval: Interval | null;
  /** Why the speed of the device could not be measured. */
  private failure = "";
  /** The function or the equations that were chosen last, and the selection that this made. */
  private chosen: { key: string; selection: Selection } | null = null;
  /** An interval grows while it is dragged. */
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly state: State) {
    this.interval = state.time.interval;
    if (state.time.interval) this.by.value = "equation";
    this.toChart = button("Roofline", () => this.turn(), {
      class: "jv-to-chart",
      "aria-pressed": "false",
      "data-testid": "to-roofline",
    });
    this.element = section(
      { class: "jv-pane jv-column jv-costs", "aria-label": "costs", "data-testid": "costs" },
      [h("strong", "work and bytes"), this.by, this.total, this.toChart],
      this.scroller,
      this.unknown,
    );
    this.scroller.append(table(this.heads.cells, [this.body]));
    this.rows = new Rows(this.scroller, this.body, (i) => this.shown.delete(this.sorted[i]!.key));
  }

  readonly effects: Effects = [
    [() => this.state.time.interval, () => this.narrow()],
    [() => this.isSeen && this.state.modelled, () => this.refill()],
    [() => this.state.speed.read(), () => this.measured()],
    [() => this.state.selection, () => this.light()],
  ];

  private get isCharted(): boolean {
    return this.toChart.ariaPressed === "true";
  }

  /** Shows the roofline, or the table again. */
  private turn(): void {
    this.toChart.ariaPressed = String(!this.isCharted);
    if (this.isCharted && this.state.speed.read() === "") this.state.speed.ask();
    this.place();
    this.say();
    this.draw();
  }

  /** Reads the speed of the device, when it is known. */
  private measured(): void {
    const text = this.state.speed.read();
    const speed = text === "" ? null : (JSON.parse(text) as DeviceSpeed);
    this.roofline = speed === null || speed.error ? null : new Roofline(this.state.model, speed);
    this.failure = speed?.error ?? "";
    this.toChart.hidden = text === "" && this.state.switches.isAlone;
    this.place();
    this.known = "stale";
    this.refill();
  }

  /** Shows one of the table, the chart, and what stands for the chart. */
  private place(): void {
    const isKnown = this.roofline !== null;
    this.element.classList.toggle("is-measured", isKnown);
    this.scroller.hidden = this.isCharted;
    if (this.isCharted && isKnown && this.chart === null) {
      this.chart = new RooflineChart((key) => this.choose(this.sorted.find((row) => row.key === key)!));
      this.element.append(this.chart.element);
    }
    if (this.chart) this.chart.element.hidden = !this.isCharted || !isKnown;
    this.unknown.hidden = !this.isCharted || isKnown;
    this.waiting?.destroy();
    this.waiting = null;
    this.unknown.replaceChildren();
    if (this.unknown.hidden) return;
    if (!this.failure) this.waiting = new Waiting(this.state.speed, "Measuring the speed of the device…");
    this.unknown.replaceChildren(
      this.waiting?.element ?? h("p", `The speed of the device could not be measured: ${this.failure}`),
    );
  }

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
    this.waiting?.destroy();
    this.chart?.destroy();
  }

  /** What all of it costs, or the part of the run that is listed. */
  private say(): void {
    this.total.textContent = this.summary();
    this.total.title = this.isCharted && this.roofline ? roofOf(this.roofline) : this.summary();
  }

  private summary(): string {
    const { model, time } = this.state;
    const { total } = model.lines;
    const interval = this.by.value === "equation" ? time.interval : null;
    if (interval)
      return `steps ${formatCount(interval.first + 1)} to ${formatCount(interval.last + 1)}; Esc for the whole run`;
    if (this.isCharted && this.roofline) {
      const { seconds, moving } = this.roofline.total;
      const share = percent((100 * moving) / Math.max(seconds, Number.MIN_VALUE));
      const { n_devices } = model.view;
      const alone = n_devices > 1 ? ` for the work of all ${n_devices} devices` : "";
      const { device } = this.roofline.speed;
      return `at best ${formatSeconds(seconds)} on ${device}${alone}, ${share} of it moving bytes`;
    }
    const again = total.recomputed > 0 ? `, of which ${formatFlops(total.recomputed)} recomputed` : "";
    const work = `forward ${formatFlops(total.forward)}, backward ${formatFlops(total.backward)}${again}`;
    return `${work}; ${formatBytes(total.moved)} moved`;
  }

  private fill(): void {
    const { model } = this.state;
    const { total } = model.lines;
    const by = this.by.value;
    this.say();
    const rows = (by === "line" ? linesOf : by === "function" ? functionsOf : equationsOf)(this.state);
    const { roofline } = this;
    const value = (row: Row, key: SortKey) => {
      if (key === "work") return workOf(row);
      if (key === "what") return row.what;
      if (key === "each") return eachOf(row);
      if (key === "least") return roofline ? row.least(roofline).seconds : 0;
      return key === "line" ? (row.place?.line ?? 0) : row.figures[key];
    };
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
    this.element.classList.toggle("has-recomputed", total.recomputed > 0);
    this.shown.clear();
    this.rows.show(sorted.length, (i) => this.row(sorted[i]!, i, most, all));
    this.draw();
  }

  private draw(): void {
    const { roofline } = this;
    if (roofline === null || !this.isCharted) return;
    const dots = this.sorted.map((row) => ({
      ...{ key: row.key, what: row.what, work: workOf(row), moved: row.figures.moved },
      least: row.least(roofline),
    }));
    this.chart?.show(dots, roofline);
  }

  private choose(row: Row): void {
    if (row.place !== null && this.by.value === "line") this.state.selectLine(row.place.file, row.place.line);
    else {
      this.state.selectRows(row.rows());
      this.chosen = { key: row.key, selection: this.state.selection };
      this.light();
    }
  }

  private row(row: Row, i: number, most: number, all: number): HTMLElement {
    const { model } = this.state;
    const choose = () => this.choose(row);
    const each = eachOf(row);
    const least = this.roofline ? row.least(this.roofline).seconds : 0;
    const figure = (name: Figure, column = "") =>
      h(
        "td",
        { class: `jv-col-figure ${column}`, "data-head": CALLED[name] },
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
        ...this.state.pointing(row.place),
      },
      h(
        "td.jv-col-work",
        { title: `${formatFlops(work)}, ${share} of the gradient's` },
        h("span.jv-share", { style: `--share: ${((100 * work) / most).toFixed(1)}%` }),
        h("span", work > 0 ? share : ""),
      ),
      h("td.jv-col-name", h("code.jv-cut", { title: row.what }, row.what)),
      figure("forward"),
      figure("backward"),
      figure("recomputed", "jv-col-again"),
      figure("moved"),
      h("td.jv-col-figure", { "data-head": "per byte" }, each > 0 ? formatShort(each) : ""),
      h("td.jv-col-figure.jv-col-least", { "data-head": "at best" }, least > 0 ? formatSeconds(least) : ""),
      figure("kept"),
      h(
        "td.jv-col-line",
        { "data-head": "line", title: model.placeText(row.place) },
        shortPlace(model, row.place),
      ),
    );
    this.shown.set(row.key, tr);
    this.lightRow(row.key, tr);
    return tr;
  }

  private light(): void {
    for (const [key, tr] of this.shown) this.lightRow(key, tr);
    this.chart?.light(this.selected);
  }

  /** The key of the selected row. */
  private get selected(): string {
    const { file, line } = this.state.selection;
    const own = this.chosen?.selection === this.state.selection ? this.chosen.key : "";
    return line >= 0 ? `${file}:${line}` : own;
  }

  private lightRow(key: string, tr: HTMLElement): void {
    const isSelected = key === this.selected;
    tr.classList.toggle("is-selected", isSelected);
    tr.ariaCurrent = isSelected ? "true" : null;
  }
}

/** Each line of the source with work or saved bytes. */
function linesOf({ model }: State): Row[] {
  const costly = model.lines.all.filter(({ figures }) => FIGURES.some((figure) => figures[figure] > 0));
  return costly.map(({ file, line, figures }) => {
    const place = { file, line, function: "", startLine: 0, start: 0, endLine: 0, end: 0 };
    const key = `${file}:${line}`;
    const rows = () => model.rowsOfLine(file, line);
    return {
      key,
      what: lineOf(model, place),
      place,
      figures,
      rows,
      least: (roofline) => roofline.ofLine(key),
    };
  });
}

/** Each function, module or scope of the overview, of both passes together. */
function functionsOf({ model }: State): Row[] {
  const overview = overviewOf(model);
  const named = new Map<string, Scope[]>();
  for (const scope of overview.scopes) {
    // A sequence that repeats without a loop has no name; what it repeats has.
    if (scope.kind === "line" || scope.kind === "rest" || scope.name === "") continue;
    push(named, scope.name, scope);
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
      moved: sumOf(rows, (row) => model.moved(row)),
      kept: sumOf(own.filter(isSaved), bytesOnOne),
    };
    const least = (roofline: Roofline) => roofline.ofRows(rows);
    return { key: what, what, place: null, figures, rows: () => rows, least };
  });
}

/** The equations of the selected interval, or of the whole run; those of one expression in repeated layers together. */
function equationsOf({ model, time: { interval } }: State): Row[] {
  const { steps } = interval?.timeline ?? model.timeline;
  const shown = steps.slice(interval?.first ?? 0, (interval?.last ?? steps.length) + 1);
  const rows = shown.map(({ row }) => row).filter((row) => row >= 0);
  return alikeAmong(model, rows).map((same) => {
    const [first] = same as [number];
    const isBackward = model.stageKey(first) === "backward";
    const work = sumOf(same, (row) => model.flops(row));
    const saved = isBackward ? [] : same.flatMap((row) => madeBy(model, row)).filter(isSaved);
    const figures = {
      forward: isBackward ? 0 : work,
      backward: isBackward ? work : 0,
      recomputed: model.role(first) === "recomputation" ? work : 0,
      moved: sumOf(same, (row) => model.column("equation_moved")[row]!),
      kept: sumOf(saved, bytesOnOne),
    };
    const types = model.outputs(first).map((v) => model.variable(v).type);
    const what = formatRepeated(same.length, `${model.primitive(first)} ${types.join(" ")}`.trim());
    const least = (roofline: Roofline) => roofline.ofWhole(same);
    return { key: `equation ${first}`, what, place: model.place(first), figures, rows: () => same, least };
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
