/** The switches: checkpoints, what they save, and the effect of each switch, as computed by Python. */

import { formatBytes, plural } from "../base/format";
import { entry } from "../base/maps";
import { coloured } from "../code/python";
import { NOTHING, type Setting, type Settings } from "../model/settings";
import { AS_WRITTEN, type Switches } from "../model/switches";
import {
  type Difference,
  differenceOf,
  type Row,
  rowsOf,
  type SortKey,
  sortedRows,
  unfolded,
} from "../model/switchrows";
import { NO_ANSWER } from "../model/work";
import type { State } from "../state/state";
import { showSheet } from "../ui/copying";
import { button, foldButton, h, onRowKey, reveal, section, table } from "../ui/dom";
import { focused } from "../ui/focus";
import type { Effects } from "../ui/pane";
import { Heads } from "../ui/sorting";
import { Waiting } from "../ui/waiting";
import { effectCells, fromTo } from "./switcheffects";
import { figuresOf, withoutSwitch } from "./switchfigures";

/** Instead of the key of a plan that is not known yet. */
const UNKNOWN = "?";

/** How many rows are shown before `more`. */
const SHOWN_AT_FIRST = 200;

const HEADS: [SortKey, string, string][] = [
  ["saved", "switch", "switch"],
  ["what", "name", "checkpoint, value"],
  ["peak", "peak", "peak"],
  ["kept", "kept", "saved"],
  ["work", "work", "work"],
  ["nbytes", "nbytes", "bytes"],
];

export class WhatIfPane {
  readonly element: HTMLElement;
  private readonly content = h("div.jv-whatif-content");
  private readonly about = h("span.jv-dim.jv-cut");
  /** The buttons of the board. */
  private readonly controls = h("div.jv-controls.jv-wraps.jv-row");
  private board: Board | null = null;
  private waiting: Waiting | null = null;

  constructor(private readonly state: State) {
    this.element = section(
      { class: "jv-pane jv-column jv-whatif", "aria-label": "what if", "data-testid": "what-if" },
      [h("strong", "what if"), this.about, this.controls],
      this.content,
    );
  }

  private get isSeen(): boolean {
    return this.state.view === "what-if";
  }

  readonly effects: Effects = [
    [() => this.isSeen, () => this.begin()],
    [() => this.isSeen && this.state.switches.now, () => this.isSeen && this.fill()],
    [() => this.isSeen && this.state.selection, () => this.isSeen && this.board?.light(true)],
  ];

  private begin(): void {
    const { switches } = this.state;
    if (this.isSeen) switches.ask();
    else this.board?.closeCode();
    switches.want(() => (this.isSeen && this.board?.wanted()) || []);
  }

  destroy(): void {
    this.board?.closeCode();
    this.stopWaiting();
  }

  private stopWaiting(): void {
    this.waiting?.destroy();
    this.waiting = null;
  }

  private fill(): void {
    const { settings, error, isUnderWay, source } = this.state.switches;
    if (this.board?.settings !== settings) this.board?.closeCode();
    if (settings === null) this.controls.replaceChildren();
    if (settings === null && isUnderWay) {
      this.board = null;
      if (this.waiting !== null) return;
      this.waiting = new Waiting(
        source,
        "Finding out what could have a checkpoint… The kernel does this once.",
      );
      this.content.replaceChildren(this.waiting.element);
      return;
    }
    this.stopWaiting();
    if (settings === null) {
      this.board = null;
      this.content.replaceChildren(h("p.jv-message.jv-dim", { role: "status" }, error));
      return;
    }
    if (this.board?.settings !== settings) {
      this.board = new Board(this.state, settings, (text) => {
        this.about.textContent = text;
        this.about.title = text;
      });
      this.content.replaceChildren(this.board.element);
      this.controls.replaceChildren(...Object.values(this.board.tools));
      this.state.switches.want(() => this.board?.wanted() ?? []);
    } else this.board.show();
  }
}

