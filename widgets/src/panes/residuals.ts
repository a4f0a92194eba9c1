/** The residuals table: the saved values with reasons, sortable and filtered. */

import { formatBytes, formatCount, plural } from "../base/format";
import { turn } from "../base/slices";
import { overviewOf, shortPlace } from "../model/overview";
import type { Residual } from "../model/records";
import { closestOf, LIT, type Lit, residualLitAs } from "../state/lit";
import type { State } from "../state/state";
import { breakable, button, choice, foldButton, h, onRowKey, reveal, section, table } from "../ui/dom";
import { filterOf } from "../ui/filter";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";
import { Rows } from "../ui/rows";
import { Heads } from "../ui/sorting";
import { KINDS } from "../wire/schema";
import { Lifetimes } from "./lifetimes";
import { byExpression, folded, isSaved, type Key, labelIn, type Row, sorted, summary } from "./residualrows";
import { figuresOf } from "./switchfigures";

const HEADS: [Key, string, string][] = [
  ["nbytes", "nbytes", "bytes"],
  ["label", "name", "value, and why it is saved"],
  ["type", "type", "type"],
  ["line", "line", "line"],
];

/** Above this many steps, the bands of rows are drawn one by one. */
const MANY = 5_000;

export class ResidualsPane {
  readonly element: HTMLElement;
  private readonly scroller = h("div.jv-scroll");
  private readonly notes = h("div");
  private readonly body = h("tbody");
  private readonly heads = new Heads(HEADS, "nbytes", ["nbytes"], () => {
    this.sort();
    this.search();
    this.showSelection();
  });
  private readonly table: Rows;
  /** The rows in the document, by key. */
  private readonly rows = new Map<string, HTMLElement>();
  private lives: Lifetimes | null = null;
  /** What fills the bars and the bands: bytes, and the row with most of them and its most at once, once that is known. */
  private most: { nbytes: number; row: Row | null; alive: number } = { nbytes: 1, row: null, alive: 0 };
  /** All residuals in table order, and those that match the filter. */
  private order: Residual[] = [];
  private found: Residual[] = [];
  /** The outermost rows, those shown, and the expanded ones. */
  private outermost: readonly Row[] = [];
  private shown: Row[] = [];
  private readonly opened = new Set<string>();
  private filter: ReturnType<typeof filterOf>;
  private readonly box: HTMLInputElement;
  private readonly kind: HTMLSelectElement;
  private readonly total = h("span.jv-dim.jv-cut", {
    "aria-live": "polite",
    "data-testid": "residual-total",
  });
  /** What else the last click changed. */
  private readonly said = h("p.jv-said", { role: "status", "data-testid": "residual-said" });
  private readonly reset: HTMLElement;
  /** Whether the user has clicked a switch; then the reason why there are no switches is shown. */
  private hasAsked = false;
  /** The other rows whose switches the last click changed. */
  private moved: { key: string; rows: string[] } = { key: "", rows: [] };
  private readonly paired = h("span.jv-dim.jv-cut", { "aria-live": "polite", "data-testid": "pair" });
  private readonly steps: readonly HTMLButtonElement[];
  /** The switch cells, by key. */
  private readonly cells = new Map<string, HTMLElement>();

