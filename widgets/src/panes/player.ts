/** The rewrite player: the source program on the left, the rule of a step in the middle, the resulting programs on the right. */

import { inSlices } from "../base/slices";
import { Player, type Transform, transformsOf } from "../model/player";
import { type Rules, rulesOf, ruling } from "../model/rule";
import type { Side, State } from "../state/state";
import { button, h } from "../ui/dom";
import { type Effects, guarded, type Pane } from "../ui/pane";
import { stepCard } from "./card";
import { PlayBar, type Played } from "./playbar";

/** Up to this many equations, over all stages, the steps are computed synchronously. */
const AT_ONCE = 3000;

const SPEEDS = [0.5, 1, 2, 4, 16];

export class PlayerPane implements Played {
  readonly element: HTMLElement;
  readonly stays = 1600;
  private readonly transforms: Transform[];
  private readonly rules = new Map<Transform, Rules>();
  private readonly tabs: HTMLButtonElement[];
  private readonly before = h("div.jv-play-side.jv-fills.jv-column");
  private readonly after = h("div.jv-play-side.jv-fills.jv-column");
  private readonly card = h("section.jv-pane.jv-column.jv-rule.jv-scroll", {
    "aria-label": "rule",
    "data-testid": "rule",
    tabindex: 0,
  });
  private readonly said = h("p.jv-step-said", { "aria-live": "polite", "data-testid": "step-said" });
  private readonly only = h("input", {
    type: "checkbox",
    "data-testid": "only-adding",
    onchange: () => this.setOnly(this.only.checked),
  });
  private readonly bar: PlayBar;
  private codes: Pane[] = [];
  /** Counts openings, so that only the last one takes effect. */
  private opening = 0;
  /** What is being opened. */
  private wanted: Transform | null = null;
  private shown: Transform | null = null;
  private fullParams: boolean;
  /** The stages that were shown when this was opened. */
  private over: Pick<State, "shown" | "form" | "compared">;

  constructor(
    private readonly state: State,
    private readonly root: HTMLElement,
    /** Shows a stage as code; in the main module. */
    private readonly codeOf: (stage: number, side: Side) => Pane,
  ) {
    this.transforms = transformsOf(state.model);
    this.fullParams = state.fullParams;
    const { shown, form, compared } = state;
    this.over = { shown, form, compared };
    this.tabs = this.transforms.map((transform) =>
      button(transform.label, () => this.open(transform), {
        title: transform.key,
        "data-testid": `play-${transform.key}`,
      }),
    );
    this.bar = new PlayBar("step", this, SPEEDS);
    const close = this.bar.button("×", "Close the player (R or Esc)", "close", () => this.close());
    close.className = "jv-close";
    close.dataset["testid"] = "player-close";
    this.element = h(
      "section.jv-player.jv-fills.jv-column",
      {
        "aria-label": "rewrite player",
        "data-testid": "player",
        tabindex: -1,
        hidden: true,
      },
      this.bar.element(
        Object.values(this.bar.buttons),
        [h("span.jv-play-tabs", { role: "group", "aria-label": "transform" }, ...this.tabs)],
        [h("label.jv-only.jv-inline.jv-nowrap", this.only, "only steps that add equations"), close],
      ),
      h("div.jv-play-row.jv-flex.jv-fills", this.before, this.card, this.after),
      this.said,
    );
    // In the capture phase: these keys have other meanings in the panes and the explorer.
    root.addEventListener("keydown", this.onKey, true);
  }

  readonly effects: Effects = [
    [() => this.state.selection, () => this.goToSelected()],
    [() => this.state.isWhole, () => this.reopen()],
    [() => [this.state.shown, this.state.form, this.state.compared, this.state.view], () => this.giveWay()],
    [() => [this.state.player, this.state.fullParams], () => this.show()],
  ];

  private goToSelected(): void {
    const { player } = this.state;
    const step = player ? this.stepOfSelection(player.play) : -1;
    if (step >= 0 && step !== player?.step) this.go(step);
  }

  /** Leaves if the user has turned to another question, or to a stage since this was opened. */
  private giveWay(): void {
    const { shown, form, compared, showsRules, player } = this.state;
    const isSame = shown === this.over.shown && form === this.over.form && compared === this.over.compared;
    if (isSame && showsRules) return;
    this.opening += 1;
    this.wanted = null;
    if (player) this.leave();
  }

  destroy(): void {
    this.opening += 1;
    this.bar.pause();
    this.root.removeEventListener("keydown", this.onKey, true);
    this.clear();
  }

  /** Opens the player at the selected equation, or closes it. */
  toggle(): void {
    if (this.state.player) this.close();
    else this.open();
  }

  focus(): void {
    this.element.focus({ preventScroll: true });
  }

  /** Opens the player anew. */
  start(): void {
    if (this.state.player) this.leave();
    this.open();
  }

  private open(transform = this.fitting()): void {
    if (transform === undefined) return;
    const { shown, form, compared } = this.state;
    this.over = { shown, form, compared };
    this.bar.pause();
    this.opening += 1;
    this.wanted = transform;
    const mine = this.opening;
    const { model } = this.state;
    const rules = this.rules.get(transform) ?? (model.rows <= AT_ONCE ? rulesOf(model, transform) : null);
    if (rules !== null) this.begin(transform, rules);
    else
      void inSlices(ruling(model, transform), () => mine === this.opening).then((found) =>
        this.begin(transform, found),
      );
  }