/** The switches of one function. */
class Board {
  readonly element: HTMLElement;
  private readonly switches: Switches;
  private limit = SHOWN_AT_FIRST;
  /** The expanded groups. */
  private readonly opened = new Set<number>();
  /** The rows shown, with their equations. */
  private shown: { tr: HTMLElement; rows: readonly number[] }[] = [];
  private keys: string[] = [];
  private readonly head = h("div.jv-figures.jv-flex.jv-wraps", {
    "aria-live": "polite",
    "data-testid": "what-if-figures",
  });
  private readonly said = h("p.jv-said", { role: "status", "data-testid": "what-if-said" });
  private readonly around = h("tbody.jv-around");
  private readonly body = h("tbody");
  private readonly heads = new Heads(HEADS, "nbytes", ["nbytes"], () => {
    this.show();
    this.scroller.scrollTop = 0;
  });
  private readonly scroller: HTMLElement;
  /** Its buttons, which are in the head of the pane. */
  readonly tools: Record<"nothing" | "copy" | "compile" | "undo" | "redo" | "reset", HTMLButtonElement>;
  private about = "";
  private isCopying = false;
  /** The code that is shown, and the switches that it is for. */
  private sheet: { close(): void; key: string } | null = null;

  constructor(
    private readonly state: State,
    readonly settings: Settings,
    private readonly say: (text: string) => void,
  ) {
    const switches = state.switches;
    this.switches = switches;
    const tool = (id: string, text: string, title: string, act: () => void) =>
      button(text, act, { title, "data-testid": `what-if-${id}` });
    this.tools = {
      nothing: tool("nothing", "Save nothing", "recompute everything in the checkpoints that are on", () =>
        this.saveNothing(),
      ),
      copy: tool("code", "Copy the code", "the changes to make in the source for the switches as set", () =>
        this.showCode(),
      ),
      compile: tool("compile", "Compile", "the memory over time as XLA compiles it, over the model", () =>
        switches.compile(),
      ),
      undo: tool("undo", "Undo", "undo the last click (Ctrl + Z)", () => switches.undo()),
      redo: tool("redo", "Redo", "redo what Undo took back (Ctrl + Shift + Z)", () => switches.redo()),
      reset: tool("reset", "As written", "the function's own checkpoints, or none", () => this.reset()),
    };
    this.scroller = h("div.jv-scroll", table(this.heads.cells, [this.around, this.body]));
    this.element = h(
      "div.jv-board.jv-fills.jv-column",
      h("div.jv-board-head.jv-ruled.jv-wraps.jv-row", this.head, this.said),
      this.scroller,
    );
    this.show();
  }

  /** The settings that the rows lead to, in order. */
  wanted(): readonly string[] {
    return this.keys;
  }

  /** Highlights the rows of the selection and of its ancestors. */
  light(bringsIntoSight = false): void {
    const { rows, ancestors } = this.state.selection;
    const first = new Map<string, HTMLElement>();
    const all = (of: ReadonlySet<number>) => new Set([...of].flatMap((row) => this.state.model.alike(row)));
    const [selected, above] = [all(rows), all(ancestors)];
    for (const { tr, rows } of this.shown) {
      const isOf = (set: ReadonlySet<number>) => rows.some((row) => set.has(row));
      const lit = isOf(selected) ? "is-selected" : isOf(above) ? "is-ancestor" : "";
      tr.classList.remove("is-selected", "is-ancestor");
      if (lit) tr.classList.add(lit);
      if (lit && !first.has(lit)) first.set(lit, tr);
    }
    const shown = first.get("is-selected") ?? first.get("is-ancestor");
    if (shown && bringsIntoSight) {
      const isLow = this.element.scrollHeight > this.element.clientHeight;
      reveal(isLow ? this.element : this.scroller, shown);
    }
    const r = this.state.model.residuals[this.state.selection.residual];
    this.say(r && !shown ? withoutSwitch(r) : this.about);
  }

