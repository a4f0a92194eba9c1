/** The labels of playback buttons. */

import { h } from "../ui/dom";

/** `← back`: a sign, and a word that is left out where there is no room for it. */
export function played(text: string): (HTMLElement | string)[] {
  return text
    .split(" ")
    .map((part) => (/^[a-z]/.test(part) ? h("span", { class: "jv-play-word" }, part) : part));
}
