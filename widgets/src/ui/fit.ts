/** Shortens text between words. */

/** As many whole words as have room, `jnp.concatenate([…`; empty if there is room for none. `letters` is how many letters have room. */
export function fitted(text: string, letters: number): string {
  if (text.length <= letters) return text;
  for (let end = Math.floor(letters) - 1; end > 0; end--)
    if (!(WORD.test(text[end - 1]!) && WORD.test(text[end]!)) && WORD.test(text.slice(0, end)))
      return `${text.slice(0, end).trimEnd()}…`;
  return "";
}

const WORD = /[\p{L}\p{N}_]/u;

/** Lines of whole words, `jnp.` and `concatenate(`; the last ends with `…` if there are more. A word longer than a line has one of its own. */
export function wrapped(text: string, letters: number, most: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(/(?<=[\s([{.,_/=])/)) {
    const line = lines.at(-1);
    if (line !== undefined && (line + word).trimEnd().length <= letters)
      lines[lines.length - 1] = line + word;
    else if (lines.length === most) {
      lines[most - 1] = fitted(line! + word, letters) || line!;
      break;
    } else lines.push(word);
  }
  return lines.map((line) => line.trimEnd());
}
