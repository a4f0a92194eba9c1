/** The animation of a gradient: what runs, what is saved and read again, and the memory over time. */

import { formatBytes, formatCount, plural } from "../base/format";
import {
  type Frame,
  isRecomputed,
  type Motion,
  motionOf,
  PACES,
  type Pace,
  type Shelf,
} from "../model/motion";
import { type Kept, lineOf, overviewOf } from "../model/overview";
import type { Place } from "../model/records";
import { ALL, type Span } from "../model/span";
import { peakOf } from "../model/timeline";
import type { State } from "../state/state";
import { button, choice, h, onResize, svg } from "../ui/dom";
import { fitted, wrapped } from "../ui/fit";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";
import { Waiting } from "../ui/waiting";
import { Chart } from "./chart";
import { PlayBar, type Played } from "./playbar";
import { TimeControl } from "./timecontrol";

/** How long a frame in which something is saved or read is shown at speed 1, at most and at least, and any other; in milliseconds. */
const [STAYS, STAYS_LEAST, PASSES] = [1500, 40, 60];

/** The time budget of all such frames, and of all others, in milliseconds; the minimum takes precedence. */
const [ALL_STOPS, ALL_OTHERS] = [40_000, 8_000];

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const FALLS = 450;

/** Below this duration of a stop, values are not animated; in milliseconds. */
const SEEN = 120;

/** The height of the chart, at least and at most; below which height of the pane all is more compact; and what the rest needs, in a compact one less; in pixels. */
const [CHART_LEAST, CHART_MOST, LOW, REST, REST_LOW] = [76, 150, 460, 384, 300];

/** The width of a bin in a row of bins, in pixels, of which there are so many. */
const [BIN, FEWEST, MOST] = [100, 4, 10];

/** The width of a letter of a bin's name, and of what runs, and of what is beside that, in pixels. */
const [LETTER, LARGE_LETTER, BESIDE] = [7, 9.1, 70];

/** The lines of a bin's name, and in a low pane. */
const [LINES, LINES_LOW] = [3, 2];

export class MotionPane implements Played {
  readonly element: HTMLElement;
  private motion: Motion | null = null;
  private frames: readonly Frame[] = [];
  /** In how many of them something is saved or read. */
  private stopCount = 0;
  /** The frame that is shown. */
  private current = 0;
  private chart: Chart | null = null;
  private width = 0;
  private chartHeight = CHART_MOST;
  private isLow = false;
  private waiting: Waiting | null = null;
  private drawn: Span = ALL;
  private readonly time: TimeControl;
  private shelves: { shelf: Shelf; element: HTMLElement; fill: HTMLElement; size: HTMLElement }[] = [];
  private readonly stops: (() => void)[] = [];
  private readonly now = h("div.jv-mo-now.jv-fixed.jv-column", { "data-testid": "motion-now" });
  private readonly said = h("p.jv-mo-said.jv-fixed", { "aria-live": "polite", "data-testid": "motion-said" });
  private readonly rack = h("div.jv-mo-rack.jv-fills", { role: "group", "aria-label": "what is in memory" });
  private readonly areas = svg("g");
  private readonly marks = svg("g");
  private readonly plot = h(
    "div.jv-plot.jv-time.jv-mo-chart",
    { "data-testid": "motion-chart" },
    svg("svg", { "aria-hidden": "true" }, this.areas, this.marks),
  );
  private readonly air = h("div.jv-mo-air", { "aria-hidden": true });
  private readonly body = h("div.jv-mo-body.jv-scroll.jv-column");
  private readonly bar: PlayBar;
  private readonly pace = choice(
    PACES.map((pace) => [pace, `by ${pace}`]),
    () => this.setPace(),
    {
      class: "jv-field jv-speed",
      "aria-label": "play",
      title: "What is played as one",
      "data-testid": "motion-pace",
    },
  );

