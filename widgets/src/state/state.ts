/** The state of the explorer. Only the selected equation and the stages are sent to Python. */

import { NO_WORK, type Work } from "../host/work";
import type { Matches } from "../model/changes";
import type { Model } from "../model/model";
import type { Player } from "../model/player";
import type { Place } from "../model/records";
import { NO_SWITCHES, Switches, type SwitchSource } from "../model/switches";
import type { Advice } from "../wire/explorer.generated";
import type { CheckResult } from "../wire/schema";

export interface Selection {
  /** The equations selected: one, or all of a source line. */
  rows: ReadonlySet<number>;
  /** What they came from, and what came from them or reads them. */
  ancestors: ReadonlySet<number>;
  descendants: ReadonlySet<number>;
  /** What else came from the same equation of the user's program. */
  siblings: ReadonlySet<number>;
  /** The residuals selected: none, one, or those of one expression; and the first of them, or -1. */
  residuals: ReadonlySet<number>;
  residual: number;
  file: number;
  line: number;
}

const EMPTY: ReadonlySet<number> = new Set();

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

/** The stages shown in each code pane, in order; none at the right when there is but one pane. */
export interface Shown {
  left: readonly number[];
  right: readonly number[];
}

/** How the stages of a pane are shown. */
export type Form = "code" | "graph";

/** What stands in the lower part, where there is room for one of them only. */
export type Lower = Tabled | "memory";

/** What of it is a table; one of them is shown. */
export type Tabled = "residuals" | "what-if" | "changes";

/** How the equations of a role are shown; any other role as it is. */
export type Muting = "dimmed" | "hidden";

/** Where somebody was: an equation, or -1, and a variable, or -1. */
interface Spot {
  row: number;
  variable: number;
}

/** Another version of the function, and what the equations of both are in the other. */
export interface Other {
  state: State;
  matches: Matches;
  /** How a row that the other version has not is marked. */
  mark: "is-added" | "is-removed";
}

/** What the panes are arranged for: a question, or nothing in particular. */
export type View = "overview" | "motion" | "lines" | "diff" | "kept" | "derived" | "cost" | "what-if" | "";

/** Those that take the place of the stages' panes. */
export const WHOLE: readonly View[] = ["overview", "motion", "lines", "diff"];

export type Change =
  | "view"
  | "advice"
  | "selection"
  | "shown"
  | "side"
  | "hover"
  | "variable"
  | "roles"
  | "colours"
  | "params"
  | "lower"
  | "switches"
  | "linking"
  | "filter"
  | "player"
  | "exchanges"
  | "whole";

export class State {
  selection: Selection = NOTHING;
  shown: Shown = { left: [0], right: [] };
  form: Readonly<Record<Side, Form>> = { left: "code", right: "code" };
  /** The question that the panes are arranged for. */
  view: View = "";
  /** The place in the source that is pointed at from elsewhere, if one is. */
  aimed: Place | null = null;
  /** The pane that keys and rail buttons act on. */
  side: Side = "left";
  /** The variable under the pointer, or -1. */
  hover = -1;
  /** The variable that keys stand on, or that was gone to, or -1. */
  variable = -1;
  /** The roles whose equations are not shown as others are. */
  muted: ReadonlyMap<string, Muting> = new Map();
  /** Whether variables have the hues of the values that they stand for. */
  coloured = true;
  private behind: Spot[] = [];
  private ahead: Spot[] = [];
  /** Whether long parameters are written out. */
  fullParams = false;
  lower: Lower = "residuals";
  tabled: Tabled = "residuals";
  /** The transform that is played, if one is. */
  player: Player | null = null;
  /** Whether scrolling one pane brings the other to the place that it is linked to. */
  linksScrolling = true;
  readonly switches: Switches;
  /** The version before, if there is one, or for that one the version after. */
  other: Other | null = null;
  /** Whether the version before is shown beside this one. */
  compared = false;
  /** What is typed above the residuals. */
  filter = "";
  /** What is said of the equations for which devices exchange values, by row. */
  exchanges: ReadonlyMap<number, readonly string[]>;
  private readonly listeners = new Set<(change: Change) => void>();

  constructor(
    readonly model: Model,
    switches: SwitchSource = NO_SWITCHES,
    /** What is left out of the view at first. */
    readonly rest: Work = NO_WORK,
    /** What would lower the peak, which takes longer than all else. */
    readonly advice: Work = NO_WORK,
    /** The comparison with JAX, which traces the function anew. */
    readonly check: Work = NO_WORK,
  ) {
    this.switches = new Switches(switches, () => this.tell("switches"));
    this.exchanges = ownExchanges(model);
  }

