/**
 * The switches of a function as set, and what is known of this setting and of others. The panes that show them share one of these.
 *
 * What a setting comes to is worked out in Python, one after the other as they are wanted, so that the kernel never is at it for long.
 */

import { NO_WORK, type Work } from "../host/work";
import { whyNot } from "../main/waiting";
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

/** Where the switches come from, and what they come to. */
export interface SwitchSource {
  table: Work;
  /** Settings that are worked out; `request` is what is asked for next. */
  tries: Work;
  /** Whether it is known from the start that there is no kernel. */
  isAlone: boolean;
  request(what: Omit<SwitchRequest, "work">): void;
  tried(): TriedSettings | null;
  drawn(): DrawnMemory | null;
  written(): WrittenCode | null;
  /** The memory over time as compiled, of the setting that it was last asked for. */
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

/** The key of the function as it is written. */
export const AS_WRITTEN = "";

const NOT_KNOWN = "The result of that was not computed while there was a kernel.";

export class Switches {
  /** What can be switched; null until it is there. */
  settings: Settings | null = null;
  /** Why there are none, or none yet; or empty. */
  error = "";
  /** What is set; null while the function is as it is written. */
  chosen: Setting | null = null;
  /** Whether they have been asked for and are not there yet. */
  isUnderWay = false;
  /** What the last click moved beside its own switch; or empty. */
  said = "";
  private past: string[] = [];
  private ahead: string[] = [];
  private trades: Readonly<Record<string, TriedTrade>> = {};
  private failed: Readonly<Record<string, string>> = {};
  private drawing: { key: string; timeline: Timeline } | null = null;
  private wanted: () => Iterable<string> = () => [];
  private codeWanted = "";
  private isPlanWanted = false;
  private lineWanted: string | null = null;
  /** The memory over time as XLA compiles what is set; null where it has not been asked for, or the switches have changed since. */
  line: CompiledLine | null = null;
  private readonly stops: (() => void)[];
  private waiting: (() => void)[] = [];
  private onCode: ((text: string) => void) | null = null;

  constructor(
    private readonly from: SwitchSource,
    private readonly tell: () => void,
  ) {
    this.stops = [
      from.table.listen(() => {
        // What nobody has looked at is read when somebody does.
        if (this.isUnderWay && from.table.read() !== "") this.read();
        else if (this.isUnderWay) {
          this.error = whyNot(from.table.progress);
          this.tell();
        }
      }),
      from.tries.listen(() => this.hear()),
    ];
    this.takeLine();
  }

  /** Takes the memory over time as compiled, where the function has been compiled for another pane's sake. */
  hearCompiled(): void {
    const before = this.line;
    this.takeLine();
    if (this.line !== before) this.tell();
  }

  get source(): Work {
    return this.from.table;
  }

  /** How far the kernel is with the settings that are wanted. */
  get tries(): Work {
    return this.from.tries;
  }

  destroy(): void {
    for (const stop of this.stops) stop();
  }

  /** Has them made, if they are not there, and then does something with them. */
  ask(then: () => void = () => {}): void {
    if (this.settings !== null) {
      then();
      return;
    }
    this.waiting.push(then);
    this.isUnderWay = true;
    if (this.source.read() !== "") this.read();
    else this.source.ask();
  }

  get table(): SwitchTable | null {
    return this.settings?.table ?? null;
  }

  /** The setting as a text; empty for the function as it is written. */
  get key(): string {
    return this.chosen === null ? AS_WRITTEN : this.settings!.key(this.chosen);
  }

  /** What is set, or what comes nearest to the function as it is written. */
  get setting(): Setting {
    return this.chosen ?? this.settings!.parse(this.table!.present);
  }

  /** What a setting comes to; null where that is not known. */
  trade(key = this.key): TriedTrade | null {
    return this.trades[key] ?? null;
  }

  /** Why a setting cannot be had; or empty. */
  reason(key = this.key): string {
    return this.failed[key] ?? "";
  }

  isKnown(key: string): boolean {
    return key in this.trades || key in this.failed;
  }

  /** Whether what is not known yet can be worked out. */
  get canAsk(): boolean {
    return !this.from.isAlone && !["gone", "stopped"].includes(this.tries.progress.state);
  }

  /** Whether there is no kernel. */
  get isAlone(): boolean {
    return this.from.isAlone || this.tries.progress.state === "gone";
  }

  /** Whether the kernel is still to say what is set comes to. */
  get isPending(): boolean {
    return this.chosen !== null && !this.isKnown(this.key) && this.canAsk;
  }

  /** The memory over time of what is set, or of what was set while that is worked out; null for the function as written. */
  get timeline(): Timeline | null {
    if (this.chosen === null || this.drawing === null) return null;
    return this.drawing.key === this.key || this.isDrawing ? this.drawing.timeline : null;
  }

  /** Whether the memory over time that is shown is not that of what is set. */
  get isDrawing(): boolean {
    return this.chosen !== null && this.drawing?.key !== this.key && this.reason() === "" && this.canAsk;
  }