  constructor(private readonly state: State) {
    this.bar = new PlayBar("motion", this, SPEEDS);
    const { first, back, play, on, last } = this.bar.buttons;
    const stop = (by: 1 | -1, text: string, which: string, id: string) =>
      this.bar.button(text, `To the ${which} change: a value saved or read (${by < 0 ? "↑" : "↓"})`, id, () =>
        this.go(this.stopFrom(by)),
      );
    const stopBack = stop(-1, "⇤ change", "previous", "stop-back");
    const stopOn = stop(1, "change ⇥", "next", "stop-on");
    this.element = h(
      "section.jv-motion.jv-fills.jv-column",
      {
        "aria-label": "the gradient in motion",
        "data-testid": "motion",
        tabindex: -1,
      },
      this.bar.element([first, stopBack, back, play, on, stopOn, last], [], [this.pace]),
      this.body,
    );
    this.time = new TimeControl(state, this.element, {
      plot: this.plot,
      inner: () => this.chart,
      timeline: () => this.motion?.timeline ?? null,
      stepAt: (x) => this.stepAt(x),
      cursor: () => this.shownStep,
      moveTo: (step) => this.go(this.frameOf(step)),
      dragTo: (step) => this.go(this.frameOf(step)),
    });
    this.plot.onpointermove = (event) => this.tellStep(this.stepAt(event.clientX));
    this.plot.onpointerleave = () => this.time.tell();
    this.plot.onclick = (event) => this.go(this.frameOf(this.stepAt(event.clientX)));
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.stops.push(onResize(this.body, (width, height) => this.resize(Math.floor(width), height)));
  }

  readonly effects: Effects = [
    [() => this.state.hasMemory, () => this.fill()],
    [() => this.isSeen && this.state.time.span, () => this.redraw()],
    [() => this.state.time.interval, () => this.markChart()],
    [() => this.isSeen, () => (this.isSeen ? this.show() : this.bar.pause())],
  ];

  private redraw(): void {
    if (this.isSeen && this.drawn !== this.state.time.span) this.draw();
  }

  private get isSeen(): boolean {
    return this.state.view === "motion";
  }

  focus(): void {
    this.element.focus({ preventScroll: true });
  }

  destroy(): void {
    this.bar.pause();
    this.time.destroy();
    this.waiting?.destroy();
    for (const stop of this.stops) stop();
  }

  private fill(): void {
    this.bar.pause();
    this.waiting?.destroy();
    this.waiting = null;
    const { view } = this.state.model;
    if (!view.has_memory) {
      this.waiting = new Waiting(this.state.rest, "Computing the memory over time…");
      this.body.replaceChildren(this.waiting.element);
      return;
    }
    this.body.replaceChildren(
      h("div.jv-mo-scene.jv-column", this.now, this.said, this.rack, this.air),
      h("div.jv-mo-axis.jv-flex.jv-fixed", this.time.bar),
      this.plot,
    );
    this.motion = motionOf(this.state.model);
    this.fillShelves();
    this.setPace();
  }

  /** Creates as many shelves as have room. */
  private fillShelves(): void {
    const { motion } = this;
    if (motion === null || this.width === 0) return;
    const { model } = motion;
    const bins = Math.min(MOST, Math.max(FEWEST, Math.floor(this.width / BIN)));
    const isAgain = model.timeline.buffers.some((buffer) => isRecomputed(model, buffer));
    // The others are for temporaries, cotangents, and what is recomputed.
    const most = Math.max(1, bins - 2 - Number(isAgain));
    const shelves = motion.shelves(most);
    this.shelves = shelves.map((shelf) => this.shelfOf(shelf, this.width / shelves.length));
    this.rack.replaceChildren(...this.shelves.map(({ element }) => element));
  }

  private setPace(): void {
    const { motion, shownStep } = this;
    if (!motion) return;
    this.bar.pause();
    this.frames = motion.frames(this.pace.value as Pace);
    this.stopCount = this.frames.filter((frame) => motion.isStop(frame)).length;
    this.draw();
    this.time.tell();
    this.goTo(this.frameOf(shownStep));
  }

  /** The last step that the frame shows. */
  private get shownStep(): number {
    return this.frames[this.current]?.last ?? 0;
  }

  /** The frame of a step. */
  private frameOf(step: number): number {
    return Math.max(
      0,
      this.frames.findIndex(({ last }) => last >= step),
    );
  }

  /** The next or previous frame in which something is saved or read, or the first or last. */
  private stopFrom(by: 1 | -1): number {
    const { frames, motion } = this;
    const isEnd = (at: number) => at <= 0 || at >= frames.length - 1;
    let at = this.current + by;
    while (!isEnd(at) && !motion?.isStop(frames[at]!)) at += by;
    return at;
  }