  constructor(private readonly state: State) {
    const { residuals, view } = state.model;
    this.filter = filterOf(state.model);
    this.box = h("input", {
      class: "jv-field jv-filter",
      type: "search",
      placeholder: "filter",
      spellcheck: false,
      autocomplete: "off",
      title: "Words that a row must contain, in any cell, its scopes or its function (F)",
      "aria-label": "filter the residuals",
      value: state.filter,
      "data-testid": "filter",
      // The notebook must not handle these keys, in either phase.
      "data-lm-suppress-shortcuts": "true",
      oninput: () => this.search(),
      onkeydown: (event: KeyboardEvent) => this.onFilterKey(event),
    });
    const count = (kind: string) => residuals.filter((r) => r.kind === kind).length;
    const kinds = KINDS.filter((kind) => count(kind) > 0);
    const ofKind = kinds.map((kind) => [kind as string, `${kind} (${formatCount(count(kind))})`] as const);
    this.kind = choice([["", "all kinds"], ...ofKind], () => this.search(), {
      class: "jv-field jv-filter-kind",
      title: "Kind to show",
      "aria-label": "kind of residual",
      "data-testid": "filter-kind",
    });
    const ofSwitches = h(
      "th.jv-col-keep",
      { scope: "col", title: "What if it were recomputed? Flip its switch." },
      "saved",
    );
    const ofLives = h(
      "th.jv-col-life",
      { scope: "col", title: "When it is in memory" },
      h("span", "forward"),
      h("span", "backward"),
    );
    this.reset = button("As written", () => state.switches.choose(null), {
      class: "jv-button jv-reset jv-fixed",
      title: "set all switches as the function is written",
      "data-testid": "residual-reset",
    });
    const [nbytes, label, ...rest] = this.heads.cells;
    const all = table([ofSwitches, nbytes!, label!, ofLives, ...rest], [this.body]);
    const step = (by: 1 | -1, text: string, title: string, id: string) =>
      button(text, () => state.stepPair(by), { title, "aria-label": title, "data-testid": id });
    const back = step(-1, "‹", "The previous one", "pair-back");
    const on = step(1, "›", "The next one", "pair-on");
    this.steps = [back, on];
    const empty = residuals.length === 0 && view.notes.length === 0;
    const nothing = "No residuals: the function is linear in the differentiated arguments.";
    this.scroller.append(
      empty ? h("p.jv-message.jv-dim", nothing) : residuals.length > 0 ? all : "",
      this.notes,
    );
    this.element = section(
      { class: "jv-pane jv-column jv-residuals", "aria-label": "residuals", "data-testid": "residuals" },
      [
        h("strong", "saved for the backward pass"),
        residuals.length > 0 && this.box,
        kinds.length > 1 && this.kind,
        this.total,
        this.reset,
      ],
      this.scroller,
      this.said, // below, so that no row moves when it comes
      h("div.jv-pair.jv-head-bar", h("strong", "The equations"), back, on, this.paired),
    );
    this.table = new Rows(this.scroller, this.body, (i) => {
      const { key } = this.shown[i]!;
      const tr = this.rows.get(key);
      this.rows.delete(key);
      this.cells.delete(key);
      // Keep one row in the tab order.
      const [left] = this.rows.values();
      if (tr?.tabIndex === 0 && left) left.tabIndex = 0;
    });
  }

  readonly effects: Effects = [
    // Until the complete texts arrive, equal values have the texts of the first.
    [() => this.state.isWhole, () => this.refill()],
    [() => this.state.filter, () => this.searchFor(this.state.filter)],
    [() => this.state.switches.now, () => this.showSwitches()],
    [() => this.state.selection, () => this.showSelection()],
  ];

  private searchFor(words: string): void {
    if (this.box.value === words) return;
    this.box.value = words;
    this.search();
  }

  /** Focuses the filter. */
  focus(): void {
    this.state.arrange("kept");
    this.box.focus();
    this.box.select();
  }

  private fillNotes(): void {
    const { notes } = this.state.model.view;
    this.notes.replaceChildren(
      ...notes.map((note) => h("p.jv-message.jv-dim.jv-note.jv-ruled", ...marked(note))),
    );
  }

  private refill(): void {
    this.fillNotes();
    this.filter = filterOf(this.state.model);
    const { scrollTop } = this.scroller;
    this.sort();
    this.find();
    // Setting it has the browser lay out the page.
    if (scrollTop > 0) this.scroller.scrollTop = scrollTop;
  }

  private showSwitches(): void {
    for (const row of this.shown) {
      const cell = this.cells.get(row.key);
      if (cell) this.fillSwitch(row, cell);
    }
    this.sumUp();
  }

  private showSelection(): void {
    this.showPair();
    if (this.uncover()) this.fill();
    const nearest = this.nearest();
    if (nearest >= 0) this.table.bring(nearest);
    this.light();
    const shown = this.rows.get(this.shown[nearest]?.key ?? "");
    if (shown) reveal(this.scroller, shown);
  }

  /** Which of the selected values the equations below are those of. */
  private showPair(): void {
    const { at, of } = this.state.pair;
    const { residuals } = this.state.model;
    const shown = residuals[this.state.selection.residual];
    this.paired.textContent =
      shown === undefined ? "of a value: select one" : `of ${shown.name}, ${at + 1} of ${of}`;
    const [back, on] = this.steps;
    back!.disabled = at <= 0;
    on!.disabled = at + 1 >= of;
  }

