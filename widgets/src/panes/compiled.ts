/** The pane of the stage `compiled`: StableHLO and optimised HLO, each line linked to the equations that it was made from. */

import { EditorState, type Extension, RangeSetBuilder, StateEffect } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  GutterMarker,
  gutter,
  keymap,
  ViewPlugin,
  type ViewUpdate,
  WidgetType,
} from "@codemirror/view";
import { type Compiled, Linked, partsOf } from "../compiled";
import { h } from "../dom";
import { editor } from "../editor";
import { formatCount, plural } from "../format";
import type { Listing } from "../pane";
import { listingOf } from "../scrolling";
import { type Change, type Lit, litAs, type Side, type State } from "../state";
import { Waiting } from "../waiting";
import type { Work } from "../work";
import { marked } from "./residuals";

type Which = "hlo" | "stablehlo";

const NAMES: Record<Which, string> = { stablehlo: "StableHLO", hlo: "optimised HLO" };
const ABOUT: Record<Which, string> = {
  stablehlo: "what JAX hands to XLA",
  hlo: "what XLA makes of it; row-major layouts and metadata are left out",
};
const NO_LINE: Record<Which, string> = {
  stablehlo: "no operation of its own: folded or shared",
  hlo: "no instruction left: folded or shared",
};

const GONE =
  "Its result is a constant or another equation's, or nothing reads it; or XLA left no metadata on what it became.";

const COMPILING =
  "Compiling forward and backward as one program… The kernel does that once; XLA cannot be interrupted.";

const relight = StateEffect.define<null>();

/** Places of the user's source that are written behind a line. */
const MOST_PLACES = 2;

class OfMarker extends GutterMarker {
  constructor(readonly of: string) {
    super();
  }
  override eq(other: OfMarker): boolean {
    return other.of === this.of;
  }
  override toDOM(): Node {
    const [letter, what] = {
      forward: ["F", "forward"],
      backward: ["B", "backward"],
      both: ["FB", "both passes"],
      primal: ["", "the function"],
    }[this.of]!;
    return h("span", { class: `jv-pass jv-pass-${this.of}`, title: `of ${what}` }, letter);
  }
}

class PlaceWidget extends WidgetType {
  constructor(readonly text: string) {
    super();
  }
  override eq(other: PlaceWidget): boolean {
    return other.text === this.text;
  }
  override toDOM(): HTMLElement {
    return h("span", { class: "jv-behind", "aria-hidden": true }, this.text);
  }
}

export class CompiledPane {
  readonly element: HTMLElement;
  private readonly body = h("div", { class: "jv-code-body" });
  private readonly switches = h("span", {
    class: "jv-tabs jv-which",
    role: "group",
    "aria-label": "which text",
  });
  private readonly about = h("span", { class: "jv-dim jv-cut" });
  private readonly missing = h("span", {
    class: "jv-missing",
    role: "status",
    hidden: true,
    "data-testid": "no-instruction",
  });
  private readonly stop: () => void;
  private waiting: Waiting | null = null;
  private compiled: Compiled | null = null;
  private which: Which = "hlo";
  private view: EditorView | null = null;
  private linked: Linked | null = null;
  /** The rows that are selected, and those that stand for them. */
  private selected = new Set<number>();
  listing: Listing | null = null;

  constructor(
    private readonly state: State,
    private readonly source: Work,
    private readonly side: Side,
    private readonly root: HTMLElement,
  ) {
    this.element = h(
      "section",
      {
        class: "jv-pane jv-code jv-compiled",
        "aria-label": "the compiled program",
        "data-testid": `code-${side}`,
        "data-stage": "compiled",
        tabindex: -1,
        onfocusin: () => state.use(side),
        onpointerdown: () => state.use(side),
      },
      h(
        "div",
        { class: "jv-pane-head" },
        h("strong", {}, "compiled"),
        this.switches,
        this.about,
        side === "right" &&
          h(
            "button",
            {
              type: "button",
              class: "jv-close",
              title: "Close this pane",
              "aria-label": "close this pane",
              onclick: () => state.show({ right: [] }),
            },
            "×",
          ),
      ),
      this.body,
      this.missing,
    );
    this.stop = source.listen(() => this.fill());
    this.fill();
    this.markSide();
  }

  destroy(): void {
    this.waiting?.destroy();
    this.stop();
    this.view?.destroy();
  }

  update(change: Change): void {
    if (change === "side" || change === "shown") this.markSide();
    if (change !== "selection") return;
    this.light();
    this.bringIntoSight();
  }

