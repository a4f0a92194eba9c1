/** The stepper's connection to its kernel: requests, progress, and whether the kernel is alive. */

import { batch, tracked } from "../base/signals";
import { turn } from "../base/slices";
import { interruptOf, isGone, watchKernel } from "../host/held";
import type { WidgetModel } from "../host/model";
import type { Doing, Failure, StepperStop } from "../wire/stepper.generated";

/** How many requests may be pending; further ones are dropped. */
const MOST_WAITING = 2;

export const SAVED = "This is a saved page: it shows the last stop, and nothing can be run.";
export const GONE =
  "The kernel that ran this has shut down or restarted. The last stop is still shown; run the cell again to continue.";

export class Session {
  /** When the first pending request was sent, as `performance.now()`; null if there is none. */
  since: number | null = null;
  /** Whether the kernel has started on it. */
  isBegun = false;
  /** Why nothing can be run, or empty. */
  off = "";
  /** What has failed last. */
  failure: Failure | null;
  private canStop = false;
  private waiting = 0;
  private isLost = false;
  private readonly unwatch: () => void;

  constructor(
    private readonly model: WidgetModel,
    private readonly onStop: (stop: StepperStop) => void,
  ) {
    this.failure = parsed<Failure>(model.get("failure"));
    tracked(this, "since", "isBegun", "off", "failure");
    for (const [event, listener] of this.listeners) model.on(event, listener);
    this.unwatch = watchKernel(model, (isLost) => {
      this.isLost ||= isLost;
      // All widgets of the kernel get the event, one after the other.
      void turn().then(this.look);
    });
    void this.look();
  }

  destroy(): void {
    this.unwatch();
    for (const [event, listener] of this.listeners) this.model.off(event, listener);
  }

  /** Sends a request; returns whether it was sent. */
  readonly ask = (what: string, more: Record<string, unknown> = {}): boolean =>
    batch(() => {
      if (this.off || this.waiting >= MOST_WAITING) return false;
      this.waiting += 1;
      this.since ??= performance.now();
      try {
        this.model.send?.({ do: what, ...more });
      } catch (error) {
        console.warn(error);
        this.rest(GONE);
      }
      return !this.off;
    });

  get canInterrupt(): boolean {
    return this.isBegun && this.canStop && interruptOf(this.model) !== null;
  }

  interrupt(): void {
    interruptOf(this.model)?.().catch((error) => console.warn(error));
  }

  private readonly failed = (): void => {
    this.failure = parsed<Failure>(this.model.get("failure"));
  };

  private readonly stopped = (): void => {
    const stop = parsed<StepperStop>(this.model.get("stop"));
    if (stop !== null) this.onStop(stop);
  };

  private readonly onSaid = (said: Doing): void => {
    batch(() => this.take(said));
  };

  private take(said: Doing): void {
    if (said?.begun !== undefined) {
      this.isBegun = true;
      this.canStop = said.can_stop === true;
      this.since ??= performance.now();
    } else if (said?.done !== undefined) {
      this.isBegun = false;
      this.waiting = Math.max(0, this.waiting - 1);
      this.since = this.waiting > 0 ? performance.now() : null;
    }
  }

  private readonly look = async (): Promise<void> => {
    const isOff = this.isLost || (await isGone(this.model));
    const off = this.model.get("is_saved") === true ? SAVED : isOff ? GONE : "";
    if (off === this.off) return;
    this.rest(off);
  };

  /** Drops pending requests when nothing can be run. */
  private rest(off: string): void {
    batch(() => {
      this.off = off;
      if (!off) return;
      this.waiting = 0;
      this.since = null;
      this.isBegun = false;
    });
  }

  private readonly listeners: readonly [string, (content: never) => void][] = [
    ["msg:custom", this.onSaid],
    ["change:is_saved", this.look],
    ["change:failure", this.failed],
    ["change:stop", this.stopped],
  ];
}

/** The JSON in a trait; null if empty. */
export function parsed<T>(text: unknown): T | null {
  return typeof text === "string" && text !== "" ? (JSON.parse(text) as T) : null;
}
