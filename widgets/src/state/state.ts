/** The explorer's state. Only the selected equation and the stages are sent to Python. */

import { batch, tracked } from "../base/signals";
import type { Matches } from "../model/changes";
import { ownExchanges } from "../model/exchanges";
import { grouped, sumOf } from "../model/groups";
import type { Model } from "../model/model";
import type { Kept } from "../model/overview";
import type { Player } from "../model/player";
import { Question } from "../model/question";
import type { Place, Residual } from "../model/records";
import { TimeView } from "../model/span";
import { NO_SWITCHES, Switches, type SwitchSource } from "../model/switches";
import { NO_WORK, type Work } from "../model/work";
import type { EquationAddresses, FoundAddresses, PeakAdvice } from "../wire/explorer.generated";
import type { CheckResult } from "../wire/schema";

export interface Selection {
  /** The selected equations: one, or all of a source line. */
  rows: ReadonlySet<number>;
  /** What they derive from, and what derives from them or reads them. */
  ancestors: ReadonlySet<number>;
  descendants: ReadonlySet<number>;
  /** Other equations derived from the same one of the user's program. */
  siblings: ReadonlySet<number>;
  /** The selected residuals: none, one, or those of one expression; and the first of them, or -1. */
  residuals: ReadonlySet<number>;
  residual: number;
  file: number;
  line: number;
}

const EMPTY: ReadonlySet<number> = new Set();

const savedBy = (residuals: readonly Residual[]) => sumOf(residuals, (r) => r.nbytes);

export const NOTHING: Selection = {
  rows: EMPTY,
  ancestors: EMPTY,
  descendants: EMPTY,
  siblings: EMPTY,
  residuals: EMPTY,
  residual: -1,
  file: -1,
  line: -1,
};

export type Side = "left" | "right";

/** The stages in each pane, in order; none on the right if there is only one pane. */
export interface Shown {
  left: readonly number[];
  right: readonly number[];
}

/** How a pane shows its stages. */
export type Form = "code" | "graph";

/** What is shown on demand: the selection in full, and the row of stages. */
export type Extra = "details" | "stages";

/** How the equations of a role are shown, if not normally. */
export type Muting = "dimmed" | "hidden";

/** A position in the history: an equation and a variable, or -1. */
interface Spot {
  row: number;
  variable: number;
}

/** Another version of the function, and how its equations match. */
export interface Other {
  state: State;
  matches: Matches;
  /** How a row that the other version lacks is marked. */
  mark: "is-added" | "is-removed";
}

/** The arrangement of the panes, for a question; or empty. */
export type View = "overview" | "motion" | "lines" | "diff" | "kept" | "derived" | "cost" | "what-if" | "";

/** The views without the stages' panes. */
const WHOLE: readonly View[] = ["overview", "motion", "lines", "diff", "cost", "what-if"];

export class State {
  selection: Selection = NOTHING;
  shown: Shown = { left: [0], right: [] };
  form: Readonly<Record<Side, Form>> = { left: "code", right: "code" };
  /** The current arrangement. */
  view: View = "";
  /** The place in the source that is hovered elsewhere. */
  aimed: Place | null = null;
  readonly time = new TimeView();
  /** The pane that keys and the top bar act on. */
  side: Side = "left";
  /** The hovered variable, or -1. */
  hover = -1;
  /** The variable under the keyboard cursor, or -1. */
  variable = -1;
  /** Roles that are dimmed or hidden. */
  muted: ReadonlyMap<string, Muting> = new Map();
  /** Whether variables have the hues of their values. */
  coloured = true;
  private behind: Spot[] = [];
  private ahead: Spot[] = [];
  /** Whether params are shown in full. */
  fullParams = false;
  /** What is open that is shown on demand. */
  extras: ReadonlySet<Extra> = new Set();
  /** The transform being played. */
  player: Player | null = null;
  /** Whether the two panes scroll together. */
  linksScrolling = true;
  readonly switches: Switches;
  /** The previous version, if there is one; in its own state, the current one. */
  other: Other | null = null;
  /** The version whose selection is inspected, if there are two. */
  inspected: State = this;
  /** Whether the previous version is shown beside this one. */
  compared = false;
  /** The text in the filter of the residuals. */
  filter = "";
  /** What devices exchange, by row. */
  exchanges: ReadonlyMap<number, readonly string[]>;
  /** The saved expression that was opened last, by its number, or -1. */
  opened = -1;
  /** Whether the overview was shown before its boxes were there, and keeps the room for all their levels. */
  hasBegun = false;
  /** What the model has of the data that a large view omits at first. */
  hasGroups: boolean;
  hasMemory: boolean;
  isWhole: boolean;

