/** The user's source, with a gutter of the bytes that each line makes the gradient keep. */

import { type Change, litLines, type State } from "../state/state";
import { h, onRowKey, reveal } from "../ui/dom";
import { formatBytes } from "../ui/format";
import type { BranchPoint } from "../wire/schema";
import { coloured } from "./python";

export class SourcePane {
  readonly element: HTMLElement;
  private readonly scroller = h("div", { class: "jv-scroll jv-source-body" });
  private readonly lines = new Map<string, HTMLElement>();

  constructor(private readonly state: State) {
    const { view } = state.model;
    const files = view.files.map((file, i) => ({ file, i })).filter(({ file }) => file.excerpts.length > 0);
    const paths = view.stages.some((s) => s.is_path);
    const body = this.scroller;
    if (paths)
      body.append(
        h(
          "p",
          { class: "jv-banner", "data-testid": "path-banner" },
          "One path: Python looked at values, and this program holds for the side it took at each mark.",
        ),
      );
    for (const { file, i } of files) {
      if (files.length > 1) body.append(h("div", { class: "jv-file", title: file.path }, file.label));
      file.excerpts.forEach((excerpt, n) => {
        if (n > 0) body.append(h("div", { class: "jv-gap", "aria-hidden": true }, "⋯"));
        body.append(...excerpt.lines.map((text, k) => this.line(i, excerpt.first + k, text)));
      });
    }
    if (files.length === 0)
      body.append(
        h(
          "p",
          { class: "jv-message" },
          "No source of yours: the equations come from a library, or the source was left out.",
        ),
      );
    const label = files.length === 1 ? files[0]!.file.label : "source";
    this.element = h(
      "section",
      { class: "jv-pane jv-source", "aria-label": "source", "data-testid": "source" },
      h(
        "div",
        { class: "jv-pane-head" },
        h("strong", { title: files.length === 1 ? files[0]!.file.path : "" }, label),
        h("span", { class: "jv-dim jv-cut" }, "bytes saved per line"),
      ),
      body,
    );
  }

  update(change: Change): void {
    if (change !== "selection") return;
    const lit = litLines(this.state);
    let first: HTMLElement | null = null;
    for (const [key, element] of this.lines) {
      const how = lit.get(key) ?? "";
      element.className = `jv-src ${how}`;
      if (how === "is-selected") first ??= element;
    }
    if (first) reveal(this.scroller, first);
  }

  private line(file: number, line: number, text: string): HTMLElement {
    const { model } = this.state;
    const bytes = model.bytesOfLine.get(file)?.get(line) ?? 0;
    const share =
      bytes && model.maxLineBytes ? Math.max(4, Math.round((100 * bytes) / model.maxLineBytes)) : 0;
    const marks = model.view.branches.filter((b) => b.file === file && b.line === line);
    const select = () => this.state.selectLine(file, line);
    const element = h(
      "div",
      {
        class: "jv-src",
        role: "button",
        tabindex: this.lines.size === 0 ? 0 : -1,
        "data-line": line,
        "data-testid": "source-line",
        title: bytes ? `${formatBytes(bytes)} saved by this line` : "",
        onclick: select,
        onkeydown: (event: KeyboardEvent) => onRowKey(event, this.scroller, ".jv-src", select),
      },
      h(
        "span",
        { class: "jv-bytes" },
        h("span", { class: "jv-bar", style: `width:${share}%` }),
        h("span", { class: "jv-bytes-text" }, bytes ? formatBytes(bytes) : ""),
      ),
      h("span", { class: "jv-number" }, String(line)),
      h("code", {}, ...coloured(text || " ")),
      ...branchMarks(marks),
    );
    this.lines.set(`${file}:${line}`, element);
    return element;
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
