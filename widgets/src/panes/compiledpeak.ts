/** The compiled program's memory over its schedule, with the modelled memory as a line, and what is alive at the peak. */

import { formatBytes, plural } from "../base/format";
import { peakOf, type Totals, totalsOf } from "../model/timeline";
import type { State } from "../state/state";
import { h, onResize, svg, table } from "../ui/dom";
import { marked } from "../ui/marked";
import type { CompiledExchanges, CompiledPeak } from "../wire/explorer.generated";
import { PLURALS } from "../wire/schema";
import { Chart } from "./chart";

const NAMES: Record<CompiledPeak["kinds"][number], string> = { ...PLURALS, own: "XLA's own" };

export class CompiledPeakView {
  readonly element: HTMLElement;
  private readonly stop: () => void;
  /** The rows of the table with their equations. */
  private readonly lines = new Map<HTMLElement, readonly number[]>();

  constructor(
    private readonly state: State,
    private readonly peak: CompiledPeak,
    exchanges: CompiledExchanges | null,
    /** The equations of each communication. */
    private readonly exchanging: readonly (readonly number[])[] = [],
  ) {
    const totals = totalsOfCompiled(peak);
    const { model } = state;
    const modelled = model.view.has_memory && !model.view.no_memory ? totalsOf(model.timeline) : null;
    const areas = svg("svg", { "aria-hidden": "true" });
    const plot = h("div.jv-plot", areas);
    this.element = h(
      "div.jv-compiled-peak",
      { "data-testid": "compiled-memory", tabindex: 0 },
      h("p.jv-note.jv-ruled", ...marked(peak.summary)),
      plot,
      this.legend(totals, modelled),
      this.table(),
      ...(exchanges === null
        ? []
        : [h("p.jv-note.jv-ruled", ...marked(exchanges.summary)), this.exchanged(exchanges)]),
      ...peak.notes.map((note) => h("p.jv-note.jv-ruled", ...marked(note))),
    );
    this.stop = onResize(plot, (width, height, pixels) => {
      const chart = new Chart(totals, width, height, pixels, {
        reference: modelled,
        kinds: peak.kinds,
        step: "instruction",
      });
      areas.replaceChildren(...chart.draw());
    });
    this.light();
  }

  destroy(): void {
    this.stop();
  }

  /** Highlights rows of the selected source lines. */
  light(): void {
    const { rows } = this.state.selection;
    for (const [line, own] of this.lines)
      line.classList.toggle(
        "is-selected",
        own.some((row) => rows.has(row)),
      );
  }

  private legend(totals: Totals, modelled: Totals | null): HTMLElement {
    const at = totals.peak;
    const kinds = this.peak.kinds.flatMap((kind, k) => {
      const bytes = at < 0 ? 0 : totals.kinds[k]![at]!;
      return bytes > 0
        ? [h("span", { class: `jv-swatch jv-of-${kind}` }, `${NAMES[kind]} ${formatBytes(bytes)}`)]
        : [];
    });
    const line =
      modelled === null
        ? []
        : [h("span.jv-swatch.jv-of-model", `model: peak ${formatBytes(peakOf(modelled))}`)];
    return h("div.jv-peak-legend.jv-flex.jv-wraps", ...kinds.reverse(), ...line);
  }

  private table(): HTMLElement {
    const { held, more } = this.peak;
    const rows = held.map(([kind, drawn, what, type, nbytes, line, why]) =>
      this.row(
        this.rowsOf(line),
        h("td", { class: `jv-swatch jv-of-${drawn}` }, kind),
        h("td.jv-col-nbytes", formatBytes(nbytes)),
        h("td.jv-col-name", h("code", what)),
        h("td", type),
        h("td", line),
        h("td.jv-col-reason", ...marked(why)),
      ),
    );
    const [n, nbytes] = more;
    const rest = n > 0 ? `and ${formatBytes(nbytes)} in ${plural(n, "more row")}` : "";
    return table(
      ["kind", "bytes", "in memory at the peak", "type", "line", "why"],
      [h("tbody", ...rows)],
      rest,
    );
  }

  /** A row that goes to its equations, or else to its source line. */
  private exchanged({ rows }: CompiledExchanges): HTMLElement {
    const lines = rows.map(([kind, over, sent, times, stage, line, why], i) =>
      this.row(
        this.exchanging[i]?.length ? this.exchanging[i] : this.rowsOf(line),
        ...[kind, over].map((text) => h("td", text)),
        h("td.jv-col-nbytes", formatBytes(sent)),
        ...[times, stage, line].map((text) => h("td", text)),
        h("td.jv-col-reason", ...marked(why)),
      ),
    );
    return table(["collective", "over", "sent", "times", "pass", "line", "why"], [h("tbody", ...lines)]);
  }

  /** A row that goes to equations. */
  private row(own: readonly number[], ...cells: HTMLElement[]): HTMLElement {
    const select = () => this.state.selectRows(own);
    const row = h(
      "tr",
      own.length > 0
        ? {
            tabindex: 0,
            title: "Select its equations",
            onclick: select,
            onkeydown: (event: KeyboardEvent) => event.key === "Enter" && select(),
          }
        : {},
      ...cells,
    );
    this.lines.set(row, own);
    return row;
  }

  /** The equations of a source line such as `model.py:12`. */
  private rowsOf(line: string): readonly number[] {
    const { model } = this.state;
    const [, name = "", number = ""] = /^(.*):(\d+)$/.exec(line) ?? [];
    const file = model.view.files.findIndex(({ label }) => label === name || label.endsWith(`/${name}`));
    return file < 0 ? [] : model.rowsOfLine(file, Number(number));
  }
}

function totalsOfCompiled({ bytes, turn }: CompiledPeak): Totals {
  const kinds = bytes.map((of) => Float64Array.from(of));
  const total = new Float64Array(kinds[0]?.length ?? 0);
  for (const of of kinds) for (let i = 0; i < total.length; i++) total[i]! += of[i]!;
  return { kinds, total, turn, peak: total.length === 0 ? -1 : total.indexOf(Math.max(...total)) };
}
