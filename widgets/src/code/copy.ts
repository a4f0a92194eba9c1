/** Copies equations, lines or the whole program from a code pane, as JAX prints them. */

import type { Extension } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { plural } from "../base/format";
import type { State } from "../state/state";
import { copyText } from "../ui/copying";
import { equationsText, jaxprText } from "./jaxpr";
import type { Lines } from "./lines";

export class Copies {
  readonly extension: Extension;

  constructor(
    private readonly state: State,
    private readonly lines: Lines,
    private readonly stages: readonly number[],
    private readonly tell: (text: string) => void,
    private readonly root: HTMLElement,
  ) {
    this.extension = [
      EditorView.domEventHandlers({
        copy: (event, view) => {
          const { from, to, empty } = view.state.selection.main;
          const { number: first } = view.state.doc.lineAt(from);
          const { number: last } = view.state.doc.lineAt(to);
          // A selection within a line is copied verbatim.
          if (empty || first === last || !event.clipboardData) return false;
          event.clipboardData.setData("text/plain", this.textOf(first - 1, last - 1));
          event.preventDefault();
          this.tell("copied as JAX text");
          return true;
        },
      }),
      keymap.of([{ key: "Mod-c", run: (view) => view.state.selection.main.empty && this.copySelected() }]),
    ];
  }

  /** Copies everything the pane shows. */
  copyAll(): void {
    this.copy(this.whole, this.lines.ofRow.size);
  }

  /** Copies the selected equations. */
  private copySelected(): boolean {
    const rows = [...this.state.selection.rows].filter((row) => this.lines.ofRow.has(row));
    if (rows.length === 0) return false;
    this.copy(equationsText(this.state.model, rows), rows.length);
    return true;
  }

  private get whole(): string {
    return this.stages.map((i) => jaxprText(this.state.model, i)).join("\n\n");
  }

  private copy(text: string, n: number): void {
    const said = `copied ${plural(n, "equation")} as JAX text`;
    void copyText(text, this.root, (how) => this.tell(how === "copied" ? said : how));
  }

  /** Lines as JAX prints them: their equations, or the whole program if they cover it. */
  private textOf(from: number, to: number): string {
    const { all } = this.lines;
    if (from === 0 && to === all.length - 1) return this.whole;
    const rows: number[] = [];
    for (let i = from; i <= to; i++) {
      const { kind, row, foldTo } = all[i]!;
      if (kind !== "equation" || this.lines.isHidden(i)) continue;
      rows.push(row);
      // The equation's text includes its nested programs.
      i = Math.max(i, foldTo);
    }
    if (rows.length > 0) return equationsText(this.state.model, rows);
    const lines = all.slice(from, to + 1);
    return lines.map(({ text }) => text).join("\n");
  }
}
