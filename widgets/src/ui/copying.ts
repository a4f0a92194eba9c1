/** Copies text to the clipboard, or shows it in a sheet to select by hand if there is no clipboard. */

import { button, h } from "./dom";
import { focused } from "./focus";

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
    const note = h("span.jv-dim", "the clipboard is not available here: press Ctrl+C");
    const { area } = showSheet({ id: "copy-sheet", label: "JAX text to copy", text: [text], note }, within);
    area.focus();
    getSelection()?.selectAllChildren(area);
    tell("select it to copy");
  }
}

/** The content of a sheet: its title, its text in parts, and a note below it. */
interface Sheet {
  id: string;
  label: string;
  text: readonly (Node | string)[];
  note: HTMLElement;
}

/**
 * Opens a dialog with a text. Escape, or a press beside it, closes it, and the focus is where it was before.
 * @param dock the arrangement of panes in which it takes the place of others instead, and the page stays usable.
 */
export function showSheet(
  { id, label, text, note }: Sheet,
  within: HTMLElement,
  dock: HTMLElement | null = null,
): { area: HTMLElement; close: () => void } {
  const before = focused(within) as HTMLElement | null;
  const root = within.closest<HTMLElement>(".jaxviz") ?? within;
  const onKey = (event: KeyboardEvent) => {
    if (!sheet.isConnected) close();
    else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  };
  const close = () => {
    root.removeEventListener("keydown", onKey, true); // also if the page has dropped the dialog
    if (!sheet.isConnected) return;
    sheet.close();
    sheet.remove();
    before?.focus({ preventScroll: true });
  };
  const area = h("pre.jv-scroll", { tabindex: 0, "aria-label": label }, ...text);
  const head = [h("strong", label), note, button("Close", () => close())];
  const sheet = h(
    "dialog",
    {
      class: `jv-help jv-code-sheet${dock ? " is-docked" : ""}`,
      "aria-label": label,
      "data-testid": id,
      onclose: close,
      onkeydown: (event: KeyboardEvent) => event.key !== "Escape" && event.stopPropagation(),
    },
    h("div.jv-help-head.jv-ruled.jv-fixed.jv-row", ...head),
    area,
  );
  for (const other of root.querySelectorAll<HTMLDialogElement>(`[data-testid=${id}]`)) other.close();
  (dock ?? within).append(sheet);
  root.addEventListener("keydown", onKey, true);
  if (dock) sheet.show();
  else openModal(sheet);
  return { area, close };
}

/** Opens a dialog above the page, which a press beside it closes. */
export function openModal(sheet: HTMLDialogElement): void {
  sheet.onclick = (event) => {
    if (event.target === sheet) sheet.close();
  };
  sheet.showModal();
}
