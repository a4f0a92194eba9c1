/** The top bar: stages, badge and help. */

import type { Progress, Work } from "../host/work";
import type { Matches } from "../model/changes";
import { transformsOf } from "../model/player";
import type { Change, Extra, State, View } from "../state/state";
import { button, h } from "../ui/dom";
import { formatCount, plural } from "../ui/format";
import { marked } from "../ui/marked";
import { SearchBox } from "./search";

export const KEYS: [string, string][] = [
  ["H", "the overview, or forward beside backward; in the overview, the arrow keys go from scope to scope"],
  ["1 … 6", "show a stage"],
  ["Shift + 1 … 6", "show a stage in the other pane"],
  ["L", "JVP beside linearize"],
  ["R", "play a transform, equation by equation; ← → step, Space plays, Home, End"],
  ["↑ ↓", "previous, next equation"],
  ["← →", "fold, unfold the program it holds; of a line of the source, its equations"],
  ["- +", "fold, unfold all of them"],
  ["Shift + ← →", "previous, next variable of the equation"],
  ["Enter, F12", "where the variable is made"],
  ["N, Shift + N", "its next, previous use"],
  ["Alt + ← →", "back, forward again"],
  ["Ctrl + C", "copy the selected equations as JAX text"],
  ["V", "a colour for each value, or none"],
  ["G", "the current pane as a graph, or as code"],
  ["← ↑ → ↓ Enter", "in the graph: along the edges; open or close a box"],
  ["O C", "in the graph: open, close all that is in a box, or everything"],
  ["+ − 0 Z", "in the graph: zoom, see all, zoom to the selection"],
  [
    "F",
    "filter the residuals; in the graph: focus on ancestors and descendants of the selection, on one of them, or off",
  ],
  ["S", "scroll two panes together, or separately"],
  ["C", "the previous version on the left, if there is one"],
  ["E", "show params in full, or shortened"],
  ["W", "everything on the full screen"],
  ["P", "present: one pane in large text; ← → go through the questions, Escape leaves"],
  ["I", "the selection in full"],
  ["/", "search the source, equations, values and scopes; in the graph: its equations"],
  ["X", "in the table of residuals: save one, or recompute it"],
  ["Ctrl + Z, Ctrl + Shift + Z", "undo the last click on a switch, redo it"],
  ["M", "memory over time; ← → move, Enter selects"],
  ["+ − 0", "in a chart over time: zoom, the whole run; also wheel (Ctrl where it scrolls), drag, double click"],
  ["Shift + drag, Shift + ← →", "in a chart over time: select an interval, and list its equations"],
  ["Tab", "next control; arrows move within a table"],
  ["Esc", "clear the selection"],
  ["?", "these keys"],
];

/** The compiled stage, shown after the others. */
const COMPILED = {
  key: "compiled",
  label: "compiled",
  title: "forward and backward as one program: as JAX passes it to XLA, and as XLA compiles it",
  equations: [0, 0] as [number, number],
  error: "",
};

/** The arrangements of the panes; the text before `|` is omitted in narrow pages. */
const VIEWS: [View, string, string][] = [
  [
    "overview",
    "Overview",
    "The gradient over time: what runs, what is saved and for how long, the memory (H)",
  ],
  ["motion", "In motion", "The gradient, step by step: what is saved, what reads it, and the memory"],
  [
    "lines",
    "Line by line",
    "Your code, with the saved bytes and the work of each line; click a line to unfold its equations",
  ],
  ["diff", "What |differs", "The two versions side by side, source and equations aligned line by line"],
  ["kept", "Why is it |saved", "What is saved and why, with the equations that make it and read it"],
  [
    "derived",
    "How was it |derived",
    "The rules that derive it, step by step; R closes them, and shows the function beside its linearization",
  ],
  [
    "cost",
    "What does it |cost",
    "The work and the saved bytes of each line or function, ranked, and the memory over time",
  ],
  ["what-if", "What if", "Checkpoints and what they save, switched on and off"],
];

/** The questions that there are for a function. */
export function questionsOf(state: State): View[] {
  const isThere = (key: View) =>
    key === "overview" || key === "motion" ? state.hasOverview : key !== "diff" || state.other !== null;
  return VIEWS.map(([key]) => key).filter(isThere);
}