  /** The first of the rows that are closest to the selection, or -1. */
  private nearest(): number {
    const { residual, rows } = this.state.selection;
    if (residual < 0 && rows.size === 0) return -1;
    const lit = this.shown.map((row) => this.litAs(row));
    const best = closestOf(lit);
    return best ? lit.indexOf(best) : -1;
  }

  /** Highlights the rows related to the selection. */
  private light(): void {
    for (const row of this.shown) {
      const tr = this.rows.get(row.key);
      if (tr) this.lightRow(row, tr);
    }
  }

  /** How a row relates to the selection: the closest relation of its members; of all of them, if they have rows of their own. */
  private litAs(row: Row): Lit {
    const found = new Set(row.members.map((r) => residualLitAs(this.state, r.index)));
    if (this.opened.has(row.key) && found.size > 1) return "";
    return closestOf(found);
  }

  private lightRow(row: Row, tr: HTMLElement): void {
    const lit = this.litAs(row);
    for (const how of LIT) tr.classList.toggle(how, how === lit);
    tr.setAttribute("aria-selected", String(lit === "is-selected"));
  }

  private sort(): void {
    this.order = sorted(this.state.model.residuals, this.heads.key, this.heads.descending);
  }

  /** The matching rows, those of one expression together, with what is in expanded ones after them. */
  private fold(): void {
    const { model } = this.state;
    const { key, descending } = this.heads;
    const { kept } = overviewOf(model);
    const keptOf = (r: number) => kept[model.column("residual_kept")[r]!];
    const order = (rows: readonly Row[]): Row[] => {
      const byResidual = new Map(rows.map((row) => [row.residual, row]));
      return sorted([...byResidual.keys()], key, descending).map((r) => byResidual.get(r)!);
    };
    const open = (rows: readonly Row[]): Row[] =>
      order(rows).flatMap((row) => (this.opened.has(row.key) ? [row, ...open(row.inside?.() ?? [])] : [row]));
    const rows = byExpression(folded(this.found, model.groups), keptOf);
    this.outermost = rows;
    this.uncover();
    this.shown = open(rows);
    const [largest] = sorted(
      rows.map((row) => row.residual),
      "nbytes",
      true,
    );
    const first = rows.find((row) => row.residual === largest);
    this.most = { nbytes: largest?.nbytes || 1, row: first ?? null, alive: 0 };
  }

  /** Expands the expression that the selected values are a part of; returns whether it was not. */
  private uncover(): boolean {
    const { residuals } = this.state.selection;
    const isChosen = (r: Residual) => residuals.has(r.index);
    const row = this.outermost.find((each) => each.isExpression && each.members.some(isChosen));
    if (!row || this.opened.has(row.key) || row.members.every(isChosen)) return false;
    this.opened.add(row.key);
    return true;
  }

  private toggle({ key }: Row): void {
    const top = this.scroller.scrollTop;
    if (!this.opened.delete(key)) this.opened.add(key);
    this.fill();
    this.scroller.scrollTop = top;
    this.rows.get(key)?.querySelector<HTMLElement>(".jv-fold")?.focus();
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
    this.find();
    this.scroller.scrollTop = 0;
  }

  private find(): void {
    this.state.filterBy(this.box.value);
    const passes = this.filter(this.box.value, this.kind.value);
    this.found = passes === null ? this.order : this.order.filter(passes);
    this.element.classList.toggle("is-filtered", passes !== null);
    this.sumUp();
    this.fill();
  }

  /** Updates the summary of the residuals shown, or of the current switches. */
  private sumUp(): void {
    const { model, switches } = this.state;
    const isSet = switches.chosen !== null;
    this.element.classList.toggle("is-set", isSet);
    this.reset.hidden = !isSet;
    const all = model.residuals;
    const said = () => (this.found === this.order ? model.view.headline.saves : summary(this.found, all));
    const error = this.hasAsked && switches.error;
    const [text, title] = isSet ? whatIfSummary(switches) : Array(2).fill(error || said());
    const moved = switches.settings !== null && this.moved.key === switches.key ? this.moved.rows : [];
    this.total.textContent = text;
    this.total.title = title;
    const others =
      moved.length > 0 ? `Moved with it: ${moved.slice(0, 3).join(", ")}${more(moved.length - 3)}.` : "";
    this.said.textContent = [switches.said, others].filter(Boolean).join(" ");
    this.said.title = moved.length > 3 ? `moved with it: ${moved.join(", ")}` : "";
  }

