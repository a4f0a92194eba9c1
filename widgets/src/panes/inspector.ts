/** The inspector: one equation or residual in full; with two versions, from the one where the user selected. */

import { formatBytes, formatCount, formatFlops, formatParts, plural } from "../base/format";
import { donationText } from "../code/listing";
import { usesText } from "../code/variable";
import type { Lit } from "../state/lit";
import type { State } from "../state/state";
import { copyText } from "../ui/copying";
import { button, h, section } from "../ui/dom";
import { marked } from "../ui/marked";
import type { Effects } from "../ui/pane";

/** How many links of one kind are shown. */
const SHOWN = 8;

export class InspectorPane {
  readonly element: HTMLElement;
  private readonly body = h("div.jv-scroll.jv-inspect", {
    tabindex: 0,
    "aria-label": "details",
    "aria-live": "polite",
  });

  private readonly whose = h("span.jv-dim.jv-cut", { "data-testid": "inspected-version" });
  private state: State;

  constructor(private readonly own: State) {
    this.state = own;
    this.element = section(
      { class: "jv-pane jv-column jv-inspector", "aria-label": "inspector", "data-testid": "inspector" },
      [h("strong", "inspector"), this.whose],
      this.body,
    );
  }

  readonly effects: Effects = [
    [() => this.version.selection, () => this.show(this.version)],
    [() => [this.state.extras, this.own.addresses.last], () => this.showAddresses()],
  ];

  /** The addresses of the equation's results, which the kernel tells a moment later. */
  private readonly addresses = h("ul", { "data-testid": "addresses" });

  private showAddresses(): void {
    const { own, state } = this;
    const [row] = state.selection.rows;
    const isAsked =
      state === own && row !== undefined && state.selection.line < 0 && own.extras.has("details");
    const found = isAsked ? own.addresses.about(own.model.name(row)) : null;
    const rows = (found?.addresses ?? []).map(([text, phase, code]) =>
      h("li", ...this.address(text, phase, code)),
    );
    this.addresses.replaceChildren(...rows);
    const [dt, dd] = [this.addresses.parentElement?.previousElementSibling, this.addresses.parentElement];
    for (const each of [dt, dd]) each?.toggleAttribute("hidden", rows.length === 0);
  }

  private address(text: string, phase: string, code: string): (Node | string)[] {
    const said = h("span.jv-dim", { role: "status" });
    const copy = () => copyText(code, this.element, (how) => said.replaceChildren(how));
    const title = `Copy ${code}, which step, capture and watch take`;
    return [
      h("code", text),
      ...(phase === "forward" ? [] : [h("span.jv-dim", ` ${phase}`)]),
      " ",
      button("Copy", copy, { title, "data-testid": "copy-address" }),
      " ",
      said,
    ];
  }

  /** The version whose selection is inspected. */
  private get version(): State {
    return this.own.compared ? this.own.inspected : this.own;
  }

  /** Shows the selection of a version. */
  private show(state: State): void {
    this.state = state;
    this.whose.textContent = state === this.own ? "" : "in the previous version";
    const { residuals, residual, file, line } = this.state.selection;
    const rows = [...this.state.selection.rows];
    this.body.scrollTop = 0;
    const parts: HTMLElement[] = [];
    const kept =
      residual >= 0
        ? [residual]
        : line >= 0
          ? []
          : (this.state.model.residualsOfRow.get(rows[0] ?? -1) ?? []);
    const isMade = (i: number) => this.state.model.residuals[i]!.producer === rows[0];
    const why = kept
      .slice(0, SHOWN)
      .map((i) => ({ made: residual >= 0 || isMade(i), element: this.residual(i, rows) }));
    parts.push(...why.filter((w) => w.made).map((w) => w.element));
    if (line >= 0) parts.push(this.sourceLine(file, line));
    else if (rows.length > 0) parts.push(this.equation(rows[0]!));
    const n = residuals.size > 0 ? residuals.size : rows.length;
    const what = plural(n, residuals.size > 0 ? "residual" : "equation");
    if (line < 0 && n > 1) parts.unshift(h("p.jv-dim", `${what}, the first is`));
    parts.push(...why.filter((w) => !w.made).map((w) => w.element));
    this.body.replaceChildren(...(parts.length > 0 ? parts : [this.invitation()]));
    this.showAddresses();
  }