export class Rail {
  readonly element: HTMLElement;
  private readonly views: HTMLButtonElement[] = [];
  /** In place of the buttons, on a phone. */
  private readonly pick = h("select", {
    class: "jv-pick",
    "aria-label": "question",
    "data-testid": "question",
    "data-lm-suppress-shortcuts": "true",
  });
  private readonly headline = h("span", { class: "jv-headline", "data-testid": "headline" });
  private readonly advice = h("span", { class: "jv-head-advice" });
  private readonly stagebar: HTMLElement;
  private readonly buttons: HTMLButtonElement[] = [];
  private readonly beside: HTMLButtonElement[] = [];
  private readonly pair: HTMLButtonElement;
  private badge: HTMLElement;
  private readonly play: HTMLButtonElement;
  private readonly versions: HTMLElement;
  private readonly link: HTMLButtonElement;
  private readonly search: SearchBox;
  private readonly extras: readonly [Extra, HTMLButtonElement][];

  constructor(
    private readonly state: State,
    full: HTMLElement,
    onHelp: () => void,
    onPlay: () => void,
  ) {
    const { view } = state.model;
    const shown = [...view.stages, COMPILED];
    const stages = shown.map((stage, i) => {
      const n = stage.equations[1] - stage.equations[0];
      const count = h("span", { class: "jv-count" }, stage.error ? "!" : formatCount(n));
      const own = button(
        [stage.label, stage !== COMPILED && count],
        (event: MouseEvent) => state.showStages([i], event.shiftKey),
        {
          class: `jv-stage${stage.error ? " has-error" : ""}`,
          title: `${stage.title}${stage.error ? `\n${stage.error}` : ""} (key ${i + 1})`,
          "data-testid": `stage-${stage.key}`,
        },
      );
      const split = button("◫", () => state.toggleBeside(i), {
        class: "jv-beside",
        title: `${stage.label} in a second pane (Shift + ${i + 1})`,
        "aria-label": `show ${stage.label} beside`,
        "data-testid": `beside-${stage.key}`,
      });
      this.buttons.push(own);
      this.beside.push(split);
      return h("span", { class: "jv-stage-group" }, own, split);
    });
    this.pair = button("compare jvp with linearize", () => state.compareWithJvp(), {
      title: "JVP beside forward and linear, the two programs of linearize (L)",
      "data-testid": "linearize-vs-jvp",
    });
    this.play = button("▶ steps", onPlay, {
      title: "Step through a transform, equation by equation (R)",
      "data-testid": "play",
      disabled: transformsOf(state.model).length === 0,
    });
    this.link = button("⇅ scroll together", () => state.toggleLinking(), {
      title: "Scroll the other pane to the linked place (S)",
      "data-testid": "link-scrolling",
    });
    this.versions = button([], () => state.compare(!state.compared), {
      class: "jv-button jv-versions",
      hidden: state.other === null,
      "data-testid": "versions",
    });
    const help = button("Help", onHelp, {
      title: "What everything means, and the keys (?)",
      "data-testid": "help",
    });
    this.badge = badge(state);
    this.search = new SearchBox(state);
    const questions = questionsOf(state);
    for (const [key, text, title] of VIEWS) {
      const isThere = questions.includes(key);
      const [word = "", lead = ""] = text.split("|").reverse();
      const label = [lead && h("span", { class: "jv-view-lead" }, lead), h("span", {}, word)];
      this.views.push(
        button(label, () => state.arrange(key), {
          class: "jv-button jv-view",
          title,
          "aria-label": lead + word,
          hidden: !isThere,
          "data-testid": `view-${key}`,
        }),
      );
      if (isThere) this.pick.append(h("option", { value: key }, lead + word));
    }
    this.pick.addEventListener("change", () => state.arrange(this.pick.value as View));
    this.pick.addEventListener("keydown", (event) => event.stopPropagation());
    const step = (by: 1 | -1, text: string, title: string) =>
      button(
        text,
        () => state.arrange(questions[questions.indexOf(state.view) + by] ?? questions.at(by < 0 ? -1 : 0)!),
        {
          "aria-label": title,
        },
      );
    const plain = view.title.replaceAll("`", "").replace(/^./, (letter) => letter.toUpperCase());
    this.stagebar = h(
      "div",
      { class: "jv-stagebar" },
      h("nav", { class: "jv-stages", "aria-label": "stages" }, ...stages),
      this.pair,
      this.play,
      this.link,
      this.versions,
    );
    const extra = (key: Extra, text: string, title: string): [Extra, HTMLButtonElement] => [
      key,
      button(text, () => state.open(key), { title, "data-testid": `open-${key}` }),
    ];
    this.extras = [
      extra("details", "Details", "The selection in full: its type, what it comes from, what reads it (I)"),
      extra("stages", "Stages", "The programs: f, jvp, forward, linear, backward, compiled"),
    ];
    this.element = h(
      "div",
      { class: "jv-rail" },
      h(
        "div",
        { class: "jv-titles" },
        h("strong", { class: "jv-title jv-cut", title: plain }, plain),
        this.headline,
        this.advice,
        h("span", { class: "jv-rail-end" }, devices(state), this.badge, this.search.element, help, full),
      ),
      h(
        "div",
        { class: "jv-views" },
        h(
          "nav",
          { class: `jv-questions${state.other ? " has-versions" : ""}`, "aria-label": "views" },
          ...this.views,
        ),
        h(
          "span",
          { class: "jv-picking" },
          step(-1, "‹", "The previous question"),
          this.pick,
          step(1, "›", "The next question"),
        ),
        h("span", { class: "jv-rail-end" }, ...this.extras.map(([, each]) => each)),
      ),
      this.stagebar,
    );
    this.fillHeadline();
    this.update("view");
    this.update("shown");
  }

