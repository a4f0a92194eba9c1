/** The memory pane: modelled bytes alive at each equation, forward then backward, stacked by kind. */

import { formatBytes, formatCount, plural } from "../base/format";
import { IN_MEMORY } from "../model/figures";
import { sumOf } from "../model/groups";
import type { Model } from "../model/model";
import { stepAfter } from "../model/span";
import {
  aliveAt,
  type Buffer,
  type MemoryKind,
  peakOf,
  type Step,
  type Timeline,
  type Totals,
  totalsOf,
} from "../model/timeline";
import { litAs } from "../state/lit";
import type { State } from "../state/state";
import { h, onResize, placeOver, section, svg } from "../ui/dom";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";
import { Waiting } from "../ui/waiting";
import type { CompiledLine } from "../wire/explorer.generated";
import { STACKED } from "../wire/schema";
import { Chart } from "./chart";
import { TimeControl } from "./timecontrol";

/** How many values are named at a step. */
const NAMED = 6;

const ABOUT =
  "A model: equations run one by one, and each value is freed after its last reader. XLA fuses equations and needs less; " +
  "jaxviz.memory(...).compare() has XLA's figures.";

/** The timeline shown, and what derives from it. */
interface Shown {
  timeline: Timeline;
  totals: Totals;
  reference: Totals | null;
  /** As compiled by XLA. */
  line: CompiledLine | null;
}

/** With more selected steps than this, no lines are drawn through the areas, which they would hide. */
const MOST_LINES = 8;

export class MemoryPane {
  readonly element: HTMLElement;
  private shown: Shown | null = null;
  private chart: Chart | null = null;
  private size: [number, number, number] = [0, 0, 1];
  /** The step under the pointer or keyboard cursor, or -1. */
  private at = -1;
  /** Whether the step was selected, so that the tooltip can be short. */
  private isTold = false;
  private stop = () => {};
  private waiting: Waiting | null = null;
  private readonly time: TimeControl;
  private readonly head = h("span.jv-dim.jv-cut", { title: ABOUT, "data-testid": "memory-head" });
  private readonly when = h("caption");
  private readonly amounts = new Map<MemoryKind | "total", HTMLElement>();
  private readonly legend = h("table.jv-memory-legend.jv-digits", { "data-testid": "memory-legend" });
  private readonly areas = svg("g");
  private readonly lit = svg("g");
  private readonly cursor = svg("rect", { class: "jv-cursor" });
  private readonly plot: HTMLElement;
  private readonly tip = h("div.jv-tip", { "data-testid": "memory-tip" });

  constructor(
    private readonly state: State,
    private readonly root: HTMLElement,
  ) {
    this.plot = h(
      "div.jv-plot.jv-time",
      {
        tabindex: 0,
        role: "slider",
        "aria-label": "step",
        "aria-valuemin": 1,
        "aria-valuenow": 1,
        "data-testid": "timeline",
        onpointermove: (event: PointerEvent) => this.moveTo(this.stepAt(event.clientX)),
        onpointerdown: (event: PointerEvent) => this.moveTo(this.stepAt(event.clientX)),
        onpointerleave: () => this.moveTo(-1),
        onblur: () => this.moveTo(-1),
        onclick: () => this.select(this.at),
        onkeydown: (event: KeyboardEvent) => this.onKey(event),
      },
      svg("svg", {}, this.areas, this.lit, this.cursor),
    );
    this.time = new TimeControl(state, this.plot, {
      plot: this.plot,
      inner: () => this.chart,
      timeline: () => this.shown?.timeline ?? null,
      stepAt: (x) => this.stepAt(x),
      cursor: () => this.at,
      moveTo: (step) => this.moveTo(step),
    });
    this.element = section(
      { class: "jv-pane jv-column jv-memory", "aria-label": "memory", "data-testid": "memory" },
      [h("strong", "memory"), this.head, this.time.bar],
    );
  }

  readonly effects: Effects = [
    [() => this.state.hasMemory, () => this.fill()],
    [() => [this.state.selection, this.state.time.interval], () => this.light()],
    [() => this.state.time.span, () => this.draw()],
    [() => this.state.switches.now, () => this.showSwitched()],
  ];

