/** The stepper's talk with its kernel: what is asked for, whether it is at it, and whether it is there at all. */

import { type Holder, isGone } from "../host/held";
import { unzipped } from "../host/zip";
import type { Failure, Programs, Stop } from "./schema";

/** Moves asked for before the kernel is through with the one before; more are not sent. */
const MOST_WAITING = 2;
const LOOKS = 2000;
/** Milliseconds after which a kernel that has said nothing is said to be busy with something else. */
export const PATIENCE = 4000;

export const SAVED = "This is a saved page: the last stop can be read, and nothing can be run.";
export const GONE =
  "The kernel that ran this is gone. The last stop can be read; run the cell again to go on.";

export class Session {
  /** When the first of what is waited for was asked, as `performance.now()` counts; null while nothing is. */
  since: number | null = null;
  /** Whether the kernel has said that it is at it. */
  isBegun = false;
  /** Why nothing can be run; empty where it can. */
  off = "";
  private canStop = false;
  private waiting = 0;
  private readonly callbacks = new Set<() => void>();
  private readonly clock: ReturnType<typeof setInterval>;

  constructor(private readonly model: Holder) {
    model.on("msg:custom", this.onSaid);
    model.on("change:is_saved", this.look);
    this.clock = setInterval(this.look, LOOKS);
    void this.look();
  }

  destroy(): void {
    clearInterval(this.clock);
    this.model.off("msg:custom", this.onSaid);
    this.model.off("change:is_saved", this.look);
    this.callbacks.clear();
  }

  get stop(): Stop | null {
    return parsed<Stop>(this.model.get("stop"));
  }

  get failure(): Failure | null {
    return parsed<Failure>(this.model.get("failure"));
  }

  /** Calls back when the kernel begins or ends something, or comes or goes. */
  listen(callback: () => void): void {
    this.callbacks.add(callback);
  }

  /** Asks for something; says whether it was sent. */
  ask(what: string, more: Record<string, unknown> = {}): boolean {
    if (this.off || this.waiting >= MOST_WAITING) return false;
    this.waiting += 1;
    this.since ??= performance.now();
    try {
      this.model.send?.({ do: what, ...more });
    } catch (error) {
      console.warn(error);
      this.waiting = 0;
      this.since = null;
      this.off = GONE;
    }
    this.tell();
    return !this.off;
  }

  get canInterrupt(): boolean {
    return this.isBegun && this.canStop && typeof this.model.widget_manager?.kernel?.interrupt === "function";
  }

  interrupt(): void {
    this.model.widget_manager?.kernel?.interrupt?.().catch((error) => console.warn(error));
  }

  private tell(): void {
    for (const callback of this.callbacks) callback();
  }

  private readonly onSaid = (said: { begun?: string; can_stop?: boolean; done?: string }): void => {
    if (said?.begun !== undefined) {
      this.isBegun = true;
      this.canStop = said.can_stop === true;
      this.since ??= performance.now();
    } else if (said?.done !== undefined) {
      this.isBegun = false;
      this.waiting = Math.max(0, this.waiting - 1);
      this.since = this.waiting > 0 ? performance.now() : null;
    } else return;
    this.tell();
  };

  private readonly look = async (): Promise<void> => {
    const off =
      this.model.get("is_saved") === true ? SAVED : (await isGone(this.model, "own_id")) ? GONE : "";
    if (off === this.off) return;
    this.off = off;
    if (off) {
      this.waiting = 0;
      this.since = null;
      this.isBegun = false;
    }
    this.tell();
  };
}

function parsed<T>(text: unknown): T | null {
  return typeof text === "string" && text !== "" ? (JSON.parse(text) as T) : null;
}

/** The programs, which are sent gzipped. */
export async function programsIn(block: DataView): Promise<Programs> {
  return JSON.parse(new TextDecoder().decode(await unzipped(block))) as Programs;
}