  constructor(
    readonly model: Model,
    switches: SwitchSource = NO_SWITCHES,
    /** The data omitted from the view at first. */
    readonly rest: Work = NO_WORK,
    /** Advice on the peak, the slowest of all. */
    readonly advice: Work = NO_WORK,
    /** The comparison with JAX, which traces the function again. */
    readonly check: Work = NO_WORK,
    /** What the kernel's device does in a second. */
    readonly speed: Work = NO_WORK,
    /** What a text means as an address, and which addresses an equation has. */
    readonly meaning = new Question<FoundAddresses>(),
    readonly addresses = new Question<EquationAddresses>(),
  ) {
    this.switches = new Switches(switches);
    this.exchanges = ownExchanges(model);
    ({ has_groups: this.hasGroups, has_memory: this.hasMemory, is_whole: this.isWhole } = model.view);
    tracked(this, ...TRACKED);
  }

  /** The number of the compiled stage, after those of the programs. */
  get compiled(): number {
    return this.model.view.stages.length;
  }

  /** The stages that a pane can show, by Python's names. */
  get stageKeys(): string[] {
    return [...this.model.view.stages.map((stage) => stage.key), "compiled"];
  }

  /** Called when the model may have more of the data omitted at first. */
  complete(): void {
    batch(() => {
      ({ has_groups: this.hasGroups, has_memory: this.hasMemory, is_whole: this.isWhole } = this.model.view);
    });
  }

  /** What is known of the model, for figures that depend on it. */
  get modelled(): string {
    return `${this.hasGroups} ${this.hasMemory} ${this.isWhole}`;
  }

  selectRow(row: number): void {
    this.select([row], {});
  }

  /** Selects several equations: those of an instruction, or in a box of the graph. */
  selectRows(rows: readonly number[]): void {
    this.select([...rows], {});
  }

  selectLine(file: number, line: number): void {
    const there = this.model.rowsOfLine(file, line);
    const primal = there.filter((row) => this.model.origin(row) < 0 && this.model.stage(row) === 0);
    this.select(primal.length > 0 ? primal : there, { file, line });
  }

  selectResidual(index: number): void {
    this.selectResiduals([index]);
  }

  /** Selects residuals, with the equations that compute them. */
  selectResiduals(indices: readonly number[]): void {
    const found = indices.map((i) => this.model.residuals[i]).filter((r) => r !== undefined);
    if (found.length === 0) return;
    const makers = found.map((r) => r.producer).filter((row) => row >= 0);
    const readers = found.flatMap((r) => r.consumers);
    this.select(makers, { residuals: new Set(indices), residual: indices[0]! }, readers);
  }

  /** The place among the selected residuals of the one whose equations are shown, and how many are selected. */
  get pair(): { at: number; of: number } {
    const { residuals, residual } = this.selection;
    return { at: [...residuals].indexOf(residual), of: residuals.size };
  }

  /** Shows the equations of the next or the previous one of the selected residuals. */
  stepPair(by: 1 | -1): void {
    const { residuals } = this.selection;
    const residual = [...residuals][this.pair.at + by];
    if (residual === undefined) return;
    const { producer, consumers } = this.model.residuals[residual]!;
    this.select(producer >= 0 ? [producer] : [], { residuals, residual }, [...consumers]);
  }

