/** The residual table: what the gradient keeps, sortable and filtered, each with its reason. */

import type { Residual } from "../model/records";
import { type Change, type Lit, residualLitAs, type State } from "../state/state";
import { h, onRowKey, reveal } from "../ui/dom";
import { filterOf } from "../ui/filter";
import { formatBytes, formatCount, formatParts, plural } from "../ui/format";
import { Rows } from "../ui/rows";
import { tabs } from "./lower";
import { figuresOf } from "./whatif";

type Key = "name" | "type" | "nbytes" | "kind" | "line" | "rule" | "reason";

const HEADS: [Key, string][] = [
  ["name", "name"],
  ["type", "type"],
  ["nbytes", "bytes"],
  ["kind", "kind"],
  ["line", "line"],
  ["rule", "rule"],
  ["reason", "why it is kept"],
];

const KINDS = ["argument", "constant", "literal", "intermediate", "dummy"];

const LIT: Lit[] = ["is-selected", "is-ancestor", "is-descendant", "is-related"];

const COLLATOR = new Intl.Collator();

export function sorted(residuals: Residual[], key: Key, descending: boolean): Residual[] {
  const value = (r: Residual): string | number =>
    key === "line" ? (r.place ? r.place.file * 1e7 + r.place.line : 0) : r[key];
  const sign = descending ? -1 : 1;
  return [...residuals].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (typeof x === "number" && typeof y === "number") return sign * (x - y) || a.index - b.index;
    return sign * COLLATOR.compare(String(x), String(y)) || a.index - b.index;
  });
}

/** `83 values, 199.6 KiB: 12 arguments 64.0 KiB, 67 intermediates 135.6 KiB`, each with its part on one device if it has one;
 * of a part of all residuals `12 of 83 values, 40.0 KiB of 199.6 KiB: …`. */
export function summary(residuals: Residual[], all: Residual[] = residuals): string {
  const bytes = (rs: Residual[]) => {
    const sum = (size: (r: Residual) => number) => rs.reduce((total, r) => total + size(r), 0);
    const isSpread = rs.some((r) => r.perDevice >= 0);
    // One that is not known to be laid out over devices, each is taken to have whole.
    const part = (r: Residual) => (r.perDevice < 0 ? r.nbytes : r.perDevice);
    return formatParts(
      sum((r) => r.nbytes),
      isSpread ? sum(part) : -1,
    );
  };
  const kinds = KINDS.flatMap((kind) => {
    const of = residuals.filter((r) => r.kind === kind);
    return of.length
      ? [`${plural(of.length, kind, kind === "dummy" ? "dummies" : `${kind}s`)} ${bytes(of)}`]
      : [];
  });
  const head =
    residuals === all
      ? `${plural(all.length, "value")}, ${bytes(all)}`
      : `${formatCount(residuals.length)} of ${plural(all.length, "value")}, ${bytes(residuals)} of ${bytes(all)}`;
  return kinds.length ? `${head}: ${kinds.join(", ")}` : head;
}

export class ResidualsPane {
  readonly element: HTMLElement;
  private readonly scroller = h("div", { class: "jv-scroll" });
  private readonly notes = h("div", {});
  private readonly body = h("tbody", {});
  private readonly heads = new Map<Key, HTMLElement>();
  private readonly table: Rows;
  /** The rows that are in the document, by residual. */
  private readonly rows = new Map<number, HTMLElement>();
  private key: Key = "nbytes";
  private descending = true;
  /** All in the order of the table, and those of them that pass the filter. */
  private order: Residual[] = [];
  private found: Residual[] = [];
  private readonly filter: ReturnType<typeof filterOf>;
  private readonly box: HTMLInputElement;
  private readonly kind: HTMLSelectElement;
  private readonly total = h("span", { class: "jv-dim jv-cut", "data-testid": "residual-total" });
  private readonly hasBackward: boolean;
  private readonly reset: HTMLElement;
  /** Whether a person has flipped a switch: then it is said why there are none. */
  private hasAsked = false;
  /** The cells with the switches, by residual. */
  private readonly cells = new Map<number, HTMLElement>();

