/** The switches: each value saved or computed again, and what comes of it at once. */

import { coloured } from "../code/python";
import { Waiting } from "../main/waiting";
import { codeFor } from "../model/plancode";
import type { Residual } from "../model/records";
import type { Switches } from "../model/switches";
import { type Timeline, totalsOf } from "../model/timeline";
import type { Outcome, Table, WhatIf } from "../model/whatif";
import type { Change, State } from "../state/state";
import { h, onRowKey, reveal } from "../ui/dom";
import { formatBytes, formatFlops, plural } from "../ui/format";
import { tabs } from "./lower";

type Fate = "saved" | "again" | "unread";

interface Row {
  value: number;
  fate: Fate;
  /** FLOPs of computing it again, from what it is made from. */
  flops: number;
}

/** Rows shown before the rest is asked for. */
const SHOWN_AT_FIRST = 200;

/** The values that matter: saved, computed again, or chosen to be saved though nothing reads them. */
export function rowsOf(whatIf: WhatIf, outcome: Outcome, chosen: ReadonlySet<number>): Row[] {
  const { nodes } = whatIf.table;
  const found = new Map<number, Row>();
  nodes.value.forEach((value, node) => {
    if (value < 0) return;
    const isSaved = outcome.saved.has(value);
    if (!isSaved && !outcome.again.has(node) && !chosen.has(value)) return;
    const maker = whatIf.maker[nodes.reads[node]![0] ?? -1] ?? -1;
    const fate = isSaved ? "saved" : chosen.has(value) ? "unread" : "again";
    found.set(value, { value, fate, flops: maker < 0 ? 0 : nodes.flops[maker]! });
  });
  return [...found.values()];
}

export type SortKey = "fate" | "what" | "type" | "nbytes" | "flops" | "row";

const COLLATOR = new Intl.Collator();

/** Rows by a column; those that are alike in it in the order of the program. */
export function sortedRows(table: Table, rows: Row[], key: SortKey, descending: boolean): Row[] {
  const { values, strings } = table;
  const cell = (r: Row): string | number => {
    if (key === "fate" || key === "flops") return r[key];
    const value = values[r.value]![key];
    return key === "what" || key === "type" ? strings[value]! : value;
  };
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [cell(a), cell(b)];
    const order =
      typeof x === "number" && typeof y === "number" ? x - y : COLLATOR.compare(String(x), String(y));
    return sign * order || a.value - b.value;
  });
}

export class WhatIfPane {
  readonly element: HTMLElement;
  private readonly content = h("div", { class: "jv-whatif-content" });
  private readonly about = h("span", { class: "jv-dim jv-cut" });
  private board: Board | null = null;
  private waiting: Waiting | null = null;

  constructor(private readonly state: State) {
    this.element = h(
      "section",
      { class: "jv-pane jv-whatif", "aria-label": "what if", "data-testid": "what-if" },
      h("div", { class: "jv-pane-head" }, tabs(state, "what-if"), this.about),
      this.content,
    );
  }

  update(change: Change): void {
    if (this.state.tabled !== "what-if") return;
    if (change === "lower") this.state.switches.ask();
    if (change === "lower" || change === "switches") this.fill();
    if (change === "lower" || change === "selection") this.board?.light(true);
  }

  destroy(): void {
    this.waiting?.destroy();
    this.waiting = null;
  }

  private fill(): void {
    const { whatIf, error, isUnderWay, source } = this.state.switches;
    if (whatIf === null && isUnderWay) {
      this.board = null;
      if (this.waiting !== null) this.waiting.update();
      else {
        this.waiting = new Waiting(source, "Working out what could be saved… The kernel does that once.");
        this.content.replaceChildren(this.waiting.element);
      }
      return;
    }
    this.destroy();
    if (whatIf === null) {
      this.board = null;
      this.content.replaceChildren(message(error));
      return;
    }
    if (this.board?.whatIf !== whatIf) {
      this.board = new Board(this.state, whatIf, (text) => {
        this.about.textContent = text;
        this.about.title = text;
      });
      this.content.replaceChildren(this.board.element);
    } else this.board.show();
  }
}

function message(text: string): HTMLElement {
  return h("p", { class: "jv-message", role: "status" }, text);
}

/** The switches of one function, as set. */
class Board {
  readonly element: HTMLElement;
  private readonly table: Table;
  private readonly switches: Switches;
  private limit = SHOWN_AT_FIRST;
  private readonly head = h("div", {
    class: "jv-figures",
    "aria-live": "polite",
    "data-testid": "what-if-figures",
  });
  private readonly body = h("tbody", {});
  private readonly heads = new Map<SortKey, HTMLElement>();
  private readonly scroller: HTMLElement;
  private key: SortKey = "nbytes";
  private descending = true;
  private readonly slider: HTMLInputElement;
  private about = "";
  private readonly plans: { chosen: Set<number>; outcome: Outcome }[];

