/** The search field, and below it what a text means as an address, and the matches in source, equations, values and scopes. */

import { formatCount, plural } from "../base/format";
import type { AllFound, Found, KindFound } from "../model/find";
import type { State } from "../state/state";
import { h } from "../ui/dom";
import { focused } from "../ui/focus";
import { reasonOf } from "../ui/pane";

/** How many matches of each kind are shown at first, and added by `more`. */
const SHOWN = 5;
const MOST = 300;

/** The kinds of results, in order. */
const KINDS_FOUND: readonly KindFound[] = ["addresses", "source", "equations", "values", "scopes"];

/** What searches; a part of its own. */
export type Finder = typeof import("../host/parts/search");

let made = 0;

export class SearchBox {
  readonly element: HTMLElement;
  private readonly box: HTMLInputElement;
  private readonly list: HTMLElement;
  private readonly note = h("p.jv-message.jv-dim");
  private readonly popup: HTMLElement;
  private readonly said = h("span.jv-told.is-quiet", { role: "status" });
  private found: AllFound | null = null;
  private readonly opened = new Set<KindFound>();
  /** The options that the arrow keys go through, with their actions. */
  private options: { element: HTMLElement; choose: () => void }[] = [];
  /** A key that was pressed before the search was loaded. */
  private early: KeyboardEvent | null = null;
  private at = -1;

  /** Whether what is found includes what the text means. */
  private hasMeaning = false;
  private finder: Finder | null = null;
  private isLoading = false;

  constructor(
    private readonly state: State,
    private readonly load: () => Promise<Finder>,
  ) {
    const id = `jv-found-${++made}`;
    this.list = h("div", { id, role: "listbox", "aria-label": "found" });
    this.popup = h("div.jv-found", { hidden: true }, this.list, this.note);
    this.box = h("input.jv-field.jv-filter.jv-search", {
      type: "search",
      placeholder: "search",
      spellcheck: false,
      autocomplete: "off",
      title: "Search the source, equations, values and scopes, or an address such as softmax(q @ k.T) (/)",
      role: "combobox",
      "aria-label": "search",
      "aria-autocomplete": "list",
      "aria-expanded": "false",
      "aria-controls": id,
      "data-testid": "search",
      "data-lm-suppress-shortcuts": "true",
      oninput: () => this.search(),
      onfocus: () => this.search(),
      onkeydown: (event: KeyboardEvent) => this.onKey(event),
    });
    this.element = h(
      "div.jv-search-box",
      { onfocusout: () => this.close() },
      this.box,
      this.popup,
      this.said,
    );
    // Keep the focus in the field: losing it would close the list before the click.
    this.popup.addEventListener("pointerdown", (event) => event.preventDefault());
  }

  /** The kernel may have said what the text means as an address, or what an earlier one did. */
  hear(): void {
    const { finder } = this;
    if (finder === null || this.popup.hidden || this.hasMeaning) return;
    if (this.state.meaning.about(finder.wordsOf(this.box.value)) !== null) this.search();
  }

  focus(): void {
    this.box.focus();
    this.box.select();
  }

  /** The user may have left it while what searches was loaded. */
  private get isUsed(): boolean {
    return focused(this.element) === this.box;
  }

  private search(): void {
    const { finder } = this;
    if (finder === null) {
      if (this.isLoading) return;
      this.isLoading = true;
      const begin = (loaded: Finder) => {
        this.finder = loaded;
        if (!this.isUsed) return;
        this.search();
        if (this.early !== null) this.onKey(this.early);
      };
      const fail = (error: unknown) => this.isUsed && this.show("", reasonOf(error));
      this.load()
        .then(begin, fail)
        .finally(() => {
          this.isLoading = false;
          this.early = null;
        });
      return;
    }
    const text = this.box.value;
    let error = "";
    try {
      const meant = this.state.meaning.about(finder.wordsOf(text));
      this.hasMeaning = meant !== null;
      this.found = finder.find(this.state.model, text, meant?.values);
    } catch (failure) {
      this.found = null;
      error = failure instanceof Error ? failure.message : String(failure);
    }
    this.show(text, error);
  }

  private show(text: string, error: string): void {
    this.opened.clear();
    this.fill(error);
    this.open(this.options.length > 0 || text.trim() !== "" || error !== "");
  }