  focus(): void {
    this.search.focus();
  }

  update(change: Change): void {
    if (change === "memory" || change === "advice") this.fillHeadline();
    if (change === "view") this.pick.value = this.state.view;
    if (change === "view")
      VIEWS.forEach(([key], i) => {
        const isShown = this.state.view === key;
        this.views[i]!.classList.toggle("is-shown", isShown);
        this.views[i]!.setAttribute("aria-pressed", String(isShown));
      });
    if (change === "view" || change === "extra")
      for (const [key, each] of this.extras) {
        const isOpen = this.state.extras.has(key);
        each.classList.toggle("is-shown", isOpen);
        each.setAttribute("aria-pressed", String(isOpen));
      }
    if (change === "whole") {
      const made = badge(this.state);
      this.badge.replaceWith(made);
      this.badge = made;
    }
    if (change === "player") {
      this.play.classList.toggle("is-shown", this.state.player !== null);
      this.play.setAttribute("aria-pressed", String(this.state.player !== null));
    }
    if (change !== "shown" && change !== "side" && change !== "linking") return;
    const { left, right } = this.state.shown;
    this.fillVersions();
    // The other version's stage is on the other side.
    this.pair.hidden = this.state.compared;
    this.link.hidden = right.length === 0 && !this.state.compared;
    this.link.setAttribute("aria-pressed", String(this.state.linksScrolling));
    this.link.classList.toggle("is-shown", this.state.linksScrolling);
    this.buttons.forEach((button, i) => {
      const place = [left.includes(i) && "left", right.includes(i) && "right"].filter(Boolean).join(" ");
      button.classList.toggle("is-shown", place !== "");
      button.classList.toggle("is-active", (this.state.side === "left" ? left : right).includes(i));
      button.setAttribute("aria-pressed", String(place !== ""));
    });
    this.beside.forEach((button, i) => {
      button.classList.toggle("is-shown", right.includes(i));
      button.setAttribute("aria-pressed", String(right.includes(i)));
    });
    const keys = this.state.model.view.stages.map((s) => s.key);
    const isPair = keys[left[0]!] === "jvp" && left.length === 1 && right.length === 2;
    this.pair.setAttribute("aria-pressed", String(isPair));
    this.pair.classList.toggle("is-shown", isPair);
  }

