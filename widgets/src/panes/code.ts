/** The code pane: a stage as a jaxpr, read-only, foldable, with the selection and its lineage lit. */

import {
  codeFolding,
  foldEffect,
  foldedRanges,
  foldGutter,
  foldService,
  unfoldEffect,
} from "@codemirror/language";
import { EditorState, type Extension, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  GutterMarker,
  gutter,
  keymap,
  showTooltip,
  type Tooltip,
  tooltips,
  ViewPlugin,
  type ViewUpdate,
  WidgetType,
} from "@codemirror/view";
import { copyText } from "../copying";
import { h } from "../dom";
import { editor } from "../editor";
import { plural } from "../format";
import { equationsText, jaxprText } from "../jaxpr";
import { foldText, type Line, listing, type Token } from "../listing";
import type { Listing } from "../pane";
import { nameClass } from "../rule";
import { listingOf } from "../scrolling";
import { type Change, litAs, type Selection, type Side, type State } from "../state";
import { copyIcon, huesIcon, ROLE_LETTERS, RoleChips, toolButton } from "./codehead";
import { headButtons } from "./head";
import { marked } from "./residuals";
import { hueClass, usesText, variableCard } from "./variable";

const relight = StateEffect.define<null>();
const setTip = StateEffect.define<Tooltip | null>();

/** What is said of the variable under the pointer. */
const tip = StateField.define<Tooltip | null>({
  create: () => null,
  update: (shown, { effects }) => {
    const set = effects.find((e) => e.is(setTip));
    return set === undefined ? shown : set.value;
  },
  provide: (field) => showTooltip.from(field),
});

const setHidden = StateEffect.define<DecorationSet>();

/** The lines that are left out, since their role is hidden. */
const hiddenLines = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (shown, { effects }) => effects.find((e) => e.is(setHidden))?.value ?? shown,
  provide: (field) => EditorView.decorations.from(field),
});

/** In the place of hidden equations: a thin line that says how many. */
class Hidden extends WidgetType {
  constructor(
    readonly n: number,
    readonly isLit: boolean,
  ) {
    super();
  }
  override eq(other: Hidden): boolean {
    return other.n === this.n && other.isLit === this.isLit;
  }
  override toDOM(): HTMLElement {
    const text = `${plural(this.n, "equation")} hidden by role`;
    return h("div", { class: `jv-hidden${this.isLit ? " hides-lit" : ""}`, title: text, "aria-label": text });
  }
}

/** Milliseconds for which the pointer rests on a variable before something is said of it, and before that is taken away. */
const REST = 250;
const LINGER = 200;

/** Milliseconds for which it is said that something was copied. */
const TOLD = 2500;

/** A listing of more lines than this starts with its nested programs folded. */
const MANY_LINES = 80;

class RoleMarker extends GutterMarker {
  constructor(readonly role: string) {
    super();
  }
  override eq(other: RoleMarker): boolean {
    return other.role === this.role;
  }
  override toDOM(): Node {
    return h(
      "span",
      { class: `jv-role jv-role-${this.role}`, title: this.role },
      ROLE_LETTERS[this.role] ?? "",
    );
  }
}

const marks = new Map<string, Decoration>();

/** A mark of a class, the same one each time, but for those that have a tooltip. */
function markOf(name: string, title: string | undefined): Decoration {
  if (title !== undefined) return Decoration.mark({ class: name, attributes: { title } });
  let made = marks.get(name);
  if (made === undefined) {
    made = Decoration.mark({ class: name });
    marks.set(name, made);
  }
  return made;
}

