/** The code pane: a stage as a read-only, foldable jaxpr, with the selection and its lineage highlighted. */

import type { Extension } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { litAs } from "../state/lit";
import type { Selection, Side, State } from "../state/state";
import { h } from "../ui/dom";
import { aboutStages, headButtons, markSide } from "../ui/head";
import type { Effects, Listing } from "../ui/pane";
import { Copies } from "./copy";
import { type Text, textView } from "./editor";
import { Folding } from "./folding";
import { RoleChips, toolButton } from "./head";
import { hiddenLines, hide } from "./hiding";
import { Lines } from "./lines";
import { describeInputs, foldText } from "./listing";
import { Looks } from "./look";
import { Variables } from "./variables";

/** How long a confirmation such as "copied" is shown, in milliseconds. */
const TOLD = 2500;

/** Listings with more lines than this start with their nested programs folded. */
const MANY_LINES = 80;

/** More lines than this take long to lay out. */
const LARGE = 2_000;

export class CodePane {
  readonly element: HTMLElement;
  private readonly lines: Lines;
  private readonly text: Text;
  private readonly folding: Folding;
  private readonly variables: Variables;
  private readonly copies: Copies;
  private readonly chips: RoleChips;
  private readonly body = h("div.jv-code-body.jv-scroll");
  private readonly told = h("span.jv-told", { role: "status" });
  /** Null if the stage could not be derived. */
  readonly listing: Listing | null;
  private telling: ReturnType<typeof setTimeout> | undefined;
  private colours: HTMLButtonElement | null = null;

  /** Whether the inputs are described, and roles hidden; and the selection last brought into sight. */
  private isDescribed: boolean;
  private hidesRoles = false;
  private seen: Selection | null = null;

  constructor(
    private readonly state: State,
    stages: readonly number[],
    private readonly side: Side,
    root: HTMLElement,
  ) {
    const { key, label, title, about, total, isShown, errors } = aboutStages(state, stages);
    const version = state.other?.mark === "is-removed" ? "before" : state.compared ? "after" : "";
    const lines = new Lines(state.model, stages, state.fullParams);
    const tell = (text: string) => this.tell(text);
    this.lines = lines;
    this.isDescribed = state.isWhole;
    // Long lists of inputs start folded; nested programs only if the equations fill more than a screen.
    const isLong = lines.all.length > MANY_LINES;
    this.folding = new Folding(
      lines.all,
      (i) => foldText(state.model, lines.all, i),
      (i) => isLong || lines.all[i]!.kind !== "equation",
    );
    this.variables = new Variables(state, lines, () => this.view, tell, root);
    this.copies = new Copies(state, lines, stages, tell, root);
    this.chips = new RoleChips(state, lines.ofRow.keys());
    const looks = new Looks(state, lines, this.folding);
    this.text = textView(root, {
      label,
      lines: lines.all.map((line) => line.text),
      rows: lines.all.map(({ row }) => (row >= 0 ? [row] : [])),
      looks: (editor) => looks.now(editor),
      choose: (line, column) => {
        if (lines.all[line]!.kind === "group") state.selectRows(lines.rowsUnder(line));
        else this.variables.choose(line, column);
      },
      step: (by) => this.step(by),
      wraps: true,
      extensions: [this.variables.extension, this.copies.extension, this.extensions()],
    });
    this.body.append(...errors, ...(isShown ? [this.view.dom] : []));
    this.listing = isShown ? this.text.listing : null;
    this.element = h(
      "section.jv-pane.jv-column.jv-code",
      {
        "aria-label": version ? `${version}: ${title}` : title,
        "data-testid": `code-${side}`,
        "data-stage": key,
        onfocusin: () => state.use(side),
      },
      h(
        "div.jv-pane-head.jv-ruled.jv-fixed.jv-baseline",
        { title },
        h("strong", label),
        version !== "" && h("span.jv-tag.jv-dim", version),
        h("span.jv-dim", isShown ? total : ""),
        h("span.jv-dim.jv-cut.jv-about", about),
        this.chips.element,
        isShown && this.tools(),
        ...headButtons(state, side),
      ),
      this.body,
      this.told,
    );
    if (state.muted.size > 0) this.hideRoles();
  }

