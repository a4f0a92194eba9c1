/** The pane of the compiled stage: StableHLO and optimised HLO, with each line linked to the equations it comes from. */

import { formatCount, plural } from "../base/format";
import type { Look, Text, TextView } from "../code/editor";
import type { Compilation } from "../host/sync";
import { exchangingRows } from "../model/exchanges";
import type { Work } from "../model/work";
import { closestOf, type Lit, litAs } from "../state/lit";
import type { Side, State } from "../state/state";
import { button, h, type Segment, section, segments } from "../ui/dom";
import { focused } from "../ui/focus";
import { closeButton, markSide, message } from "../ui/head";
import { marked } from "../ui/marked";
import type { Effects, Listing } from "../ui/pane";
import { Waiting } from "../ui/waiting";
import type { Compiled, CompiledText, Lowered } from "../wire/explorer.generated";
import { CompiledPeakView } from "./compiledpeak";
import { Linked, partsOf } from "./compiledtext";

type Which = "memory" | "stablehlo" | "hlo";

const NAMES: Record<Which, string> = {
  memory: "memory at its peak",
  stablehlo: "StableHLO",
  hlo: "optimised HLO",
};
const ABOUT: Record<Which, string> = {
  memory: "XLA's memory while the program runs, beside the model",
  stablehlo: "the program that JAX passes to XLA",
  hlo: "the program that XLA compiles it to, without row-major layouts and metadata",
};
const NO_LINE = {
  stablehlo: "no operation of its own: folded or shared",
  hlo: "no instruction left: folded or shared",
};

const GONE =
  "Its result is a constant or that of another equation, or nothing reads it; or XLA left no metadata on its instructions.";

const COMPILING =
  "Compiling forward and backward as one program… This is done once. XLA itself cannot be interrupted: if you stop, the kernel is free again, and XLA continues in the background.";
const COMPILING_BLOCK = "Compiling forward and backward with one block alone…";

/** States in which there may still be a result. */
const UNDER_WAY = ["asked", "late", "working", "stopping", "left"];

/** How many source locations are shown after a line. */
const MOST_PLACES = 2;

/** The letter in the margin for each pass. */
const LETTERS: Record<string, string> = { forward: "F", backward: "B", both: "FB", primal: "" };

export class CompiledPane {
  readonly element: HTMLElement;
  private readonly body = h("div.jv-code-body.jv-scroll");
  /** The buttons of the texts that there are. */
  private switches = h("span.jv-which");
  private readonly about = h("span.jv-dim.jv-cut");
  private readonly missing = h("span.jv-missing", {
    role: "status",
    hidden: true,
    "data-testid": "no-instruction",
  });
  private waiting: { of: Work; shown: Waiting; about: string } | null = null;
  /** The text of the compiled program currently shown. */
  private filled = "";
  private compiled: Compiled | null = null;
  /** The equations of each row of the communication table. */
  private exchanging: readonly (readonly number[])[] = [];
  private which: Which = "hlo";
  private text: Text | null = null;
  private memory: CompiledPeakView | null = null;
  private linked: Linked | null = null;
  /** The selected rows, and the rows that represent them. */
  private selected = new Set<number>();

  constructor(
    private readonly state: State,
    private readonly source: Compilation,
    private readonly side: Side,
    private readonly root: HTMLElement,
    /** The editor, which is in the main module. */
    private readonly textView: TextView,
  ) {
    this.element = section(
      {
        class: "jv-pane jv-column jv-code jv-compiled",
        "aria-label": "the compiled program",
        "data-testid": `code-${side}`,
        "data-stage": "compiled",
        tabindex: -1,
        onfocusin: () => state.use(side),
        onpointerdown: () => state.use(side),
      },
      [h("strong", "compiled"), this.switches, this.about, side === "right" && closeButton(state)],
      this.body,
      this.missing,
    );
  }

  readonly effects: Effects = [
    () => markSide(this.element, this.state, this.side),
    [() => this.state.hasMemory, () => this.memory !== null && this.fillWith("memory")],
    [() => [this.source.whole.progress, this.source.block.progress], () => this.fill()],
    [
      () => this.state.selection,
      () => {
        this.memory?.light();
        this.light();
        this.bringIntoSight();
      },
    ],
  ];