export class CodePane {
  readonly element: HTMLElement;
  private readonly view: EditorView;
  private readonly lines: Line[];
  private readonly lineOfRow = new Map<number, number>();
  private readonly chips: RoleChips;
  private readonly told = h("span", { class: "jv-told", role: "status" });
  /** The line under which a line folds, or -1; and where each variable is bound. */
  private readonly parents: Int32Array;
  private readonly bindings = new Map<number, number>();
  private hidden = new Uint8Array(0);
  private lit: { selection: Selection; lines: number[] } | null = null;
  /** None where no stage could be derived. */
  readonly listing: Listing | null;
  private resting: ReturnType<typeof setTimeout> | undefined;
  private telling: ReturnType<typeof setTimeout> | undefined;
  private colours: HTMLButtonElement | null = null;

  constructor(
    private readonly state: State,
    private readonly stages: readonly number[],
    private readonly side: Side,
    private readonly root: HTMLElement,
  ) {
    const infos = stages.map((stage) => state.model.view.stages[stage]!);
    const label = infos.map((info) => info.label).join(" + ");
    const version = state.other?.mark === "is-removed" ? "before" : state.compared ? "after" : "";
    const title = infos.map((info) => `${info.label}: ${info.title}`).join("\n");
    const total = infos.reduce((sum, info) => sum + info.equations[1] - info.equations[0], 0);
    const errors = infos.filter((info) => info.error);
    this.lines = listing(state.model, stages, state.fullParams);
    this.parents = new Int32Array(this.lines.length).fill(-1);
    this.lines.forEach((line, i) => {
      if (line.kind === "equation") this.lineOfRow.set(line.row, i);
      for (const { variable, isBinder } of line.tokens) if (isBinder) this.bindings.set(variable!, i);
      let above = i - 1;
      while (above >= 0 && this.lines[above]!.foldTo < i) above = this.parents[above]!;
      this.parents[i] = above;
    });
    this.chips = new RoleChips(state, this.lineOfRow.keys());
    this.view = editor(root, {
      state: EditorState.create({
        doc: this.lines.map((l) => l.text).join("\n"),
        extensions: this.extensions(label),
      }),
    });
    const body = h("div", { class: "jv-code-body" });
    for (const info of errors) body.append(message(`${info.label} could not be derived`, info.error));
    if (errors.length < infos.length) body.append(this.view.dom);
    const rows = this.lines.map(({ row }) => (row >= 0 ? [row] : []));
    this.listing = errors.length < infos.length ? listingOf(this.view, rows) : null;
    this.element = h(
      "section",
      {
        class: "jv-pane jv-code",
        "aria-label": version ? `${version}: ${title}` : title,
        "data-testid": `code-${side}`,
        "data-stage": infos.map((info) => info.key).join("+"),
        onfocusin: () => state.use(side),
      },
      h(
        "div",
        { class: "jv-pane-head", title },
        h("strong", {}, label),
        version !== "" && h("span", { class: "jv-version" }, version),
        h("span", { class: "jv-dim" }, errors.length === infos.length ? "" : plural(total, "equation")),
        h("span", { class: "jv-dim jv-cut jv-about" }, infos.length === 1 ? infos[0]!.title : ""),
        this.chips.element,
        errors.length < infos.length && this.tools(),
        ...headButtons(state, side),
      ),
      body,
      this.told,
    );
    this.foldAtFirst();
    this.hideRoles();
    this.markColours();
    this.markSide();
  }

  destroy(): void {
    clearTimeout(this.resting);
    clearTimeout(this.telling);
    this.view.destroy();
  }

  private tools(): HTMLElement {
    const { state } = this;
    const colours = toolButton({
      id: `colours-${this.side}`,
      title: "One hue for each value, wherever it appears (V)",
      label: [huesIcon()],
      run: () => state.toggleColours(),
    });
    this.colours = colours;
    return h(
      "span",
      { class: "jv-tools" },
      colours,
      toolButton({
        id: `fold-${this.side}`,
        title: "Fold all nested programs (-)",
        label: ["⊟"],
        run: () => this.foldAll(false),
      }),
      toolButton({
        id: `unfold-${this.side}`,
        title: "Unfold all nested programs (+)",
        label: ["⊞"],
        run: () => this.foldAll(true),
      }),
      toolButton({
        id: `copy-${this.side}`,
        title: "Copy the program as JAX prints it (Ctrl+C copies what is selected)",
        label: [copyIcon()],
        run: () => this.copyOut(null),
      }),
    );
  }

