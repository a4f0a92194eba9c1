/** What the kernel makes when it is first asked for: the table of the switches, the compiled program, the memory. */

import type { Holder } from "./held";

/** How far the kernel is. */
export interface Progress {
  /** `left`: it is not waited for any more, and the kernel goes on. `stopped`: the kernel has been interrupted. */
  state: "none" | "asked" | "working" | "stopping" | "left" | "stopped";
  /** When it was asked for, in milliseconds as `performance.now()` counts. */
  since: number;
  /** What is counted, such as plans, and how many of them are done; `total` is 0 where that is not known. */
  what: string;
  done: number;
  total: number;
}

export interface Work {
  /** What has been made, or empty. */
  read(): string;
  ask(): void;
  /** Calls back when it is there, and when the kernel says how far it is. */
  listen(callback: () => void): () => void;
  readonly progress: Progress;
  /** Whether the kernel can be interrupted at it from here; a page cannot in every host, and XLA cannot be interrupted by anybody. */
  readonly canStop: boolean;
  /** Stops the work, or else the waiting for it. */
  cancel(): void;
}

const NONE: Progress = { state: "none", since: 0, what: "", done: 0, total: 0 };

/** Where there is nothing to ask for. */
export const NO_WORK: Work = {
  read: () => "",
  ask: () => {},
  listen: () => () => {},
  progress: NONE,
  canStop: false,
  cancel: () => {},
};

interface Said {
  work?: string;
  stopped?: boolean;
  what?: string;
  done?: number;
  total?: number;
}

/**
 * Work that is asked for by a message of one word.
 *
 * @param trait what is made of it is found in; it is there when that changes.
 * @param read what has been made.
 * @param isPython whether an interrupt reaches it.
 */
export function workOf(
  model: Holder,
  message: string,
  trait: string,
  read: () => string,
  isPython = true,
): Work {
  const callbacks = new Set<() => void>();
  let progress = NONE;
  const tell = (next: Progress) => {
    progress = next;
    for (const callback of [...callbacks]) callback();
  };
  const onMade = () => tell(read() === "" ? progress : NONE);
  const onSaid = (said: Said) => {
    if (said?.work !== message || progress.state === "none") return;
    const { what = "", done = 0, total = 0 } = said;
    if (said.stopped) tell({ ...progress, state: "stopped" });
    else if (progress.state === "asked" || progress.state === "working")
      tell({ ...progress, state: "working", what, done, total });
  };
  const interrupt = () => {
    const kernel = model.widget_manager?.kernel;
    return isPython && typeof kernel?.interrupt === "function" ? () => kernel.interrupt!() : null;
  };
  return {
    read,
    get progress() {
      return progress;
    },
    get canStop() {
      return progress.state === "working" && interrupt() !== null;
    },
    ask() {
      progress = { ...NONE, state: "asked", since: performance.now() };
      try {
        model.send?.(message);
      } catch (error) {
        // There is no kernel any more. Whoever asks says so when no answer comes.
        console.warn(error);
      }
    },
    listen(callback) {
      if (callbacks.size === 0) {
        model.on(`change:${trait}`, onMade);
        model.on("msg:custom", onSaid);
      }
      callbacks.add(callback);
      return () => {
        callbacks.delete(callback);
        if (callbacks.size > 0) return;
        model.off(`change:${trait}`, onMade);
        model.off("msg:custom", onSaid);
      };
    },
    cancel() {
      // Only what the kernel is known to be at: it might else be a cell that is interrupted.
      const stop = progress.state === "working" ? interrupt() : null;
      tell({ ...progress, state: stop ? "stopping" : "left" });
      stop?.().catch(() => tell({ ...progress, state: "left" }));
    },
  };
}