  constructor(private readonly state: State) {
    const { residuals, view } = state.model;
    this.hasBackward = view.stages.some((stage) => stage.key === "backward" && !stage.error);
    this.filter = filterOf(state.model);
    this.box = h("input", {
      class: "jv-filter",
      type: "search",
      placeholder: "filter",
      spellcheck: false,
      autocomplete: "off",
      title: "Words that a row must have, in any of its cells, its scopes or its function (/)",
      "aria-label": "filter the residuals",
      "data-testid": "filter",
      // Inside a notebook these keys are nobody else's, in whatever phase they are listened for.
      "data-lm-suppress-shortcuts": "true",
      oninput: () => this.search(),
      onkeydown: (event: KeyboardEvent) => this.onFilterKey(event),
    });
    const count = (kind: string) => residuals.filter((r) => r.kind === kind).length;
    const kinds = KINDS.filter((kind) => count(kind) > 0);
    this.kind = h(
      "select",
      {
        class: "jv-filter-kind",
        title: "Which kind is shown",
        "aria-label": "kind of residual",
        "data-testid": "filter-kind",
        "data-lm-suppress-shortcuts": "true",
        onchange: () => this.search(),
        onkeydown: (event: KeyboardEvent) => event.stopPropagation(),
      },
      h("option", { value: "" }, "all kinds"),
      ...kinds.map((kind) => h("option", { value: kind }, `${kind} (${formatCount(count(kind))})`)),
    );
    const heads = HEADS.map(([key, label]) => {
      const button = h(
        "button",
        { type: "button", class: "jv-sort", onclick: () => this.sortBy(key) },
        label,
      );
      const th = h("th", { scope: "col", class: `jv-col-${key}` }, button);
      this.heads.set(key, th);
      return th;
    });
    const ofSwitches = h(
      "th",
      { scope: "col", class: "jv-col-keep", title: "What if it were computed again? Flip its switch." },
      "keep",
    );
    this.reset = h(
      "button",
      {
        type: "button",
        class: "jv-button jv-reset",
        title: "all switches as the function is written",
        "data-testid": "residual-reset",
        onclick: () => state.switches.choose(null),
      },
      "As written",
    );
    const table = h(
      "table",
      { class: "jv-table" },
      h("thead", {}, h("tr", {}, ofSwitches, ...heads)),
      this.body,
    );
    const empty = residuals.length === 0 && view.notes.length === 0;
    const nothing = "Nothing is kept: the function is linear in what is differentiated.";
    this.fillNotes();
    this.scroller.append(
      this.notes,
      empty ? h("p", { class: "jv-message" }, nothing) : residuals.length > 0 ? table : "",
    );
    this.element = h(
      "section",
      { class: "jv-pane jv-residuals", "aria-label": "residuals", "data-testid": "residuals" },
      h(
        "div",
        { class: "jv-pane-head" },
        tabs(state, "residuals"),
        residuals.length > 0 && this.box,
        kinds.length > 1 && this.kind,
        this.total,
        this.reset,
      ),
      this.scroller,
    );
    this.table = new Rows(this.scroller, this.body, (i) => {
      const { index } = this.found[i]!;
      const tr = this.rows.get(index);
      this.rows.delete(index);
      this.cells.delete(index);
      // One of those that are left takes part in tabbing.
      const [left] = this.rows.values();
      if (tr?.tabIndex === 0 && left) left.tabIndex = 0;
    });
    this.sort();
    this.search();
  }

  /** Lets a person type what to look for. */
  focus(): void {
    this.state.showLower("residuals");
    this.box.focus();
    this.box.select();
  }

  private fillNotes(): void {
    const { notes } = this.state.model.view;
    this.notes.replaceChildren(
      ...notes.map((note) => h("p", { class: "jv-message jv-note" }, ...marked(note))),
    );
  }

  update(change: Change): void {
    if (change === "whole") this.fillNotes();
    if (change === "filter" && this.box.value !== this.state.filter) {
      this.box.value = this.state.filter;
      this.search();
    }
    if (change === "switches") {
      for (const [index, cell] of this.cells) this.fillSwitch(index, cell);
      this.sumUp();
    }
    if (change !== "selection") return;
    this.bringToLight();
    const shown = this.light();
    if (shown) reveal(this.scroller, shown);
  }

  /** Makes sure that the first row that the selection is about is there. */
  private bringToLight(): void {
    const { residual, rows } = this.state.selection;
    if (residual < 0 && rows.size === 0) return;
    const meant = new Map<Lit, number>();
    this.found.forEach((r, i) => {
      const lit = residualLitAs(this.state, r.index);
      if (!meant.has(lit)) meant.set(lit, i);
    });
    const i = meant.get("is-selected") ?? meant.get("is-ancestor") ?? meant.get("is-descendant");
    if (i !== undefined) this.table.bring(i);
  }

