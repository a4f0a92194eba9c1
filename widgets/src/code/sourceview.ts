/** The user's source, a line below the other, each with a gutter. */

import { push } from "../model/groups";
import type { Span } from "../model/records";
import { h, onRowKey, reveal, revealAside, section } from "../ui/dom";
import type { Excerpt } from "../wire/schema";
import { coloured } from "./python";

interface File {
  label: string;
  path: string;
  excerpts: Excerpt[];
}

/** A part of a line, and the class that it gets. */
interface Part {
  name: string;
  from: number;
  to: number;
}

export interface SourceOptions {
  id: string;
  files: readonly File[];
  /** What stands beside the title. */
  about: string;
  /** What is said where there are no lines. */
  none: string;
  /** What stands before a line and behind it. */
  line(file: number, line: number): { gutter: HTMLElement; title?: string; behind?: HTMLElement[] };
  /** A click on a part of a line, or Enter. */
  choose(file: number, line: number, part: Element): void;
  /** What other keys do; says whether it does anything. */
  press?(event: KeyboardEvent, file: number, line: number): boolean;
}

export class SourceView {
  readonly element: HTMLElement;
  readonly scroller = h("div", { class: "jv-scroll jv-source-body" });
  /** By `file:line`. */
  private readonly lines = new Map<string, HTMLElement>();
  /** What stands in each line, and the element that has it. */
  private readonly texts = new Map<string, { text: string; code: HTMLElement }>();
  private aimed: HTMLElement | undefined;
  /** The lines with a part that is marked. */
  private marked = new Map<string, Part[]>();

  constructor(private readonly options: SourceOptions) {
    const { id, about, none } = options;
    const files = options.files
      .map((file, i) => ({ file, i }))
      .filter(({ file }) => file.excerpts.length > 0);
    const isOne = files.length === 1;
    for (const { file, i } of files) {
      if (!isOne) this.scroller.append(h("div", { class: "jv-file", title: file.path }, file.label));
      file.excerpts.forEach(({ first, lines }, n) => {
        if (n > 0) this.scroller.append(h("div", { class: "jv-gap", "aria-hidden": true }, "⋯"));
        this.scroller.append(...lines.map((text, k) => this.line(i, first + k, text)));
      });
    }
    if (files.length === 0) this.scroller.append(h("p", { class: "jv-message" }, none));
    this.element = section(
      { class: "jv-pane jv-source", "aria-label": "source", "data-testid": id },
      [
        h("strong", { title: isOne ? files[0]!.file.path : "" }, isOne ? files[0]!.file.label : "source"),
        h("span", { class: "jv-dim jv-cut" }, about),
      ],
      this.scroller,
    );
  }

  /** Gives each line the classes that are told of it, and brings the first with one of some into sight: of the first, failing that the second. */
  light(how: (key: string) => string, inSight: readonly string[]): void {
    for (const [key, element] of this.lines) {
      element.className = `jv-src ${how(key)}`;
      element.ariaCurrent = element.classList.contains("is-next") ? "step" : null;
    }
    for (const name of inSight) {
      const first = this.scroller.querySelector<HTMLElement>(`.jv-src.${name}`);
      if (!first) continue;
      reveal(this.scroller, first);
      return;
    }
  }

  /** Marks the line that is pointed at from elsewhere, which is brought into sight. */
  point(key: string | null): void {
    const line = key === null ? undefined : this.lines.get(key);
    if (line === this.aimed) return;
    this.aimed?.classList.remove("is-aimed");
    this.aimed = line;
    line?.classList.add("is-aimed");
    if (line) reveal(this.scroller, line);
  }

  /** Marks expressions, by the class that each gets, and no others; and scrolls to the side for the first of a class. */
  mark(expressions: Record<string, readonly Span[]>, inSight = ""): void {
    const parts = new Map<string, Part[]>();
    for (const [name, spans] of Object.entries(expressions))
      for (const { file, startLine, start, endLine, end } of spans)
        for (let line = Math.max(1, startLine); line <= endLine; line++) {
          const key = `${file}:${line}`;
          const text = this.texts.get(key)?.text;
          if (text === undefined) continue;
          const from = line === startLine ? start : text.length - text.trimStart().length;
          push(parts, key, { name, from, to: line === endLine ? end : text.length });
        }
    for (const key of new Set([...this.marked.keys(), ...parts.keys()])) {
      const { text, code } = this.texts.get(key)!;
      code.replaceChildren(...withMarks(text, parts.get(key) ?? []));
    }
    this.marked = parts;
    const first = inSight && this.scroller.querySelector(`mark.${inSight}`);
    if (first) revealAside(this.scroller, first);
  }

  private line(file: number, line: number, text: string): HTMLElement {
    const { gutter, title = "", behind = [] } = this.options.line(file, line);
    const choose = (part: Element) => this.options.choose(file, line, part);
    const code = h("code", {}, ...coloured(text || " "));
    const element = h(
      "div",
      {
        class: "jv-src",
        role: "button",
        tabindex: this.lines.size === 0 ? 0 : -1,
        "data-line": line,
        "data-testid": `${this.options.id}-line`,
        title,
        onclick: (event: MouseEvent) => choose(event.target as Element),
        onkeydown: (event: KeyboardEvent) => {
          if (this.options.press?.(event, file, line)) {
            event.preventDefault();
            event.stopPropagation();
          } else onRowKey(event, this.scroller, ".jv-src", () => choose(element));
        },
      },
      gutter,
      h("span", { class: "jv-number" }, String(line)),
      code,
      ...behind,
    );
    this.lines.set(`${file}:${line}`, element);
    this.texts.set(`${file}:${line}`, { text: text || " ", code });
    return element;
  }
}

/** A line of Python with some of its parts marked, which may overlap. */
function withMarks(text: string, parts: readonly Part[]): (Node | string)[] {
  const ends = new Set([0, text.length, ...parts.flatMap(({ from, to }) => [from, to])]);
  const cuts = [...ends].sort((a, b) => a - b);
  return cuts.slice(1).flatMap((to, i) => {
    const from = cuts[i]!;
    const names = new Set(parts.filter((p) => p.from <= from && to <= p.to).map((p) => p.name));
    const shown = coloured(text.slice(from, to));
    return names.size > 0 ? [h("mark", { class: [...names].join(" ") }, ...shown)] : shown;
  });
}
