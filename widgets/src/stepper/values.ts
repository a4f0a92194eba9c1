/** The values at a stop: results and operands of the last equation, and values that the user asked for. */

import { formatBytes, formatCount } from "../base/format";
import { button, h, section, svg } from "../ui/dom";
import { marked } from "../ui/marked";
import type { Shades, SummaryCard, ValueCard } from "../wire/stepper.generated";
import { alertLine, tellAlert } from "./alerts";
import type { StepperState } from "./view";

export interface ValueActions {
  look(name: string): void;
  unlook(stage: string, name: string): void;
}

/** A number in four digits: `0.001`, `12,345`, `-3.4e-7`. */
export function number(value: number | null): string {
  if (value === null) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return formatCount(value);
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3)
    return value
      .toExponential(3)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

/** A value in one line, for screen readers. */
export function described({ type, note, size, min, max, mean, nan, pos_inf, neg_inf }: SummaryCard): string {
  if (note) return `${type} ${note}`;
  const range =
    min === null
      ? "nothing finite"
      : size === 1
        ? number(min)
        : `${number(min)} to ${number(max)}, mean ${number(mean)}`;
  const bad = [
    [nan, "NaN"],
    [pos_inf + neg_inf, "Inf"],
  ]
    .filter(([n]) => n)
    .map(([n, what]) => `${n} ${what}`);
  return [type, range, ...bad].join(", ");
}

const BAR = 3;
const HIGH = 34;

