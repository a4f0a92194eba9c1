/** The rows under an expanded source line: its equations in the forward and the backward program. */

import { formatCount, plural } from "../base/format";
import { equationsOfLine, type Figures, keptBesides, type LineEquations, NONE } from "../model/figures";
import { litAs } from "../state/lit";
import type { State } from "../state/state";
import { button, h } from "../ui/dom";
import { lineParts } from "./equation";
import { ROLE_LETTERS } from "./head";
import { equationLine } from "./listing";

/** How many rows are shown at first, and added by each click. */
const SHOWN = 60;

/** Descriptions of saved values that no equation of the line computes. */
const BESIDES: Readonly<Record<string, string>> = { constant: "a constant", literal: "a number in the code" };

/** A row, with its equations. */
type Row = { element: HTMLElement; rows: readonly number[] };

export class UnderLine {
  readonly element = h("div.jv-under", { "data-testid": "under" });
  private readonly rows: Row[] = [];

  /**
   * @param cells renders the columns of figures.
   * @param press handles keys, given the action that chooses the row.
   */
  constructor(
    private readonly state: State,
    file: number,
    line: number,
    private readonly cells: (figures: Figures) => HTMLElement,
    private readonly press: (event: KeyboardEvent, choose: () => void) => void,
  ) {
    const found = equationsOfLine(state.model, file, line);
    for (const stage of new Set(found.map((each) => each.stage)))
      this.pass(
        stage,
        found.filter((each) => each.stage === stage),
      );
    this.besides(file, line);
    this.light();
  }

  /** Highlights the selection and its relatives. */
  light(): void {
    const { selection } = this.state;
    // If the whole line is selected, so is everything here.
    const isWhole = selection.line >= 0;
    for (const { element, rows } of this.rows) {
      const lit = isWhole ? "" : (rows.map((row) => litAs(selection, row)).find((how) => how !== "") ?? "");
      element.className = `jv-under-row ${lit}`;
      element.ariaCurrent = lit === "is-selected" ? "true" : null;
    }
  }

  private pass(stage: number, equations: readonly LineEquations[]): void {
    const { key, label } = this.state.model.view.stages[stage]!;
    const n = equations.reduce((sum, { rows }) => sum + rows.length, 0);
    const list = h("div", { class: `jv-under-pass is-${key}`, role: "group", "aria-label": label });
    this.element.append(
      h(
        "div.jv-under-head.jv-flex",
        this.cells(NONE),
        h("strong", label),
        h("span.jv-dim", plural(n, "equation")),
      ),
      list,
    );
    const add = (from: number) => {
      for (const each of equations.slice(from, from + SHOWN)) list.append(this.row(each));
      const rest = equations.length - from - SHOWN;
      if (rest <= 0) return;
      const more = button(`${formatCount(rest)} more`, () => {
        more.remove();
        add(from + SHOWN);
        this.light();
      });
      list.append(more);
    };
    add(0);
  }

  /** Values saved for the line that none of its equations computes. */
  private besides(file: number, line: number): void {
    const found = keptBesides(this.state.model, file, line);
    if (found.size === 0) return;
    const rows = [...found].map(([kind, residuals]) => {
      const kept = residuals.reduce((sum, { nbytes }) => sum + nbytes, 0);
      const choose = () => this.state.selectResiduals(residuals.map(({ index }) => index));
      return h(
        "div.jv-under-row",
        {
          role: "button",
          tabindex: -1,
          title: residuals.map(({ name, type, reason }) => `${name}:${type} ${reason}`).join("\n"),
          "data-testid": "under-kept",
          onclick: choose,
          onkeydown: (event: KeyboardEvent) => this.press(event, choose),
        },
        this.cells({ ...NONE, kept }),
        h(
          "span.jv-under-times.jv-dim.jv-fixed",
          residuals.length > 1 ? `${formatCount(residuals.length)} ×` : "",
        ),
        h("span.jv-under-letter.jv-fixed"),
        h("span", BESIDES[kind] ?? "computed in the branches of a cond"),
      );
    });
    this.element.append(
      h("div.jv-under-head.jv-flex", this.cells(NONE), h("strong", "also saved")),
      h("div.jv-under-pass", { role: "group", "aria-label": "also saved" }, ...rows),
    );
  }

  private row({ rows, depth, figures }: LineEquations): HTMLElement {
    const { model } = this.state;
    const [first] = rows as [number];
    const role = model.role(first);
    const choose = () => (rows.length > 1 ? this.state.selectRows(rows) : this.state.selectRow(first));
    const point = () => this.state.pointTo(model.place(first));
    const leave = () => this.state.pointTo(null);
    const times = rows.length > 1 ? `${formatCount(rows.length)} ×` : "";
    const element = h(
      "div.jv-under-row",
      {
        role: "button",
        tabindex: -1,
        style: `--depth:${depth}`,
        title: [role, rows.length > 1 && `${plural(rows.length, "equation")}; the first is shown`]
          .filter(Boolean)
          .join("; "),
        "data-testid": "under-row",
        "data-row": first,
        onclick: choose,
        onkeydown: (event: KeyboardEvent) => this.press(event, choose),
        onpointerenter: point,
        onpointerleave: leave,
        onfocus: point,
        onblur: leave,
      },
      this.cells(figures),
      h("span.jv-under-times.jv-dim.jv-fixed", times),
      h(
        "span",
        { class: `jv-under-letter jv-fixed jv-role-${role}`, "aria-hidden": true },
        ROLE_LETTERS[role] ?? "",
      ),
      h("code", ...lineParts(this.state, equationLine(model, first))),
    );
    this.rows.push({ element, rows });
    return element;
  }
}