  /** Whether a value is kept, as it is set or as written: saved, or in no checkpoint. */
  keeps(value: number, setting = this.chosen): boolean {
    return setting === null || setting.saved.has(value) || !this.settings!.held(setting.regions).has(value);
  }

  /** The values that a checkpoint saves in the place of a residual; null where that is not known yet. */
  inPlaceOf(residual: number): readonly number[] | null {
    return this.table === null ? null : (this.table.residuals[residual] ?? []);
  }

  // --- setting them ---

  /** Sets them; null for the function as it is written. */
  choose(chosen: Setting | null, said = ""): void {
    const before = this.key;
    if (this.isAlone && chosen !== null && !this.isKnown(this.settings!.key(chosen))) {
      this.said = NOT_KNOWN;
      this.tell();
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
    this.tell();
  }

  /** Switches the checkpoint around a region. */
  flip(region: number): void {
    const { setting, gone } = this.settings!.flipped(this.setting, region);
    const names = this.namesOf(gone);
    this.choose(setting, gone.length > 0 ? `Switched off with it, since they share a part: ${names}.` : "");
  }

  /** Saves some values, on the device or on the host, or has them recomputed. */
  set(values: readonly number[], fate: Fate): void {
    const settings = this.settings!;
    if (fate !== "recomputed") {
      this.choose(settings.with(this.setting, values, fate));
      return;
    }
    const found = settings.without(this.setting, values);
    if (found === null) {
      this.said = "No checkpoint can be put around the equation that computes it.";
      this.tell();
      return;
    }
    const { setting, added, gone } = found;
    const around = `Switched on with it: a checkpoint around ${this.namesOf(added)}, which saves everything else.`;
    const off = gone.length > 0 ? ` Switched off: ${this.namesOf(gone)}.` : "";
    this.choose(setting, added.length > 0 ? around + off : "");
  }

  /** Sets what a text says that was a key before. */
  restore(key: string): void {
    if (key === this.key) return;
    this.chosen = key === AS_WRITTEN ? null : this.settings!.parse(key);
    this.said = "";
    this.takeLine();
    this.pump();
    this.tell();
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
    const key = from.pop();
    if (key === undefined) return;
    to.push(this.key);
    this.restore(key);
  }

  private namesOf(regions: readonly number[]): string {
    return regions.map((i) => this.table!.regions[i]!.name).join(" and ");
  }

  // --- what they come to ---

  /** Has settings worked out as long as they are wanted: a list of keys, the most urgent first, made anew each time. */
  want(keys: () => Iterable<string>): void {
    this.wanted = keys;
    this.pump();
  }

  /** Sets the best plan, once it is known. */
  plan(): void {
    const { planned } = this;
    if (planned !== null) this.follow(planned);
    else {
      this.isPlanWanted = true;
      this.pump();
      this.tell();
    }
  }

  /** The key of the best plan, if it has been asked for. */
  get planned(): string | null {
    return this.from.tried()?.plan ?? null;
  }

  private follow(plan: string): void {
    this.isPlanWanted = false;
    const said =
      plan === this.key ? "The switches are set as in the plan." : "All switches are set as in the plan.";
    this.choose(plan === AS_WRITTEN ? null : this.settings!.parse(plan), said);
  }

  /** Has what is set compiled, for its memory over time. */
  compile(): void {
    this.lineWanted = this.key;
    this.pump();
    this.tell();
  }

  /** Whether what is set is being compiled, or will be. */
  get isCompiling(): boolean {
    return this.lineWanted === this.key && this.canAsk;
  }

  private takeLine(): void {
    const line = this.from.line();
    if (line !== null && line.key === this.lineWanted) this.lineWanted = null;
    if (line?.key !== this.line?.key || this.line?.key !== this.key)
      this.line = line?.key === this.key ? line : null;
  }

  get isPlanning(): boolean {
    return this.isPlanWanted && this.canAsk;
  }

  /** Hands over the code for what is set, once it is written. */
  code(then: (text: string) => void): void {
    this.onCode = then;
    this.codeWanted = this.key;
    if (this.hasCode) this.handOver();
    else this.pump();
  }

  /** Whether the code for what is set is written, or can be. */
  get canCode(): boolean {
    return this.canAsk || this.from.written()?.key === this.key;
  }

  private get hasCode(): boolean {
    return this.from.written()?.key === this.codeWanted;
  }

  /** Asks once more, where nothing came of it. */
  again(): void {
    this.pump(true);
    this.tell();
  }

  /** Asks for what is wanted most and not known, unless the kernel is at something. */
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
    // A switch that nobody can say anything about goes back.
    if (state === "gone" && this.chosen !== null && !this.isKnown(this.key)) {
      this.restore(this.past.pop() ?? AS_WRITTEN);
      this.said = NOT_KNOWN;
    }
    this.tell();
  }

  /** Takes what the kernel has said. */
  private take(): void {
    this.takeLine();
    const tried = this.from.tried();
    if (tried === null) return;
    this.trades = tried.trades;
    this.failed = tried.failed;
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
    this.tell();
    if (this.settings !== null) for (const then of waiting) then();
  }
}
