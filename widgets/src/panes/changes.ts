/** The changes between two versions of a function: totals and residuals. */

import { formatCount, plural } from "../base/format";
import type { State } from "../state/state";
import { button, h, section, table } from "../ui/dom";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";
import type { Changes } from "../wire/explorer.generated";

export class ChangesPane {
  readonly element: HTMLElement;
  private readonly toggle: HTMLInputElement;

  constructor(
    private readonly state: State,
    changes: Changes,
  ) {
    this.toggle = h("input", {
      type: "checkbox",
      "data-testid": "compared",
      onchange: () => state.compare(this.toggle.checked),
    });
    this.element = section(
      { class: "jv-pane jv-column jv-changes", "aria-label": "changes", "data-testid": "changes" },
      [
        h("strong", "changes"),
        h(
          "label.jv-check.jv-inline",
          { title: "the previous version on the left (C)" },
          this.toggle,
          "side by side",
        ),
        h("span.jv-dim.jv-cut", { title: changes.summary.replaceAll("`", "") }, ...marked(changes.summary)),
      ],
      h(
        "div.jv-scroll.jv-changes-body",
        figures(changes),
        h(
          "div.jv-changes-tables.jv-flex.jv-wraps",
          equations(changes, {
            show: (key) => this.show(key),
            next: (key, isAfter) => this.next(key, isAfter),
          }),
          residuals(changes),
        ),
      ),
    );
  }

  readonly effects: Effects = [
    () => {
      this.toggle.checked = this.state.compared;
    },
  ];

  /** Goes through the equations of a stage that only one version has, in that version. */
  private next(key: string, isAfter: boolean): void {
    const { other } = this.state;
    if (other === null) return;
    const state = isAfter ? this.state : other.state;
    this.state.compare(true);
    this.show(key);
    const rows = state.model.rowsOfStage(key).filter((row) => state.markOf(row) !== "");
    const next = rows.find((row) => row > state.row) ?? rows[0];
    if (next !== undefined) state.selectRow(next);
  }

  private show(key: string): void {
    const stage = this.state.model.stageNamed(key);
    if (stage >= 0) this.state.show({ left: [stage] });
  }
}

/** The figures: the current ones large, with the change. */
function figures({ figures }: Changes): HTMLElement {
  return h(
    "div.jv-figures.jv-flex.jv-wraps",
    ...figures
      .filter((figure) => figure.at(-1) !== "equations")
      .map(([name, before, after, change, share]) =>
        h(
          "div.jv-figure.jv-column",
          { "data-testid": "figure", title: `${name}: ${change}` },
          h("span.jv-dim", `${name}, ${change === "same" ? "in both" : `was ${before}`}`),
          h("strong", after, change !== "same" && h("span.jv-tag.jv-change", share || change)),
        ),
      ),
  );
}

interface Steps {
  show(key: string): void;
  /** Goes to the next equation of a stage that only the previous version has, or only this one. */
  next(key: string, isAfter: boolean): void;
}

const keyOf = (name: string) => (name === "f" ? "primal" : name);

function equations({ functions, figures, stages }: Changes, { show, next }: Steps): HTMLElement {
  const [first, second] = functions;
  const names = first === second ? "before → after" : `${first} → ${second}`;
  const only = (key: string, isAfter: boolean) => {
    const runs = stages[key]![isAfter ? "added" : "removed"];
    const n = runs.reduce((sum, [, size]) => sum + size, 0);
    const [mark, version] = isAfter
      ? ["+", second]
      : ["−", first === second ? "the previous version" : first];
    const text = `${mark}${formatCount(n)}`;
    const title = `${plural(n, "equation")} of ${version} that the other does not have: press to go through them`;
    return h(
      "td",
      { class: `jv-only-in ${isAfter ? "jv-added" : "jv-removed"}` },
      n === 0
        ? h("span.jv-dim", "–")
        : button(text, () => next(key, isAfter), {
            class: "jv-step-through jv-digits",
            title,
            "aria-label": `${text}: ${title}`,
            "data-testid": `next-${isAfter ? "added" : "removed"}-${key}`,
          }),
    );
  };
  const shown = figures.filter((figure) => figure.at(-1) === "equations" && stages[keyOf(figure[0])]);
  const rows = shown.map(([name, before, after]) => {
    const key = keyOf(name);
    const open = button(name, () => show(key), { class: "jv-open jv-bare", title: "show this stage" });
    return h(
      "tr",
      { "data-testid": "equations-changed" },
      h("th.jv-plain", { scope: "row" }, open),
      h("td.jv-col-nbytes", `${before} → ${after}`),
      only(key, false),
      only(key, true),
    );
  });
  const ofBoth = h("th.jv-plain", { scope: "col", colspan: 2 }, "only in one");
  const about = "equations, and those only in one version";
  return table(["stage", names, ofBoth], [h("tbody", ...rows)], about);
}

function residuals({ residuals }: Changes): HTMLElement {
  if (residuals.length === 0) return h("p.jv-message.jv-dim", "Both save the same values.");
  const rows = residuals.map(([isMore, change, , type, line, what]) =>
    h(
      "tr",
      { "data-testid": "residual-change" },
      h("td", { class: `jv-col-nbytes ${isMore ? "jv-added" : "jv-removed"}` }, change),
      h("td", h("code", type)),
      h("td", line),
      h("td", ...marked(what)),
    ),
  );
  const about = plural(residuals.length, "kind of residual differs", "kinds of residual differ");
  return table(["change", "type", "line", "what, and why"], [h("tbody", ...rows)], about);
}