  destroy(): void {
    this.waiting?.shown.destroy();
    this.text?.view.destroy();
    this.memory?.destroy();
  }

  get listing(): Listing | null {
    return this.text?.listing ?? null;
  }

  /** Selects the equations of the next or previous line. */
  step(by: 1 | -1): boolean {
    const { linked } = this;
    if (linked === null) return false;
    const lines = this.selectedLines();
    const start = by > 0 ? (lines.at(-1) ?? this.firstInSight() - 1) : (lines[0] ?? this.firstInSight());
    const current = lines.length > 0 ? key(linked.rows[start]!) : "";
    let line = start + by;
    while (linked.rows[line] !== undefined && ["", current].includes(key(linked.rows[line]!))) line += by;
    const rows = linked.rows[line];
    if (rows !== undefined) this.state.selectRows(rows);
    return true;
  }

  focus(): void {
    (this.element.querySelector<HTMLElement>(".cm-content, .jv-compiled-peak") ?? this.element).focus({
      preventScroll: true,
    });
  }

  private fill(): void {
    const { whole, block } = this.source;
    const text = whole.read();
    const isUnderWay = (work: Work) => UNDER_WAY.includes(work.progress.state);
    if (text === "" || isUnderWay(block) || isUnderWay(whole)) {
      const isOfBlock = block.progress.state !== "none" && block.progress.since >= whole.progress.since;
      this.wait(isOfBlock ? block : whole, isOfBlock ? COMPILING_BLOCK : COMPILING);
      return;
    }
    if (this.waiting === null && text === this.filled) return;
    this.waiting?.shown.destroy();
    this.waiting = null;
    this.filled = text;
    const answer = JSON.parse(text) as Compiled | { error: string; block?: string };
    if (!("stablehlo" in answer)) {
      this.clear();
      this.offerTexts();
      const said = message("There is no compiled program", answer.error, "not-compiled");
      this.body.replaceChildren(said, ...this.offer(answer.block ?? ""));
      return;
    }
    this.compiled = answer;
    this.exchanging = exchangingRows(this.state.model, answer);
    const first = answer.memory !== null ? "memory" : answer.hlo === null ? "stablehlo" : "hlo";
    const option = (name: Which): Segment<Which> => [
      name,
      name === "memory" && answer.exchanges !== null ? "memory and collectives" : NAMES[name],
      { title: ABOUT[name], "data-testid": `text-${name}` },
    ];
    const all = [...(answer.memory === null ? [] : [option("memory")]), option("stablehlo"), option("hlo")];
    this.offerTexts(segments("which text", all, first, (which) => this.fillWith(which)));
    this.fillWith(first);
  }

  /** Shows progress; below it, once it exists, the program that JAX passes to XLA. */
  private wait(of: Work, what: string): void {
    const isNew = this.waiting?.of !== of;
    if (isNew) {
      this.waiting?.shown.destroy();
      this.waiting = { of, shown: new Waiting(of, what, "compiling"), about: "" };
      if (of.progress.state === "none") of.ask();
    }
    const { waiting } = this;
    if (waiting === null) return; // it was already there
    const given = this.source.lowered();
    const about = `${given} ${of.progress.state === "working" && of.canStop} ${of.progress.state}`;
    if (!isNew && about === waiting.about) return;
    const isSame = !isNew && waiting.about.startsWith(given) && given !== "";
    waiting.about = about;
    const lowered = given === "" ? null : (JSON.parse(given) as Lowered);
    const isOfBlock = of === this.source.block;
    const isStopped = of.progress.state === "stopped";
    const offered = isOfBlock && !isStopped ? [] : this.offer(lowered?.block ?? "", isOfBlock);
    if (isSame) {
      this.body.querySelector(".jv-compiled-block")?.remove();
      waiting.shown.element.after(...offered);
      return;
    }
    this.clear();
    this.offerTexts();
    const at = focused(this.body) as HTMLElement | null;
    // Elements that stay in place keep the focus, even if hidden for a moment.
    if (this.body.firstElementChild !== waiting.shown.element)
      this.body.replaceChildren(waiting.shown.element);
    while (waiting.shown.element.nextSibling) waiting.shown.element.nextSibling.remove();
    this.body.append(...offered);
    if (lowered !== null) this.showLowered(lowered, waiting.shown.element, offered);
    // Keep the focus on a button that was pressed.
    if (waiting.shown.element.contains(at)) at?.focus({ preventScroll: true });
  }

