/** The program that the run is in, an equation a line, of which only those in sight are made: there may be many thousands. */

import { h, onResize } from "../ui/dom";
import type { Row, Variable } from "./schema";
import type { StepperState } from "./view";

export interface ListingActions {
  /** To look at a value of the program that is shown. */
  look(name: string): void;
  /** To run, or go back, to before an equation. */
  runTo(index: number): void;
  toggleBreak(index: number): void;
  /** To show a program that an equation holds. */
  open(index: number, body: string): void;
  selected(): void;
}

/** Lines above and below what is in sight that are made too. */
const MARGIN = 12;
const LONG_PARAMS = 28;
const MANY = 12;
const MOST_RESULTS = 3;

export class Listing {
  readonly element: HTMLElement;
  private readonly sizer = h("div", { class: "jv-eqs-all" });
  private readonly lines = h("div", { class: "jv-eqs-seen" });
  private readonly probe = h("div", { class: "jv-eq", "aria-hidden": "true" }, " ");
  private readonly unwatch: () => void;
  private height = 22;
  private drawn = "";
  private widest = 0;

  constructor(
    private readonly state: StepperState,
    private readonly actions: ListingActions,
  ) {
    this.sizer.append(this.lines);
    this.element = h(
      "div",
      {
        class: "jv-scroll jv-eqs",
        role: "listbox",
        tabindex: 0,
        "aria-label": "equations",
        "data-testid": "equations",
        onscroll: () => this.draw(),
        onkeydown: (event: KeyboardEvent) => this.onKey(event),
        onclick: (event: MouseEvent) => this.onClick(event),
      },
      this.probe,
      this.sizer,
    );
    this.unwatch = onResize(this.element, () => {
      this.height = this.probe.getBoundingClientRect().height || this.height;
      this.draw(true);
    });
  }

  destroy(): void {
    this.unwatch();
  }

  /** Shows the state, with what is current in sight. */
  update(follow = true): void {
    this.widest = 0;
    this.lines.style.minWidth = "";
    this.draw(true);
    if (!follow) return;
    const { selected, position } = this.state;
    this.reveal(selected >= 0 ? selected : position);
  }

  /** Brings an equation into sight, with some that come after it. */
  private reveal(index: number): void {
    const { scrollTop, clientHeight } = this.element;
    const top = (Math.max(0, index) + 1) * this.height;
    const margin = Math.min(4 * this.height, clientHeight / 4);
    if (index < 0) this.element.scrollTop = 0;
    else if (top < scrollTop + margin || top > scrollTop + clientHeight - margin - this.height)
      this.element.scrollTop = Math.max(0, top - clientHeight / 2);
    this.draw();
  }

  /** Lines there are: what goes in, the equations, what comes out. */
  private get count(): number {
    return this.state.program.rows.length + 2;
  }