  private fill(): void {
    const { found } = this;
    this.fold();
    const { shown } = this;
    this.rows.clear();
    this.cells.clear();
    this.table.show(shown.length, (i) => this.row(shown[i]!));
    this.light();
    const wide = (...parts: (Node | string)[]) =>
      this.body.append(h("tr.jv-wide", h("td", { colspan: HEADS.length + 2 }, ...parts)));
    if (found.length === 0 && this.order.length > 0)
      wide(
        h("span.jv-dim", { role: "status" }, `None of the ${plural(this.order.length, "value")} match. `),
        button("Show all", () => this.showAll()),
      );
  }

  /** When the values of a row are in memory: of many steps, after the rows are shown. */
  private lifetime(row: Row): HTMLElement {
    const { model } = this.state;
    const cell = h("td.jv-col-life");
    const { length } = model.timeline.steps;
    const { most } = this;
    if (!model.view.has_memory || length === 0 || most.row === null) return cell;
    const draw = () => {
      this.lives ??= new Lifetimes(model);
      most.alive ||= this.lives.most(indicesOf(most.row!));
      cell.append(this.lives.draw(indicesOf(row), most.alive));
    };
    if (length > MANY) void turn().then(draw);
    else draw();
    return cell;
  }

  private row(row: Row): HTMLElement {
    const { model } = this.state;
    const { residual: r, members, inside, depth } = row;
    const isGroup = inside !== null;
    const isOpen = this.opened.has(row.key);
    const select = () => this.state.selectResiduals(indicesOf(row));
    const cell = h("td.jv-col-keep");
    this.cells.set(row.key, cell);
    const fold = (event: Event) => {
      event.stopPropagation();
      this.toggle(row);
    };
    const share = isSaved(r) ? (100 * r.nbytes) / this.most.nbytes : 0;
    const label = labelIn(row);
    const tr = h(
      "tr",
      {
        tabindex: this.rows.size === 0 ? 0 : -1,
        class: row.isExpression ? "is-expression" : depth > 0 ? `jv-inside is-depth-${depth}` : "",
        "data-testid": "residual-row",
        "data-residual": r.index,
        onclick: select,
        onkeydown: (event: KeyboardEvent) => {
          const opens = isGroup && event.key === (isOpen ? "ArrowLeft" : "ArrowRight");
          if (opens) fold(event);
          else if (event.key.toLowerCase() !== "x") onRowKey(event, this.body, "tr[tabindex]", select);
          else cell.querySelector("button")?.click();
        },
      },
      cell,
      h(
        "td.jv-col-nbytes",
        h("span.jv-share", { style: `--share: ${Math.min(100, share).toFixed(1)}%` }),
        h("span", formatBytes(r.nbytes)),
        perDevice(r),
      ),
      h(
        "td.jv-col-name",
        { title: isGroup ? r.label : `${r.label}: ${r.name} in the forward program` },
        isGroup && foldButton(isOpen, `the ${members.length} of ${r.label}`, "residual-fold", fold),
        h("code", ...breakable(label)),
        !isGroup && r.label !== r.name && h("code.jv-dim", ` ${r.name}`),
        ...tags(r),
        h("div.jv-dim.jv-needed", { title: r.reason }, ...marked(r.reason)),
      ),
      this.lifetime(row),
      h("td.jv-col-type", h("code", r.type)),
      h("td.jv-col-line", { title: model.placeTitle(r.place) }, shortPlace(model, r.place)),
    );
    this.rows.set(row.key, tr);
    this.fillSwitch(row, cell, tr);
    this.lightRow(row, tr);
    return tr;
  }

