/** The user's source, with the line that runs next, the calls that led to it, and a gutter for breakpoints. */

import { SourceView } from "../code/sourceview";
import type { Span } from "../model/records";
import { h } from "../ui/dom";
import type { Row } from "../wire/stepper.generated";
import type { StepperState } from "./view";

const GUTTER = ".jv-eq-gutter, .jv-number";

export class Source {
  readonly element: HTMLElement;
  private readonly source: SourceView;
  /** By `file:line`: where a breakpoint is set, and how the run stands to the line. */
  private readonly gutters = new Map<string, { place: HTMLElement; mark: HTMLElement }>();

  constructor(
    private readonly state: StepperState,
    private readonly toggleBreak: (file: number, line: number) => void,
  ) {
    const stops = state.programs.files.map((file) => new Set(file.stops));
    this.source = new SourceView({
      id: "step-source",
      files: state.programs.files,
      about: "click beside a line for a breakpoint",
      none: "No source of yours: the equations come from a library.",
      line: (file, line) => ({ gutter: this.gutter(file, line, stops[file]!.has(line)) }),
      choose: (file, line, part) => {
        if (part.closest(GUTTER) && stops[file]!.has(line)) toggleBreak(file, line);
        else state.selectLine(file, line);
      },
      press: (event, file, line) => {
        const isAsked = event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey && !event.altKey;
        if (isAsked && stops[file]!.has(line)) this.toggleBreak(file, line);
        return isAsked;
      },
    });
    this.element = this.source.element;
  }

  update(): void {
    const { stop, selectedLine, program, selected, next: following } = this.state;
    const keyOf = ([file, line]: readonly [number, number, ...unknown[]]) => `${file}:${line}`;
    const [next = "", ...callers] = stop.at.map(keyOf);
    const [ran = ""] = stop.ranAt.map(keyOf);
    const broken = new Set(stop.breakpoints.flatMap((b) => (b.line ? [keyOf(b.line)] : [])));
    const standing = (key: string) =>
      key === next ? "is-next" : key === ran ? "is-ran" : callers.includes(key) ? "is-caller" : "";
    const marks: Record<string, string> = { "is-next": "▶", "is-ran": "✓", "is-caller": "▷" };
    for (const [key, { place, mark }] of this.gutters) {
      mark.textContent = marks[standing(key)] ?? "";
      place.classList.toggle("is-set", broken.has(key));
    }
    this.source.light(
      (key) => `${standing(key)}${key === selectedLine ? " is-lit" : ""}`,
      ["is-lit", "is-next", "is-ran"],
    );
    const chosen = spansOf(program.rows[selected]);
    const expressions = { "jv-chosen": chosen, "jv-following": spansOf(following) };
    this.source.mark(expressions);
  }

  private gutter(file: number, line: number, canStop: boolean): HTMLElement {
    const place = h("span", {
      class: `jv-break-place${canStop ? "" : " is-none"}`,
      ...(canStop ? { title: `Stop at line ${line} (P)`, "data-testid": "line-gutter" } : {}),
    });
    const mark = h("span", { class: "jv-eq-mark" });
    this.gutters.set(`${file}:${line}`, { place, mark });
    return h("span", { class: "jv-eq-gutter" }, place, mark);
  }
}

function spansOf(row: Row | undefined): Span[] {
  if (!row?.a) return [];
  const [file, , startLine, start, endLine, end] = row.a;
  return [{ file, startLine, start, endLine, end }];
}