  /** Creates the chart's element, or says why there is none. */
  private fill(): void {
    const { no_memory: reason, has_memory } = this.state.model.view;
    while (this.element.children.length > 1) this.element.lastElementChild!.remove();
    this.waiting?.destroy();
    this.waiting = null;
    if (reason) {
      const text = "The memory of its gradient is not modelled. ";
      this.element.append(h("p.jv-message.jv-dim", text, ...marked(reason)));
      return;
    }
    if (!has_memory) {
      this.waiting = new Waiting(this.state.rest, "Computing the memory over time…");
      this.element.append(this.waiting.element);
      return;
    }
    const side = h("div.jv-memory-side.jv-fixed", this.legend);
    this.element.append(h("div.jv-memory-body.jv-flex.jv-fills", this.plot, side));
    this.stop = onResize(this.plot, (...size) => this.resize(size));
  }

  destroy(): void {
    this.waiting?.destroy();
    this.time.destroy();
    this.stop();
    this.tip.remove();
  }

  /**
   * Draws a timeline.
   * @param reference another timeline to compare with, drawn as a line.
   */
  show(timeline: Timeline, reference: Timeline | null = null): void {
    this.shown = {
      timeline,
      totals: totalsOf(timeline),
      reference: reference === null ? null : totalsOf(reference),
      line: this.state.switches.line,
    };
    this.moveTo(-1);
    this.fillLegend(this.shown);
    this.time.tell();
    this.draw();
  }

  private showSwitched(): void {
    if (this.shown === null) return;
    const { switches, model } = this.state;
    const given = switches.timeline ?? model.timeline;
    this.element.classList.toggle("is-stale", switches.isDrawing);
    if (given !== this.shown.timeline || switches.line !== this.shown.line)
      this.show(given, switches.timeline && model.timeline);
    else this.light();
  }

  /** Focuses the chart. */
  focus(): void {
    this.plot.focus();
  }

  // --- drawing ---

  private resize(size: [number, number, number]): void {
    this.size = size;
    const first = () => {
      const { switches, model } = this.state;
      if (this.shown === null)
        this.show(switches.timeline ?? model.timeline, switches.timeline && model.timeline);
    };
    // Let the browser paint the rest first.
    if (this.shown === null) requestAnimationFrame(() => setTimeout(first));
    else this.draw();
  }

  private draw(): void {
    const [width, height, pixels] = this.size;
    if (this.shown === null || width === 0 || height === 0) return;
    const { totals, reference, line } = this.shown;
    const { span } = this.state.time;
    this.chart = new Chart(totals, width, height, pixels, { reference, compiled: totalsOfLine(line), span });
    this.plot.setAttribute("aria-valuemax", String(this.chart.steps));
    this.areas.replaceChildren(...this.chart.draw());
    this.light();
    this.point();
  }

  /** Marks the selected and highlighted steps, and when their results, or a selected residual, are in memory. */
  private light(): void {
    if (this.shown === null || this.chart === null) return;
    const { chart } = this;
    const { selection, model } = this.state;
    const { steps, buffers } = this.shown.timeline;
    const chosen = new Set([...selection.rows].flatMap((row) => model.alike(row)));
    const at = stepsOf(model, steps, chosen);
    const marked = { "is-selected": [], "is-ancestor": [], "is-descendant": [] } as Record<string, number[]>;
    if (selection.rows.size > 0)
      steps.forEach(({ row }, i) => {
        marked[at.has(i) ? "is-selected" : litAs(selection, row)]?.push(i);
      });
    const isMeant =
      selection.residual >= 0
        ? ({ residuals }: Buffer) => residuals.some((r) => selection.residuals.has(r))
        : ({ row }: Buffer) => this.state.row >= 0 && chosen.has(row);
    const meant = buffers.filter(isMeant);
    const { interval } = this.state.time;
    this.lit.replaceChildren(
      ...(interval?.timeline === this.shown.timeline ? chart.interval(interval.first, interval.last) : []),
      ...joined(meant).flatMap(({ born, last }) => chart.during(born, last)),
      ...Object.entries(marked).flatMap(([how, at]) => {
        const isTall = how === "is-selected" && at.length <= MOST_LINES;
        return chart.marks(at, how, isTall);
      }),
    );
    this.head.textContent = this.summary(meant);
  }