  private showLowered(lowered: Lowered, waiting: HTMLElement, offered: HTMLElement[]): void {
    this.which = "stablehlo";
    const linked = this.showText("stablehlo", lowered.stablehlo, lowered.stages, offered);
    this.body.prepend(waiting);
    this.about.textContent = `${lowered.backend} · ${NAMES.stablehlo}, ${plural(linked.lines.length, "line")}`;
    this.about.title = ABOUT.stablehlo;
  }

  /** Offers to compile one of several equal blocks alone, or after that, the whole program. */
  private offer(blocks: string, isBlock = false): HTMLElement[] {
    const { whole, block } = this.source;
    if (blocks === "" || (whole.progress.state === "working" && !whole.canStop)) return [];
    const act = () => {
      if (whole.progress.state === "working") whole.cancel();
      (isBlock ? whole : block).ask();
    };
    const text = isBlock ? "Compile all of it" : "Compile one block alone";
    const said = isBlock ? [] : [`There are ${blocks}.`];
    return [
      h(
        "p.jv-compiled-block.jv-ruled.jv-fixed.jv-wraps.jv-baseline",
        ...said.flatMap((each) => marked(each)),
        button(text, act, { "data-testid": isBlock ? "compile-all" : "compile-block" }),
      ),
    ];
  }

  private clear(): void {
    this.text?.view.destroy();
    this.text = null;
    this.linked = null;
    this.memory?.destroy();
    this.memory = null;
    this.missing.hidden = true;
    this.about.textContent = "";
  }

  /** Offers the texts that there are; none while there is no answer. */
  private offerTexts(buttons = h("span")): void {
    buttons.classList.add("jv-which");
    this.switches.replaceWith(buttons);
    this.switches = buttons;
  }

  private fillWith(which: Which): void {
    const { compiled, state } = this;
    if (compiled === null) return;
    this.which = which;
    this.clear();
    if (which === "memory" && compiled.memory !== null) {
      this.about.textContent = compiled.backend;
      this.about.title = ABOUT.memory;
      this.missing.hidden = true;
      this.memory = new CompiledPeakView(state, compiled.memory, compiled.exchanges, this.exchanging);
      this.body.replaceChildren(...this.offered(compiled), this.memory.element);
      return;
    }
    this.fillWithText(which === "stablehlo" ? "stablehlo" : "hlo", compiled);
  }

  private fillWithText(which: "hlo" | "stablehlo", compiled: Compiled): void {
    const text = compiled[which];
    const notes = compiled.notes.map((note) => h("p.jv-note.jv-ruled", ...marked(note)));
    if (text === null) {
      this.about.textContent = "";
      this.missing.hidden = true;
      this.body.replaceChildren(...notes, message("XLA did not compile it", compiled.error, "not-compiled"));
      return;
    }
    const linked = this.showText(which, text, compiled.stages, [...this.offered(compiled), ...notes]);
    const { total, without } = linked.gone();
    const gone = without > 0 && !compiled.isBlock ? ` · ${plural(without, "equation")} without a line` : "";
    this.about.textContent = `${compiled.backend}${gone}`;
    this.about.title = [
      `${NAMES[which]}: ${ABOUT[which]}`,
      `${plural(linked.lines.length + linked.cut, "line")}; ${formatCount(without)} of ${plural(total, "equation")} have none. ${GONE}`,
    ].join("\n");
    const entry = linked.lines.findIndex((line) => line.startsWith("ENTRY "));
    if (!this.bringIntoSight() && entry >= 0) this.text?.scrollTo(entry, "start");
  }

  private offered({ block, isBlock }: Compiled): HTMLElement[] {
    return isBlock ? this.offer(block, true) : [];
  }

  /** Shows a text below its description. */
  private showText(
    which: "hlo" | "stablehlo",
    text: CompiledText,
    stages: readonly [string, number][],
    above: readonly HTMLElement[],
  ): Linked {
    const { state } = this;
    const linked = new Linked(state.model, text, stages);
    this.linked = linked;
    this.text = this.textView(this.root, {
      label: NAMES[which],
      lines: linked.lines,
      rows: linked.rows,
      looks: () => (line) => this.look(linked, line),
      choose: (line) => {
        const rows = linked.rows[line]!;
        if (rows.length > 0) state.selectRows(rows);
      },
      step: (by) => this.step(by),
    });
    const cut =
      linked.cut > 0 ? [message("", `${plural(linked.cut, "more line")} are not shown`, "cut")] : [];
    this.body.replaceChildren(...above, this.text.view.dom, ...cut);
    this.light();
    return linked;
  }

