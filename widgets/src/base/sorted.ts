/** Sorting of rows. */

const COLLATOR = new Intl.Collator();

/** Sorts rows by a number or text; ties keep their order. */
export function sortedBy<T>(
  rows: readonly T[],
  value: (row: T) => string | number,
  place: (row: T) => number,
  descending: boolean,
): T[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    const order =
      typeof x === "number" && typeof y === "number" ? x - y : COLLATOR.compare(String(x), String(y));
    return sign * order || place(a) - place(b);
  });
}
