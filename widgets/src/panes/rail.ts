/** The top bar: stages, badge and help. */

import { formatCount, plural } from "../base/format";
import type { Matches } from "../model/changes";
import { transformsOf } from "../model/player";
import { isLookedFor, type Progress } from "../model/work";
import type { Extra, State, View } from "../state/state";
import { button, h } from "../ui/dom";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";
import { type Finder, SearchBox } from "./search";

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
  ["diff", "What differs", "The two versions side by side, source and equations aligned line by line"],
  ["kept", "Why is it saved", "What is saved and why, with the equations that make it and read it"],
  [
    "derived",
    "How was it derived",
    "The rules that derive it, step by step; R closes them, and shows the function beside its linearization",
  ],
  [
    "cost",
    "What does it cost",
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
  private readonly pick = h("select.jv-pick", {
    "aria-label": "question",
    "data-testid": "question",
    "data-lm-suppress-shortcuts": "true",
  });
  private readonly headline = h("span.jv-headline", { "data-testid": "headline" });
  private readonly advice = h("span.jv-head-advice.jv-cut");
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
    loadFinder: () => Promise<Finder>,
  ) {
    const { view } = state.model;
    const shown = [...view.stages, COMPILED];
    const stages = shown.map((stage, i) => {
      const n = stage.equations[1] - stage.equations[0];
      const count = h("span.jv-count.jv-dim", stage.error ? "!" : formatCount(n));
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
        class: "jv-beside jv-dim",
        title: `${stage.label} in a second pane (Shift + ${i + 1})`,
        "aria-label": `show ${stage.label} beside`,
        "data-testid": `beside-${stage.key}`,
      });
      this.buttons.push(own);
      this.beside.push(split);
      return h("span.jv-stage-group.jv-inline", own, split);
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
    this.search = new SearchBox(state, loadFinder);
    const questions = questionsOf(state);
    this.pick.append(h("option", { value: "", hidden: true }, "Stages")); // what is shown without a question
    for (const [key, text, title] of VIEWS) {
      const isThere = questions.includes(key);
      this.views.push(
        button(text, () => state.arrange(key), {
          class: "jv-button jv-view",
          title,
          hidden: !isThere,
          "data-testid": `view-${key}`,
        }),
      );
      if (isThere) this.pick.append(h("option", { value: key }, text));
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
      "div.jv-head-bar.jv-wraps.jv-stagebar",
      h("nav.jv-stages.jv-row", { "aria-label": "stages" }, ...stages),
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
      "div.jv-rail",
      h(
        "div.jv-titles",
        h("strong.jv-title.jv-cut", { title: plain }, plain),
        this.headline,
        this.advice,
        h("span.jv-rail-end.jv-row", devices(state), this.badge, this.search.element, help, full),
      ),
      h(
        "div.jv-head-bar.jv-wraps.jv-views",
        h(
          "nav",
          {
            class: `jv-questions jv-flex jv-wraps${state.other ? " has-versions" : ""}`,
            "aria-label": "views",
          },
          ...this.views,
        ),
        h(
          "span.jv-picking",
          step(-1, "‹", "The previous question"),
          this.pick,
          step(1, "›", "The next question"),
        ),
        h("span.jv-rail-end.jv-row", ...this.extras.map(([, each]) => each)),
      ),
      this.stagebar,
    );
  }

  readonly effects: Effects = [
    () => this.fillHeadline(),
    () => this.showViews(),
    () => this.showBadge(),
    () => press(this.play, this.state.player !== null),
    () => this.showStages(),
    [() => this.state.meaning.last, () => this.search.hear()],
  ];

  focus(): void {
    this.search.focus();
  }

  private showViews(): void {
    this.pick.value = this.state.view;
    for (const [i, [key]] of VIEWS.entries()) press(this.views[i]!, this.state.view === key);
    for (const [key, each] of this.extras) press(each, this.state.extras.has(key));
  }

  private showBadge(): void {
    const made = badge(this.state);
    // Work reports its progress often.
    if (made.isEqualNode(this.badge)) return;
    this.badge.replaceWith(made);
    this.badge = made;
  }

  private showStages(): void {
    const { shown, side, compared, linksScrolling, model } = this.state;
    const { left, right } = shown;
    this.fillVersions();
    // The other version's stage is on the other side.
    this.pair.hidden = compared;
    this.link.hidden = right.length === 0 && !compared;
    press(this.link, linksScrolling);
    this.buttons.forEach((button, i) => {
      press(button, left.includes(i) || right.includes(i));
      button.classList.toggle("is-active", shown[side].includes(i));
    });
    for (const [i, button] of this.beside.entries()) press(button, right.includes(i));
    const keys = model.view.stages.map((s) => s.key);
    press(this.pair, keys[left[0]!] === "jvp" && left.length === 1 && right.length === 2);
  }

  /** The headline: what the gradient saves, its peak, and what would lower it. */
  private fillHeadline(): void {
    const { headline } = this.state.model.view;
    const advised = this.state.advised;
    const keeps = [headline.keeps, advised?.idle].filter(Boolean).join("; ");
    const { peak } = headline;
    const said = (text: string, name: string) =>
      text !== "" &&
      h(
        "span",
        { class: `jv-head-part jv-dim jv-cut jv-head-${name}`, title: text.replaceAll("`", "") },
        ...loud(text),
      );
    const figures = [
      said(keeps, "keeps"),
      this.state.hasMemory ? said(peak, "peak") : said("computing the peak…", "waits"),
    ];
    this.headline.replaceChildren(...figures.filter((part) => part instanceof Node));
    // Its line is there from the start, so that nothing moves when it is filled.
    this.advice.hidden = !this.state.hasOverview;
    this.advice.replaceChildren(
      !advised?.sentence
        ? h("span.jv-dim", isLookedFor(this.state.advice) ? "looking for a plan with a lower peak…" : "")
        : advised.setting === ""
          ? h("span.jv-dim", ...marked(advised.sentence))
          : button(marked(advised.sentence), () => this.state.arrange("what-if"), {
              class: "jv-advice jv-bare",
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
      h("span.jv-removed", `−${formatCount(gone)}`),
      " ",
      h("span.jv-added", `+${formatCount(added)}`),
      compared ? " before ∥ after" : " since before",
    );
    this.versions.title = `${plural(gone, "equation")} only in the previous version, ${formatCount(added)} only in this one; show both side by side (C)`;
    press(this.versions, compared);
  }
}

/** Shows whether a button is pressed. */
function press(button: HTMLElement, isPressed: boolean): void {
  button.classList.toggle("is-shown", isPressed);
  button.setAttribute("aria-pressed", String(isPressed));
}

/** A sentence with its first amount in bold. */
function loud(text: string): (Node | string)[] {
  const found = /[\d.,]+ [KMGT]?i?B/.exec(text);
  if (found === null) return marked(text);
  const [amount] = found;
  const [before, after] = [text.slice(0, found.index), text.slice(found.index + amount.length)];
  return [before, h("strong", amount), ...marked(after)];
}

/** `cpu:0`, or `8 × cpu`; the tooltip says which and why. */
function devices(state: State): HTMLElement {
  const { devices, placement } = state.model.view;
  const [first] = devices;
  if (first === undefined) return h("span");
  const text = devices.length === 1 ? first : `${devices.length} × ${first.split(":")[0]}`;
  return h(
    "span.jv-devices.jv-dim.jv-nowrap",
    { title: `runs on ${placement}`, "data-testid": "devices" },
    text,
  );
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
  const waited = state.isWhole ? state.check : state.rest;
  if (check === null) {
    const { progress } = waited;
    // A page saved before the answer arrived has no kernel to ask.
    const isAsked = waited === state.rest || progress.state !== "none";
    return h("span.jv-badge.jv-small.jv-badge-waits.jv-dim", isAsked ? WAITING[progress.state] : "");
  }
  const mark = { agrees: "✓", differs: "≠", unknown: "?" }[check.status];
  const compared = { agrees: "as in JAX", differs: "not as in JAX", unknown: "not compared" }[check.status];
  const short = check.summary.includes("not opened") ? `${compared}, partly not opened` : compared;
  const label = h(
    "span",
    { title: check.summary },
    `${mark} `,
    h("span.jv-long", check.summary),
    h("span.jv-short", { "aria-hidden": "true" }, short),
  );
  if (check.differences.length === 0)
    return h("span", { class: `jv-badge jv-small jv-badge-${check.status}`, "data-testid": "badge" }, label);
  return h(
    "details",
    { class: `jv-badge jv-small jv-badge-${check.status}`, "data-testid": "badge" },
    h("summary", label),
    h("ul.jv-popup", ...check.differences.map((d) => h("li", d))),
  );
}