  /** Shows the current setting. */
  show(): void {
    this.closeCode(false);
    const { switches, settings } = this;
    const { setting } = switches;
    this.about = this.aboutOf(setting);
    const now = switches.trade();
    const known = new Map<Row, Difference>();
    const difference = (row: Row) =>
      entry(known, row, () => differenceOf(now, switches.trade(settings.key(row.next))));
    const groups = sortedRows(rowsOf(settings, setting), this.heads.key, this.heads.descending, difference);
    const rows = groups.flatMap((row) =>
      this.opened.has(row.group) && row.values.length > 1
        ? [row, ...unfolded(settings, setting, row)]
        : [row],
    );
    const had = focused(this.element)?.closest<HTMLElement>("tr[data-key]")?.dataset.key;
    const at = focused(this.element)?.classList;
    const control = [".jv-fold", ".jv-host"].find((name) => at?.contains(name.slice(1))) ?? ".jv-switch";
    const regions = settings.table.regions.map((_, i) => {
      const next = settings.flipped(setting, i).setting;
      return { i, next, key: settings.key(next) };
    });
    const shown = rows.slice(0, this.limit);
    const keysOf = (next: (row: Row) => Setting) => shown.map((row) => settings.key(next(row)));
    this.keys = [
      ...regions.map(({ key }) => key),
      ...keysOf((row) => row.next),
      ...keysOf((row) => row.nextOnHost),
    ];
    const around = regions.map(({ i, key }) => this.region(i, key));
    const lines = shown.map((row) => this.line(row));
    this.shown = [...around, ...lines];
    this.around.replaceChildren(this.plan(), ...around.map(({ tr }) => tr));
    this.body.replaceChildren(this.headOf(setting, groups.length), ...lines.map(({ tr }) => tr));
    if (rows.length > this.limit) this.body.append(this.more(rows.length));
    this.scroller
      .querySelector<HTMLElement>(`tr[data-key="${had}"] ${control}`)
      ?.focus({ preventScroll: true });
    this.head.replaceChildren(...this.figures());
    this.tools.undo.disabled = !switches.canUndo;
    this.tools.redo.disabled = !switches.canRedo;
    this.tools.reset.disabled = switches.chosen === null;
    this.tools.nothing.disabled = setting.regions.size === 0;
    this.tools.copy.disabled = !switches.canCode;
    this.tools.compile.disabled = !switches.canAsk || switches.isCompiling || switches.line !== null;
    this.tell();
    this.light();
  }

  private reset(): void {
    this.switches.choose(null, "All switches as the function is written.");
  }

  private saveNothing(): void {
    const { regions } = this.switches.setting;
    this.switches.choose({ ...NOTHING, regions }, "Everything in the checkpoints is recomputed.");
  }

  private aboutOf({ regions, saved }: Setting): string {
    if (this.switches.chosen === null) return "as written: switch a checkpoint on or off";
    if (regions.size === 0) return "no checkpoint";
    const held = this.settings.held(regions);
    const n = [...saved].filter((value) => held.has(value)).length;
    return `${plural(regions.size, "checkpoint")}, saving ${n > 0 ? plural(n, "value") : "nothing"}`;
  }

