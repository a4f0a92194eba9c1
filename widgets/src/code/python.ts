/** Python, coloured. */

import { h } from "../ui/dom";

const WORDS =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False";
const PYTHON = new RegExp(
  `(#.*$)|("(?:[^"\\\\]|\\\\.)*"|'(?:[^'\\\\]|\\\\.)*')|\\b(${WORDS})\\b|((?<=^\\s*)@[\\w.]+|\\b\\d[\\w.]*)`,
  "g",
);
const KINDS = ["jv-comment", "jv-string", "jv-keyword", "jv-literal"];

/**
 * A line of Python, or a part of it, with its comments, strings, keywords and numbers coloured; a string over several lines is not. What a
 * part is depends on the line that it stands in: `@w` is a decorator at its beginning alone.
 */
export function coloured(text: string, from = 0, to = text.length): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let end = from;
  for (const match of text.matchAll(PYTHON)) {
    const kind = KINDS[match.slice(1).findIndex((group) => group !== undefined)];
    const first = Math.max(end, match.index);
    const last = Math.min(to, match.index + match[0].length);
    if (last <= first) continue;
    parts.push(text.slice(end, first), h("span", { class: kind }, text.slice(first, last)));
    end = last;
  }
  parts.push(text.slice(end, to));
  return parts;
}
