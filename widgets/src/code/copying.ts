/** Copies text to the clipboard, or shows it in a sheet to select by hand if there is no clipboard. */

import { focused } from "../main/focus";
import { button, h } from "../ui/dom";

/** Copies `text` and reports the outcome to `tell`. Without clipboard access, a sheet shows the text. */
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
    const note = h("span", { class: "jv-dim" }, "the clipboard is not available here: press Ctrl+C");
    const area = showSheet({ id: "copy-sheet", label: "JAX text to copy", text: [text], note }, within);
    area.focus();
    getSelection()?.selectAllChildren(area);
    tell("select it to copy");
  }
}

/** The content of a sheet: its text in parts, and a note below it. */
interface Sheet {
  id: string;
  label: string;
  text: readonly (Node | string)[];
  note: HTMLElement;
}

/** Opens a sheet on top of the pane and returns the element with its text. Closing it restores the focus. */
export function showSheet({ id, label, text, note }: Sheet, within: HTMLElement): HTMLElement {
  const before = focused(within) as HTMLElement | null;
  const close = () => {
    sheet.remove();
    before?.focus({ preventScroll: true });
  };
  const area = h("pre", { class: "jv-scroll", tabindex: 0, "aria-label": label }, ...text);
  const sheet = h(
    "dialog",
    {
      class: "jv-help jv-code-sheet",
      "aria-label": label,
      "data-testid": id,
      onkeydown: (event: KeyboardEvent) => {
        event.stopPropagation();
        if (event.key === "Escape") close();
      },
    },
    area,
    h("div", { class: "jv-controls" }, button("Close", close), note),
  );
  within.querySelector(`[data-testid=${id}]`)?.remove();
  within.append(sheet);
  sheet.show();
  return area;
}
