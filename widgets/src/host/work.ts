/** Data that the kernel computes on request: programs, switches, the compiled program, memory. */

import { whenReleased } from "../base/press";
import { batch, Signal } from "../base/signals";
import { NONE, type Progress, type Work } from "../model/work";
import type { Progress as Said } from "../wire/explorer.generated";
import { interruptOf, isGone } from "./held";
import type { WidgetModel } from "./model";

/** How long before work counts as late, in milliseconds. */
export const PATIENCE = 8000;

/** How often to check that the kernel is alive. */
const LOOKS = 1000;

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
  const now = new Signal<Progress>(NONE, (isRead) => listen(isRead));
  /** Whether the kernel is working on it. */
  let isBegun = false;
  /** The code that stops it, if an interrupt does not. */
  let stop = "";
  let clock: ReturnType<typeof setInterval> | undefined;

  const tell = (next: Progress) => {
    if (["none", "gone", "stopped"].includes(next.state)) {
      isBegun = false;
      unwatch();
    }
    now.value = next;
  };
  const look = async () => {
    const mine = clock;
    const { state, since } = now.value;
    if (state === "asked" && performance.now() - since >= patience) tell({ ...now.value, state: "late" });
    if ((await isGone(model)) && mine !== undefined && mine === clock) tell({ ...now.value, state: "gone" });
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
    if (traits.some((trait) => model.get(trait))) tell({ ...NONE });
  };
  const onSaid = (said: Said) => {
    const { state } = now.value;
    if (said?.work !== message || state === "none") return;
    if (said.stopped) {
      tell({ ...now.value, state: "stopped" });
      return;
    }
    isBegun = true;
    const { what = "", done = 0, total = 0 } = said;
    stop = said.stop ?? "";
    const isWaited = state !== "left" && state !== "stopping";
    tell({ ...now.value, state: isWaited ? "working" : state, what, done, total });
    if (clock === undefined) watch();
  };
  let isHeard = false;
  const onMadeLater = () => whenReleased(() => isHeard && onMade());
  const onSaidLater = (said: Said) => whenReleased(() => isHeard && onSaid(said));
  const listen = (isRead: boolean) => {
    const change = isRead ? "on" : "off";
    isHeard = isRead;
    for (const trait of traits) model[change](`change:${trait}`, onMadeLater);
    model[change]("msg:custom", onSaidLater);
    if (!isRead) unwatch();
  };
  const interrupt = () => (now.value.state === "working" ? interruptOf(model, stop) : null);
  return {
    read() {
      const made = now.value && model.get(traits[0]);
      return typeof made === "string" ? made : "";
    },
    get progress() {
      return now.value;
    },
    get canStop() {
      return interrupt() !== null;
    },
    ask: () =>
      batch(() => {
        const { state } = now.value;
        if (isBegun) {
          if (state === "left") tell({ ...now.value, state: "working" });
          return;
        }
        if (state === "asked") return;
        tell({ ...NONE, state: "asked", since: performance.now() });
        watch();
        try {
          model.send?.(content());
        } catch (error) {
          // If there is no kernel any more, the next check notices.
          console.warn(error);
        }
      }),
    cancel() {
      // Only if the kernel is known to be working on it: otherwise a cell could be interrupted.
      const act = interrupt();
      tell({ ...now.value, state: act ? "stopping" : "left" });
      act?.().catch(() => {
        if (now.value.state === "stopping") tell({ ...now.value, state: "left" });
      });
    },
  };
}
