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
