/** Data that the kernel computes on first request: the programs, the table of the switches, the compiled program, the memory. */

import type { Progress as Said } from "../wire/explorer.generated";
import { interruptOf, isGone } from "./held";
import type { WidgetModel } from "./model";

/** How far the kernel is. */
export interface Progress {
  /**
   * `late`: nothing has come of it, and the kernel has not said that it is at it. `gone`: there is no kernel any more.
   * `left`: it is not waited for any more, and the kernel goes on. `stopped`: the kernel has been interrupted.
   */
  state: "none" | "asked" | "late" | "gone" | "working" | "stopping" | "left" | "stopped";
  /** When it was asked for, in milliseconds as `performance.now()` counts. */
  since: number;
  /** What is counted, such as plans, and how many of them are done; `total` is 0 where that is not known. */
  what: string;
  done: number;
  total: number;
}

export interface Work {
  /** The text that has been made, or empty. */
  read(): string;
  /** Has it made, unless the kernel is at it already. */
  ask(): void;
  /** Calls back when it is there, and when it is known how far it is. */
  listen(callback: () => void): () => void;
  readonly progress: Progress;
  /** Whether the kernel can be interrupted at it from here, which not every host lets a page do. */
  readonly canStop: boolean;
  /** Stops the work, or else the waiting for it. */
  cancel(): void;
}

/** Milliseconds until it is late. */
export const PATIENCE = 8000;

/** Between looks at whether anybody is there. */
const LOOKS = 1000;

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

/**
 * Work that is asked for by a message of one word, or by what has more to say.
 *
 * @param traits what is made of it is found in the first; it is there, or is known to have failed, when one of them is set.
 * @param content what is sent in place of the word, which is what the kernel calls the work then.
 */
export function workOf(
  model: WidgetModel,
  message: string,
  traits: readonly [string, ...string[]],
  { patience = PATIENCE, content = (): unknown => message } = {},
): Work {
  const callbacks = new Set<() => void>();
  let progress = NONE;
  /** Whether the kernel has said that it is at it, and not that it is over. */
  let isBegun = false;
  /** The code that stops it, where an interrupt does not. */
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
        // There is no kernel any more, as is soon seen.
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
      // Only what the kernel is known to be at: it might else be a cell that is interrupted.
      const interrupt = progress.state === "working" ? interruptOf(model, stop) : null;
      tell({ ...progress, state: interrupt ? "stopping" : "left" });
      interrupt?.().catch(() => {
        if (progress.state === "stopping") tell({ ...progress, state: "left" });
      });
    },
  };
}
