/** The first view: what the gradient runs over time, forward then backward, what it saves for how long, and the memory. */

import { Waiting } from "../main/waiting";
import {
  aliveOf,
  type Box,
  edgesOf,
  type Kept,
  lineOf,
  type Measure,
  type Overview,
  overviewOf,
  type Scope,
} from "../model/overview";
import type { Place } from "../model/records";
import { peakOf, type Timeline, type Totals, totalsOf } from "../model/timeline";
import type { Change, State } from "../state/state";
import { button, h, onResize, svg } from "../ui/dom";
import { formatBytes, formatCount, formatFlops, percent, plural } from "../ui/format";
import { marked } from "../ui/marked";
import { PLURALS, STACKED } from "../wire/schema";
import { areas, band, type Columns, columnsFor } from "./overviewdraw";

/**
 * From each height on: the number of rows for saved expressions, including one for the rest; the levels of nested boxes; and the height of
 * a row. The lower, the more compact, so that the memory stays visible. In pixels.
 */
const SIZES = [
  { from: 460, rows: 6, depths: 4, band: 28 },
  { from: 380, rows: 6, depths: 4, band: 22 },
  { from: 0, rows: 4, depths: 2, band: 22 },
] as const;
type Size = (typeof SIZES)[number];

/** Boxes narrower than SEEN are not drawn, and those narrower than NAMED have no name; in pixels. */
const SEEN = 2;
const NAMED = 24;

const HINT =
  "Point at anything to highlight it in the source; click to see its equations, forward beside backward.";

/** As in the head of the page: "saves 1.2 MiB". */
const NAMES = { ...PLURALS, residual: "saved" };

export class OverviewPane {
  readonly element: HTMLElement;
  private overview: Overview;
  private measure: Measure = "flops";
  private size: Size = SIZES[0];
  private width = 0;
  /** The height of the memory curve, which fills the remaining space. */
  private height = 84;
  private timeline: Timeline | null = null;
  private totals: Totals | null = null;
  private edges: Float64Array = new Float64Array();
  private columns: Columns | null = null;
  private waiting: Waiting | null = null;
  private boxes: { box: Box; element: HTMLElement }[] = [];
  /** The step under the pointer or keyboard cursor, or -1. */
  private at = -1;
  private readonly stops: (() => void)[] = [];
  private readonly picture = h("div", { class: "jv-ov-picture" });
  private readonly flame = h("div", { class: "jv-ov-flame", role: "group", "data-testid": "scopes" });
  private readonly said = h("p", { class: "jv-ov-said", "data-testid": "overview-said" });
  private readonly bands: { kept: Kept | null; plot: HTMLElement; row: HTMLElement; alive: Float64Array }[] =
    [];
  private readonly memory = h("div", { class: "jv-ov-plot jv-ov-memory" });
  private readonly cursor = h("div", { class: "jv-ov-cursor", hidden: true });
  private readonly legend = h("div", { class: "jv-ov-legend" });

  constructor(private readonly state: State) {
    this.overview = overviewOf(state.model);
    this.element = h(
      "section",
      { class: "jv-overview", "aria-label": "overview", "data-testid": "overview" },
      this.picture,
      this.said,
    );
    this.stops.push(state.rest.listen(() => this.waiting?.update()));
    this.stops.push(onResize(this.element, (_, height) => this.squeeze(height)));
    this.stops.push(onResize(this.flame, (width) => this.resize(Math.floor(width), this.height)));
    this.stops.push(onResize(this.memory, (_, height) => this.resize(this.width, Math.floor(height))));
    this.fill();
    this.draw();
  }

  destroy(): void {
    this.waiting?.destroy();
    for (const stop of this.stops) stop();
  }

  update(change: Change): void {
    if (change === "memory") {
      this.overview = overviewOf(this.state.model);
      this.fill();
      this.draw();
    }
    if (change === "selection") this.light();
  }

  focus(): void {
    (this.flame.querySelector<HTMLElement>("[tabindex='0']") ?? this.element).focus();
  }

  // --- content ---