  /** The number of what the stages compile to, after those of the programs. */
  get compiled(): number {
    return this.model.view.stages.length;
  }

  /** All that a pane can show, as Python names it. */
  get stageKeys(): string[] {
    return [...this.model.view.stages.map((stage) => stage.key), "compiled"];
  }

  subscribe(listener: (change: Change) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** What was left out of the view at first is in the model now. */
  complete(): void {
    this.tell("whole");
  }

  selectRow(row: number): void {
    this.select([row], {});
  }

  /** Selects several equations: those that an instruction was made from, or that a box of the graph holds. */
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

  /** Selects residuals that belong together, with the equations that make them. */
  selectResiduals(indices: readonly number[]): void {
    const found = indices.map((i) => this.model.residuals[i]).filter((r) => r !== undefined);
    if (found.length === 0) return;
    const makers = found.map((r) => r.producer).filter((row) => row >= 0);
    const readers = found.flatMap((r) => r.consumers);
    this.select(makers, { residuals: new Set(indices), residual: indices[0]! }, readers);
  }

  /** Selects the equation at one end of a residual, and the residual with it. */
  selectEnd(index: number, row: number): void {
    this.select([row], { residuals: new Set([index]), residual: index });
  }

  clear(): void {
    this.selection = NOTHING;
    this.variable = -1;
    this.tell("selection");
  }

  /** The one equation selected, or -1. */
  get row(): number {
    const [row, more] = this.selection.rows;
    return row === undefined || more !== undefined ? -1 : row;
  }

  show(shown: Partial<Shown>, view: View = ""): void {
    this.shown = { ...this.shown, ...shown };
    if (this.shown.right.length === 0) this.side = "left";
    // Panes are made for what is shown when it is known for which view.
    this.look(view);
    this.tell("shown");
  }

  /** Whether there is an overview: the function has a gradient, or it is being worked out. */
  get hasOverview(): boolean {
    const { view } = this.model;
    const keys = view.stages.filter((stage) => !stage.error).map((stage) => stage.key);
    return keys.includes("forward") && keys.includes("backward") && view.no_memory === "";
  }

  /** Arranges the panes for a question. */
  arrange(view: View): void {
    if (view === "diff") this.compare(true);
    if (WHOLE.includes(view)) {
      const isThere = view === "lines" || (view === "diff" ? this.compared : this.hasOverview);
      if (isThere) this.look(view);
      return;
    }
    const at = (...keys: string[]) =>
      keys.map((key) => this.model.view.stages.findIndex((stage) => stage.key === key)).filter((i) => i >= 0);
    const panes: Partial<Record<View, [Shown, Lower]>> = {
      kept: [{ left: at("forward"), right: at("backward") }, "residuals"],
      derived: [{ left: at("primal"), right: at("forward", "linear") }, "residuals"],
      cost: [{ left: at("forward"), right: at("backward") }, "memory"],
      "what-if": [{ left: at("forward"), right: at("backward") }, "what-if"],
    };
    const [shown, lower] = panes[view] ?? [this.shown, this.lower];
    if (this.compared) this.compare(false);
    this.form = { left: "code", right: "code" };
    if (shown.left.length > 0) this.show(shown, view);
    else this.look(view);
    this.showLower(lower);
  }

  /** Shows some residuals where they are kept and where they are read: forward beside backward. */
  openResiduals(indices: readonly number[]): void {
    this.arrange("kept");
    this.selectResiduals(indices);
  }

  /** Shows some equations in the panes of stages, and selects them. */
  openRows(rows: readonly number[]): void {
    const [first] = rows;
    if (first === undefined) return;
    this.openStages();
    const stage = this.model.stage(first);
    if (!this.isShown(stage)) this.showStages([stage]);
    this.selectRows(rows);
  }

  /** Leaves what hides the panes of stages. */
  openStages(): void {
    if (WHOLE.includes(this.view)) this.arrange(this.hasOverview ? "kept" : "");
  }

  private look(view: View): void {
    if (view === this.view) return;
    this.view = view;
    this.tell("view");
  }

  /** What is arranged by hand is arranged for no question. */
  private leave(): void {
    this.look("");
  }

  /** Points at a place in the source, or at none. */
  pointTo(place: Place | null): void {
    if (place === this.aimed) return;
    this.aimed = place;
    this.tell("hover");
  }

  /** What the comparison with JAX came to, once it is known. */
  get checked(): CheckResult | null {
    const text = this.check.read();
    return this.model.view.check ?? (text === "" ? null : (JSON.parse(text) as CheckResult));
  }

  /** It is known for which equations the compiled program exchanges values. */
  exchange(found: ReadonlyMap<number, readonly string[]>): void {
    this.exchanges = new Map([...ownExchanges(this.model), ...found]);
    this.tell("exchanges");
  }

  /** It is known what would lower the peak. */
  advise(): void {
    if (this.advice.read() !== "") this.tell("advice");
  }

  /** What would lower the peak, once it is known. */
  get advised(): Advice | null {
    const text = this.advice.read();
    return text === "" ? null : (JSON.parse(text) as Advice);
  }

  /** Shows the stages of a pane as code, or as a graph. */
  showAs(side: Side, form: Form): void {
    if (this.form[side] === form) return;
    this.leave();
    this.form = { ...this.form, [side]: form };
    this.tell("shown");
  }

  /** Shows stages in the pane in use, or in the other one. */
  showStages(stages: readonly number[], beside = false): void {
    const other: Side = this.side === "left" ? "right" : "left";
    this.show({ [beside ? other : this.side]: stages });
  }

  /** Shows a stage in one more pane, or takes that pane away again. */
  toggleBeside(stage: number): void {
    const { right } = this.shown;
    this.show({ right: right.length === 1 && right[0] === stage ? [] : [stage] });
  }

  /** The JVP at the left; forward and linear, which linearize makes of the same program, at the right. */
  compareWithJvp(): void {
    const index = (key: string) => this.model.view.stages.findIndex((stage) => stage.key === key);
    this.show({ left: [index("jvp")], right: [index("forward"), index("linear")] });
  }

  isShown(stage: number): boolean {
    return this.shown.left.includes(stage) || this.shown.right.includes(stage);
  }

  /** Selects a row and makes sure that it is in one of the panes. */
  goTo(row: number): void {
    const stage = this.model.stage(row);
    if (!this.isShown(stage)) this.showStages([stage]);
    this.selectRow(row);
  }

  showLower(lower: Lower): void {
    if (lower === this.lower) return;
    this.lower = lower;
    if (lower !== "memory") this.tabled = lower;
    this.tell("lower");
  }

  /** Shows the version before at the left, or no longer. */
  compare(isOn: boolean): void {
    if (this.other === null || isOn === this.compared) return;
    this.compared = isOn;
    if (!isOn && this.view === "diff") this.leave();
    this.tell("shown");
  }

  /** A class name for a row that the other version has not, or empty. */
  markOf(row: number): string {
    return this.other?.matches.isOnlyHere(row) ? this.other.mark : "";
  }

  filterBy(words: string): void {
    if (words === this.filter) return;
    this.filter = words;
    this.tell("filter");
  }

  /** Moves the keys and the rail to a pane. */
  use(side: Side): void {
    if (side === this.side || this.shown[side].length === 0) return;
    this.side = side;
    this.tell("side");
  }

  pointAt(variable: number): void {
    if (variable === this.hover) return;
    this.hover = variable;
    this.tell("hover");
  }

  /** Puts the keys on a variable, or takes them off. */
  standOn(variable: number): void {
    if (variable === this.variable) return;
    this.variable = variable;
    this.tell("variable");
  }

  /** Goes to where a variable is made, or to an equation that reads it. */
  goToVariable(variable: number, row = this.model.definition(variable)): void {
    this.behind.push({ row: this.row, variable: this.variable });
    this.ahead = [];
    this.move({ row, variable });
  }

  /** Goes back to where somebody was before going to a variable, or forward again; says whether there is such a place. */
  retrace(by: 1 | -1): boolean {
    const [from, to] = by < 0 ? [this.behind, this.ahead] : [this.ahead, this.behind];
    const spot = from.pop();
    if (spot === undefined) return false;
    to.push({ row: this.row, variable: this.variable });
    this.move(spot);
    return true;
  }

  private move({ row, variable }: Spot): void {
    if (row >= 0) this.goTo(row);
    else if (variable < 0) this.clear();
    else {
      const program = this.model.boundBy(variable);
      const stage = program < 0 ? -1 : this.model.column("program_stage")[program]!;
      if (stage >= 0 && !this.isShown(stage)) this.showStages([stage]);
    }
    this.variable = variable;
    this.tell("variable");
  }

  /** Shows the equations of a role less: dimmed, then hidden, then as others again. */
  mute(role: string): void {
    const muted = new Map(this.muted);
    const now = muted.get(role);
    if (now === undefined) muted.set(role, "dimmed");
    else if (now === "dimmed") muted.set(role, "hidden");
    else muted.delete(role);
    this.muted = muted;
    this.tell("roles");
  }

  toggleColours(): void {
    this.coloured = !this.coloured;
    this.tell("colours");
  }

  /** The variable under the pointer, or else the one that keys stand on, with those that its memory goes to or comes from, and
   * those of a jit that is selected. */
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
    this.tell("player");
  }

