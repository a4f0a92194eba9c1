/** The user's source, with columns for the gradient's figures per line, and the equations of an expanded line. */

import {
  ABOUT,
  alignedFigure,
  CALLED,
  type Figure,
  type Figures,
  formatFigure,
  linesWithEquations,
} from "../model/figures";
import { counted } from "../model/groups";
import { referencesOf } from "../model/references";
import { type Lit, litLines, pointedPlaces, selectedPlaces } from "../state/lit";
import type { State } from "../state/state";
import { h, onResize } from "../ui/dom";
import { figureChoice } from "../ui/figures";
import type { Effects } from "../ui/pane";
import type { BranchPoint } from "../wire/schema";
import { SourceView } from "./sourceview";
import { UnderLine } from "./under";

export class SourcePane {
  readonly element: HTMLElement;
  private readonly source: SourceView;
  private readonly under = new Map<string, UnderLine>();
  private references: readonly HTMLElement[] = [];
  /** The lines that cause communication between devices. */
  private exchanged: ReadonlySet<string>;

  constructor(private readonly state: State) {
    const { view } = state.model;
    const withEquations = linesWithEquations(state.model);
    this.source = new SourceView({
      id: "source",
      files: view.files,
      about: this.about(),
      heads: this.figures.length > 0 ? this.heads() : undefined,
      none: "No source of your own: the equations come from a library, or the source was left out.",
      line: (file, line) => this.line(file, line),
      choose: (file, line, part) => this.choose(file, line, part),
      under: (file, line) => (withEquations.has(`${file}:${line}`) ? () => this.equations(file, line) : null),
    });
    this.exchanged = this.describe();
    this.element = this.source.element;
    // Begin with what matters most: the source of a model may have many files.
    let isShown = false;
    onResize(this.source.scroller, (_, height) => {
      if (isShown || height <= 0) return;
      isShown = true;
      if (state.selection.rows.size === 0) this.source.show(state.model.lines.largest);
    });
    this.element.dataset["figure"] = this.figures[0] ?? "";
    if (view.stages.some((s) => s.is_path))
      this.source.scroller.prepend(
        h(
          "p.jv-banner.jv-ruled",
          { "data-testid": "path-banner" },
          "One path: Python branched on values, and this program holds for the branch it took at each mark.",
        ),
      );
  }

  readonly effects: Effects = [
    [
      () => this.state.exchanges,
      () => {
        this.exchanged = this.describe();
        this.light();
      },
    ],
    [() => this.state.selection, () => this.light(["is-selected"])],
    [() => [this.state.coloured, this.state.isWhole], () => this.markReferences()],
    () => {
      this.source.mark({
        "jv-chosen": selectedPlaces(this.state),
        "jv-aimed": pointedPlaces(this.state),
      });
      const { aimed } = this.state;
      this.source.point(aimed && `${aimed.file}:${aimed.line}`);
    },
  ];

  /** Highlights the lines of the selection; the first of those that are lit in these ways is scrolled to. */
  private light(shown: readonly Lit[] = []): void {
    const lit = litLines(this.state);
    const mark = (key: string) => (this.exchanged.has(key) ? "jv-exchanges" : "");
    this.source.light((key) => `${lit.get(key) ?? ""} ${mark(key)}`, shown);
    for (const each of this.under.values()) each.light();
  }

  /** Names, in the hues that they have in code, the references that each line makes, reads or writes. */
  private markReferences(): void {
    const { model, coloured } = this.state;
    for (const mark of this.references) mark.remove();
    const references = referencesOf(model);
    const all = coloured ? [...references.lines] : [];
    this.references = all.map(([key, of]) => {
      const mark = h(
        "span.jv-refs.jv-flex.jv-fixed.jv-mono",
        { "data-testid": "references" },
        ...of.map((v) => {
          const name = references.name(v);
          return h(
            "span",
            {
              class: `jv-ref jv-hue-${model.hue(v)}`,
              title: `the reference ${name} is made, read or written here`,
            },
            `▬ ${name}`,
          );
        }),
      );
      this.source.append(key, mark);
      return mark;
    });
  }