  private fill(): void {
    const { view, timeline } = this.state.model;
    this.waiting?.destroy();
    this.waiting = null;
    this.say(null);
    if (!view.has_memory) {
      this.waiting = new Waiting(this.state.rest, "Computing the work and the memory over time…");
      this.picture.replaceChildren(this.waiting.element, this.flame);
      return;
    }
    this.timeline = timeline;
    this.totals = totalsOf(timeline);
    if (this.overview.sum("flops") === 0) this.measure = "equations";
    this.place();
    this.picture.replaceChildren(
      this.row("jv-ov-runs", this.whatRuns(), this.flame),
      this.row(
        "jv-ov-heading",
        h("span", {}, "saved for the backward pass"),
        h("div", { class: "jv-ov-passes", "aria-hidden": true }),
      ),
      ...this.keptRows(),
      this.row("jv-ov-over", this.legend, this.memoryPlot()),
    );
    this.fillLegend();
  }

  private place(): void {
    if (this.timeline) this.edges = edgesOf(this.state.model, this.timeline, this.measure);
  }

  private row(className: string, left: HTMLElement, right: HTMLElement): HTMLElement {
    left.classList.add("jv-ov-left");
    return h("div", { class: `jv-ov-row ${className}` }, left, right);
  }

  private whatRuns(): HTMLElement {
    const choice = (measure: Measure, word: string, title: string) =>
      button(word, () => this.weigh(measure), {
        class: "jv-button jv-choice",
        title,
        "aria-pressed": String(measure === this.measure),
        "data-testid": `by-${measure}`,
        disabled: this.overview.sum(measure) === 0,
      });
    return h(
      "div",
      { class: "jv-ov-axis" },
      h("span", {}, "what runs; widths are "),
      h(
        "span",
        { class: "jv-choices", role: "group", "aria-label": "width" },
        choice("flops", "FLOPs", "Widths are shares of the floating-point operations"),
        choice("equations", "equations", "Widths are shares of the equations"),
      ),
    );
  }

  private weigh(measure: Measure): void {
    this.measure = measure;
    for (const each of ["flops", "equations"] as const)
      this.picture
        .querySelector(`[data-testid="by-${each}"]`)
        ?.setAttribute("aria-pressed", String(each === measure));
    this.place();
    this.draw();
  }

  private keptRows(): HTMLElement[] {
    const { kept } = this.overview;
    const timeline = this.timeline!;
    this.bands.length = 0;
    const most = this.size.rows;
    const shown = kept.slice(0, kept.length > most ? most - 1 : most);
    const rows = shown.map((k) => this.keptRow(k, k.label, this.about(k), k.nbytes, aliveOf(k, timeline)));
    const rest = kept.slice(shown.length);
    if (rest.length > 0) {
      const all = { ...rest[0]!, residuals: rest.flatMap((k) => k.residuals) };
      const nbytes = rest.reduce((sum, k) => sum + k.nbytes, 0);
      rows.push(
        this.keptRow(null, `${plural(rest.length, "other expression")}`, "", nbytes, aliveOf(all, timeline)),
      );
    }
    if (rows.length === 0)
      rows.push(h("p", { class: "jv-message" }, "Only arguments are saved for the backward pass."));
    return rows;
  }

  private about(kept: Kept): string {
    const values = kept.times * kept.values;
    const n =
      kept.times > 1
        ? `${formatCount(kept.times)} × ${plural(kept.values, "value")}`
        : plural(values, "value");
    return `${n} · ${this.state.model.placeText(kept.place)}`;
  }

  private keptRow(
    kept: Kept | null,
    label: string,
    about: string,
    nbytes: number,
    alive: Float64Array,
  ): HTMLElement {
    const name = h(kept ? "code" : "span", { class: "jv-ov-name jv-cut" }, label);
    const size = h(
      "span",
      { class: "jv-dim jv-cut" },
      h("strong", {}, formatBytes(nbytes)),
      about && h("span", { class: "jv-ov-about" }, ` · ${about}`),
    );
    const parts = [name, size];
    const open = () => (kept ? this.state.openResiduals(kept.residuals) : this.state.arrange("kept"));
    const left = button(parts, open, {
      class: "jv-ov-kept",
      title: kept ? `${label}\n${kept.reason}` : "The table of residuals has all of them",
      "data-testid": "kept-row",
    });
    const plot = h("div", { class: "jv-ov-plot jv-ov-band", onclick: open });
    const row = this.row("", left, plot);
    const point = () => {
      this.point(kept?.place ?? null);
      this.say(kept ? this.lifeOf(kept, alive) : null);
    };
    const leave = () => {
      this.point(null);
      this.say(null);
    };
    row.addEventListener("pointerenter", point);
    row.addEventListener("pointerleave", leave);
    left.addEventListener("focus", point);
    left.addEventListener("blur", leave);
    this.bands.push({ kept, plot, row, alive });
    return row;
  }

