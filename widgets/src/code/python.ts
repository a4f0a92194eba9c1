/** Python, coloured. */

import { h } from "../ui/dom";

const WORDS =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False";
const PYTHON = new RegExp(
  `(#.*$)|("(?:[^"\\\\]|\\\\.)*"|'(?:[^'\\\\]|\\\\.)*')|\\b(${WORDS})\\b|((?<=^\\s*)@[\\w.]+|\\b\\d[\\w.]*)`,
  "g",
);
const KINDS = ["jv-comment", "jv-string", "jv-keyword", "jv-literal"];

/** A line of Python with its comments, strings, keywords and numbers coloured; a string over several lines is not. */
export function coloured(text: string): (Node | string)[] {
  const parts: (Node | string)[] = [];
  let end = 0;
  for (const match of text.matchAll(PYTHON)) {
    const kind = KINDS[match.slice(1).findIndex((group) => group !== undefined)];
    parts.push(text.slice(end, match.index), h("span", { class: kind }, match[0]));
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}