  private invitation(): HTMLElement {
    return h(
      "div.jv-message.jv-dim",
      h("p", "Select an equation, a residual or a source line. Every pane then highlights:"),
      h(
        "ul.jv-legend",
        h("li.jv-means-selected", "the selection"),
        h("li.jv-means-ancestor", "what it was derived from"),
        h("li.jv-means-descendant", "what was derived from it, or reads it"),
        h("li.jv-means-related", "what else was derived from the same equation of f"),
      ),
      ...this.markings(),
    );
  }

  /** The meanings of colours that only some programs have. */
  private markings(): HTMLElement[] {
    const { axes, donations } = this.state.model;
    const found = [];
    if (axes.size > 0)
      found.push(h("li", h("code.jv-collective", "psum"), " values exchanged along a named axis"));
    if (donations.length > 0)
      found.push(h("li", h("code.jv-donated", "donated →"), " the result that reuses its memory"));
    return found.length > 0 ? [h("ul.jv-legend", ...found)] : [];
  }

  private sourceLine(file: number, line: number): HTMLElement {
    const { model } = this.state;
    const rows = model.rowsOfLine(file, line);
    const { forward, backward, recomputed, kept } = model.lines.of(file, line);
    const again = recomputed > 0 ? `, including ${formatFlops(recomputed)} recomputed` : "";
    const perStage = model.view.stages.flatMap((stage, i) => {
      const n = rows.filter((row) => model.stage(row) === i).length;
      return n ? [`${formatCount(n)} in ${stage.label}`] : [];
    });
    return h(
      "div",
      h("h4", `${model.view.files[file]?.label ?? "?"}:${line}`),
      h(
        "p",
        rows.length
          ? `${plural(rows.length, "equation")}: ${perStage.join(", ")}`
          : "No equation comes from this line.",
      ),
      h("p", kept ? `The gradient saves ${formatBytes(kept)} for it.` : "The gradient saves nothing for it."),
      forward + backward > 0 &&
        h("p", `It takes ${formatFlops(forward)} forward and ${formatFlops(backward)} backward${again}.`),
    );
  }

