/** Reads the columns: equations, variables, residuals and lineage. */

import { formatBytes, formatParts } from "../base/format";
import { entry } from "../base/maps";
import { atOnce, type Sliced } from "../base/slices";
import { type Column, type ColumnName, HANDED, KINS, ROLES, type View } from "../wire/schema";
import { LineFigures } from "./figures";
import { push } from "./groups";
import { Hues } from "./hues";
import {
  type Donation,
  type Layout,
  type Place,
  type Residual,
  type ResidualGroup,
  readDonations,
  readGroups,
  readLayouts,
  readPlaces,
  readResiduals,
  readTimeline,
} from "./records";
import { Kinship, Uses } from "./relations";
import type { Timeline } from "./timeline";

export interface Variable {
  name: string;
  type: string;
  label: string;
}

/** Whether a variable is a value of the function, or a tangent or cotangent of one. */
export type Kin = "value" | "tangent" | "cotangent";

/** An input of a program and its operand: passed as it is, as a carry, or as a slice in each iteration. */
export interface Handed {
  binder: number;
  operand: number;
  how: string;
}

/** A view with the lookups that panes need. Rows are equations, numbered over all stages. */
export class Model {
  readonly rows: number;
  /** The equations that name axes, and whether they communicate along them. */
  readonly axes: ReadonlyMap<number, boolean>;
  readonly layouts: ReadonlyMap<number, Layout>;
  readonly donations: readonly Donation[];
  /** Which devices have a variable inside a `shard_map`. */
  private readonly places: ReadonlyMap<number, string>;
  private readonly donationsOfVariable = new Map<number, Donation[]>();
  /** What was computed on first access, by name: for a large program each takes at least a frame. */
  private readonly computed = new Map<string, unknown>();
  private modelled: Timeline | null = null;
  private coloured: Hues | null = null;
  private readonly placesFound: Place[] = [];
  private readonly nestedPrograms = new Map<number, number[]>();

  constructor(private shown: View) {
    this.rows = this.column("equation_program").length;
    const owners = this.column("program_owner");
    for (let p = 0; p < owners.length; p++) if (owners[p]! >= 0) push(this.nestedPrograms, owners[p]!, p);
    const exchanges = this.column("axis_exchanges");
    this.axes = new Map(Array.from(this.column("axis_rows"), (row, i) => [row, exchanges[i] === 1]));
    this.layouts = readLayouts(this);
    this.places = readPlaces(this);
    this.donations = readDonations(this);
    for (const d of this.donations)
      for (const v of new Set([d.variable, d.taker ?? -1])) if (v >= 0) push(this.donationsOfVariable, v, d);
  }

  get view(): View {
    return this.shown;
  }

  private once<T>(name: string, compute: () => T): T {
    return entry(this.computed, name, compute) as T;
  }

  get residuals(): readonly Residual[] {
    return this.once("residuals", () => readResiduals(this));
  }

  /** The rows of the report of residuals. */
  get groups(): readonly ResidualGroup[] {
    return this.once("groups", () => readGroups(this));
  }

  /** The residuals of each producer row and each consumer row. */
  get residualsOfRow(): ReadonlyMap<number, readonly number[]> {
    return this.once("residuals of rows", () => {
      const found = new Map<number, number[]>();
      for (const r of this.residuals)
        for (const row of new Set([r.producer, ...r.consumers])) if (row >= 0) push(found, row, r.index);
      return found;
    });
  }

  private get related(): Kinship {
    return this.once("kinship", () => new Kinship(this));
  }

  private get used(): Uses {
    return this.once("uses", () => new Uses(this));
  }

  /** The gradient's figures per line. */
  get lines(): LineFigures {
    return this.once("lines", () => new LineFigures(this));
  }

  /** Replaces the view by a more complete one. */
  complete(view: View): void {
    if (view.has_memory !== this.shown.has_memory) this.modelled = null;
    if (view.has_groups !== this.shown.has_groups) this.computed.delete("lines");
    this.shown = view;
    // The buffers and texts of the residuals and the relations between variables may be new.
    for (const name of ["residuals", "groups"]) this.computed.delete(name);
    this.coloured = null;
  }

  column(name: ColumnName): Column {
    const found = this.view.columns[name];
    if (found === undefined) throw new Error(`the view has no column ${name}`);
    return found;
  }

  text(name: ColumnName, i: number): string {
    return this.view.strings[this.column(name)[i]!] ?? "";
  }

  slice(offsets: ColumnName, values: ColumnName, i: number): number[] {
    const [all, starts] = [this.column(values), this.column(offsets)];
    const found: number[] = [];
    for (let k = starts[i]!; k < starts[i + 1]!; k++) found.push(all[k]!);
    return found;
  }

  // --- equations ---