  private shelfOf(shelf: Shelf, width: number): (typeof this.shelves)[number] {
    const fill = h("span.jv-mo-fill");
    const size = h("span.jv-mo-size.jv-digits.jv-nowrap");
    const isCode = shelf.kind === "kept" && shelf.place !== null;
    const lines = wrapped(shelf.label, (width - 18) / LETTER, this.isLow ? LINES_LOW : LINES);
    const label = h(isCode ? "code" : "span", { class: "jv-mo-label" }, lines.join("\n"));
    const open = () =>
      shelf.residuals.length > 0 ? this.state.openResiduals(shelf.residuals) : this.state.arrange("cost");
    const at = h("span.jv-mo-at-line.jv-dim", shelf.place ? `line ${shelf.place.line}` : "");
    const hue = shelf.kind === "temporary" || shelf.kind === "cotangent" ? shelf.kind : "residual";
    const bin = h("span", { class: `jv-mo-bin jv-of-${hue}` }, fill);
    const element = button([bin, size, label, at], open, {
      class: `jv-mo-shelf is-${shelf.kind}`,
      title: [
        shelf.label,
        this.state.model.placeText(shelf.place),
        shelf.reason,
        `at most ${formatBytes(shelf.most)}`,
      ]
        .filter(Boolean)
        .join("\n"),
      "data-testid": "shelf",
    });
    return { shelf, element, fill, size };
  }

  private resize(width: number, height: number): void {
    if (width === 0) return;
    const isLow = height > 0 && height < LOW;
    const isOther = width !== this.width || isLow !== this.isLow;
    this.chartHeight = Math.round(
      Math.min(CHART_MOST, Math.max(CHART_LEAST, height - (isLow ? REST_LOW : REST))),
    );
    this.width = width;
    this.isLow = isLow;
    this.element.classList.toggle("is-low", isLow);
    if (isOther) this.fillShelves();
    this.draw();
    if (isOther) this.goTo(this.current);
  }

  private draw(): void {
    if (!this.motion || this.width === 0) return;
    this.drawn = this.state.time.span;
    const pixels = globalThis.devicePixelRatio || 1;
    this.plot.style.height = `${this.chartHeight}px`;
    this.chart = new Chart(this.motion.totals, this.width, this.chartHeight, pixels, { span: this.drawn });
    this.areas.replaceChildren(...this.chart.draw());
    this.markChart();
  }

  private stepAt(x: number): number {
    return this.chart?.stepAt(x - this.plot.getBoundingClientRect().left) ?? -1;
  }

  /** Says what is at the pointer. */
  private tellStep(step: number): void {
    if (!this.motion || step < 0) return;
    const { timeline, totals, model } = this.motion;
    const { row, what, isBackward } = timeline.steps[step]!;
    const place = row >= 0 ? model.placeText(model.place(row)) : "";
    const parts = [
      `step ${formatCount(step + 1)} of ${formatCount(timeline.steps.length)}`,
      isBackward ? "backward" : "forward",
      what ?? (row >= 0 ? model.primitive(row) : ""),
      place,
      formatBytes(totals.total[step]!),
    ];
    this.time.tell(parts.filter(Boolean).join(" · "));
  }

  private show(): void {
    this.goTo(this.current);
    this.focus();
  }

  /** Goes to a frame and pauses. */
  go(frame: number): void {
    this.bar.pause();
    this.goTo(frame);
  }