  toggleLinking(): void {
    this.linksScrolling = !this.linksScrolling;
    this.tell("linking");
  }

  toggleParams(): void {
    this.fullParams = !this.fullParams;
    this.tell("params");
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
    this.variable = -1;
    this.selection = { ...NOTHING, rows: new Set(rows), ancestors, descendants, siblings, ...what };
    this.tell("selection");
  }

  /** A residual leads from the equation that makes it to those that read it. */
  private addAcrossResiduals(chosen: Set<number>, ancestors: Set<number>, descendants: Set<number>): void {
    for (const row of chosen)
      for (const index of this.model.residualsOfRow.get(row) ?? []) {
        const { producer, consumers } = this.model.residuals[index]!;
        if (producer === row) for (const reader of consumers) descendants.add(reader);
        else if (producer >= 0) ancestors.add(producer);
      }
  }

  private tell(change: Change): void {
    for (const listener of this.listeners) listener(change);
  }
}

/** The collectives that the function has itself. */
function ownExchanges(model: Model): Map<number, readonly string[]> {
  const found = new Map<number, readonly string[]>();
  for (const [row, exchanges] of model.axes) {
    const [v] = model.outputs(row);
    if (exchanges && v !== undefined)
      found.set(row, [
        `${model.primitive(row)}, ${model.params(row)[0]}, ${model.sizeText(v)}: a collective that your code calls here, or its transpose`,
      ]);
  }
  return found;
}

