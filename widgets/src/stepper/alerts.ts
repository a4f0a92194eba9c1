/** Error messages next to the field that caused them. */

import { h } from "../ui/dom";

export function alertLine(id: string): HTMLElement {
  return h("p.jv-told-note.is-bad.jv-typed.jv-fixed", { role: "alert", "data-testid": id, hidden: true });
}

/** Shows a message, or clears it. */
export function tellAlert(line: HTMLElement, text: string): void {
  if (line.textContent !== text) line.textContent = text;
  line.hidden = text === "";
}
