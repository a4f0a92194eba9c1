/** Read-only texts in an editor that decorates only the visible lines. */

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
import type { Listing } from "../panes/pane";
import { h } from "../ui/dom";
import { listingOf } from "./scrolling";

/** How a line looks. */
export interface Look {
  /** Of its element; `data-letter` stands in the margin. */
  attributes: Record<string, string>;
  /** Classes of its parts, in order. */
  marks: readonly { from: number; to: number; name: string; title?: string | undefined }[];
  before?: Piece | undefined;
  /** What is written behind it. */
  behind?: string;
}

/** An element in a line that is not part of its text; one of the same key is left as it is. */
export interface Piece {
  key: string;
  make(view: EditorView): HTMLElement;
}

export interface TextOptions {
  /** What it is, for those who do not see it. */
  label: string;
  /** By which tests find it. */
  id?: string;
  lines: readonly string[];
  /** The equations of each line. */
  rows: readonly (readonly number[])[];
  /** How each line looks at the moment; null for one that is not shown. */
  looks(editor: EditorState): (line: number) => Look | null;
  /** A click at a place of a line, and two. */
  choose(line: number, column: number): void;
  chooseTwice?(line: number, column: number): void;
  /** To the next equation, or the previous. */
  step(by: 1 | -1): boolean;
  /** What other keys do; says whether it does anything. */
  press?(event: KeyboardEvent): boolean;
  /** Whether lines that are longer than the pane is wide are wrapped. */
  wraps?: boolean;
  /** What only this text has. */
  extensions?: readonly Extension[];
}

export interface Text {
  readonly view: EditorView;
  readonly listing: Listing;
  /** Has what is in sight looked at again. */
  relight(): void;
  scrollTo(line: number, y: "start" | "center", more?: readonly StateEffect<unknown>[]): void;
  /** Scrolls to a line that is out of sight, or has less than so many pixels below it; or if there is more to be done. */
  reveal(line: number, below: number, more?: readonly StateEffect<unknown>[]): void;
}

const again = StateEffect.define<null>();

/** The characters between a line that is scrolled to and the left edge. */
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
  make: () => h("span", { class: "jv-behind", "aria-hidden": true }, text),
});

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

/** A text in the tree that its widget is shown in. */
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
 * The position of what the pointer is on. A marked piece of text says it itself: where that is by its coordinates goes by the heights of
 * lines, which are those of before while a pane takes its room.
 */
export function positionUnder(event: MouseEvent, view: EditorView): number | null {
  const mark = event.target instanceof Element ? event.target.closest(".cm-line span") : null;
  return mark ? view.posAtDOM(mark) : view.posAtCoords({ x: event.clientX, y: event.clientY });
}

/** It looks right in a shadow tree too, where marimo shows widgets: its style sheet goes into the tree that it stands in. */
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
        // Who drags over text selects that, and who clicks twice a word.
        const from = pressed?.event;
        const dragged = from && Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > 3;
        // What was pressed counts: a text that was just scrolled may write its lines anew before the button is released.
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

/** Colours for what is in sight only: a program may have a hundred thousand lines. */
function lights(looks: TextOptions["looks"]): Extension {
  const build = (view: EditorView): DecorationSet => {
    const builder = new RangeSetBuilder<Decoration>();
    const { doc } = view.state;
    const look = looks(view.state);
    // What is left out, or the middle of a very long line, ends one range in sight and starts the next.
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
        if (lit || update.viewportChanged) this.decorations = build(update.view);
      }
    },
    { decorations: (plugin) => plugin.decorations },
  );
}