  /** When its values are in memory. */
  private lifeOf(kept: Kept, alive: Float64Array): string {
    const first = alive.findIndex((b) => b > 0);
    const last = alive.length - 1 - [...alive].reverse().findIndex((b) => b > 0);
    const n = alive.length;
    if (first < 0) return `\`${kept.label}\`: ${kept.reason}`;
    const until = last === n - 1 ? "to the end" : `until step ${formatCount(last + 1)}`;
    return `In memory from step ${formatCount(first + 1)} ${until} of ${formatCount(n)}: ${kept.reason}`;
  }

  private memoryPlot(): HTMLElement {
    const { timeline, totals } = this;
    if (!timeline || !totals || timeline.steps.length === 0) return this.memory;
    const attributes = {
      tabindex: "0",
      role: "slider",
      "aria-label": "memory over time",
      "aria-valuemin": "1",
      "aria-valuemax": String(timeline.steps.length),
      "aria-valuenow": "1",
      "data-testid": "overview-memory",
    };
    for (const [name, value] of Object.entries(attributes)) this.memory.setAttribute(name, value);
    this.memory.onpointermove = (event) => this.moveTo(this.stepAt(event));
    this.memory.onpointerleave = () => this.moveTo(-1);
    this.memory.onblur = () => this.moveTo(-1);
    this.memory.onclick = (event) => this.openStep(this.stepAt(event));
    this.memory.onkeydown = (event) => this.onMemoryKey(event);
    return this.memory;
  }

  // --- drawing ---

  private squeeze(height: number): void {
    const size = SIZES.find(({ from }) => height >= from)!;
    if (height === 0 || size === this.size) return;
    this.size = size;
    this.element.classList.toggle("is-low", size !== SIZES[0]);
    this.fill();
    this.draw();
  }

  private resize(width: number, height: number): void {
    if (width === 0) return;
    const isWider = width !== this.width;
    if (!isWider && height === this.height) return;
    this.width = width;
    this.height = height;
    if (isWider) this.draw();
    else if (this.columns) this.drawMemory();
  }

  private draw(): void {
    if (this.width === 0 || !this.totals || !this.overview.isDrawn) {
      this.flame.replaceChildren();
      return;
    }
    this.columns = columnsFor(this.edges, this.width);
    this.drawScopes();
    const most = Math.max(1, ...this.bands.map(({ alive }) => greatest(alive)));
    const high = this.size.band;
    for (const { plot, alive } of this.bands)
      plot.replaceChildren(this.drawing(high, band(alive, this.columns, high - 4, most)), this.turnLine());
    this.drawMemory();
    const passes = this.picture.querySelector(".jv-ov-passes");
    passes?.replaceChildren(this.turnLine());
    this.light();
  }

  private drawing(height: number, ...shapes: SVGElement[]): SVGElement {
    return svg("svg", { width: this.width, height, "aria-hidden": "true" }, ...shapes);
  }

  /** Where the backward pass starts. */
  private get turn(): number {
    return (this.edges[this.totals!.turn] ?? 1) * this.width;
  }

  private turnLine(): HTMLElement {
    return h("div", { class: "jv-ov-turn", style: `left:${this.turn.toFixed(1)}px` });
  }

  private drawScopes(): void {
    const drawn = this.overview
      .boxes(this.measure)
      .filter(({ from, to, depth }) => depth < this.size.depths && (to - from) * this.width >= SEEN);
    const depths = 1 + Math.max(0, ...drawn.map(({ depth }) => depth));
    const hadFocus = this.flame.contains(this.flame.ownerDocument.activeElement);
    this.boxes = drawn.map((box, i) => ({ box, element: this.scopeBox(box, i === 0) }));
    const pass = (name: string, isBackward: boolean, from: number, to: number) => {
      const cost = this.amount(this.overview.sum(this.measure, isBackward));
      const text = to - from > 126 ? `${name}, ${cost}` : to - from > 60 ? name : "";
      return h(
        "div",
        { class: "jv-ov-pass", style: `left:${from.toFixed(1)}px;width:${(to - from).toFixed(1)}px` },
        text,
      );
    };
    this.flame.style.height = `${18 + depths * 20 + 4}px`;
    this.flame.replaceChildren(
      pass("forward", false, 0, this.turn),
      pass("backward", true, this.turn, this.width),
      this.turnLine(),
      ...this.boxes.map(({ element }) => element),
    );
    if (hadFocus) this.boxes[0]?.element.focus();
  }

