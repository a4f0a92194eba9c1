/** A read-only text view that decorates only the visible lines. */

import { Text as Doc, EditorState, type Extension, RangeSetBuilder, StateEffect } from "@codemirror/state";
import {
  Decoration,
  type DecorationSet,
  EditorView,
  keymap,
  ViewPlugin,
  type ViewUpdate,
  WidgetType,
} from "@codemirror/view";
import { entry } from "../base/maps";
import { h } from "../ui/dom";
import type { Listing } from "../ui/pane";
import { listingOf } from "./scrolling";

/** How a line looks. */
export interface Look {
  /** Attributes of the line's element; the margin shows `data-letter`. */
  attributes: Record<string, string>;
  /** Classes of ranges in the line, in order. */
  marks: readonly { from: number; to: number; name: string; title?: string | undefined }[];
  before?: Piece | undefined;
  /** Text shown after the line. */
  behind?: string;
}

/** A widget within a line; one with an unchanged key is not rendered again. */
export interface Piece {
  key: string;
  make(view: EditorView): HTMLElement;
}

export interface TextOptions {
  /** The accessible name. */
  label: string;
  /** The `data-testid`. */
  id?: string;
  lines: readonly string[];
  /** The equations of each line. */
  rows: readonly (readonly number[])[];
  /** The appearance of each line; null for a hidden line. */
  looks(editor: EditorState): (line: number) => Look | null;
  /** A click at a position in a line, and a double click. */
  choose(line: number, column: number): void;
  chooseTwice?(line: number, column: number): void;
  /** Selects the next or the previous equation. */
  step(by: 1 | -1): boolean;
  /** Handles any other key; returns whether it did. */
  press?(event: KeyboardEvent): boolean;
  /** Whether long lines wrap. */
  wraps?: boolean;
  /** Extensions for this text only. */
  extensions?: readonly Extension[];
}

export interface Text {
  readonly view: EditorView;
  readonly listing: Listing;
  /** Recomputes the appearance of the visible lines. */
  relight(): void;
  scrollTo(line: number, y: "start" | "center", more?: readonly StateEffect<unknown>[]): void;
  /** Scrolls to a line unless it is visible with `below` pixels under it; applies the effects `more` in any case. */
  reveal(line: number, below: number, more?: readonly StateEffect<unknown>[]): void;
}

const again = StateEffect.define<null>();

/** The horizontal scroll margin, in pixels. */
const AT_LEFT = 200;

class PieceWidget extends WidgetType {
  constructor(readonly piece: Piece) {
    super();
  }
  override eq(other: PieceWidget): boolean {
    return other.piece.key === this.piece.key;
  }
  override toDOM(view: EditorView): HTMLElement {
    return this.piece.make(view);
  }
}

const pieceAt = (piece: Piece, side: number) => Decoration.widget({ widget: new PieceWidget(piece), side });

const textBehind = (text: string): Piece => ({
  key: text,
  make: () => h("span.jv-behind.jv-dim", { "aria-hidden": true }, text),
});

const marks = new Map<string, Decoration>();

/** A mark with a class; marks without a tooltip are cached. */
function markOf(name: string, title: string | undefined): Decoration {
  if (title !== undefined) return Decoration.mark({ class: name, attributes: { title } });
  return entry(marks, name, () => Decoration.mark({ class: name }));
}

/** A text view inside the document or shadow root `root`. */
export function textView(root: HTMLElement, options: TextOptions): Text {
  const view = editor(root, options);
  const scrollTo: Text["scrollTo"] = (line, y, more = []) => {
    const { from } = view.state.doc.line(line + 1);
    view.dispatch({
      effects: [...more, EditorView.scrollIntoView(from, { y, x: "start", xMargin: AT_LEFT })],
    });
  };
  return {
    view,
    listing: listingOf(view, options.rows),
    relight: () => view.dispatch({ effects: again.of(null) }),
    scrollTo,
    reveal: (line, below, more = []) => {
      const { from, to } = view.state.doc.line(line + 1);
      const { top, bottom } = view.lineBlockAt(from);
      const { scrollTop, clientHeight } = view.scrollDOM;
      const isMade = from >= view.viewport.from && to <= view.viewport.to;
      const isInSight = isMade && top >= scrollTop && bottom + below <= scrollTop + clientHeight;
      if (!isInSight || more.length > 0) scrollTo(line, "center", more);
    },
  };
}

