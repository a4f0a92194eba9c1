/** Folding: lines collapsed under a parent line, and the summary shown in their place. */

import {
  type EditorState,
  type Extension,
  type Range,
  StateEffect,
  StateField,
  type Text,
} from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, WidgetType } from "@codemirror/view";
import { button, h } from "../ui/dom";
import type { Piece } from "./editor";

interface Folds {
  lines: ReadonlySet<number>;
  shown: DecorationSet;
}

export class Folding {
  readonly extension: Extension;
  /** The parent line of each line, or -1. */
  readonly parents: Int32Array;
  private readonly field: StateField<Folds>;
  private readonly change = StateEffect.define<{ lines: readonly number[]; open: boolean }>();

  /**
   * @param lines the last line that folds under each line, or -1.
   * @param say a short summary of what is folded under a line.
   * @param atFirst whether a foldable line is folded at first.
   */
  constructor(
    private readonly lines: readonly { readonly foldTo: number }[],
    private readonly say: (line: number) => string,
    atFirst: (line: number) => boolean = () => false,
  ) {
    this.parents = new Int32Array(lines.length).fill(-1);
    lines.forEach((_, i) => {
      let above = i - 1;
      while (above >= 0 && lines[above]!.foldTo < i) above = this.parents[above]!;
      this.parents[i] = above;
    });
    this.field = StateField.define<Folds>({
      create: ({ doc }) => {
        const none = { lines: new Set<number>(), shown: Decoration.none };
        return this.changed(none, { lines: this.all.filter(atFirst), open: false }, doc);
      },
      update: (folds, { docChanged, effects, newDoc }) =>
        effects.reduce(
          (now, e) => (e.is(this.change) ? this.changed(now, e.value, newDoc) : now),
          docChanged ? this.moved(folds, newDoc) : folds,
        ),
      provide: (field) => EditorView.decorations.from(field, ({ shown }) => shown),
    });
    this.extension = this.field;
  }

  /** Folds or unfolds the given foldable lines. */
  fold(lines: readonly number[], open: boolean): StateEffect<unknown> {
    return this.change.of({ lines, open });
  }

  /** All foldable lines. */
  get all(): number[] {
    return this.lines.flatMap(({ foldTo }, i) => (foldTo >= 0 ? [i] : []));
  }

  /** Unfolds whatever hides a line. */
  unfoldAround(line: number, state: EditorState): StateEffect<unknown>[] {
    const folded: number[] = [];
    for (let i = this.parents[line]!; i >= 0; i = this.parents[i]!)
      if (this.isFolded(i, state)) folded.push(i);
    return folded.length > 0 ? [this.fold(folded, true)] : [];
  }

  isFolded(line: number, state: EditorState): boolean {
    return state.field(this.field).lines.has(line);
  }

  /** Whether a fold hides a line. */
  isAway(line: number, state: EditorState): boolean {
    for (let i = this.parents[line]!; i >= 0; i = this.parents[i]!) if (this.isFolded(i, state)) return true;
    return false;
  }

  /** The fold arrow before a foldable line. */
  arrow(line: number, state: EditorState): Piece | undefined {
    if (this.lines[line]!.foldTo < 0) return undefined;
    const isFolded = this.isFolded(line, state);
    const title = isFolded ? "Unfold" : "Fold";
    return {
      key: `${line} ${title}`,
      make: (view) => {
        const onclick = () => view.dispatch({ effects: this.fold([line], isFolded) });
        return h("span.jv-arrow.jv-dim", { title, "aria-hidden": true, onclick }, isFolded ? "▸" : "▾");
      },
    };
  }

  private changed(
    { lines, shown }: Folds,
    { lines: asked, open }: { lines: readonly number[]; open: boolean },
    doc: Text,
  ): Folds {
    const changed = new Set(asked.filter((i) => lines.has(i) === open));
    if (open) {
      const kept = (_from: number, _to: number, { spec }: Decoration) => !changed.has(spec.line);
      return {
        lines: new Set([...lines].filter((i) => !changed.has(i))),
        shown: shown.update({ filter: kept }),
      };
    }
    const add = this.ranges(changed, doc);
    return { lines: new Set([...lines, ...changed]), shown: shown.update({ add, sort: true }) };
  }

  /** The same folds after lines have become longer. */
  private moved({ lines }: Folds, doc: Text): Folds {
    return { lines, shown: Decoration.set(this.ranges(lines, doc), true) };
  }

  private ranges(lines: ReadonlySet<number>, doc: Text): Range<Decoration>[] {
    return [...lines].map((line) => {
      const widget = new Placeholder(this, line, this.say);
      const [from, to] = [doc.line(line + 1).to, doc.line(this.lines[line]!.foldTo + 1).to];
      return Decoration.replace({ widget, line }).range(from, to);
    });
  }
}

/** The placeholder for folded lines, with their summary. */
class Placeholder extends WidgetType {
  constructor(
    private readonly folding: Folding,
    readonly line: number,
    private readonly say: (line: number) => string,
  ) {
    super();
  }
  override eq(other: Placeholder): boolean {
    return other.line === this.line;
  }
  override toDOM(view: EditorView): HTMLElement {
    const onclick = () => view.dispatch({ effects: this.folding.fold([this.line], true) });
    const text = this.say(this.line);
    const title = `Unfold: ${text}`;
    return button(`▸ ${text}`, onclick, { class: "jv-fold jv-dim", title, tabindex: -1 });
  }
}