/** A histogram, with a line at zero if it is within range. */
export function histogram({ histogram: bins, edges, size }: SummaryCard): SVGElement | null {
  const most = Math.max(0, ...bins);
  if (most === 0 || edges === null || size < 2) return null;
  const width = bins.length * BAR;
  const [low, high] = edges;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${HIGH}`,
    class: "jv-histogram",
    role: "img",
    preserveAspectRatio: "none",
  });
  drawing.append(
    svg(
      "title",
      {},
      `histogram from ${number(low)} to ${number(high)}, at most ${formatCount(most)} in a bin`,
    ),
  );
  bins.forEach((n, i) => {
    // Any bar that is not empty is visible.
    const tall = n === 0 ? 0 : Math.max(1.5, (HIGH * n) / most);
    if (n > 0) drawing.append(svg("rect", { x: i * BAR, y: HIGH - tall, width: BAR - 0.6, height: tall }));
  });
  if (low !== null && high !== null && low < 0 && high > 0) {
    const x = (width * -low) / (high - low);
    drawing.append(svg("line", { x1: x, x2: x, y1: 0, y2: HIGH, class: "jv-zero" }));
  }
  return drawing;
}

/** The array's statistics. */
function figures(told: SummaryCard): HTMLElement {
  if (told.note) return h("p.jv-dim.jv-told-note", told.note);
  const bad = (n: number) => (n > 0 ? "is-bad" : "");
  const pairs: [string, string, string][] =
    told.size === 1
      ? []
      : [
          ["min", number(told.min), ""],
          ["mean", number(told.mean), ""],
          ["max", number(told.max), ""],
          ["std", number(told.std), ""],
        ];
  const counts: [string, number, string][] = [
    ["NaN", told.nan, bad(told.nan)],
    ["Inf", told.pos_inf, bad(told.pos_inf)],
    ["−Inf", told.neg_inf, bad(told.neg_inf)],
    ["zeros", told.zeros, ""],
    ["subnormal", told.subnormals, told.subnormals > 0 ? "is-odd" : ""],
  ];
  // Integers are always finite, and a scalar needs no statistics.
  const isFloat = /^(b?f\d|c\d)/.test(told.type);
  const shown = counts.filter(([what, n]) => n > 0 || (told.size > 1 && (isFloat || what === "zeros")));
  const counted = shown.map(([what, n, how]) => [what, formatCount(n), n === 0 ? "is-none" : how] as const);
  const list = (items: readonly (readonly [string, string, string])[], name: string) =>
    h(
      "dl",
      { class: `jv-figures jv-wraps jv-digits ${name}` },
      ...items.map(([what, text, how]) => h("div", { class: how }, h("dt", what), h("dd", text))),
    );
  return h(
    "div",
    pairs.length > 0 && list(pairs, ""),
    counted.length > 0 && list(counted, "jv-counts jv-small"),
  );
}

/** The legend of a picture's shades. */
function scaleOf({ low, high, of }: Shades, hasBad: boolean): HTMLElement {
  return h(
    "figcaption.jv-scale.jv-dim.jv-digits",
    { title: `${of}, from dark to light` },
    h(
      "div",
      h("span", number(low)),
      high > low && h("span.jv-shades", { "aria-hidden": "true" }),
      high > low && h("span", number(high)),
    ),
    hasBad && h("div.jv-not-finite", "not finite"),
  );
}

/** An array: statistics, histogram, and its numbers or a picture. */
function toldElement(told: SummaryCard): HTMLElement {
  const bars = histogram(told);
  const { picture, text, edges } = told;
  const first = told.first_not_finite;
  return h(
    "div.jv-told-value",
    { "data-testid": "told" },
    text && h("pre.jv-numbers", { tabindex: text.includes("\n") ? 0 : undefined }, text),
    h(
      "div.jv-told-row.jv-flex.jv-wraps",
      bars &&
        h(
          "figure.jv-bars",
          bars,
          edges && h("figcaption", h("span", number(edges[0])), h("span", number(edges[1]))),
        ),
      picture &&
        h(
          "figure",
          { class: picture.rows === 1 ? "jv-picture is-strip" : "jv-picture" },
          h("img", {
            src: picture.png,
            alt: `${picture.of} as ${picture.rows} by ${picture.columns} shades, dark ${number(picture.low)}, light ${number(picture.high)}, red not finite`,
            title: `${picture.of}: dark ${number(picture.low)}, light ${number(picture.high)}, red not finite`,
            style: picture.rows === 1 ? "" : `aspect-ratio:${picture.columns}/${picture.rows}`,
          }),
          scaleOf(picture, told.finite < told.size),
        ),
    ),
    figures(told),
    first !== null &&
      told.size > 1 &&
      h("p.jv-told-note.is-bad", `first not finite at [${first.join(", ")}]`),
  );
}

export class Values {
  readonly element: HTMLElement;
  private readonly body = h("div.jv-scroll.jv-values-body", {
    tabindex: 0,
    role: "group",
    "aria-label": "values here",
  });
  private readonly names = h("datalist");
  readonly box: HTMLInputElement;
  private readonly told = alertLine("look-failure");
  private asked = "";

  constructor(
    private readonly state: StepperState,
    private readonly actions: ValueActions,
  ) {
    this.names.id = `jv-names-${Math.random().toString(36).slice(2)}`;
    this.box = h("input.jv-field.jv-input", {
      type: "text",
      placeholder: "a value: h, h[7]",
      "aria-label": "value by name, such as h, or h[7] in iteration 7",
      "data-testid": "look-name",
      spellcheck: "false",
      autocomplete: "off",
      list: this.names.id,
      onkeydown: (event: KeyboardEvent) => {
        if (event.key !== "Enter" || this.box.value.trim() === "") return;
        this.asked = this.box.value.trim();
        actions.look(this.asked);
        this.box.value = "";
      },
    });
    this.element = section(
      { class: "jv-pane jv-column jv-values", "aria-label": "values", "data-testid": "values" },
      [h("strong", "value"), h("span.jv-space"), this.box, this.names],
      this.told,
      this.body,
    );
  }

  /** Reports a wrong name and restores the text so that it can be corrected; or clears the report. */
  fail(text: string): void {
    if (text && this.told.hidden && this.box.value === "") this.box.value = this.asked;
    tellAlert(this.told, text);
  }

  update(): void {
    const { stop, program } = this.state;
    const { results, operands, looked, more, recomputed } = stop;
    const first = stop.ranAt.length > 0 || operands.length > 0 || stop.index > 0;
    const title = first ? (results.length === 1 ? "result" : "results") : "inputs";
    const scrolled = this.body.scrollTop;
    this.body.replaceChildren(
      ...this.group("looked at", looked, [], "looked"),
      ...(recomputed ? [h("p.jv-tag.jv-dim.is-again", { "data-testid": "recomputed" }, recomputed)] : []),
      ...this.group(title, results, more[0], "results"),
      ...this.group(operands.length === 1 ? "operand" : "operands", operands, more[1], "operands"),
      ...(results.length + looked.length === 0 ? [h("p.jv-message.jv-dim", "No values here.")] : []),
    );
    this.body.scrollTop = looked.length > 0 ? scrolled : 0;
    const names = [...program.inputs, ...program.rows.slice(0, 400).flatMap((row) => row.o)].map(
      ([name]) => name,
    );
    this.names.replaceChildren(
      ...[...new Set(names)].slice(0, 500).map((name) => h("option", { value: name })),
    );
  }

  private group(
    title: string,
    cards: readonly ValueCard[],
    more: readonly string[],
    id: string,
  ): HTMLElement[] {
    if (cards.length === 0) return [];
    return [
      h(
        "section.jv-group",
        { "data-testid": id },
        h("h4", title),
        ...cards.map((card) => this.card(card, id === "looked")),
        more.length > 0 &&
          h(
            "p.jv-more",
            `and ${formatCount(more.length)} more: `,
            ...more.flatMap((name) => [
              button(name, () => this.actions.look(name), { class: "jv-link" }),
              " ",
            ]),
          ),
      ),
    ];
  }

  private card(card: ValueCard, isLooked: boolean): HTMLElement {
    const { name, stage, value, error, of, other, isCotangent } = card;
    const plain = name.replace(/\[.*$/, "");
    const hue = /^[a-z]+$/.test(plain) ? `jv-variable jv-hue-${this.state.hue(stage, plain)}` : "";
    const bytes = value && !value.note ? bytesOf(value) : "";
    const label = this.label(stage, plain) || card.label;
    return h(
      "article.jv-value-card",
      { "data-testid": "value-card", "data-name": name, "aria-label": name },
      h(
        "header.jv-baseline.jv-nowrap",
        h("code.jv-value-name", h("span", { class: `${hue}${of ? " jv-of-cotangent" : ""}` }, name)),
        value && h("code.jv-type", value.type),
        bytes && h("span.jv-dim", bytes),
        of && h("span.jv-tag.jv-dim.is-cotangent", `cotangent of ${of}`),
        isLooked && h("span.jv-tag.jv-dim", stage),
        label && h("span.jv-dim.jv-cut", { title: label }, label),
        h("span.jv-space"),
        isLooked &&
          button("×", () => this.actions.unlook(stage, name), {
            class: "jv-close",
            title: `Remove ${name} from the list`,
            "aria-label": `remove ${name} from the list`,
          }),
      ),
      error && h("p.jv-told-note", ...marked(error)),
      value && other !== undefined
        ? h(
            "div.jv-both",
            h(
              "div",
              { "data-testid": "own-value" },
              h("h5", of ? `cotangent ${name}` : "value"),
              toldElement(value),
            ),
            h(
              "div",
              { class: isCotangent ? "is-cotangent" : "", "data-testid": "other-value" },
              h("h5", isCotangent ? "cotangent" : `value ${of?.split(", ")[0] ?? ""}`),
              typeof other === "string" ? h("p.jv-told-note", ...marked(other)) : toldElement(other),
            ),
          )
        : value && toldElement(value),
    );
  }

  /** The description of a stage's input. */
  private label(stage: string, name: string): string {
    const number = this.state.programs.stages.find((s) => s.name === stage)?.program ?? -1;
    return this.state.programs.programs[number]?.inputs.find(([n]) => n === name)?.[3] ?? "";
  }
}

function bytesOf({ type, size }: SummaryCard): string {
  const bits = /^[a-z]+(\d+)/.exec(type)?.[1];
  const each = type.startsWith("bool") ? 1 : type.startsWith("bf16") ? 2 : bits ? Number(bits) / 8 : 0;
  return each > 0 && size * each >= 1024 ? formatBytes(size * each) : "";
}
