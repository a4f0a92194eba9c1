/** The user's source, with the line that runs next, the calls that led to it, and a gutter for breakpoints. */

import { coloured } from "../code/python";
import { h, reveal } from "../ui/dom";
import type { StepperState } from "./view";

export interface SourceActions {
  toggleBreak(file: number, line: number): void;
  /** To light the equations of a line. */
  select(file: number, line: number): void;
}

interface Line {
  element: HTMLElement;
  mark: HTMLElement;
  place: HTMLElement;
}

export class Source {
  readonly element: HTMLElement;
  private readonly scroller: HTMLElement;
  private readonly lines = new Map<string, Line>();
  private cursor = "";

  constructor(
    private readonly state: StepperState,
    private readonly actions: SourceActions,
  ) {
    const files = state.programs.files
      .map((file, i) => ({ file, i }))
      .filter(({ file }) => file.excerpts.length > 0);
    this.scroller = h("div", {
      class: "jv-scroll jv-source-body",
      role: "listbox",
      tabindex: 0,
      "aria-label": "lines of source",
      onkeydown: (event: KeyboardEvent) => this.onKey(event),
    });
    for (const { file, i } of files) {
      const group = h("div", { role: "group", "aria-label": file.label });
      if (files.length > 1)
        group.append(h("div", { class: "jv-file", title: file.path, "aria-hidden": "true" }, file.label));
      const stops = new Set(file.stops);
      file.excerpts.forEach((excerpt, n) => {
        if (n > 0) group.append(h("div", { class: "jv-gap", "aria-hidden": "true" }, "⋯"));
        excerpt.lines.forEach((text, k) => {
          const line = excerpt.first + k;
          group.append(this.line(i, line, text, stops.has(line)));
        });
      });
      this.scroller.append(group);
    }
    if (files.length === 0)
      this.scroller.replaceChildren(
        h("p", { class: "jv-message" }, "No source of yours: the equations come from a library."),
      );
    this.element = h(
      "section",
      { class: "jv-pane jv-step-source", "aria-label": "source", "data-testid": "step-source" },
      h(
        "div",
        { class: "jv-pane-head" },
        h(
          "strong",
          { title: files.length === 1 ? files[0]!.file.path : "" },
          files.length === 1 ? files[0]!.file.label : "source",
        ),
        h("span", { class: "jv-dim jv-cut" }, "click beside a line for a breakpoint"),
      ),
      this.scroller,
    );
    if (files.length === 0) this.scroller.removeAttribute("role");
  }

  update(follow = true): void {
    const { stop, state } = { stop: this.state.stop, state: this.state };
    const callers = new Map(stop.at.slice(1).map(([file, line, name]) => [`${file}:${line}`, name]));
    const next = stop.at[0] ? `${stop.at[0][0]}:${stop.at[0][1]}` : "";
    const ran = stop.ranAt[0] ? `${stop.ranAt[0][0]}:${stop.ranAt[0][1]}` : "";
    const row = state.selected >= 0 ? state.program.rows[state.selected] : undefined;
    const selected = row?.a ? `${row.a[0]}:${row.a[1]}` : state.line;
    const broken = new Set(stop.breakpoints.flatMap((b) => (b.line ? [`${b.line[0]}:${b.line[1]}`] : [])));
    for (const [key, { element, mark, place }] of this.lines) {
      const caller = callers.get(key);
      const how = key === next ? "is-next" : key === ran ? "is-ran" : caller !== undefined ? "is-caller" : "";
      element.className = `jv-src ${how}${key === selected ? " is-lit" : ""}${key === this.cursor ? " is-cursor" : ""}`;
      element.setAttribute("aria-selected", String(key === selected));
      if (key === next) element.setAttribute("aria-current", "step");
      else element.removeAttribute("aria-current");
      mark.textContent = key === next ? "▶" : key === ran ? "✓" : caller !== undefined ? "▷" : "";
      place.classList.toggle("is-set", broken.has(key));
    }
    const target = this.lines.get(row || state.line ? selected : next || ran);
    if (follow && target) reveal(this.scroller, target.element);
  }

  private line(file: number, line: number, text: string, canStop: boolean): HTMLElement {
    const place = h("span", {
      class: `jv-break-place${canStop ? "" : " is-none"}`,
      ...(canStop ? { title: `Stop at line ${line} (P)`, "data-testid": "line-gutter" } : {}),
    });
    const mark = h("span", { class: "jv-eq-mark" });
    const key = `${file}:${line}`;
    const element = h(
      "div",
      {
        id: `jv-src-${key.replace(":", "-")}`,
        class: "jv-src",
        role: "option",
        "aria-selected": "false",
        "data-line": line,
        "data-testid": "step-line",
        onclick: (event: MouseEvent) => {
          this.cursor = key;
          const isGutter = (event.target as HTMLElement).closest(".jv-eq-gutter, .jv-number") !== null;
          if (isGutter && canStop) this.actions.toggleBreak(file, line);
          else this.actions.select(file, line);
        },
      },
      h("span", { class: "jv-eq-gutter" }, place, mark),
      h("span", { class: "jv-number" }, String(line)),
      h("code", {}, ...coloured(text || " ")),
    );
    if (canStop) element.dataset["stops"] = "";
    this.lines.set(key, { element, mark, place });
    return element;
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = [...this.lines.keys()];
    if (keys.length === 0) return;
    const { at } = this.state.stop;
    const start = this.cursor || (at[0] ? `${at[0][0]}:${at[0][1]}` : keys[0]!);
    const from = Math.max(0, keys.indexOf(start));
    const to = { ArrowDown: from + 1, ArrowUp: from - 1, Home: 0, End: keys.length - 1 }[event.key];
    const place = (key: string): [number, number] => key.split(":").map(Number) as [number, number];
    if (to !== undefined) {
      this.cursor = keys[Math.min(keys.length - 1, Math.max(0, to))]!;
      this.update(false);
      const { element } = this.lines.get(this.cursor)!;
      this.scroller.setAttribute("aria-activedescendant", element.id);
      reveal(this.scroller, element);
    } else if (event.key === "Enter") this.actions.select(...place(keys[from]!));
    else if (event.key.toLowerCase() === "p") {
      if (this.lines.get(keys[from]!)!.element.dataset["stops"] !== undefined)
        this.actions.toggleBreak(...place(keys[from]!));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
