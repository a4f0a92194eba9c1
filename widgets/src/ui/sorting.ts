/** Tables sorted by a column. */

import { button, h } from "./dom";

const COLLATOR = new Intl.Collator();

/** Rows by a number or a text; those that are alike in it by their places. */
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

/** The heads of the columns; pressing one sorts by it, and pressing it again the other way round. */
export class Heads<Key extends string> {
  readonly cells: readonly HTMLElement[];
  descending = true;

  /**
   * @param columns each with the name of its class and what its head says.
   * @param key the one that is sorted by at first, the greatest above.
   * @param sizes those of which the greatest is looked for.
   */
  constructor(
    private readonly columns: readonly (readonly [Key, name: string, text: string])[],
    public key: Key,
    sizes: readonly Key[],
    changed: () => void,
  ) {
    this.cells = columns.map(([column, name, text]) => {
      const sort = () => {
        this.descending = column === this.key ? !this.descending : sizes.includes(column);
        this.key = column;
        this.mark();
        changed();
      };
      return h("th", { scope: "col", class: `jv-col-${name}` }, button(text, sort, { class: "jv-sort" }));
    });
    this.mark();
  }

  private mark(): void {
    const how = this.descending ? "descending" : "ascending";
    this.columns.forEach(([column], i) => {
      this.cells[i]!.setAttribute("aria-sort", column === this.key ? how : "none");
    });
  }
}
