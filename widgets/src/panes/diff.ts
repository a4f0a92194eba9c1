/** Two versions as a diff: the source, or the equations of a stage, aligned line by line. */

import { formatCount, plural } from "../base/format";
import { atOnce, inSlices, type Sliced } from "../base/slices";
import { lineParts } from "../code/equation";
import { isQuick, type Line, listing, preparing } from "../code/listing";
import { coloured } from "../code/python";
import { aligned, type DiffRow, type Stretch, sameLines, stretches } from "../model/diff";
import { FIGURES, formatFigure } from "../model/figures";
import type { Model } from "../model/model";
import { litAs, litLines } from "../state/lit";
import type { Other, State } from "../state/state";
import { button, h, onRowKey, type Segment, section, segments } from "../ui/dom";
import { figureChoice } from "../ui/figures";
import { type Effects, reasonOf } from "../ui/pane";
import type { Changes } from "../wire/explorer.generated";

/** How many rows are shown before `more`. */
const SHOWN = 200;

/** Up to this many lines of source are compared at once; and how many items are processed between yields. */
const AT_ONCE = 1000;
const SLICE = 500;

/** A line of the source, or an equation; a heading or a gap between excerpts is neither. */
interface Side {
  state: State;
  file: number;
  line: number;
  row: number;
  content: () => (Node | string)[];
}

interface Compared {
  /** A line of a version; nothing at -1. */
  before(i: number): Side | undefined;
  after(i: number): Side | undefined;
  rows: readonly DiffRow[];
}

export class DiffPane {
  readonly element: HTMLElement;
  private readonly body = h("tbody");
  private readonly scroller: HTMLElement;
  private readonly figures: ReturnType<typeof figureChoice>;
  /** The source, or the key of a stage; empty before the pane is shown. */
  private shown = "";
  private sides: { element: HTMLElement; side: Side }[] = [];
  private compared: Compared = { before: () => undefined, after: () => undefined, rows: [] };
  /** The number of requests so far; only the result of the last one is shown. */
  private asked = 0;

  /** What the rows depend on apart from what is compared, when they were made. */
  private about = "";

  constructor(
    private readonly state: State,
    private readonly other: Other,
    private readonly changes: Changes,
  ) {
    const [first, second] = changes.functions;
    const names = first === second ? ["before", "after"] : [first, second];
    const there = FIGURES.filter((figure) =>
      [other.state, state].some(({ model }) => model.lines.there.includes(figure)),
    );
    this.figures = figureChoice(there, () => this.fill(), "diff-figure");
    const head = names.map((name) => h("th", { scope: "col" }, name));
    this.scroller = h(
      "div.jv-scroll.jv-diff-body",
      h("table.jv-diff-table", h("thead", h("tr", ...head)), this.body),
    );
    this.element = section(
      { class: "jv-pane jv-column jv-diff", "aria-label": "versions", "data-testid": "diff" },
      [segments("what is compared", this.choices(), "source", (key) => this.show(key)), this.figures],
      this.scroller,
    );
  }

  readonly effects: Effects = [
    [() => this.isSeen && [this.state.coloured, this.state.isWhole], () => this.refresh()],
    [
      () => this.isSeen && [this.state.selection, this.other.state.selection],
      () => this.isSeen && this.light(),
    ],
  ];

  private get isSeen(): boolean {
    return this.state.view === "diff";
  }

  private refresh(): void {
    const about = `${this.state.coloured} ${this.state.isWhole}`;
    if (!this.isSeen || about === this.about) return;
    this.about = about;
    this.show(this.shown || "source");
  }

  destroy(): void {
    this.asked += 1;
  }

  private show(key: string): void {
    const isNew = key !== this.shown;
    if (isNew) this.scroller.scrollTop = 0;
    this.shown = key;
    this.figures.hidden = key !== "source";
    this.asked += 1;
    const mine = this.asked;
    const work = key === "source" ? this.source() : this.equations(key);
    if (this.isQuick(key)) this.take(atOnce(work));
    else {
      if (isNew) this.say("Comparing…");
      inSlices(work, () => mine === this.asked).then(
        (compared) => this.take(compared),
        (error) => {
          console.error(error);
          this.say(`The versions could not be compared: ${reasonOf(error)}`);
        },
      );
    }
  }

  private take(compared: Compared): void {
    this.compared = compared;
    this.fill();
  }

  /** Shows a message instead of rows. */
  private say(text: string): void {
    this.sides = [];
    const cell = h("td.jv-message.jv-dim", { colspan: 2, role: "status" }, text);
    this.body.replaceChildren(h("tr", cell));
  }

  /** Whether comparing it takes less than a frame. */
  private isQuick(key: string): boolean {
    const versions = [this.other.state, this.state].map(({ model }) => model);
    if (key !== "source") return versions.every((model) => isQuick(model, stagesOf(model, key)));
    const excerpts = versions.flatMap(({ view }) => view.files.flatMap((file) => file.excerpts));
    return excerpts.reduce((sum, { lines }) => sum + lines.length, 0) <= AT_ONCE;
  }

