/** The player's description of a step: its equation, the rule, and the equations emitted. */

import { formatCount } from "../base/format";
import { coloured } from "../code/python";
import type { Model } from "../model/model";
import type { Play, Player } from "../model/player";
import { type Kind, type Name, nameClass, type Part } from "../model/rule";
import { h } from "../ui/dom";
import { marked } from "../ui/marked";

/** Longer params are left out; the tooltip has them. */
const LONG = 28;

/** How many variables of a list are shown. */
const MANY = 10;

const KINDS: Record<Kind, string> = {
  source: "",
  value: "value",
  tangent: "tangent",
  cotangent: "cotangent",
  "so far": "so far, the cotangent",
  residual: "residual",
  local: "",
};

const ROLES: Record<string, string> = {
  primal: "value",
  accumulation: "sum",
  recomputation: "recomputed",
};

export function stepCard(player: Player): HTMLElement[] {
  return new Card(player).parts();
}

class Card {
  private readonly model: Model;
  private readonly play: Play;

  constructor(private readonly player: Player) {
    this.play = player.play;
    this.model = this.play.model;
  }

  parts(): HTMLElement[] {
    const { rule, step } = this.player;
    const sources = this.play.equations(step);
    const source = sources.at(-1)!;
    return [
      h(
        "div.jv-rule-part.jv-rule-source",
        { "data-testid": "step-source" },
        h("div.jv-rule-head.jv-wraps.jv-baseline", h("h5", this.where(sources)), this.within(source)),
        ...sources.map((row) => this.equation(row)),
        this.line(source),
      ),
      h(
        "div.jv-rule-name.jv-baseline",
        h("span", { "aria-hidden": "true" }, "↓"),
        h("strong", { "data-testid": "rule-title" }, rule.title || "adds no equation"),
      ),
      ...rule.parts.map((part) => this.part(part)),
      h("p.jv-rule-says", { "data-testid": "step-sentence" }, ...marked(rule.sentence)),
    ];
  }

  private where(rows: number[]): string {
    const { label } = this.model.view.stages[this.play.transform.source]!;
    const numbers = rows.map((row) => formatCount(this.model.number(row))).join(", ");
    return `${label}, equation${rows.length > 1 ? "s" : ""} ${numbers}`;
  }

  /** The programs that contain an equation, outermost first. */
  private within(row: number): HTMLElement | false {
    const { model } = this;
    const crumbs: string[] = [];
    for (let r = row; model.owner(r) >= 0; r = model.owner(r))
      crumbs.unshift(model.primitive(model.owner(r)), model.programLabel(model.program(r)));
    if (crumbs.length === 0) return false;
    return h("span.jv-dim", { "data-testid": "step-within" }, `in ${crumbs.join(" › ")}`);
  }

  /** The user's source line. */
  private line(row: number): HTMLElement | false {
    const { model } = this;
    const place = model.place(row);
    if (!place) return false;
    const text = model.view.files[place.file]?.excerpts
      .map(({ first, lines }) => lines[place.line - first])
      .find((line) => line !== undefined);
    return h(
      "div.jv-rule-line.jv-flex",
      { title: model.placeTitle(place) },
      h("span.jv-dim", model.placeText(place)),
      text !== undefined && h("code", ...coloured(text.trim())),
    );
  }

  /** What the rule emits into one stage: operands, equations, results. */
  private part({ stage, takes, rows, gives }: Part): HTMLElement {
    const { model, play } = this;
    const { label } = model.view.stages[stage]!;
    return h(
      "div.jv-rule-part.jv-rule-added",
      { "data-testid": "rule-part", "data-stage": label },
      play.transform.targets.length > 1 && h("h5.jv-rule-stage", `in ${label}`),
      this.list("takes", takes),
      h(
        "div.jv-rule-rows",
        ...rows.map((row) =>
          h(
            "div",
            {
              class: `jv-rule-row jv-baseline jv-role-${model.role(row)}`,
              "data-testid": "rule-row",
              "data-row": row,
            },
            this.equation(row),
            h("span.jv-rule-role", this.role(row)),
          ),
        ),
      ),
      this.list("gives", gives),
    );
  }

  private role(row: number): string {
    if (this.play.isLoose[row]) return "of no equation";
    const role = this.model.role(row);
    // Equations that lead to a saved value have this role as well.
    if (role === "residual" && this.model.outputs(row).some((v) => this.player.rules.isSaved(v)))
      return "saved";
    return ROLES[role] ?? role;
  }

  private equation(row: number): HTMLElement {
    const { model } = this;
    const outputs = model
      .outputs(row)
      .flatMap((v) => [this.name(v), h("span.jv-type", `:${model.atomType(v)}`), " "]);
    const params = model.params(row).join(" ");
    const title = model.params(row).join("\n");
    const short = params.length > LONG ? "…" : params;
    return h(
      "code.jv-equation",
      ...outputs,
      "= ",
      h("span.jv-primitive", model.primitive(row)),
      params !== "" && h("span.jv-param", { title }, `[${short}]`),
      ...model.inputs(row).flatMap((a) => [" ", this.name(a)]),
      model.nested(row).length > 0 && h("span.jv-dim", " { … }"),
    );
  }

  private name(atom: number): HTMLElement {
    const { model } = this;
    if (atom < 0) return h("span.jv-literal", model.atomText(atom));
    const name = this.player.rule.names.get(atom);
    const of = name && name.of >= 0 && name.of !== atom ? ` of ${model.atomText(name.of)}` : "";
    return h("span", { class: nameClass(name), title: name && KINDS[name.kind] + of }, model.atomText(atom));
  }

  private list(title: string, names: Name[]): HTMLElement | false {
    if (names.length === 0) return false;
    const items = names.slice(0, MANY).map((name) => {
      const saved = this.player.rules.isSaved(name.variable) && title === "gives";
      return h(
        "li",
        h("code", { class: nameClass(name) }, this.model.atomText(name.variable)),
        h("span.jv-type", this.model.atomType(name.variable)),
        h("span.jv-dim", ...(saved && name.of < 0 ? [] : this.words(name))),
        saved && h("span.jv-saved", "saved → linear"),
      );
    });
    const more = names.length - items.length;
    if (more > 0) items.push(h("li.jv-dim", `and ${more} more`));
    return h("div.jv-io", h("h5", title), h("ul", ...items));
  }

  /** `tangent of c`, with the variable in its colour. */
  private words({ kind, of }: Name): (Node | string)[] {
    if (kind === "local" || of < 0) return [KINDS[kind]];
    const own = this.player.rule.names.get(of);
    const text = this.model.atomText(of);
    if (kind === "residual" && this.play.transform.key === "transpose") return [KINDS[kind]];
    return [
      `${kind === "residual" ? "residual: value" : KINDS[kind]} of `,
      h("code", { class: nameClass(own) }, text),
    ];
  }
}
