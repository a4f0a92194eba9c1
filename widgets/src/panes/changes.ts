/** What differs between two versions of a function: how much of everything, and which residuals. */

import type { Changes } from "../changes";
import { h } from "../dom";
import { formatBytes, formatCount, formatFlops, plural } from "../format";
import type { Change, State } from "../state";
import { tabs } from "./lower";

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
    this.element = h(
      "section",
      { class: "jv-pane jv-changes", "aria-label": "changes", "data-testid": "changes" },
      h(
        "div",
        { class: "jv-pane-head" },
        tabs(state, "changes"),
        h(
          "label",
          { class: "jv-check", title: "the version before at the left (C)" },
          this.toggle,
          "side by side",
        ),
        h("span", { class: "jv-dim jv-cut", title: changes.summary }, changes.summary),
      ),
      h(
        "div",
        { class: "jv-scroll jv-changes-body" },
        figures(changes, (key) => this.show(key)),
        residuals(changes),
      ),
    );
    this.update("shown");
  }

  update(change: Change): void {
    if (change === "shown") this.toggle.checked = this.state.compared;
  }

  private show(key: string): void {
    const stage = this.state.model.view.stages.findIndex((s) => s.key === key);
    if (stage >= 0) this.state.show({ left: [stage] });
  }
}

const AMOUNTS: Record<string, (n: number) => string> = { bytes: formatBytes, FLOPs: formatFlops };

const amount = (n: number, unit: string) => (AMOUNTS[unit] ?? formatCount)(n);

const signed = (n: number, unit: string) =>
  n === 0 ? "same" : `${n < 0 ? "−" : "+"}${amount(Math.abs(n), unit)}`;

/** `+12.0 KiB (+20%)`. */
export function changeText(before: number, after: number, unit: string): string {
  const by = after - before;
  const share =
    before > 0 && by !== 0 ? ` (${by < 0 ? "−" : "+"}${Math.round((100 * Math.abs(by)) / before)}%)` : "";
  return signed(by, unit) + share;
}

function figures({ functions, figures, stages }: Changes, show: (key: string) => void): HTMLElement {
  const [first, second] = functions;
  const n = (runs: [number, number][]) => runs.reduce((sum, [, size]) => sum + size, 0);
  const keyOf = (name: string) => (name === "f" ? "primal" : name);
  return h(
    "table",
    { class: "jv-table" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["figure", first === second ? `${first}, before` : first, second, "change", "only in one"].map(
          (text) => h("th", { scope: "col", class: "jv-plain" }, text),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      ...figures.map(([name, before, after, unit]) => {
        const stage = unit === "equations" ? stages[keyOf(name)] : undefined;
        const open = () => show(keyOf(name));
        const label = stage
          ? h("button", { type: "button", class: "jv-open", title: "show this stage", onclick: open }, name)
          : name;
        return h(
          "tr",
          { "data-testid": "figure" },
          h("th", { scope: "row", class: "jv-plain" }, label),
          h("td", { class: "jv-col-nbytes" }, amount(before, unit)),
          h("td", { class: "jv-col-nbytes" }, amount(after, unit)),
          h(
            "td",
            { class: `jv-col-nbytes${before === after ? " jv-dim" : ""}` },
            changeText(before, after, unit),
          ),
          h(
            "td",
            { class: "jv-col-nbytes" },
            ...(stage
              ? [
                  h("span", { class: "jv-removed" }, `−${formatCount(n(stage.removed))}`),
                  " ",
                  h("span", { class: "jv-added" }, `+${formatCount(n(stage.added))}`),
                ]
              : []),
          ),
        );
      }),
    ),
  );
}

function residuals({ residuals }: Changes): HTMLElement {
  if (residuals.length === 0) return h("p", { class: "jv-message" }, "Both keep the same values.");
  return h(
    "table",
    { class: "jv-table" },
    h(
      "caption",
      { class: "jv-dim" },
      plural(residuals.length, "kind of residual differs", "kinds of residual differ"),
    ),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ...["made by", "type", "how many", "bytes", "line"].map((text) =>
          h("th", { scope: "col", class: "jv-plain" }, text),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      ...residuals.map(([what, type, before, after, nbytes, line]) =>
        h(
          "tr",
          { "data-testid": "residual-change" },
          h("td", {}, h("code", {}, what)),
          h("td", {}, h("code", {}, type)),
          h("td", { class: "jv-col-nbytes" }, `${formatCount(before)} → ${formatCount(after)}`),
          h(
            "td",
            { class: `jv-col-nbytes ${after > before ? "jv-added" : "jv-removed"}` },
            signed((after - before) * nbytes, "bytes"),
          ),
          h("td", {}, line),
        ),
      ),
    ),
  );
}