  primitive(row: number): string {
    return this.text("equation_primitive", row);
  }
  params(row: number): string[] {
    const text = this.text("equation_params", row);
    return text === "" ? [] : text.split("\n");
  }
  /** The params in the order in which JAX prints them: `name=value`, or the name alone for a nested program. */
  printed(row: number): string[] {
    const text = this.text("equation_printed", row);
    return text === "" ? [] : text.split("\n");
  }
  role(row: number): string {
    return ROLES[this.column("equation_role")[row]!] ?? "primal";
  }
  rule(row: number): string {
    return this.text("equation_rule", row);
  }
  /** The transformations that produced the equation's origins in stages that are not shown, latest first. */
  earlier(row: number): string[] {
    return this.text("equation_earlier", row).split("\n").filter(Boolean);
  }
  /** What a checkpoint policy decided about its results, or empty. */
  decision(row: number): string {
    return this.text("equation_decision", row);
  }
  transform(row: number): string {
    return this.text("equation_transform", row);
  }
  inputs(row: number): number[] {
    return this.slice("equation_inputs", "input_atoms", row);
  }
  outputs(row: number): number[] {
    return this.slice("equation_outputs", "output_vars", row);
  }
  place(row: number): Place | null {
    return this.location(this.column("equation_location")[row]!);
  }
  /** The name of the function that an equation calls, or empty. */
  called(row: number): string {
    const [first] = this.nested(row);
    return first === undefined ? "" : this.text("program_name", first);
  }
  /** The number of iterations of a loop; 0 if it is not known, or for other equations. */
  length(row: number): number {
    const [first] = this.nested(row);
    return first === undefined ? 0 : this.column("program_length")[first]!;
  }
  /** The functions and named scopes that contain it, outermost first, joined by `/`. */
  scope(row: number): string {
    return this.text("equation_scope", row);
  }
  /** A number shared by the equations of one expression. */
  group(row: number): number {
    return this.column("equation_group")[row]!;
  }
  /** FLOPs, including nested programs. */
  flops(row: number): number {
    return this.column("equation_flops")[row]!;
  }
  /** How often it runs; 0 if its nested programs are counted. */
  runs(row: number): number {
    return this.column("equation_runs")[row]!;
  }
  /** FLOPs and moved bytes without nested programs, over all runs. */
  work(row: number): number {
    return this.flops(row) * this.runs(row);
  }
  moved(row: number): number {
    return this.column("equation_moved")[row]! * this.runs(row);
  }
  /** The number of an atom's type. */
  private typeOf(atom: number): number {
    return atom >= 0 ? this.column("variable_type")[atom]! : this.column("literal_type")[~atom]!;
  }
  /** The size of an atom in bytes. */
  bytes(atom: number): number {
    return this.column("type_nbytes")[this.typeOf(atom)]!;
  }
  program(row: number): number {
    return this.column("equation_program")[row]!;
  }
  nested(row: number): number[] {
    return this.nestedPrograms.get(row) ?? [];
  }
  /** The rows of a program, without nested programs. */
  rowsOf(program: number): readonly number[] {
    const all = this.once("rows of programs", () => {
      const found: number[][] = [];
      this.column("equation_program").forEach((of, row) => {
        found[of] ??= [];
        found[of].push(row);
      });
      return found;
    });
    return all[program] ?? [];
  }
  stage(row: number): number {
    return this.column("program_stage")[this.program(row)]!;
  }
  /** The key of a row's stage. */
  stageKey(row: number): string {
    return this.view.stages[this.stage(row)]!.key;
  }
  /** The stage with a key, or -1. */
  stageNamed(key: string): number {
    return this.view.stages.findIndex((stage) => stage.key === key);
  }
  /** The rows of the stage with a key; none if there is no such stage. */
  rowsOfStage(key: string): number[] {
    const [first, end] = this.view.stages[this.stageNamed(key)]?.equations ?? [0, 0];
    return Array.from({ length: end - first }, (_, i) => first + i);
  }
  /** The rows of the programs in a row, which follow it. */
  inside(row: number): number[] {
    const found: number[] = [];
    const isWithin = (inner: number) => {
      let owner = this.owner(inner);
      while (owner > row) owner = this.owner(owner);
      return owner === row;
    };
    for (let inner = row + 1; inner < this.rows && isWithin(inner); inner++) found.push(inner);
    return found;
  }
  /** The row whose equation contains this row's program, or -1. */
  owner(row: number): number {
    return this.column("program_owner")[this.program(row)]!;
  }
  /** The first row that shows the same equation. */
  first(row: number): number {
    const twin = this.column("equation_twin")[row]!;
    return twin < 0 ? row : twin;
  }

