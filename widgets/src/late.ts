/** Says so where the kernel does not answer: it may be busy, or there is none any more. */

import { h } from "./dom";
import { type Holder, holderOf } from "./held";

export const NO_ANSWER =
  "No answer from the kernel yet. If it is busy, this goes on when it is free; if it is gone, run the cell again.";
export const GONE = "The kernel that made this is gone. Run the cell again to see it.";

/** Milliseconds until it is said. */
export const PATIENCE = 8000;

/** Between looks at whether anybody is there. */
const LOOKS = 1000;

/** Calls back if nobody has stopped it by then, and as soon as it is known that there is nobody to answer. */
export class Late {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private looking: ReturnType<typeof setInterval> | undefined;

  constructor(private readonly milliseconds = PATIENCE) {}

  start(isGone: () => Promise<boolean>, say: (why: string) => void): void {
    this.stop();
    const look = async () => {
      if (!(await isGone()) || this.looking !== looking) return;
      this.stop();
      say(GONE);
    };
    const looking = setInterval(look, LOOKS);
    this.looking = looking;
    this.timer = setTimeout(() => say(NO_ANSWER), this.milliseconds);
    void look();
  }

  stop(): void {
    clearTimeout(this.timer);
    clearInterval(this.looking);
    this.looking = undefined;
  }
}

/** Whether it is known that no kernel is behind a widget: the one that holds the code is of the same kernel, and hosts know of that. */
export async function isGone(model: Holder): Promise<boolean> {
  const kernel = model.widget_manager?.kernel;
  if (kernel === null || kernel?.status === "dead") return true;
  try {
    return (await holderOf(model))?.comm_live === false;
  } catch {
    return false;
  }
}

/** What is said, with what asks once more. */
export function noAnswer(why: string, again: () => void): HTMLElement {
  return h(
    "p",
    { class: "jv-message", role: "status", "data-testid": "no-answer" },
    why,
    " ",
    h("button", { type: "button", class: "jv-button", "data-testid": "again", onclick: again }, "Try again"),
  );
}
