/** The breakpoints: the list, and a field to add one. */

import { button, h, section } from "../ui/dom";
import { alertLine, tellAlert } from "./alerts";
import type { StepperState } from "./view";

const KINDS: readonly [kind: string, label: string, placeholder: string][] = [
  ["primitive", "primitive", "tanh"],
  ["line", "line", "41 or model.py:41"],
  ["name", "name", "h"],
  ["when", "condition", "max_abs > 1e3 or nan > 0"],
  ["non_finite", "not finite", ""],
];

export class Breaks {
  readonly element: HTMLElement;
  private readonly list = h("ul.jv-breaks-list", { "data-testid": "breakpoints" });
  private readonly kind: HTMLSelectElement;
  private readonly text: HTMLInputElement;
  private readonly add: HTMLButtonElement;
  private readonly form: HTMLElement;
  private readonly told = alertLine("break-failure");
  private asked = "";

  constructor(
    private readonly state: StepperState,
    private readonly addBreak: (condition: Record<string, unknown>) => boolean,
    private readonly remove: (number: number) => void,
  ) {
    this.kind = h(
      "select.jv-field.jv-input",
      {
        "aria-label": "kind of breakpoint",
        "data-testid": "break-kind",
        onchange: () => this.fit(),
      },
      ...KINDS.map(([value, label]) => h("option", { value }, label)),
    );
    this.text = h("input.jv-field.jv-input", {
      type: "text",
      "aria-label": "where to stop",
      "data-testid": "break-text",
      spellcheck: "false",
      autocomplete: "off",
      onkeydown: (event: KeyboardEvent) => {
        if (event.key === "Enter") this.submit();
      },
    });
    this.add = button("Add", () => this.submit(), { "data-testid": "break-add" });
    this.form = h(
      "div.jv-breaks-form.jv-flex.jv-fixed",
      { role: "group", "aria-label": "new breakpoint" },
      this.kind,
      this.text,
      this.add,
    );
    this.element = section(
      { class: "jv-pane jv-column jv-breaks jv-fixed", "aria-label": "breakpoints" },
      [h("strong", "breakpoints")],
      this.list,
      this.form,
      this.told,
    );
    this.fit();
  }

  /** Reports a mistake and restores the text so that it can be corrected; or clears the report. */
  fail(text: string): void {
    if (text && this.told.hidden && this.text.value === "") this.text.value = this.asked;
    tellAlert(this.told, text);
  }

  focus(): void {
    this.kind.focus();
  }

  update(isOff: boolean): void {
    const { breakpoints } = this.state.stop;
    this.list.replaceChildren(
      ...breakpoints.map((b, i) =>
        h(
          "li",
          { class: b.isHit ? "is-hit" : "", "data-testid": "breakpoint" },
          h("span.jv-break-place.jv-fixed.is-set", { "aria-hidden": "true" }),
          h("code.jv-cut", { title: b.text }, b.text),
          b.isHit && h("span.jv-tag.jv-dim", "hit"),
          button("×", () => this.remove(i), {
            class: "jv-close",
            title: "Remove",
            "aria-label": `remove breakpoint ${b.text}`,
            "aria-disabled": isOff,
          }),
        ),
      ),
    );
    this.form.hidden = isOff;
  }

  private fit(): void {
    const [kind, , placeholder] = KINDS[this.kind.selectedIndex]!;
    this.text.hidden = kind === "non_finite";
    this.text.placeholder = placeholder;
    this.text.classList.toggle("jv-mono", kind !== "line");
  }

  private submit(): void {
    const kind = this.kind.value;
    const text = this.text.value.trim();
    if (kind !== "non_finite" && text === "") {
      this.text.focus();
      return;
    }
    if (!this.addBreak(kind === "non_finite" ? { non_finite: true } : { [kind]: text })) return;
    this.asked = text;
    this.text.value = "";
  }
}