  /** Reports what the kernel is doing, why it is not, or what the last click changed. */
  private tell(): void {
    const { switches } = this;
    const { state, what, done, total } = switches.tries.progress;
    const again = () => switches.again();
    const say = (text: string, act?: HTMLElement) => {
      if (this.said.firstChild?.textContent !== text) this.said.replaceChildren(text);
      else while (this.said.childNodes.length > 1) this.said.lastChild!.remove();
      if (act) this.said.append(" ", act);
    };
    const reason = switches.reason();
    const isBusy = switches.isPending || switches.isPlanning || switches.isCompiling || this.isCopying;
    this.element.classList.toggle("is-busy", isBusy);
    if (switches.isAlone && switches.said) say(switches.said);
    else if (switches.isAlone)
      say("No kernel: only results computed earlier are shown. Run the cell again to compute the rest.");
    else if (state === "late") say(NO_ANSWER, button("Try again", again));
    else if (state === "stopped") say("Stopped.", button("Go on", again, { "data-testid": "what-if-again" }));
    else if (reason) say(`This is not possible: ${reason}`);
    else if (isBusy) {
      const of = total > 0 ? ` ${done} of ${plural(total, what.replace(/s$/, ""))}` : "";
      const stop = switches.tries.canStop && button("Cancel", () => switches.tries.cancel());
      const at = switches.isPlanning ? "Planning" : switches.isCompiling ? "Compiling" : "Computing";
      say(`${at}…${of}`, stop || undefined);
    } else say(switches.said);
  }

  private figures(): HTMLElement[] {
    const figure = (name: string, [value, before]: [string, string], id: string) =>
      h(
        "div.jv-figure.jv-column",
        h("span.jv-dim", name, before && `, was ${before}`),
        h("strong", { "data-testid": id }, value),
      );
    const { kept, again, peak, moved } = figuresOf(this.switches);
    const { line } = this.switches;
    return [
      figure("modelled peak", peak, "what-if-peak"),
      figure("saved", kept, "what-if-bytes"),
      figure("recomputed", again, "what-if-flops"),
      ...(moved ? [figure("offloaded", moved, "what-if-moved")] : []),
      ...(line
        ? [figure("compiled peak", [line.error || formatBytes(Math.max(...line.total)), ""], "what-if-line")]
        : []),
    ];
  }

  /** Closes the code, or does so only if it is that of other switches. */
  closeCode(isForced = true): void {
    if (this.sheet === null || (!isForced && this.sheet.key === this.switches.key)) return;
    this.sheet.close();
    this.sheet = null;
  }

  /** Shows the code for the current setting, and copies it if possible. */
  private showCode(): void {
    this.isCopying = true;
    this.tell();
    this.switches.code((code) => {
      this.isCopying = false;
      const panes = this.element.closest<HTMLElement>(".jv-main");
      if (this.state.view !== "what-if" || panes === null) return; // the user has gone on
      const told = h("span.jv-dim", { role: "status" });
      const tell = (text: string) => {
        told.textContent = text;
      };
      const lines = code.replace(/\n$/, "").split("\n");
      const text = lines.flatMap((line) => [lineOf(line), "\n"]);
      const sheet = { id: "what-if-sheet", label: "The switches as code", text, note: told };
      this.sheet = { ...showSheet(sheet, this.element, panes), key: this.switches.key };
      const hint = () => tell("select it to copy");
      const copied = navigator.clipboard?.writeText(code);
      if (copied) copied.then(() => tell("copied"), hint);
      else hint();
      this.tell();
    });
  }

  /** A switch, or a message if its effect is unknown and cannot be computed. */
  private switch(
    text: string,
    isOn: "true" | "false" | "mixed",
    key: string,
    label: string,
    title: string,
    flip: () => void,
    onkeydown: (event: KeyboardEvent) => void,
  ): HTMLElement {
    const { switches } = this;
    const isDead = !switches.canAsk && !switches.isKnown(key);
    return button(
      text,
      (event: MouseEvent) => {
        event.stopPropagation();
        if (!isDead) flip();
      },
      {
        role: "switch",
        class: "jv-switch jv-inline jv-nowrap",
        "aria-checked": isOn,
        "aria-label": label,
        "aria-disabled": isDead ? "true" : undefined,
        title: isDead ? "the result was not computed while there was a kernel" : title,
        onkeydown,
      },
    );
  }

