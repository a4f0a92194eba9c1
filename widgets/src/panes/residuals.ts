/** The residual table: what the gradient keeps, sortable and filtered, each with its reason. */

import { h, onRowKey, reveal } from "../dom";
import { filterOf } from "../filter";
import { formatBytes, formatCount, formatParts, plural } from "../format";
import type { Residual } from "../model";
import { type Change, type Lit, residualLitAs, type State } from "../state";
import { tabs } from "./lower";

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

/** Rows shown before the rest is asked for. */
const SHOWN_AT_FIRST = 120;

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
  private readonly body = h("tbody", {});
  private readonly heads = new Map<Key, HTMLElement>();
  private readonly rows = new Map<number, HTMLElement>();
  private key: Key = "nbytes";
  private descending = true;
  private limit = SHOWN_AT_FIRST;
  /** All in the order of the table, and those of them that pass the filter. */
  private order: Residual[] = [];
  private found: Residual[] = [];
  private readonly filter: ReturnType<typeof filterOf>;
  private readonly box: HTMLInputElement;
  private readonly kind: HTMLSelectElement;
  private readonly total = h("span", { class: "jv-dim jv-cut", "data-testid": "residual-total" });
  private readonly hasBackward: boolean;

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
    const table = h("table", { class: "jv-table" }, h("thead", {}, h("tr", {}, ...heads)), this.body);
    const notes = view.notes.map((note) => h("p", { class: "jv-message jv-note" }, ...marked(note)));
    const empty = residuals.length === 0 && notes.length === 0;
    const nothing = "Nothing is kept: the function is linear in what is differentiated.";
    this.scroller.append(
      ...notes,
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
      ),
      this.scroller,
    );
    this.sort();
    this.search();
  }

  /** Lets a person type what to look for. */
  focus(): void {
    this.state.showLower("residuals");
    this.box.focus();
    this.box.select();
  }

  update(change: Change): void {
    if (change !== "selection") return;
    const shown = this.light();
    if (shown) reveal(this.scroller, shown);
  }

  /** Lights what the selection concerns; gives back the row to look at. */
  private light(): HTMLElement | undefined {
    const first = new Map<Lit, HTMLElement>();
    for (const [index, tr] of this.rows) {
      const lit = residualLitAs(this.state, index);
      tr.className = lit;
      tr.setAttribute("aria-selected", String(lit === "is-selected"));
      if (!first.has(lit)) first.set(lit, tr);
    }
    return first.get("is-selected") ?? first.get("is-ancestor") ?? first.get("is-descendant");
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
    this.box.value = "";
    this.kind.value = "";
    this.search();
    this.box.focus();
  }

  private search(): void {
    const passes = this.filter(this.box.value, this.kind.value);
    this.found = passes === null ? this.order : this.order.filter(passes);
    this.limit = SHOWN_AT_FIRST;
    const all = this.state.model.residuals;
    this.total.textContent = passes === null ? summary(all) : summary(this.found, all);
    this.total.title = this.total.textContent;
    this.element.classList.toggle("is-filtered", passes !== null);
    this.fill();
    this.scroller.scrollTop = 0;
  }

  private fill(): void {
    const { found } = this;
    this.rows.clear();
    this.body.replaceChildren(...found.slice(0, this.limit).map((r) => this.row(r)));
    this.light();
    const button = (label: string, onclick: () => void) =>
      h("button", { type: "button", class: "jv-button", onclick }, label);
    const wide = (...parts: (Node | string)[]) =>
      this.body.append(h("tr", { class: "jv-wide" }, h("td", { colspan: HEADS.length }, ...parts)));
    if (found.length === 0 && this.order.length > 0)
      wide(
        h(
          "span",
          { class: "jv-dim", role: "status" },
          `None of the ${plural(this.order.length, "value")} matches. `,
        ),
        button("Show all", () => this.showAll()),
      );
    if (found.length > this.limit)
      wide(
        button(`Show all ${plural(found.length, "value")}`, () => {
          this.limit = found.length;
          this.fill();
        }),
      );
  }

  private row(r: Residual): HTMLElement {
    const { model } = this.state;
    const select = () => this.state.selectResidual(r.index);
    const tr = h(
      "tr",
      {
        tabindex: this.rows.size === 0 ? 0 : -1,
        "data-testid": "residual-row",
        "data-residual": r.index,
        onclick: select,
        onkeydown: (event: KeyboardEvent) => onRowKey(event, this.body, "tr[tabindex]", select),
      },
      h("td", { class: "jv-col-name" }, h("code", {}, r.name)),
      h("td", { class: "jv-col-type" }, h("code", {}, r.type)),
      h("td", { class: "jv-col-nbytes" }, formatBytes(r.nbytes), perDevice(r)),
      h("td", { class: "jv-col-kind" }, r.kind, ...tags(r, this.hasBackward)),
      h("td", { class: "jv-col-line", title: model.placeTitle(r.place) }, model.placeText(r.place)),
      h("td", { class: "jv-col-rule", title: r.rule }, r.rule.replace(/^.* rule of /, "")),
      h("td", { class: "jv-col-reason" }, ...marked(r.reason)),
    );
    this.rows.set(r.index, tr);
    return tr;
  }
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