  private draw(anew = false): void {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.height) - MARGIN);
    const last = Math.min(this.count, Math.ceil((scrollTop + (clientHeight || 400)) / this.height) + MARGIN);
    const key = `${first} ${last}`;
    if (!anew && key === this.drawn) return;
    this.drawn = key;
    this.sizer.style.height = `${this.count * this.height}px`;
    this.lines.style.transform = `translateY(${first * this.height}px)`;
    const made: HTMLElement[] = [];
    for (let line = first; line < last; line++) made.push(this.line(line));
    this.lines.replaceChildren(...made);
    // What was wide stays so, that scrolling down does not scroll to the left.
    this.widest = Math.max(this.widest, this.lines.scrollWidth);
    this.lines.style.minWidth = `${this.widest}px`;
    const { selected } = this.state;
    const active = this.lines.querySelector(`[data-index="${selected}"]`);
    if (active) this.element.setAttribute("aria-activedescendant", active.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  private line(line: number): HTMLElement {
    const { program, position, isHere } = this.state;
    const n = program.rows.length;
    if (line === 0)
      return h("div", { class: "jv-eq jv-eq-edge" }, this.gutter(-1), h("code", {}, ...this.inputs()));
    if (line > n) {
      const isEnd = position === n && isHere;
      const mark = this.gutter(-1, isEnd ? "▶" : "");
      const results = program.results.slice(0, MANY).flatMap((a, i) => [i > 0 ? ", " : " ", this.atom(a)]);
      const more = program.results.length > MANY ? ` … ${program.results.length}` : "";
      const code = h("code", {}, h("span", { class: "jv-keyword" }, "in"), ...results, more);
      return h(
        "div",
        { class: `jv-eq jv-eq-edge${isEnd ? " is-next" : ""}`, "data-testid": "program-end" },
        mark,
        code,
      );
    }
    return this.equation(line - 1, program.rows[line - 1]!);
  }

  private inputs(): (Node | string)[] {
    const { inputs } = this.state.program;
    const shown = inputs.slice(0, MANY).flatMap((v) => [" ", ...this.binder(v)]);
    const more = inputs.length > MANY ? [h("span", { class: "jv-dim" }, ` … ${inputs.length} inputs`)] : [];
    return [h("span", { class: "jv-keyword" }, "lambda"), ...shown, ...more];
  }

  private equation(index: number, row: Row): HTMLElement {
    const { state } = this;
    const progress = state.progress(index);
    const isBroken = state.breakAtRow(index) >= 0;
    const isLit = row.a !== undefined && `${row.a[0]}:${row.a[1]}` === state.line;
    const isSelected = index === state.selected;
    const mark = progress === "next" ? (state.isHere ? "▶" : "▷") : progress === "ran" ? "✓" : "";
    const classes = ["jv-eq", `is-${progress}`, isSelected && "is-selected", isLit && "is-lit"];
    return h(
      "div",
      {
        id: `jv-eq-${index}`,
        class: classes.filter(Boolean).join(" "),
        role: "option",
        "aria-selected": String(isSelected),
        "aria-posinset": index + 1,
        "aria-setsize": state.program.rows.length,
        ...(progress === "next" && state.isHere ? { "aria-current": "step" } : {}),
        "data-index": index,
        "data-progress": progress,
        "data-testid": "equation",
      },
      this.gutter(index, mark, isBroken),
      h("span", { class: "jv-eq-number" }, String(index)),
      h("code", {}, ...this.code(index, row)),
    );
  }

  private gutter(index: number, mark = "", isBroken = false): HTMLElement {
    const dot =
      index < 0
        ? h("span", { class: "jv-break-place" })
        : h("span", {
            class: `jv-break-place${isBroken ? " is-set" : ""}`,
            title: isBroken ? "Remove the breakpoint (P)" : "Stop before this equation (P)",
            "data-act": "break",
          });
    return h("span", { class: "jv-eq-gutter" }, dot, h("span", { class: "jv-eq-mark" }, mark));
  }

  private code(index: number, row: Row): (Node | string)[] {
    const some = row.o.length > MOST_RESULTS ? row.o.slice(0, MOST_RESULTS - 1) : row.o;
    const results = some.flatMap((v, i) => [i > 0 ? " " : "", ...this.binder(v)]);
    const left = row.o.length - some.length;
    const more =
      left > 0
        ? [
            this.left(
              row.o.slice(some.length).map(([name]) => name),
              "results",
            ),
          ]
        : [];
    const primitive = h("span", { class: "jv-primitive" }, row.p);
    const params = row.q ? [this.params(row.q)] : [];
    const read = row.i.length > MANY ? row.i.slice(0, MANY - 1) : row.i;
    const operands = read.flatMap((a) => [" ", this.atom(a)]);
    const rest = row.i.length > read.length ? [this.left(row.i.slice(read.length), "operands")] : [];
    const equals = row.o.length > 0 ? " = " : "";
    return [
      ...results,
      ...more,
      equals,
      primitive,
      ...params,
      ...this.inner(index, row),
      ...operands,
      ...rest,
    ];
  }

  /** What is left out of a long line. */
  private left(names: readonly string[], what: string): Node {
    return h("span", { class: "jv-dim", title: names.join(" ") }, ` … ${names.length} more ${what}`);
  }

  private params(params: string[]): Node {
    const all = params.join(" ");
    const text = all.length <= LONG_PARAMS ? all : `${all.slice(0, LONG_PARAMS - 1)}…`;
    return h("span", { class: "jv-param", title: params.join("\n") }, `[${text}]`);
  }

  /** What an equation holds, to be looked into. */
  private inner(index: number, row: Row): Node[] {
    const taken = this.state.taken(index);
    return Object.keys(row.n ?? {}).map((body) => {
      const branch = /^branches\[(\d+)\]$/.exec(body)?.[1];
      const isTaken = branch !== undefined && Number(branch) === taken;
      const what = branch === undefined ? "body" : `branch ${branch}${isTaken ? " taken" : ""}`;
      return h(
        "span",
        {
          class: `jv-peek${isTaken ? " is-taken" : ""}`,
          title: `Show the ${branch === undefined ? "body" : `branch ${branch}`} without going there (→)`,
          "data-act": "open",
          "data-body": body,
          "data-testid": "peek",
        },
        what,
      );
    });
  }

  private binder([name, type, of]: Variable): Node[] {
    const variable = this.atom(name);
    if (of && variable instanceof HTMLElement) {
      variable.classList.add("jv-of-cotangent");
      variable.title = `${name}, the cotangent of ${of} (click to look at it)`;
    }
    return [variable as Node, h("span", { class: "jv-type" }, `:${type}`)];
  }

  private atom(name: string): Node | string {
    if (!/^[a-z]+$/.test(name)) return name === "_" ? name : h("span", { class: "jv-literal" }, name);
    const hue = this.state.hue(this.state.program.stage, name);
    return h(
      "span",
      { class: `jv-variable jv-hue-${hue}`, title: `Look at ${name}`, "data-act": "look", "data-name": name },
      name,
    );
  }

  private indexOf(event: Event): number {
    const line = (event.target as HTMLElement).closest<HTMLElement>("[data-index]");
    return line === null ? -1 : Number(line.dataset["index"]);
  }

  private onClick(event: MouseEvent): void {
    const part = (event.target as HTMLElement).closest<HTMLElement>("[data-act]");
    const index = this.indexOf(event);
    const act = part?.dataset["act"];
    if (act === "look") this.actions.look(part!.dataset["name"]!);
    else if (act === "break") this.actions.toggleBreak(index);
    else if (act === "open") this.actions.open(index, part!.dataset["body"]!);
    else if (index >= 0 && event.detail === 2) this.actions.runTo(index);
    else if (index >= 0) this.select(index);
  }

  private select(index: number): void {
    this.state.selected = index;
    this.state.line = "";
    this.actions.selected();
    this.draw(true);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { state } = this;
    const n = state.program.rows.length;
    const from = state.selected >= 0 ? state.selected : Math.min(Math.max(0, state.position), n - 1);
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 2);
    const to: Record<string, number> = {
      ArrowDown: state.selected < 0 ? from : from + 1,
      ArrowUp: from - 1,
      PageDown: from + page,
      PageUp: from - page,
      Home: 0,
      End: n - 1,
    };
    const next = to[event.key];
    const bodies = Object.keys(state.program.rows[from]?.n ?? {});
    if (next !== undefined && n > 0) {
      const index = Math.min(n - 1, Math.max(0, next));
      this.select(index);
      this.reveal(index);
    } else if (event.key === "Enter" && state.selected >= 0) this.actions.runTo(state.selected);
    else if (event.key.toLowerCase() === "p" && n > 0) this.actions.toggleBreak(from);
    else if (event.key === "ArrowRight" && bodies.length > 0) {
      const taken = state.taken(from);
      this.actions.open(from, bodies.find((b) => b === `branches[${taken}]`) ?? bodies[0]!);
    } else if (event.key.toLowerCase() === "l" && state.selected >= 0) {
      const name = state.program.rows[from]?.o[0]?.[0];
      if (name && name !== "_") this.actions.look(name);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
