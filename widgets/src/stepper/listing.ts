/** The current program, one equation per line, in the explorer's editor. */

import type { Look, Piece, Text, TextView } from "../code/editor";
import { LineText, type Token } from "../code/linetext";
import { h } from "../ui/dom";
import { focused } from "../ui/focus";
import type { StepRow, Variable } from "../wire/stepper.generated";
import type { StepperState } from "./view";

export interface ListingActions {
  /** Shows a value of the program. */
  look(name: string): void;
  /** Runs, or goes back, to just before an equation. */
  runTo(index: number): void;
  toggleBreak(index: number): void;
  /** Shows a nested program of an equation. */
  open(index: number, body: string): void;
}

const MANY = 12;
const MOST_RESULTS = 3;

/** How many lines after the next equation stay visible. */
const BELOW = 4;

/** The name of the body that a token stands for. */
const bodyOf = (token: Token): string => token.name!;
const branchOf = (body: string): string | undefined => /^branches\[(\d+)\]$/.exec(body)?.[1];
const isName = (name: string): boolean => /^[a-z]+$/.test(name);

export class Listing {
  readonly element = h("div.jv-code-body.jv-scroll");
  private text: Text | null = null;
  /** The inputs, a line for each equation, and the results. */
  private lines: readonly LineText[] = [];
  /** The number of the program shown. */
  private shown = -1;

  constructor(
    private readonly state: StepperState,
    private readonly actions: ListingActions,
    private readonly root: HTMLElement,
    /** The editor, which is in the main module. */
    private readonly textView: TextView,
  ) {}

  destroy(): void {
    this.text?.view.destroy();
  }

  focus(): void {
    this.text?.view.contentDOM.focus({ preventScroll: true });
  }

  /** The text of an equation. */
  textOf(index: number): string {
    return this.lines[index + 1]!.text;
  }

  /** Shows the current state and scrolls to the current equation. */
  update(): void {
    if (this.shown !== this.state.number) this.fill();
    const { view, relight, reveal } = this.text!;
    relight();
    const below = Math.min(BELOW * view.defaultLineHeight, view.scrollDOM.clientHeight / 4);
    reveal(this.state.current + 1, below);
  }

  private fill(): void {
    const { program, number } = this.state;
    const hadFocus = this.element.contains(focused(this.element));
    this.destroy();
    this.shown = number;
    this.lines = [inputs(program.inputs), ...program.rows.map(equation), results(program.results)];
    this.text = this.textView(this.root, {
      label: program.stage,
      id: "equations",
      lines: this.lines.map((line) => line.text),
      rows: [],
      looks: () => (line) => this.look(line),
      choose: (line, column) => this.choose(line, column),
      chooseTwice: (line, column) => {
        const isPart = ["variable", "peek"].includes(this.lines[line]!.at(column)?.kind ?? "");
        if (!isPart && program.rows[line - 1]) this.actions.runTo(line - 1);
      },
      step: (by) => this.step(this.state.selected < 0 && by > 0 ? 0 : by),
      press: (event) => this.press(event),
      wraps: true,
    });
    this.element.replaceChildren(this.text.view.dom);
    if (hadFocus) this.focus();
  }

  private look(line: number): Look {
    const { state, lines } = this;
    const { rows, stage } = state.program;
    const index = line - 1;
    const row = rows[index];
    const how = row
      ? state.progress(index)
      : line > 0 && state.isHere && state.position === rows.length
        ? "next"
        : "";
    const isNext = how === "next" && state.isHere;
    const isSelected = row !== undefined && index === state.selected;
    const attributes: Record<string, string> = {
      class: ["jv-line", how && `is-${how}`, isSelected && "is-selected", state.isLit(row) && "is-lit"]
        .filter(Boolean)
        .join(" "),
      style: "--indent:4ch",
      "data-testid": row ? "equation" : line > 0 ? "program-end" : "program-start",
    };
    if (row) Object.assign(attributes, { "data-index": String(index), "data-progress": how });
    if (isNext || isSelected) attributes["aria-current"] = isNext ? "step" : "true";
    const taken = state.taken(index);
    const marks = lines[line]!.tokens.map((token) => {
      const { from, to, kind, title } = token;
      const text = lines[line]!.text.slice(from, to);
      const more =
        kind === "variable"
          ? `jv-hue-${state.hue(stage, text)} ${token.name ?? ""}`
          : kind !== "peek"
            ? (token.name ?? "")
            : taken !== undefined && branchOf(bodyOf(token)) === String(taken)
              ? "is-taken"
              : "";
      return { from, to, name: `jv-${kind} ${more}`, title };
    });
    const mark = isNext ? "▶" : how === "next" ? "▷" : how === "ran" ? "✓" : "";
    return { attributes, marks, before: this.gutter(row ? index : -1, mark) };
  }