export type TextView = typeof textView;

/**
 * The document position under the pointer. Marked ranges are looked up in the DOM: coordinates are mapped with line heights, which are
 * stale while a pane resizes.
 */
export function positionUnder(event: MouseEvent, view: EditorView): number | null {
  const mark = event.target instanceof Element ? event.target.closest(".cm-line span") : null;
  return mark ? view.posAtDOM(mark) : view.posAtCoords({ x: event.clientX, y: event.clientY });
}

/** Its styles go into `root`, so that it also works in a shadow tree, as in marimo. */
function editor(root: HTMLElement, options: TextOptions): EditorView {
  const view = new EditorView({
    state: EditorState.create({
      doc: Doc.of(options.lines.length > 0 ? options.lines : [""]),
      extensions: extensions(options),
    }),
  });
  const settle = () => {
    const tree = root.getRootNode();
    if (typeof ShadowRoot !== "undefined" && tree instanceof ShadowRoot) view.setRoot(tree);
  };
  settle();
  if (!root.isConnected) requestAnimationFrame(settle);
  return view;
}

function extensions({
  label,
  id = "",
  looks,
  choose,
  chooseTwice,
  step,
  press,
  wraps = false,
  extensions = [],
}: TextOptions): Extension[] {
  let pressed: { event: MouseEvent; position: number | null } | null = null;
  const at = (position: number | null, view: EditorView, act: (line: number, column: number) => void) => {
    if (position === null) return;
    const { number, from } = view.state.doc.lineAt(position);
    act(number - 1, position - from);
  };
  return [
    EditorState.readOnly.of(true),
    EditorView.editable.of(false),
    EditorView.contentAttributes.of({
      tabindex: "0",
      "aria-label": `program ${label}`,
      role: "textbox",
      "aria-readonly": "true",
      "data-testid": id,
    }),
    wraps ? EditorView.lineWrapping : [],
    ...extensions,
    lights(looks),
    EditorView.domEventHandlers({
      mousedown: (event, view) => {
        pressed = { event, position: positionUnder(event, view) };
        return false;
      },
      click: (event, view) => {
        // A drag selects text, and a double click a word.
        const from = pressed?.event;
        const dragged = from && Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 3;
        // Use the position at pointerdown: lines of a text that has just scrolled may be rendered again before the button is released.
        const position = pressed ? pressed.position : positionUnder(event, view);
        pressed = null;
        if (!dragged && event.detail <= 1 && !event.shiftKey) at(position, view, choose);
        return false;
      },
      dblclick: (event, view) => {
        if (chooseTwice) at(positionUnder(event, view), view, chooseTwice);
        return false;
      },
    }),
    keymap.of([
      { key: "ArrowDown", run: () => step(1) },
      { key: "ArrowUp", run: () => step(-1) },
      { key: "j", run: () => step(1) },
      { key: "k", run: () => step(-1) },
      { any: (_, event) => press?.(event) ?? false },
    ]),
  ];
}

/** Decorates only the visible lines: a program may have a hundred thousand. */
function lights(looks: TextOptions["looks"]): Extension {
  const build = (view: EditorView): DecorationSet => {
    const builder = new RangeSetBuilder<Decoration>();
    const { doc } = view.state;
    const look = looks(view.state);
    // A folded range, or the elided middle of a very long line, splits the visible ranges.
    let next = 1;
    for (const { from, to } of view.visibleRanges) {
      const last = doc.lineAt(to).number;
      for (let n = Math.max(next, doc.lineAt(from).number); n <= last; n++) {
        next = n + 1;
        const shown = look(n - 1);
        if (shown === null) continue;
        const { from: start, to: end } = doc.line(n);
        const { attributes, marks, before, behind } = shown;
        builder.add(start, start, Decoration.line({ attributes }));
        if (before) builder.add(start, start, pieceAt(before, -1));
        for (const mark of marks)
          builder.add(start + mark.from, start + mark.to, markOf(mark.name, mark.title));
        if (behind) builder.add(end, end, pieceAt(textBehind(behind), 1));
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
        if (lit || update.docChanged || update.viewportChanged) this.decorations = build(update.view);
      }
    },
    { decorations: (plugin) => plugin.decorations },
  );
}
