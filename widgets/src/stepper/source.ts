/** The user's source, with the next line, the calls that lead to it, a breakpoint gutter, and the norms of what has run. */

import { SourceView } from "../code/sourceview";
import type { Span } from "../model/records";
import { h } from "../ui/dom";
import type { LineNorm, StepRow } from "../wire/stepper.generated";
import { number } from "./values";
import type { StepperState } from "./view";

/** The pass in which a NaN first occurred. */
const BORN: Record<string, string> = {
  value: "forward",
  cotangent: "backward",
  both: "forward and backward",
};

const GUTTER = ".jv-eq-gutter, .jv-number";

export class Source {
  readonly element: HTMLElement;
  private readonly source: SourceView;
  /** By `file:line`: the breakpoint, and the state of the run at the line. */
  private readonly gutters = new Map<string, { place: HTMLElement; mark: HTMLElement }>();
  /** The norms of a line, and a mark where a NaN first occurred. */
  private readonly norms = new Map<string, Record<"amounts" | "value" | "cotangent" | "born", HTMLElement>>();

  constructor(
    private readonly state: StepperState,
    private readonly toggleBreak: (file: number, line: number) => void,
  ) {
    const stops = state.programs.files.map((file) => new Set(file.stops));
    this.source = new SourceView({
      id: "step-source",
      files: state.programs.files,
      about: "click beside a line for a breakpoint",
      heads: heads(),
      none: "No source of your own: the equations come from a library.",
      line: (file, line) => this.line(file, line, stops[file]!.has(line)),
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
    this.updateNorms();
  }

  private updateNorms(): void {
    const { lines } = this.state.stop;
    const of = new Map(lines.map((norm) => [`${norm[0]}:${norm[1]}`, norm]));
    for (const [key, { amounts, value, cotangent, born }] of this.norms) {
      const norm = of.get(key);
      const [, , name = "", size = null, wrong = "", ofName = "", ctSize = null, ctWrong = "", first = ""] =
        norm ?? [];
      fill(value, size, wrong, `norm of ${name}`);
      fill(cotangent, ctSize, ctWrong, `norm of the cotangent of ${ofName}`);
      born.hidden = first === "";
      born.textContent = `NaN born ${BORN[first] ?? ""}`;
      amounts.classList.toggle("is-none", value.textContent + cotangent.textContent === "");
      this.source.describe(key, norm ? said(norm) : "");
    }
    this.element.classList.toggle(
      "has-norms",
      lines.some(([, , , size]) => size !== null),
    );
    this.element.classList.toggle(
      "has-cotangents",
      lines.some(([, , , , , , size]) => size !== null),
    );
  }

  private line(file: number, line: number, canStop: boolean) {
    const cell = (what: string, word = what) =>
      h("span", { class: `jv-amount jv-fixed is-${what}`, "data-word": word });
    const norms = { value: cell("value", "norm"), cotangent: cell("cotangent") };
    const born = h("span.jv-tag.jv-mark.is-bad", { hidden: true, "data-testid": "born" });
    const amounts = h("span.jv-amounts.jv-flex.jv-fixed.is-none", norms.value, norms.cotangent);
    this.norms.set(`${file}:${line}`, { ...norms, amounts, born });
    const gutter = h("span.jv-step-gutter.jv-fixed.jv-baseline", this.gutter(file, line, canStop), amounts);
    return { gutter, behind: [born] };
  }

  private gutter(file: number, line: number, canStop: boolean): HTMLElement {
    const place = h("span", {
      class: `jv-break-place jv-fixed${canStop ? "" : " is-none"}`,
      ...(canStop ? { title: `Stop at line ${line} (P)`, "data-testid": "line-gutter" } : {}),
    });
    const mark = h("span.jv-eq-mark.jv-dim");
    this.gutters.set(`${file}:${line}`, { place, mark });
    return h("span.jv-eq-gutter.jv-fixed.jv-inline", place, mark);
  }
}

/** The column headings. */
function heads(): HTMLElement {
  const head = (what: string) =>
    h("span", { class: `jv-amount jv-fixed is-${what}` }, "norm of", h("strong", what));
  return h(
    "div.jv-amount-heads.jv-ruled",
    { "data-testid": "norm-heads" },
    h("span.jv-eq-gutter.jv-fixed.jv-inline"),
    h("span.jv-amounts.jv-flex.jv-fixed", head("value"), head("cotangent")),
  );
}

function fill(cell: HTMLElement, size: number | null, wrong: string, what: string): void {
  const text = wrong || (size === null ? "" : number(size));
  cell.textContent = text;
  cell.title = text && `${what}: ${text}`;
  cell.classList.toggle("is-bad", wrong !== "");
}

/** `norm of h 10.1; norm of the cotangent of h 0.14; a NaN is born here backward`. */
function said([, , name, value, wrong, of, cotangent, ctWrong, born]: LineNorm): string {
  const parts = [
    (value !== null || wrong) && `norm of ${name} ${wrong || number(value)}`,
    (cotangent !== null || ctWrong) && `norm of the cotangent of ${of} ${ctWrong || number(cotangent)}`,
    born !== "" && `a NaN is born here ${BORN[born]}`,
  ];
  return parts.filter(Boolean).join("; ");
}

function spansOf(row: StepRow | undefined): Span[] {
  if (!row?.a) return [];
  const [file, , startLine, start, endLine, end] = row.a;
  return [{ file, startLine, start, endLine, end }];
}