  /** After the selection changed: lights it, and brings its first line into sight. */
  update(change: Change): void {
    if (change === "side") this.markSide();
    else if (change === "lower" || change === "switches") return;
    else this.view.dispatch({ effects: relight.of(null) });
    this.chips.update(change);
    if (change === "roles" || (change === "player" && this.state.muted.size > 0)) this.hideRoles();
    if (change === "colours") this.markColours();
    if (change === "selection") {
      this.closeCard();
      if (this.state.muted.size > 0) this.hideRoles();
    }
    if (change === (this.state.player ? "player" : "selection")) this.bringIntoSight(this.lineToShow());
    if (change === "variable") this.standOnVariable();
  }

  /** Shows where the variable that was gone to is bound, if no equation makes it, and says what it is. */
  private standOnVariable(): void {
    const { variable, model } = this.state;
    const line = this.bindings.get(variable) ?? -1;
    if (line < 0) {
      this.closeCard();
      return;
    }
    if (model.definition(variable) < 0 && this.state.row < 0) this.bringIntoSight(line);
    const uses = usesText(this.state, variable, this.program);
    if (this.state.side === this.side)
      this.tell(`${model.atomText(variable)}:${model.atomType(variable)}, ${uses}`, true);
  }

  private markColours(): void {
    this.colours?.setAttribute("aria-pressed", String(this.state.coloured));
    this.element.classList.toggle("has-hues", this.state.coloured);
  }

  private markSide(): void {
    this.element.classList.toggle(
      "is-active",
      this.state.side === this.side && this.state.shown.right.length > 0,
    );
  }

  private bringIntoSight(line: number): void {
    if (line < 0 || line === Infinity) return;
    const at = this.view.state.doc.line(line + 1);
    const { from, to } = this.view.viewport;
    const effects: StateEffect<unknown>[] = this.unfoldAround(line);
    const block = this.view.lineBlockAt(at.from);
    const { scrollTop, clientHeight } = this.view.scrollDOM;
    // While steps are played there is always some of what comes next in sight.
    const below = this.state.player ? Math.min(90, clientHeight / 4) : 0;
    const inSight =
      at.from >= from &&
      at.to <= to &&
      block.top >= scrollTop &&
      block.bottom + below <= scrollTop + clientHeight;
    if (!inSight || effects.length > 0)
      this.view.dispatch({
        effects: [...effects, EditorView.scrollIntoView(at.from, { y: "center", x: "start", xMargin: 200 })],
      });
  }

  /** The line of the selected equation; failing that, the nearest that is lit. */
  private lineToShow(): number {
    const { player } = this.state;
    if (player) return Math.min(...player.shown.map((row) => this.lineOfRow.get(row) ?? Infinity));
    const { rows, ancestors, descendants, siblings } = this.state.selection;
    for (const set of [rows, descendants, ancestors, siblings]) {
      let first = -1;
      for (const row of set) {
        const line = this.lineOfRow.get(row);
        if (line !== undefined && (first < 0 || line < first)) first = line;
      }
      if (first >= 0) return first;
    }
    return -1;
  }

  /** Inputs beyond a few are folded; nested programs only where there is more than a screen of equations. */
  private foldAtFirst(): void {
    const isLong = this.lines.length > MANY_LINES;
    const folded = this.lines.flatMap((line, i) =>
      line.foldTo >= 0 && (isLong || line.kind !== "equation") ? [foldEffect.of(this.foldRange(i))] : [],
    );
    if (folded.length > 0) this.view.dispatch({ effects: folded });
  }