  private goTo(to: number): void {
    const { motion, frames } = this;
    if (!motion || frames.length === 0) return;
    const before = this.current;
    this.current = Math.min(frames.length - 1, Math.max(0, to));
    const frame = frames[this.current]!;
    const step = frame.last;
    this.bar.show(this.current, frames.length);
    const most = Math.max(1, ...this.shelves.map(({ shelf }) => shelf.most));
    for (const { shelf, element, fill, size } of this.shelves) {
      const bytes = shelf.alive[step]!;
      // Shelves are as high as their maximum, but high enough to be visible.
      const height = (n: number) => (n > 0 ? Math.max(8, (100 * n) / most) : 0);
      element.style.setProperty("--most", `${height(shelf.most).toFixed(1)}%`);
      fill.style.height = `${shelf.most > 0 ? ((100 * bytes) / shelf.most).toFixed(1) : 0}%`;
      size.textContent = bytes > 0 ? formatBytes(bytes) : "–";
      element.classList.toggle("is-empty", bytes === 0);
    }
    const row = frame.rows[0] ?? motion.timeline.steps[frame.first]!.row;
    this.tell(frame, row);
    this.markChart();
    if (this.state.view === "motion") this.state.pointTo(this.placeOf(frame, row));
    const { saves, reads } = motion.during(frame);
    const [saved, read] = [this.shelvesOf(saves), this.shelvesOf(reads)];
    this.shelves.forEach(({ element }, i) => {
      element.classList.toggle("is-saved", saved.has(i));
      element.classList.toggle("is-read", read.has(i));
    });
    if (this.current === before + 1 || (this.bar.isPlaying && this.current > before)) {
      for (const i of saved) this.fly(i, true);
      for (const i of read) this.fly(i, false);
    }
  }

  /** On which shelves the values of some expressions are. */
  private shelvesOf(all: readonly Kept[]): ReadonlySet<number> {
    return new Set(all.map((kept) => this.shelves.findIndex(({ shelf }) => shelf.members.includes(kept))));
  }

  /** The place of what runs; of several equations, their line. */
  private placeOf({ first, last, rows }: Frame, row: number): Place | null {
    const place = this.motion!.model.place(row);
    const isOne = first === last && rows.length < 2;
    return isOne || place === null ? place : { ...place, startLine: 0, start: 0, endLine: 0, end: 0 };
  }

  /** Describes what runs, and its effect on the shelves. */
  private tell(frame: Frame, row: number): void {
    const { model, timeline, totals } = this.motion!;
    const { first, last, loop } = frame;
    const { isBackward, what } = timeline.steps[first]!;
    const place = row >= 0 ? model.place(row) : null;
    const isAgain = this.motion!.isAgain(first);
    const pass = isAgain
      ? "backward pass, recomputed for a checkpoint"
      : isBackward
        ? "backward pass"
        : "forward pass";
    const inside = loop < 0 ? "" : `, in each of ${plural(model.length(loop), "iteration")}`;
    // Most equations of the forward pass are the function's own.
    const rule = row >= 0 && !isAgain && model.role(row) !== "primal" ? model.rule(row) : "";
    const n = loop < 0 ? last - first + 1 : frame.rows.length;
    const primitive = loop < 0 ? (what ?? (row >= 0 ? model.primitive(row) : "")) : model.primitive(row);
    const runs = n > 1 ? plural(n, "equation") : [h("code", primitive), rule && ` · ${rule}`];
    const title = this.title(row, place ? lineOf(model, place) : "");
    const letters = (this.width - BESIDE) / LARGE_LETTER;
    this.now.className = `jv-mo-now jv-fixed jv-column ${isAgain ? "is-again" : isBackward ? "is-backward" : "is-forward"}`;
    this.now.replaceChildren(
      h("span.jv-mo-pass.jv-dim", pass + inside),
      h("code.jv-mo-line.jv-cut", { title }, this.width > 0 ? fitted(title, letters) : title),
      h(
        "span.jv-dim",
        ...[runs].flat().filter(Boolean),
        place ? ` · ${model.placeText(place)}` : "",
        ` · ${formatBytes(totals.total[last]!)} in memory`,
        first <= totals.peak && totals.peak <= last ? h("strong.jv-mo-peak", "the peak") : "",
      ),
    );
    this.said.replaceChildren(...marked(this.sentence(frame)));
  }

  /** What runs: the line, or the layer. */
  private title(row: number, line: string): string {
    if (this.pace.value !== "layer") return line;
    const overview = overviewOf(this.motion!.model);
    const [scope] = overview.around(row).slice(-2);
    return scope?.name || line;
  }

  private sentence(frame: Frame): string {
    const { saves, reads, frees } = this.motion!.during(frame);
    const named = (all: readonly Kept[]) =>
      all
        .slice(0, 3)
        .map(({ label }) => `\`${label}\``)
        .join(", ") + (all.length > 3 ? ` and ${formatCount(all.length - 3)} more` : "");
    const parts = [];
    const [first] = saves;
    if (first !== undefined) {
      const { reason } = first;
      parts.push(`It saves ${named(saves)}${saves.length === 1 && reason ? `: ${reason}` : "."}`);
    }
    if (reads.length > 0) parts.push(`It reads ${named(reads)}.`);
    const freed = frees.filter((kept) => !saves.includes(kept));
    if (freed.length > 0) parts.push(`Afterwards the memory of ${named(freed)} is free.`);
    return parts.join(" ");
  }

