/** Syntax colouring for Python. */

import { h } from "../ui/dom";

const WORDS =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|None|True|False";
const PYTHON = new RegExp(
  `(#.*$)|("(?:[^"\\\\]|\\\\.)*"|'(?:[^'\\\\]|\\\\.)*')|\\b(${WORDS})\\b|((?<=^\\s*)@[\\w.]+|\\b\\d[\\w.]*)`,
  "g",
);
const KINDS = ["jv-comment", "jv-string", "jv-keyword", "jv-literal"];

/**
 * Colours comments, strings, keywords and numbers in part of a line of Python, but no multi-line strings. The whole line is needed because,
 * for example, `@w` is a decorator only at its start.
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