  private amount(n: number): string {
    return this.measure === "flops" ? formatFlops(n) : plural(n, "equation");
  }

  private scopeBox(box: Box, isFirst: boolean): HTMLElement {
    const { scope, from, to, depth } = box;
    const left = from * this.width;
    const width = Math.max(1, to * this.width - left - 1);
    const title = this.overview.titleOf(scope);
    const style = `left:${left.toFixed(1)}px;width:${width.toFixed(1)}px;top:${18 + depth * 20}px`;
    const pass = scope.isBackward ? "backward" : "forward";
    const element = button(width >= NAMED ? title : "", () => this.openScope(scope), {
      class: `jv-scope is-${pass} is-${scope.kind}`,
      style,
      tabindex: isFirst ? 0 : -1,
      "aria-label": `${title}, ${pass}, ${this.amount(scope[this.measure])}`,
      "data-testid": "scope",
    });
    const point = () => {
      this.point(scope.place);
      this.say(this.aboutScope(scope));
    };
    const leave = () => {
      this.point(null);
      this.say(null);
    };
    element.addEventListener("pointerenter", point);
    element.addEventListener("pointerleave", leave);
    element.addEventListener("focus", point);
    element.addEventListener("blur", leave);
    element.addEventListener("keydown", (event) => this.onScopeKey(event as KeyboardEvent, box, element));
    return element;
  }

  private aboutScope(scope: Scope): string {
    const { overview } = this;
    const share = (100 * scope.flops) / Math.max(1, overview.sum("flops"));
    const pass = scope.isBackward ? "backward" : "forward";
    const place = this.state.model.placeText(scope.place);
    const flops = scope.flops > 0 ? `${formatFlops(scope.flops)}, ${percent(share)} of all` : "no FLOPs";
    const within = overview.scopes[scope.parent];
    const inside = within && within.count > 1 ? ` in each of ${formatCount(within.count)}` : "";
    return `\`${overview.titleOf(scope)}\`${inside} · ${pass} · ${flops} · ${plural(scope.equations, "equation")} · ${place}`;
  }

  private drawMemory(): void {
    const { totals, timeline } = this;
    if (!totals || !timeline || totals.peak < 0 || this.height <= 0) return;
    const most = peakOf(totals) || 1;
    const x = this.xOf(totals.peak);
    const at =
      x > this.width / 2 ? `right:${(this.width - x + 6).toFixed(1)}px` : `left:${(x + 6).toFixed(1)}px`;
    this.memory.replaceChildren(
      this.drawing(this.height, ...areas(totals, this.columns!, this.height, most)),
      this.turnLine(),
      h("div", { class: "jv-ov-peak-dot", style: `left:${x.toFixed(1)}px` }),
      h("div", { class: "jv-ov-peak", style: at }, `peak ${formatBytes(most)}`),
      this.cursor,
    );
    this.moveTo(-1);
  }

  /** The centre of a step. */
  private xOf(step: number): number {
    return ((this.edges[step]! + this.edges[step + 1]!) / 2) * this.width;
  }

  private fillLegend(step = -1): void {
    const { totals } = this;
    if (!totals || totals.peak < 0) {
      this.legend.replaceChildren(
        ...(this.state.model.view.no_memory ? marked(this.state.model.view.no_memory) : []),
      );
      return;
    }
    const at = step >= 0 ? step : totals.peak;
    const kinds = STACKED.filter((_, k) => totals.kinds[k]!.some((bytes) => bytes > 0)).reverse();
    this.legend.replaceChildren(
      h(
        "span",
        { class: "jv-ov-when" },
        step >= 0 ? `memory at step ${formatCount(step + 1)}` : "memory at the peak",
        h("strong", {}, formatBytes(totals.total[at]!)),
      ),
      ...kinds.map((kind) =>
        h(
          "span",
          { class: `jv-ov-kind jv-of-${kind}` },
          NAMES[kind],
          h("span", {}, formatBytes(totals.kinds[STACKED.indexOf(kind)]![at]!)),
        ),
      ),
    );
  }

  // --- pointing and choosing ---

  private say(text: string | null): void {
    this.said.replaceChildren(...marked(text ?? HINT));
    this.said.classList.toggle("is-hint", text === null);
  }