  /** The source, and the stages that both versions have. */
  private choices(): Segment<string>[] {
    const choice = (key: string, ...label: (Node | string)[]): Segment<string> => [
      key,
      label,
      { "data-testid": `diff-${key}` },
    ];
    const count = (runs: readonly [number, number][]) => formatCount(runs.reduce((sum, [, n]) => sum + n, 0));
    const stages = this.state.model.view.stages.flatMap(({ key, label }) => {
      const found = this.changes.stages[key];
      if (!found) return [];
      const removed = h("span.jv-removed", `−${count(found.removed)}`);
      const added = h("span.jv-added", `+${count(found.added)}`);
      return [choice(key, `${label} `, removed, " ", added)];
    });
    return [choice("source", "source"), ...stages];
  }

  private *source(): Sliced<Compared> {
    const [before, after] = [sidesOfSource(this.other.state), sidesOfSource(this.state)];
    const texts = (sides: typeof before) => sides.map(({ text }) => text.trimEnd());
    const partner = yield* sameLines(texts(before), texts(after));
    return { before: (i) => before[i], after: (i) => after[i], rows: aligned(partner, after.length) };
  }

  private *equations(key: string): Sliced<Compared> {
    const { state } = this.other;
    const before = yield* linesOf(state.model, key);
    const after = yield* linesOf(this.state.model, key);
    const names = yield* placeNames(this.state.model, after, (row) => row);
    const placeOf = new Map(names.map((name, i) => [name, i]));
    yield;
    const { matches } = state.other!;
    const there = yield* placeNames(state.model, before, (row) => matches.of(row));
    const partner = there.map((name) => placeOf.get(name) ?? -1);
    yield;
    const side = (state: State, line: Line | undefined): Side | undefined =>
      line && {
        state,
        file: -1,
        line: -1,
        row: line.kind === "equation" ? line.row : -1,
        content: () => lineParts(state, line),
      };
    const rows = aligned(partner, after.length);
    yield;
    return {
      before: (i) => side(state, before[i]),
      after: (i) => side(this.state, after[i]),
      rows,
    };
  }

  // --- rows ---

  private fill(): void {
    const { before, after, rows } = this.compared;
    if (rows.length === 0) {
      this.say("Neither version has any.");
      return;
    }
    this.sides = [];
    const isEqual = ({ left, right }: DiffRow) => this.amount(before(left)) === this.amount(after(right));
    const isAlike = (row: DiffRow) => row.isSame && (this.shown !== "source" || isEqual(row));
    this.body.replaceChildren(...this.make(stretches(rows.length, (r) => isAlike(rows[r]!))));
    const [first] = this.body.querySelectorAll<HTMLElement>(".jv-diff-line[role]");
    if (first) first.tabIndex = 0;
    this.light();
  }

  /** The first rows of some stretches, and a button for the others. */
  private make(stretches: readonly Stretch[]): HTMLElement[] {
    const elements: HTMLElement[] = [];
    for (const [i, { from, to, isFolded }] of stretches.entries()) {
      const more = stretches.slice(i + 1);
      if (isFolded) {
        elements.push(this.fold("unchanged", [{ from, to, isFolded: false }]));
        if (elements.length < SHOWN || more.length === 0) continue;
        return [...elements, this.fold("more", more)];
      }
      const cut = Math.min(to, from + SHOWN - elements.length);
      elements.push(...this.compared.rows.slice(from, cut).map((row) => this.row(row)));
      const rest = cut < to ? [{ from: cut, to, isFolded }, ...more] : more;
      if (elements.length >= SHOWN && rest.length > 0) return [...elements, this.fold("more", rest)];
    }
    return elements;
  }

  /** The gradient's amount on a line. */
  private amount(side: Side | undefined): number {
    return side && side.line > 0 ? side.state.model.lines.of(side.file, side.line)[this.figures.value] : 0;
  }

  /** A row with a button that shows the rows it replaces. */
  private fold(word: "unchanged" | "more", stretches: readonly Stretch[]): HTMLElement {
    const n = stretches.reduce((sum, { from, to }) => sum + to - from, 0);
    const open = () => {
      const rows = this.make(stretches);
      row.replaceWith(...rows);
      this.light();
      rows[0]?.querySelector<HTMLElement>(".jv-diff-line[role], button")?.focus();
    };
    const row = h("tr.jv-diff-fold", h("td", { colspan: 2 }, button(`⋯ ${plural(n, "line")} ${word}`, open)));
    return row;
  }

  private row({ left, right, isSame }: DiffRow): HTMLElement {
    const [before, after] = [this.compared.before(left), this.compared.after(right)];
    const differs = isSame && this.amount(before) !== this.amount(after);
    const cell = (side: Side | undefined, mark: string, sign: string) =>
      side
        ? h(
            "td",
            { class: isSame || isPlain(side) ? "" : mark },
            this.side(side, isSame ? "" : sign, differs),
          )
        : h("td.jv-diff-gap");
    return h("tr", cell(before, "is-removed", "−"), cell(after, "is-added", "+"));
  }

