/** The header: the stages with the timeline, the moves, and the enclosing programs. */

import { formatCount } from "../base/format";
import { button, h, svg } from "../ui/dom";
import { focused } from "../ui/focus";
import { elapsed } from "../ui/waiting";
import type { Mark } from "../wire/stepper.generated";
import { alertLine, tellAlert } from "./alerts";
import type { Session } from "./session";
import type { Shown, StepperState } from "./view";

export interface Move {
  key: string;
  /** The request sent to Python. */
  do: string;
  label: string;
  title: string;
  icon: string;
}

const DOT = (x: number, y: number) => `M${x - 1.5} ${y}a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0 -3 0`;

/** The moves, in the order of their buttons. */
export const MOVES: readonly Move[] = [
  {
    key: "r",
    do: "restart",
    label: "Restart",
    title: "Back to the start",
    icon: "M3.2 5.5A5.5 5.5 0 1 1 2.5 8M3 2v3.8h3.8",
  },
  {
    key: "B",
    do: "back into",
    label: "Back into",
    title: "Back, to the end of the program that the previous equation ran",
    icon: `M13.5 2.5H8V10M5 7l3 3 3-3${DOT(8, 14)}`,
  },
  {
    key: "b",
    do: "back",
    label: "Back",
    title: "Back by one equation, or iteration",
    icon: `M13.5 9.5A5.6 5.6 0 0 0 3 6.5M2.6 2.5v4.2h4.2${DOT(8, 13.5)}`,
  },
  {
    key: "n",
    do: "next",
    label: "Next",
    title: "Run the next equation, with all programs that it holds",
    icon: `M2.5 9.5A5.6 5.6 0 0 1 13 6.5M13.4 2.5v4.2H9.2${DOT(8, 13.5)}`,
  },
  {
    key: "i",
    do: "into",
    label: "Into",
    title: "Into the program that the next equation holds",
    icon: `M8 1.5V10M5 7l3 3 3-3${DOT(8, 14)}`,
  },
  {
    key: "o",
    do: "out",
    label: "Out",
    title: "Run the rest of this program, with all iterations",
    icon: `M8 10V2M5 5l3-3 3 3${DOT(8, 14)}`,
  },
  {
    key: "c",
    do: "continue",
    label: "Run",
    title: "Run to the next breakpoint, or to the end",
    icon: "M3 2.5v11M6.5 3l7 5-7 5z",
  },
  {
    key: "e",
    do: "end",
    label: "End",
    title: "Run to the end, past all breakpoints",
    icon: "M2.5 3l7 5-7 5zM13 2.5v11",
  },
];

/** The moves that go back. */
export const BACK: ReadonlySet<string> = new Set(["restart", "back", "back into"]);

export const KEYS: readonly [string, string][] = [
  ["n", "run the next equation"],
  ["i", "into the program that it holds: a loop, a branch, a function"],
  ["o", "out: run the rest of this program"],
  ["b, Shift + b", "back by one equation; back into the previous one"],
  ["c", "run to the next breakpoint"],
  ["e", "run to the end"],
  ["r", "back to the start"],
  ["g", "to an iteration of the loop"],
  ["p", "breakpoint at the line or equation, set or removed"],
  ["a", "add a breakpoint: primitive, name, condition, …"],
  ["/", "look at a value by name"],
  ["↑ ↓ Home End", "in the jaxpr and the source: to a line"],
  ["Enter", "in the jaxpr: run, or go back, to before that equation"],
  ["l", "in the jaxpr: look at the results of that equation"],
  ["→, Esc", "in the jaxpr: show what an equation holds; back to the stop"],
  ["Tab", "next control"],
  ["?", "these keys"],
];

function icon(path: string): SVGElement {
  return svg(
    "svg",
    { viewBox: "0 0 16 16", class: "jv-icon", "aria-hidden": "true" },
    svg("path", { d: path }),
  );
}

/** The stages, with the progress through them. */
export class Rail {
  readonly element: HTMLElement;
  private readonly stages: HTMLElement[];
  private readonly slider: HTMLInputElement;
  private readonly starts: number[] = [];
  private readonly total: number;

  /** @param mark a position to mark on the timeline. */
  constructor(
    private readonly state: StepperState,
    goto: (stage: string, index: number) => void,
    mark: Mark | null,
  ) {
    const { stages, programs } = state.programs;
    const sizes = stages.map(({ program }) => programs[program]!.rows.length);
    let before = 0;
    for (const size of sizes) {
      this.starts.push(before);
      before += size + 1;
    }
    this.total = before - 1;
    this.stages = stages.map(({ name }, i) =>
      button([name, h("span.jv-count.jv-dim")], () => state.show({ stage: name, way: [] }), {
        class: "jv-stage",
        style: `flex-grow:${Math.max(sizes[i]!, this.total / 6)}`,
        title: `Show the ${name} program`,
        "data-testid": `step-stage-${name}`,
      }),
    );
    this.slider = h("input.jv-slider", {
      type: "range",
      min: 0,
      max: this.total,
      "aria-label": "progress of the run",
      title: "Go to any equation of the outermost programs, ahead or back",
      "data-testid": "time-line",
      onchange: () => {
        const at = Number(this.slider.value);
        const i = this.starts.filter((start) => start <= at).length - 1;
        goto(stages[i]!.name, at - this.starts[i]!);
      },
    });
    this.element = h(
      "div.jv-step-rail.jv-fills.jv-column",
      h("div.jv-step-stages.jv-flex", { role: "group", "aria-label": "stages" }, ...this.stages),
      h("div.jv-step-time", this.slider, mark && this.markElement(mark)),
    );
  }