  private markChart(): void {
    const { chart, motion } = this;
    if (!chart || !motion) return;
    const [, to] = chart.around(this.shownStep);
    const { y, height } = chart.cursor(this.shownStep) as { y: number; height: number };
    const { interval } = this.state.time;
    this.marks.replaceChildren(
      ...(interval?.timeline === motion.timeline ? chart.interval(interval.first, interval.last) : []),
      svg("rect", { class: "jv-mo-later", x: to, width: Math.max(0, chart.right - to), y, height }),
      svg("line", { class: "jv-mo-at", x1: to, x2: to, y1: y, y2: y + height }),
    );
    const share = (100 * motion.totals.total[this.shownStep]!) / Math.max(1, peakOf(motion.totals));
    this.bar.slider.setAttribute(
      "aria-valuetext",
      `${this.bar.count.textContent}, memory at ${share.toFixed(0)} % of its peak`,
    );
  }

  /** Animates a value that is saved to or read from its shelf. */
  private fly(number: number, isSaved: boolean): void {
    const stays = this.staysOfStop / this.bar.speed;
    if (this.bar.isPlaying && stays < SEEN) return;
    if (!globalThis.matchMedia?.("(prefers-reduced-motion: no-preference)").matches) return;
    const shelf = this.shelves[number]!.element.querySelector(".jv-mo-bin")!.getBoundingClientRect();
    const [now, scene] = [this.now, this.air].map((element) => element.getBoundingClientRect());
    const from = {
      x: Math.min(now!.right - 40, Math.max(now!.left + 20, shelf.left + shelf.width / 2)),
      y: now!.bottom,
    };
    const to = { x: shelf.left + shelf.width / 2, y: shelf.top + shelf.height / 2 };
    const at = ({ x, y }: typeof from) => `translate(${x - scene!.left}px, ${y - scene!.top}px)`;
    const drop = h("span", { class: `jv-mo-drop ${isSaved ? "is-saved" : "is-read"}` });
    this.air.append(drop);
    const path = isSaved ? [from, to] : [to, from];
    const way = drop.animate([{ transform: at(path[0]!) }, { transform: at(path[1]!) }], {
      duration: Math.min(FALLS, stays / 1.5),
      easing: "cubic-bezier(.4, 0, .3, 1)",
      fill: "both",
    });
    way.onfinish = () => drop.remove();
  }

  // --- playing ---

  /** How long a frame in which something is saved or read stays at speed 1, in milliseconds. */
  private get staysOfStop(): number {
    return Math.min(STAYS, Math.max(STAYS_LEAST, ALL_STOPS / Math.max(1, this.stopCount)));
  }

  get stays(): number {
    const frame = this.frames[this.current];
    return frame && this.motion?.isStop(frame) ? this.staysOfStop : PASSES;
  }

  get isAtEnd(): boolean {
    return this.current >= this.frames.length - 1;
  }

  move(by: 1 | -1): void {
    this.go(this.current + by);
  }

  /** Goes on, or skips several frames that save and read nothing. */
  advance(): boolean {
    if (this.isAtEnd) return false;
    const stride = Math.max(1, Math.ceil(((this.frames.length - this.stopCount) * PASSES) / ALL_OTHERS));
    this.goTo(Math.min(this.stopFrom(1), this.current + stride));
    this.time.reveal(this.shownStep);
    return true;
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    const isField = (event.target as HTMLElement).matches("select, input");
    const isButton = (event.target as HTMLElement).matches("button");
    const end = Number.MAX_SAFE_INTEGER;
    const to = {
      ArrowLeft: this.current - 1,
      ArrowRight: this.current + 1,
      ArrowUp: this.stopFrom(-1),
      ArrowDown: this.stopFrom(1),
      Home: 0,
      End: end,
    }[event.key];
    if (event.key === " " && !isButton && !isField) this.bar.playOrPause();
    else if (to !== undefined && !isField) {
      this.go(to);
      this.time.reveal(this.shownStep);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