  constructor(
    private readonly state: State,
    readonly whatIf: WhatIf,
    private readonly say: (text: string) => void,
  ) {
    this.table = whatIf.table;
    this.switches = state.switches;
    this.plans = this.table.plans.map((plan) => {
      const chosen = new Set(plan);
      return { chosen, outcome: whatIf.outcome(chosen) };
    });
    this.slider = h("input", {
      type: "range",
      min: 0,
      max: Math.max(0, this.plans.length - 1),
      step: 1,
      class: "jv-slider",
      "aria-label": "budget of a plan",
      "data-testid": "what-if-budget",
      oninput: () => this.switches.choose(this.plans[Number(this.slider.value)]!.chosen),
    });
    this.slider.value = String(this.plans.length - 1);
    const button = (text: string, title: string, id: string, act: () => void) =>
      h("button", { type: "button", class: "jv-button", title, "data-testid": id, onclick: act }, text);
    this.scroller = h(
      "div",
      { class: "jv-scroll" },
      h(
        "table",
        { class: "jv-table" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ...HEADS.map(([key, name, text]) => {
              const sort = () => this.sortBy(key);
              const th = h(
                "th",
                { scope: "col", class: `jv-col-${name}` },
                h("button", { type: "button", class: "jv-sort", onclick: sort }, text),
              );
              this.heads.set(key, th);
              return th;
            }),
          ),
        ),
        this.body,
      ),
    );
    this.element = h(
      "div",
      { class: "jv-board" },
      h(
        "div",
        { class: "jv-board-head" },
        this.head,
        h(
          "div",
          { class: "jv-controls" },
          h(
            "label",
            { class: "jv-budget", title: "the best plans: fewest FLOPs at their bytes" },
            "less memory",
            this.slider,
            "less work",
          ),
          button("Save nothing", "compute all again from the arguments", "what-if-nothing", () =>
            this.switches.choose(new Set()),
          ),
          button("Copy as jax.checkpoint", "the lines to write for the switches as set", "what-if-code", () =>
            this.showCode(),
          ),
          button("As written", "the function's own checkpoints, or none", "what-if-reset", () =>
            this.switches.choose(null),
          ),
        ),
      ),
      this.scroller,
    );
    this.show();
  }

  /** Lights the values of what is selected, and those that it came from. */
  light(bringsIntoSight = false): void {
    const { rows, ancestors } = this.state.selection;
    const first = new Map<string, HTMLElement>();
    const all = (of: ReadonlySet<number>) => new Set([...of].flatMap((row) => this.state.model.alike(row)));
    const [selected, above] = [all(rows), all(ancestors)];
    for (const tr of this.body.querySelectorAll<HTMLElement>("tr[data-row]")) {
      const row = Number(tr.dataset.row);
      const lit = selected.has(row) ? "is-selected" : above.has(row) ? "is-ancestor" : "";
      tr.classList.remove("is-selected", "is-ancestor");
      if (lit) tr.classList.add(lit);
      if (lit && !first.has(lit)) first.set(lit, tr);
    }
    const shown = first.get("is-selected") ?? first.get("is-ancestor");
    if (shown && bringsIntoSight) reveal(this.scroller, shown);
    const r = this.state.model.residuals[this.state.selection.residual];
    this.say(r && !shown ? withoutSwitch(r) : this.about);
  }

  private sortBy(key: SortKey): void {
    this.descending = key === this.key ? !this.descending : key === "nbytes" || key === "flops";
    this.key = key;
    this.show();
    this.scroller.scrollTop = 0;
  }

  /** Shows the switches as set. */
  show(): void {
    const { chosen, saved } = this.switches;
    const outcome = this.switches.outcome ?? this.whatIf.outcome(saved);
    this.about = chosen
      ? `one jax.checkpoint around ${this.table.function}, which saves ${plural(outcome.saved.size, "value")}`
      : "as written: flip a switch, or move the slider";
    const rows = sortedRows(this.table, rowsOf(this.whatIf, outcome, saved), this.key, this.descending);
    for (const [key, th] of this.heads)
      th.setAttribute("aria-sort", key !== this.key ? "none" : this.descending ? "descending" : "ascending");
    const had = (document.activeElement as HTMLElement | null)?.closest<HTMLElement>("tr[data-value]")
      ?.dataset.value;
    this.body.replaceChildren(...rows.slice(0, this.limit).map((row) => this.line(row)));
    if (rows.length > this.limit) this.body.append(this.more(rows.length));
    if (had)
      this.body.querySelector<HTMLElement>(`tr[data-value="${had}"] button`)?.focus({ preventScroll: true });
    this.head.replaceChildren(...this.figures());
    this.light();
  }

  private figures(): HTMLElement[] {
    const figure = (name: string, value: string, before: string, id: string) =>
      h(
        "div",
        { class: "jv-figure" },
        h("span", { class: "jv-dim" }, name, before && `, was ${before}`),
        h("strong", { "data-testid": id }, value),
      );
    const { kept, again, peak } = figuresOf(this.switches);
    return [
      figure("kept", ...kept, "what-if-bytes"),
      figure("computed again", ...again, "what-if-flops"),
      figure("modelled peak", ...peak, "what-if-peak"),
    ];
  }

  /** The code for the switches as set, which is copied too where the page may. */
  private showCode(): void {
    const code = codeFor(this.whatIf, this.switches.saved);
    const told = h("span", { class: "jv-dim", role: "status" });
    const tell = (text: string) => {
      told.textContent = text;
    };
    const copied = navigator.clipboard?.writeText(code);
    if (copied)
      copied.then(
        () => tell("copied"),
        () => tell("select it to copy"),
      );
    else tell("select it to copy");
    const close = () => {
      sheet.remove();
      this.element.querySelector<HTMLElement>("[data-testid=what-if-code]")?.focus();
    };
    const sheet = h(
      "dialog",
      {
        class: "jv-help jv-code-sheet",
        "aria-label": "the switches as code",
        "data-testid": "what-if-sheet",
        onkeydown: (event: KeyboardEvent) => {
          event.stopPropagation();
          if (event.key === "Escape") close();
        },
      },
      h(
        "pre",
        { class: "jv-scroll", tabindex: 0 },
        ...code.split("\n").flatMap((line) => [...coloured(line), "\n"]),
      ),
      h(
        "div",
        { class: "jv-controls" },
        h("button", { type: "button", class: "jv-button", onclick: close }, "Close"),
        told,
      ),
    );
    this.element.closest(".jaxviz")?.querySelector("[data-testid=what-if-sheet]")?.remove();
    (this.element.closest(".jaxviz") ?? this.element).append(sheet);
    sheet.show();
  }

  private line({ value, fate, flops }: Row): HTMLElement {
    const { values, strings } = this.table;
    const { what, type, nbytes, row } = values[value]!;
    const { model } = this.state;
    const place = row < 0 ? null : model.place(row);
    const isOn = fate !== "again";
    const flip = () => this.switches.set([value], !this.switches.saved.has(value));
    const select = () => row >= 0 && this.state.selectRow(row);
    return h(
      "tr",
      {
        class: fate === "saved" ? "" : "jv-faded",
        "data-testid": "what-if-row",
        "data-value": value,
        "data-row": row,
        onclick: select,
      },
      h(
        "td",
        { class: "jv-col-switch" },
        h(
          "button",
          {
            type: "button",
            role: "switch",
            class: "jv-switch",
            "aria-checked": String(isOn),
            "aria-label": `save ${strings[what]}`,
            onclick: (event: MouseEvent) => {
              event.stopPropagation();
              flip();
            },
            onkeydown: (event: KeyboardEvent) => onRowKey(event, this.body, ".jv-switch", flip),
          },
          FATES[fate],
        ),
      ),
      h("td", {}, h("code", {}, strings[what]!)),
      h("td", {}, h("code", {}, strings[type]!)),
      h("td", { class: "jv-col-nbytes" }, formatBytes(nbytes)),
      h("td", { class: "jv-col-nbytes" }, flops ? formatFlops(flops) : "free"),
      h("td", { title: model.placeTitle(place) }, model.placeText(place)),
    );
  }

  private more(n: number): HTMLElement {
    const all = () => {
      this.limit = n;
      this.show();
    };
    const button = h(
      "button",
      { type: "button", class: "jv-button", onclick: all },
      `Show all ${plural(n, "value")}`,
    );
    return h("tr", {}, h("td", { colspan: HEADS.length }, button));
  }
}