  /** Selects a residual and the equation at one of its ends. */
  selectEnd(index: number, row: number): void {
    this.select([row], { residuals: new Set([index]), residual: index });
  }

  clear(): void {
    batch(() => {
      this.time.choose(null);
      this.selection = NOTHING;
      this.variable = -1;
    });
  }

  /** The selected equation if there is one only, or -1. */
  get row(): number {
    const [row, more] = this.selection.rows;
    return row === undefined || more !== undefined ? -1 : row;
  }

  show(shown: Partial<Shown>, view: View = ""): void {
    batch(() => {
      this.shown = { ...this.shown, ...shown };
      if (this.shown.right.length === 0) this.side = "left";
      this.view = view;
    });
  }

  /** Whether there is an overview: the function has a gradient, or may have one that is still being derived. */
  get hasOverview(): boolean {
    const { view } = this.model;
    const keys = view.stages.filter((stage) => !stage.error).map((stage) => stage.key);
    return keys.includes("forward") && keys.includes("backward") && view.no_memory === "";
  }

  /** Arranges the panes for a question; it `begins` with the largest value, if nothing is selected. */
  arrange(view: View, begins = true): void {
    batch(() => this.arrangeFor(view, begins));
  }

  private arrangeFor(view: View, begins: boolean): void {
    if (view === "diff") this.compare(true);
    else if (this.compared && !["overview", "motion", "lines"].includes(view)) this.compare(false);
    if (WHOLE.includes(view)) {
      const isMissing =
        view === "diff" ? !this.compared : ["overview", "motion"].includes(view) && !this.hasOverview;
      if (!isMissing) this.view = view;
      return;
    }
    const at = (...keys: string[]) => keys.map((key) => this.model.stageNamed(key)).filter((i) => i >= 0);
    const panes: Partial<Record<View, Shown>> = {
      kept: { left: at("forward"), right: at("backward") },
      derived: { left: at("primal"), right: at("forward", "linear") },
    };
    const shown = panes[view] ?? this.shown;
    this.form = { left: "code", right: "code" };
    if (shown.left.length > 0) this.show(shown, view);
    else this.view = view;
    if (begins && ["kept", "derived"].includes(view) && this.selection === NOTHING) this.selectLargest();
  }

  /** Selects the largest values of the expression with the most saved bytes, so that a question begins with an answer. */
  private selectLargest(): void {
    const kept = this.model.column("residual_kept");
    const saved = this.model.residuals.filter(({ index }) => kept[index]! >= 0);
    const largest = (of: readonly Residual[], keyOf: (r: Residual) => number): Residual[] =>
      grouped(of, keyOf).reduce((most, same) => (savedBy(same) > savedBy(most) ? same : most), []);
    const values = largest(
      largest(saved, ({ index }) => kept[index]!),
      ({ group }) => group,
    );
    if (values.length > 0) this.selectResiduals(values.map(({ index }) => index));
  }

  /** Opens or closes what is shown on demand. */
  open(extra: Extra, isOpen = !this.extras.has(extra)): void {
    if (isOpen === this.extras.has(extra)) return;
    const extras = new Set(this.extras);
    if (isOpen) extras.add(extra);
    else extras.delete(extra);
    this.extras = extras;
  }

  /** Shows where the values of an expression are saved and read, now and when more of the view arrives. */
  openKept({ index, residuals }: Kept): void {
    this.opened = index;
    this.openResiduals(residuals);
  }

  /** Shows where some residuals are saved and read: forward beside backward. */
  openResiduals(indices: readonly number[]): void {
    batch(() => {
      this.arrange("kept", false);
      this.selectResiduals(indices);
    });
  }

  /** Shows some equations in the stages' panes and selects them. */
  openRows(rows: readonly number[]): void {
    const [first] = rows;
    if (first === undefined) return;
    batch(() => {
      this.openStages();
      const stage = this.model.stage(first);
      if (!this.isShown(stage)) this.showStages([stage]);
      this.selectRows(rows);
    });
  }