  get isLarge(): boolean {
    return this.lines.all.length > LARGE;
  }

  readonly effects: Effects = [
    () => markSide(this.element, this.state, this.side),
    () => this.chips.update(),
    // Not while a view hides it, which then lays out the page twice.
    [
      () => [this.state.showsStages, shownOf(this.state)],
      () => this.state.showsStages && this.text.relight(),
    ],
    [() => this.state.isWhole, () => this.describeInputs()],
    [() => [this.state.muted, this.state.player, this.state.selection], () => this.hideRoles()],
    () => this.markColours(),
    [() => [this.state.player, this.state.selection], () => this.follow()],
    [() => this.state.variable, () => this.stand()],
  ];

  /** Scrolls to what is played, or to a new selection. */
  private follow(): void {
    const { player, selection } = this.state;
    const isNew = selection !== this.seen;
    this.seen = selection;
    if (isNew) this.variables.closeCard();
    if (isNew || player) this.bringIntoSight(this.lineToShow());
  }

  private stand(): void {
    const isHere = this.state.side === this.side;
    this.bringIntoSight(this.variables.stand((text) => isHere && this.tell(text, true)));
  }

  private get view(): EditorView {
    return this.text.view;
  }

  focus(): void {
    this.view.contentDOM.focus({ preventScroll: true });
  }

  destroy(): void {
    clearTimeout(this.telling);
    this.variables.destroy();
    this.view.destroy();
  }

  private tools(): HTMLElement {
    const { state, side } = this;
    this.colours = toolButton(
      `colours-${side}`,
      "colour",
      "One hue for each value, wherever it appears (V)",
      () => state.toggleColours(),
    );
    return h(
      "span.jv-tools",
      this.colours,
      toolButton(`fold-${side}`, "fold", "Fold all nested programs (-)", () => this.foldAll(false)),
      toolButton(`unfold-${side}`, "unfold", "Unfold all nested programs (+)", () => this.foldAll(true)),
      toolButton(
        `copy-${side}`,
        "copy",
        "Copy the program as JAX prints it (Ctrl+C copies the selection)",
        () => this.copies.copyAll(),
      ),
    );
  }

  private extensions(): Extension {
    return [
      this.folding.extension,
      hiddenLines,
      EditorView.domEventHandlers({
        mousemove: ({ target, clientX }) => {
          const line = target as HTMLElement;
          const isAtLetter =
            line.dataset["role"] !== undefined && clientX < line.getBoundingClientRect().left;
          this.body.title = isAtLetter ? line.dataset["role"]! : "";
          return false;
        },
      }),
      keymap.of([
        { key: "ArrowLeft", run: () => this.fold(false) },
        { key: "ArrowRight", run: () => this.fold(true) },
        { key: "-", run: () => this.foldAll(false) },
        { key: "+", run: () => this.foldAll(true) },
        { key: "=", run: () => this.foldAll(true) },
      ]),
    ];
  }

  /** Extends the lines of inputs whose descriptions have arrived. */
  private describeInputs(): void {
    if (this.isDescribed || !this.state.isWhole) return;
    this.isDescribed = true;
    const { all } = this.lines;
    describeInputs(this.state.model, all);
    const { doc } = this.view.state;
    const changes = all.flatMap(({ kind, text }, i) => {
      if (kind !== "binders") return [];
      const { length, to } = doc.line(i + 1);
      return text.length > length ? [{ from: to, insert: text.slice(length) }] : [];
    });
    if (changes.length === 0) return;
    this.view.dispatch({ changes });
    this.hideRoles();
  }

  private markColours(): void {
    this.colours?.setAttribute("aria-pressed", String(this.state.coloured));
    this.element.classList.toggle("has-hues", this.state.coloured);
  }