  /** Fills a cell with a switch, or the reason why there is none. */
  private fillSwitch(row: Row, cell: HTMLElement, tr = this.rows.get(row.key)): void {
    const { switches } = this.state;
    const { residual: r } = row;
    const values = this.inPlaceOf(row);
    const isSwitch = values === null ? r.kind === "intermediate" : values.length > 0;
    const of = values ?? [];
    const n = of.filter((v) => switches.keeps(v)).length;
    const isOn = n === of.length;
    const checked = isOn || n === 0 ? String(isOn) : "mixed";
    const isAgain = isSwitch && checked === "false";
    tr?.classList.toggle("jv-faded", isAgain);
    if (!isSwitch) {
      cell.replaceChildren();
      cell.title =
        r.kind === "intermediate"
          ? "no switch: under a checkpoint it is recomputed from the arguments, which are in memory anyway"
          : "no switch: it is in memory anyway";
      return;
    }
    const title = this.switchTitle(values);
    cell.title = title;
    const had = cell.querySelector("button");
    if (had) {
      had.setAttribute("aria-checked", checked);
      return;
    }
    const flip = (event: Event) => {
      event.stopPropagation();
      this.flip(row);
    };
    cell.replaceChildren(
      button([], flip, {
        role: "switch",
        tabindex: -1,
        class: "jv-switch jv-inline jv-nowrap",
        "aria-checked": checked,
        "aria-label":
          row.members.length > 1 ? `save all ${row.members.length} of ${r.label}` : `save ${r.name}`,
        "data-testid": "residual-switch",
      }),
    );
  }

  private switchTitle(values: readonly number[] | null): string {
    const { table } = this.state.switches;
    if (table === null || values === null) return "save it, or recompute it?";
    const names = values.map((value) => {
      const { what, type } = table.groups[table.values.group[value]!]!;
      return `${what} ${type}, ${formatBytes(table.values.nbytes[value]!)}`;
    });
    const them =
      names.length > 3 ? `${names.slice(0, 3).join("; ")} and ${names.length - 3} more` : names.join("; ");
    return `what a checkpoint saves for it: ${them}`;
  }

  /** The values that a checkpoint saves instead of those of a row; null if not known yet. */
  private inPlaceOf(row: Row): readonly number[] | null {
    const { switches } = this.state;
    const values = row.members.map((r) => switches.inPlaceOf(r.index));
    return values.includes(null) ? null : [...new Set(values.flatMap((v) => v ?? []))];
  }

  /** The other rows whose switches a click changed, because they depend on the same values. */
  private movedWith(row: Row, was: ReadonlyMap<Row, boolean>): string[] {
    return [...was].flatMap(([other, isKept]) =>
      isKept !== this.isKept(other) && !row.members.some((r) => r.group === other.residual.group)
        ? [other.residual.label]
        : [],
    );
  }

  private isKept(row: Row): boolean {
    return (this.inPlaceOf(row) ?? []).every((value) => this.state.switches.keeps(value));
  }

  private flip(row: Row): void {
    const { switches } = this.state;
    this.hasAsked = true;
    switches.ask(() => {
      const values = this.inPlaceOf(row) ?? [];
      if (values.length === 0) return;
      const was = new Map(
        folded(this.order, this.state.model.groups).map((other) => [other, this.isKept(other)]),
      );
      switches.set(values, values.every((value) => switches.keeps(value)) ? "recomputed" : "saved");
      this.moved = { key: switches.key, rows: this.movedWith(row, was) };
      this.sumUp();
    });
  }
}

const indicesOf = ({ members }: Row) => members.map((r) => r.index);

const more = (n: number) => (n > 0 ? ` and ${n} more` : "");

/** `250.0 KiB of 294.1 KiB kept · 5.1 kFLOP again (+0.2%) · peak 266.0 KiB`, and a longer version. */
function whatIfSummary(switches: State["switches"]): [string, string] {
  const { kept, again, peak } = figuresOf(switches);
  const work = again[0].replace(/^.*\(|\)$/g, "");
  return [
    `peak ${peak[0]}, was ${peak[1]} · ${kept[0]} of ${kept[1]} saved · work ${work}`,
    `with the switches as set ${kept[0]} are saved, ${kept[1]} as written; ${again[0]} are recomputed, ${again[1]} as written; ` +
      `the modelled peak is ${peak[0]}, ${peak[1]} as written`,
  ];
}

/** On a separate line, as the table is narrow. */
function perDevice(r: Residual): HTMLElement | false {
  return r.perDevice >= 0 && h("div.jv-dim", `${formatBytes(r.perDevice)} a device`);
}

/** Unusual properties of a residual. */
function tags(r: Residual): HTMLElement[] {
  const tag = (text: string, title: string) => h("span.jv-tag.jv-dim", { title }, text);
  const made = [];
  if (r.kind !== "intermediate") made.push(tag(r.kind, "kind of residual"));
  if (r.dummy)
    made.push(tag("dummy", `${formatBytes(r.dummy)} that are dummies if a cond takes another branch`));
  if (r.decision === "offloaded")
    made.push(tag("offloaded", "moved to another memory until the backward pass"));
  return made;
}