  /** The headline: what the gradient saves, its peak, and what would lower it. */
  private fillHeadline(): void {
    const { headline, has_memory } = this.state.model.view;
    const { keeps, peak } = headline;
    const advised = this.state.advised;
    const said = (text: string, name: string) =>
      text !== "" &&
      h("span", { class: `jv-head-part jv-head-${name}`, title: text.replaceAll("`", "") }, ...loud(text));
    const figures = [
      said(keeps, "keeps"),
      has_memory ? said(peak, "peak") : said("computing the peak…", "waits"),
    ];
    this.headline.replaceChildren(...figures.filter((part) => part instanceof Node));
    // Its line is there from the start, so that nothing moves when it is filled.
    this.advice.hidden = !this.state.hasOverview;
    this.advice.replaceChildren(
      !advised?.sentence
        ? h(
            "span",
            { class: "jv-dim" },
            isLookedFor(this.state.advice) ? "looking for a plan with a lower peak…" : "",
          )
        : advised.setting === ""
          ? h("span", { class: "jv-dim" }, ...marked(advised.sentence))
          : button(marked(advised.sentence), () => this.state.arrange("what-if"), {
              class: "jv-advice",
              title: "What if: switch these checkpoints",
              "data-testid": "advice",
            }),
    );
  }

  /** How many equations of the stage only the previous version has, and how many only this one. */
  private fillVersions(): void {
    const { other, compared, shown, model } = this.state;
    if (other === null) return;
    const count = (matches: Matches) =>
      shown.left.reduce((n, i) => n + (matches.counts.get(model.view.stages[i]?.key ?? "") ?? 0), 0);
    const [gone, added] = [count(other.state.other!.matches), count(other.matches)];
    this.versions.replaceChildren(
      h("span", { class: "jv-removed" }, `−${formatCount(gone)}`),
      " ",
      h("span", { class: "jv-added" }, `+${formatCount(added)}`),
      compared ? " before ∥ after" : " since before",
    );
    this.versions.title = `${plural(gone, "equation")} only in the previous version, ${formatCount(added)} only in this one; show both side by side (C)`;
    this.versions.setAttribute("aria-pressed", String(compared));
    this.versions.classList.toggle("is-shown", compared);
  }
}

/** Whether the kernel works on something, as far as is known. */
const isLookedFor = ({ progress }: Work) => ["asked", "late", "working"].includes(progress.state);

/** A sentence with its first amount in bold. */
function loud(text: string): (Node | string)[] {
  const found = /[\d.,]+ [KMGT]?i?B/.exec(text);
  if (found === null) return marked(text);
  const [amount] = found;
  const [before, after] = [text.slice(0, found.index), text.slice(found.index + amount.length)];
  return [before, h("strong", {}, amount), ...marked(after)];
}

/** `cpu:0`, or `8 × cpu`; the tooltip says which and why. */
function devices(state: State): HTMLElement {
  const { devices, placement } = state.model.view;
  const [first] = devices;
  if (first === undefined) return h("span", {});
  const text = devices.length === 1 ? first : `${devices.length} × ${first.split(":")[0]}`;
  return h("span", { class: "jv-devices", title: `runs on ${placement}`, "data-testid": "devices" }, text);
}

const WAITING: Record<Progress["state"], string> = {
  none: "comparing with JAX…",
  asked: "comparing with JAX…",
  late: "comparing with JAX…",
  gone: "not compared with JAX",
  working: "comparing with JAX…",
  stopping: "comparing with JAX…",
  left: "not compared with JAX yet",
  stopped: "not compared with JAX",
};

function badge(state: State): HTMLElement {
  const check = state.checked;
  const waited = state.model.view.is_whole ? state.check : state.rest;
  if (check === null) {
    const { progress } = waited;
    // A page saved before the answer arrived has no kernel to ask.
    const isAsked = waited === state.rest || progress.state !== "none";
    return h("span", { class: "jv-badge jv-badge-waits" }, isAsked ? WAITING[progress.state] : "");
  }
  const mark = { agrees: "✓", differs: "≠", unknown: "?" }[check.status];
  const compared = { agrees: "as in JAX", differs: "not as in JAX", unknown: "not compared" }[check.status];
  const short = check.summary.includes("not opened") ? `${compared}, partly not opened` : compared;
  const label = h(
    "span",
    { title: check.summary },
    `${mark} `,
    h("span", { class: "jv-long" }, check.summary),
    h("span", { class: "jv-short", "aria-hidden": "true" }, short),
  );
  if (check.differences.length === 0)
    return h("span", { class: `jv-badge jv-badge-${check.status}`, "data-testid": "badge" }, label);
  return h(
    "details",
    { class: `jv-badge jv-badge-${check.status}`, "data-testid": "badge" },
    h("summary", {}, label),
    h("ul", { class: "jv-popup" }, ...check.differences.map((d) => h("li", {}, d))),
  );
}