export type Lit = "" | "is-selected" | "is-ancestor" | "is-descendant" | "is-related";

/** How a row stands to the selection; a class name, or empty. */
export function litAs(selection: Selection, row: number): Lit {
  if (selection.rows.has(row)) return "is-selected";
  if (selection.ancestors.has(row)) return "is-ancestor";
  if (selection.descendants.has(row)) return "is-descendant";
  return selection.siblings.has(row) ? "is-related" : "";
}

/** How a residual stands to the selection: made by it, read by it, or kept on its account. */
export function residualLitAs(state: State, index: number): Lit {
  const { selection, model } = state;
  const r = model.residuals[index]!;
  if (selection.residual >= 0) return selection.residuals.has(index) ? "is-selected" : "";
  if (r.producer >= 0 && selection.rows.has(r.producer)) return "is-selected";
  if (r.consumers.some((row) => selection.rows.has(row))) return "is-ancestor";
  return r.producer >= 0 && selection.descendants.has(r.producer) ? "is-descendant" : "";
}

/** The places whose expressions are selected; none where a whole line is. */
export function selectedPlaces({ selection, model }: State): Place[] {
  const { residual, rows, line } = selection;
  if (line >= 0) return [];
  if (residual >= 0) return placed([model.residuals[residual]!.place]);
  const locations = new Set([...rows].map((row) => model.column("equation_location")[row]!));
  return placed([...locations].map((i) => model.location(i)));
}

/** The place that the variable under the pointer is made at, or the one that keys stand on. */
export function pointedPlaces({ hover, variable, model, aimed }: State): Place[] {
  if (aimed !== null) return [aimed];
  const pointed = hover >= 0 ? hover : variable;
  const row = pointed >= 0 ? model.definition(pointed) : -1;
  return placed([row >= 0 ? model.place(row) : null]);
}

const placed = (places: (Place | null)[]): Place[] => places.filter((place) => place !== null);

/** The source lines that the selection concerns, as `file:line`, and how. */
export function litLines(state: State): Map<string, Lit> {
  const { selection, model } = state;
  const lit = new Map<string, Lit>();
  const light = (place: Place | null, how: Lit) => {
    const key = place ? `${place.file}:${place.line}` : "";
    if (place && !lit.has(key)) lit.set(key, how);
  };
  if (selection.line >= 0) lit.set(`${selection.file}:${selection.line}`, "is-selected");
  for (const row of selection.rows) light(model.place(row), "is-selected");
  if (selection.residual >= 0) light(model.residuals[selection.residual]!.place, "is-selected");
  for (const row of selection.ancestors) light(model.place(row), "is-ancestor");
  return lit;
}