  /** Whether the stages' panes are shown. */
  get showsStages(): boolean {
    return !WHOLE.includes(this.view);
  }

  /** Whether the question is one over which rules are shown: how it was derived, or none. */
  get showsRules(): boolean {
    return this.view === "" || this.view === "derived";
  }

  /** Leaves a view that hides the stages' panes. */
  openStages(): void {
    if (!this.showsStages) this.arrange(this.hasOverview ? "kept" : "", false);
  }

  /** Highlights a place in the source; null for none. */
  pointTo(place: Place | null): void {
    this.aimed = place;
  }

  /** What an element does that stands for a place in the source, which is highlighted while it is pointed at. */
  pointing(place: Place | null) {
    return { onpointerenter: () => this.pointTo(place), onpointerleave: () => this.pointTo(null) };
  }

  /** The result of the comparison with JAX, when available. */
  get checked(): CheckResult | null {
    const text = this.check.read();
    return this.model.view.check ?? (text === "" ? null : (JSON.parse(text) as CheckResult));
  }

  /** Called when the communication of the compiled program is known. */
  exchange(found: ReadonlyMap<number, readonly string[]>): void {
    this.exchanges = new Map([...ownExchanges(this.model), ...found]);
  }

  /** The advice on the peak, when available. */
  get advised(): PeakAdvice | null {
    const text = this.advice.read();
    return text === "" ? null : (JSON.parse(text) as PeakAdvice);
  }

  /** Shows the stages of a pane as code or as a graph. */
  showAs(side: Side, form: Form): void {
    if (this.form[side] === form) return;
    batch(() => {
      this.view = ""; // changing the panes by hand ends an arrangement
      this.form = { ...this.form, [side]: form };
    });
  }

  /** Shows stages in the current pane, or beside it. */
  showStages(stages: readonly number[], beside = false): void {
    const other: Side = this.side === "left" ? "right" : "left";
    this.show({ [beside ? other : this.side]: stages });
  }

  /** Opens or closes a second pane with a stage. */
  toggleBeside(stage: number): void {
    const { right } = this.shown;
    this.show({ right: right.length === 1 && right[0] === stage ? [] : [stage] });
  }

  /** Shows the JVP on the left, and on the right forward and linear, into which linearize splits the same program. */
  compareWithJvp(): void {
    const [jvp, ...linearized] = ["jvp", "forward", "linear"].map((key) => this.model.stageNamed(key));
    this.show({ left: [jvp!], right: linearized });
  }

  isShown(stage: number): boolean {
    return this.shown.left.includes(stage) || this.shown.right.includes(stage);
  }

  /** Selects a row, and shows its stage if there are panes of stages, and neither does. */
  goTo(row: number): void {
    batch(() => {
      const stage = this.model.stage(row);
      if (this.showsStages && !this.isShown(stage)) this.showStages([stage]);
      this.selectRow(row);
    });
  }

  /** Shows or hides the previous version on the left. */
  compare(isOn: boolean): void {
    if (this.other === null || isOn === this.compared) return;
    batch(() => {
      this.compared = isOn;
      if (isOn ? ["cost", "what-if"].includes(this.view) : this.view === "diff") this.view = "";
    });
  }

  /** The class of a row that the other version lacks, or empty. */
  markOf(row: number): string {
    return this.other?.matches.isOnlyHere(row) ? this.other.mark : "";
  }

  filterBy(words: string): void {
    this.filter = words;
  }

  /** Makes a pane the current one. */
  use(side: Side): void {
    if (this.shown[side].length > 0) this.side = side;
  }

  pointAt(variable: number): void {
    this.hover = variable;
  }

  /** Moves the keyboard cursor to a variable; -1 for none. */
  standOn(variable: number): void {
    this.variable = variable;
  }