  /** Describes the communication of each line in its tooltip. */
  private describe(): ReadonlySet<string> {
    const { model, exchanges } = this.state;
    const said = new Map<string, Set<string>>();
    for (const [row, texts] of exchanges) {
      const place = model.place(row);
      if (place === null) continue;
      const key = `${place.file}:${place.line}`;
      said.set(
        key,
        new Set([...(said.get(key) ?? [model.lines.said(model.lines.of(place.file, place.line))]), ...texts]),
      );
    }
    for (const [key, texts] of said) this.source.describe(key, [...texts].filter(Boolean).join("\n"));
    return new Set(said.keys());
  }

  /** The columns to show. */
  private get figures(): readonly Figure[] {
    return this.state.model.lines.there;
  }

  /** A click selects a line and, if there is room, expands or collapses it; the arrow beside it only does the latter. */
  private choose(file: number, line: number, part: Element): void {
    const isArrow = part.closest(".jv-unfold") !== null;
    if (!isArrow) this.state.selectLine(file, line);
    if (isArrow || this.state.view === "lines") this.source.unfold(file, line);
  }

  private equations(file: number, line: number): HTMLElement {
    const { most } = this.state.model.lines;
    const made = new UnderLine(
      this.state,
      file,
      line,
      (figures) => cells(this.figures, figures, most),
      (event, choose) => this.source.onUnderKey(event, file, line, choose),
    );
    this.under.set(`${file}:${line}`, made);
    return made.element;
  }

  /** Explains the columns; where only one fits, chooses it. */
  private about(): HTMLElement {
    const isCounted = this.figures.some((figure) => figure !== "kept");
    const text = `bytes saved for the backward pass${isCounted ? ", and FLOPs" : ""}; click a line for its equations`;
    const choose = (figure: Figure) => {
      this.element.dataset["figure"] = figure;
    };
    return h(
      "span.jv-source-about.jv-flex.jv-fills",
      h("span.jv-dim.jv-cut", text),
      this.figures.length > 0 && figureChoice(this.figures, choose, "line-figure"),
    );
  }

  /** The column headings, with totals. */
  private heads(): HTMLElement {
    const { total } = this.state.model.lines;
    const head = (figure: Figure) =>
      h(
        "span",
        {
          class: `jv-amount jv-fixed is-${figure}`,
          title: `${formatFigure(figure, total[figure])}: ${ABOUT[figure]}`,
        },
        CALLED[figure],
        h("strong", formatFigure(figure, total[figure])),
      );
    return h(
      "div.jv-amount-heads.jv-ruled",
      { "data-testid": "figure-heads" },
      h("span.jv-amounts.jv-flex.jv-fixed", ...this.figures.map(head)),
    );
  }

  private line(file: number, line: number) {
    const { lines, view } = this.state.model;
    const figures = lines.of(file, line);
    const marks = view.branches.filter((b) => b.file === file && b.line === line);
    return {
      gutter: cells(this.figures, figures, lines.most),
      title: lines.said(figures),
      behind: branchMarks(marks),
    };
  }
}

/** The cells of a line, each with a bar relative to the largest value of its column. */
function cells(shown: readonly Figure[], figures: Figures, most: Figures): HTMLElement {
  const cell = (figure: Figure) => {
    const n = figures[figure];
    const share = Math.max(4, Math.round((100 * n) / most[figure]));
    return h(
      "span",
      { class: `jv-amount jv-fixed is-${figure}` },
      n > 0 && h("span.jv-bar", { style: `width:${share}%` }),
      n > 0 && h("span.jv-amount-text", { "data-word": CALLED[figure] }, alignedFigure(figure, n)),
    );
  };
  return h("span.jv-amounts.jv-flex.jv-fixed", ...shown.map(cell));
}

/** The outcomes of a branch on a traced value on this line: `was True`, `was True ×3`. */
function branchMarks(branches: BranchPoint[]): HTMLElement[] {
  const times = counted(branches.map(({ value }) => value));
  const title = `Python read a ${branches[0]?.kind} here, and this program is what followed`;
  return [...times].map(([value, n]) =>
    h("span.jv-tag.jv-mark", { title, "data-testid": "branch" }, `was ${value}${n > 1 ? ` ×${n}` : ""}`),
  );
}
