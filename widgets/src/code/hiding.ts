/** Leaves out lines whose equations have a hidden role. */

import { RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
import { Decoration, type DecorationSet, EditorView, WidgetType } from "@codemirror/view";
import { plural } from "../base/format";
import { h } from "../ui/dom";
import type { LeftOut } from "./lines";

const setHidden = StateEffect.define<DecorationSet>();

export const hiddenLines = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (shown, { changes, effects }) => effects.find((e) => e.is(setHidden))?.value ?? shown.map(changes),
  provide: (field) => EditorView.decorations.from(field),
});

/** Replaces hidden equations by a thin line with their number. */
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
    return h("div", {
      class: `jv-left-out${this.isLit ? " hides-lit" : ""}`,
      title: text,
      "aria-label": text,
    });
  }
}

/** Hides line ranges in an editor. */
export function hide(view: EditorView, leftOut: readonly LeftOut[], isLit: (row: number) => boolean): void {
  const { doc } = view.state;
  const builder = new RangeSetBuilder<Decoration>();
  for (const { from, to, rows } of leftOut) {
    const widget = new Hidden(rows.length, rows.some(isLit));
    builder.add(doc.line(from + 1).from, doc.line(to + 1).to, Decoration.replace({ widget, block: true }));
  }
  view.dispatch({ effects: setHidden.of(builder.finish()) });
}
