/** Two versions as a diff: the source, or the equations of a stage, aligned line by line. */

import { lineParts } from "../code/equation";
import { type Line, listing } from "../code/listing";
import { coloured } from "../code/python";
import { aligned, type DiffRow, sameLines, stretches } from "../model/diff";
import { FIGURES, type Figure, formatFigure } from "../model/figures";
import type { Model } from "../model/model";
import { type Change, litAs, litLines, type Other, type State } from "../state/state";
import { button, h, onRowKey, section } from "../ui/dom";
import { formatCount, plural } from "../ui/format";
import type { Changes } from "../wire/explorer.generated";

/** How many rows of a range are shown before `more`. */
const SHOWN = 400;

/** A line of the source, or an equation; a heading or a gap between excerpts is neither. */
interface Side {
  state: State;
  file: number;
  line: number;
  row: number;
  content: () => (Node | string)[];
}

interface Compared {
  before: readonly Side[];
  after: readonly Side[];
  /** For each line of the previous version, the same line in this one, or -1. */
  partner: ArrayLike<number>;
}

export class DiffPane {
  readonly element: HTMLElement;
  private readonly body = h("tbody", {});
  private readonly scroller: HTMLElement;
  private readonly choices = h("div", {
    class: "jv-choices",
    role: "group",
    "aria-label": "what is compared",
  });
  private readonly figures: HTMLSelectElement;
  /** The source, or the key of a stage; empty before the pane is shown. */
  private shown = "";
  private sides: { element: HTMLElement; side: Side }[] = [];
  private compared: Compared = { before: [], after: [], partner: [] };

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
    this.figures = h(
      "select",
      {
        "aria-label": "figure beside each line",
        "data-testid": "diff-figure",
        "data-lm-suppress-shortcuts": "true",
        onchange: () => this.fill(),
        onkeydown: (event: KeyboardEvent) => event.stopPropagation(),
      },
      ...there.map((figure) =>
        h("option", { value: figure }, figure === "kept" ? "residual bytes" : `FLOPs ${figure}`),
      ),
    );
    const head = names.map((name) => h("th", { scope: "col" }, name));
    this.scroller = h(
      "div",
      { class: "jv-scroll jv-diff-body" },
      h("table", { class: "jv-diff-table" }, h("thead", {}, h("tr", {}, ...head)), this.body),
    );
    this.element = section(
      { class: "jv-pane jv-diff", "aria-label": "versions", "data-testid": "diff" },
      [this.choices, this.figures],
      this.scroller,
    );
  }

  update(change: Change): void {
    if (this.state.view !== "diff") return;
    if (change === "view" && this.shown === "") this.show("source");
    else if (change === "colours" || change === "whole") this.show(this.shown);
    else if (change === "selection" || change === "view") this.light();
  }

  private show(key: string): void {
    if (key !== this.shown) this.scroller.scrollTop = 0;
    this.shown = key;
    this.compared = key === "source" ? this.source() : this.equations(key);
    const hadFocus = this.choices.contains(this.choices.ownerDocument.activeElement);
    this.fillChoices();
    this.fill();
    if (hadFocus) this.choices.querySelector<HTMLElement>("[aria-pressed=true]")?.focus();
  }

  private fillChoices(): void {
    const choice = (key: string, ...label: (Node | string)[]) =>
      button(label, () => this.show(key), {
        class: "jv-button jv-choice",
        "aria-pressed": String(key === this.shown),
        "data-testid": `diff-${key}`,
      });
    const count = (runs: readonly [number, number][]) => formatCount(runs.reduce((sum, [, n]) => sum + n, 0));
    const stages = this.state.model.view.stages.flatMap(({ key, label }) => {
      const found = this.changes.stages[key];
      if (!found) return [];
      const removed = h("span", { class: "jv-removed" }, `−${count(found.removed)}`);
      const added = h("span", { class: "jv-added" }, `+${count(found.added)}`);
      return [choice(key, `${label} `, removed, " ", added)];
    });
    this.choices.replaceChildren(choice("source", "source"), ...stages);
    this.figures.hidden = this.shown !== "source";
  }

  private source(): Compared {
    const [before, after] = [sidesOfSource(this.other.state), sidesOfSource(this.state)];
    const texts = (sides: typeof before) => sides.map(({ text }) => text.trimEnd());
    return { before, after, partner: sameLines(texts(before), texts(after)) };
  }

  private equations(key: string): Compared {
    const { state } = this.other;
    const lines = ({ model }: State) => {
      const stage = model.view.stages.findIndex((each) => each.key === key);
      return stage < 0 ? [] : withoutFolds(listing(model, [stage]));
    };
    const [before, after] = [lines(state), lines(this.state)];
    const names = placeNames(this.state.model, after, (row) => row);
    const placeOf = new Map(names.map((name, i) => [name, i]));
    const { matches } = state.other!;
    const partner = placeNames(state.model, before, (row) => matches.of(row)).map(
      (name) => placeOf.get(name) ?? -1,
    );
    const sides = (state: State, lines: readonly Line[]): Side[] =>
      lines.map((line) => ({
        state,
        file: -1,
        line: -1,
        row: line.kind === "equation" ? line.row : -1,
        content: () => lineParts(state, line),
      }));
    return { before: sides(state, before), after: sides(this.state, after), partner };
  }

  // --- rows ---

  private fill(): void {
    this.sides = [];
    const { before, after, partner } = this.compared;
    const rows = aligned(partner, after.length);
    const amounts = ({ left, right }: DiffRow) => [this.amount(before[left]), this.amount(after[right])];
    const isAlike = (row: DiffRow) => row.isSame && amounts(row)[0] === amounts(row)[1];
    const make = (from: number, to: number) => rows.slice(from, to).map((row) => this.row(row));
    const elements = stretches(rows.length, (r) => isAlike(rows[r]!)).flatMap(({ from, to, isFolded }) => {
      const cut = isFolded ? from : Math.min(to, from + SHOWN);
      return [...make(from, cut), ...(cut < to ? [this.fold(cut, to, isFolded, make)] : [])];
    });
    if (elements.length === 0)
      elements.push(h("tr", {}, h("td", { colspan: 2, class: "jv-message" }, "Neither version has any.")));
    this.body.replaceChildren(...elements);
    const [first] = this.body.querySelectorAll<HTMLElement>(".jv-diff-line[role]");
    if (first) first.tabIndex = 0;
    this.light();
  }

  private get figure(): Figure {
    return this.figures.value as Figure;
  }

  /** The gradient's amount on a line. */
  private amount(side: Side | undefined): number {
    return side && side.line > 0 ? side.state.model.lines.of(side.file, side.line)[this.figure] : 0;
  }

  private fold(
    from: number,
    to: number,
    isAlike: boolean,
    make: (from: number, to: number) => HTMLElement[],
  ): HTMLElement {
    const text = `⋯ ${plural(to - from, "line")} ${isAlike ? "unchanged" : "more"}`;
    const open = () => {
      const end = Math.min(to, from + SHOWN);
      const rows = make(from, end);
      row.replaceWith(...rows, ...(end < to ? [this.fold(end, to, isAlike, make)] : []));
      this.light();
      rows[0]?.querySelector<HTMLElement>(".jv-diff-line[role]")?.focus();
    };
    const row = h("tr", { class: "jv-diff-fold" }, h("td", { colspan: 2 }, button(text, open)));
    return row;
  }

  private row({ left, right, isSame }: DiffRow): HTMLElement {
    const [before, after] = [this.compared.before[left], this.compared.after[right]];
    const differs = isSame && this.amount(before) !== this.amount(after);
    const cell = (side: Side | undefined, mark: string, sign: string) =>
      side
        ? h(
            "td",
            { class: isSame || isPlain(side) ? "" : mark },
            this.side(side, isSame ? "" : sign, differs),
          )
        : h("td", { class: "jv-diff-gap" });
    return h("tr", {}, cell(before, "is-removed", "−"), cell(after, "is-added", "+"));
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
      h("span", { class: "jv-diff-sign" }, isPlain(side) ? "" : sign),
      line > 0 && h("span", { class: "jv-number" }, String(line)),
      h("code", {}, ...side.content()),
      amount > 0 &&
        h(
          "span",
          { class: `jv-amount is-${this.figure}${differs ? " is-other" : ""}` },
          formatFigure(this.figure, amount),
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
      element.className = `jv-diff-line ${isPlain(side) ? "is-plain" : lit}`;
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
function placeNames(model: Model, lines: readonly Line[], rowOf: (row: number) => number): string[] {
  const owners = model.column("program_owner");
  const times = new Map<string, number>();
  return lines.map((line, i) => {
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
  });
}
