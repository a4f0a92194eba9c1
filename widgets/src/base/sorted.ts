/** Sorting of rows, and searching in what is sorted. */

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

/** How many of `n` sorted items come first, as `isBefore` says of the item at an index. */
export function countBefore(n: number, isBefore: (i: number) => boolean): number {
  let [low, high] = [0, n];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (isBefore(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}