  /** When the selected values are in memory, or else where the peak is. */
  private summary(meant: readonly Buffer[]): string {
    const { totals, timeline } = this.shown!;
    const n = timeline.steps.length;
    const on = this.state.model.view.n_devices > 1 ? " on each device" : "";
    const [first] = meant;
    if (first !== undefined) {
      const nbytes = meant.reduce((sum, b) => sum + b.nbytes, 0);
      const from = Math.min(...meant.map((b) => b.born));
      const to = Math.max(...meant.map((b) => Math.min(b.last, n - 1)));
      const r = this.state.model.residuals[this.state.selection.residual];
      const named = r === undefined ? `${first.name} ${first.type}` : `${r.name}:${r.type}`;
      const what = meant.length === 1 ? named.trim() : plural(meant.length, "value");
      const until = to === n - 1 ? "to the end" : `to ${formatCount(to + 1)}`;
      return `${what}, ${formatBytes(nbytes)}${on}: in memory from step ${formatCount(from + 1)} ${until}`;
    }
    const { switches } = this.state;
    if (switches.isDrawing) return "computing the memory over time with the switches as set…";
    const isWritten = switches.chosen !== null && switches.timeline === null;
    if (totals.peak < 0) return "there are no equations";
    const peak = timeline.steps[totals.peak]!;
    const place = this.lineOf(peak);
    const where = `${this.expressionOf(peak)}${place && ` (${place})`}`;
    const pass = peak.isBackward ? "backward" : "forward";
    const as = isWritten ? "as written, because it is unknown for the switches as set: " : "";
    return `${as}modelled peak ${formatBytes(peakOf(totals))}${on} in the ${pass} pass, at ${where}`;
  }

  private fillLegend({ totals, reference, line }: Shown): void {
    this.amounts.clear();
    const row = (key: MemoryKind | "total", swatch: string, label: string) => {
      const amount = h("td");
      this.amounts.set(key, amount);
      return h("tr", { class: swatch }, h("th.jv-swatch", { scope: "row" }, label), amount);
    };
    const kinds = STACKED.filter((_, k) => totals.kinds[k]!.some((bytes) => bytes > 0)).reverse();
    const of = (name: string, text: string, how = "") =>
      h("tr", { class: `jv-before ${how}` }, h("th.jv-swatch", { scope: "row" }, name), h("td", text));
    this.legend.replaceChildren(
      this.when,
      ...kinds.map((kind) => row(kind, `jv-of-${kind}`, IN_MEMORY[kind])),
      row("total", "jv-total", "total"),
      ...(reference ? [of("peak before", formatBytes(peakOf(reference)))] : []),
      ...(line
        ? [of("compiled peak", line.error || formatBytes(Math.max(...line.total)), "is-compiled")]
        : []),
    );
    this.point();
  }

  // --- a step ---

  private stepAt(x: number): number {
    return this.chart?.stepAt(x - this.plot.getBoundingClientRect().left) ?? -1;
  }

  private moveTo(step: number): void {
    if (step === this.at) return;
    this.at = step;
    this.isTold = false;
    this.point();
  }

  private select(step: number): void {
    const row = this.shown?.timeline.steps[step]?.row ?? -1;
    if (row < 0) return;
    this.state.goTo(row);
    // The tooltip must not cover the selection.
    this.isTold = true;
    this.tip.remove();
  }

