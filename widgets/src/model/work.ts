/** Data that the kernel computes on request, as the panes see it. */

/** The progress of the kernel. */
export interface Progress {
  /**
   * `late`: no result, and the kernel has not said that it is working. `gone`: there is no kernel any more. `left`: the page no longer
   * waits, but the kernel continues. `stopped`: the kernel was interrupted.
   */
  state: "none" | "asked" | "late" | "gone" | "working" | "stopping" | "left" | "stopped";
  /** The time of the request, as `performance.now()`. */
  since: number;
  /** The unit that is counted, such as plans, and how many are done; `total` is 0 if unknown. */
  what: string;
  done: number;
  total: number;
}

export interface Work {
  /** The resulting text, or empty; it and the progress are signals. */
  read(): string;
  /** Requests it, unless the kernel is already working on it. */
  ask(): void;
  readonly progress: Progress;
  /** Whether the kernel can be interrupted from the page, which not every host allows. */
  readonly canStop: boolean;
  /** Stops the work, or at least waiting for it. */
  cancel(): void;
}

export const NONE: Progress = { state: "none", since: 0, what: "", done: 0, total: 0 };

/** A placeholder when there is nothing to request. */
export const NO_WORK: Work = {
  read: () => "",
  ask: () => {},
  progress: NONE,
  canStop: false,
  cancel: () => {},
};

/** Whether the kernel works on something, as far as is known. */
export const isLookedFor = ({ progress }: Work) => ["asked", "late", "working"].includes(progress.state);

export const NO_ANSWER =
  "No answer from the kernel yet. If it is busy, this continues when it is free; if it has shut down, run the cell again.";
export const GONE = "The kernel that made this has shut down or restarted. Run the cell again to see it.";

/** The message for each state. */
export const WORDS: Partial<Record<Progress["state"], string>> = {
  late: NO_ANSWER,
  gone: GONE,
  stopping: "Stopping…",
  left: "No longer waiting. The kernel continues, and the result is shown here when it is ready.",
  stopped: "Stopped.",
};

/** The label of the button to retry. */
export const AGAIN: Partial<Record<Progress["state"], string>> = {
  late: "Try again",
  gone: "Try again",
  stopped: "Start again",
};

/** Why there is no result; empty while it is awaited. */
export const whyNot = ({ state }: Progress): string => (AGAIN[state] ? WORDS[state]! : "");