  /** Reads the steps again once the relations between variables are complete. */
  private reopen(): void {
    this.rules.clear();
    const transform = this.wanted ?? this.state.player?.play.transform;
    if (transform) this.open(transform);
  }

  private begin(transform: Transform, rules: Rules): void {
    this.rules.set(transform, rules);
    this.wanted = null;
    const { player } = this.state;
    const selected = this.stepOfSelection(rules.play);
    if (rules.play.length > 0)
      this.state.setPlayer(new Player(rules, Math.max(0, selected), player?.onlyAdding ?? false));
    if (!player) this.focus();
  }

  /** The step of the first selected equation that has one, or -1. */
  private stepOfSelection({ stepOf }: Rules["play"]): number {
    for (const row of this.state.selection.rows) if (stepOf[row]! >= 0) return stepOf[row]!;
    return -1;
  }

  /** The transform of the stages shown, or else the first. */
  private fitting(): Transform | undefined {
    const { left, right } = this.state.shown;
    const shown = [...left, ...right];
    const makes = (t: Transform) => t.targets.some((target) => shown.includes(target));
    return this.transforms.find(makes) ?? this.transforms[0];
  }

  private leave(): void {
    this.bar.pause();
    this.state.setPlayer(null);
  }

  private close(): void {
    const { player } = this.state;
    if (!player) return;
    this.leave();
    this.state.goTo(player.play.sources[player.step]!);
    this.root.focus({ preventScroll: true });
  }

  go(step: number): void {
    const { player } = this.state;
    if (player) this.state.setPlayer(player.at(Math.min(player.play.length - 1, Math.max(0, step))));
  }

  /** The next or the previous step, or -1. */
  private beside(by: 1 | -1): number {
    const { player } = this.state;
    return player === null ? -1 : player.play.next(player.step, by, player.onlyAdding);
  }

  move(by: 1 | -1): boolean {
    const next = this.beside(by);
    if (next >= 0) this.go(next);
    return next >= 0;
  }

  advance(): boolean {
    return this.move(1);
  }

  get isAtEnd(): boolean {
    return this.beside(1) < 0;
  }

  private setOnly(onlyAdding: boolean): void {
    const { player } = this.state;
    if (!player) return;
    const { play, step } = player;
    const near = play.adds[step] ? step : play.next(step, 1, true);
    this.state.setPlayer(player.at(onlyAdding && near >= 0 ? near : step, onlyAdding));
  }

  private readonly onKey = (event: KeyboardEvent): void => {
    if (!this.state.player || event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.root.querySelector("dialog[open]")) return;
    const target = event.target as Element;
    const isValue = target.matches("select, input[type=range]");
    const isControl = target.matches("button, input, select, summary");
    const isCode = target.closest(".jv-code") !== null;
    const act: Record<string, false | (() => void)> = {
      ArrowRight: !isValue && (() => this.move(1)),
      ArrowLeft: !isValue && (() => this.move(-1)),
      ArrowDown: isCode && (() => this.move(1)),
      ArrowUp: isCode && (() => this.move(-1)),
      ".": () => this.move(1),
      ",": () => this.move(-1),
      Home: !isValue && (() => this.go(0)),
      End: !isValue && (() => this.go(this.state.player!.play.length - 1)),
      " ": !isControl && (() => this.bar.playOrPause()),
      Escape: () => this.close(),
    };
    const does = act[event.key];
    if (!does) return;
    does();
    event.preventDefault();
    event.stopPropagation();
  };

  private show(): void {
    const { player, fullParams } = this.state;
    if (fullParams !== this.fullParams) this.clear();
    this.fullParams = fullParams;
    this.element.hidden = player === null;
    this.root.classList.toggle("is-playing", player !== null);
    if (!player) {
      this.clear();
      return;
    }
    this.showStages(player.play.transform);
    const { play, step, onlyAdding } = player;
    this.bar.show(step, play.length);
    this.only.checked = onlyAdding;
    const { first, back, on, last } = this.bar.buttons;
    first.disabled = step === 0;
    last.disabled = step === play.length - 1;
    back.disabled = this.beside(-1) < 0;
    on.disabled = this.beside(1) < 0;
    this.card.replaceChildren(...stepCard(player));
    this.card.scrollTop = 0;
    this.said.textContent = `Step ${step + 1}: ${player.rule.sentence}`;
  }

  private clear(): void {
    for (const code of this.codes) {
      code.destroy?.();
      code.element.remove();
    }
    this.codes = [];
    this.shown = null;
  }

  private showStages(transform: Transform): void {
    if (this.shown === transform) return;
    this.clear();
    this.shown = transform;
    const make = (stage: number, side: Side) => guarded("code", () => this.codeOf(stage, side));
    const source = make(transform.source, "left");
    const targets = transform.targets.map((stage) => make(stage, "right"));
    this.codes = [source, ...targets];
    this.before.replaceChildren(source.element);
    this.after.replaceChildren(...targets.map((t) => t.element));
    this.transforms.forEach((t, i) => {
      this.tabs[i]!.classList.toggle("is-shown", t === transform);
      this.tabs[i]!.setAttribute("aria-pressed", String(t === transform));
    });
  }
}