  private foldRange(i: number): { from: number; to: number } {
    const { doc } = this.view.state;
    return { from: doc.line(i + 1).to, to: doc.line(this.lines[i]!.foldTo + 1).to };
  }

  private unfoldAround(index: number): StateEffect<unknown>[] {
    const effects: StateEffect<unknown>[] = [];
    for (let i = this.parents[index]!; i >= 0; i = this.parents[i]!)
      effects.push(unfoldEffect.of(this.foldRange(i)));
    return effects;
  }

  /** Folds every program that an equation holds, and long lists of inputs, or unfolds them. */
  private foldAll(open: boolean): boolean {
    const effect = open ? unfoldEffect : foldEffect;
    const effects = this.lines.flatMap((line, i) => (line.foldTo >= 0 ? [effect.of(this.foldRange(i))] : []));
    this.view.dispatch({ effects });
    return true;
  }

  /** Leaves out the equations whose role is hidden; what holds others that are not stays. */
  private hideRoles(): void {
    const { model, muted, player, selection } = this.state;
    const { doc } = this.view.state;
    const n = this.lines.length;
    this.hidden = new Uint8Array(n);
    const isKept = (line: Line) =>
      line.kind === "equation" && (player !== null || muted.get(model.role(line.row)) !== "hidden");
    const kept = new Int32Array(n + 1);
    for (let i = 0; i < n; i++) kept[i + 1] = kept[i]! + Number(isKept(this.lines[i]!));
    const builder = new RangeSetBuilder<Decoration>();
    const endOf = (i: number) => Math.max(i, this.lines[i]!.foldTo);
    const isLeftOut = (i: number) =>
      i < n && this.lines[i]!.kind === "equation" && kept[endOf(i) + 1] === kept[i];
    for (let i = 0; i < n; i++) {
      if (!isLeftOut(i)) continue;
      const from = i;
      let equations = 0;
      let isLit = false;
      let to = i - 1;
      while (isLeftOut(to + 1)) {
        const last = endOf(to + 1);
        for (let k = to + 1; k <= last; k++) {
          this.hidden[k] = 1;
          if (this.lines[k]!.kind !== "equation") continue;
          equations += 1;
          isLit ||= litAs(selection, this.lines[k]!.row) !== "";
        }
        to = last;
      }
      const widget = new Hidden(equations, isLit);
      builder.add(doc.line(from + 1).from, doc.line(to + 1).to, Decoration.replace({ widget, block: true }));
      i = to;
    }
    this.view.dispatch({ effects: setHidden.of(builder.finish()) });
  }