  private gutter(index: number, mark: string): Piece {
    const isSet = index >= 0 && this.state.breakAtRow(index) >= 0;
    const place = () =>
      h("span", {
        class: `jv-break-place jv-fixed${isSet ? " is-set" : ""}`,
        title: isSet ? "Remove the breakpoint (P)" : "Stop before this equation (P)",
        "data-act": "break",
        onclick: () => this.actions.toggleBreak(index),
      });
    return {
      key: `${this.shown} ${index} ${mark} ${isSet}`,
      make: () =>
        h(
          "span.jv-eq-gutter.jv-fixed.jv-inline",
          index < 0 ? h("span.jv-break-place.jv-fixed") : place(),
          h("span.jv-eq-mark.jv-dim", mark),
          h("span.jv-eq-number.jv-dim.jv-fixed", index < 0 ? "" : String(index)),
        ),
    };
  }

  private choose(line: number, column: number): void {
    const token = this.lines[line]!.at(column);
    if (token?.kind === "variable") this.actions.look(this.lines[line]!.text.slice(token.from, token.to));
    else if (token?.kind === "peek") this.actions.open(line - 1, bodyOf(token));
    else if (this.state.program.rows[line - 1]) this.state.select(line - 1);
  }

  /** The equation that keys act on: the selection, or else the run's position. */
  private get at(): number {
    const { selected, position, program } = this.state;
    return selected >= 0 ? selected : Math.min(Math.max(0, position), program.rows.length - 1);
  }

  private step(by: number): boolean {
    const last = this.state.program.rows.length - 1;
    if (last >= 0) this.state.select(Math.min(last, Math.max(0, this.at + by)));
    return true;
  }

  private press(event: KeyboardEvent): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey) return false;
    const { state, at, actions } = this;
    const { view } = this.text!;
    const n = state.program.rows.length;
    const page = Math.max(1, Math.floor(view.scrollDOM.clientHeight / view.defaultLineHeight) - 2);
    const by = { PageDown: page, PageUp: -page, Home: -n, End: n }[event.key];
    const bodies = Object.keys(state.program.rows[at]?.n ?? {});
    const key = event.key.toLowerCase();
    if (by !== undefined) return this.step(by);
    if (key === "enter" && state.selected >= 0) actions.runTo(state.selected);
    else if (key === "p" && n > 0) actions.toggleBreak(at);
    else if (key === "arrowright" && bodies.length > 0)
      actions.open(at, bodies.find((body) => branchOf(body) === String(state.taken(at))) ?? bodies[0]!);
    else if (key === "l" && state.selected >= 0) {
      const name = state.program.rows[at]?.o[0]?.[0];
      if (name && name !== "_") actions.look(name);
    } else return false;
    return true;
  }
}

function inputs(variables: readonly Variable[]): LineText {
  const line = new LineText();
  line.add("lambda", "keyword");
  for (const variable of variables.slice(0, MANY)) {
    line.add(" ");
    bind(line, variable);
  }
  if (variables.length > MANY) line.add(` … ${variables.length} inputs`, "label");
  return line;
}

function results(atoms: readonly string[]): LineText {
  const line = new LineText();
  line.add("in", "keyword");
  atoms.slice(0, MANY).forEach((atom, i) => {
    line.add(i > 0 ? ", " : " ");
    name(line, atom);
  });
  if (atoms.length > MANY) line.add(` … ${atoms.length}`, "label");
  return line;
}

function equation({ o, p, q = [], i, n = {}, x }: StepRow): LineText {
  const line = new LineText();
  const bound = o.length > MOST_RESULTS ? o.slice(0, MOST_RESULTS - 1) : o;
  bound.forEach((variable, k) => {
    if (k > 0) line.add(" ");
    bind(line, variable);
  });
  const unbound = o.slice(bound.length).map(([name]) => name);
  leaveOut(line, unbound, "results");
  if (o.length > 0) line.add(" = ");
  line.add(p, "primitive", x && { name: "jv-exchanges", title: x.join("\n") });
  line.params(q, false);
  for (const body of Object.keys(n)) {
    const branch = branchOf(body);
    const what = branch === undefined ? "body" : `branch ${branch}`;
    line.add(" ");
    line.add(what, "peek", { name: body, title: `Show the ${what} without going there (→)` });
  }
  const read = i.length > MANY ? i.slice(0, MANY - 1) : i;
  for (const atom of read) {
    line.add(" ");
    name(line, atom);
  }
  leaveOut(line, i.slice(read.length), "operands");
  return line;
}

/** The replacement for the omitted part of a long line. */
function leaveOut(line: LineText, names: readonly string[], what: string): void {
  if (names.length > 0) line.add(` … ${names.length} more ${what}`, "label", { title: names.join(" ") });
}

function bind(line: LineText, [variable, type, of]: Variable): void {
  name(line, variable, of);
  line.add(`:${type}`, "type");
}

function name(line: LineText, name: string, of = ""): void {
  const title = of ? `${name}, the cotangent of ${of} (click to look at it)` : `Look at ${name}`;
  if (isName(name)) line.add(name, "variable", { title, name: of && "jv-of-cotangent" });
  else line.add(name, name === "_" ? undefined : "literal");
}
