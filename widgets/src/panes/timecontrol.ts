/** Zooms and pans a chart over time, with buttons too, and selects an interval of it. */

import { formatCount, plural } from "../base/format";
import { onChange } from "../base/signals";
import { ALL, type Interval, isWhole } from "../model/span";
import { type Timeline, totalsOf } from "../model/timeline";
import type { State } from "../state/state";
import { button, h } from "../ui/dom";
import { type Axis, LEAST, STEP, Zoom } from "../ui/zoom";

/** The axis of a chart over time. */
export interface TimeAxis extends Axis {
  timeline(): Timeline | null;
  /** Moves the keyboard cursor. */
  moveTo(step: number): void;
}

/** How many steps are visible around the peak, or that share of all. */
const [AROUND, SHARE] = [48, 1 / 8];

/** Steps are seen if at least this share of them is. */
const SLACK = 1e-6;

export class TimeControl extends Zoom<TimeAxis> {
  readonly bar: HTMLElement;
  private readonly said = h("output.jv-time-said.jv-dim.jv-digits.jv-cut", { "data-testid": "time-said" });
  private readonly out: readonly HTMLButtonElement[];
  private readonly select: HTMLButtonElement;
  /** What is pointed at, if anything. */
  private told = "";
  /** The end of the interval that keys have moved, and the cursor's step then: the last of several, if they are shown as one. */
  private end = { step: -1, cursor: -1 };

  constructor(
    private readonly state: State,
    surface: HTMLElement,
    axis: TimeAxis,
  ) {
    super(state.time, surface, axis);
    const act = (text: string, title: string, id: string, onclick: () => void) =>
      button(text, onclick, { title, "aria-label": title.split(" (")[0]!, "data-testid": `time-${id}` });
    const zoom = (by: number) => () => this.zoom(by, this.middle());
    this.select = act("select", "Select an interval: drag (Shift + drag)", "select", () =>
      this.select.setAttribute("aria-pressed", String(!this.selects)),
    );
    this.select.setAttribute("aria-pressed", "false");
    this.out = [
      act("−", "Zoom out (-)", "out", zoom(STEP)),
      act("whole run", "Show the whole run (0, double click)", "all", () => state.time.lookAt(ALL)),
    ];
    this.bar = h(
      "div.jv-time-bar.jv-row",
      { role: "group", "aria-label": "time" },
      this.said,
      this.select,
      this.out[0]!,
      act("+", "Zoom in (+)", "in", zoom(-STEP)),
      act("peak", "Zoom to the peak", "peak", () => this.magnifyPeak()),
      this.out[1]!,
    );
    const stop = onChange(
      () => [state.time.span, state.time.interval],
      () => this.show(),
    );
    this.over.signal.addEventListener("abort", stop);
    this.show();
  }

  /** Says what is pointed at; nothing for which steps are visible. */
  tell(text = ""): void {
    this.told = text;
    this.show();
  }

  private show(): void {
    const { span } = this.state.time;
    for (const each of this.out) each.disabled = isWhole(span);
    const n = this.steps;
    this.bar.hidden = n === 0;
    const range = (first: number, last: number) => `steps ${formatCount(first)} to ${formatCount(last)}`;
    const [from, to] = [Math.floor(span.from * n + SLACK) + 1, Math.ceil(span.to * n - SLACK)];
    const seen = isWhole(span) ? plural(n, "step") : `${range(from, to)} of ${formatCount(n)}`;
    const { own } = this;
    const chosen =
      own && `${range(own.first + 1, own.last + 1)}: ${plural(own.last - own.first + 1, "step")}`;
    this.said.textContent = this.told || (chosen ?? seen);
  }

  protected get steps(): number {
    return this.axis.timeline()?.steps.length ?? 0;
  }

  private magnifyPeak(): void {
    const timeline = this.axis.timeline();
    const peak = timeline ? totalsOf(timeline).peak : -1;
    if (peak < 0) return;
    const n = this.steps;
    const around = Math.min(n, AROUND, Math.max(LEAST, n * SHARE));
    const first = Math.min(n - around, Math.max(0, peak + 0.5 - around / 2));
    this.state.time.lookAt({ from: first / n, to: (first + around) / n });
    this.axis.moveTo(peak);
  }

  private get selects(): boolean {
    return this.select.getAttribute("aria-pressed") === "true";
  }

  protected override intervalFrom(event: PointerEvent): number {
    return event.shiftKey || this.selects ? this.axis.stepAt(event.clientX) : -1;
  }

  protected override choose(one: number, other: number): void {
    const timeline = this.axis.timeline();
    if (timeline === null || other < 0) return;
    this.state.time.choose({ timeline, first: Math.min(one, other), last: Math.max(one, other) });
  }

  /** The selected interval, if it is of this chart. */
  private get own(): Interval | null {
    const { interval } = this.state.time;
    return interval?.timeline === this.axis.timeline() ? interval : null;
  }

  /** Lists the equations of the interval. */
  protected override chosen(): void {
    this.select.setAttribute("aria-pressed", "false");
    this.state.arrange("cost");
  }

  protected override actOn({ key, shiftKey }: KeyboardEvent): boolean {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (shiftKey && by !== undefined) this.extend(by);
    else if (shiftKey && key === "Enter" && this.state.time.interval) this.chosen();
    else return false;
    return true;
  }

  /** Moves the cursor's end of the interval. */
  private extend(by: number): void {
    const cursor = this.axis.cursor();
    if (cursor < 0) return;
    const from = cursor === this.end.cursor ? this.end.step : cursor;
    const to = Math.min(this.steps - 1, Math.max(0, from + by));
    const { first, last } = this.own ?? { first: from, last: from };
    this.axis.moveTo(to);
    this.reveal(to);
    this.end = { step: to, cursor: this.axis.cursor() };
    this.choose(from === last ? first : from === first ? last : from, to);
  }
}