  private extensions(label: string): Extension[] {
    const lines = this.lines;
    const { model } = this.state;
    const lineAt = (view: EditorView, position: number) => lines[view.state.doc.lineAt(position).number - 1];
    return [
      EditorState.readOnly.of(true),
      EditorView.editable.of(false),
      EditorView.contentAttributes.of({
        tabindex: "0",
        "aria-label": `program ${label}`,
        role: "textbox",
        "aria-readonly": "true",
      }),
      foldService.of((editor, from) => {
        const number = editor.doc.lineAt(from).number;
        const line = lines[number - 1];
        return line && line.foldTo >= 0
          ? { from: editor.doc.line(number).to, to: editor.doc.line(line.foldTo + 1).to }
          : null;
      }),
      codeFolding({
        preparePlaceholder: (editor, range) => editor.doc.lineAt(range.from).number - 1,
        placeholderDOM: (_view, onclick, i: number) => {
          const text = foldText(model, lines, i);
          const title = `Unfold: ${text}`;
          return h("button", { class: "jv-fold", title, type: "button", tabindex: -1, onclick }, `▸ ${text}`);
        },
      }),
      gutter({
        class: "jv-role-gutter",
        lineMarker: (view, block) => {
          const line = lineAt(view, block.from);
          return line?.kind === "equation" ? new RoleMarker(model.role(line.row)) : null;
        },
        initialSpacer: () => new RoleMarker("cotangent"),
      }),
      foldGutter({ openText: "▾", closedText: "▸" }),
      this.lights(),
      tip,
      hiddenLines,
      // Inside the explorer, where its colours hold, and not cut off at the edge of the pane.
      tooltips({
        parent: this.root,
        position: "absolute",
        tooltipSpace: () => this.root.getBoundingClientRect(),
      }),
      EditorView.lineWrapping,
      EditorView.domEventHandlers({
        mousemove: (event, view) => {
          const position = view.posAtCoords({ x: event.clientX, y: event.clientY });
          this.pointAt(position === null ? null : this.variableAt(view, position));
          return false;
        },
        mouseleave: () => {
          this.pointAt(null);
          return false;
        },
        click: (event, view) => {
          // Who drags over text selects that.
          if (!view.state.selection.main.empty) return false;
          const position = view.posAtCoords({ x: event.clientX, y: event.clientY });
          const line = position === null ? undefined : lineAt(view, position);
          if (line) this.choose(line, this.variableAt(view, position!));
          return false;
        },
        copy: (event, view) => {
          const { from, to, empty } = view.state.selection.main;
          const { number } = view.state.doc.lineAt(from);
          // A part of a line is copied as it stands.
          if (empty || number === view.state.doc.lineAt(to).number || !event.clipboardData) return false;
          const text = this.textOfLines(number - 1, view.state.doc.lineAt(to).number - 1);
          event.clipboardData.setData("text/plain", text);
          event.preventDefault();
          this.tell("copied as JAX text");
          return true;
        },
      }),
      keymap.of([
        { key: "ArrowDown", run: () => this.step(1) },
        { key: "ArrowUp", run: () => this.step(-1) },
        { key: "j", run: () => this.step(1) },
        { key: "k", run: () => this.step(-1) },
        { key: "ArrowLeft", run: () => this.fold(false) },
        { key: "ArrowRight", run: () => this.fold(true) },
        { key: "Shift-ArrowLeft", run: () => this.stepVariable(-1) },
        { key: "Shift-ArrowRight", run: () => this.stepVariable(1) },
        { key: "Enter", run: () => this.goToDefinition() },
        { key: "F12", run: () => this.goToDefinition() },
        { key: "n", run: () => this.goToUse(1) },
        { key: "N", run: () => this.goToUse(-1) },
        { key: "Shift-n", run: () => this.goToUse(-1) },
        { key: "Alt-ArrowLeft", run: () => this.state.retrace(-1) || true },
        { key: "Alt-ArrowRight", run: () => this.state.retrace(1) || true },
        { key: "-", run: () => this.foldAll(false) },
        { key: "+", run: () => this.foldAll(true) },
        { key: "=", run: () => this.foldAll(true) },
        { key: "Mod-c", run: (view) => view.state.selection.main.empty && this.copySelected() },
      ]),
    ];
  }

  /** A click: on a use of a variable, to where that is made; else on the equation. */
  private choose(line: Line, found: Found | null): void {
    const { model } = this.state;
    const v = found?.variable ?? -1;
    // Outside equations there are inputs and results, which may be donated ones of a jit.
    const donated = line.row < 0 ? model.donationsWith(v)[0] : undefined;
    if (donated) this.state.selectRow(donated.row);
    else if (v >= 0 && !found!.isBinder && !this.state.player)
      this.state.goToVariable(v, model.definition(v, line.program));
    else {
      if (line.row >= 0) this.state.selectRow(line.row);
      if (v >= 0) this.state.standOn(v);
    }
  }

