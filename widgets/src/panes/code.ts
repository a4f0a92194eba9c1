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
} from "@codemirror/view";
import { h } from "../dom";
import { plural } from "../format";
import { donationText, type Line, listing, type Token } from "../listing";
import type { Listing } from "../pane";
import { nameClass } from "../rule";
import { listingOf } from "../scrolling";
import { type Change, litAs, type Side, type State } from "../state";
import { headButtons } from "./head";
import { marked } from "./residuals";

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

/** Milliseconds for which the pointer rests on a variable before something is said of it. */
const REST = 250;

/** A listing of more lines than this starts with its nested programs folded. */
const MANY_LINES = 80;

const ROLE_LETTERS: Record<string, string> = {
  primal: "",
  tangent: "T",
  residual: "R",
  cotangent: "C",
  accumulation: "+",
  recomputation: "↻",
  zero: "0",
  dummy: "∅",
};

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

export class CodePane {
  readonly element: HTMLElement;
  private readonly view: EditorView;
  private readonly lines: Line[];
  private readonly lineOfRow = new Map<number, number>();
  /** None where no stage could be derived. */
  readonly listing: Listing | null;
  private resting: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly state: State,
    stages: readonly number[],
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
    this.lines.forEach((line, i) => {
      if (line.kind === "equation") this.lineOfRow.set(line.row, i);
    });
    this.view = new EditorView({
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
        h("span", { class: "jv-dim jv-cut" }, infos.length === 1 ? infos[0]!.title : ""),
        ...headButtons(state, side),
      ),
      body,
    );
    this.foldAtFirst();
    this.markSide();
  }

  destroy(): void {
    clearTimeout(this.resting);
    this.view.destroy();
  }

  /** After the selection changed: lights it, and brings its first line into sight. */
  update(change: Change): void {
    if (change === "side") this.markSide();
    else this.view.dispatch({ effects: relight.of(null) });
    if (change === (this.state.player ? "player" : "selection")) this.bringIntoSight();
  }

  private markSide(): void {
    this.element.classList.toggle(
      "is-active",
      this.state.side === this.side && this.state.shown.right.length > 0,
    );
  }

  private bringIntoSight(): void {
    const line = this.lineToShow();
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
    for (let i = index - 1; i >= 0; i--) {
      const line = this.lines[i]!;
      if (line.foldTo >= index) effects.push(unfoldEffect.of(this.foldRange(i)));
      if (line.depth === 0 && line.kind === "binders" && line.foldTo < 0) break;
    }
    return effects;
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
        preparePlaceholder: (editor, range) =>
          editor.doc.lineAt(range.to).number - editor.doc.lineAt(range.from).number,
        placeholderDOM: (_view, onclick, hidden: number) =>
          h(
            "button",
            { class: "jv-fold", title: "Unfold", type: "button", onclick },
            `… ${plural(hidden, "line")}`,
          ),
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
          const position = view.posAtCoords({ x: event.clientX, y: event.clientY });
          const line = position === null ? undefined : lineAt(view, position);
          // Outside equations there are inputs and results, which may be donated ones of a jit.
          const variable = position === null ? -1 : (this.variableAt(view, position)?.variable ?? -1);
          const row = line && line.row >= 0 ? line.row : (model.donationsWith(variable)[0]?.row ?? -1);
          if (row >= 0) this.state.selectRow(row);
          return false;
        },
      }),
      keymap.of([
        { key: "ArrowDown", run: () => this.step(1) },
        { key: "ArrowUp", run: () => this.step(-1) },
        { key: "j", run: () => this.step(1) },
        { key: "k", run: () => this.step(-1) },
        { key: "ArrowLeft", run: () => this.fold(false) },
        { key: "ArrowRight", run: () => this.fold(true) },
      ]),
    ];
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
      (this.lines[i]!.kind !== "equation" || isFolded(i, this.view.state))
    );
    const line = this.lines[i];
    if (line) this.state.selectRow(line.row);
    return true;
  }

  /** Whether a line is folded over an equation that is lit. */
  private hidesLit(i: number, editor: EditorState): boolean {
    const { foldTo } = this.lines[i]!;
    if (foldTo < 0 || !isFolded(i + 1, editor)) return false;
    for (let k = i + 1; k <= foldTo; k++) {
      const { row } = this.lines[k]!;
      if (row >= 0 && litAs(this.state.selection, row) !== "") return true;
    }
    return false;
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
      const { pointed } = state;
      for (const { from, to } of view.visibleRanges) {
        const last = view.state.doc.lineAt(to).number;
        for (let n = view.state.doc.lineAt(from).number; n <= last; n++) {
          const line = lines[n - 1]!;
          const start = view.state.doc.line(n).from;
          const lit = state.player
            ? this.played(n - 1)
            : line.row >= 0
              ? litAs(state.selection, line.row)
              : "";
          const hides = lit === "" && !state.player && this.hidesLit(n - 1, view.state) ? " hides-lit" : "";
          const indent = `--indent:${2 * line.depth + 4}ch`;
          const attributes: Record<string, string> = {
            class: `jv-line jv-line-${line.kind} ${lit}${hides} ${line.row >= 0 && !state.player ? state.markOf(line.row) : ""}`,
            style: indent,
          };
          if (line.row >= 0) attributes["data-row"] = String(line.row);
          if (lit === "is-selected") attributes["aria-current"] = "true";
          builder.add(start, start, Decoration.line({ attributes }));
          for (const t of line.tokens) {
            const isPointed = t.variable !== undefined && pointed.has(t.variable);
            const how = (isPointed ? " is-pointed" : "") + this.playedName(line, t);
            const title = t.title === undefined ? {} : { title: t.title };
            builder.add(
              start + t.from,
              start + t.to,
              Decoration.mark({ class: `jv-${t.kind}${how}`, attributes: title }),
            );
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

  private variableAt(view: EditorView, position: number) {
    const at = view.state.doc.lineAt(position);
    const token = this.lines[at.number - 1]?.tokens.find(
      (t) => t.variable !== undefined && at.from + t.from <= position && position <= at.from + t.to,
    );
    return token?.variable === undefined
      ? null
      : { variable: token.variable, from: at.from + token.from, to: at.from + token.to };
  }

  private pointAt(found: { variable: number; from: number } | null): void {
    if ((found?.variable ?? -1) === this.state.hover) return;
    clearTimeout(this.resting);
    if (this.view.state.field(tip)) this.view.dispatch({ effects: setTip.of(null) });
    this.state.pointAt(found?.variable ?? -1);
    if (found === null) return;
    const create = () => ({ dom: this.describe(found.variable) });
    const shown: Tooltip = { pos: found.from, above: true, create };
    this.resting = setTimeout(() => this.view.dispatch({ effects: setTip.of(shown) }), REST);
  }

  private describe(v: number): HTMLElement {
    const { model } = this.state;
    const { name, type, label } = model.variable(v);
    const made = model.definition(v);
    const uses = model.uses(v);
    const equation = (row: number) =>
      h(
        "li",
        {},
        h("code", {}, model.summary(row)),
        h("span", { class: "jv-dim" }, `  ${model.placeText(model.place(row))}`),
      );
    return h(
      "div",
      { class: "jv-hover", "data-testid": "variable" },
      h(
        "div",
        {},
        h("strong", {}, name),
        ` : ${type}`,
        h("span", { class: "jv-dim" }, `  ${model.sizeText(v)}`),
      ),
      ...model
        .donationsWith(v)
        .map((d) =>
          h(
            "div",
            {},
            d.variable === v ? donationText(d) : `takes over the memory of ${model.atomText(d.variable)}`,
          ),
        ),
      h("div", {}, made >= 0 ? "made by" : label ? `input: ${label}` : "input"),
      made >= 0 && h("ul", {}, equation(made)),
      h("div", {}, uses.length === 0 ? "read by no equation" : `read by ${plural(uses.length, "equation")}`),
      uses.length > 0 &&
        h(
          "ul",
          {},
          ...uses.slice(0, 6).map(equation),
          uses.length > 6 && h("li", {}, `and ${uses.length - 6} more`),
        ),
    );
  }
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
