/** What repeats is one row: the values of one expression in repeated layers, calls and iterations, as Python numbers them. */

/** Adds to the list of a key. */
export function push<K, T>(map: Map<K, T[]>, key: K, value: T): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

/** The items of each group, each group where its first item is. */
export function grouped<T, K>(items: readonly T[], groupOf: (item: T) => K): T[][] {
  const groups = new Map<K, T[]>();
  for (const item of items) push(groups, groupOf(item), item);
  return [...groups.values()];
}

export const sumOf = <T>(items: readonly T[], size: (item: T) => number): number =>
  items.reduce((total, item) => total + size(item), 0);

const NUMBER = /(?<=\[)\d+(?=\])|(?<=_)\d+\b|(?<=\bresult )\d+\b/g;

/** A name or a sentence but for numbers. */
export const patternOf = (text: string): string => text.replace(NUMBER, "#");

/** One name for several that differ in numbers, as Python's `alike` gives it: `params['layers'][0…11]['q']`. */
export function alike(names: readonly string[]): string {
  const first = names[0]!;
  if (new Set(names.map(patternOf)).size > 1) return `${first} and others`;
  const numbers = names.map((name) => (name.match(NUMBER) ?? []).map(Number));
  let at = 0;
  return first.replace(NUMBER, (number) => {
    const of = numbers.map((n) => n[at]!);
    at += 1;
    const [least, most] = [Math.min(...of), Math.max(...of)];
    return least === most ? number : `${least}…${most}`;
  });
}

/** Of several sentences those that say the same but for numbers, the most that do. */
export function most(sentences: readonly string[]): string[] {
  return grouped(sentences, patternOf).reduce((a, b) => (b.length > a.length ? b : a));
}

/** One sentence for several, as Python's `most_alike` gives it: what most of them say, and how many say something else. */
export function mostAlike(sentences: readonly string[]): string {
  const same = most(sentences);
  const others = sentences.length - same.length;
  const rest = others > 1 ? "others" : "other";
  return others === 0
    ? alike(same)
    : `${alike(same)} (${same.length} of ${sentences.length}; the ${rest} for another reason)`;
}
