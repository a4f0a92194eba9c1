/** Sortable tables. */

import { button, h } from "./dom";

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

/** The column headings; clicking one sorts by it, and clicking again reverses the order. */
export class Heads<Key extends string> {
  readonly cells: readonly HTMLElement[];
  descending = true;

  /**
   * @param columns the class and heading of each column.
   * @param key the initial sort key, descending.
   * @param sizes the keys that sort in descending order first.
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
