/** Text to the clipboard, or to a sheet from which it can be selected where there is none. */

import { h } from "../ui/dom";

/** Copies a text; `tell` hears what came of it. A sheet shows the text where the clipboard cannot be had. */
export async function copyText(
  text: string,
  within: HTMLElement,
  tell: (what: string) => void,
): Promise<void> {
  try {
    if (!navigator.clipboard) throw new Error("no clipboard");
    await navigator.clipboard.writeText(text);
    tell("copied");
  } catch {
    showSheet(text, within);
    tell("select it to copy");
  }
}

function showSheet(text: string, within: HTMLElement): void {
  const before = document.activeElement as HTMLElement | null;
  const close = () => {
    sheet.remove();
    before?.focus({ preventScroll: true });
  };
  const area = h("pre", { class: "jv-scroll", tabindex: 0, "aria-label": "JAX text" }, text);
  const sheet = h(
    "dialog",
    {
      class: "jv-help jv-code-sheet",
      "aria-label": "JAX text to copy",
      "data-testid": "copy-sheet",
      onkeydown: (event: KeyboardEvent) => {
        event.stopPropagation();
        if (event.key === "Escape") close();
      },
    },
    area,
    h(
      "div",
      { class: "jv-controls" },
      h("button", { type: "button", class: "jv-button", onclick: close }, "Close"),
      h("span", { class: "jv-dim" }, "the clipboard is not to be had here: press Ctrl+C"),
    ),
  );
  within.querySelector("[data-testid=copy-sheet]")?.remove();
  within.append(sheet);
  sheet.show();
  area.focus();
  getSelection()?.selectAllChildren(area);
}
