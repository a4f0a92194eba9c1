/**
 * The current setting of a function's switches, and what is known about it and other settings; shared by all panes.
 *
 * Python computes the effects of settings one at a time, on request, so that the kernel is never busy for long.
 */

import { batch, onChange, tracked } from "../base/signals";
import type {
  CompiledLine,
  DrawnMemory,
  SwitchRequest,
  SwitchTable,
  TriedSettings,
  TriedTrade,
  WrittenCode,
} from "../wire/explorer.generated";
import { timelineOf } from "./drawn";
import { type Fate, type Setting, Settings } from "./settings";
import type { Timeline } from "./timeline";
import { NO_WORK, type Work, whyNot } from "./work";

/** The source of the switches and of their effects. */
export interface SwitchSource {
  table: Work;
  /** The evaluation of settings; `request` is the next one. */
  tries: Work;
  /** Whether there is known to be no kernel. */
  isAlone: boolean;
  request(what: Omit<SwitchRequest, "work">): void;
  tried(): TriedSettings | null;
  drawn(): DrawnMemory | null;
  written(): WrittenCode | null;
  /** The compiled memory over time of the last requested setting. */
  line(): CompiledLine | null;
}

export const NO_SWITCHES: SwitchSource = {
  table: NO_WORK,
  tries: NO_WORK,
  isAlone: false,
  request: () => {},
  tried: () => null,
  drawn: () => null,
  written: () => null,
  line: () => null,
};

/** The key of the function as written. */
export const AS_WRITTEN = "";

const NOT_KNOWN = "The result of that was not computed while there was a kernel.";

/** The fields that are signals. */
const TRACKED = [
  ...([
    "settings",
    "error",
    "chosen",
    "isUnderWay",
    "said",
    "planned",
    "trades",
    "failed",
    "drawing",
  ] as const),
  ...(["isPlanWanted", "lineWanted", "line"] as const),
];

export class Switches {
  /** What can be switched; null until it arrives. */
  settings: Settings | null = null;
  /** Why there are none, or empty. */
  error = "";
  /** The current setting; null for the function as written. */
  chosen: Setting | null = null;
  /** Whether they were requested but have not arrived. */
  isUnderWay = false;
  /** What else the last click changed, or empty. */
  said = "";
  /** The key of the best plan, if known. */
  planned: string | null = null;
  private past: string[] = [];
  private ahead: string[] = [];
  private trades: Readonly<Record<string, TriedTrade>> = {};
  private failed: Readonly<Record<string, string>> = {};
  private drawing: { key: string; timeline: Timeline } | null = null;
  private wanted: () => Iterable<string> = () => [];
  private codeWanted = "";
  private isPlanWanted = false;
  private lineWanted: string | null = null;
  /** The memory over time as compiled by XLA; null if it was not requested or the switches have changed since. */
  line: CompiledLine | null = null;
  private readonly stops: (() => void)[];
  private waiting: (() => void)[] = [];
  private onCode: ((text: string) => void) | null = null;

  constructor(private readonly from: SwitchSource) {
    tracked(this, ...TRACKED);
    const { table, tries } = from;
    this.stops = [
      onChange(
        () => table.progress,
        (progress) => {
          // Otherwise it is read when somebody needs it.
          if (this.isUnderWay && table.read() !== "") this.read();
          else if (this.isUnderWay) this.error = whyNot(progress);
        },
      ),
      onChange(
        () => tries.progress,
        () => this.hear(),
      ),
    ];
    this.takeLine();
  }

  /** Takes over the compiled memory over time, also if another pane had the function compiled. */
  takeLine(): void {
    const line = this.from.line();
    if (line !== null && line.key === this.lineWanted) this.lineWanted = null;
    if (line?.key !== this.line?.key || this.line?.key !== this.key)
      this.line = line?.key === this.key ? line : null;
  }

  /** All that a table of switches shows: whoever reads this follows all of it. */
  get now(): readonly unknown[] {
    return [...TRACKED.map((name) => this[name]), this.tries.progress, this.source.progress];
  }

  get source(): Work {
    return this.from.table;
  }

  /** The progress of the evaluation of settings. */
  get tries(): Work {
    return this.from.tries;
  }

  destroy(): void {
    for (const stop of this.stops) stop();
  }

  /** Requests the switches if they are missing, and then calls back. */
  ask(then: () => void = () => {}): void {
    batch(() => {
      if (this.settings !== null) {
        then();
        return;
      }
      this.waiting.push(then);
      this.isUnderWay = true;
      if (this.source.read() !== "") this.read();
      else this.source.ask();
    });
  }

