/** The labels of playback buttons. */

import { h } from "../ui/dom";

/** `← back`: a symbol, and a word that is hidden if there is no room. */
export function played(text: string): (HTMLElement | string)[] {
  return text
    .split(" ")
    .map((part) => (/^[a-z]/.test(part) ? h("span", { class: "jv-play-word" }, part) : part));
}
