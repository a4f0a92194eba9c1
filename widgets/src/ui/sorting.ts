/** Sortable tables. */

import { button, h } from "./dom";

/** The column headings; clicking one sorts by it, and clicking again reverses the order. */
export class Heads<Key extends string> {
  readonly cells: readonly HTMLElement[];
  descending = true;

  /**
   * @param columns the class and heading of each column, and what it means if the heading does not say so.
   * @param key the initial sort key, descending.
   * @param sizes the keys that sort in descending order first.
   */
  constructor(
    private readonly columns: readonly (readonly [Key, name: string, text: string, title?: string])[],
    public key: Key,
    sizes: readonly Key[],
    changed: () => void,
  ) {
    this.cells = columns.map(([column, name, text, title]) => {
      const sort = () => {
        this.descending = column === this.key ? !this.descending : sizes.includes(column);
        this.key = column;
        this.mark();
        changed();
      };
      return h(
        "th",
        { scope: "col", class: `jv-col-${name}` },
        button(text, sort, { class: "jv-sort jv-nowrap", title }),
      );
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