  /** Puts the keys on the next variable of the selected equation, or the previous. */
  private stepVariable(by: 1 | -1): boolean {
    if (this.state.player) return false;
    const line = this.lineOfRow.get(this.state.row) ?? this.bindings.get(this.state.variable) ?? -1;
    const found = line < 0 ? [] : this.lines[line]!.tokens.filter((t) => t.variable !== undefined);
    if (found.length === 0) return true;
    const at = found.findIndex((t) => t.variable === this.state.variable);
    const next = at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length;
    this.state.standOn(found[next]!.variable!);
    this.showCard(found[next]!.variable!, this.view.state.doc.line(line + 1).from + found[next]!.from);
    return true;
  }

  /** The variable that keys act on: the one they stand on, or else what the selected equation makes. */
  private get variable(): number {
    const { row, variable, model } = this.state;
    return variable >= 0 || row < 0 ? variable : (model.outputs(row)[0] ?? -1);
  }

  /** The program that keys act in: that of the selected equation. */
  private get program(): number {
    return this.state.row < 0 ? -1 : this.state.model.program(this.state.row);
  }

  private goToDefinition(): boolean {
    if (this.state.player) return false;
    const { variable } = this;
    if (variable >= 0) this.state.goToVariable(variable, this.state.model.definition(variable, this.program));
    return true;
  }

  /** Goes to the next equation that reads the variable, or the one before. */
  private goToUse(by: 1 | -1): boolean {
    if (this.state.player) return false;
    const { variable, state } = this;
    const uses = variable < 0 ? [] : state.model.uses(variable, this.program);
    if (uses.length === 0) {
      if (variable >= 0)
        this.tell(`${state.model.atomText(variable)}: ${usesText(state, variable, this.program)}`);
      return true;
    }
    const at = uses.indexOf(state.row);
    const next = at < 0 ? (by > 0 ? 0 : uses.length - 1) : (at + by + uses.length) % uses.length;
    state.goToVariable(variable, uses[next]!);
    this.tell(`use ${next + 1} of ${uses.length} of ${state.model.atomText(variable)}`);
    return true;
  }

  /** The selected equations of this pane to the clipboard, as JAX prints them. */
  private copySelected(): boolean {
    const rows = [...this.state.selection.rows].filter((row) => this.lineOfRow.has(row));
    if (rows.length === 0) return false;
    this.copyOut(rows);
    return true;
  }

  /** Equations, or the whole of what is shown, to the clipboard. */
  private copyOut(rows: readonly number[] | null): void {
    const { model } = this.state;
    const text = rows ? equationsText(model, rows) : this.stages.map((i) => jaxprText(model, i)).join("\n\n");
    const what = plural(rows?.length ?? this.lineOfRow.size, "equation");
    void copyText(text, this.root, (how) => this.tell(how === "copied" ? `copied ${what} as JAX text` : how));
  }

  /** Some lines as JAX prints them: their equations, or the program if they are all of it. */
  private textOfLines(from: number, to: number): string {
    const { model } = this.state;
    if (from === 0 && to === this.lines.length - 1)
      return this.stages.map((i) => jaxprText(model, i)).join("\n\n");
    const rows: number[] = [];
    for (let i = from; i <= to; i++) {
      if (this.lines[i]!.kind !== "equation" || this.hidden[i]) continue;
      rows.push(this.lines[i]!.row);
      // What an equation holds is printed with it.
      i = Math.max(i, this.lines[i]!.foldTo);
    }
    return rows.length > 0
      ? equationsText(model, rows)
      : this.lines
          .slice(from, to + 1)
          .map((line) => line.text)
          .join("\n");
  }

  /** Says something for a moment; or to those alone who do not see the pane. */
  private tell(text: string, isQuiet = false): void {
    clearTimeout(this.telling);
    this.told.textContent = text;
    this.told.classList.toggle("is-quiet", isQuiet);
    this.telling = setTimeout(() => this.told.replaceChildren(), TOLD);
  }