  /** Selects what the next line was made from, or the line before. */
  step(by: 1 | -1): boolean {
    const { linked } = this;
    if (linked === null) return false;
    const lines = this.selectedLines();
    const start = by > 0 ? (lines.at(-1) ?? this.firstInSight() - 1) : (lines[0] ?? this.firstInSight());
    const current = lines.length > 0 ? key(linked.rows[start]!) : "";
    let line = start + by;
    while (linked.rows[line] !== undefined && ["", current].includes(key(linked.rows[line]!))) line += by;
    const rows = linked.rows[line];
    if (rows !== undefined) this.state.selectRows(rows);
    return true;
  }

  private markSide(): void {
    const { side, shown } = this.state;
    this.element.classList.toggle("is-active", side === this.side && shown.right.length > 0);
  }

  private fill(): void {
    const text = this.source.read();
    if (text === "") {
      if (this.waiting === null) {
        this.source.ask();
        this.waiting = new Waiting(this.source, COMPILING, "compiling");
        this.body.replaceChildren(this.waiting.element);
      } else this.waiting.update();
      return;
    }
    this.waiting?.destroy();
    this.waiting = null;
    const answer = JSON.parse(text) as Compiled | { error: string };
    if (!("stablehlo" in answer)) {
      this.body.replaceChildren(message("There is no compiled program", answer.error, "not-compiled"));
      return;
    }
    this.compiled = answer;
    this.show(answer.hlo === null ? "stablehlo" : "hlo");
  }

  private show(which: Which): void {
    const { compiled, state } = this;
    if (compiled === null) return;
    this.which = which;
    this.view?.destroy();
    this.view = null;
    this.linked = null;
    this.listing = null;
    this.switches.replaceChildren(
      ...(["stablehlo", "hlo"] as const).map((name) =>
        h(
          "button",
          {
            type: "button",
            class: `jv-tab${name === which ? " is-own" : ""}`,
            title: ABOUT[name],
            "aria-pressed": String(name === which),
            "data-testid": `text-${name}`,
            onclick: () => this.show(name),
          },
          NAMES[name],
        ),
      ),
    );
    const text = compiled[which];
    const notes = compiled.notes.map((note) => h("p", { class: "jv-note" }, ...marked(note)));
    if (text === null) {
      this.about.textContent = "";
      this.missing.hidden = true;
      this.body.replaceChildren(...notes, message("XLA did not compile it", compiled.error, "not-compiled"));
      return;
    }
    const linked = new Linked(state.model, text, compiled.stages);
    this.linked = linked;
    this.view = editor(this.root, {
      state: EditorState.create({ doc: linked.lines.join("\n"), extensions: this.extensions(linked) }),
    });
    this.listing = listingOf(this.view, linked.rows);
    const { total, without } = linked.gone();
    const gone = without > 0 ? ` · ${plural(without, "equation")} without a line` : "";
    this.about.textContent = `${compiled.backend}${gone}`;
    this.about.title = [
      `${NAMES[which]}: ${ABOUT[which]}`,
      `${plural(linked.lines.length + linked.cut, "line")}; ${formatCount(without)} of ${plural(total, "equation")} have none. ${GONE}`,
    ].join("\n");
    const cut =
      linked.cut > 0 ? [message("", `${plural(linked.cut, "more line")} are not shown`, "cut")] : [];
    this.body.replaceChildren(...notes, this.view.dom, ...cut);
    this.light();
    if (!this.bringIntoSight())
      this.scrollTo(
        linked.lines.findIndex((line) => line.startsWith("ENTRY ")),
        "start",
      );
  }

  /** Lights the lines of what is selected, and says so where there are none. */
  private light(): void {
    const { linked, view } = this;
    if (linked === null || view === null) return;
    const { rows, descendants } = this.state.selection;
    this.selected = new Set([...rows].flatMap((row) => linked.standingFor(row)));
    const asked = [...rows].some((row) => linked.isCompiled(row)) ? rows : descendants;
    const compiled = [...asked].filter((row) => linked.isCompiled(row));
    const isGone = compiled.length > 0 && !compiled.some((row) => linked.isLeft(row));
    this.missing.textContent = isGone ? NO_LINE[this.which] : "";
    this.missing.title = isGone ? GONE : "";
    this.missing.hidden = !isGone;
    view.dispatch({ effects: relight.of(null) });
  }

  private lit(rows: readonly number[]): Lit {
    const found = new Set(
      rows.map((row) => (this.selected.has(row) ? "is-selected" : litAs(this.state.selection, row))),
    );
    return (
      (["is-selected", "is-ancestor", "is-descendant", "is-related"] as const).find((lit) =>
        found.has(lit),
      ) ?? ""
    );
  }

  private selectedLines(): number[] {
    const lines = [...this.selected].flatMap((row) => this.linked?.linesOf.get(row) ?? []);
    return [...new Set(lines)].sort((a, b) => a - b);
  }

  private firstInSight(): number {
    const { listing } = this;
    return listing === null ? 0 : listing.lineAt(listing.scroller.scrollTop);
  }