  get table(): SwitchTable | null {
    return this.settings?.table ?? null;
  }

  /** The key of the current setting; empty for the function as written. */
  get key(): string {
    return this.chosen === null ? AS_WRITTEN : this.settings!.key(this.chosen);
  }

  /** The current setting, or the one that corresponds to the function as written. */
  get setting(): Setting {
    return this.chosen ?? this.settings!.parse(this.table!.present);
  }

  /** The effect of a setting; null if unknown. */
  trade(key = this.key): TriedTrade | null {
    return this.trades[key] ?? null;
  }

  /** Why a setting is not possible, or empty. */
  reason(key = this.key): string {
    return this.failed[key] ?? "";
  }

  isKnown(key: string): boolean {
    return key in this.trades || key in this.failed;
  }

  /** Whether the kernel can still evaluate settings. */
  get canAsk(): boolean {
    return !this.from.isAlone && !["gone", "stopped"].includes(this.tries.progress.state);
  }

  /** Whether there is no kernel. */
  get isAlone(): boolean {
    return this.from.isAlone || this.tries.progress.state === "gone";
  }

  /** Whether somebody waits for the kernel to send the switches. */
  get isWaitedFor(): boolean {
    return this.isUnderWay && ["asked", "late", "working"].includes(this.source.progress.state);
  }

  /** Whether the current setting is still to be evaluated. */
  get isPending(): boolean {
    return this.chosen !== null && !this.isKnown(this.key) && this.canAsk;
  }

  /** The memory over time of the current setting, or of the previous one while it is evaluated; null for the function as written. */
  get timeline(): Timeline | null {
    if (this.chosen === null || this.drawing === null) return null;
    return this.drawing.key === this.key || this.isDrawing ? this.drawing.timeline : null;
  }

  /** Whether the timeline shown is not yet that of the current setting. */
  get isDrawing(): boolean {
    return this.chosen !== null && this.drawing?.key !== this.key && this.reason() === "" && this.canAsk;
  }

  /** Whether a value is kept: saved, or not in any checkpoint. */
  keeps(value: number, setting = this.chosen): boolean {
    return setting === null || setting.saved.has(value) || !this.settings!.held(setting.regions).has(value);
  }

  /** The values that a checkpoint saves instead of a residual; null if not known yet. */
  inPlaceOf(residual: number): readonly number[] | null {
    return this.table === null ? null : (this.table.residuals[residual] ?? []);
  }

  // --- setting them ---

  /** Changes the setting; null for the function as written. */
  choose(chosen: Setting | null, said = ""): void {
    batch(() => {
      const before = this.key;
      if (this.isAlone && chosen !== null && !this.isKnown(this.settings!.key(chosen))) {
        this.said = NOT_KNOWN;
        return;
      }
      this.chosen = chosen;
      this.said = said;
      this.takeLine();
      if (this.key !== before) {
        this.past.push(before);
        this.ahead = [];
      }
      this.pump();
    });
  }

  /** Toggles the checkpoint around a region. */
  flip(region: number): void {
    const { setting, gone } = this.settings!.flipped(this.setting, region);
    const names = this.namesOf(gone);
    this.choose(setting, gone.length > 0 ? `Switched off with it, since they share a part: ${names}.` : "");
  }

  /** Saves, offloads or recomputes some values. */
  set(values: readonly number[], fate: Fate): void {
    const settings = this.settings!;
    if (fate !== "recomputed") {
      this.choose(settings.with(this.setting, values, fate));
      return;
    }
    const found = settings.without(this.setting, values);
    if (found === null) {
      this.said = "No checkpoint can be put around the equation that computes it.";
      return;
    }
    const { setting, added, gone } = found;
    const around = `Switched on with it: a checkpoint around ${this.namesOf(added)}, which saves everything else.`;
    const off = gone.length > 0 ? ` Switched off: ${this.namesOf(gone)}.` : "";
    this.choose(setting, added.length > 0 ? around + off : "");
  }

  /** Restores a setting from its key. */
  restore(key: string): void {
    batch(() => {
      if (key === this.key) return;
      this.chosen = key === AS_WRITTEN ? null : this.settings!.parse(key);
      this.said = "";
      this.takeLine();
      this.pump();
    });
  }

  get canUndo(): boolean {
    return this.past.length > 0;
  }

  get canRedo(): boolean {
    return this.ahead.length > 0;
  }

  undo(): void {
    this.retrace(this.past, this.ahead);
  }

  redo(): void {
    this.retrace(this.ahead, this.past);
  }