  private equation(row: number): HTMLElement {
    const { model } = this.state;
    const stage = model.view.stages[model.stage(row)]!;
    const place = model.place(row);
    const chain: number[] = [];
    for (let r = model.origin(row); r >= 0; r = model.origin(r)) chain.push(r);
    const rule = model.rule(row);
    const typed = (a: number, name: string) => [
      h("code", `${name}${model.atomType(a)}`),
      h("span.jv-dim", ` ${model.sizeText(a)}`),
    ];
    const list = (atoms: number[], notes: (i: number) => HTMLElement[]) =>
      h("ul", ...atoms.map((a, i) => h("li", ...typed(a, `${model.atomText(a)}:`), ...notes(i))));
    const note = (...parts: (Node | string)[]) => h("div.jv-of", ...parts);
    // The layout of a shard_map's operand or result, and its local type.
    const layout = model.layouts.get(row);
    const inside = layout ? model.nested(row)[0]! : -1;
    const laidOut = (spec: string | undefined, atom: number | undefined) =>
      spec === undefined || atom === undefined ? [] : [note(h("code", spec), " → ", ...typed(atom, ""))];
    const donations = model.donationsOf(row);
    const inputs = list(model.inputs(row), (i) => [
      ...laidOut(layout?.operands[i], inside < 0 ? undefined : model.binders(inside)[i]),
      ...donations.filter((d) => d.operand === i).map((d) => note(donationText(d))),
    ]);
    const outputs = list(model.outputs(row), (i) => [
      ...laidOut(layout?.results[i], inside < 0 ? undefined : model.results(inside)[i]),
      ...donations
        .filter((d) => d.result === i)
        .map((d) => note("reuses the memory of ", h("code", model.atomText(d.variable)))),
    ]);
    const facts: [string, Node | string][] = [
      ["stage", `${stage.label}, equation ${formatCount(model.number(row))}`],
      ["role", h("span", { class: `jv-badge-role jv-role-${model.role(row)}` }, model.role(row))],
    ];
    if (place)
      facts.push([
        "line",
        h("span", { title: model.placeTitle(place) }, `${model.placeText(place)} in ${place.function}`),
      ]);
    const source = model.sourceText(place);
    if (source) facts.push(["expression", h("code", { "data-testid": "expression" }, source)]);
    facts.push(["address", this.addresses]);
    if (rule) facts.push(["rule", `${rule} (${model.transform(row)})`]);
    const earlier = model.earlier(row);
    if (earlier.length) facts.push(["before", h("ul", ...earlier.map((made) => h("li", made)))]);
    const decision = model.decision(row);
    if (decision) facts.push(["checkpoint", decision]);
    facts.push(["inputs", inputs], ["outputs", outputs]);
    const params = model.params(row);
    if (params.length) facts.push(["params", h("ul", ...params.map((p) => h("li", h("code", p))))]);
    for (const v of model.outputs(row)) {
      const uses = model.uses(v, model.program(row));
      if (uses.length === 0 && model.returnedBy(v).length === 0) continue;
      const name = model.outputs(row).length > 1 ? `${model.atomText(v)} is read by` : "read by";
      facts.push([
        name,
        h(
          "div",
          { "data-testid": "uses" },
          usesText(this.state, v, model.program(row)),
          this.links(uses, "is-descendant", v),
        ),
      ]);
    }
    if (chain.length) facts.push(["came from", this.links(chain, "is-ancestor")]);
    const became = model.became(row);
    if (became.length) facts.push(["became", this.links(became, "is-descendant")]);
    return h(
      "div",
      h("h4", h("code", { "data-testid": "inspected" }, model.primitive(row))),
      h("dl", ...facts.flatMap(([name, value]) => [h("dt", name), h("dd", value)])),
    );
  }

  private residual(index: number, rows: number[]): HTMLElement {
    const r = this.state.model.residuals[index]!;
    const isMaker = rows.length === 0 || r.producer === rows[0];
    return h(
      "div.jv-why",
      h(
        "h4",
        isMaker ? "Saved: " : "Reads the residual ",
        h("code", `${r.name}:${r.type}`),
        h("span.jv-dim", ` ${formatParts(r.nbytes, r.perDevice)}`),
      ),
      h("p", { "data-testid": "reason" }, ...marked(r.reason)),
      ...(r.rule ? [h("p.jv-dim", `saved for the ${r.rule}`)] : []),
      ...(isMaker && r.consumers.length
        ? [h("div", "read by ", this.links(r.consumers, "is-descendant"))]
        : []),
      isMaker && r.kind === "intermediate" && this.state === this.own && this.whatIf(),
    );
  }

  private whatIf(): HTMLElement {
    const show = () => this.state.arrange("what-if");
    return button("What if it were recomputed?", show, {
      class: "jv-button jv-ask",
      "data-testid": "ask-what-if",
    });
  }

  /** Links to equations; equations that read a variable are its uses. */
  private links(rows: readonly number[], how: Lit, variable = -1): HTMLElement {
    const { model } = this.state;
    const items = rows.slice(0, SHOWN).map((row) => {
      const stage = model.stage(row);
      const go = () => (variable < 0 ? this.state.goTo(row) : this.state.goToVariable(variable, row));
      return h(
        "li",
        button(
          [h("span.jv-link-stage.jv-dim", model.view.stages[stage]!.label), h("code", model.summary(row))],
          go,
          { class: `jv-link ${how}`, title: model.placeTitle(model.place(row)) },
        ),
      );
    });
    if (rows.length > SHOWN) items.push(h("li.jv-dim", `and ${formatCount(rows.length - SHOWN)} more`));
    return h("ul.jv-links", ...items);
  }
}
