/** The user's source, line by line, with a gutter. */

import { push } from "../model/groups";
import type { Span } from "../model/records";
import { h, onResize, onRowKey, reveal, section } from "../ui/dom";
import type { Excerpt } from "../wire/schema";
import { coloured } from "./python";

interface File {
  label: string;
  path: string;
  excerpts: Excerpt[];
}

/** A range of a line, with its class. */
interface Part {
  name: string;
  from: number;
  to: number;
}

export interface SourceOptions {
  id: string;
  files: readonly File[];
  /** Shown next to the title, and above the lines. */
  about: HTMLElement | string;
  heads?: HTMLElement | undefined;
  /** Shown if there are no lines. */
  none: string;
  /** Shown before and after a line. */
  line(file: number, line: number): { gutter: HTMLElement; title?: string; behind?: HTMLElement[] };
  /** Renders the expanded content of a line; null if it has none. */
  under?: ((file: number, line: number) => (() => HTMLElement) | null) | undefined;
  /** A click on part of a line, or Enter. */
  choose(file: number, line: number, part: Element): void;
  /** Handles any other key; returns whether it did. */
  press?(event: KeyboardEvent, file: number, line: number): boolean;
}

/** The elements that the arrow keys move through. */
const ROWS = ".jv-src, .jv-under-row";

export class SourceView {
  readonly element: HTMLElement;
  readonly scroller = h("div.jv-scroll.jv-source-body.jv-mono");
  /** By `file:line`. */
  private readonly lines = new Map<string, HTMLElement>();
  /** The text of each line and its element. */
  private readonly texts = new Map<string, { text: string; code: HTMLElement }>();
  /** The expanded content of lines, by `file:line`. */
  private readonly unfolded = new Map<string, HTMLElement>();
  private aimed: HTMLElement | undefined;
  /** The line that stays in sight when the pane changes its size, and lines wrap differently, until the user scrolls. */
  private inSight: HTMLElement | undefined;
  /** The lines with marked ranges. */
  private marked = new Map<string, Part[]>();

  constructor(private readonly options: SourceOptions) {
    const { id, about, none } = options;
    const files = options.files
      .map((file, i) => ({ file, i }))
      .filter(({ file }) => file.excerpts.length > 0);
    const isOne = files.length === 1;
    const { heads } = options;
    onResize(this.scroller, () => this.inSight && reveal(this.scroller, this.inSight, this.covered));
    for (const name of ["wheel", "touchmove", "pointerdown", "keydown"])
      this.scroller.addEventListener(name, () => (this.inSight = undefined), { passive: true });
    if (heads && files.length > 0) {
      this.scroller.append(heads);
      onResize(heads, () => this.scroller.style.setProperty("--jv-heads", `${heads.offsetHeight}px`));
    }
    for (const { file, i } of files) {
      if (!isOne) this.scroller.append(h("div.jv-file", { title: file.path }, file.label));
      file.excerpts.forEach(({ first, lines }, n) => {
        if (n > 0) this.scroller.append(h("div.jv-gap.jv-dim", { "aria-hidden": true }, "⋯"));
        this.scroller.append(...lines.map((text, k) => this.line(i, first + k, text)));
      });
    }
    if (files.length === 0) this.scroller.append(h("p.jv-message.jv-dim", none));
    this.element = section(
      { class: "jv-pane jv-column jv-source", "aria-label": "source", "data-testid": id },
      [
        h("strong", { title: isOne ? files[0]!.file.path : "" }, isOne ? files[0]!.file.label : "source"),
        typeof about === "string" ? h("span.jv-dim.jv-cut", about) : about,
      ],
      this.scroller,
    );
  }

  /** Sets the classes of each line, and scrolls to the first line with one of the classes `inSight`, in order of preference. */
  light(how: (key: string) => string, inSight: readonly string[]): void {
    for (const [key, element] of this.lines) {
      element.className = `jv-src ${how(key)}${this.unfolded.has(key) ? " is-unfolded" : ""}`;
      element.ariaCurrent = element.classList.contains("is-next") ? "step" : null;
    }
    for (const name of inSight) {
      const first = this.scroller.querySelector<HTMLElement>(`.jv-src.${name}`);
      if (!first) continue;
      this.inSight = first;
      reveal(this.scroller, first, this.covered);
      return;
    }
  }

  /** The height of the headings and of the name of the file, which stay at the top. */
  private get covered(): number {
    const name = this.scroller.querySelector<HTMLElement>(".jv-file");
    return (this.options.heads?.offsetHeight ?? 0) + (name?.offsetHeight ?? 0);
  }

  /** Scrolls to a line if it is out of sight, so that there is something to see before and after it. */
  show(key: string): void {
    const line = this.lines.get(key);
    if (line === undefined) return;
    const [{ top, bottom, height }, at] = [
      this.scroller.getBoundingClientRect(),
      line.getBoundingClientRect(),
    ];
    this.inSight = line;
    if (at.top < top || at.bottom > bottom) this.scroller.scrollTop += at.top - top - height / 3;
    // Below the headings, and where a change of the pane's size leaves it.
    reveal(this.scroller, line, this.covered);
  }