  /** Scrolls to the nearest line that is lit, if none is in sight; says whether there is one. */
  private bringIntoSight(): boolean {
    const { linked, listing } = this;
    if (linked === null || listing === null) return false;
    const { descendants, ancestors } = this.state.selection;
    for (const rows of [this.selected, descendants, ancestors]) {
      const lines = [...new Set([...rows].flatMap((row) => linked.linesOf.get(row) ?? []))];
      if (lines.length === 0) continue;
      const { scrollTop, clientHeight } = listing.scroller;
      const away = lines.map((line) => {
        const top = listing.topOf(line);
        return Math.max(scrollTop - top, top + LINE_HEIGHT - scrollTop - clientHeight, 0);
      });
      const least = Math.min(...away);
      if (least > 0 || clientHeight === 0) this.scrollTo(lines[away.indexOf(least)]!, "center");
      return true;
    }
    return false;
  }

  private scrollTo(line: number, y: "start" | "center"): void {
    if (this.view === null || line < 0) return;
    const { from } = this.view.state.doc.line(line + 1);
    this.view.dispatch({ effects: EditorView.scrollIntoView(from, { y, x: "start", xMargin: 200 }) });
  }

  private extensions(linked: Linked): Extension[] {
    const lineAt = (view: EditorView, position: number) => view.state.doc.lineAt(position).number - 1;
    return [
      EditorState.readOnly.of(true),
      EditorView.editable.of(false),
      EditorView.contentAttributes.of({
        tabindex: "0",
        "aria-label": `program ${NAMES[this.which]}`,
        role: "textbox",
        "aria-readonly": "true",
      }),
      gutter({
        class: "jv-role-gutter",
        lineMarker: (view, block) => {
          const of = this.passOf(linked.rows[lineAt(view, block.from)]!);
          return of === "" ? null : new OfMarker(of);
        },
        initialSpacer: () => new OfMarker("both"),
      }),
      this.lights(linked),
      EditorView.domEventHandlers({
        click: (event, view) => {
          const position = view.posAtCoords({ x: event.clientX, y: event.clientY }, false);
          const rows = linked.rows[lineAt(view, position)] ?? [];
          if (rows.length > 0) this.state.selectRows(rows);
          return false;
        },
      }),
      keymap.of([
        { key: "ArrowDown", run: () => this.step(1) },
        { key: "ArrowUp", run: () => this.step(-1) },
        { key: "j", run: () => this.step(1) },
        { key: "k", run: () => this.step(-1) },
      ]),
    ];
  }

  /** The pass that a line is of, or `both`; nothing where it is of neither. */
  private passOf(rows: readonly number[]): string {
    const { model } = this.state;
    const [one = "", ...more] = new Set(rows.map((row) => model.view.stages[model.stage(row)]!.key));
    return more.length > 0 ? "both" : one;
  }

  /** `model.py:12`: the lines of the user's source that a line was made from. */
  private behind(rows: readonly number[]): string {
    const { model } = this.state;
    const places = [...new Set(rows.map((row) => model.placeText(model.place(row))).filter(Boolean))];
    const more = places.length > MOST_PLACES ? `, and ${places.length - MOST_PLACES} more` : "";
    return `${places.slice(0, MOST_PLACES).join(", ")}${more}`;
  }

  /** Colours for what is in sight only. */
  private lights(linked: Linked): Extension {
    const build = (view: EditorView): DecorationSet => {
      const builder = new RangeSetBuilder<Decoration>();
      // Of a very long line parts are in sight, each a range of its own.
      let next = 1;
      for (const { from, to } of view.visibleRanges) {
        const last = view.state.doc.lineAt(to).number;
        for (let n = Math.max(next, view.state.doc.lineAt(from).number); n <= last; n++) {
          next = n + 1;
          const { from: start, to: end, text } = view.state.doc.line(n);
          const rows = linked.rows[n - 1]!;
          const lit = this.lit(rows);
          const pass = this.passOf(rows);
          const attributes: Record<string, string> = {
            class: `jv-line ${pass && `jv-line-of-${pass}`} ${rows.length > 0 ? "is-linked" : ""} ${lit}`,
          };
          if (lit === "is-selected") attributes["aria-current"] = "true";
          builder.add(start, start, Decoration.line({ attributes }));
          for (const part of partsOf(text))
            builder.add(start + part.from, start + part.to, Decoration.mark({ class: `jv-${part.kind}` }));
          const behind = this.behind(rows);
          if (behind) builder.add(end, end, Decoration.widget({ widget: new PlaceWidget(behind), side: 1 }));
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
}

const LINE_HEIGHT = 18;

const key = (rows: readonly number[]) => rows.join();

function message(title: string, text: string, id: string): HTMLElement {
  return h(
    "div",
    { class: "jv-message", role: "status", "data-testid": id },
    title && h("strong", {}, title),
    h("p", {}, ...marked(text)),
  );
}