  /** The effect of a switch, in three cells. */
  private cells(key: string, lead: string): HTMLElement[] {
    const { switches, settings } = this;
    const [written, now, next] = [switches.trade(""), switches.trade(), switches.trade(key)];
    const reason = switches.reason(key);
    const none = { said: reason ? "not possible" : switches.canAsk ? "…" : "not computed", title: reason };
    const most = Math.max(written?.[0] ?? 0, now?.[0] ?? 0);
    return effectCells(lead, now, next ?? none, settings.table.work, most);
  }

  /** The switch of the best plan, which sets all others. */
  private plan(): HTMLElement {
    const { switches } = this;
    const { planned } = switches;
    const isOn = Boolean(planned) && planned === switches.key;
    const flip = () => (isOn ? this.reset() : switches.plan());
    const what =
      "jaxviz.plan_remat, as it can be written in your source: it lowers the peak most for the work that it adds; sets all switches";
    const toggle = this.switch(
      isOn ? "on" : "off",
      String(isOn) as "true" | "false",
      planned ?? UNKNOWN,
      "the plan",
      what,
      flip,
      (event) => onRowKey(event, this.around, ".jv-switch", flip),
    );
    toggle.dataset["testid"] = "what-if-plan";
    return h(
      "tr",
      { class: isOn ? "" : "jv-faded", "data-key": "plan" },
      h("td.jv-col-switch", toggle),
      h("td.jv-col-name", { title: what }, h("strong", "the plan"), " of plan_remat"),
      ...(planned === null
        ? this.cells(UNKNOWN, "if switched on")
        : this.cells(isOn ? AS_WRITTEN : planned, isOn ? "if switched off" : "if switched on")),
      h("td.jv-col-nbytes"),
    );
  }

  private region(i: number, key: string): { tr: HTMLElement; rows: number[] } {
    const { name, line, row, isWritten } = this.settings.table.regions[i]!;
    const isOn = this.switches.setting.regions.has(i);
    const n = this.settings.valuesOf[i]!.length;
    const flip = () => this.switches.flip(i);
    const rows = row >= 0 ? [row] : [];
    const tr = h(
      "tr",
      {
        class: isOn ? "" : "jv-faded",
        "data-testid": "what-if-region",
        "data-key": `around ${i}`,
        onclick: () => rows.length > 0 && this.state.selectRows(rows),
      },
      h(
        "td.jv-col-switch",
        this.switch(
          isOn ? "on" : "off",
          isOn ? "true" : "false",
          key,
          `checkpoint around ${name}`,
          isWritten ? "the function has this checkpoint" : "",
          flip,
          (event) => onRowKey(event, this.around, ".jv-switch", flip),
        ),
      ),
      h(
        "td.jv-col-name",
        {
          title: `${name} ${line}: ${plural(n, "value")} that it recomputes, or saves`,
        },
        h(
          "div.jv-value.jv-baseline",
          h("span", name),
          line && !name.endsWith(line) && h("span.jv-dim.jv-cut", line),
        ),
      ),
      ...this.cells(key, isOn ? "if switched off" : "if switched on"),
      h("td.jv-col-nbytes"),
    );
    return { tr, rows };
  }

  /** The rows above the groups. */
  private headOf({ regions }: Setting, n: number): HTMLElement {
    const text =
      regions.size === 0
        ? "Without a checkpoint everything is saved. Switch one on above, and choose here what it saves."
        : n > 0
          ? "What the checkpoints save and recompute:"
          : "It has no values to choose from.";
    return h("tr.jv-wide", h("td.jv-dim", { colspan: HEADS.length }, text));
  }