  /** Highlights the line that is hovered elsewhere and scrolls to it. */
  point(key: string | null): void {
    const line = key === null ? undefined : this.lines.get(key);
    if (line === this.aimed) return;
    this.aimed?.classList.remove("is-aimed");
    this.aimed = line;
    line?.classList.add("is-aimed");
    if (line) reveal(this.scroller, line, this.covered);
  }

  /** Expands or collapses a line; returns whether it has any content. */
  unfold(file: number, line: number, isOpen = !this.unfolded.has(`${file}:${line}`)): boolean {
    const key = `${file}:${line}`;
    const make = this.options.under?.(file, line);
    const element = this.lines.get(key);
    if (!make || !element) return false;
    this.unfolded.get(key)?.remove();
    this.unfolded.delete(key);
    if (isOpen) {
      const under = make();
      this.unfolded.set(key, under);
      element.after(under);
      this.showUnder(element, under);
    }
    element.classList.toggle("is-unfolded", isOpen);
    element.ariaExpanded = String(isOpen);
    return true;
  }

  /** Scrolls as far as needed to show the content of a line, but keeps the line visible. */
  private showUnder(line: HTMLElement, under: HTMLElement): void {
    const { top, bottom } = this.scroller.getBoundingClientRect();
    const below = under.getBoundingClientRect().bottom - bottom;
    const above = line.getBoundingClientRect().top - top - this.covered;
    if (below > 0) this.scroller.scrollTop += Math.max(0, Math.min(below, above));
  }

  /** Adds a mark behind a line. */
  append(key: string, mark: HTMLElement): void {
    this.lines.get(key)?.append(mark);
  }

  /** Sets the tooltip of a line. */
  describe(key: string, title: string): void {
    const line = this.lines.get(key);
    if (line) line.title = title;
  }

  /** Marks the given expressions, by class, and clears all other marks. */
  mark(expressions: Record<string, readonly Span[]>): void {
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
  }

  /** Keys in an expanded row: as for lines, except that Left returns to the line and collapses it. */
  onUnderKey(event: KeyboardEvent, file: number, line: number, choose: () => void): void {
    if (event.key === "ArrowLeft") {
      event.preventDefault();
      event.stopPropagation();
      const element = this.lines.get(`${file}:${line}`)!;
      this.unfold(file, line, false);
      for (const row of this.scroller.querySelectorAll<HTMLElement>(ROWS)) row.tabIndex = -1;
      element.tabIndex = 0;
      element.focus();
    } else onRowKey(event, this.scroller, ROWS, choose);
  }

  /** Left and Right collapse and expand a line. */
  private folds(event: KeyboardEvent, file: number, line: number): boolean {
    if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return false;
    const isOpen = event.key === "ArrowRight";
    return (isOpen || event.key === "ArrowLeft") && this.unfold(file, line, isOpen);
  }

  private line(file: number, line: number, text: string): HTMLElement {
    const { gutter, title = "", behind = [] } = this.options.line(file, line);
    const choose = (part: Element) => this.options.choose(file, line, part);
    const code = h("code", ...coloured(text || " "));
    const hasUnder = this.options.under?.(file, line) != null;
    const element = h(
      "div.jv-src",
      {
        role: "button",
        tabindex: this.lines.size === 0 ? 0 : -1,
        style: `--indent:${Math.min(MOST_INDENTED, text.length - text.trimStart().length) + 2}ch`,
        "data-line": line,
        "data-testid": `${this.options.id}-line`,
        "aria-expanded": hasUnder ? "false" : undefined,
        title,
        onclick: (event: MouseEvent) => choose(event.target as Element),
        onkeydown: (event: KeyboardEvent) => {
          if (this.options.press?.(event, file, line) || this.folds(event, file, line)) {
            event.preventDefault();
            event.stopPropagation();
          } else onRowKey(event, this.scroller, ROWS, () => choose(element));
        },
      },
      gutter,
      h("span.jv-number.jv-dim.jv-fixed", String(line)),
      this.options.under &&
        h(
          "span",
          { class: `jv-unfold jv-dim jv-fixed${hasUnder ? "" : " is-none"}`, "aria-hidden": true },
          hasUnder ? "▸" : "",
        ),
      code,
      ...behind,
    );
    this.lines.set(`${file}:${line}`, element);
    this.texts.set(`${file}:${line}`, { text: text || " ", code });
    return element;
  }
}

/** The largest hanging indent of a wrapped line, in characters. */
const MOST_INDENTED = 8;

/** A line of Python with marked ranges, which may overlap. */
function withMarks(text: string, parts: readonly Part[]): (Node | string)[] {
  const ends = new Set([0, text.length, ...parts.flatMap(({ from, to }) => [from, to])]);
  const cuts = [...ends].sort((a, b) => a - b);
  return cuts.slice(1).flatMap((to, i) => {
    const from = cuts[i]!;
    const names = new Set(parts.filter((p) => p.from <= from && to <= p.to).map((p) => p.name));
    const shown = coloured(text, from, to);
    return names.size > 0 ? [h("mark", { class: [...names].join(" ") }, ...shown)] : shown;
  });
}