  /** The donated operands of a row. */
  donationsOf(row: number): Donation[] {
    return this.donations.filter((d) => d.row === row);
  }
  /** The donations that involve a variable, as an input or as the result that reuses its memory. */
  donationsWith(variable: number): readonly Donation[] {
    return this.donationsOfVariable.get(variable) ?? [];
  }

  // --- programs, variables, places ---

  programLabel(program: number): string {
    return this.text("program_label", program);
  }
  binders(program: number): number[] {
    return this.slice("program_binders", "binder_vars", program);
  }
  constants(program: number): number {
    return this.column("program_consts")[program]!;
  }
  results(program: number): number[] {
    return this.slice("program_results", "result_atoms", program);
  }
  variable(v: number): Variable {
    return { name: this.atomText(v), type: this.atomType(v), label: this.text("variable_label", v) };
  }
  /** The name of a variable, or the value of a literal. */
  atomText(atom: number): string {
    return atom >= 0 ? this.text("variable_name", atom) : this.text("literal_text", ~atom);
  }
  atomType(atom: number): string {
    return this.text("type_text", this.typeOf(atom));
  }
  /** `1.0 MiB`; `1.0 MiB · 128.0 KiB a device` for a sharded type; `16 B a device` inside a shard_map. */
  sizeText(atom: number): string {
    const place = this.places.get(atom);
    if (place !== undefined) return `${formatBytes(this.bytes(atom))} a ${place}`;
    return formatParts(this.bytes(atom), this.column("type_per_device")[this.typeOf(atom)]!);
  }
  location(i: number): Place | null {
    if (i < 0) return null;
    this.placesFound[i] ??= {
      file: this.column("location_file")[i]!,
      line: this.column("location_line")[i]!,
      function: this.text("location_function", i),
      startLine: this.column("location_start_line")[i]!,
      start: this.column("location_start")[i]!,
      endLine: this.column("location_end_line")[i]!,
      end: this.column("location_end")[i]!,
    };
    return this.placesFound[i];
  }
  placeText(place: Place | null): string {
    return place === null ? "" : `${this.view.files[place.file]?.label ?? "?"}:${place.line}`;
  }
  /** The user's expression at a place, on one line, or the whole line if it is not known; empty if the source is not included. */
  sourceText(place: Place | null): string {
    if (place === null) return "";
    const { startLine, start, endLine, end, line } = place;
    const [from, to] = startLine > 0 ? [startLine, endLine] : [line, line];
    for (const { first, lines } of this.view.files[place.file]?.excerpts ?? []) {
      const found = lines.slice(Math.max(0, from - first), Math.max(0, to + 1 - first));
      if (from < first || found.length === 0) continue;
      if (startLine > 0) found.push(found.pop()!.slice(0, end));
      if (startLine > 0) found.unshift(found.shift()!.slice(start));
      return found.map((text) => text.trim()).join(" ");
    }
    return "";
  }
  placeTitle(place: Place | null): string {
    return place === null
      ? ""
      : `${this.view.files[place.file]?.path ?? "?"}:${place.line} in ${place.function}`;
  }

  // --- lineage ---

  origin(row: number): number {
    return this.column("equation_origin")[row]!;
  }

  /** The rows derived directly from a row. */
  became(row: number): number[] {
    return this.related.of(this.first(row));
  }

  /** All rows that the given ones derive from, without themselves. */
  ancestors(rows: Iterable<number>): Set<number> {
    const found = new Set<number>();
    for (const start of rows)
      for (let row = this.origin(start); row >= 0 && !found.has(row); row = this.origin(row))
        this.add(found, row);
    return found;
  }

  /** All rows derived from the given ones, without themselves. */
  descendants(rows: Iterable<number>): Set<number> {
    const found = new Set<number>();
    const todo = [...rows];
    for (let row = todo.pop(); row !== undefined; row = todo.pop())
      for (const child of this.became(row))
        if (!found.has(child)) {
          this.add(found, child);
          todo.push(child);
        }
    return found;
  }

  /** The rows whose equation is on a source line. */
  rowsOfLine(file: number, line: number): number[] {
    const files = this.column("location_file");
    const lines = this.column("location_line");
    const there = new Set<number>();
    for (let i = 0; i < lines.length; i++) if (files[i] === file && lines[i] === line) there.add(i);
    const places = this.column("equation_location");
    const rows: number[] = [];
    for (let row = 0; row < this.rows; row++) if (there.has(places[row]!)) rows.push(row);
    return rows;
  }

  /** A row, and the other rows that show the same equation. */
  alike(row: number): number[] {
    const first = this.first(row);
    return [first, ...(this.related.twins.get(first) ?? [])];
  }

