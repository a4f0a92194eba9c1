/** The placeholder for data that the kernel is computing: progress, time, and a button to stop waiting. */

import { plural } from "../base/format";
import { effect } from "../base/signals";
import { AGAIN, WORDS, type Work } from "../model/work";
import { button, h } from "./dom";

/** How long before anything is shown, in milliseconds. */
const AT_ONCE = 1000;

/**
 * The progress of work.
 * @param what the activity, such as `Computing the memory over time…`.
 */
export class Waiting {
  readonly element = h("div.jv-waiting.jv-column");
  private readonly timer: ReturnType<typeof setInterval>;
  private readonly stop: () => void;
  private readonly said = h("p", { role: "status" });
  private readonly bar = h("progress.jv-progress", { "aria-label": "progress" });
  private readonly figures = h("span.jv-dim", { "data-testid": "elapsed" });
  private readonly button: HTMLButtonElement;
  private readonly foot: HTMLElement;

  constructor(
    private readonly work: Work,
    private readonly what: string,
    private readonly id = "waiting",
  ) {
    this.button = button([], () => this.press());
    this.foot = h("div.jv-waiting-foot.jv-row", this.figures, this.button);
    this.element.append(this.said, this.bar, this.foot);
    // The elapsed time updates by itself.
    this.timer = setInterval(() => this.update(), 250);
    this.stop = effect(() => this.update());
  }

  destroy(): void {
    clearInterval(this.timer);
    this.stop();
  }

  private update(): void {
    const { state, since, what, done, total } = this.work.progress;
    const passed = performance.now() - since;
    const isOn = state === "asked" || state === "working" || state === "stopping";
    const again = AGAIN[state];
    this.element.dataset["testid"] = state === "late" || state === "gone" ? "no-answer" : this.id;
    say(this.said, WORDS[state] ?? this.what);
    this.bar.hidden = !isOn || passed < AT_ONCE;
    if (total > 0) {
      this.bar.max = total;
      this.bar.value = done;
    } else this.bar.removeAttribute("value");
    const of = total > 0 ? `${done} of ${plural(total, what.replace(/s$/, ""))}` : what;
    this.figures.hidden = !isOn && state !== "late";
    say(this.figures, this.figures.hidden ? "" : [elapsed(passed), of].filter(Boolean).join(" · "));
    say(this.button, again ?? (this.work.canStop ? "Cancel" : "Stop waiting"));
    this.button.dataset["testid"] = again ? "again" : "cancel";
    this.button.hidden = state === "stopping";
    this.foot.hidden = isOn ? passed < AT_ONCE : !again;
  }

  private press(): void {
    if (AGAIN[this.work.progress.state]) this.work.ask();
    else this.work.cancel();
  }
}

/** Sets a text only if it changes, so that screen readers do not repeat it. */
function say(element: HTMLElement, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** `12 s`, `2 min 05 s`. */
export function elapsed(milliseconds: number): string {
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
}