  private bringIntoSight(line: number): void {
    if (line < 0 || line === Infinity) return;
    // During playback, keep some of the upcoming lines visible.
    const below = this.state.player ? Math.min(90, this.view.scrollDOM.clientHeight / 4) : 0;
    this.text.reveal(line, below, this.folding.unfoldAround(line, this.view.state));
  }

  /** The line of the selected equation, or of the selected heading; -1 if neither is in this pane. */
  private get line(): number {
    const { rows } = this.state.selection;
    const { all, ofRow } = this.lines;
    const first = [...rows].find((row) => ofRow.has(row));
    const line = first === undefined ? -1 : ofRow.get(first)!;
    for (let i = line; rows.size > 1 && i >= 0; i = this.folding.parents[i]!)
      if (all[i]!.kind === "group" && this.lines.rowsUnder(i).length === rows.size) return i;
    return line;
  }

  /** The line of the selection, or else the nearest highlighted line. */
  private lineToShow(): number {
    const { player } = this.state;
    const { ofRow } = this.lines;
    if (player) return Math.min(...player.shown.map((row) => ofRow.get(row) ?? Infinity));
    if (this.line >= 0) return this.line;
    const { residual } = this.state.selection;
    for (const row of this.state.model.residuals[residual]?.consumers ?? []) {
      const line = ofRow.get(row);
      if (line !== undefined) return line;
    }
    const { ancestors, descendants, siblings } = this.state.selection;
    for (const set of [descendants, ancestors, siblings]) {
      let first = -1;
      for (const row of set) {
        const line = ofRow.get(row);
        if (line !== undefined && (first < 0 || line < first)) first = line;
      }
      if (first >= 0) return first;
    }
    return -1;
  }

  /** Folds or unfolds all nested programs and long lists of inputs. */
  private foldAll(open: boolean): boolean {
    this.view.dispatch({ effects: this.folding.fold(this.folding.all, open) });
    return true;
  }

  /** Folds or unfolds the selected line. */
  private fold(open: boolean): boolean {
    const i = this.line;
    if (i < 0) return false;
    if (this.lines.all[i]!.foldTo >= 0) this.view.dispatch({ effects: this.folding.fold([i], open) });
    return true;
  }

  private hideRoles(): void {
    const { model, muted, player, selection } = this.state;
    if (muted.size === 0 && !this.hidesRoles) return;
    this.hidesRoles = muted.size > 0;
    const leftOut = this.lines.keep((row) => player !== null || muted.get(model.role(row)) !== "hidden");
    hide(this.view, leftOut, (row) => litAs(selection, row) !== "");
  }

  /** Shows a message for a moment; a quiet one is only for screen readers. */
  private tell(text: string, isQuiet = false): void {
    clearTimeout(this.telling);
    this.told.textContent = text;
    this.told.classList.toggle("is-quiet", isQuiet);
    this.telling = setTimeout(() => this.told.replaceChildren(), TOLD);
  }

  /** Selects the next or previous visible equation or heading. */
  step(by: 1 | -1): boolean {
    const { all } = this.lines;
    const start = this.lineToShow();
    const isInSight = (i: number) =>
      ["equation", "group"].includes(all[i]!.kind) &&
      !this.lines.isHidden(i) &&
      !this.folding.isAway(i, this.view.state);
    let i = start < 0 && by < 0 ? all.length : start;
    do i += by;
    while (i >= 0 && i < all.length && !isInSight(i));
    const line = all[i];
    if (line?.kind === "group") this.state.selectRows(this.lines.rowsUnder(i));
    else if (line) this.state.selectRow(line.row);
    return true;
  }
}

/** What the look of a line depends on. */
const shownOf = ({ selection, hover, variable, player, exchanges, coloured, muted, isWhole }: State) => [
  ...[selection, hover, variable, player, exchanges, coloured, muted, isWhole],
];