  /** Lights what the selection concerns; gives back the row to look at. */
  private light(): HTMLElement | undefined {
    const first = new Map<Lit, HTMLElement>();
    for (const [index, tr] of this.rows) {
      const lit = this.lightRow(index, tr);
      if (!first.has(lit)) first.set(lit, tr);
    }
    return first.get("is-selected") ?? first.get("is-ancestor") ?? first.get("is-descendant");
  }

  private lightRow(index: number, tr: HTMLElement): Lit {
    const lit = residualLitAs(this.state, index);
    for (const how of LIT) tr.classList.toggle(how, how === lit);
    tr.setAttribute("aria-selected", String(lit === "is-selected"));
    return lit;
  }

  private sortBy(key: Key): void {
    this.descending = key === this.key ? !this.descending : key === "nbytes";
    this.key = key;
    this.sort();
    this.search();
    this.update("selection");
  }

  private sort(): void {
    for (const [key, th] of this.heads)
      th.setAttribute("aria-sort", key !== this.key ? "none" : this.descending ? "descending" : "ascending");
    this.order = sorted(this.state.model.residuals, this.key, this.descending);
  }

  private onFilterKey(event: KeyboardEvent): void {
    event.stopPropagation();
    if (event.key === "Escape") {
      if (this.box.value === "" && this.kind.value === "")
        this.element.closest<HTMLElement>(".jaxviz")?.focus();
      else this.showAll();
    } else if (event.key === "ArrowDown" || event.key === "Enter")
      this.body.querySelector<HTMLElement>("tr[tabindex]")?.focus();
    else return;
    event.preventDefault();
  }

  private showAll(): void {
    this.kind.value = "";
    this.box.value = "";
    this.search();
    this.box.focus();
  }

  private search(): void {
    this.state.filterBy(this.box.value);
    const passes = this.filter(this.box.value, this.kind.value);
    this.found = passes === null ? this.order : this.order.filter(passes);
    this.element.classList.toggle("is-filtered", passes !== null);
    this.sumUp();
    this.fill();
    this.scroller.scrollTop = 0;
  }

  /** Says how much is kept: of what is shown, or with the switches as set. */
  private sumUp(): void {
    const { model, switches } = this.state;
    const isSet = switches.timeline !== null;
    this.element.classList.toggle("is-set", isSet);
    this.reset.hidden = !isSet;
    const all = model.residuals;
    const said = () => summary(this.found === this.order ? all : this.found, all);
    const error = this.hasAsked && switches.error;
    const [text, title] = isSet ? whatIfSummary(switches) : Array(2).fill(error || said());
    this.total.textContent = text;
    this.total.title = title;
  }

  private fill(): void {
    const { found } = this;
    this.rows.clear();
    this.cells.clear();
    this.table.show(found.length, (i) => this.row(found[i]!));
    this.light();
    const button = (label: string, onclick: () => void) =>
      h("button", { type: "button", class: "jv-button", onclick }, label);
    const wide = (...parts: (Node | string)[]) =>
      this.body.append(h("tr", { class: "jv-wide" }, h("td", { colspan: HEADS.length + 1 }, ...parts)));
    if (found.length === 0 && this.order.length > 0)
      wide(
        h(
          "span",
          { class: "jv-dim", role: "status" },
          `None of the ${plural(this.order.length, "value")} matches. `,
        ),
        button("Show all", () => this.showAll()),
      );
  }

  private row(r: Residual): HTMLElement {
    const { model } = this.state;
    const select = () => this.state.selectResidual(r.index);
    const cell = h("td", { class: "jv-col-keep" });
    this.cells.set(r.index, cell);
    const tr = h(
      "tr",
      {
        tabindex: this.rows.size === 0 ? 0 : -1,
        "data-testid": "residual-row",
        "data-residual": r.index,
        onclick: select,
        onkeydown: (event: KeyboardEvent) => {
          if (event.key.toLowerCase() !== "x") onRowKey(event, this.body, "tr[tabindex]", select);
          else cell.querySelector("button")?.click();
        },
      },
      cell,
      h("td", { class: "jv-col-name" }, h("code", {}, r.name)),
      h("td", { class: "jv-col-type" }, h("code", {}, r.type)),
      h("td", { class: "jv-col-nbytes" }, formatBytes(r.nbytes), perDevice(r)),
      h("td", { class: "jv-col-kind" }, r.kind, ...tags(r, this.hasBackward)),
      h("td", { class: "jv-col-line", title: model.placeTitle(r.place) }, model.placeText(r.place)),
      h("td", { class: "jv-col-rule", title: r.rule }, r.rule.replace(/^.* rule of /, "")),
      h("td", { class: "jv-col-reason" }, ...marked(r.reason)),
    );
    this.rows.set(r.index, tr);
    this.fillSwitch(r.index, cell, tr);
    this.lightRow(r.index, tr);
    return tr;
  }