  private markElement({ stage, index, text }: Mark): HTMLElement {
    const i = this.state.programs.stages.findIndex(({ name }) => name === stage);
    const at = (this.starts[i] ?? 0) + index + 1;
    return h("span.jv-birth", {
      style: `--at:${this.total > 0 ? at / this.total : 0}`,
      title: text,
      "data-testid": "mark",
    });
  }

  update(isOff: boolean): void {
    const { stop, programs, shown } = this.state;
    const here = programs.stages.findIndex((s) => s.name === stop.stage);
    const at = stop.path[0]?.index ?? stop.index;
    this.slider.value = String(this.starts[here]! + at);
    this.slider.disabled = isOff;
    this.slider.setAttribute("aria-valuetext", `${stop.stage}, equation ${at}`);
    programs.stages.forEach(({ name, program }, i) => {
      const n = programs.programs[program]!.rows.length;
      const done = i < here ? n : i > here ? 0 : at;
      const element = this.stages[i]!;
      element.classList.toggle("is-shown", i === here);
      element.setAttribute("aria-pressed", String(shown.stage === name));
      element.style.setProperty("--done", `${n === 0 ? 100 : (100 * done) / n}%`);
      element.lastElementChild!.textContent = `${formatCount(done)} of ${formatCount(n)}`;
    });
  }
}

/** The moves, and what the kernel is doing. */
export class Bar {
  readonly element: HTMLElement;
  private readonly buttons: HTMLButtonElement[];
  private readonly status = h("span.jv-status.jv-cut", { "data-testid": "step-status" });
  private readonly busy = h("span.jv-busy.jv-dim.jv-digits", { "data-testid": "busy" });
  private readonly stop: HTMLButtonElement;
  /** Runs while a request is pending. */
  private clock: ReturnType<typeof setInterval> | undefined;

  constructor(
    private readonly state: StepperState,
    private readonly session: Session,
    move: (what: string) => void,
    toggleKeys: () => void,
  ) {
    this.buttons = MOVES.map((m) =>
      button([icon(m.icon), h("span.jv-move-label", m.label)], () => move(m.do), {
        class: `jv-button jv-inline jv-move${m.do === "next" ? " is-main" : ""}`,
        title: `${m.title} (${m.key === "B" ? "Shift + B" : m.key.toUpperCase()})`,
        "aria-keyshortcuts": m.key === "B" ? "Shift+B" : m.key,
        "data-testid": `move-${m.do.replace(" ", "-")}`,
      }),
    );
    this.stop = button("Stop", () => session.interrupt(), { hidden: true });
    this.element = h(
      "div.jv-step-bar.jv-ruled.jv-head-bar.jv-wraps",
      { role: "toolbar", "aria-label": "moves" },
      ...this.buttons,
      this.status,
      this.busy,
      this.stop,
      button("?", toggleKeys, { title: "Keys (?)", "aria-label": "keys", "data-testid": "step-keys" }),
    );
  }

  destroy(): void {
    clearInterval(this.clock);
  }

  update(isOff: boolean): void {
    const { state } = this;
    const { stop } = state;
    const text = stop.hit ? `Stopped at: ${stop.hit}` : stop.isDone ? "The run has ended" : "";
    this.status.textContent = this.status.title = text;
    this.status.classList.toggle("is-hit", stop.hit !== "");
    MOVES.forEach((move, i) => {
      const isOver = BACK.has(move.do) ? state.isStart : stop.isDone;
      const button = this.buttons[i]!;
      // A focused button is not disabled, so that it keeps the focus: it says why it is off, and does nothing.
      button.setAttribute("aria-disabled", String(isOff || isOver));
    });
  }

  /** Says how long the kernel has been at it. */
  tick(): void {
    const { since, isBegun } = this.session;
    if (since !== null) this.clock ??= setInterval(() => this.tick(), 250);
    else {
      clearInterval(this.clock);
      this.clock = undefined;
    }
    const passed = since === null ? 0 : performance.now() - since;
    const text =
      passed < 1000 ? "" : `${isBegun ? "running" : "waiting for the kernel"} · ${elapsed(passed)}`;
    if (this.busy.textContent !== text) this.busy.textContent = text;
    this.stop.hidden = !(passed >= 1000 && this.session.canInterrupt);
  }
}

