/** Describes a variable: its type, size, definition and uses. */

import { plural } from "../base/format";
import type { State } from "../state/state";
import { button, h } from "../ui/dom";
import { marked } from "../ui/marked";
import { donationText } from "./listing";

/** How many uses are listed. */
const SHOWN = 6;

/** The card of a variable, with links to its equations. */
export function variableCard(state: State, v: number, program = -1): HTMLElement {
  const { model } = state;
  const { name, type } = model.variable(v);
  const made = model.definition(v, program);
  const uses = model.uses(v, program);
  const kin = model.kin(v);
  const place = made >= 0 ? model.place(made) : null;
  const source = model.sourceText(place);
  return h(
    "div.jv-hover",
    { "data-testid": "variable" },
    h(
      "div.jv-hover-head.jv-baseline",
      h("strong", { class: hueClass(state, v) }, name),
      h("code", type),
      h("span.jv-dim", model.sizeText(v)),
      kin !== "value" && h("span", { class: `jv-badge-role jv-role-${kin}` }, kin),
    ),
    ...model
      .donationsWith(v)
      .map((d) =>
        h("div", d.variable === v ? donationText(d) : `reuses the memory of ${model.atomText(d.variable)}`),
      ),
    made >= 0 ? link(state, v, made, equationText(state, made)) : h("div", ...inputText(state, v)),
    source !== "" &&
      h("div.jv-hover-source", h("code", source), h("span.jv-dim", ` ${model.placeText(place)}`)),
    source === "" && place !== null && h("div.jv-dim", model.placeText(place)),
    h("div.jv-hover-uses.jv-dim", usesText(state, v, program)),
    uses.length > 0 &&
      h(
        "ul",
        ...uses.slice(0, SHOWN).map((row) => h("li", link(state, v, row, equationText(state, row)))),
        uses.length > SHOWN && h("li.jv-dim", `and ${plural(uses.length - SHOWN, "more", "more")}`),
      ),
    h(
      "div.jv-hover-keys.jv-dim",
      ...(made >= 0 ? ["click or ", h("kbd", "F12"), " where it is made"] : []),
      ...(made >= 0 && uses.length > 0 ? [" · "] : []),
      ...(uses.length > 0 ? [h("kbd", "N"), " next use"] : []),
    ),
  );
}

/** `2 uses, and a result of f`. */
export function usesText({ model }: State, v: number, program = -1): string {
  const uses = model.uses(v, program).length;
  const returned = model.returnedBy(v).map((p) => {
    const owner = model.column("program_owner")[p]!;
    return owner < 0
      ? `a result of ${model.view.stages[model.column("program_stage")[p]!]!.label}`
      : `a result of the ${model.primitive(owner)}'s program`;
  });
  const parts = [uses > 0 && plural(uses, "use"), ...new Set(returned)].filter(Boolean);
  return parts.length > 0 ? parts.join(", and ") : "no use";
}

/** The hue class of a variable, or empty if hues are off. */
export function hueClass({ model, coloured }: State, v: number): string {
  if (!coloured || v < 0 || model.atomText(v) === "_") return "";
  const kin = model.kin(v);
  return `jv-hue-${model.hue(v)}${kin === "value" ? "" : ` jv-of-${kin}`}`;
}

/** `argument params['w']`, or `residual sin(x)` with the reason, or which input of which program it is. */
function inputText({ model }: State, v: number): (HTMLElement | string)[] {
  const { label } = model.variable(v);
  const program = model.boundBy(v);
  if (program < 0) return ["an input"];
  const owner = model.column("program_owner")[program]!;
  const place = model.binders(program).indexOf(v);
  if (label.startsWith("residual ")) {
    const kept = model.residuals[place - model.constants(program)];
    const why = kept ? [h("div.jv-dim", ...marked(kept.reason))] : [];
    return ["residual ", h("code", label.slice(9)), ...why];
  }
  const [, kin, of] = /^(tangent|cotangent) of (.*)$/.exec(label) ?? [];
  if (of !== undefined) return [`the ${kin} of `, h("code", of)];
  if (label) return ["argument ", h("code", label)];
  if (owner < 0)
    return [`input ${place} of ${model.view.stages[model.column("program_stage")[program]!]!.label}`];
  return [`input ${place} of the program of `, h("code", model.summary(owner))];
}

function equationText({ model }: State, row: number): HTMLElement[] {
  return [h("code", model.summary(row)), h("span.jv-dim", ` ${model.placeText(model.place(row))}`)];
}

function link(state: State, v: number, row: number, text: HTMLElement[]): HTMLElement {
  return button(text, () => state.goToVariable(v, row), { class: "jv-link", tabindex: -1 });
}