/** Bytes kept, work done again and the modelled peak, each with what it is for the function as written, or empty where that is shown. */
export function figuresOf({
  whatIf,
  outcome,
  timeline,
}: Switches): Record<"kept" | "again" | "peak", [string, string]> {
  const { present, everything } = whatIf!.table;
  const now = outcome && timeline ? { ...outcome, peak: peakOf(timeline) } : present;
  const share = everything.work
    ? ` (+${((100 * now.flops) / everything.work).toFixed(now.flops ? 1 : 0)}%)`
    : "";
  const was = (before: string) => (outcome ? before : "");
  return {
    kept: [formatBytes(now.nbytes), was(formatBytes(present.nbytes))],
    again: [`${formatFlops(now.flops)}${share}`, was(formatFlops(present.flops))],
    peak: [formatBytes(now.peak), was(formatBytes(present.peak))],
  };
}

/** Why a residual is none of the values that can be saved. */
function withoutSwitch(r: Residual): string {
  return r.kind === "intermediate"
    ? `${r.name} has no switch: under a checkpoint it is made again from what is kept`
    : `${r.name} has no switch: it is there anyway`;
}

/** The most bytes alive at any step. */
export function peakOf(timeline: Timeline): number {
  const { total, peak } = totalsOf(timeline);
  return total[peak] ?? 0;
}

const FATES: Record<Fate, string> = { saved: "saved", again: "again", unread: "unread" };

const HEADS: [SortKey, string, string][] = [
  ["fate", "switch", "switch"],
  ["what", "name", "value"],
  ["type", "type", "type"],
  ["nbytes", "nbytes", "bytes"],
  ["flops", "nbytes", "to make it"],
  ["row", "line", "line"],
];
