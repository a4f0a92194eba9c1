/** Data that the kernel computes on request: programs, switches, the compiled program, memory. */

import type { Progress as Said } from "../wire/explorer.generated";
import { interruptOf, isGone } from "./held";
import type { WidgetModel } from "./model";

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
  /** The resulting text, or empty. */
  read(): string;
  /** Requests it, unless the kernel is already working on it. */
  ask(): void;
  /** Calls back when the result arrives and when there is progress. */
  listen(callback: () => void): () => void;
  readonly progress: Progress;
  /** Whether the kernel can be interrupted from the page, which not every host allows. */
  readonly canStop: boolean;
  /** Stops the work, or at least waiting for it. */
  cancel(): void;
}

/** How long before work counts as late, in milliseconds. */
export const PATIENCE = 8000;

/** How often to check that the kernel is alive. */
const LOOKS = 1000;

const NONE: Progress = { state: "none", since: 0, what: "", done: 0, total: 0 };

/** A placeholder when there is nothing to request. */
export const NO_WORK: Work = {
  read: () => "",
  ask: () => {},
  listen: () => () => {},
  progress: NONE,
  canStop: false,
  cancel: () => {},
};

/**
 * Work requested by a message: a word, or an object with more content.
 * @param traits the first holds the result; the work has ended when any of them is set.
 * @param content the message to send instead of the word, which names the work to the kernel.
 */
export function workOf(
  model: WidgetModel,
  message: string,
  traits: readonly [string, ...string[]],
  { patience = PATIENCE, content = (): unknown => message } = {},
): Work {
  const callbacks = new Set<() => void>();
  let progress = NONE;
  /** Whether the kernel is working on it. */
  let isBegun = false;
  /** The code that stops it, if an interrupt does not. */
  let stop = "";
  let clock: ReturnType<typeof setInterval> | undefined;

  const tell = (next: Progress) => {
    progress = next;
    if (["none", "gone", "stopped"].includes(next.state)) {
      isBegun = false;
      unwatch();
    }
    for (const callback of [...callbacks]) callback();
  };
  const look = async () => {
    const mine = clock;
    if (progress.state === "asked" && performance.now() - progress.since >= patience)
      tell({ ...progress, state: "late" });
    if ((await isGone(model)) && mine !== undefined && mine === clock) tell({ ...progress, state: "gone" });
  };
  const watch = () => {
    unwatch();
    clock = setInterval(look, LOOKS);
    void look();
  };
  const unwatch = () => {
    clearInterval(clock);
    clock = undefined;
  };
  const onMade = () => {
    if (traits.some((trait) => model.get(trait))) tell(NONE);
  };
  const onSaid = (said: Said) => {
    if (said?.work !== message || progress.state === "none") return;
    if (said.stopped) {
      tell({ ...progress, state: "stopped" });
      return;
    }
    isBegun = true;
    const { what = "", done = 0, total = 0 } = said;
    stop = said.stop ?? "";
    const isWaited = progress.state !== "left" && progress.state !== "stopping";
    tell({ ...progress, state: isWaited ? "working" : progress.state, what, done, total });
    if (clock === undefined) watch();
  };
  return {
    read() {
      const made = model.get(traits[0]);
      return typeof made === "string" ? made : "";
    },
    get progress() {
      return progress;
    },
    get canStop() {
      return progress.state === "working" && interruptOf(model, stop) !== null;
    },
    ask() {
      if (isBegun) {
        if (progress.state === "left") tell({ ...progress, state: "working" });
        return;
      }
      if (progress.state === "asked") return;
      tell({ ...NONE, state: "asked", since: performance.now() });
      watch();
      try {
        model.send?.(content());
      } catch (error) {
        // If there is no kernel any more, the next check notices.
        console.warn(error);
      }
    },
    listen(callback) {
      if (callbacks.size === 0) {
        for (const trait of traits) model.on(`change:${trait}`, onMade);
        model.on("msg:custom", onSaid);
      }
      callbacks.add(callback);
      return () => {
        callbacks.delete(callback);
        if (callbacks.size > 0) return;
        for (const trait of traits) model.off(`change:${trait}`, onMade);
        model.off("msg:custom", onSaid);
        unwatch();
      };
    },
    cancel() {
      // Only if the kernel is known to be working on it: otherwise a cell could be interrupted.
      const interrupt = progress.state === "working" ? interruptOf(model, stop) : null;
      tell({ ...progress, state: interrupt ? "stopping" : "left" });
      interrupt?.().catch(() => {
        if (progress.state === "stopping") tell({ ...progress, state: "left" });
      });
    },
  };
}