/** The enclosing programs, as links, and the iteration of each loop, as a field. */
export class Crumbs {
  readonly element = h("nav.jv-crumbs.jv-wraps.jv-row", {
    "aria-label": "enclosing programs",
    "data-testid": "crumbs",
  });
  private box: HTMLInputElement | null = null;
  private readonly told = alertLine("iteration-failure");

  constructor(
    private readonly state: StepperState,
    private readonly toIteration: (depth: number, iteration: number) => void,
  ) {}

  /** Reports an invalid iteration, or clears the report. */
  fail(text: string): void {
    tellAlert(this.told, text);
  }

  /** Focuses the iteration field of the innermost loop. */
  focus(): void {
    this.box?.focus();
    this.box?.select();
  }

  update(isOff: boolean): void {
    const had = this.element.contains(focused(this.element));
    const { shown, levels, stop, isHere } = this.state;
    this.box = null;
    const parts: HTMLElement[] = [
      this.crumb(shown.stage, { stage: shown.stage, way: [] }, levels.length === 0),
    ];
    levels.forEach(({ row, index, body, level }, depth) => {
      const name = row.f;
      const branch = /^branches\[(\d+)\]$/.exec(body)?.[1];
      const text = `${row.p}${name ? ` ${name}` : ""}${branch === undefined ? "" : ` branch ${branch}`}`;
      const way = shown.way.slice(0, depth + 1);
      parts.push(h("span.jv-crumb-sep.jv-dim", { "aria-hidden": "true" }, "›"));
      parts.push(
        this.crumb(text, { stage: shown.stage, way }, depth === levels.length - 1, `equation ${index}`),
      );
      if (level?.iteration !== null && level !== null)
        parts.push(this.iteration(depth, level.iteration!, level.length, (row.t?.[1] ?? 0) > 0, isOff));
    });
    const next = isHere ? this.state.program.rows[stop.index] : undefined;
    if (next?.t && !stop.isDone) parts.push(this.ahead(next.p, next.t[0], isOff));
    if (!isHere)
      parts.push(
        button("to the stop", () => this.state.show(this.state.here), {
          class: "jv-button jv-to-stop",
          "data-testid": "to-stop",
        }),
      );
    this.element.replaceChildren(...parts, this.told);
    if (had) (this.box as HTMLInputElement | null)?.focus();
  }

  private crumb(text: string, shown: Shown, isLast: boolean, title = ""): HTMLElement {
    return button(text, () => this.state.show(shown), {
      class: "jv-crumb jv-mono",
      title,
      ...(isLast ? { "aria-current": "location" } : {}),
    });
  }

  /** The iteration of a loop: a field, and a slider if the number of iterations is known. */
  private iteration(
    depth: number,
    at: number,
    length: number | null,
    isReverse: boolean,
    isOff: boolean,
  ): HTMLElement {
    const go = (value: number) => {
      if (Number.isInteger(value) && value !== at) this.toIteration(depth, value);
    };
    const box = this.field(at, length, isOff, go);
    this.box = box;
    const slider =
      length !== null && length > 1
        ? h("input", {
            type: "range",
            class: "jv-slider jv-iterations",
            min: 0,
            max: length - 1,
            value: at,
            disabled: isOff,
            // A reversed loop still moves to the right over time.
            ...(isReverse ? { dir: "rtl" } : {}),
            "aria-label": "iteration",
            "data-testid": "iteration-slider",
            oninput: (event: Event) => {
              box.value = (event.target as HTMLInputElement).value;
            },
            onchange: (event: Event) => go(Number((event.target as HTMLInputElement).value)),
          })
        : null;
    return h(
      "span.jv-iteration.jv-digits.jv-inline.jv-nowrap",
      "iteration ",
      box,
      length === null ? "" : ` of ${formatCount(length)}`,
      isReverse ? h("span.jv-dim", { title: "This scan begins with the last iteration" }, " ←") : null,
      slider,
    );
  }

  /** For a loop that runs next: which iteration to enter. */
  private ahead(primitive: string, length: number | null, isOff: boolean): HTMLElement {
    const box = this.field(0, length, isOff, (value) => this.toIteration(-1, value));
    this.box = box;
    return h(
      "span.jv-iteration.jv-digits.jv-inline.jv-nowrap.is-ahead",
      `next, a ${primitive}${length === null ? "" : ` of ${formatCount(length)}`}: into iteration `,
      box,
      button("go", () => this.toIteration(-1, Number(box.value)), { "data-testid": "go-iteration" }),
    );
  }

  private field(
    at: number,
    length: number | null,
    isOff: boolean,
    go: (value: number) => void,
  ): HTMLInputElement {
    const box: HTMLInputElement = h("input.jv-field.jv-input.jv-iteration-box", {
      type: "number",
      min: 0,
      ...(length === null ? {} : { max: length - 1 }),
      value: at,
      disabled: isOff,
      "aria-label": "iteration",
      title: "To the start of an iteration, ahead or back (G)",
      "data-testid": "iteration",
      onkeydown: (event: KeyboardEvent) => {
        if (event.key === "Enter") go(Number(box.value));
      },
    });
    box.value = String(at);
    return box;
  }
}