  private point(place: Place | null): void {
    this.state.pointTo(place);
  }

  private openScope(scope: Scope): void {
    this.state.arrange("kept");
    this.state.selectRows(this.overview.rowsOf(scope));
  }

  private openStep(step: number): void {
    const row = this.timeline?.steps[step]?.row ?? -1;
    if (row < 0) return;
    this.state.arrange("cost");
    this.state.selectRow(row);
  }

  private stepAt({ clientX }: MouseEvent): number {
    const x = Math.floor(clientX - this.memory.getBoundingClientRect().left);
    const { columns, totals } = this;
    if (!columns || !totals) return -1;
    const c = Math.min(columns.first.length - 1, Math.max(0, x));
    let best = columns.first[c]!;
    for (let i = best; i <= columns.last[c]!; i++) if (totals.total[i]! > totals.total[best]!) best = i;
    return best;
  }

  private moveTo(step: number): void {
    this.at = step;
    this.fillLegend(step);
    this.cursor.hidden = step < 0;
    if (step < 0) {
      this.memory.removeAttribute("aria-valuetext");
      this.point(null);
      this.say(null);
      return;
    }
    const { row } = this.timeline!.steps[step]!;
    const { model } = this.state;
    this.cursor.style.left = `${this.xOf(step).toFixed(1)}px`;
    const place = model.place(row);
    const text = `step ${formatCount(step + 1)}: \`${model.primitive(row)}\` at \`${lineOf(model, place)}\``;
    this.memory.setAttribute("aria-valuenow", String(step + 1));
    this.memory.setAttribute(
      "aria-valuetext",
      `${text.replaceAll("`", "")}, ${formatBytes(this.totals!.total[step]!)}`,
    );
    this.point(place);
    this.say(`${text} · ${model.placeText(place)}`);
  }

  private onMemoryKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.timeline) return;
    const n = this.timeline.steps.length;
    const page = Math.max(1, Math.round(n / 40));
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -page, PageDown: page }[event.key];
    const to = { Home: 0, End: n - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") this.openStep(this.at < 0 ? this.totals!.peak : this.at);
    else if (to !== undefined) this.moveTo(to);
    else if (by === undefined) return;
    else this.moveTo(this.at < 0 ? this.totals!.peak : Math.min(n - 1, Math.max(0, this.at + by)));
    event.preventDefault();
    event.stopPropagation();
  }

  /** Arrow keys go to the enclosing scope, to a nested one, and to those next to it. */
  private onScopeKey(event: KeyboardEvent, { scope, depth }: Box, element: HTMLElement): void {
    const beside = this.boxes.filter(({ box }) => box.depth === depth);
    const at = beside.findIndex((other) => other.element === element);
    const inside = scope.children.map((child) => this.elementOf(child.index)).find((child) => child);
    const next = {
      ArrowUp: this.elementOf(scope.parent),
      ArrowDown: inside,
      ArrowLeft: beside[at - 1]?.element,
      ArrowRight: beside[at + 1]?.element,
      Home: beside[0]?.element,
      End: beside.at(-1)?.element,
    }[event.key];
    if (!event.key.startsWith("Arrow") && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    event.stopPropagation();
    if (next === undefined) return;
    element.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  private elementOf(scope: number): HTMLElement | undefined {
    return this.boxes.find(({ box }) => box.scope.index === scope)?.element;
  }

  /** Highlights the scopes and saved expressions of the selection. */
  private light(): void {
    const { selection, model } = this.state;
    const scopes = new Set(
      [...selection.rows].flatMap((row) => this.overview.around(row).map((s) => s.index)),
    );
    if (selection.line >= 0)
      for (const row of model.rowsOfLine(selection.file, selection.line))
        for (const scope of this.overview.around(row)) scopes.add(scope.index);
    for (const { box, element } of this.boxes)
      element.classList.toggle("is-lit", scopes.has(box.scope.index));
    for (const { kept, row } of this.bands) {
      const isOfLine = kept?.place?.file === selection.file && kept?.place?.line === selection.line;
      const isMeant = kept !== null && (isOfLine || kept.residuals.some((r) => selection.residuals.has(r)));
      row.classList.toggle("is-lit", isMeant);
    }
  }
}

const greatest = (values: Float64Array): number => values.reduce((a, b) => Math.max(a, b), 0);
