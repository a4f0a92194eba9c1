/** Sentences from Python, with markup. */

import { h } from "./dom";

/** Text with its `code` parts as code. */
export function marked(text: string): (Node | string)[] {
  return text.split("`").map((part, i) => (i % 2 === 1 ? h("code", part) : part));
}
