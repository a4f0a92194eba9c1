/** The user's source, with a gutter of the bytes that each line makes the gradient keep. */

import { type Change, litLines, pointedPlaces, type State, selectedPlaces } from "../state/state";
import { h } from "../ui/dom";
import { formatBytes } from "../ui/format";
import type { BranchPoint } from "../wire/schema";
import { SourceView } from "./sourceview";

export class SourcePane {
  readonly element: HTMLElement;
  private readonly source: SourceView;

  constructor(private readonly state: State) {
    const { view } = state.model;
    this.source = new SourceView({
      id: "source",
      files: view.files,
      about: "bytes saved per line",
      none: "No source of yours: the equations come from a library, or the source was left out.",
      line: (file, line) => this.line(file, line),
      choose: (file, line) => state.selectLine(file, line),
    });
    this.element = this.source.element;
    if (view.stages.some((s) => s.is_path))
      this.source.scroller.prepend(
        h(
          "p",
          { class: "jv-banner", "data-testid": "path-banner" },
          "One path: Python branched on values, and this program holds for the branch it took at each mark.",
        ),
      );
  }

  update(change: Change): void {
    if (change === "selection") {
      const lit = litLines(this.state);
      this.source.light((key) => lit.get(key) ?? "", ["is-selected"]);
    } else if (change !== "hover" && change !== "variable") return;
    const expressions = {
      "jv-chosen": selectedPlaces(this.state),
      "jv-aimed": pointedPlaces(this.state),
    };
    const { aimed } = this.state;
    this.source.mark(expressions, change === "selection" ? "jv-chosen" : "");
    this.source.point(aimed && `${aimed.file}:${aimed.line}`);
  }

  private line(file: number, line: number) {
    const { model } = this.state;
    const bytes = model.bytesOfLine.get(file)?.get(line) ?? 0;
    const share =
      bytes && model.maxLineBytes ? Math.max(4, Math.round((100 * bytes) / model.maxLineBytes)) : 0;
    const marks = model.view.branches.filter((b) => b.file === file && b.line === line);
    const gutter = h(
      "span",
      { class: "jv-bytes" },
      h("span", { class: "jv-bar", style: `width:${share}%` }),
      h("span", { class: "jv-bytes-text" }, bytes ? formatBytes(bytes) : ""),
    );
    const title = bytes ? `${formatBytes(bytes)} saved by this line` : "";
    return { gutter, title, behind: branchMarks(marks) };
  }
}

/** What Python was told each time it looked at a value on a line: `was True`, `was True ×3`. */
function branchMarks(branches: BranchPoint[]): HTMLElement[] {
  const times = new Map<string, number>();
  for (const { value } of branches) times.set(value, (times.get(value) ?? 0) + 1);
  const title = `Python asked for a ${branches[0]?.kind} here, and this program is what followed`;
  return [...times].map(([value, n]) =>
    h("span", { class: "jv-mark", title, "data-testid": "branch" }, `was ${value}${n > 1 ? ` ×${n}` : ""}`),
  );
}