  /** Selects the next equation in sight of this pane, or the previous. */
  step(by: 1 | -1): boolean {
    const current = [...this.state.selection.rows].find((row) => this.lineOfRow.has(row));
    const start = current === undefined ? this.lineToShow() : this.lineOfRow.get(current)!;
    let i = start < 0 && by < 0 ? this.lines.length : start;
    do i += by;
    while (
      i >= 0 &&
      i < this.lines.length &&
      (this.lines[i]!.kind !== "equation" || this.hidden[i] || isFolded(i, this.view.state))
    );
    const line = this.lines[i];
    if (line) this.state.selectRow(line.row);
    return true;
  }

  /** Whether a line is folded over an equation that is lit. */
  private hidesLit(i: number, editor: EditorState): boolean {
    const { foldTo } = this.lines[i]!;
    if (foldTo < 0 || !isFolded(i + 1, editor)) return false;
    const { litLines } = this;
    let [low, high] = [0, litLines.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (litLines[middle]! > i) high = middle;
      else low = middle + 1;
    }
    return low < litLines.length && litLines[low]! <= foldTo;
  }

  /** The lines that are lit, in order; found once for a selection. */
  private get litLines(): readonly number[] {
    const { selection } = this.state;
    if (this.lit?.selection !== selection) {
      const lines: number[] = [];
      for (const rows of [selection.rows, selection.ancestors, selection.descendants, selection.siblings])
        for (const row of rows) {
          const line = this.lineOfRow.get(row);
          if (line !== undefined) lines.push(line);
        }
      this.lit = { selection, lines: lines.sort((a, b) => a - b) };
    }
    return this.lit.lines;
  }

  private fold(open: boolean): boolean {
    const i = this.lineOfRow.get(this.state.row) ?? -1;
    if (i < 0) return false;
    const line = this.lines[i]!;
    if (line.foldTo >= 0)
      this.view.dispatch({ effects: (open ? unfoldEffect : foldEffect).of(this.foldRange(i)) });
    return true;
  }

  /** Colours for what is in sight only: a program may have a hundred thousand lines. */
  private lights(): Extension {
    const { lines, state } = this;
    const build = (view: EditorView): DecorationSet => {
      const builder = new RangeSetBuilder<Decoration>();
      const { identities } = state.model;
      const pointed = new Set<number>();
      const families = new Set<number>();
      for (const v of state.pointed) {
        if (v < 0) continue;
        pointed.add(identities.of(v));
        families.add(identities.family(v));
      }
      // A line that is left out ends one range in sight and starts the next.
      let next = 1;
      for (const { from, to } of view.visibleRanges) {
        const last = view.state.doc.lineAt(to).number;
        for (let n = Math.max(next, view.state.doc.lineAt(from).number); n <= last; n++) {
          next = n + 1;
          if (this.hidden[n - 1]) continue;
          const line = lines[n - 1]!;
          const start = view.state.doc.line(n).from;
          const lit = state.player
            ? this.played(n - 1)
            : line.row >= 0
              ? litAs(state.selection, line.row)
              : "";
          const hides = lit === "" && !state.player && this.hidesLit(n - 1, view.state) ? " hides-lit" : "";
          const role = line.kind === "equation" && !state.player ? state.model.role(line.row) : "";
          const muted = state.muted.has(role) ? " is-dimmed" : "";
          const indent = `--indent:${2 * line.depth + 4}ch`;
          const attributes: Record<string, string> = {
            class: `jv-line jv-line-${line.kind} ${lit}${hides}${muted} ${line.row >= 0 && !state.player ? state.markOf(line.row) : ""}`,
            style: indent,
          };
          if (line.row >= 0) attributes["data-row"] = String(line.row);
          if (lit === "is-selected") attributes["aria-current"] = "true";
          builder.add(start, start, Decoration.line({ attributes }));
          for (const t of line.tokens) {
            const how =
              t.variable === undefined ? "" : this.tokenClass(t.variable, line.row, pointed, families);
            const name = `jv-${t.kind}${how}${this.playedName(line, t)}`;
            builder.add(start + t.from, start + t.to, markOf(name, t.title));
          }
        }
      }
      return builder.finish();
    };
    return ViewPlugin.fromClass(
      class {
        decorations: DecorationSet;
        constructor(view: EditorView) {
          this.decorations = build(view);
        }
        update(update: ViewUpdate): void {
          const lit = update.transactions.some((t) => t.effects.length > 0);
          if (lit || update.viewportChanged || update.docChanged) this.decorations = build(update.view);
        }
      },
      { decorations: (plugin) => plugin.decorations },
    );
  }