  /** Goes to the definition of a variable, or to an equation that reads it. */
  goToVariable(variable: number, row = this.model.definition(variable)): void {
    this.behind.push({ row: this.row, variable: this.variable });
    this.ahead = [];
    this.move({ row, variable });
  }

  /** Goes back or forward in the history of visited variables; returns whether it could. */
  retrace(by: 1 | -1): boolean {
    const [from, to] = by < 0 ? [this.behind, this.ahead] : [this.ahead, this.behind];
    const spot = from.pop();
    if (spot === undefined) return false;
    to.push({ row: this.row, variable: this.variable });
    this.move(spot);
    return true;
  }

  private move({ row, variable }: Spot): void {
    batch(() => {
      if (row >= 0) this.goTo(row);
      else if (variable < 0) this.clear();
      else {
        const program = this.model.boundBy(variable);
        const stage = program < 0 ? -1 : this.model.column("program_stage")[program]!;
        if (stage >= 0 && this.showsStages && !this.isShown(stage)) this.showStages([stage]);
      }
      this.variable = variable;
    });
  }

  /** Cycles a role through dimmed, hidden and normal. */
  mute(role: string): void {
    const muted = new Map(this.muted);
    const now = muted.get(role);
    if (now === undefined) muted.set(role, "dimmed");
    else if (now === "dimmed") muted.set(role, "hidden");
    else muted.delete(role);
    this.muted = muted;
  }

  toggleColours(): void {
    this.coloured = !this.coloured;
  }

  /**
   * The hovered variable, or else the one under the keyboard cursor, with the variables that share its memory by donation, and those of a
   * selected jit.
   */
  get pointed(): Set<number> {
    const variable = this.hover >= 0 ? this.hover : this.variable;
    const found = new Set([variable]);
    const donations = [...this.selection.rows].flatMap((row) => this.model.donationsOf(row));
    for (const { variable: given, taker } of [...donations, ...this.model.donationsWith(variable)])
      if (taker !== null) found.add(given).add(taker);
    return found;
  }

  setPlayer(player: Player | null): void {
    this.player = player;
  }

  toggleLinking(): void {
    this.linksScrolling = !this.linksScrolling;
  }

  toggleParams(): void {
    this.fullParams = !this.fullParams;
  }

  private select(rows: number[], what: Partial<Selection>, readers: number[] = []): void {
    const { model } = this;
    const chosen = new Set(rows.flatMap((row) => model.alike(row)));
    const ancestors = model.ancestors(chosen);
    const descendants = model.descendants(chosen);
    for (const row of readers) descendants.add(row);
    this.addAcrossResiduals(chosen, ancestors, descendants);
    const roots = [...ancestors, ...chosen].filter((row) => model.origin(row) < 0);
    const siblings = model.descendants(roots);
    for (const row of chosen) for (const set of [ancestors, descendants, siblings]) set.delete(row);
    for (const row of [...ancestors, ...descendants]) siblings.delete(row);
    batch(() => {
      this.variable = -1;
      this.selection = { ...NOTHING, rows: new Set(rows), ancestors, descendants, siblings, ...what };
    });
  }

  /** A residual connects the equation that computes it to those that read it. */
  private addAcrossResiduals(chosen: Set<number>, ancestors: Set<number>, descendants: Set<number>): void {
    for (const row of chosen)
      for (const index of this.model.residualsOfRow.get(row) ?? []) {
        const { producer, consumers } = this.model.residuals[index]!;
        if (producer === row) for (const reader of consumers) descendants.add(reader);
        else if (producer >= 0) ancestors.add(producer);
      }
  }
}

/** The fields that are signals. */
const TRACKED = [
  ...["selection", "shown", "form", "view", "aimed", "side", "hover", "variable", "muted", "coloured"],
  ...["fullParams", "extras", "player", "linksScrolling", "other", "inspected", "compared", "filter"],
  "exchanges",
  ...["hasGroups", "hasMemory", "isWhole"],
];
