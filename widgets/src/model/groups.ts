/** Groups repeated values into one row: the values of one expression in repeated layers, calls and iterations, as numbered by Python. */

/** Appends to the list of a key. */
export function push<K, T>(map: Map<K, T[]>, key: K, value: T): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

/** The items of each group, ordered by first item. */
export function grouped<T, K>(items: readonly T[], groupOf: (item: T) => K): T[][] {
  const groups = new Map<K, T[]>();
  for (const item of items) push(groups, groupOf(item), item);
  return [...groups.values()];
}

export const sumOf = <T>(items: readonly T[], size: (item: T) => number): number =>
  items.reduce((total, item) => total + size(item), 0);

/** An index, or the number of a result. */
const INDEX = /(?<=\[)\d+(?=\])|(?<=\bresult )\d+\b/g;
/** A number at the end of a name, as in the name of a module. */
const SUFFIX = /(?<=[\p{L}\p{N}])_\d+(?![\p{L}\p{N}_])/gu;
const WORDS = /[\p{L}\p{N}_]+|[^\p{L}\p{N}_]/gu;

/** A name or sentence without its numbers. */
export const patternOf = (text: string): string => text.replace(SUFFIX, "").replace(INDEX, "#");

/** One name for several that differ in numbers, like Python's `alike`: `params['layers'][0…11]['q']`. */
export function alike(names: readonly string[]): string {
  const different = [...new Set(names)];
  const first = different[0]!;
  if (different.length === 1) return first;
  if (new Set(different.map(patternOf)).size > 1) return `${first} and others`;
  const words = different.map((name) => name.match(WORDS) ?? []);
  return words[0]!.map((_, i) => rangeOf(words.map((of) => of[i]!))).join("");
}

/** How many runs of consecutive numbers one name shows. */
const RUNS = 6;

/** `0…11` for numbers, `Dense_0…2,4` for numbered names, `block…block_2` if the first has no number. */
function rangeOf(words: readonly string[]): string {
  if (words.every((word) => word === words[0])) return words[0]!;
  const different = [...new Set(words)].sort((a, b) => numberOf(a) - numberOf(b) || (a < b ? -1 : 1));
  const first = different[0]!;
  const base = first.replace(SUFFIX, "");
  const areSuffixes = base !== first;
  const text = (word: string): string => (areSuffixes ? word.slice(base.length + 1) : word);
  const runs: string[] = [];
  let start = 0;
  for (let i = 1; i <= different.length; i++) {
    if (i < different.length && numberOf(different[i]!) === numberOf(different[i - 1]!) + 1) continue;
    const ends = [text(different[start]!), text(different[i - 1]!)];
    runs.push(start === i - 1 ? ends[0]! : ends.join("…"));
    start = i;
  }
  const shown = runs.length <= RUNS ? runs : [runs[0]!, runs[1]!, "…", runs.at(-1)!];
  return (areSuffixes ? `${base}_` : "") + shown.join(",");
}

/** The number in a name or index; 0 if there is none. */
const numberOf = (word: string): number =>
  Number(/^\d+$/.test(word) ? word : (/_(\d+)$/.exec(word)?.[1] ?? 0));

/** The largest set of sentences that are equal except for numbers. */
export function most(sentences: readonly string[]): string[] {
  return grouped(sentences, patternOf).reduce((a, b) => (b.length > a.length ? b : a));
}

/** One sentence for several, like Python's `most_alike`: the most common one, and how many differ. */
export function mostAlike(sentences: readonly string[]): string {
  const same = most(sentences);
  const others = sentences.length - same.length;
  const rest = others > 1 ? "others" : "other";
  return others === 0
    ? alike(same)
    : `${alike(same)} (${same.length} of ${sentences.length}; the ${rest} for another reason)`;
}