  private line(row: Row): { tr: HTMLElement; rows: number[] } {
    const { values, group, saved, offloaded, what, type, nbytes, isInside, next } = row;
    const { model } = this.state;
    const many = values.length > 1;
    const made = values.map((v) => this.settings.table.values.row[v]!).filter((at) => at >= 0);
    const place = made.length > 0 ? model.place(made[0]!) : null;
    const isOpen = this.opened.has(group);
    const isAll = saved === values.length;
    const flip = () => this.switches.set(values, isAll ? "recomputed" : "saved");
    const fold = (event: Event) => {
      event.stopPropagation();
      if (!this.opened.delete(group)) this.opened.add(group);
      this.show();
      this.switches.want(() => this.keys);
    };
    const key = this.settings.key(next);
    const tr = h(
      "tr",
      {
        class: `${saved > 0 ? "" : "jv-faded"} ${isInside ? "jv-inside" : ""}`,
        "data-testid": "what-if-row",
        "data-key": isInside || !many ? `value ${values[0]}` : `all of ${group}`,
        onclick: () => made.length > 0 && this.state.selectRows(made),
      },
      h(
        "td.jv-col-switch",
        this.switch(
          isAll ? (offloaded === saved ? "on host" : "saved") : saved > 0 ? `${saved} saved` : "recomputed",
          isAll ? "true" : saved > 0 ? "mixed" : "false",
          key,
          many ? `save all ${values.length} of ${what}` : `save ${what}`,
          many ? `one switch for all ${values.length}` : "",
          flip,
          (event) => {
            if (many && event.key === (isOpen ? "ArrowLeft" : "ArrowRight")) fold(event);
            else onRowKey(event, this.body, ".jv-switch", flip);
          },
        ),
        this.hostSwitch(row),
      ),
      h(
        "td.jv-col-name",
        many && foldButton(isOpen, `the ${values.length} of ${what}`, "what-if-fold", fold),
        h(
          "div.jv-value.jv-baseline",
          { title: `${what} ${type} ${model.placeTitle(place)}` },
          h("code", what),
          isInside && made.length > 0 && h("code.jv-dim", model.atomText(model.outputs(made[0]!)[0]!)),
          h("span.jv-dim.jv-cut", h("code", type), ` ${model.placeText(place)}`),
        ),
      ),
      ...this.cells(key, isAll ? "if recomputed" : saved > 0 ? "if all saved" : "if saved"),
      h("td.jv-col-nbytes", { "data-head": "bytes" }, formatBytes(nbytes)),
    );
    return { tr, rows: made };
  }

  /** The switch that offloads a row's values to the host; null if its effect is unknown and cannot be computed. */
  private hostSwitch({ values, offloaded, what, nextOnHost }: Row): HTMLElement | null {
    const { switches, settings } = this;
    const key = settings.key(nextOnHost);
    if (!switches.canAsk && !switches.isKnown(key)) return null;
    const isOn = offloaded === values.length;
    const [now, next] = [switches.trade(), switches.trade(key)];
    const [peak, moved] = [0, 3].map((i) => now && next && fromTo(now[i]!, next[i]!).join(" → "));
    const changes = peak ? `peak ${peak}, offloaded ${moved}` : switches.reason(key) || "not computed yet";
    return button(
      "host",
      (event: MouseEvent) => {
        event.stopPropagation();
        switches.set(values, isOn ? "saved" : "offloaded");
      },
      {
        class: "jv-host jv-dim",
        "aria-pressed": isOn ? "true" : offloaded > 0 ? "mixed" : "false",
        "aria-label": `offload ${what} to the host`,
        title: `${isOn ? "save on the device" : "offload to the host's memory"}: ${changes}`,
        "data-testid": "what-if-host",
      },
    );
  }

  private more(n: number): HTMLElement {
    const all = () => {
      this.limit = n;
      this.show();
    };
    return h("tr", h("td", { colspan: HEADS.length }, button(`Show all ${plural(n, "value")}`, all)));
  }
}

/** A line of code, or of a diff. */
function lineOf(line: string): HTMLElement {
  const how = /^\+(?!\+\+ )/.test(line) ? "jv-less" : /^-(?!-- )/.test(line) ? "jv-more" : "";
  return h("span", { class: how }, ...(how ? [line] : coloured(line)));
}