  /** The switch of a residual, or a word on why there is none. */
  private fillSwitch(index: number, cell: HTMLElement, tr = this.rows.get(index)): void {
    const { switches, model } = this.state;
    const r = model.residuals[index]!;
    const values = switches.inPlaceOf(index);
    const isSwitch = values === null ? r.kind === "intermediate" : values.length > 0;
    const isOn = switches.chosen === null || (values ?? []).every((value) => switches.saved.has(value));
    const isAgain = switches.chosen !== null && (isSwitch ? !isOn : r.kind === "intermediate");
    tr?.classList.toggle("jv-faded", isAgain);
    if (!isSwitch) {
      cell.replaceChildren(h("span", { class: "jv-dim" }, isAgain ? "again" : ""));
      cell.title =
        r.kind === "intermediate"
          ? "no switch: under a checkpoint it is made again from the arguments, which are there anyway"
          : "no switch: it is there anyway";
      return;
    }
    const title = this.switchTitle(values);
    cell.title = title;
    const had = cell.querySelector("button");
    if (had) {
      had.setAttribute("aria-checked", String(isOn));
      return;
    }
    const flip = (event: Event) => {
      event.stopPropagation();
      this.flip(index);
    };
    cell.replaceChildren(
      h("button", {
        type: "button",
        role: "switch",
        tabindex: -1,
        class: "jv-switch",
        "aria-checked": String(isOn),
        "aria-label": `keep ${r.name}`,
        "data-testid": "residual-switch",
        onclick: flip,
      }),
    );
  }

  private switchTitle(values: readonly number[] | null): string {
    const { whatIf } = this.state.switches;
    if (whatIf === null || values === null) return "keep it, or compute it again?";
    const { table } = whatIf;
    const names = values.map((value) => {
      const { what, type, nbytes } = table.values[value]!;
      return `${table.strings[what]} ${table.strings[type]}, ${formatBytes(nbytes)}`;
    });
    const them =
      names.length > 3 ? `${names.slice(0, 3).join("; ")} and ${names.length - 3} more` : names.join("; ");
    return `what a checkpoint keeps for it: ${them}`;
  }

  private flip(index: number): void {
    const { switches } = this.state;
    this.hasAsked = true;
    switches.ask(() => {
      const values = switches.inPlaceOf(index) ?? [];
      const isOn = values.every((value) => switches.saved.has(value));
      if (values.length > 0) switches.set(values, !isOn);
    });
  }
}

/** `250.0 KiB of 294.1 KiB kept · 5.1 kFLOP again (+0.2%) · peak 266.0 KiB`, and the same in more words. */
function whatIfSummary(switches: State["switches"]): [string, string] {
  const { kept, again, peak } = figuresOf(switches);
  const work = again[0].replace(/^.*\(|\)$/g, "");
  return [
    `${kept[0]} of ${kept[1]} kept · work ${work} · peak ${peak[0]}`,
    `with the switches as set ${kept[0]} are kept, ${kept[1]} as written; ${again[0]} are computed again, ${again[1]} as written; ` +
      `the modelled peak is ${peak[0]}, ${peak[1]} as written`,
  ];
}

/** On a line of its own: the table has little room to the sides. */
function perDevice(r: Residual): HTMLElement | false {
  return r.perDevice >= 0 && h("div", { class: "jv-dim" }, `${formatBytes(r.perDevice)} a device`);
}

/** What is out of the ordinary about a residual, beside its kind. */
function tags(r: Residual, hasBackward: boolean): HTMLElement[] {
  const tag = (text: string, title: string) => h("span", { class: "jv-tag", title }, text);
  const made = [];
  if (r.dummy)
    made.push(tag("dummy", `${formatBytes(r.dummy)} that hold nothing if a cond takes another branch`));
  if (r.decision === "offloaded")
    made.push(tag("offloaded", "moved to another memory until the backward pass"));
  if (hasBackward && !r.consumers.length)
    made.push(tag("unread", "no equation of the backward program reads it"));
  return made;
}

/** Text with its `code` parts as code. */
export function marked(text: string): (Node | string)[] {
  return text.split("`").map((part, i) => (i % 2 === 1 ? h("code", {}, part) : part));
}