  private fill(error = ""): void {
    this.options = [];
    this.at = -1;
    const groups: HTMLElement[] = [];
    let n = 0;
    let left = 0;
    for (const kind of KINDS_FOUND) {
      const found = this.found?.[kind] ?? [];
      if (found.length === 0) continue;
      n += found.length;
      const most = this.opened.has(kind) ? MOST : SHOWN;
      const shown = found.length <= most + 1 ? found : found.slice(0, most);
      const options = shown.map((each) => this.option(each));
      const rest = found.length - shown.length;
      if (rest > 0 && !this.opened.has(kind)) options.push(this.more(kind, rest));
      else left += rest;
      const head = `${kind} ${formatCount(found.length)}`;
      groups.push(h("div", { role: "group", "aria-label": kind, "data-head": head }, ...options));
    }
    const searches = (this.finder?.suggested(this.state.model, this.box.value) ?? []).map((words) =>
      this.choice([h("code.jv-cut", words)], () => {
        this.box.value = words;
        this.search();
      }),
    );
    if (searches.length > 0)
      groups.push(h("div", { role: "group", "aria-label": "searches", "data-head": "try" }, ...searches));
    const none = error || "No match in the source, the equations, the values or the scopes.";
    this.note.textContent =
      n === 0
        ? this.box.value.trim() === ""
          ? ""
          : none
        : left > 0
          ? `${formatCount(left)} more: add words to narrow the search.`
          : "";
    this.note.hidden = this.note.textContent === "";
    this.said.textContent = error || plural(n, "result");
    this.list.replaceChildren(...groups);
    this.box.removeAttribute("aria-activedescendant");
  }

  private option({ title, about, ...what }: Found): HTMLElement {
    return this.choice([h("code.jv-cut", title), h("span.jv-dim.jv-cut", about)], () => {
      this.close();
      this.go({ title, about, ...what });
    });
  }

  private more(kind: KindFound, rest: number): HTMLElement {
    return this.choice([h("span.jv-dim", `${formatCount(rest)} more`)], () => {
      const at = this.at;
      this.opened.add(kind);
      this.fill();
      this.stand(at);
    });
  }

  private choice(parts: HTMLElement[], choose: () => void): HTMLElement {
    const element = h(
      "div.jv-found-row.jv-baseline",
      {
        role: "option",
        id: `${this.list.id}-${this.options.length}`,
        "aria-selected": "false",
        "data-testid": "found",
        title: parts.map((part) => part.textContent).join("\n"),
        onclick: choose,
      },
      ...parts,
    );
    this.options.push({ element, choose });
    return element;
  }

  /** Of the equations that compute one value those of a stage that is shown, if there is any. */
  private ofOneStage(rows: readonly number[]): number[] {
    const { state } = this;
    const stages = rows.map((row) => state.model.stage(row));
    const stage = stages.find((each) => state.showsStages && state.isShown(each)) ?? stages[0];
    return rows.filter((_, i) => stages[i] === stage);
  }

  /** Goes to a match. */
  private go({ line, rows, variable, residuals, copies }: Found): void {
    const { state } = this;
    if (copies) state.openRows(this.ofOneStage(copies));
    else if (residuals) state.openResiduals(residuals);
    else if (line) {
      // On a narrow page, the overview has no room for the source.
      if (state.view === "overview") state.arrange("lines");
      state.selectLine(line.file, line.line);
    } else if (rows) state.openRows(rows);
    else if (variable !== undefined) {
      state.openStages();
      state.goToVariable(variable);
    }
  }

  private onKey(event: KeyboardEvent): void {
    event.stopPropagation();
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const n = this.options.length;
    if (this.finder === null && ["Enter", "ArrowDown", "ArrowUp"].includes(event.key)) this.early = event;
    else if (event.key === "Escape" && !this.popup.hidden) this.close();
    else if (event.key === "Escape") {
      this.box.value = "";
      this.box.closest<HTMLElement>(".jaxviz")?.focus({ preventScroll: true });
    } else if (event.key === "Enter") {
      if (this.popup.hidden) this.search();
      else this.options[Math.max(0, this.at)]?.choose();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (this.popup.hidden) this.search();
      else if (n > 0) this.stand((this.at + (event.key === "ArrowDown" ? 1 : this.at < 0 ? 0 : -1) + n) % n);
    } else return;
    event.preventDefault();
  }

  private stand(at: number): void {
    this.options[this.at]?.element.setAttribute("aria-selected", "false");
    this.at = at;
    const element = this.options[at]?.element;
    if (!element) return;
    element.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", element.id);
    element.scrollIntoView?.({ block: "nearest" });
  }

  private open(isOpen: boolean): void {
    this.popup.hidden = !isOpen;
    this.box.ariaExpanded = String(isOpen);
  }

  private close(): void {
    this.open(false);
  }
}