  private retrace(from: string[], to: string[]): void {
    batch(() => {
      const key = from.pop();
      if (key === undefined) return;
      to.push(this.key);
      this.restore(key);
    });
  }

  private namesOf(regions: readonly number[]): string {
    return regions.map((i) => this.table!.regions[i]!.name).join(" and ");
  }

  // --- effects of settings ---

  /** Evaluates settings while they are wanted. `keys` lists them in order of urgency, and is called again each time. */
  want(keys: () => Iterable<string>): void {
    this.wanted = keys;
    batch(() => this.pump());
  }

  /** Applies the best plan once it is known. */
  plan(): void {
    batch(() => {
      const { planned } = this;
      if (planned !== null) this.follow(planned);
      else {
        this.isPlanWanted = true;
        this.pump();
      }
    });
  }

  private follow(plan: string): void {
    this.isPlanWanted = false;
    const said =
      plan === this.key ? "The switches are set as in the plan." : "All switches are set as in the plan.";
    this.choose(plan === AS_WRITTEN ? null : this.settings!.parse(plan), said);
  }

  /** Compiles the current setting for its memory over time. */
  compile(): void {
    batch(() => {
      this.lineWanted = this.key;
      this.pump();
    });
  }

  /** Whether the current setting is being compiled, or is about to be. */
  get isCompiling(): boolean {
    return this.lineWanted === this.key && this.canAsk;
  }

  get isPlanning(): boolean {
    return this.isPlanWanted && this.canAsk;
  }

  /** Calls back with the code for the current setting. */
  code(then: (text: string) => void): void {
    this.onCode = then;
    this.codeWanted = this.key;
    if (this.hasCode) this.handOver();
    else this.pump();
  }

  /** Whether the code for the current setting exists or can be written. */
  get canCode(): boolean {
    return this.canAsk || this.from.written()?.key === this.key;
  }

  private get hasCode(): boolean {
    return this.from.written()?.key === this.codeWanted;
  }

  /** Requests again after a failure. */
  again(): void {
    this.pump(true);
  }

  /** Requests the most wanted unknown setting, unless the kernel is busy. */
  private pump(isAgain = false): void {
    const { state } = this.tries.progress;
    if (this.settings === null || (state !== "none" && !isAgain)) return;
    const key = this.key;
    const ask = (what: Partial<SwitchRequest>) => this.from.request({ keys: [], ...what });
    if (!this.isKnown(key)) ask({ keys: [key] });
    else if (this.onCode !== null) ask({ code: this.codeWanted });
    else if (this.isPlanWanted) ask({ plan: true });
    else if (this.isDrawing) ask({ draw: key });
    else if (this.isCompiling) ask({ compile: key });
    else {
      const keys = [...new Set(this.wanted())].filter((wanted) => !this.isKnown(wanted));
      if (keys.length > 0) ask({ keys });
    }
  }

  private hear(): void {
    const { state } = this.tries.progress;
    if (state === "none") {
      this.take();
      if (this.onCode !== null && this.hasCode) this.handOver();
      if (this.isPlanWanted && this.planned !== null) {
        this.follow(this.planned);
        return;
      }
      this.pump();
    }
    // Revert a setting that can no longer be evaluated.
    if (state === "gone" && this.chosen !== null && !this.isKnown(this.key)) {
      this.restore(this.past.pop() ?? AS_WRITTEN);
      this.said = NOT_KNOWN;
    }
  }

  /** Reads the kernel's results. */
  private take(): void {
    this.takeLine();
    const tried = this.from.tried();
    if (tried === null) return;
    this.trades = tried.trades;
    this.failed = tried.failed;
    this.planned = tried.plan;
    const drawn = this.from.drawn();
    if (drawn !== null && drawn.key !== this.drawing?.key)
      this.drawing = { key: drawn.key, timeline: timelineOf(drawn) };
  }

  private handOver(): void {
    const then = this.onCode;
    this.onCode = null;
    then?.(this.from.written()!.text);
  }

  private read(): void {
    batch(() => {
      const text = this.source.read();
      if (text === "") return;
      this.isUnderWay = false;
      this.error = "";
      const answer = JSON.parse(text) as SwitchTable | { error: string };
      if ("error" in answer) this.error = answer.error;
      else this.settings = new Settings(answer);
      this.chosen = null;
      this.past = [];
      this.ahead = [];
      this.take();
      const { waiting } = this;
      this.waiting = [];
      this.pump();
      if (this.settings !== null) for (const then of waiting) then();
    });
  }
}