  /**
   * The row that defines a variable, or -1 for an input. A program that is called several times is shown each time, with the same
   * variables: `program` selects which.
   */
  definition(variable: number, program = -1): number {
    const row = this.used.definitions[variable]!;
    if (row < 0 || program < 0 || this.program(row) === program) return row;
    return this.alike(row).find((same) => this.program(same) === program) ?? row;
  }

  /** The rows that read a variable; only those in `program`, if it is one of several occurrences. */
  uses(variable: number, program = -1): readonly number[] {
    const rows = this.used.of(variable);
    const here = program < 0 ? [] : rows.filter((row) => this.program(row) === program);
    return here.length > 0 ? here : rows;
  }

  /** The programs that return a variable. */
  returnedBy(variable: number): readonly number[] {
    return this.used.returners.get(variable) ?? [];
  }

  /** The program of which a variable is an input or constant, or -1. */
  boundBy(variable: number): number {
    return this.used.bindings[variable]!;
  }

  // --- values, tangents and cotangents ---

  /** The first variable with the same value, in any stage. */
  value(variable: number): number {
    return this.column("variable_value")[variable]!;
  }
  /** Whether a variable is a value, a tangent or a cotangent; intermediate results count as what they lead to. */
  kin(variable: number): Kin {
    return (["value", "tangent", "cotangent", "tangent", "cotangent", "value"] as const)[
      this.kinIndex(variable)
    ]!;
  }
  /** The variable whose tangent or cotangent it is or leads to, or for variables of a rule, the result of the equation; or -1. */
  belongsTo(variable: number): number {
    return this.column("variable_of")[variable]!;
  }
  /** Whether a variable has the same value as another, possibly in one of several calls of a program. */
  isSame(variable: number, other: number): boolean {
    const isOfCall = KINS[this.kinIndex(variable)] === "copy" && this.belongsTo(variable) >= 0;
    return this.value(isOfCall ? this.belongsTo(variable) : variable) === this.value(other);
  }
  /** The value of the function that a variable is or belongs to. */
  family(variable: number): number {
    let v = variable;
    while (this.belongsTo(v) >= 0) v = this.belongsTo(v);
    return this.value(v);
  }
  kinIndex(variable: number): number {
    return this.column("variable_kin")[variable]!;
  }
  get hasHues(): boolean {
    return this.coloured !== null;
  }
  hue(variable: number): number {
    if (this.coloured === null) atOnce(this.colouring());
    return this.coloured!.of(variable);
  }

  /** Prepares in slices what selecting needs. */
  *indexing(): Sliced<void> {
    void this.used;
    yield;
    void this.related;
    yield;
    void this.residualsOfRow;
    yield;
  }

  /** Assigns hues in slices, if that is not done. */
  *colouring(): Sliced<void> {
    if (this.coloured !== null) return;
    const hues = new Hues(this);
    yield* hues.giveAll();
    this.coloured = hues;
  }

  /** How the enclosing equation passes each input of a program; empty if the equation does not run it itself. */
  handed(program: number): Handed[] {
    const start = this.column("program_binders")[program]!;
    const row = this.column("program_owner")[program]!;
    const operands = this.inputs(row);
    return this.binders(program).flatMap((binder, i) => {
      const place = this.column("binder_operands")[start + i]!;
      const how = HANDED[this.column("binder_handed")[start + i]!]!;
      return place < 0 ? [] : [{ binder, operand: operands[place]!, how }];
    });
  }

  /** The number of an equation within its stage, as in Python. */
  number(row: number): number {
    return row - this.view.stages[this.stage(row)]!.equations[0];
  }

  /** A short form of an equation: `c = mul a b`. */
  summary(row: number): string {
    const names = (atoms: number[]) => atoms.map((a) => this.atomText(a)).join(" ");
    const inputs = names(this.inputs(row));
    return `${names(this.outputs(row))} = ${this.primitive(row)}${inputs ? ` ${inputs}` : ""}`;
  }

  /** `backward:12`: Python's name of a row. */
  name(row: number): string {
    return `${this.stageKey(row)}:${this.number(row)}`;
  }

  /** The row with this name in Python, or -1. */
  rowNamed(name: string): number {
    const [key = "", number] = name.split(":");
    const [first, end] = this.view.stages[this.stageNamed(key)]?.equations ?? [0, 0];
    const row = first + Number(number || end);
    return row < end ? row : -1;
  }

  /** The memory over time, as modelled. */
  get timeline(): Timeline {
    return this.modelled ?? atOnce(this.timing());
  }

  /** The same, in slices: there may be hundreds of thousands of buffers. */
  *timing(): Sliced<Timeline> {
    this.modelled ??= yield* readTimeline(this);
    return this.modelled;
  }

  private add(found: Set<number>, row: number): void {
    for (const same of this.alike(row)) found.add(same);
  }
}
