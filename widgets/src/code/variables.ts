/** Variables in a code pane: go to definition, go to uses, and the card on hover. */

import { type Extension, StateEffect, StateField } from "@codemirror/state";
import { EditorView, keymap, showTooltip, type Tooltip, tooltips } from "@codemirror/view";
import type { State } from "../state/state";
import { positionUnder } from "./editor";
import type { Found, Lines } from "./lines";
import { usesText, variableCard } from "./variable";

/** The delays before the card opens and closes, in milliseconds. */
const REST = 250;
const LINGER = 200;

const setTip = StateEffect.define<Tooltip | null>();

/** The card of the hovered variable. */
const tip = StateField.define<Tooltip | null>({
  create: () => null,
  update: (shown, { effects }) => {
    const set = effects.find((e) => e.is(setTip));
    return set === undefined ? shown : set.value;
  },
  provide: (field) => showTooltip.from(field),
});

export class Variables {
  readonly extension: Extension;
  private resting: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly state: State,
    private readonly lines: Lines,
    private readonly view: () => EditorView,
    private readonly tell: (text: string) => void,
    root: HTMLElement,
  ) {
    this.extension = [
      tip,
      // Inside the explorer, whose colours apply there, and not clipped by the pane.
      tooltips({ parent: root, position: "absolute", tooltipSpace: () => root.getBoundingClientRect() }),
      EditorView.domEventHandlers({
        mousemove: (event, view) => {
          const position = positionUnder(event, view);
          this.pointAt(position === null ? null : this.at(position));
          return false;
        },
        mouseleave: () => {
          this.pointAt(null);
          return false;
        },
      }),
      keymap.of([
        { key: "Shift-ArrowLeft", run: () => this.step(-1) },
        { key: "Shift-ArrowRight", run: () => this.step(1) },
        { key: "Enter", run: () => this.goToDefinition() },
        { key: "F12", run: () => this.goToDefinition() },
        { key: "n", run: () => this.goToUse(1) },
        { key: "N", run: () => this.goToUse(-1) },
        { key: "Shift-n", run: () => this.goToUse(-1) },
        { key: "Alt-ArrowLeft", run: () => this.state.retrace(-1) || true },
        { key: "Alt-ArrowRight", run: () => this.state.retrace(1) || true },
      ]),
    ];
  }

  destroy(): void {
    clearTimeout(this.resting);
  }

  /** A click on a use of a variable goes to its definition; elsewhere it selects the equation. */
  choose(line: number, column: number): void {
    const { model } = this.state;
    const { row, program } = this.lines.all[line]!;
    const found = this.lines.variableAt(line, column);
    const v = found?.variable ?? -1;
    // Outside equations, these are inputs and results of a program, possibly donated to a jit.
    const donated = row < 0 ? model.donationsWith(v)[0] : undefined;
    if (donated) this.state.selectRow(donated.row);
    else if (v >= 0 && !found!.isBinder && !this.state.player)
      this.state.goToVariable(v, model.definition(v, program));
    else {
      if (row >= 0) this.state.selectRow(row);
      if (v >= 0) this.state.standOn(v);
    }
  }

  /** Announces the current variable; returns the line that binds it if it is a program's input. */
  stand(says: (text: string) => void): number {
    const { variable, model } = this.state;
    const line = variable < 0 ? -1 : (this.lines.bindings.get(variable) ?? -1);
    if (line < 0) {
      this.closeCard();
      return -1;
    }
    const uses = usesText(this.state, variable, this.program);
    says(`${model.atomText(variable)}:${model.atomType(variable)}, ${uses}`);
    return model.definition(variable) < 0 && this.state.row < 0 ? line : -1;
  }

  closeCard(): void {
    const view = this.view();
    if (view.state.field(tip)) view.dispatch({ effects: setTip.of(null) });
  }

  /** Moves to the next or previous variable of the selected equation. */
  private step(by: 1 | -1): boolean {
    if (this.state.player) return false;
    const line = this.lines.ofRow.get(this.state.row) ?? this.lines.bindings.get(this.state.variable) ?? -1;
    const found = line < 0 ? [] : this.lines.all[line]!.tokens.filter((t) => t.variable !== undefined);
    if (found.length === 0) return true;
    const at = found.findIndex((t) => t.variable === this.state.variable);
    const next = found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length]!;
    const variable = next.variable!;
    this.state.standOn(variable);
    this.showCard({ variable, isBinder: next.isBinder === true, line, column: next.from });
    return true;
  }

  /** The variable for keyboard commands: the current one, or else the first output of the selected equation. */
  private get variable(): number {
    const { row, variable, model } = this.state;
    return variable >= 0 || row < 0 ? variable : (model.outputs(row)[0] ?? -1);
  }

  /** The program of the selected equation. */
  private get program(): number {
    return this.state.row < 0 ? -1 : this.state.model.program(this.state.row);
  }

  private goToDefinition(): boolean {
    if (this.state.player) return false;
    const { variable } = this;
    if (variable >= 0) this.state.goToVariable(variable, this.state.model.definition(variable, this.program));
    return true;
  }

  /** Goes to the next or previous equation that reads the variable. */
  private goToUse(by: 1 | -1): boolean {
    if (this.state.player) return false;
    const { variable, state } = this;
    const uses = variable < 0 ? [] : state.model.uses(variable, this.program);
    if (uses.length === 0) {
      if (variable >= 0)
        this.tell(`${state.model.atomText(variable)}: ${usesText(state, variable, this.program)}`);
      return true;
    }
    const at = uses.indexOf(state.row);
    const next = at < 0 ? (by > 0 ? 0 : uses.length - 1) : (at + by + uses.length) % uses.length;
    state.goToVariable(variable, uses[next]!);
    this.tell(`use ${next + 1} of ${uses.length} of ${state.model.atomText(variable)}`);
    return true;
  }

  private at(position: number): Found | null {
    const { number, from } = this.view().state.doc.lineAt(position);
    return this.lines.variableAt(number - 1, position - from);
  }

  private pointAt(found: Found | null): void {
    if ((found?.variable ?? -1) === this.state.hover) return;
    clearTimeout(this.resting);
    this.state.pointAt(found?.variable ?? -1);
    // Leave time to move the pointer onto the card.
    if (found === null) this.resting = setTimeout(() => this.closeCard(), LINGER);
    else {
      this.closeCard();
      this.resting = setTimeout(() => this.showCard(found), REST);
    }
  }

  private showCard({ variable, line, column }: Found): void {
    clearTimeout(this.resting);
    const view = this.view();
    const create = () => {
      const dom = variableCard(this.state, variable, this.lines.all[line]!.program);
      dom.addEventListener("mouseenter", () => clearTimeout(this.resting));
      dom.addEventListener("mouseleave", () => this.closeCard());
      dom.addEventListener("click", () => this.closeCard());
      return { dom };
    };
    const pos = view.state.doc.line(line + 1).from + column;
    view.dispatch({ effects: setTip.of({ pos, above: true, create }) });
  }
}