  /** Highlights the lines of the selection, or says that there are none. */
  private light(): void {
    const { linked, text } = this;
    if (linked === null || text === null) return;
    const { rows, descendants } = this.state.selection;
    this.selected = new Set([...rows].flatMap((row) => linked.standingFor(row)));
    const asked = [...rows].some((row) => linked.isCompiled(row)) ? rows : descendants;
    const compiled = [...asked].filter((row) => linked.isCompiled(row));
    const isGone = compiled.length > 0 && !compiled.some((row) => linked.isLeft(row));
    this.missing.textContent = isGone && this.which !== "memory" ? NO_LINE[this.which] : "";
    this.missing.title = isGone ? GONE : "";
    this.missing.hidden = !isGone;
    text.relight();
  }

  private lit(rows: readonly number[]): Lit {
    const { selection } = this.state;
    return closestOf(rows.map((row) => (this.selected.has(row) ? "is-selected" : litAs(selection, row))));
  }

  private selectedLines(): number[] {
    const lines = [...this.selected].flatMap((row) => this.linked?.linesOf.get(row) ?? []);
    return [...new Set(lines)].sort((a, b) => a - b);
  }

  private firstInSight(): number {
    const { listing } = this;
    return listing === null ? 0 : listing.lineAt(listing.scroller.scrollTop);
  }

  /** Scrolls to the nearest highlighted line if none is visible; returns whether there is one. */
  private bringIntoSight(): boolean {
    const { linked, text } = this;
    if (linked === null || text === null) return false;
    const { listing } = text;
    const { descendants, ancestors } = this.state.selection;
    for (const rows of [this.selected, descendants, ancestors]) {
      const lines = [...new Set([...rows].flatMap((row) => linked.linesOf.get(row) ?? []))];
      if (lines.length === 0) continue;
      const { scrollTop, clientHeight } = listing.scroller;
      const away = lines.map((line) => {
        const top = listing.topOf(line);
        return Math.max(scrollTop - top, top + LINE_HEIGHT - scrollTop - clientHeight, 0);
      });
      const least = Math.min(...away);
      if (least > 0 || clientHeight === 0) text.scrollTo(lines[away.indexOf(least)]!, "center");
      return true;
    }
    return false;
  }

  /** The pass of a line, or `both`; empty if neither. */
  private passOf(rows: readonly number[]): string {
    const { model } = this.state;
    const [one = "", ...more] = new Set(rows.map((row) => model.stageKey(row)));
    return more.length > 0 ? "both" : one;
  }

  /** The source lines of a line: `model.py:12`. */
  private behind(rows: readonly number[]): string {
    const { model } = this.state;
    const places = [...new Set(rows.map((row) => model.placeText(model.place(row))).filter(Boolean))];
    const more = places.length > MOST_PLACES ? `, and ${places.length - MOST_PLACES} more` : "";
    return `${places.slice(0, MOST_PLACES).join(", ")}${more}`;
  }

  private look(linked: Linked, line: number): Look {
    const rows = linked.rows[line]!;
    const lit = this.lit(rows);
    const pass = this.passOf(rows);
    const linkedClass = rows.length > 0 ? "is-linked" : "";
    const attributes: Record<string, string> = {
      class: ["jv-line", pass && `jv-line-of-${pass}`, linkedClass, lit].filter(Boolean).join(" "),
    };
    if (pass !== "") {
      attributes["data-pass"] = pass;
      attributes["data-letter"] = LETTERS[pass]!;
    }
    if (lit === "is-selected") attributes["aria-current"] = "true";
    const marks = partsOf(linked.lines[line]!).map(({ from, to, kind }) => ({
      from,
      to,
      name: `jv-${kind}`,
    }));
    return { attributes, marks, behind: this.behind(rows) };
  }
}

const LINE_HEIGHT = 18;

const key = (rows: readonly number[]) => rows.join();