  /** Its hue, and whether it is the value that is pointed at or belongs to that. */
  private tokenClass(v: number, row: number, pointed: Set<number>, families: Set<number>): string {
    const { identities } = this.state.model;
    const hue = hueClass(this.state, v);
    const isCursor = v === this.state.variable && row >= 0 && row === this.state.row;
    const how = pointed.has(identities.of(v))
      ? "is-pointed"
      : families.has(identities.family(v))
        ? "is-kin"
        : "";
    return ` ${hue} ${how}${isCursor ? " is-cursor" : ""}`;
  }

  /** How a line stands to the step that is played; one that is no equation goes with the equation before it. */
  private played(index: number): string {
    for (let i = index; i >= 0; i--) {
      const { row } = this.lines[i]!;
      if (row < 0) continue;
      const how = this.state.player!.standing(row);
      return i === index || how === "is-later" ? how : "";
    }
    return "";
  }

  private playedName(line: Line, { variable }: Token): string {
    const { player } = this.state;
    if (!player || variable === undefined || !player.shown.includes(line.row)) return "";
    return ` ${nameClass(player.rule.names.get(variable))}`;
  }

  private variableAt(view: EditorView, position: number): Found | null {
    const at = view.state.doc.lineAt(position);
    const token = this.lines[at.number - 1]?.tokens.find(
      (t): t is Token & { variable: number } =>
        t.variable !== undefined && at.from + t.from <= position && position <= at.from + t.to,
    );
    if (token === undefined || this.hidden[at.number - 1]) return null;
    return { variable: token.variable, isBinder: token.isBinder === true, from: at.from + token.from };
  }

  private pointAt(found: Found | null): void {
    if ((found?.variable ?? -1) === this.state.hover) return;
    clearTimeout(this.resting);
    this.state.pointAt(found?.variable ?? -1);
    // The card stays for a moment, so that the pointer can go to it.
    if (found === null) this.resting = setTimeout(() => this.closeCard(), LINGER);
    else {
      this.closeCard();
      this.resting = setTimeout(() => this.showCard(found.variable, found.from), REST);
    }
  }

  private closeCard(): void {
    if (this.view.state.field(tip)) this.view.dispatch({ effects: setTip.of(null) });
  }

  private showCard(variable: number, pos: number): void {
    clearTimeout(this.resting);
    const { number } = this.view.state.doc.lineAt(pos);
    const create = () => {
      const dom = variableCard(this.state, variable, this.lines[number - 1]!.program);
      dom.addEventListener("mouseenter", () => clearTimeout(this.resting));
      dom.addEventListener("mouseleave", () => this.closeCard());
      dom.addEventListener("click", () => this.closeCard());
      return { dom };
    };
    this.view.dispatch({ effects: setTip.of({ pos, above: true, create }) });
  }
}

/** A variable where it stands in the text. */
interface Found {
  variable: number;
  isBinder: boolean;
  from: number;
}

function isFolded(i: number, editor: EditorState): boolean {
  const at = editor.doc.line(i + 1).from;
  let hidden = false;
  foldedRanges(editor).between(at, at, (from, to) => {
    if (from < at && at <= to) hidden = true;
  });
  return hidden;
}

function message(title: string, text: string): HTMLElement {
  return h("div", { class: "jv-message" }, h("strong", {}, title), h("p", {}, ...marked(text)));
}
