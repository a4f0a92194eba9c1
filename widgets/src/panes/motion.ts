/** The animation of a gradient: what runs, what is saved and read again, and the memory over time. */

import { Waiting } from "../main/waiting";
import { type Motion, motionOf, type Shelf } from "../model/motion";
import { lineOf } from "../model/overview";
import { peakOf } from "../model/timeline";
import type { Change, State } from "../state/state";
import { button, h, onResize, reveal, svg } from "../ui/dom";
import { formatBytes, formatCount } from "../ui/format";
import { marked } from "../ui/marked";
import { Chart } from "./chart";
import { played } from "./playbar";

/** How long a step that saves or reads something is shown at speed 1, at most and at least, and any other step; in milliseconds. */
const [STAYS, STAYS_LEAST, PASSES] = [1500, 40, 60];

/** The time budget of all such steps, and of all others, in milliseconds; the minimum takes precedence. */
const [ALL_STOPS, ALL_OTHERS] = [40_000, 8_000];

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const FALLS = 450;

/** Below this duration of a stop, values are not animated; in milliseconds. */
const SEEN = 120;
const CHART = 150;

export class MotionPane {
  readonly element: HTMLElement;
  private motion: Motion | null = null;
  private current = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private chart: Chart | null = null;
  private width = 0;
  private waiting: Waiting | null = null;
  private shelves: { shelf: Shelf; element: HTMLElement; fill: HTMLElement; size: HTMLElement }[] = [];
  private readonly stops: (() => void)[] = [];
  private readonly now = h("div", { class: "jv-mo-now", "data-testid": "motion-now" });
  private readonly said = h("p", {
    class: "jv-mo-said",
    "aria-live": "polite",
    "data-testid": "motion-said",
  });
  private readonly rack = h("div", { class: "jv-mo-rack", role: "group", "aria-label": "what is in memory" });
  private readonly drawing = svg("svg", {
    class: "jv-plot jv-mo-chart",
    height: CHART,
    "aria-hidden": "true",
  });
  private readonly air = h("div", { class: "jv-mo-air", "aria-hidden": true });
  private readonly body = h("div", { class: "jv-mo-body" });
  private readonly count = h("output", { class: "jv-step-count", "data-testid": "motion-count" });
  private readonly slider = h("input", {
    type: "range",
    class: "jv-slider",
    min: 1,
    "aria-label": "step",
    "data-testid": "motion-slider",
    oninput: () => this.jump(Number(this.slider.value) - 1),
  });
  private readonly speed = h(
    "select",
    { class: "jv-speed", "aria-label": "speed", title: "Speed" },
    ...SPEEDS.map((s) => h("option", { value: s, selected: s === 1 }, `${s}×`)),
  );
  private readonly playing: HTMLButtonElement;

  constructor(private readonly state: State) {
    const act = (text: string, title: string, id: string, onclick: () => void) =>
      button(played(text), onclick, { title, "aria-label": title, "data-testid": id });
    this.playing = act("▶ play", "Play (Space)", "motion-play", () => this.playOrPause());
    this.playing.classList.add("jv-play-pause");
    const stop = (by: 1 | -1) => () => this.jump(this.motion?.stopFrom(this.current, by) ?? 0);
    this.element = h(
      "section",
      { class: "jv-motion", "aria-label": "the gradient in motion", "data-testid": "motion", tabindex: -1 },
      h(
        "div",
        { class: "jv-play-bar" },
        h(
          "span",
          { class: "jv-play-keys" },
          act("|← start", "To the start (Home)", "motion-first", () => this.jump(0)),
          act("⇤ change", "To the previous change: a value saved or read (↑)", "motion-stop-back", stop(-1)),
          act("← back", "One step back (←)", "motion-back", () => this.jump(this.current - 1)),
          this.playing,
          act("next →", "To the next step (→)", "motion-on", () => this.jump(this.current + 1)),
          act("change ⇥", "To the next change: a value saved or read (↓)", "motion-stop-on", stop(1)),
          act("end →|", "To the end (End)", "motion-last", () => this.jump(Number.MAX_SAFE_INTEGER)),
        ),
        this.slider,
        this.count,
        this.speed,
      ),
      this.body,
    );
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.stops.push(state.rest.listen(() => this.waiting?.update()));
    this.stops.push(onResize(this.body, (width) => this.resize(Math.floor(width))));
    this.fill();
  }

  update(change: Change): void {
    if (change === "memory") this.fill();
    if (change !== "view") return;
    if (this.state.view === "motion") this.show();
    else this.pause();
  }

  focus(): void {
    this.element.focus({ preventScroll: true });
  }

  destroy(): void {
    this.pause();
    this.waiting?.destroy();
    for (const stop of this.stops) stop();
  }