  private side(side: Side, sign: string, differs: boolean): HTMLElement {
    const { state, file, line, row } = side;
    const choose = () => (row >= 0 ? state.selectRow(row) : state.selectLine(file, line));
    const amount = this.amount(side);
    const attributes = isPlain(side)
      ? {}
      : {
          role: "button",
          tabindex: -1,
          onclick: choose,
          onkeydown: (event: KeyboardEvent) => this.onKey(event, choose),
        };
    const element = h(
      "div",
      { "data-testid": "diff-line", ...attributes },
      h("span.jv-diff-sign.jv-fixed", isPlain(side) ? "" : sign),
      line > 0 && h("span.jv-number.jv-dim.jv-fixed", String(line)),
      h("code", ...side.content()),
      amount > 0 &&
        h(
          "span",
          { class: `jv-amount jv-fixed is-${this.figures.value}${differs ? " is-other" : ""}` },
          formatFigure(this.figures.value, amount),
        ),
    );
    this.sides.push({ element, side });
    return element;
  }

  /** Arrow keys move within a version and to the other one. */
  private onKey(event: KeyboardEvent, choose: () => void): void {
    const element = event.currentTarget as HTMLElement;
    const to = { ArrowLeft: 0, ArrowRight: 1 }[event.key];
    if (to === undefined) {
      const { cellIndex } = element.closest("td")!;
      onRowKey(event, this.body, `td:nth-child(${cellIndex + 1}) > .jv-diff-line[role]`, choose);
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    const beside = element.closest("tr")!.cells[to]?.querySelector<HTMLElement>("[role]");
    if (!beside || beside === element) return;
    element.tabIndex = -1;
    beside.tabIndex = 0;
    beside.focus();
  }

  private light(): void {
    const lines = new Map([this.other.state, this.state].map((state) => [state, litLines(state)]));
    for (const { element, side } of this.sides) {
      const { state, row, file, line } = side;
      const lit = row >= 0 ? litAs(state.selection, row) : (lines.get(state)!.get(`${file}:${line}`) ?? "");
      element.className = `jv-diff-line jv-mono jv-baseline ${isPlain(side) ? "is-plain" : lit}`;
    }
  }
}

const isPlain = ({ row, line }: Side) => row < 0 && line <= 0;

/** The user's source lines, with headings if there are several files, and gaps between excerpts. */
function sidesOfSource(state: State): (Side & { text: string })[] {
  const files = state.model.view.files
    .map((file, i) => ({ ...file, i }))
    .filter(({ excerpts }) => excerpts.length > 0);
  const side = (file: number, line: number, text: string) => {
    const content = () => (line > 0 ? coloured(text || " ") : [text]);
    return { state, file, line, row: -1, text, content };
  };
  return files.flatMap(({ label, excerpts, i }) => [
    ...(files.length > 1 ? [side(i, 0, label)] : []),
    ...excerpts.flatMap(({ first, lines }, k) => [
      ...(k > 0 ? [side(i, 0, "⋯")] : []),
      ...lines.map((text, at) => side(i, first + at, text)),
    ]),
  ]);
}

const stagesOf = (model: Model, key: string): number[] =>
  model.view.stages.flatMap((stage, i) => (stage.key === key ? [i] : []));

/** The lines of a stage; none if the version lacks it. */
function* linesOf(model: Model, key: string): Sliced<Line[]> {
  const stages = stagesOf(model, key);
  yield* preparing(model, stages, false);
  return withoutFolds(listing(model, stages));
}

/** All lines except the headings of repeats and of long lists of inputs and results. */
function withoutFolds(lines: readonly Line[]): Line[] {
  let end = -1;
  return lines.filter(({ kind, foldTo }, i) => {
    if (kind === "group" || i <= end) return false;
    if (kind === "binders" || kind === "results") end = Math.max(end, foldTo);
    return true;
  });
}

/**
 * A name for each line that is equal in both versions if the lines correspond: by its equation, or by the equation that contains its
 * program.
 */
function* placeNames(model: Model, lines: readonly Line[], rowOf: (row: number) => number): Sliced<string[]> {
  const owners = model.column("program_owner");
  const times = new Map<string, number>();
  const nameOf = (line: Line, i: number) => {
    if (line.kind === "equation") {
      const row = rowOf(line.row);
      return row < 0 ? `only ${i}` : `equation ${row}`;
    }
    const owner = line.program < 0 ? -1 : owners[line.program]!;
    const row = owner < 0 ? owner : rowOf(owner);
    if (owner >= 0 && row < 0) return `only ${i}`;
    const name = `${line.kind} ${row}`;
    const n = times.get(name) ?? 0;
    times.set(name, n + 1);
    return `${name} ${n}`;
  };
  const names: string[] = [];
  for (const [i, line] of lines.entries()) {
    if (i % SLICE === 0) yield;
    names.push(nameOf(line, i));
  }
  return names;
}