  private onKey(event: KeyboardEvent): void {
    if (this.shown === null || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const to = stepAfter(event.key, this.at, this.shown.timeline.steps.length, this.start());
    if (event.key === "Enter" || event.key === " ") this.select(this.at);
    else if (to === undefined) return;
    else this.moveTo(to);
    this.time.reveal(this.at);
    event.preventDefault();
  }

  /** Where keyboard navigation starts: at the selection, or else at the peak. */
  private start(): number {
    const { timeline, totals } = this.shown!;
    const selected = timeline.steps.findIndex(({ row }) => this.state.selection.rows.has(row));
    return selected >= 0 ? selected : totals.peak;
  }

  /** Describes what is alive at the current step, or at the peak. */
  private point(): void {
    if (this.shown === null) return;
    const { totals, timeline } = this.shown;
    const step = this.at;
    const at = step >= 0 ? step : totals.peak;
    const on = this.state.model.view.n_devices > 1 ? ", on each device" : "";
    this.when.textContent = (step >= 0 ? `at step ${formatCount(step + 1)}` : "at the peak") + on;
    for (const [kind, cell] of this.amounts) {
      const bytes = kind === "total" ? totals.total : totals.kinds[STACKED.indexOf(kind)]!;
      cell.textContent = formatBytes(bytes[at] ?? 0);
    }
    if (step < 0 || this.chart === null) {
      this.cursor.setAttribute("width", "0");
      this.tip.remove();
      this.plot.removeAttribute("aria-valuetext");
      return;
    }
    for (const [name, value] of Object.entries(this.chart.cursor(step)))
      this.cursor.setAttribute(name, String(value));
    const here = timeline.steps[step]!;
    const total = formatBytes(totals.total[step]!);
    const title = `step ${formatCount(step + 1)} of ${formatCount(timeline.steps.length)}, ${here.isBackward ? "backward" : "forward"}${on}`;
    this.plot.setAttribute("aria-valuenow", String(step + 1));
    this.plot.setAttribute("aria-valuetext", `${title}: ${this.primitiveOf(here)}, ${total}`);
    this.tip.replaceChildren(
      h("div.jv-tip-head.jv-flex", h("span.jv-dim", title), h("strong", total)),
      this.equation(here),
      this.alive(step),
    );
    if (this.isTold) return;
    this.root.append(this.tip);
    this.place(this.chart.x(step));
  }

  private equation(step: Step): HTMLElement {
    const text = step.what ?? this.state.model.summary(step.row);
    return h("div.jv-tip-head.jv-flex", h("code.jv-cut", text), h("span.jv-dim", this.lineOf(step)));
  }

  /** What the user wrote, and without source the operation. */
  private expressionOf(step: Step): string {
    const { model } = this.state;
    return (step.row >= 0 && model.sourceText(model.place(step.row))) || this.primitiveOf(step);
  }

  private primitiveOf({ row, what }: Step): string {
    return what ?? this.state.model.primitive(row);
  }

  private lineOf({ row }: Step): string {
    const { model } = this.state;
    return row < 0 ? "" : model.placeText(model.place(row));
  }

  private alive(step: number): HTMLElement {
    const alive = aliveAt(this.shown!.timeline, step);
    const rest = alive.slice(NAMED);
    const row = (what: string, name: string, type: string, nbytes: number) =>
      h(
        "tr",
        { class: what },
        h("th.jv-cut.jv-swatch", { scope: "row" }, name),
        h("td.jv-dim.jv-cut", type),
        h("td", formatBytes(nbytes)),
      );
    return h(
      "table",
      ...alive
        .slice(0, NAMED)
        .map(({ name, type, kind, nbytes }) => row(`jv-of-${kind}`, name, type, nbytes)),
      rest.length > 0 &&
        row(
          "jv-dim",
          plural(
            sumOf(rest, (a) => a.members.length),
            "other",
          ),
          "",
          sumOf(rest, (a) => a.nbytes),
        ),
    );
  }

  /** Places the tooltip above the plot, or beside the step if there is no room. */
  private place(x: number): void {
    const outer = this.root.getBoundingClientRect();
    const plot = this.plot.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    const at = plot.left - outer.left + x;
    const above = plot.top - outer.top - height - 2;
    const isAbove = above >= 0;
    const aside = at + 14 + width <= outer.width ? at + 14 : at - 14 - width;
    const left = isAbove ? at - width / 2 : aside;
    placeOver(outer, this.tip, left, isAbove ? above : plot.top - outer.top + 4);
  }
}

/** The union of the values' lifetimes, as few intervals as possible. */
function joined(buffers: readonly Pick<Buffer, "born" | "last">[]): { born: number; last: number }[] {
  const found: { born: number; last: number }[] = [];
  for (const { born, last } of [...buffers].sort((a, b) => a.born - b.born)) {
    const before = found.at(-1);
    if (before && born <= before.last) before.last = Math.max(before.last, last);
    else found.push({ born, last });
  }
  return found;
}

/** The steps of some equations: their own, those of the functions they call, and that of an enclosing loop. */
function stepsOf(model: Model, steps: Timeline["steps"], rows: ReadonlySet<number>): Set<number> {
  const found = new Set<number>();
  if (rows.size === 0) return found;
  const inside = new Set<number>();
  for (const row of rows) for (let r = row; r >= 0; r = model.owner(r)) inside.add(r);
  steps.forEach(({ row }, i) => {
    let isMeant = inside.has(row);
    for (let r = row; r >= 0 && !isMeant; r = model.owner(r)) isMeant = rows.has(r);
    if (isMeant) found.add(i);
  });
  return found;
}

function totalsOfLine(line: CompiledLine | null): Totals | null {
  if (line === null || line.total.length === 0) return null;
  return {
    kinds: [],
    total: Float64Array.from(line.total),
    turn: line.turn,
    peak: line.total.indexOf(Math.max(...line.total)),
  };
}