  private fill(): void {
    this.pause();
    this.waiting?.destroy();
    this.waiting = null;
    const { view } = this.state.model;
    if (!view.has_memory) {
      this.waiting = new Waiting(this.state.rest, "Computing the memory over time…");
      this.body.replaceChildren(this.waiting.element);
      return;
    }
    this.motion = motionOf(this.state.model);
    this.slider.max = String(Math.max(1, this.motion.length));
    this.shelves = this.motion.shelves.map((shelf) => this.shelfOf(shelf));
    this.rack.replaceChildren(...this.shelves.map(({ element }) => element));
    this.body.replaceChildren(
      h("div", { class: "jv-mo-scene" }, this.now, this.said, this.rack, this.air),
      this.drawing,
    );
    this.draw();
    this.go(0);
  }

  private shelfOf(shelf: Shelf): (typeof this.shelves)[number] {
    const fill = h("span", { class: "jv-mo-fill" });
    const size = h("span", { class: "jv-mo-size" });
    const isCode = shelf.kind === "kept" && shelf.place !== null;
    const label = h(isCode ? "code" : "span", { class: "jv-mo-label" }, shelf.label);
    const open = () =>
      shelf.residuals.length > 0 ? this.state.openResiduals(shelf.residuals) : this.state.arrange("cost");
    const at = h("span", { class: "jv-mo-at-line" }, shelf.place ? `line ${shelf.place.line}` : "");
    const element = button([h("span", { class: "jv-mo-bin" }, fill), size, label, at], open, {
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

  private resize(width: number): void {
    if (width === this.width || width === 0) return;
    this.width = width;
    this.draw();
    this.go(this.current);
  }

  private draw(): void {
    if (!this.motion || this.width === 0) return;
    this.chart = new Chart(this.motion.totals, this.width, CHART, globalThis.devicePixelRatio || 1, {
      span: this.state.time.span,
    });
    this.drawing.setAttribute("width", String(this.width));
    this.drawing.onclick = (event) => {
      const step = this.chart!.stepAt(
        (event as MouseEvent).clientX - this.drawing.getBoundingClientRect().left,
      );
      if (step >= 0) this.jump(step);
    };
  }

  private show(): void {
    this.go(this.current);
    this.focus();
  }

  /** Goes to a step and pauses. */
  private jump(step: number): void {
    this.pause();
    this.go(step);
  }

  private go(to: number): void {
    const { motion } = this;
    if (!motion || motion.length === 0) return;
    const before = this.current;
    this.current = Math.min(motion.length - 1, Math.max(0, to));
    const step = this.current;
    this.slider.value = String(step + 1);
    this.count.textContent = `${formatCount(step + 1)} of ${formatCount(motion.length)}`;
    const most = Math.max(1, ...motion.shelves.map((shelf) => shelf.most));
    for (const { shelf, element, fill, size } of this.shelves) {
      const bytes = shelf.alive[step]!;
      // Shelves are as high as their maximum, but high enough to be visible.
      const height = (n: number) => (n > 0 ? Math.max(8, (100 * n) / most) : 0);
      element.style.setProperty("--most", `${height(shelf.most).toFixed(1)}%`);
      fill.style.height = `${shelf.most > 0 ? ((100 * bytes) / shelf.most).toFixed(1) : 0}%`;
      size.textContent = bytes > 0 ? formatBytes(bytes) : "–";
      element.classList.toggle("is-empty", bytes === 0);
    }
    this.tell(step);
    this.markChart(step);
    if (this.state.view === "motion")
      this.state.pointTo(motion.model.place(motion.timeline.steps[step]!.row));
    const at = motion.at(step);
    this.shelves.forEach(({ element }, i) => {
      element.classList.toggle("is-saved", at.saves.includes(i));
      element.classList.toggle("is-read", at.reads.includes(i));
    });
    const [changed] = [...at.saves, ...at.reads];
    if (changed !== undefined) reveal(this.rack, this.shelves[changed]!.element);
    if (step === before + 1 || (this.timer !== undefined && step > before)) {
      for (const i of at.saves) this.fly(i, true);
      for (const i of at.reads) this.fly(i, false);
    }
  }

  /** Describes what runs, and its effect on the shelves. */
  private tell(step: number): void {
    const { model, timeline, totals } = this.motion!;
    const { row, isBackward, what } = timeline.steps[step]!;
    const place = row >= 0 ? model.place(row) : null;
    const isAgain = this.motion!.isAgain(step);
    const pass = isAgain
      ? "backward pass, recomputed for a checkpoint"
      : isBackward
        ? "backward pass"
        : "forward pass";
    // Most equations of the forward pass are the function's own.
    const rule = row >= 0 && !isAgain && model.role(row) !== "primal" ? model.rule(row) : "";
    this.now.className = `jv-mo-now ${isAgain ? "is-again" : isBackward ? "is-backward" : "is-forward"}`;
    this.now.replaceChildren(
      h("span", { class: "jv-mo-pass" }, pass),
      h("code", { class: "jv-mo-line" }, place ? lineOf(model, place) : ""),
      h(
        "span",
        { class: "jv-dim" },
        h("code", {}, what ?? (row >= 0 ? model.primitive(row) : "")),
        rule && ` · ${rule}`,
        place ? ` · ${model.placeText(place)}` : "",
        ` · ${formatBytes(totals.total[step]!)} in memory`,
        step === totals.peak ? h("strong", { class: "jv-mo-peak" }, "the peak") : "",
      ),
    );
    this.said.replaceChildren(...marked(this.sentence(step)));
  }

  private sentence(step: number): string {
    const { saves, reads, frees } = this.motion!.at(step);
    const named = (shelves: readonly number[]) =>
      shelves
        .slice(0, 3)
        .map((i) => {
          const { label, place } = this.motion!.shelves[i]!;
          return place ? `\`${label}\`` : "a value of the other expressions";
        })
        .join(", ") + (shelves.length > 3 ? ` and ${shelves.length - 3} more` : "");
    const parts = [];
    const [first] = saves;
    if (first !== undefined) {
      const { reason } = this.motion!.shelves[first]!;
      parts.push(`It saves ${named(saves)}${saves.length === 1 && reason ? `: ${reason}` : "."}`);
    }
    if (reads.length > 0) parts.push(`It reads ${named(reads)}.`);
    const freed = frees.filter((i) => !saves.includes(i));
    if (freed.length > 0) parts.push(`Afterwards the memory of ${named(freed)} is free.`);
    return parts.join(" ");
  }

  private markChart(step: number): void {
    const { chart } = this;
    if (!chart) return;
    const [, to] = chart.around(step);
    const { y, height } = chart.cursor(step) as { y: number; height: number };
    this.drawing.replaceChildren(
      ...chart.draw(),
      svg("rect", { class: "jv-mo-later", x: to, width: Math.max(0, chart.right - to), y, height }),
      svg("line", { class: "jv-mo-at", x1: to, x2: to, y1: y, y2: y + height }),
    );
    const share = (100 * this.motion!.totals.total[step]!) / Math.max(1, peakOf(this.motion!.totals));
    this.slider.setAttribute(
      "aria-valuetext",
      `${this.count.textContent}, memory at ${share.toFixed(0)} % of its peak`,
    );
  }

  /** Animates a value that is saved to or read from its shelf. */
  private fly(number: number, isSaved: boolean): void {
    if (this.timer !== undefined && this.stays < SEEN) return;
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
      duration: Math.min(FALLS, this.stays / 1.5),
      easing: "cubic-bezier(.4, 0, .3, 1)",
      fill: "both",
    });
    way.onfinish = () => drop.remove();
  }

  // --- playing ---

  /** How long a stop is shown, in milliseconds. */
  private get stays(): number {
    const n = Math.max(1, this.motion?.stops.length ?? 1);
    return Math.min(STAYS, Math.max(STAYS_LEAST, ALL_STOPS / n)) / Number(this.speed.value);
  }

  private playOrPause(): void {
    if (this.timer !== undefined) this.pause();
    else {
      if (this.motion && this.current >= this.motion.length - 1) this.go(0);
      this.wait();
    }
    this.markPlaying();
  }

  private wait(): void {
    const { motion } = this;
    if (!motion) return;
    const isStop = motion.at(this.current).saves.length + motion.at(this.current).reads.length > 0;
    this.timer = setTimeout(() => this.advance(), isStop ? this.stays : PASSES / Number(this.speed.value));
  }

  /** Goes to the next step, or skips several that save and read nothing. */
  private advance(): void {
    const { motion } = this;
    if (!motion || this.current >= motion.length - 1) {
      this.pause();
      return;
    }
    const others = motion.length - motion.stops.length;
    const stride = Math.max(1, Math.ceil((others * PASSES) / ALL_OTHERS));
    this.go(Math.min(motion.stopFrom(this.current, 1), this.current + stride));
    this.wait();
  }

  private pause(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.markPlaying();
  }

  private markPlaying(): void {
    const isPlaying = this.timer !== undefined;
    this.playing.textContent = isPlaying ? "❚❚ pause" : "▶ play";
    const title = isPlaying ? "Pause (Space)" : "Play (Space)";
    this.playing.title = title;
    this.playing.setAttribute("aria-label", title);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isField = (event.target as HTMLElement).matches("select, input");
    const isButton = (event.target as HTMLElement).matches("button");
    const end = Number.MAX_SAFE_INTEGER;
    const to = {
      ArrowLeft: this.current - 1,
      ArrowRight: this.current + 1,
      ArrowUp: this.motion?.stopFrom(this.current, -1),
      ArrowDown: this.motion?.stopFrom(this.current, 1),
      Home: 0,
      End: end,
    }[event.key];
    if (event.key === " " && !isButton && !isField) this.playOrPause();
    else if (to !== undefined && !isField) this.jump(to);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
