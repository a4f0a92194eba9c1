/** What stands in the place of what the kernel is still to make: what it is at, for how long, and a way not to wait for it. */

import { h } from "./dom";
import { plural } from "./format";
import type { Work } from "./work";

export const NO_ANSWER = "No answer from the kernel yet; it may be busy or gone.";

/** Milliseconds until it is said. */
export const PATIENCE = 8000;

/** Milliseconds that are waited without a word. */
const AT_ONCE = 1000;

/**
 * What is said of work that is under way.
 *
 * @param what is made, such as `Working out the memory over time…`.
 */
export class Waiting {
  readonly element = h("div", { class: "jv-waiting" });
  private readonly timer: ReturnType<typeof setInterval>;
  private readonly said = h("p", { role: "status" });
  private readonly bar = h("progress", { class: "jv-progress", "aria-label": "progress" });
  private readonly figures = h("span", { class: "jv-dim", "data-testid": "elapsed" });
  private readonly button: HTMLButtonElement;
  private readonly late = h("p", { role: "status", "data-testid": "no-answer" }, NO_ANSWER);
  private readonly foot: HTMLElement;

  constructor(
    private readonly work: Work,
    private readonly what: string,
    id = "waiting",
  ) {
    this.element.dataset["testid"] = id;
    this.button = h("button", {
      type: "button",
      class: "jv-button",
      "data-testid": "cancel",
      onclick: () => this.press(),
    });
    this.foot = h("div", { class: "jv-waiting-foot" }, this.figures, this.button);
    this.element.append(this.said, this.bar, this.foot, this.late);
    this.timer = setInterval(() => this.update(), 250);
    this.update();
  }

  destroy(): void {
    clearInterval(this.timer);
  }

  /** To be called when the work tells of itself; time is kept here. */
  update(): void {
    const { state, since, what, done, total } = this.work.progress;
    const passed = performance.now() - since;
    const isOn = state === "asked" || state === "working" || state === "stopping";
    const texts = {
      none: this.what,
      asked: this.what,
      working: this.what,
      stopping: "Stopping…",
      left: `Not waited for any more. The kernel does it all the same, and it is shown here when it is there.`,
      stopped: "Stopped.",
    };
    if (this.said.textContent !== texts[state]) this.said.textContent = texts[state];
    this.bar.hidden = !isOn || passed < AT_ONCE;
    this.foot.hidden = isOn ? passed < AT_ONCE : state !== "stopped";
    this.late.hidden = state !== "asked" || passed < PATIENCE;
    if (total > 0) {
      this.bar.max = total;
      this.bar.value = done;
    } else this.bar.removeAttribute("value");
    const of = total > 0 ? `${done} of ${plural(total, what.replace(/s$/, ""))}` : what;
    this.figures.textContent = isOn ? [elapsed(passed), of].filter(Boolean).join(" · ") : "";
    const label = state === "stopped" ? "Start again" : this.work.canStop ? "Cancel" : "Stop waiting";
    if (this.button.textContent !== label) this.button.textContent = label;
    this.button.hidden = state === "stopping";
    this.figures.hidden = !isOn;
  }

  private press(): void {
    if (this.work.progress.state === "stopped") this.work.ask();
    else this.work.cancel();
    this.update();
  }
}

/** `12 s`, `2 min 05 s`. */
export function elapsed(milliseconds: number): string {
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
}
