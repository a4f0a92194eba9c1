/** The bar of what is played step by step: buttons, a slider, which step is shown, and the speed. */

import { formatCount } from "../base/format";
import { button, choice, h } from "../ui/dom";

/** What is played; steps count from 0. */
export interface Played {
  /** Goes to a step; past the end, to the last. */
  go(step: number): void;
  /** Goes to the next or the previous step. */
  move(by: 1 | -1): void;
  /** Goes on by itself; returns whether it could. */
  advance(): boolean;
  /** Whether there is nothing to go on to: it then plays from the start. */
  readonly isAtEnd: boolean;
  /** How long the step shown stays at speed 1, in milliseconds. */
  readonly stays: number;
}

export class PlayBar {
  readonly buttons: Record<"first" | "back" | "play" | "on" | "last", HTMLButtonElement>;
  readonly slider: HTMLInputElement;
  readonly count: HTMLOutputElement;
  private readonly speeds: HTMLSelectElement;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly id: string,
    private readonly played: Played,
    speeds: readonly number[],
  ) {
    const end = Number.MAX_SAFE_INTEGER;
    this.buttons = {
      first: this.button("|← start", "To the start (Home)", "first", () => played.go(0)),
      back: this.button("← back", "One step back (←)", "back", () => played.move(-1)),
      play: this.button("▶ play", "Play (Space)", "play", () => this.playOrPause()),
      on: this.button("next →", "To the next step (→)", "on", () => played.move(1)),
      last: this.button("end →|", "To the end (End)", "last", () => played.go(end)),
    };
    this.buttons.play.classList.add("jv-play-pause");
    this.slider = h("input.jv-slider", {
      type: "range",
      min: 1,
      "aria-label": "step",
      "data-testid": `${id}-slider`,
      oninput: () => played.go(Number(this.slider.value) - 1),
    });
    this.count = h("output.jv-step-count.jv-digits.jv-nowrap", { "data-testid": `${id}-count` });
    this.speeds = choice(
      speeds.map((speed) => [String(speed), `${speed}×`]),
      () => this.isPlaying && this.play(),
      { class: "jv-field jv-speed", "aria-label": "speed", title: "Speed" },
    );
    this.speeds.value = "1";
  }

  /** `← back`: a symbol, and a word that is hidden if there is no room. */
  button(text: string, title: string, id: string, onclick: () => void): HTMLButtonElement {
    const parts = text.split(" ").map((part) => (/^[a-z]/.test(part) ? h("span.jv-play-word", part) : part));
    return button(parts, onclick, { title, "aria-label": title, "data-testid": `${this.id}-${id}` });
  }

  /** The bar, with other controls before the buttons, among them, and at the end. */
  element(
    keys: readonly HTMLElement[] = Object.values(this.buttons),
    before: readonly HTMLElement[] = [],
    after: readonly HTMLElement[] = [],
  ): HTMLElement {
    const { slider, count, speeds } = this;
    const all = [...before, h("span.jv-play-keys", ...keys), slider, count, speeds, ...after];
    return h("div.jv-play-bar.jv-ruled.jv-head-bar.jv-wraps", ...all);
  }

  /** Shows which of `n` steps is shown. */
  show(step: number, n: number): void {
    this.slider.max = String(Math.max(1, n));
    this.slider.value = String(step + 1);
    this.count.textContent = `${formatCount(step + 1)} of ${formatCount(n)}`;
  }

  get speed(): number {
    return Number(this.speeds.value);
  }

  get isPlaying(): boolean {
    return this.timer !== undefined;
  }

  playOrPause(): void {
    if (this.isPlaying) {
      this.pause();
      return;
    }
    if (this.played.isAtEnd) this.played.go(0);
    this.play();
  }

  private play(): void {
    clearTimeout(this.timer);
    const next = () => (this.played.advance() ? this.play() : this.pause());
    this.timer = setTimeout(next, this.played.stays / this.speed);
    this.mark();
  }

  pause(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.mark();
  }

  private mark(): void {
    const { play } = this.buttons;
    const title = this.isPlaying ? "Pause (Space)" : "Play (Space)";
    play.textContent = this.isPlaying ? "❚❚ pause" : "▶ play";
    play.title = title;
    play.setAttribute("aria-label", title);
    play.setAttribute("aria-pressed", String(this.isPlaying));
  }
}
