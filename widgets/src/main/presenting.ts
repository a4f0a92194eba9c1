/** Presenting: the pane of one question alone, in large text; the arrow keys go through the questions. */

import type { State, View } from "../state/state";
import type { FullScreen } from "../ui/full";

const PRESENTS = "is-presenting";

/** A clicker sends the keys of a page up and down. */
const STEPS: Record<string, 1 | -1> = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 };

export class Presenting {
  /** Whether the explorer filled the screen before. */
  private wasFull = false;

  constructor(
    private readonly root: HTMLElement,
    private readonly state: State,
    private readonly full: FullScreen,
    private readonly questions: readonly View[],
  ) {
    // Before other meanings of these keys.
    root.addEventListener("keydown", this.onKey, true);
    document.addEventListener("fullscreenchange", this.onFull);
  }

  destroy(): void {
    this.root.removeEventListener("keydown", this.onKey, true);
    document.removeEventListener("fullscreenchange", this.onFull);
  }

  get isOn(): boolean {
    return this.root.classList.contains(PRESENTS);
  }

  readonly toggle = (): void => {
    const { root, full, state } = this;
    const isOn = root.classList.toggle(PRESENTS);
    if (isOn) this.wasFull = full.isOn;
    if (isOn && !this.questions.includes(state.view)) this.go(0);
    if (full.isOn !== isOn && !this.wasFull) full.toggle();
    root.focus({ preventScroll: true });
  };

  private go(to: number): void {
    const view = this.questions[Math.min(this.questions.length - 1, Math.max(0, to))];
    if (view !== undefined && view !== this.state.view) this.state.arrange(view);
  }

  /** The browser leaves the full screen by itself. */
  private readonly onFull = (): void => {
    if (this.isOn && !this.full.isOn) this.root.classList.remove(PRESENTS);
  };

  private readonly onKey = (event: KeyboardEvent): void => {
    if (!this.isOn || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.root.querySelector("dialog[open]") || (event.target as Element).matches("input, select")) return;
    const by = STEPS[event.key];
    if (by) this.go(this.questions.indexOf(this.state.view) + by);
    else if (event.key === "Escape" && this.state.player === null) this.toggle();
    else return;
    event.preventDefault();
    // Nor may another key handler of the explorer take it.
    event.stopImmediatePropagation();
  };
}
